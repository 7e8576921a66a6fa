"""Parts of a local engine for tests: a machine of a given size, requests, and processes of other jobs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from waiting import until_async

from trainmaster.core.containers import Request
from trainmaster.core.machine.stimuli import Change, GangGranted
from trainmaster.engines.containers import Containers
from trainmaster.engines.local.engine import LocalMaster
from trainmaster.engines.local.ledger import Ledger
from trainmaster.engines.local.queue import Capacity
from trainmaster.host import places, processes

T = TypeVar("T")
GIB = 1 << 30


def of(cores: float = 2.0, memory: int = 8 * GIB, devices: tuple[str, ...] = ()) -> Callable[[bool], Capacity]:
    """A machine of this size."""
    return lambda gpus: Capacity(cores, memory, devices if gpus else ())


def request(task: str, cores: float = 1.0, serial: int = 1, memory: int = GIB, **more: Any) -> Request:
    role, _, index = task.partition(":")
    return Request(task, serial, role, int(index), memory, cores, **more)


@contextmanager
def forked(run: Callable[[], None], wait: bool = True) -> Iterator[int]:
    """A fork of this process that calls `run`, says so, and then waits to be killed. With `wait` it has returned from `run` already."""
    ready, told = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(ready)
            run()
            os.write(told, b"!")
            signal.pause()
        except BaseException:  # noqa: BLE001 - whatever it is, a fork must not return into the test
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(told)
    reaped = False
    try:
        if wait:
            assert os.read(ready, 1), "the forked process failed"
        yield pid
    finally:
        os.close(ready)
        try:
            os.kill(pid, signal.SIGKILL)
            reaped = os.waitpid(pid, 0)[0] == pid
        except (ProcessLookupError, ChildProcessError):
            reaped = True
        assert reaped


def finished(pid: int) -> int:
    """Wait for a child; its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def holding(job: str, *requests: Request, capacity: Callable[[bool], Capacity]) -> Callable[[], None]:
    """What a job's master does to hold these: they are held by the calling process."""

    def run() -> None:
        ledger = Ledger()
        ledger.enter(job, 1, processes.this_process())
        ledger.ask(job, 1, requests)
        assert ledger.serve(capacity(True)) == {job}

    return run


PROGRAMS = Path(__file__).parent / "programs"
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1));"
    "from trainmaster.engines.local import template; template.main(sys.argv[1:])"
)


def agents() -> list[str]:
    """The command of a template whose agents are `programs/local_agent.py`."""
    return [sys.executable, "-I", "-c", _START, str(PROGRAMS), "local_agent:run"]


class Master:
    """A local master with what it told so far: `specs` says what the agent of a task does, waiting otherwise."""

    def __init__(
        self, job: str, capacity: Callable[[bool], Capacity], specs: dict[str, Any] | None = None, **more: Any
    ) -> None:
        self.job, self.told = job, list[Change]()
        self._specs = specs or {}
        self.engine = LocalMaster(job, self._spec, agents(), capacity=capacity, **{"poll": 3600.0, **more})
        self.side = Containers(self.engine, lambda: self.held)

    def _spec(self, request: Request, devices: object) -> dict[str, Any]:
        return {"job": self.job, "task": request.task, "serial": request.serial, **self._specs.get(request.task, {})}

    async def open(self, epoch: int = 1, *held: str) -> None:
        """Open as the master of this epoch, whose log says that the job has these containers, each the first of its task."""
        self.held = {(task, 1) for task in held}
        self.side.begin(epoch)
        self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self.side.opening)

    async def _read(self) -> None:
        async for change in self.side.changes():
            self.told += change.grants if isinstance(change, GangGranted) else [change]

    def of(self, kind: type[T]) -> list[T]:
        return [change for change in self.told if isinstance(change, kind)]

    async def told_of(self, kind: type[T], count: int = 1) -> list[T]:
        """The changes of one kind, once there are so many."""
        await until_async(lambda: len(self.of(kind)) >= count, what=lambda: f"{count} {kind.__name__} in {self.told}")
        return self.of(kind)

    async def close(self) -> None:
        await self.side.close("succeeded")
        await self._reading
        places.remove_job_dir(self.job)


@asynccontextmanager
async def master(
    job: str, capacity: Callable[[bool], Capacity], specs: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[Master]:
    """A master that has opened and is closed at the end, whatever happens."""
    made = Master(job, capacity, specs, **more)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def pid_of(container: str) -> int:
    return int(container.removeprefix("local/"))
