"""The actions on a job of this machine, for its pages: what the commands do, in threads. An error is a ValueError, as pages expect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trainmaster.client.jobs import actions
from trainmaster.client.ui.threads import in_thread
from trainmaster.core.errors import BadInput

T = TypeVar("T")


class ActsOn:
    """The `Acts` on one job."""

    def __init__(self, job: str) -> None:
        self._job = job

    async def kill(self, by: str, why: str) -> None:
        await _done(actions.kill, self._job, why)

    async def kill_task(self, task: str, by: str, why: str) -> None:
        await _done(actions.kill_task, self._job, task, why)

    async def scale(self, role: str, size: int | None, by: str) -> None:
        await _done(actions.scale, self._job, role, size)

    async def save(self, by: str = "") -> str:
        return await _done(actions.save, self._job)

    async def signal(self, task: str, name: str, by: str) -> None:
        await _done(actions.signal, self._job, task, name)

    async def dump(self, task: str, by: str = "") -> None:
        await _done(actions.dump, self._job, task)

    async def retry(self, by: str) -> str:
        return await _done(actions.retry, self._job)

    async def renew(self, tokens: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ValueError(f"this is done where the user's tickets are: tm renew {self._job}")

    async def supply(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ValueError("feeders ask the job's master itself")

    async def cut(self, task: str, seconds: float, by: str) -> None:
        await _done(actions.cut, self._job, task, seconds)


async def _done(act: Callable[..., T], *arguments: Any) -> T:
    try:
        return await in_thread(act, *arguments)
    except BadInput as error:
        raise ValueError(error.message) from error
