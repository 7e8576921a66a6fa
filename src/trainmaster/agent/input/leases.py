"""Lease the shards of one input from the master, for the programs of one attempt.

Programs lease from the pool of the agent over a local socket, so that their round trip is short; the pool leases ahead
from the master and carries reports back with the same messages, one at a time. Each shard of the pool is in one place:

    ready (leased, nobody has it)  --given-->  out (a connection has it)  --done-->  done (to be reported, or being reported)

A connection that closes puts its shards back to ready. Done shards stay held until the master has answered, since only
then are they durable. A master that is away is asked again and again; nothing here is lost meanwhile, and `held` lists
on every new channel the shards that the attempt holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import attrs

from trainmaster.core.input.ranges import RangeSet

Lease: TypeAlias = Callable[[str, int, dict[str, Any], list[list[int]]], Awaitable[Mapping[str, Any]]]
"""`lease(input, want, done, back)`: ask the master for `want` shards (0: none), and report the done shards (`ranges`, `records`) and the
ranges that come back unread. The answer is that of `ShardTable.answer` once `done` is durable, or {"unknown": true} where the input is
not read as shards. Raises OSError while the master is away; then the whole call is repeated."""

Row: TypeAlias = tuple[int, int, str, str, int, int]  # number, epoch, path, kind, start, end: as programs get it

AHEAD_MOST = 256  # shards leased ahead, at most
LASTS = (0.02, 1.0)  # s: more is leased ahead where the leased shards last less, and less where they last longer
FLUSH = 0.2  # s that a report may wait for more to report
FULL = 500  # done shards that are reported at once
WAIT = 0.5  # s that a program's request may wait; then it asks again, and reports what it has done meanwhile
IDLE = 1.0  # s without any reader until the ready shards go back
PAUSES = (0.05, 1.0)  # s between requests while nothing is free or the master is away: the first and the longest

log = logging.getLogger(__name__)


class Reader(Protocol):
    """A program's connection."""

    def reply(self, request: int, answer: Mapping[str, Any]) -> None: ...


@attrs.define(eq=False, repr=False)
class _Waiter:
    reader: Reader
    request: int
    want: int
    wait: bool
    timer: asyncio.TimerHandle | None = None


class StateMark(NamedTuple):
    """A state of a training's members: that of this step, in this round."""

    training: str
    round: int
    step: int


class Pool:
    """One input of one attempt. Runs in the agent's loop; `run` is its task."""

    def __init__(self, name: str, lease: Lease) -> None:
        self.name, self.mark = name, 0
        self.kept_by = ""  # who keeps what programs make of the shards, where they say it
        self._lease, self._loop = lease, asyncio.get_running_loop()
        self._ready: deque[Row] = deque()
        self._out: dict[int, tuple[Reader, Row]] = {}
        self._done: dict[int, int | None] = {}  # number -> records, to be reported
        self._states: dict[int, StateMark] = {}  # of those that members of a training keep
        self._reporting: dict[int, int | None] = {}  # on its way to the master
        self._reported = RangeSet()  # durable with the master, and in no part of the outputs
        self._back = RangeSet()
        self._waiters: deque[_Waiter] = deque()
        self._readers: set[Reader] = set()
        self._ahead = 2
        self._pause, self._dry_until, self._away_until = PAUSES[0], 0.0, 0.0
        self._last_lease_at = 0.0  # when the last shards came
        self._lease_ahead = self._end = self._unknown = self._urgent = False
        self._taken = False  # tasks hold all shards that are not over, as the master has just said
        self._flush_at = 0.0
        self._idle: asyncio.TimerHandle | None = None
        self._kick, self._acknowledged = asyncio.Event(), asyncio.Event()

    # -- calls of programs --

    def ask(self, reader: Reader, request: int, want: int, wait: bool) -> None:
        """Answer `reader` with up to `want` shards, now or when there are some."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._readers.add(reader)
        self._ahead = max(self._ahead, min(want, AHEAD_MOST))
        self._waiters.append(_Waiter(reader, request, want, wait))
        self._serve()
        if self._waiters and self._waiters[-1].reader is reader:
            self._waiters[-1].timer = self._loop.call_later(WAIT, self._answer_empty, self._waiters[-1])
        if self._shortfall() or self._end:
            self._kick.set()

    def done(
        self, reader: Reader, records_by_shard: Mapping[int, int | None], states: Mapping[int, StateMark] | None = None
    ) -> None:
        """Note that `reader` has read these shards (number -> records). A shard that it does not have out is ignored.

        `states`: those of the shards that are in a state of a training's members.
        """
        if not self._done:
            self._flush_at = self._loop.time() + FLUSH
        earlier_count = len(self._done)
        for number, records in records_by_shard.items():
            if number in self._out and self._out[number][0] is reader:
                del self._out[number]
                self._done[number] = records
                if states and number in states:
                    self._states[number] = states[number]
        if (self._done and not earlier_count) or len(self._done) >= FULL:
            self._kick.set()

    def hold(self, reader: Reader, numbers: list[int]) -> list[int]:
        """Give shards back to a `reader` that had them out and has reconnected. Return the numbers that it has lost."""
        self._readers.add(reader)
        ready = {row[0]: row for row in self._ready}
        kept = [number for number in numbers if number in ready]
        for number in kept:
            self._out[number] = (reader, ready.pop(number))
        self._ready = deque(ready.values())
        return [number for number in numbers if number not in kept]

    def has_out(self, reader: Reader, number: int) -> bool:
        """Tell whether the shard was given to `reader`, which has not reported it."""
        return number in self._out and self._out[number][0] is reader

    def left(self, reader: Reader) -> None:
        """Make the shards of `reader` ready again: its connection closed."""
        if reader not in self._readers:
            return
        self._readers.discard(reader)
        for waiter in [waiter for waiter in self._waiters if waiter.reader is reader]:
            self._forget(waiter)
        unread = [row for owner, row in self._out.values() if owner is reader]
        for row in unread:
            del self._out[row[0]]
        self._ready.extendleft(sorted(unread, reverse=True))
        self._serve()
        if not self._readers:
            self._idle = self._loop.call_later(IDLE, self._return_ready)
        self._kick.set()

    # -- calls of the channel --

    def held(self) -> list[list[int]]:
        """Return the ranges of the master's leases that this attempt still holds, to be reported on a new channel."""
        numbers = {row[0] for row in self._ready} | self._out.keys() | self._done.keys() | self._reporting.keys()
        return RangeSet.of(sorted(numbers)).union(self._back).to_json()

    def drop(self, ranges: Any) -> None:
        """Drop shards that are not ours, as the master says."""
        lost = RangeSet.from_json(ranges)
        self._ready = deque(row for row in self._ready if row[0] not in lost)
        for number in [number for number in self._out if number in lost]:
            del self._out[number]
        for number in [number for number in self._done if number in lost]:
            del self._done[number]
            self._states.pop(number, None)
            self._reported.add(number, number + 1)  # or it is another's, as the master knows
        self._back.subtract(lost)
        if not self._done:
            self._acknowledged.set()  # the report that was on its way when the connection broke had arrived

    def wake(self) -> None:
        """Ask at once: shards may have become free."""
        self._dry_until = self._away_until = 0.0
        self._kick.set()

    async def drain(self) -> None:
        """Return once everything that programs reported is durable with the master."""
        self._urgent = True
        while self._done or self._reporting:
            self._acknowledged.clear()
            self._kick.set()
            await self._acknowledged.wait()
        self._urgent = False

    def reported(self) -> RangeSet:
        """Return the shards that are durable with the master and in no part of the outputs: those of the next part."""
        return self._reported.copy()

    def keep(self, shards: RangeSet) -> None:
        """Note that the shards are in a part of the outputs."""
        self._reported.subtract(shards)

    async def run(self) -> None:
        """Exchange with the master for ever."""
        while True:
            self._kick.clear()
            now = self._loop.time()
            want = self._shortfall() if now >= self._dry_until else 0
            if now >= self._away_until and (want or self._due(now)):
                await self._exchange(want)
                continue
            wakes = [self._flush_at] if self._done else []
            wakes += [self._dry_until] if self._shortfall() else []
            wakes += [self._away_until] if self._due(now) else []
            timer = self._loop.call_at(max(min(wakes), self._away_until), self._kick.set) if wakes else None
            await self._kick.wait()
            if timer is not None:
                timer.cancel()

    # -- below --

    def _shortfall(self) -> int:
        """Return the number of shards to ask the master for."""
        if self._end or self._unknown:
            return 0
        waiting = sum(waiter.want for waiter in self._waiters)
        if waiting:
            return min(AHEAD_MOST, waiting + self._ahead) - len(self._ready)
        low = self._lease_ahead and len(self._ready) <= self._ahead // 2 and bool(self._readers)
        return self._ahead - len(self._ready) if low else 0

    def _due(self, now: float) -> bool:
        should_flush = len(self._done) >= FULL or now >= self._flush_at or bool(self._waiters) or self._urgent
        return bool(self._back) or (bool(self._done) and should_flush)

    async def _exchange(self, want: int) -> None:
        reported, self._done = dict(sorted(self._done.items())), {}
        back, self._back = self._back, RangeSet()
        self._reporting = reported
        done = {"ranges": RangeSet.of(reported).to_json(), "records": list(reported.values())} if reported else {}
        if reported and self.kept_by:
            done["kept_by"] = self.kept_by
        in_states: dict[StateMark, list[int]] = {}
        for number in reported:
            if number in self._states:
                in_states.setdefault(self._states[number], []).append(number)
        if in_states:
            done["states"] = [[*state, RangeSet.of(numbers).to_json()] for state, numbers in in_states.items()]
        try:
            answer = await self._lease(self.name, want, done, back.to_json())
            rows = _rows(answer)
        except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
            if not isinstance(error, OSError):
                log.error("shards of %s: the master's answer cannot be read: %r", self.name, error)
            self._done = {**reported, **self._done}
            self._back.update(back)
            self._reporting, self._taken = {}, False
            self._away_until = self._next_request_at()
            return
        self._reporting = {}
        for number in reported:
            self._states.pop(number, None)
        self._reported.update(RangeSet.of(reported))
        self._accept(answer, rows, want)
        if not self._done:
            self._acknowledged.set()

    def _accept(self, answer: Mapping[str, Any], rows: list[Row], want: int) -> None:
        self.mark = max(self.mark, int(answer.get("mark", 0)))
        self._unknown = bool(answer.get("unknown", self._unknown))
        self._end = bool(answer.get("end", self._end))
        self._taken = bool(answer.get("taken"))
        have = {row[0] for row in self._ready} | self._out.keys() | self._done.keys()
        self._ready.extend(row for row in rows if row[0] not in have)
        self._serve()
        if rows:
            now = self._loop.time()
            lasted, self._last_lease_at = now - self._last_lease_at, now
            self._pause, self._dry_until = PAUSES[0], 0.0
            # A master that gives fewer has few left: nothing is leased ahead then.
            self._lease_ahead = len(rows) >= want
            if self._lease_ahead and lasted < LASTS[0]:
                self._ahead = min(AHEAD_MOST, self._ahead * 2)
            elif lasted > LASTS[1]:
                self._ahead = max(2, self._ahead // 2)
        elif want:
            self._lease_ahead, self._dry_until = False, self._next_request_at()
            for waiter in [waiter for waiter in self._waiters if not waiter.wait]:
                self._answer(waiter, {"shards": [], "none": True, "taken": self._taken})

    def _next_request_at(self) -> float:
        """Return the time of the next request, each time after a longer pause."""
        until = self._loop.time() + self._pause
        self._pause = min(self._pause * 2, PAUSES[1])
        return until

    def _serve(self) -> None:
        while self._waiters:
            waiter = self._waiters[0]
            if self._ready:
                rows = [self._ready.popleft() for _ in range(min(waiter.want, len(self._ready)))]
                for row in rows:
                    self._out[row[0]] = (waiter.reader, row)
                self._answer(waiter, {"shards": rows})
            elif self._unknown or self._end:
                self._answer(waiter, {"shards": [], "unknown": self._unknown, "end": self._end})
            else:
                return

    def _answer_empty(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._answer(waiter, {"shards": [], "taken": self._taken})

    def _answer(self, waiter: _Waiter, answer: Mapping[str, Any]) -> None:
        self._forget(waiter)
        waiter.reader.reply(waiter.request, answer)

    def _forget(self, waiter: _Waiter) -> None:
        self._waiters.remove(waiter)
        if waiter.timer is not None:
            waiter.timer.cancel()

    def _return_ready(self) -> None:
        self._idle = None
        for row in self._ready:
            self._back.add(row[0], row[0] + 1)
        self._ready.clear()
        self._lease_ahead = False
        self._kick.set()


def _rows(answer: Mapping[str, Any]) -> list[Row]:
    files, shards = answer.get("files", ()), answer.get("shards", ())
    count = answer["count"] if shards else 1
    return [(number, number // count, *files[file], start, end) for number, file, start, end in shards]
