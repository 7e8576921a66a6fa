"""Reports on their way: numbered, kept until the master has them durably, sent again after a reconnect.

What is said often and only the newest counts (`progress`, `staging`, `uploading`, a warning of the same thing) waits unnumbered, one of a
kind and attempt, at most one a second; it gets its number when it is sent, so it never stands between two others in the wrong order.

So little is kept, however long the master does not answer and whatever a program does: each attempt goes through few steps, checkpoint
sets and saves are far apart, and who reports shards as done waits for the acknowledgement before reporting more of the input.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

NEWEST_WINS = frozenset({"progress", "staging", "uploading", "warned"})
EVERY = 1.0  # s between two of a kind


class Outbox:
    """The reports of one agent."""

    def __init__(self) -> None:
        self.last = 0  # number of the last report
        self._kept: deque[dict[str, Any]] = deque()
        self._sent = 0  # number of the last one sent on this connection
        self._newest: dict[tuple[str, int, str], dict[str, Any]] = {}  # kind, attempt, and what a warning is of
        self._told: dict[tuple[str, int, str], float] = {}
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def empty(self) -> bool:
        """Whether everything was acknowledged."""
        return not self._kept and not self._newest

    def holds(self, kind: str) -> bool:
        """Return whether a report of this kind was not acknowledged yet."""
        return any(report["kind"] == kind for report in self._kept)

    def add(self, kind: str, attempt: int, fields: dict[str, Any]) -> None:
        report = {"type": "report", "attempt": attempt, "kind": kind, **fields}
        if kind in NEWEST_WINS:
            self._newest[kind, attempt, str(fields.get("what", ""))] = report
            return
        for key in [key for key in self._newest if key[1] == attempt]:
            self._number(self._newest.pop(key))  # what came before it is told before it
        self._number(report)

    def _number(self, report: dict[str, Any]) -> None:
        self.last += 1
        self._kept.append({**report, "n": self.last})

    def connected(self, acked: int) -> None:
        """A new connection: everything after `acked` is sent again."""
        self.acknowledge(acked)
        self._sent = acked

    def acknowledge(self, n: int) -> None:
        while self._kept and self._kept[0]["n"] <= n:
            self._kept.popleft()
        waiting, self._waiting = self._waiting, []
        for wanted, future in waiting:
            if wanted > n:
                self._waiting.append((wanted, future))
            elif not future.done():
                future.set_result(None)

    async def emptied(self) -> None:
        """Wait until everything was acknowledged."""
        while self._newest:
            self._number(self._newest.pop(next(iter(self._newest))))
        await self.acknowledged()

    async def acknowledged(self) -> None:
        """Wait until the last report made so far was acknowledged."""
        if self._kept:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((self.last, future))
            await future

    def next(self, now: float) -> dict[str, Any] | None:
        """The next report to send, or None."""
        for key in [key for key in self._newest if now - self._told.get(key, -EVERY) >= EVERY]:
            self._told[key] = now
            self._number(self._newest.pop(key))
        if not self._kept or self._kept[-1]["n"] <= self._sent:
            return None
        report = self._kept[max(0, self._sent + 1 - self._kept[0]["n"])]
        self._sent = report["n"]
        return report

    def due(self, now: float) -> float | None:
        """Seconds until one that waits its second may be sent; None where none waits."""
        waits = [max(0.0, EVERY - (now - self._told.get(key, -EVERY))) for key in self._newest]
        return min(waits, default=None)
