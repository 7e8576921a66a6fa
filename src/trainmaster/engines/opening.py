"""Open an engine while its master serves agents already, and bound what a turn of the master waits for it.

An engine that is away opens late: an API server that restarts, a ResourceManager that fails over. Programs that run meanwhile are healthy,
and they end where no master answers their agents. So a master writes its first events and serves; asks and releases wait here until the
engine is open. Asks are absolute, so only the newest set of them is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from trainmaster.core.errors import EngineFailed
from trainmaster.core.machine.stimuli import Change, Key
from trainmaster.engines.contract import Free, Holder, MasterSide, Request

TAKEN_WITHIN = (
    60.0  # s for an engine to take an ask or a release; then the master ends, and the next one opens the engine anew
)


class LateEngine(MasterSide):
    """An engine that opens from `begin` on. `opened(holders)` is called once it is open, before it gets what waited."""

    def __init__(self, engine: MasterSide, opened: Callable[[Sequence[Holder]], Awaitable[None]]) -> None:
        self._engine, self._opened = engine, opened
        self._opening: asyncio.Task[Sequence[Holder]] | None = None
        self._is_open = False
        self._asks: Sequence[Request] | None = None
        self._releases: list[Key] = []

    def begin(self, epoch: int) -> None:
        """Begin to open. An error of that ends `changes`."""
        self._opening = asyncio.create_task(self.open(epoch))

    async def open(self, epoch: int) -> Sequence[Holder]:
        holders = await self._engine.open(epoch)
        await self._opened(holders)
        while self._releases or self._asks is not None:
            while self._releases:
                await self._engine.release(*self._releases.pop(0))
            if self._asks is not None:
                asks, self._asks = self._asks, None
                await self._engine.ask(asks)
        self._is_open = True
        return holders

    async def ask(self, requests: Sequence[Request]) -> None:
        if self._is_open:
            await _in_time(self._engine.ask(requests))
        else:
            self._asks = requests

    async def release(self, task: str, serial: int) -> None:
        if self._is_open:
            await _in_time(self._engine.release(task, serial))
        else:
            self._releases.append((task, serial))

    async def changes(self) -> AsyncIterator[Change]:
        await self._until_open()
        async for change in self._engine.changes():
            yield change

    async def free(self) -> Sequence[Free]:
        return await self._engine.free()

    async def close(self, state: str) -> None:
        await self._until_open()
        await self._engine.close(state)

    async def _until_open(self) -> None:
        assert self._opening is not None
        await asyncio.shield(self._opening)


async def _in_time(act: Awaitable[None]) -> None:
    try:
        await asyncio.wait_for(act, TAKEN_WITHIN)
    except TimeoutError:
        raise EngineFailed(f"the engine did not take an ask or a release within {TAKEN_WITHIN:.0f} s") from None
