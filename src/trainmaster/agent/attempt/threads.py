"""Run a container's blocking work in threads. Most of it copies data.

A thread cannot be cancelled. Work of a stopped attempt is asked to give up, but may be deep in a call to a slow storage. So a stopped
attempt waits a while for its work before it reports its end; and the next attempt, which uses the same files, begins after that work.
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
    """Return the result of `act`, or None where it takes longer or fails: a look at a disk that may hang.

    The thread is a daemon: one that hangs in the kernel does not keep the process from ending.
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
    """A daemon thread that reads a disk which may hang, one job after the other. The first job starts it."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[asyncio.AbstractEventLoop, Callable[[], Any], Callable[[Any], None]]] = (
            SimpleQueue()
        )
        self._begun = False

    def do(self, act: Callable[[], T], then: Callable[[T], None]) -> None:
        """Run `act` in the thread; `then` is called in the loop with its result."""
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

    async def run(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of `act`. When cancelled, this returns at once, and `act` goes on."""
        work = asyncio.create_task(asyncio.to_thread(act, *arguments))
        self._busy.add(work)
        work.add_done_callback(self._busy.discard)
        return await asyncio.shield(work)

    async def idle(self, within: float | None = None) -> bool:
        """Wait until no thread is at work, for `within` seconds at most. Tell whether none is."""
        if self._busy:
            await asyncio.wait(self._busy, timeout=within)
        return not self._busy
