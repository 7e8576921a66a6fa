"""The state of a feed's ring: the holder of each part of its memory, as plain data without sockets or memory.

A *feeder* reserves room for a batch and writes it. Then the batch waits for the *reader*, which holds it, and releases it once it is read.
Parts are given out first-fit, since they come back in any order. Feeders get them in the order of their requests, so that a large batch is
not overtaken for ever. Invariants, under any order of calls:

- no two parts overlap, and a part is whole again when nobody has it: a feeder that dies frees what it was writing;
- a batch is handed to a reader once, except for those that a reader held when it died, which go to the next reader;
- a number is accepted once. A request for one that is being written waits: it is refused if the batch comes, granted if its feeder dies;
- the end is reported after all batches, a stop to all feeders at once.

A batch may have a third of the ring: while a reader holds one batch, whatever its size and place, there is room for another.

Where ranks read in step, the reader may have `limit` rows: if a batch goes beyond, the reader gets its first rows now and the others later.
A feeder that does not wait gets `full` if there is no room, or if the ring has enough beyond the limit (`starved`: the reader waits for
more all the same). It may go to another ring. Only the newest feeder of a partition (`try`) is heard, so that an older one puts nothing
here once its successor has put batches elsewhere.
"""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

import attrs

from trainmaster.core.input.feeding import AHEAD
from trainmaster.core.input.ranges import RangeSet

ALIGNMENT = 64
PARTS = 3
READER = 0  # the party that reads; feeders are other numbers

Number: TypeAlias = tuple[int, int, int]  # stage, partition, batch
Answer: TypeAlias = tuple[int, dict[str, Any]]  # to whom, and the message
Record: TypeAlias = dict[tuple[int, int], RangeSet]  # the batches of a stage's partition


@attrs.frozen
class Request:
    """A feeder's wish for room. `waits`: it wants no `full`. `try_`: the number of the feeder's try of the partition."""

    number: Number
    size: int
    rows: int = 1
    waits: bool = True
    try_: int = 0


@attrs.define
class Part:
    """A part of the memory, and the batch that it is for. The reader got the first `handed_out` rows, in `pieces` that it still holds."""

    at: int
    size: int
    number: Number
    rows: int
    handed_out: int = 0
    pieces: int = 0


class Ring:
    """The state of a ring of `size` bytes. Calls that no correct party makes raise ValueError and change nothing.

    `fed` and `read` have the numbers of the batches that were written and that were released; `repeated` counts the refused ones.
    `supply` is the number of rows that were written, `limit` of those that the reader may have, `delivered` of those that it got.
    """

    def __init__(self, size: int) -> None:
        self.size, self.largest = size, size // PARTS // ALIGNMENT * ALIGNMENT
        self.fed: Record = {}
        self.read: Record = {}
        self.repeated = 0
        self.has_ended = self.has_stopped = False
        self.supply = self.delivered = 0
        self.limit: int | None = None
        self.ahead = 0  # rows that it may have beyond the limit, where these are more than `AHEAD` batches
        self._news: tuple[Record, Record] = {}, {}  # what was fed and read, since that was last asked for
        self._tries: dict[tuple[int, int], int] = {}  # the newest of each partition
        self._free = [(0, size)]  # (begin, end), rising, never touching
        self._feeders: set[int] = set()
        self._requests: dict[int, Request] = {}  # by feeder, in the order of their coming
        self._written: dict[int, Part] = {}  # by feeder, while it writes
        self._queue: deque[Part] = deque()
        self._held: dict[int, Part] = {}  # by where they begin, in the order of their going to the reader
        self._demand = 0  # batches that the reader has asked for
        self._has_starved = False  # `starved` was sent to the reader, since it last got a batch

    # -- feeders --

    def join(self, feeder: int) -> list[Answer]:
        self._feeders.add(feeder)
        return [(feeder, {"op": "stopped"})] if self.has_stopped else []

    def reserve(
        self, feeder: int, number: Number, size: int, *, rows: int = 1, waits: bool = True, try_: int = 0
    ) -> None:
        """Ask for room. `settle` has the answer when there is some."""
        if feeder in self._requests or feeder in self._written:
            raise ValueError("a feeder writes one batch at a time")
        if not 0 < size <= self.largest or len(number) != 3 or min(number) < 0:
            raise ValueError(f"no batch {number} of {size} bytes fits the ring")
        if not self.has_stopped:
            self._requests[feeder] = Request(number, size, rows, waits, try_)
            self._tries[number[:2]] = max(try_, self._tries.get(number[:2], 0))

    def commit(self, feeder: int) -> None:
        """Take in the batch that the feeder has written."""
        if (part := self._written.pop(feeder, None)) is None:
            raise ValueError("the feeder writes nothing")
        if self.has_stopped:
            self._give_back(part)
        else:
            self._queue.append(part)
            self.supply += part.rows
            _note(self.fed, part.number)
            _note(self._news[0], part.number)

    def written_by(self, feeder: int) -> Part | None:
        """Return the part that a feeder writes."""
        return self._written.get(feeder)

    def leave(self, feeder: int) -> None:
        self._feeders.discard(feeder)
        self._requests.pop(feeder, None)
        if (part := self._written.pop(feeder, None)) is not None:
            self._give_back(part)

    # -- the reader --

    def demand(self) -> None:
        self._demand += 1

    def release(self, at: int) -> None:
        if (part := self._held.get(at)) is None:
            raise ValueError(f"no batch at {at} is held")
        part.pieces -= 1
        if not part.pieces:
            del self._held[at]
            if part.handed_out == part.rows:
                self._give_back(part)
                _note(self.read, part.number)
                _note(self._news[1], part.number)

    def lose_reader(self) -> None:
        """Put the batches that the reader held before all others, for the next reader."""
        first = self._queue.popleft() if self._queue and self._queue[0].handed_out else None
        parts = [part for part in self._held.values() if part is not first] + ([] if first is None else [first])
        for part in parts:
            if part.pieces:  # else the rows that it had of the first batch were read
                self.delivered -= part.handed_out
                part.handed_out = part.pieces = 0
        self._queue.extendleft(reversed(parts))
        self._held.clear()
        self._demand = 0
        if self.has_stopped:
            self._drop_queue()

    def stop(self) -> list[Answer]:
        """Drop what was not handed out, and accept nothing more. Return a word to each feeder."""
        self.has_stopped = True
        self._drop_queue()
        self._requests.clear()
        return [(feeder, {"op": "stopped"}) for feeder in sorted(self._feeders)]

    # -- everybody --

    def permit(self, rows: int | None, ahead: int = 0) -> None:
        """Let the reader have so many rows in all; None: whatever comes. Lower numbers than before are old.

        `ahead`: rows that feeders may put beyond these, where they are more than `AHEAD` batches.
        """
        self.limit = None if rows is None else max(rows, self.limit or 0)
        self.ahead = max(self.ahead, ahead)

    def end(self) -> None:
        """Tell the reader the end, once it has all batches; accept no new ones."""
        self.has_ended = True

    def settle(self) -> list[Answer]:
        """Return the answers that are due by now."""
        answers = self._grants()
        while self._demand and self._queue and (count := self._permitted(self._queue[0])):
            self._demand, self._has_starved = self._demand - 1, False
            answers.append((READER, self._hand_out(self._queue[0], count)))
        if self._demand and self._is_over:
            self._demand = 0
            answers.append((READER, {"op": "end"}))
        if self._demand and self._requests and not self._written and not self._has_starved:
            self._has_starved = True
            answers.append((READER, {"op": "starved", "held": self.held, "size": self.size}))
        return answers

    def take_news(self) -> tuple[list[list[int]], list[list[int]]]:
        """Return which batches were fed and which were read since the last call: rows [stage, partition, first, end]."""
        news, self._news = self._news, ({}, {})
        fed, read = ([[*key, *ends] for key, ranges in part.items() for ends in ranges.ranges()] for part in news)
        return fed, read

    # -- figures --

    @property
    def free(self) -> int:
        return sum(end - begin for begin, end in self._free)

    @property
    def room(self) -> int:
        """Return the bytes of the largest batch for which there is room."""
        return max((end - begin for begin, end in self._free), default=0)

    @property
    def left_over(self) -> int:
        """Return the rows that were written, and that no reader got."""
        return self.supply - self.delivered

    @property
    def held(self) -> int:
        """Return the bytes of the batches that the reader holds."""
        return sum(part.size for part in self._held.values())

    @property
    def queued(self) -> int:
        """Return the number of batches that wait for the reader."""
        return len(self._queue)

    @property
    def waiting(self) -> int:
        """Return the number of feeders that wait for room."""
        return len(self._requests)

    # -- below --

    @property
    def _is_over(self) -> bool:
        if self.has_ended and self.limit is not None and self.delivered >= self.limit:
            return True
        return self.has_stopped or (self.has_ended and not (self._queue or self._written or self._requests))

    def _permitted(self, part: Part) -> int:
        """Return how many further rows of a batch the reader may have; of one without rows, 1, so that it goes out."""
        if not part.rows:
            return 1
        rest = part.rows - part.handed_out
        return rest if self.limit is None else max(0, min(rest, self.limit - self.delivered))

    def _hand_out(self, part: Part, count: int) -> dict[str, Any]:
        """Return the message that gives the reader the next rows of the first batch."""
        first, part.handed_out = part.handed_out, min(part.handed_out + count, part.rows)
        self.delivered += part.handed_out - first
        part.pieces += 1
        self._held[part.at] = part
        if part.handed_out == part.rows:
            self._queue.popleft()
        return {
            "op": "batch", "at": part.at, "size": part.size, "number": part.number, "first": first, "end": part.handed_out
        }  # fmt: skip

    def _grants(self) -> list[Answer]:
        answers: list[Answer] = []
        under_way = {part.number for part in self._written.values()}
        is_full = False
        for feeder, request in list(self._requests.items()):
            number = request.number
            if request.try_ < self._tries[number[:2]]:
                answer: dict[str, Any] = {"op": "superseded"}
            elif number[2] in self.fed.get(number[:2], ()):
                self.repeated += 1
                answer = {"op": "had"}
            elif number in under_way:
                continue
            elif self.has_ended:
                answer = {"op": "refused", "why": f"batch {number} comes after the end of the feed"}
                answer = answer if request.waits else {"op": "full", "why": "ended"}
            elif not request.waits and self._is_ahead(request):
                is_starved = self._demand > 1  # a reader asks for one batch in advance
                answer = {"op": "full", "why": "starved" if is_starved else "ahead"}
            elif not is_full and (part := self._take(request)) is not None:
                self._written[feeder] = part
                under_way.add(number)
                answer = {"op": "write", "at": part.at}
            elif not request.waits:
                answer = {"op": "full", "why": "room"}
            else:
                is_full = True
                continue
            del self._requests[feeder]
            answers.append((feeder, answer))
        return answers

    def _drop_queue(self) -> None:
        while self._queue:
            part = self._queue.popleft()
            if part.pieces:  # its memory goes back once the reader has released its first rows
                part.handed_out = part.rows
            else:
                self._give_back(part)

    def _is_ahead(self, request: Request) -> bool:
        if self.limit is None:
            return False
        rows = self.supply + sum(part.rows for part in self._written.values())
        return rows - self.limit >= max(self.ahead, AHEAD * max(request.rows, 1))

    def _take(self, request: Request) -> Part | None:
        size = -(-request.size // ALIGNMENT) * ALIGNMENT
        for index, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                self._free[index : index + 1] = [(begin + size, end)] if begin + size < end else []
                return Part(begin, size, request.number, request.rows)
        return None

    def _give_back(self, part: Part) -> None:
        begin, end = part.at, part.at + part.size
        index = sum(other < begin for other, _ in self._free)
        if index < len(self._free) and self._free[index][0] == end:
            end = self._free.pop(index)[1]
        if index and self._free[index - 1][1] == begin:
            index -= 1
            begin = self._free.pop(index)[0]
        self._free.insert(index, (begin, end))


def _note(record: Record, number: Number) -> None:
    record.setdefault(number[:2], RangeSet()).add(number[2], number[2] + 1)
