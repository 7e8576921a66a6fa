"""The engine of a job that its own engine has ended: it holds nothing and grants nothing.

The job's log may lack its end when the engine took all processes away. Then a master on the machine of whoever next looks at the job
completes the log, with this in the place of the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainmaster.core.containers import Deletion, Habits, Request, Seen
from trainmaster.engines.contract import Free, MasterSide

if TYPE_CHECKING:
    from trainmaster.engines.containers import Containers


class Nothing(MasterSide):
    """`MasterSide` without an engine."""

    habits = Habits()

    async def open(self, epoch: int, containers: Containers) -> Sequence[Seen]:
        return ()

    def create(self, requests: Sequence[Request]) -> None: ...

    def delete(self, deletions: Sequence[Deletion]) -> None: ...

    async def free(self) -> Sequence[Free]:
        return ()

    async def close(self, state: str) -> None: ...
