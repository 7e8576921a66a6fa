"""The files of a log: `events/<epoch>-<n>.jsonl`, and which of their lines count.

A *line* is one JSON object that ends in a newline and carries "n", its number: 1, 2, ... over all epochs. A *segment*
holds consecutive lines of one epoch from number n on; its end may be torn, and a later segment may repeat lines of an
earlier one, byte for byte. The first line of an epoch may carry "read": {earlier epoch: its last number}; lines of that
epoch beyond the number do not count. The highest epoch that has a whole first line decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from trainmaster.core.foreign import NUMERAL, json_in
from trainmaster.core.plain import Plain
from trainmaster.log.storage import Storage

FOLDER = "events"
_NAME = re.compile(rf"({NUMERAL})-({NUMERAL})\.jsonl")
_NUMBER = re.compile(rb'\{"v":"[^"\\]*","n":([0-9]{1,15})[,}]')


@attrs.frozen(slots=True, order=True)
class Segment:
    """A file of lines. `first` is the number of its first line, `size` its size when it was listed, in bytes."""

    epoch: int
    first: int
    size: int = attrs.field(eq=False, default=0)

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.epoch}-{self.first}.jsonl"


@attrs.frozen(slots=True, eq=False, repr=False)
class Head(Plain):
    """The first line of an epoch: its number, and up to where its master has read the earlier epochs."""

    n: int
    read: Mapping[int, int]

    def end_of(self, epoch: int) -> int:
        """Return the last number that counts of an earlier epoch or any before it."""
        return max((last for other, last in self.read.items() if other <= epoch), default=0)


def segments(storage: Storage) -> dict[int, list[Segment]]:
    """Return the present segments: epoch -> its segments in order."""
    parts: dict[int, list[Segment]] = {}
    for entry in storage.entries(FOLDER):
        if match := _NAME.fullmatch(entry.name):
            segment = Segment(int(match[1]), int(match[2]), entry.size)
            parts.setdefault(segment.epoch, []).append(segment)
    return {epoch: sorted(parts[epoch]) for epoch in sorted(parts)}


def number(line: bytes) -> int:
    """Return the number of a line, or -1 where it is not a line of a log."""
    if match := _NUMBER.match(line):  # as our own encoder writes it
        return int(match[1])
    try:
        n = json_in(line)["n"]
    except (ValueError, TypeError, KeyError):
        return -1
    return n if type(n) is int else -1


def head_of(line: bytes, first: int) -> Head | None:
    """Parse an epoch's first line; return None where it is not whole."""
    if not line.endswith(b"\n") or number(line) != first:
        return None
    try:
        record = json_in(line)
        return Head(first, {int(epoch): int(n) for epoch, n in (record.get("read") or {}).items()})
    except (ValueError, TypeError, AttributeError):
        return None
