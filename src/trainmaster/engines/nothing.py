"""The engine of a job that its own engine has ended: it holds nothing and grants nothing.

The job's log may lack its end when the engine took all processes away. Then a master on the machine of whoever next looks at the job
completes the log, with this in the place of the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from trainmaster.core.machine.stimuli import Change
from trainmaster.engines.contract import Free, Holder, MasterSide, Request


class Nothing(MasterSide):
    """`MasterSide` without an engine."""

    async def open(self, epoch: int) -> Sequence[Holder]:
        return ()

    async def ask(self, requests: Sequence[Request]) -> None: ...

    async def release(self, task: str, serial: int) -> None: ...

    async def changes(self) -> AsyncIterator[Change]:
        await asyncio.Event().wait()
        yield  # type: ignore[misc]

    async def free(self) -> Sequence[Free]:
        return ()

    async def close(self, state: str) -> None: ...
