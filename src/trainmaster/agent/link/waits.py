"""Carry the waits of programs at barriers, for locks and at rendezvous between their connections and the master (`core.coordination`).

A wait lives as long as its connection: the runtime opens one for each, and the end of the process closes it. So a lock is let go, and a
wait given up, by closing. The agent reports all waits of the attempt to the master at each change. It reports them again on each new
channel, there with the rounds of barriers that the attempt has passed. The master answers by a push.

A process stays at a rendezvous by one connection, over which it joins again and again; each time is another row. A row has the last round
that the process was in, with its size and its rank there. On each new channel the master gets the newest rounds of the attempt too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs

from trainmaster.core.waits import BARRIER, BROKEN, RENDEZVOUS, WANTED

PASSED = 4096  # barriers whose rounds are remembered, the newest ones
FORGOTTEN = 2**53 - 1  # as a round: the attempt may have passed any


class Waiter(Protocol):
    """A program's connection."""

    def reply(self, request: int, answer: Mapping[str, Any]) -> None: ...

    def send(self, frame: Mapping[str, Any]) -> None: ...


@attrs.define(eq=False, repr=False)
class _Wait:
    waiter: Waiter
    request: int
    kind: str
    name: str
    copy: int
    began: float
    after: int | None
    more: dict[str, Any] | None = None  # of a rendezvous: what the process brings
    is_over: bool = False  # of a lock: it is held; of a rendezvous: it is in a round


class Waits:
    """The waits of one attempt. `send` sends the master a message, or drops it while the master is away; `clock` gives seconds."""

    def __init__(self, send: Callable[[dict[str, Any]], None], clock: Callable[[], float]) -> None:
        self._send, self._clock, self._attempt = send, clock, 0
        self._ids = itertools.count(1)
        self._waits: dict[int, _Wait] = {}
        self._passed: dict[str, int] = {}  # barrier -> its last round that was opened for this attempt
        # (rendezvous, copy) -> the last round of the process that is there: number, rank, size
        self._rounds: dict[tuple[str, int], tuple[int, int, int]] = {}
        self._newest: dict[str, int] = {}  # rendezvous -> the newest round of this attempt

    @property
    def count(self) -> int:
        return len(self._waits)

    def begin(self, attempt: int) -> None:
        """Begin an attempt: all waits of the one before are over."""
        self._attempt = attempt
        self._waits.clear()
        self._passed.clear()
        self._rounds.clear()
        self._newest.clear()

    def add(self, waiter: Waiter, request: int, kind: str, name: str, copy: int) -> None:
        """Answer `waiter` once it need not wait any more."""
        after = self._passed.get(name, FORGOTTEN if len(self._passed) >= PASSED else None) if kind == BARRIER else None
        began = self._clock()
        self._waits[next(self._ids)] = _Wait(waiter, request, kind, name, copy, began, after)
        self.tell()

    def join(self, waiter: Waiter, request: int, name: str, copy: int, more: dict[str, Any]) -> str:
        """Answer `waiter` once a round opens at a rendezvous; it leaves the one that it is in. Return why it may not, or ""."""
        for number, wait in [*self._waits.items()]:
            if wait.kind == RENDEZVOUS and (wait.name, wait.copy) == (name, copy):
                if wait.waiter is not waiter:
                    return f"another process, or another connection, has joined {name} as copy {copy} already"
                del self._waits[number]
        if name not in self._newest and len(self._newest) >= PASSED:
            return f"there are {PASSED} rendezvous of this attempt already"
        began = self._clock()
        self._waits[next(self._ids)] = _Wait(waiter, request, RENDEZVOUS, name, copy, began, None, more)
        self.tell()
        return ""

    def left(self, waiter: Waiter) -> None:
        """Give up all that a connection waited for or held: it has closed."""
        if numbers := [number for number, wait in self._waits.items() if wait.waiter is waiter]:
            for number in numbers:
                wait = self._waits.pop(number)
                if wait.kind == RENDEZVOUS:
                    self._rounds.pop((wait.name, wait.copy), None)
            self.tell()

    def answered(self, message: Mapping[str, Any]) -> None:
        """Take in the master's push: these waits are over."""
        if message.get("attempt") != self._attempt:
            return
        has_changed = False
        for number, count in message.get("over") or ():
            wait = self._waits.get(number)
            if wait is None or wait.is_over:
                continue
            wait.is_over = has_changed = True
            if wait.kind == BARRIER:
                del self._waits[number]
                self._passed.pop(wait.name, None)  # the newest comes last
                self._passed[wait.name] = count
                if len(self._passed) > PASSED:
                    del self._passed[next(iter(self._passed))]
            wait.waiter.reply(wait.request, {"ok": True})
        for number, count, rank, members, finished in message.get("opened") or ():
            if (wait := self._waits.get(number)) is not None and not wait.is_over:
                wait.is_over = True
                self._rounds[wait.name, wait.copy] = (count, rank, len(members))
                self._newest[wait.name] = count
                answer = {"round": count, "rank": rank, "members": members, "finished": finished}
                wait.waiter.reply(wait.request, answer)
        for word in (BROKEN, WANTED):
            for number, count in message.get(word) or ():
                if (wait := self._waits.get(number)) is not None and wait.is_over:
                    wait.waiter.send({"op": word, "round": count})
        if has_changed:
            self.tell()

    def tell(self, anew: bool = False) -> None:
        """Tell the master all that the attempt waits for and holds. `anew`: on a new channel, to a master that may be another."""
        now = self._clock()
        rows = [self._row(number, wait, round(now - wait.began, 3)) for number, wait in self._waits.items()]
        passed = {"passed": dict(self._passed), "rounds": dict(self._newest)} if anew else {}
        self._send({"type": "waits", "attempt": self._attempt, "waits": rows, **passed})

    def _row(self, number: int, wait: _Wait, age: float) -> list[Any]:
        row = [number, wait.kind, wait.name, wait.copy, wait.is_over, age, wait.after]
        if wait.more is None:
            return row
        count, rank, size = self._rounds.get((wait.name, wait.copy), (0, 0, 0))
        return [*row[:-1], count, {**wait.more, "rank": rank, "size": size}]
