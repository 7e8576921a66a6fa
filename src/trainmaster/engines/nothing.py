"""The engine of a job whose own has ended it: nothing is held any more, and nothing is granted.

The job's log may not have ended when its engine took all its processes away. A master on the next user's machine brings it to its end, with
this in the place of the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from trainmaster.engines.contract import Change, Free, Holder, Request


class Nothing:
    """`MasterSide` of no engine."""

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
