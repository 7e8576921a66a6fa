"""Carry the waits of programs at barriers and for locks between their connections and the master (`core.coordination`).

A wait lives as long as its connection: the runtime opens one for each, and the end of the process closes it. So a lock is let go, and a
wait given up, by closing. The master is told all waits of the attempt at each change, and again on each new channel, there with the rounds
of barriers that the attempt has passed. It answers by a push.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs

from trainmaster.core.waits import BARRIER

PASSED = 4096  # barriers whose rounds are remembered, the newest ones
FORGOTTEN = 2**53 - 1  # as a round: the attempt may have passed any


class Waiter(Protocol):
    """A program's connection."""

    def reply(self, request: int, answer: Mapping[str, Any]) -> None: ...


@attrs.define(eq=False, repr=False)
class _Wait:
    waiter: Waiter
    request: int
    kind: str
    name: str
    copy: int
    began: float
    after: int | None
    is_over: bool = False  # of a lock: it is held


class Waits:
    """The waits of one attempt. `send` sends the master a message, or drops it while the master is away."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send, self._attempt = send, 0
        self._ids = itertools.count(1)
        self._waits: dict[int, _Wait] = {}
        self._passed: dict[str, int] = {}  # barrier -> its last round that was opened for this attempt

    @property
    def count(self) -> int:
        return len(self._waits)

    def begin(self, attempt: int) -> None:
        """Begin an attempt: all waits of the one before are over."""
        self._attempt = attempt
        self._waits.clear()
        self._passed.clear()

    def add(self, waiter: Waiter, request: int, kind: str, name: str, copy: int) -> None:
        """Answer `waiter` once it need not wait any more."""
        after = self._passed.get(name, FORGOTTEN if len(self._passed) >= PASSED else None) if kind == BARRIER else None
        began = asyncio.get_running_loop().time()
        self._waits[next(self._ids)] = _Wait(waiter, request, kind, name, copy, began, after)
        self.tell()

    def left(self, waiter: Waiter) -> None:
        """Give up all that a connection waited for or held: it has closed."""
        if numbers := [number for number, wait in self._waits.items() if wait.waiter is waiter]:
            for number in numbers:
                del self._waits[number]
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
        if has_changed:
            self.tell()

    def tell(self, anew: bool = False) -> None:
        """Tell the master all that the attempt waits for and holds. `anew`: on a new channel, to a master that may be another."""
        now = asyncio.get_running_loop().time()
        rows = [
            [number, wait.kind, wait.name, wait.copy, wait.is_over, round(now - wait.began, 3), wait.after]
            for number, wait in self._waits.items()
        ]
        passed = {"passed": dict(self._passed)} if anew else {}
        self._send({"type": "waits", "attempt": self._attempt, "waits": rows, **passed})
