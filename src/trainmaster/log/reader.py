"""Read the log: all of it, from a number on, or as it grows.

A `Reader` stands after a line and hands out the whole lines that follow, at every call; a torn end is
simply not there yet. It needs nothing but the storage, so any process may read while a master writes. When a later
epoch turns out not to have read the last lines of an earlier one, the reader goes back to where that epoch begins:
numbers then fall, and the lines that had higher numbers before never counted.

A line that is missing where a later one exists is damage and raises an error: nothing is skipped in silence. But a storage of limited
size drops events that snapshots cover: there the numbers go on after the gap, and a fold begins with a snapshot (`replayed`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TypeVar

import attrs

from trainmaster.core.errors import TrainmasterError
from trainmaster.core.plain import Plain
from trainmaster.log.segments import FOLDER, Head, Segment, head_of, number, segments
from trainmaster.log.storage import LISTING, Damaged, Storage

T = TypeVar("T")
CHUNK = 1024 * 1024  # bytes read at once


@attrs.frozen(slots=True, eq=False, repr=False)
class Batch(Plain):
    """Consecutive lines of one epoch, newlines included; `first` is the number of the first."""

    epoch: int
    first: int
    lines: list[bytes]

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1


class Reader:
    """A reader that stands after line `after` (0: the beginning) of the log in `storage`, as `epoch` wrote it where that is known."""

    def __init__(self, storage: Storage, after: int = 0, epoch: int | None = None, chunk: int = CHUNK) -> None:
        self.last = after  # the number of the last line handed out
        self._storage, self._chunk = storage, chunk
        self._epoch = epoch  # of that line
        self._segments: dict[int, list[Segment]] = {}
        self._heads: dict[int, Head] = {}
        self._gap = False  # by the last listing, a line is missing that should be there
        self._places: dict[
            Segment, tuple[int, int]
        ] = {}  # segment -> an offset in it, and the number of the line there

    def poll(self) -> Batch | None:
        """Return the next lines (about a chunk of them), or None while there are no more."""
        if self._segments and (batch := self._next()):
            return batch
        self.refresh()
        if (batch := self._next()) or not self._gap:
            return batch
        # A listing takes time: a file may have grown after it was looked at, while the next one was begun.
        self.refresh()
        if (batch := self._next()) or not self._gap:
            return batch
        if self._skip_dropped_events():
            return self.poll()
        raise self.damaged(f"event {self.last + 1} is missing, and later ones are there")

    def damaged(self, problem: str) -> Damaged:
        """Return the error about lines that are in the log and cannot be."""
        return Damaged(
            f"the event log is damaged: {problem}", place=f"{self._storage.url}/{FOLDER}",
            mend="put its files back from a copy; the job cannot be resumed without them", anchor="log-damaged",
        )  # fmt: skip

    def refresh(self) -> None:
        """List the files that are there now."""
        self._segments = segments(self._storage)
        for epoch, parts in self._segments.items():
            if epoch not in self._heads and (head := self._head(parts[0])):
                self._heads[epoch] = head
        head = self._heads.get(self.epoch)
        if head is not None and self._epoch is not None and self._epoch < self.epoch:
            self.last = min(self.last, head.end_of(self._epoch))

    @property
    def epoch(self) -> int:
        """Return the epoch that decides which lines count: the highest with a whole first line; -1 while there is none."""
        return max(self._heads, default=-1)

    @property
    def read(self) -> dict[int, int]:
        """Return up to which line each epoch was read, once `poll` has given None: a new epoch writes this into its first line."""
        head = self._heads.get(self.epoch)
        return {} if head is None else {**head.read, self.epoch: self.last}

    def holds(self, epoch: int, n: int) -> bool:
        """Tell whether line `n`, as that epoch wrote it, counts (by the last listing)."""
        head = self._heads.get(self.epoch)
        return head is not None and (epoch == self.epoch or (epoch < self.epoch and n <= head.read.get(epoch, 0)))

    # -- inside --

    def _head(self, segment: Segment) -> Head | None:
        size = 4096
        while True:
            start = self._storage.read(segment.path, 0, min(size, segment.size))
            if start is None:
                return None
            line, newline, _ = start.partition(b"\n")
            if newline or size >= segment.size or b"\0" in line:
                return head_of(line + newline, segment.first)
            size = self._longer(size, segment)

    def _longer(self, size: int, segment: Segment) -> int:
        """Return how much to read of a line that is longer than `size` bytes. Raises Damaged where no line is."""
        if size >= LISTING:
            raise self.damaged(f"{segment.path} has a line of more than {LISTING >> 20} MiB")
        return min(size * 16, LISTING)  # an event may have the listing of an input

    def _next(self) -> Batch | None:
        self._gap = False
        head = self._heads.get(self.epoch)
        if head is None:
            return None
        n = self.last + 1
        older = (epoch for epoch in sorted(head.read) if epoch < self.epoch and head.read[epoch] >= n)
        epoch = next(older, self.epoch)
        limit = head.read[epoch] if epoch != self.epoch else None
        if lines := self._lines(epoch, n, limit):
            self.last, self._epoch = self.last + len(lines), epoch
            return Batch(epoch, n, lines)
        parts = self._segments.get(epoch, [])  # none where all was removed meanwhile
        self._gap = limit is not None or n < head.n or (bool(parts) and parts[-1].first > n)
        return None

    def _skip_dropped_events(self) -> bool:
        """Go on with the next line that is there, where a snapshot covers the missing ones. Return False where none does."""
        from trainmaster.log.snapshots import snapshot_ends

        head = self._heads[self.epoch]
        later = [
            part.first
            for epoch, parts in self._segments.items()
            for part in parts
            if self.last + 1 < part.first <= (head.read.get(epoch, 0) if epoch != self.epoch else part.first)
        ]
        if self._storage.droppable is None or min(later) - 1 > max(snapshot_ends(self._storage), default=0):
            return False
        self.last = min(later) - 1
        self._epoch = next(
            (epoch for epoch in sorted(head.read) if epoch < self.epoch and head.read[epoch] >= self.last), self.epoch
        )
        return True

    def _lines(self, epoch: int, n: int, limit: int | None) -> list[bytes]:
        """Return the lines from `n` on.

        The segment that begins nearest before `n` has them; an object that came back late may hide an earlier one.
        """
        parts = [part for part in self._segments.get(epoch, ()) if part.first <= n]
        if not parts:
            return []
        lines = self._lines_of(parts[-1], n)
        if not lines and (limit is not None or self._segments[epoch][-1].first > n):
            lines = next((candidate for part in reversed(parts[:-1]) if (candidate := self._lines_of(part, n))), [])
        return lines if limit is None else lines[: limit + 1 - n]

    def _lines_of(self, segment: Segment, n: int) -> list[bytes]:
        offset, at = self._places.get(segment, (0, segment.first))
        if at > n:
            offset, at = 0, segment.first
        size = self._chunk
        while offset < segment.size:
            data = self._storage.read(segment.path, offset, min(size, segment.size - offset))
            whole = data.rfind(b"\n") + 1 if data else 0
            if not data or not whole:
                if not data or offset + size >= segment.size or b"\0" in data:
                    break  # its end is torn: pages that never reached the disk read as zeros
                size = self._longer(size, segment)
                continue
            lines, sound = _numbered_lines(data[:whole], at)
            if sound:
                self._places[segment] = (offset + whole, at + len(lines))
            if at + len(lines) > n:
                return lines[n - at :]
            if not sound:
                break  # not our lines: a crash of the machine left them at the end
            offset, at = offset + whole, at + len(lines)
        return []


def replay(reader: Reader, decode: Callable[[bytes], T]) -> Iterator[T]:
    """Yield the lines that follow the reader now, decoded (`bytes` leaves a line as it is). Raises StorageFailed at one that cannot be."""
    while batch := reader.poll():
        yield from decoded(reader, batch, decode)


def decoded(reader: Reader, batch: Batch, decode: Callable[[bytes], T]) -> Iterator[T]:
    """Yield the lines of a batch, decoded. Raises StorageFailed at one that cannot be."""
    n = batch.first
    try:
        for line in batch.lines:
            yield decode(line)
            n += 1
    except TrainmasterError:
        raise
    except (ValueError, RecursionError) as error:
        raise reader.damaged(f"line {n} is not an event: {line[:80].decode(errors='replace')!r}") from error


def _numbered_lines(data: bytes, at: int) -> tuple[list[bytes], bool]:
    """Return the lines of `data` numbered at, at + 1, ..., and whether these are all: mostly they are, as the two ends prove."""
    lines = data.splitlines(keepends=True)
    holed = b"\0" in data  # a page that never reached the disk reads as zeros; JSON holds none
    if not holed and number(lines[0]) == at and number(lines[-1]) == at + len(lines) - 1 and data.endswith(b"}\n"):
        return lines, True
    count = 0
    while count < len(lines) and number(lines[count]) == at + count and _is_json(lines[count]):
        count += 1
    return lines[:count], False


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
