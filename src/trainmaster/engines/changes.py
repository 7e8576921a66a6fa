"""The changes that an engine tells its master, in order, and the tasks in which the engine works meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from trainmaster.core.machine.stimuli import Change


class Changes:
    """The changes of an engine, and its tasks. An error that ends one of the tasks ends the changes too, so that the master hears of it."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Change | BaseException | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    def report(self, change: Change) -> None:
        """Add a change."""
        self._queue.put_nowait(change)

    def fail(self, error: BaseException) -> None:
        """End the changes with an error: no more of them can be known."""
        self._queue.put_nowait(error)

    def end(self) -> None:
        """End the changes."""
        self._queue.put_nowait(None)

    async def stream(self) -> AsyncIterator[Change]:
        """Yield the changes, in order, until they end; raise the error that ends them."""
        while (change := await self._queue.get()) is not None:
            if isinstance(change, BaseException):
                raise change
            yield change

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start work in a task of its own."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return task

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait for their end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
