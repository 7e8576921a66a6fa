"""Redact secret values in a program's output before it is stored: later readers of the log do not have the values to look for.

Output comes in pieces, cut anywhere, so the end of a piece that could be the beginning of a value is held back until the next piece comes.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainmaster.core.spec.redaction import REDACTED, known

_REDACTED = REDACTED.encode()


class Redactor:
    """Redacts `values` in a stream of bytes, in any writing (`core.spec.normal_form`)."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values = known(tuple(values))
        self._held = b""

    def __bool__(self) -> bool:
        return bool(self._values)

    def redact(self, data: bytes) -> bytes:
        """Return the bytes that may be stored now, redacted. The rest is held back."""
        shown, self._held = self._values.split(self._held + data, _REDACTED)
        return shown

    def rest(self) -> bytes:
        """Return the bytes held back, at the end of the stream."""
        rest, self._held = self._held, b""
        return self._values.replaced(rest, _REDACTED)
