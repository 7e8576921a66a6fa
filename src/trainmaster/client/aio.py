"""The Python API for programs with an event loop: the same names, to be awaited. Its namesake in `trainmaster` says what each does.

Each call runs the synchronous one in a thread of its own, which touches nothing of the loop; streams hand over one item at a time, and end
with their reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import attrs

from trainmaster.client import api
from trainmaster.client.api import Job as Job
from trainmaster.core.spec.job import Job as _Job

if TYPE_CHECKING:
    from trainmaster.client.watch.results import Event, Listed, Status

T = TypeVar("T")


@attrs.frozen(slots=True)
class Run:
    """A submitted job; `sync` is the same as a `trainmaster.Run`."""

    sync: api.Run

    @property
    def id(self) -> str:
        """The job's id."""
        return self.sync.id

    @property
    def handle(self) -> str:
        """`engine://place/id`."""
        return self.sync.handle

    async def status(self) -> Status:
        """Return how it is doing, or how it ended."""
        return await asyncio.to_thread(self.sync.status)

    async def wait(self, timeout: float | None = None, check: bool = True) -> Status:
        """Wait for the end; returns the final status. Raises TimeoutError and JobFailed as its namesake does, and brings the same outputs
        to this machine. Giving up early (by `asyncio.timeout`, say) leaves the job running.
        """
        from trainmaster.client.submit.carried import bring_outputs

        status: dict[str, Any] = {}
        async with asyncio.timeout(timeout):
            async for item in _streamed(lambda: _items(self.id)):
                status = item.get("end", status)
        status = await asyncio.to_thread(bring_outputs, self.id, status)
        if check and status.get("state") != "succeeded":
            raise api.failed(status)
        return cast("Status", status)

    def events(self, follow: bool = False) -> AsyncIterator[Event]:
        """Yield its events, for `async for`."""
        return _streamed(lambda: self.sync.events(follow))

    def logs(self, task: str | None = None, attempt: int | None = None, follow: bool = False) -> AsyncIterator[str]:
        """Yield the lines that a task, or each task, printed, for `async for`."""
        return _streamed(lambda: self.sync.logs(task, attempt, follow))

    async def kill(self, why: str = "") -> None:
        """Ask for its end."""
        await asyncio.to_thread(self.sync.kill, why)

    async def kill_task(self, task: str, why: str = "") -> None:
        """End the present attempt of a task."""
        await asyncio.to_thread(self.sync.kill_task, task, why)

    async def signal(self, task: str, name: str) -> None:
        """Send a signal to the program of a task."""
        await asyncio.to_thread(self.sync.signal, task, name)

    async def dump(self, task: str) -> None:
        """Have the stacks of a task's program written to its log."""
        await asyncio.to_thread(self.sync.dump, task)

    async def scale(self, role: str, size: int | None) -> None:
        """Have an elastic role grow or shrink to `size` members; None: as many as the job's own rules say, again."""
        await asyncio.to_thread(self.sync.scale, role, size)

    async def save(self) -> dict[str, Any]:
        """Save its outputs as they are; figures by task, once it is done."""
        return await asyncio.to_thread(self.sync.save)


def _items(job: str) -> Iterator[dict[str, Any]]:
    from trainmaster.client.jobs.sweep import resume
    from trainmaster.client.watch.follow import follow

    return follow(job, resume=resume)


async def _streamed(begin: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """Yield the items of a blocking iterator, one thread call each: nothing is read ahead of the reader."""
    done = object()
    items = await asyncio.to_thread(begin)
    while (item := await asyncio.to_thread(next, items, done)) is not done:
        yield item  # type: ignore[misc]


@overload
async def submit(
    job: _Job | Mapping[str, Any], *, engine: str = ..., directory: str | Path | None = ..., idempotency_key: str = ...,
    dry_run: Literal[False] = ...,
) -> Run: ...  # fmt: skip
@overload
async def submit(
    job: _Job | Mapping[str, Any], *, engine: str = ..., directory: str | Path | None = ..., idempotency_key: str = ...,
    dry_run: Literal[True],
) -> dict[str, Any]: ...  # fmt: skip
async def submit(
    job: _Job | Mapping[str, Any],
    *,
    engine: str = "local",
    directory: str | Path | None = None,
    idempotency_key: str = "",
    dry_run: bool = False,
) -> Run | dict[str, Any]:
    """Start a job, or with `dry_run` return what that would do."""
    described = api.check_job(job, engine)
    if dry_run:
        return await asyncio.to_thread(api.preview_job, described, engine, directory)
    return Run(await asyncio.to_thread(api.start_job, described, engine, directory, idempotency_key))


async def attach(job: str) -> Run:
    """A job by its id, an unambiguous beginning of it, its name (the one that runs, else the newest), or its handle."""
    return Run(await asyncio.to_thread(api.attach, job))


async def wait(job: str, timeout: float | None = None, check: bool = True) -> Status:
    """`Run.wait` by name."""
    return await (await attach(job)).wait(timeout, check)


async def status(job: str) -> Status:
    """`Run.status` by name."""
    return await asyncio.to_thread(api.status, job)


async def jobs(engine: str = "") -> list[Listed]:
    """List your jobs, newest first; those of one engine alone where it is named."""
    return await asyncio.to_thread(api.jobs, engine)


async def logs(
    job: str, task: str | None = None, attempt: int | None = None, follow: bool = False
) -> AsyncIterator[str]:
    """`Run.logs` by name, for `async for`."""
    async for line in (await attach(job)).logs(task, attempt, follow):
        yield line
