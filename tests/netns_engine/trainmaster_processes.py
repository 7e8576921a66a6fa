"""Another engine in the tests alone: its containers are processes of the submitter's machine, and so is a job's master.

A container is a folder `JOB/TASK.SERIAL` with its agent's process id, by which a master's successor finds it. The agent reads its spec from
its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainmaster.core.containers import GONE, RUNNING, Deletion, Habits, Request, Seen
from trainmaster.core.machine.stimuli import ContainerExited
from trainmaster.engines import contract
from trainmaster.engines.containers import Containers
from trainmaster.engines.contract import Engine, Free, MasterContainer, MasterSide, OnCluster

FOLDER = "TRAINMASTER_PROCESSES"  # the variable that names the folder of all jobs
ENGINE = Engine("processes", client_side="trainmaster_processes:Client", container_side="trainmaster_processes")
MACHINE = Free("here", 64.0, 2**40, 0, 64.0, 2**40, 0)
AGENT = "from trainmaster.agent.container import main; raise SystemExit(main())"


def folder(application: str) -> Path:
    return Path(os.environ[FOLDER], application)


def living(application: str) -> dict[Path, int]:
    """Return the folders of containers, and the processes of those that run; 0: it has ended."""
    pids = {path.parent: int(path.read_text()) for path in folder(application).glob("*/pid")}
    return {path: pid if Path(f"/proc/{pid}").exists() else 0 for path, pid in pids.items()}


class Store:
    """`ClusterStore`: the same folder."""

    def __init__(self) -> None:
        self.jobs, self.inputs, self.outputs = map(self.private, ("jobs", "inputs", "outputs"))

    def private(self, kind: str) -> str:
        return folder(f".{kind}").as_uri()

    def job_access(self, job: str) -> dict[str, Any] | None:
        return None


class Client(OnCluster):
    place = property(lambda self: os.environ[FOLDER])

    def check(self, job: Any, requests: Sequence[Request]) -> None: ...

    def free(self) -> Sequence[Free]:
        return [MACHINE]

    def store(self, job: Any = None) -> Store:
        return Store()

    def submit(self, submission: contract.Submission) -> contract.Submitted:
        files = folder(submission.job_id) / ".files"
        files.mkdir(parents=True)
        for file in submission.files:
            if file.unpacked:
                shutil.unpack_archive(file.path, files / file.name, filter="tar")
            else:
                shutil.copyfile(file.path, files / file.name)
        payload = {"certificate": submission.certificate, **submission.secret}
        return contract.Submitted(submission.job_id, master=payload)

    def find_jobs(self, prefix: str) -> dict[str, str]:
        return {path.name: path.name for path in Path(self.place).glob(f"{prefix}*")}

    def application_state(self, application: str) -> tuple[str, str]:
        place = folder(application)
        fate = "ended" if (place / "ended").exists() else "running" if place.exists() else "unknown"
        return fate, f"its folder is {place}"

    def end(self, application: str) -> None:
        for pid in filter(None, living(application).values()):
            os.kill(pid, signal.SIGKILL)
        (folder(application) / "ended").touch()

    def forget(self, job_id: str, application: str) -> None:
        self.end(application)


def agent() -> dict[str, Any]:
    spec, here = json.load(sys.stdin), Path.cwd()
    (here / "work").mkdir(exist_ok=True)
    del os.environ["TRAINMASTER_CONTAINER"]
    return {**spec, "work": str(here / "work"), "runtime": str(here), "sockets": f"/proc/{os.getpid()}/cwd"}


def client_side_master(application: str, payload: Mapping[str, Any]) -> MasterContainer:
    return Beside(application)


class Beside(MasterContainer, MasterSide):
    """The master, beside its containers. `patience`: s that an agent has to end by itself."""

    address, habits, patience = "127.0.0.1", Habits(closing=30.0), 15.0

    def __init__(self, application: str) -> None:
        self._application = application
        self._children: dict[Path, subprocess.Popen[bytes]] = {}

    def engine(self, job: Any, spec: contract.AgentSpec, page: Callable[[bool], str]) -> MasterSide:
        self._spec = spec
        return self

    async def open(self, epoch: int, containers: Containers) -> Sequence[Seen]:
        self._containers = containers
        known = living(self._application)
        for path in known:
            if known[path]:
                self._watch(path, known[path])
        return [self._seen(path, RUNNING if pid else GONE) for path, pid in known.items()]

    def create(self, requests: Sequence[Request]) -> None:
        for request in requests:
            path = folder(self._application) / f"{request.task}.{request.serial}"
            path.mkdir()
            for file in (path.parent / ".files").iterdir():
                (path / file.name).symlink_to(file)
            command, environ = (
                [sys.executable, "-P", "-c", AGENT],
                {**os.environ, "TRAINMASTER_CONTAINER": ENGINE.container_side},
            )
            with (path / "output").open("wb") as output:
                child = subprocess.Popen(
                    command, cwd=path, env=environ, stdin=subprocess.PIPE, stdout=output, stderr=output, process_group=0
                )
            (path / "pid").write_text(str(child.pid))
            self._tell(child, request)
            self._children[path] = child
            self._watch(path, child.pid)
            self._containers.see(self._seen(path, RUNNING))

    def _tell(self, child: subprocess.Popen[bytes], request: Request) -> None:
        assert child.stdin is not None
        with child.stdin:
            child.stdin.write(json.dumps(self._spec(request, ())).encode())

    def delete(self, deletions: Sequence[Deletion]) -> None:
        for deletion in deletions:
            for number, delay in ((signal.SIGTERM, 0.0), (signal.SIGKILL, self.patience)):
                asyncio.get_running_loop().call_later(delay, self._send, deletion.id, number)

    async def free(self) -> Sequence[Free]:
        return [MACHINE]

    async def close(self, state: str) -> None:
        (folder(self._application) / "ended").touch()

    def _seen(self, path: Path, phase: str, status: int | None = None) -> Seen:
        task, _, serial = path.name.rpartition(".")
        key = task, int(serial)
        return Seen(key, phase, path.name, "here", end=ContainerExited(*key, status) if phase == GONE else None)

    def _send(self, name: str, number: int) -> None:
        if pid := living(self._application).get(folder(self._application) / name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _watch(self, path: Path, pid: int) -> None:
        descriptor = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(descriptor, self._ended, path, descriptor)

    def _ended(self, path: Path, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        child = self._children.pop(path, None)
        self._containers.see(self._seen(path, GONE, None if child is None else child.wait()))
