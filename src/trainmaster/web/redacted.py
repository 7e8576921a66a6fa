"""The facts of a job as other readers than its own user see them: redacted as its description is.

A link of a job may have a token in its path, an output's URL a password, the reason of an end a signed URL. The user needs them:
`tm status` and the session of the user's own `tm ui` show all. A team, the cluster's proxy, readers of a storage place and of exported
files get none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.core.spec.redaction import redact
from trainmaster.web.contract import Facts, Records

_ITEMS = ("status", "end", "event")  # of a stream


def redacted(facts: Facts, values: tuple[str, ...] = ()) -> Facts:
    """Return the facts for readers. `values`: secret values of the job, which are covered wherever they stand."""
    shown: Any = _Redacted(facts, values)
    return shown  # type: ignore[no-any-return]


class _Redacted:
    def __init__(self, facts: Facts, values: tuple[str, ...]) -> None:
        self._facts, self._values = facts, values
        self._whole: Mapping[str, Any] | None = None
        self._shown: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facts, name)

    def status(self) -> dict[str, Any]:
        return dict(self.shown_status())

    def shown_status(self) -> dict[str, Any]:
        whole = self._facts.shown_status()
        if whole is not self._whole:
            self._whole, self._shown = whole, self._redact(whole)
        return self._shown

    async def events(self, after: int, follow: bool) -> Records:
        async for record in self._facts.events(after, follow):
            yield self._redact(record)

    async def stream(self, after: int, logs: bool, tail: int | None, bare: bool = False) -> Records:
        async for item in self._facts.stream(after, logs, tail, bare):
            yield {name: self._redact(part) if name in _ITEMS else part for name, part in item.items()}

    def _redact(self, data: Any) -> Any:
        return redact(data, self._values)
