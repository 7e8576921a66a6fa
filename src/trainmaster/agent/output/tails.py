"""What is kept of logs where the job has no storage that its agents reach: the end of each attempt's that failed or lost its container, and
in a job of few tasks less of those that ended well, which may be over before anybody could read along.

The agent tells it to the master, again until that has kept it; a living job's logs are whole, and are read from their agents. This takes
the place of `shipping.Shipping` and has its form.
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

KEPT = 256 * 1024  # bytes of one attempt's
ANSWERED_WITHIN = 2.0  # s that a disk has to answer
LOOK, AGAIN = 0.5, 5.0  # s between two looks, and until an end that nobody has kept is told again


class Channel(Protocol):
    def report(self, kind: str, attempt: int, **fields: Any) -> None: ...

    def ask(self, message: dict[str, Any]) -> None: ...


class Tails:
    """Tells the ends of a task's logs over its agent's channel."""

    def __init__(self, channel: Channel, well: int = 0) -> None:
        """`well`: bytes that are kept of an attempt that ended well."""
        self._channel, self._well = channel, well
        self._spools: dict[int, Spool] = {}
        self._sizes: dict[int, int] = {}  # bytes that are kept, where that is not KEPT
        self._due: dict[int, float] = {}  # attempts whose ends are not kept yet -> when they are told next
        self._kept = asyncio.Event()
        self._taken = False  # the engine ends the container: no end is told of what runs in it

    def report(self, kind: str, attempt: int, **fields: Any) -> None:
        """Pass a report on; one of an end makes the log's end due."""
        self._channel.report(kind, attempt, **fields)
        if kind != "ended" or fields.get("stopped") or attempt not in self._spools:
            return
        if fields.get("reason") == "exit" and (fields.get("figures") or {}).get("status") == 0:
            self._sizes[attempt] = self._well
        if self._sizes.get(attempt, KEPT):
            self._due[attempt] = 0.0

    def heard(self, message: Mapping[str, Any]) -> None:
        """The master has kept one."""
        self._due.pop(int(message.get("attempt", 0)), None)
        self._kept.set()

    def follow(self, spool: Spool, attempt: int) -> None:
        self._spools[attempt] = spool

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            await self._tell()

    async def hurry(self) -> None:
        """Tell what is due now, and at the end the end of what runs."""
        self._taken = True
        await self._tell()

    async def finish(self, within: float) -> str:
        """Have all of them kept; "" or what was given up."""
        if self._taken and self._spools:
            self._due.setdefault(max(self._spools), 0.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._due:
                    await self._tell()
                    self._kept.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK):
                            await self._kept.wait()
        if not self._due:
            return ""
        return f"the end of the log could not be told within {within:.0f} s: the master has not kept it"

    def clear(self) -> None:
        """The container takes the spools along."""

    async def _tell(self) -> None:
        now = asyncio.get_running_loop().time()
        for attempt, due in list(self._due.items()):
            if now >= due:
                self._due[attempt] = now + AGAIN
                size = self._sizes.get(attempt, KEPT)
                end = await answered_within(ANSWERED_WITHIN, _end_of, self._spools[attempt], size)
                if end is not None:
                    text = base64.b64encode(end[1]).decode()
                    self._channel.ask({"type": "log-end", "attempt": attempt, "bytes": end[0], "data": text})


def _end_of(spool: Spool, size: int) -> tuple[int, bytes]:
    """How much was printed, and the end of it. Blocks."""
    try:
        with open(spool.path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return spool.printed, file.read()
    except FileNotFoundError:
        return 0, b""
