"""The local engine as the submitting side uses it: it checks what can run here, and tells what became of a job."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.core.errors import BadInput
from trainmaster.engines.contract import Free, OnThisMachine
from trainmaster.engines.local import launch
from trainmaster.engines.local.sweep import sweep
from trainmaster.host import places, processes
from trainmaster.host.processes import AGENT, MASTER, PROGRAM, TEMPLATE

if TYPE_CHECKING:  # what the master is forked with comes later
    from trainmaster.core.containers import Request

_AGENTS_WITHIN = 3.0  # s; the programs are killed, so what is left is to store their output
_FILES_A_TASK, _FILES = 4, 64  # of the master: for a task a connection, a pidfd, a log and its follower; and its own
# For a task an agent, its threads and a program of a few threads; besides, master, template and their threads.
_PROCESSES_A_TASK, _PROCESSES = (8, 16)


class LocalClient(OnThisMachine):
    """The client side of this machine."""

    # -- submitting --

    def prepare(self) -> None:
        launch.prepare()

    def check(self, job: Any, requests: Sequence[Request]) -> None:
        """Raise BadInput where this machine cannot run the job.

        There are three cases: a container, or a gang's least size, is larger than the machine; the limits of this user are too low for so
        many tasks; the job asks for a resource that is not available here at all.
        """
        from trainmaster.engines.local import queue
        from trainmaster.engines.sections import section
        from trainmaster.host.machine import machine

        section({}, job.engines.get("local") or {}, "engines.local")  # which has no settings
        check_places(job)
        for request in requests:
            for name in request.extended:
                raise BadInput(
                    f"{request.role} asks for {name}, and this machine counts cores, memory and GPUs alone",
                    place=f"roles.{request.role}.resources.extended.{name}",
                    mend="leave it out, or name an engine that has it: --engine yarn",
                    anchor="larger-than-the-machine",
                )  # fmt: skip
        capacity = machine(any(request.gpus for request in requests))
        for unit in queue.line([], [queue.Ask("", request, 0, number) for number, request in enumerate(requests)]):
            if why := queue.refusal(capacity, [ask.request for ask in unit.need]):
                lacking = queue.amount(ask.request for ask in unit.need).lacking(queue.total(capacity))
                raise BadInput(
                    why,
                    place=f"roles.{unit.need[0].request.role}.resources.{lacking}",
                    mend="ask for less" + ", or for fewer replicas" * (len(unit.need) > 1),
                    anchor="larger-than-the-machine",
                )
        check_limits(len(requests))

    def fetches(self, url: str) -> bool:
        """Return True for every URL: agents fetch files themselves."""
        return True

    def keep(self, storage: Path, environ: Mapping[str, str], allowance: Mapping[str, Any]) -> None:
        launch.keep(storage, environ, allowance)

    def start(self, storage: str, payload: Mapping[str, Any], *, fork: bool) -> None:
        try:
            launch.launch(storage, payload, fork=fork)
        except BaseException:
            places.set_live(Path(storage).name, False)
            raise

    # -- the machine --

    def free(self) -> Sequence[Free]:
        """Return this machine, the one node."""
        from trainmaster.engines.local import queue
        from trainmaster.engines.local.ledger import Ledger
        from trainmaster.host.machine import machine

        capacity = machine(True)
        free = queue.free(capacity, Ledger().holds())
        return [
            Free(
                places.node_name(), capacity.cores, capacity.memory, len(capacity.devices),
                max(0, free.cores) / 1000, max(0, free.memory), free.gpus,
            )
        ]  # fmt: skip

    # -- afterwards --

    def jobs(self) -> Sequence[str]:
        """Return the ids of the jobs that have a storage here, or that run here."""
        try:
            folders = (places.state_dir() / "jobs").iterdir()
            stored = {entry.name for entry in folders if entry.is_dir() and not entry.name.startswith(".")}
        except FileNotFoundError:
            stored = set()
        return sorted(stored.union(places.live_jobs()))

    def application_state(self, application: str) -> tuple[str, str]:
        """Return `running` while its master or an agent lives, `resumable` if both are gone before its end, else `ended` or `unknown`."""
        if processes.living(application, MASTER, AGENT):
            return "running", ""
        if application in places.live_jobs():
            return "resumable", "all of its processes are gone"
        return ("ended" if application in self.jobs() else "unknown"), ""

    def forget(self, storage: Path) -> None:
        launch.forget(storage)

    def orphans(self) -> Sequence[str]:
        return sweep()

    def resume(self, job: str, kill: Mapping[str, str] | None = None) -> bool:
        return launch.resume(job, kill)

    def end(self, application: str) -> None:
        """End a job whose master does not answer: programs are killed; agents get SIGTERM, and SIGKILL after 3 s. No sweep resumes it.

        The masters are stopped meanwhile, not killed: their sockets stay open, so no agent starts a new master.
        """
        places.set_live(application, False)
        for mark in processes.living(application, MASTER):
            processes.send(mark.process, signal.SIGSTOP)
        processes.end([mark.process for mark in processes.living(application, PROGRAM)])
        for mark in processes.living(application, AGENT):
            processes.send(mark.process, signal.SIGTERM)
        deadline = time.monotonic() + _AGENTS_WITHIN
        while processes.living(application, AGENT) and time.monotonic() < deadline:
            time.sleep(0.02)
        while marks := processes.living(application):  # again while a dying process starts another
            processes.end([mark.process for mark in marks if mark.kind in (AGENT, PROGRAM, TEMPLATE)])
            for mark in marks:
                if mark.kind == MASTER:
                    processes.send(mark.process, signal.SIGKILL)
            if time.monotonic() > deadline + 10:
                break


def check_places(job: Any) -> None:
    """Raise BadInput where a job names labels of a node, which this engine has not."""
    for role in job.roles.values():
        if labels := ", ".join(f"{name}={value}" for name, value in role.nodes.labels.items()):
            raise BadInput(
                f"role {role.name} asks for a node with {labels}, and this machine has no labels",
                place=f"roles.{role.name}.nodes.labels: {labels}",
                mend="leave nodes.labels out on one machine",
                anchor="labels",
            )


def check_limits(tasks: int) -> None:
    """Raise BadInput where this user's limits of open files or processes are too low for a job of so many tasks."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _check_limit("open files", _FILES + tasks * _FILES_A_TASK, 0, files, "ulimit -Hn")
    _, allowed = resource.getrlimit(resource.RLIMIT_NPROC)
    needed = _PROCESSES + tasks * _PROCESSES_A_TASK
    if os.getuid() and allowed != resource.RLIM_INFINITY:  # root is not limited (setrlimit(2))
        _check_limit("processes", needed, _thread_count(), allowed, "ulimit -Hu")


def _check_limit(unit: str, needed: int, in_use: int, limit: int, command: str) -> None:
    if limit != resource.RLIM_INFINITY and needed > limit - in_use:
        allowed = f"{limit} are allowed" + (f", and {in_use} of these are in use" if in_use else "")
        raise BadInput(
            f"the job's tasks need {needed} {unit}, {allowed}",
            mend=f"raise the limit ({command}, or LimitNOFILE and TasksMax of the service), or ask for fewer replicas",
            anchor="limits",
        )


def _thread_count() -> int:
    """Count the threads of this user; the limit of processes counts these."""
    count = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if status.stat().st_uid == os.getuid():
                count += len(os.listdir(status.parent / "task"))
        except (FileNotFoundError, ProcessLookupError):  # the process ended meanwhile
            continue
    return count
