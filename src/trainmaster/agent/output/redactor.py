"""Redact secret values in a program's output before it is stored: later readers of the log do not have the values to look for.

Output comes in pieces, cut anywhere, so the end of a piece that could be the beginning of a value is held back until the next piece comes.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainmaster.core.spec.redaction import REDACTED, writings

_REDACTED = REDACTED.encode()


class Redactor:
    """Redacts `values` in a stream of bytes, in any writing of `SHORTEST` characters or more (`writings`)."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values = [value.encode(errors="surrogateescape") for value in writings(tuple(values))]
        self._held = b""

    def __bool__(self) -> bool:
        return bool(self._values)

    def redact(self, data: bytes) -> bytes:
        """Return the bytes that may be stored now, redacted. The rest is held back."""
        data, length = self._held + data, 0
        for value in self._values:
            # A value may be a line of a longer one, whose beginning is held back: the search ends there.
            end = len(data) - length + len(value) - 1 if length else len(data)
            data = data[:end].replace(value, _REDACTED) + data[end:]
            length = max(length, _partial_length(data, value))
        self._held = data[len(data) - length :]
        return data[: len(data) - length]

    def rest(self) -> bytes:
        """Return the bytes held back, at the end of the stream."""
        rest, self._held = self._held, b""
        for value in self._values:
            rest = rest.replace(value, _REDACTED)
        return rest


def _partial_length(data: bytes, value: bytes) -> int:
    """Return how many bytes at the end of `data` are a beginning of `value`, but not all of it."""
    first = value[:1]
    at = data.find(first, max(0, len(data) - len(value) + 1))
    while at >= 0 and not value.startswith(data[at:]):
        at = data.find(first, at + 1)
    return len(data) - at if at >= 0 else 0
