"""Secret values in what a program prints are covered before they are stored: nobody who reads the log later has the values to look for.

Output comes in pieces, cut anywhere, so the end of a piece that could be the beginning of a value is held back until the next one shows.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainmaster.core.spec.redaction import COVER, SHORTEST


class Cover:
    """Covers `values` of `SHORTEST` characters or more in a stream of bytes."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values = sorted({value.encode() for value in values if len(value) >= SHORTEST}, key=len, reverse=True)
        self._held = b""

    def __bool__(self) -> bool:
        return bool(self._values)

    def over(self, data: bytes) -> bytes:
        """What may be stored now of all that was given."""
        data = self._held + data
        for value in self._values:
            data = data.replace(value, COVER.encode())
        hold = max((_begun(data, value) for value in self._values), default=0)
        self._held = data[len(data) - hold :]
        return data[: len(data) - hold]

    def rest(self) -> bytes:
        """What was held back, at the end of the stream."""
        held, self._held = self._held, b""
        return held


def _begun(data: bytes, value: bytes) -> int:
    """How many bytes at the end of `data` are a beginning of `value`, not all of it."""
    for length in range(min(len(value) - 1, len(data)), 0, -1):
        if data.endswith(value[:length]):
            return length
    return 0
