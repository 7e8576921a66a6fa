"""Blocking work of a container, in threads: what copies data, mostly.

A thread cannot be cancelled. Work whose attempt is stopped is told to give up, but may be deep in a call to a slow storage. So an attempt
that is stopped waits a while for it before it says that it has ended; and the next one, whose files are the same, begins after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


async def answered_within(seconds: float, act: Callable[..., T], *arguments: Any) -> T | None:
    """Return what `act` returns, or None where it takes longer or fails: a look at a disk that may hang.

    The thread is a daemon: one that hangs in the kernel keeps nobody from ending.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T | None] = loop.create_future()

    def settle(value: T | None) -> None:
        if not answer.done():
            answer.set_result(value)

    def run() -> None:
        value = None
        with contextlib.suppress(OSError):
            value = act(*arguments)
        with contextlib.suppress(RuntimeError):  # the loop is closed by now
            loop.call_soon_threadsafe(settle, value)

    threading.Thread(target=run, name="disk", daemon=True).start()
    done, _ = await asyncio.wait([answer], timeout=seconds)
    return answer.result() if done else None


class DiskThread:
    """One thread that reads a disk which may hang, one thing after the other. A daemon, begun with the first of them."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[asyncio.AbstractEventLoop, Callable[[], Any], Callable[[Any], None]]] = (
            SimpleQueue()
        )
        self._begun = False

    def do(self, act: Callable[[], T], then: Callable[[T], None]) -> None:
        """Do `act` in the thread; `then` is called in the loop with what it returns."""
        self._work.put((asyncio.get_running_loop(), act, then))
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._run, name="disk", daemon=True).start()

    def _run(self) -> None:
        while True:
            loop, act, then = self._work.get()
            result = act()
            with contextlib.suppress(RuntimeError):  # the loop is closed by now
                loop.call_soon_threadsafe(then, result)


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
