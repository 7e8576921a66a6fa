"""Redact secret values in a program's output before it is stored: later readers of the log do not have the values to look for.

Output comes in pieces, cut anywhere, so the end of a piece that could be the beginning of a value is held back until the next piece comes.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainmaster.core.spec.redaction import REDACTED, SHORTEST


class Redactor:
    """Redacts `values` of `SHORTEST` characters or more in a stream of bytes."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values = sorted({value.encode() for value in values if len(value) >= SHORTEST}, key=len, reverse=True)
        self._held = b""

    def __bool__(self) -> bool:
        return bool(self._values)

    def redact(self, data: bytes) -> bytes:
        """Return the bytes that may be stored now, redacted. The rest is held back."""
        data = self._held + data
        for value in self._values:
            data = data.replace(value, REDACTED.encode())
        length = max((_partial_length(data, value) for value in self._values), default=0)
        self._held = data[len(data) - length :]
        return data[: len(data) - length]

    def rest(self) -> bytes:
        """Return the bytes held back, at the end of the stream."""
        rest, self._held = self._held, b""
        return rest


def _partial_length(data: bytes, value: bytes) -> int:
    """Return how many bytes at the end of `data` are a beginning of `value`, but not all of it."""
    for length in range(min(len(value) - 1, len(data)), 0, -1):
        if data.endswith(value[:length]):
            return length
    return 0
