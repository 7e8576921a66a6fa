"""Keep the ends of logs where the job has no storage that its agents reach.

The end is kept of each attempt that failed or lost its container. In a job of few tasks less is kept of attempts that ended well, which may
be over before anybody could read along. The agent sends the end to the master, again and again until the master has kept it. A living job's
logs are whole, and are read from their agents. This takes the place of `shipping.Shipping` and has its interface.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import Mapping
from typing import Any, Protocol

from trainmaster.agent.attempt.threads import answered_within
from trainmaster.agent.output.spool import Spool

KEPT = 256 * 1024  # bytes of one attempt's log
ANSWERED_WITHIN = 2.0  # s that a disk has to answer
LOOK, AGAIN = 0.5, 5.0  # s between two looks, and until an end that was not kept is sent again


class Channel(Protocol):
    def report(self, kind: str, attempt: int, **fields: Any) -> None: ...

    def ask(self, message: dict[str, Any]) -> None: ...


class Tails:
    """Sends the ends of a task's logs over its agent's channel."""

    def __init__(self, channel: Channel, well: int = 0) -> None:
        """Keep `well` bytes of an attempt that ended well."""
        self._channel, self._well = channel, well
        self._spools: dict[int, Spool] = {}
        self._sizes: dict[int, int] = {}  # bytes to keep, where not KEPT
        self._due: dict[int, float] = {}  # attempts whose ends are not kept yet -> when they are sent next
        self._kept = asyncio.Event()
        self._ending = False  # the engine ends the container: no end of a running attempt is reported

    def report(self, kind: str, attempt: int, **fields: Any) -> None:
        """Pass a report on. The report of an end makes the log's end due."""
        self._channel.report(kind, attempt, **fields)
        if kind != "ended" or fields.get("stopped") or attempt not in self._spools:
            return
        if fields.get("reason") == "exit" and (fields.get("figures") or {}).get("status") == 0:
            self._sizes[attempt] = self._well
        if self._sizes.get(attempt, KEPT):
            self._due[attempt] = 0.0

    def receive(self, message: Mapping[str, Any]) -> None:
        """Note that the master has kept the end of a log."""
        self._due.pop(int(message.get("attempt", 0)), None)
        self._kept.set()

    def follow(self, spool: Spool, attempt: int) -> None:
        self._spools[attempt] = spool

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            await self._send_due()

    async def hurry(self) -> None:
        """Send the ends that are due now; `finish` will send that of a running attempt too."""
        self._ending = True
        await self._send_due()

    async def finish(self, within: float) -> str:
        """Have all due ends kept. Return "", or a sentence about those that were given up."""
        if self._ending and self._spools:
            self._due.setdefault(max(self._spools), 0.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._due:
                    await self._send_due()
                    self._kept.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK):
                            await self._kept.wait()
        if not self._due:
            return ""
        return f"the end of the log could not be handed over within {within:.0f} s: the master has not kept it"

    def clear(self) -> None:
        """Do nothing: the spools are removed with the container."""

    async def _send_due(self) -> None:
        now = asyncio.get_running_loop().time()
        for attempt, due in list(self._due.items()):
            if now >= due:
                self._due[attempt] = now + AGAIN
                size = self._sizes.get(attempt, KEPT)
                end = await answered_within(ANSWERED_WITHIN, _log_end, self._spools[attempt], size)
                if end is not None:
                    text = base64.b64encode(end[1]).decode()
                    self._channel.ask({"type": "log-end", "attempt": attempt, "bytes": end[0], "data": text})


def _log_end(spool: Spool, size: int) -> tuple[int, bytes]:
    """Return how many bytes were printed, and the last `size` of them. Blocks."""
    try:
        with open(spool.path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return spool.printed, file.read()
    except FileNotFoundError:
        return 0, b""
