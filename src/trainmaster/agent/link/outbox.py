"""The outbox keeps numbered reports until the master has them durably, and sends them again after a reconnect.

Only the newest of the frequent reports counts (`progress`, `staging`, `uploading`, a warning of the same subject). One for each kind and
attempt waits unnumbered, and at most one a second is sent. It gets its number when it is sent, so it is never in the wrong order.

So little is kept, however long the master does not answer and whatever a program does: each attempt goes through few steps, checkpoint
sets and saves are far apart, and a report of done shards waits for its acknowledgement before the next one of the same input.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

NEWEST_WINS = frozenset({"progress", "staging", "uploading", "warned"})
EVERY = 1.0  # s between two reports of a kind


class Outbox:
    """The reports of one agent."""

    def __init__(self) -> None:
        self.last = 0  # number of the last report
        self._kept: deque[dict[str, Any]] = deque()
        self._sent = 0  # number of the last report sent on this connection
        self._newest: dict[tuple[str, int, str], dict[str, Any]] = {}  # by kind, attempt, and a warning's subject
        self._sent_at: dict[tuple[str, int, str], float] = {}
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def empty(self) -> bool:
        """Tell whether everything was acknowledged."""
        return not self._kept and not self._newest

    def holds(self, kind: str) -> bool:
        """Tell whether a report of this kind is not acknowledged yet."""
        return any(report["kind"] == kind for report in self._kept)

    def add(self, kind: str, attempt: int, fields: dict[str, Any]) -> None:
        report = {"type": "report", "attempt": attempt, "kind": kind, **fields}
        if kind in NEWEST_WINS:
            self._newest[kind, attempt, str(fields.get("what", ""))] = report
            return
        for key in [key for key in self._newest if key[1] == attempt]:
            self._number(self._newest.pop(key))  # an earlier report is sent earlier
        self._number(report)

    def _number(self, report: dict[str, Any]) -> None:
        self.last += 1
        self._kept.append({**report, "n": self.last})

    def connected(self, acked: int) -> None:
        """Prepare for a new connection: everything after `acked` is sent again."""
        self.acknowledge(acked)
        self._sent = acked

    def acknowledge(self, n: int) -> None:
        while self._kept and self._kept[0]["n"] <= n:
            self._kept.popleft()
        waiting, self._waiting = self._waiting, []
        for number, future in waiting:
            if number > n:
                self._waiting.append((number, future))
            elif not future.done():
                future.set_result(None)

    async def emptied(self) -> None:
        """Wait until everything was acknowledged."""
        while self._newest:
            self._number(self._newest.pop(next(iter(self._newest))))
        await self.acknowledged()

    async def acknowledged(self) -> None:
        """Wait until the last report so far was acknowledged."""
        if self._kept:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((self.last, future))
            await future

    def next(self, now: float) -> dict[str, Any] | None:
        """Return the next report to send, or None."""
        for key in [key for key in self._newest if now - self._sent_at.get(key, -EVERY) >= EVERY]:
            self._sent_at[key] = now
            self._number(self._newest.pop(key))
        if not self._kept or self._kept[-1]["n"] <= self._sent:
            return None
        report = self._kept[max(0, self._sent + 1 - self._kept[0]["n"])]
        self._sent = report["n"]
        return report

    def due(self, now: float) -> float | None:
        """Return the seconds until an unnumbered report may be sent; None where none waits."""
        waits = [max(0.0, EVERY - (now - self._sent_at.get(key, -EVERY))) for key in self._newest]
        return min(waits, default=None)
