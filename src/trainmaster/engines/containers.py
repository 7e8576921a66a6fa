"""The containers of one job, as its master has them: the book (`core.containers`) between the master and its engine.

The engine may open late: an API server that restarts, a ResourceManager that fails over. Programs that run meanwhile are healthy, and they
end where no master answers their agents. So a master writes its first events and serves; asks and releases wait here until the engine is
open. Asks are absolute, so only the newest set of them is kept.

An engine works in tasks of its own. An error that ends one of them, or that it reports, ends the changes, so that the master hears of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any

from trainmaster.core.containers import Book, Request, Seen, Work
from trainmaster.core.machine.stimuli import Change, Key
from trainmaster.engines.contract import Free, MasterSide

_PAUSE = 0.05  # s, at least, between two looks at what is due


class Containers:
    """The containers of one job. `keys_held()`: those that the master's log says it was granted. `lost`: the reason for the end of one of
    them that the engine has no more. `opened()` is called once the engine is open, before anything is reported.
    """

    def __init__(
        self, engine: MasterSide, keys_held: Callable[[], Collection[Key]], lost: str = "agent-lost",
        opened: Callable[[], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        self.book = Book(engine.habits)
        self._engine, self._keys_held, self._lost, self._opened = engine, keys_held, lost, opened
        self._is_open = self._is_closed = False
        self._asks: Sequence[Request] | None = None
        self._releases: list[Key] = []
        self._changes: asyncio.Queue[Change | BaseException | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stirred, self._emptied = asyncio.Event(), asyncio.Event()

    # -- the master's side --

    def begin(self, epoch: int) -> None:
        """Begin to open the engine, as the master of this epoch. An error of that ends `changes`."""
        self.opening = self.work(self._open(epoch))

    async def _open(self, epoch: int) -> None:
        seen = await self._engine.open(epoch, self)
        self._do(self.book.open(seen, self._keys_held(), self.now(), self._lost))
        if self._opened is not None:
            await self._opened()
        self._is_open = True
        for key in self._releases:
            self.release(*key)
        if self._asks is not None:
            self.ask(self._asks)
        self.work(self._tick())

    def ask(self, requests: Sequence[Request]) -> None:
        """State the whole set of asks that are not granted yet. An ask that is no longer in the set is withdrawn."""
        if self._is_open:
            self._do(self.book.ask(requests, self.now()))
        else:
            self._asks = requests

    def release(self, task: str, serial: int) -> None:
        """Take a container (or ask) back: its agent is asked to end and, if it does not, killed. Its end follows."""
        if self._is_open:
            self._do(self.book.release((task, serial)))
        else:
            self._releases.append((task, serial))

    async def changes(self) -> AsyncIterator[Change]:
        """Yield what happens to asks and containers, in order, and that the engine itself has ended the job. Raises what ends it."""
        await asyncio.shield(self.opening)
        while (change := await self._changes.get()) is not None:
            if isinstance(change, BaseException):
                raise change
            yield change

    async def free(self) -> Sequence[Free]:
        return await self._engine.free()

    async def close(self, state: str) -> None:
        """Give everything back at the end of the job, and tell the engine the job's final state."""
        await asyncio.shield(self.opening)
        if self._is_closed:
            return
        self._do(self.book.close())
        with contextlib.suppress(TimeoutError):  # we do not stay for a process that the kernel does not end
            async with asyncio.timeout(self.book.habits.closing):
                while not self.book.is_empty:
                    self._emptied.clear()
                    await self._emptied.wait()
        # No work of the engine goes on beside its end: a beat of YARN's after that would be refused, and end the master.
        for task in (tasks := self._tasks - {asyncio.current_task()}):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._engine.close(state)
        self._is_closed = True
        self._changes.put_nowait(None)

    # -- the engine's side --

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def see(self, *seen: Seen) -> None:
        """Take what the engine sees. Containers of a gang that it grants at once come in one call."""
        self._do(self.book.see(seen, self.now()))

    def deny(self, key: Key) -> None:
        """Take that an ask was not carried out and should be later."""
        self._do(self.book.deny(key, self.now()))

    def refuse(self, key: Key, why: str) -> None:
        """Take that an ask will never be granted as it stands."""
        self._do(self.book.refuse(key, why))

    def forget(self) -> None:
        """Take that the engine has forgotten all asks and deletions."""
        self._do(self.book.forget(self.now()))

    def blind(self, is_blind: bool) -> None:
        """Take whether the engine sees its containers at the moment: what it does not see cannot be late."""
        self.book.set_blind(is_blind, self.now())

    def report(self, *changes: Change) -> None:
        """Take changes that are not of a container's life: waiting, a warning, the end of the job."""
        for change in changes:
            self._changes.put_nowait(change)

    def fail(self, error: BaseException) -> None:
        """End the changes with an error: no more of them can be known."""
        self._changes.put_nowait(error)

    def work(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start work of the engine in a task of its own."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return task

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    # -- what follows --

    def _do(self, work: Work) -> None:
        self.report(*work.changes)
        if work.delete:
            self._engine.delete(work.delete)
        if work.create:
            self._engine.create(work.create)
        if work.start:
            self._engine.start(work.start)
        self._stirred.set()
        if self.book.is_empty:
            self._emptied.set()

    async def _tick(self) -> None:
        """Do what is due, as time passes."""
        while True:
            due = self.book.next()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(0.0, due - self.now())):
                    await self._stirred.wait()
            self._stirred.clear()
            self._do(self.book.tick(self.now()))
            self._stirred.clear()
            await asyncio.sleep(_PAUSE)
