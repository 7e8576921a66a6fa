"""Read the course of a job out of its log: a `Timeline`, kept up to date by reading on.

Most events of a long log say nothing of who ran where (progress, shards, leases): these lines are passed over by a look at their beginning,
as `log.index` does, and never decoded. Only events that a timeline takes, and those that open and close a decision of several, are decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from trainmaster.core.machine.events import Event, decode
from trainmaster.core.timeline import CHANGES, Timeline
from trainmaster.log.reader import Batch, Reader, decoded
from trainmaster.log.storage import Storage

# A line as `encode` writes it, of an event that no timeline takes. A line of another form is decoded.
_PASSED_OVER = re.compile(
    rb'\{"v":"[^"]*","n":\d+,"at":[^,"]*,"epoch":\d+,"type":"(?!(?:' + "|".join(map(re.escape, CHANGES)).encode() + rb')")'
)  # fmt: skip
_OPEN = b'"rest":'


def poll(reader: Reader) -> tuple[int, list[Event]] | None:
    """Return the number of the next lines' first, and `events_of` them; None while there are no more lines."""
    batch = reader.poll()
    return None if batch is None else (batch.first, events_of(reader, batch))


def events_of(reader: Reader, batch: Batch) -> list[Event]:
    """Return the events of a batch that a timeline takes, and the last one. Raises StorageFailed at a line that cannot be read."""
    return [event for event in decoded(reader, batch, _telling(len(batch.lines))) if event is not None]


def _telling(lines: int) -> Callable[[bytes], Event | None]:
    """Return a function that decodes those of so many lines in order that tell something, and returns None for the others."""
    is_open, left = True, lines  # the first line may close a decision of the lines before

    def decode_telling(line: bytes) -> Event | None:
        nonlocal is_open, left
        was_open, is_open, left = is_open, _OPEN in line, left - 1
        return None if not (was_open or is_open) and left and _PASSED_OVER.match(line) else decode(line)

    return decode_telling


class Course:
    """The course of the job in a storage, as far as it was read. `timeline` is made by `read`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.timeline = Timeline()
        self._reader = Reader(storage)

    def read(self) -> Timeline:
        """Take in the events that are new. Where a later master had not read all that was taken, all is read again."""
        while (new := poll(self._reader)) is not None:
            first, events = new
            if first <= self.timeline.n:
                self.timeline, self._reader = Timeline(), Reader(self._storage)
                continue
            for event in events:
                self.timeline.take(event)
        return self.timeline
