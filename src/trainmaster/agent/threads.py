"""Blocking work of a container, in threads: what copies data, mostly.

A thread cannot be cancelled. Work whose attempt is stopped is told to give up, but may be deep in a call to a slow storage. So an attempt
that is stopped waits a while for it before it says that it has ended; and the next one, whose files are the same, begins after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Threads:
    """The threads of one container that are at work."""

    def __init__(self) -> None:
        self._busy: set[asyncio.Task[Any]] = set()

    async def run(self, act: Callable[..., Any], *given: Any) -> Any:
        """What `act` returns. Cancelled, it returns at once, and `act` goes on."""
        work = asyncio.create_task(asyncio.to_thread(act, *given))
        self._busy.add(work)
        work.add_done_callback(self._busy.discard)
        return await asyncio.shield(work)

    async def idle(self, within: float | None = None) -> bool:
        """Whether none is at work any more, after `within` seconds at the latest."""
        if self._busy:
            await asyncio.wait(self._busy, timeout=within)
        return not self._busy
