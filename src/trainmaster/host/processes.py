"""Know which processes are ours, and end them.

A process is known by its id and its start time (field 22 of /proc/<pid>/stat, clock ticks since boot), which together are never used
twice in one boot; a zombie counts as dead. Each process of a job is *marked* by an empty file, `<runtime>/<job>/alive/` and then
`<kind>@<task>@<serial>@<pid>@<start>`. A listing and a few reads thus show whether anything of a job lives, and any survivor can end the
rest. A marked program's descendants are found by its session and process group: the kernel gives no new process an id that is still a
living session's or group's.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable

import attrs

from trainmaster.core.errors import EngineFailed
from trainmaster.core.plain import Plain
from trainmaster.host import linux, places

MASTER, TEMPLATE, AGENT, PROGRAM = "master", "template", "agent", "program"


@attrs.frozen(slots=True, eq=False, repr=False)
class Process(Plain):
    """A process of this boot, noted so that it can be recognized later. `start` is in clock ticks since boot."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        return linux.lives(self.pid, self.start)


@attrs.frozen(slots=True, eq=False, repr=False)
class Mark(Plain):
    """The mark of one process of a job."""

    kind: str
    task: str
    serial: int
    process: Process

    @property
    def name(self) -> str:
        return f"{self.kind}@{self.task}@{self.serial}@{self.process.pid}@{self.process.start}"


def start_time(pid: int) -> int | None:
    """Return the process's start time, or None if there is no such process or it is a zombie."""
    process = linux.look(pid)
    return process.start if process is not None and process.alive else None


def process(pid: int) -> Process | None:
    """Return the living process of this id."""
    start = start_time(pid)
    return None if start is None else Process(pid, start)


def this_process() -> Process:
    current = process(os.getpid())
    if current is None:
        raise EngineFailed("/proc does not show this process", mend="mount /proc without hidepid", anchor="linux")
    return current


def children(pid: int) -> list[int]:
    """Return the ids of a process's children, without zombies."""
    return [other.pid for other in linux.everyone() if other.parent == pid and other.alive]


def mark(job: str, kind: str, task: str, serial: int, pid: int) -> Mark | None:
    """Note that a living process belongs to the job. Return None if it is gone already. Cheap: an agent does it for each program."""
    if (known := process(pid)) is None:
        return None
    entry = Mark(kind, task, serial, known)
    folder = places.job_dir(job) / "alive"
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / entry.name).touch()
    return entry


def unmark(job: str, entry: Mark) -> None:
    (places.runtime_dir() / job / "alive" / entry.name).unlink(missing_ok=True)


def marks(job: str) -> list[Mark]:
    """Return the mark of every marked process of the job, alive or not."""
    try:
        names = os.listdir(places.runtime_dir() / job / "alive")
    except FileNotFoundError:
        return []
    split = (name.split("@") for name in names)
    return [Mark(kind, task, int(serial), Process(int(pid), int(start))) for kind, task, serial, pid, start in split]


def living(job: str, *kinds: str) -> list[Mark]:
    """Return the marks of the job's living processes, of these kinds or of all."""
    return [entry for entry in marks(job) if (not kinds or entry.kind in kinds) and entry.process.alive]


def enclosing_agent() -> tuple[str, Mark] | None:
    """Return the job and the agent of the container that this process runs in, on this machine; None outside of all."""
    if not (job := os.environ.get("TRAINMASTER_JOB", "")):
        return None
    agents = {(agent.process.pid, agent.process.start): agent for agent in living(job, AGENT)}
    ancestor = linux.look(os.getpid()) if agents else None
    while ancestor is not None:
        if (agent := agents.get((ancestor.pid, ancestor.start))) is not None:
            return job, agent
        ancestor = linux.look(ancestor.parent)
    return None


def members(roots: Iterable[Process]) -> list[Process]:
    """Return the living processes among these roots and in their sessions and process groups."""
    ids = {root.pid for root in roots if (now := start_time(root.pid)) is None or now == root.start}
    ids -= {0, 1}  # session 0 is everybody's who has none in this process-id namespace
    processes = (
        process for process in linux.everyone() if process.alive and {process.pid, process.group, process.session} & ids
    )
    return [Process(process.pid, process.start) for process in processes]


def send(target: Process, number: int) -> bool:
    """Send a signal to exactly this process. Return False if it is gone."""
    return linux.send(target.pid, target.start, number)


def end(roots: Collection[Process], within: float = 5.0) -> list[Process]:
    """Kill these processes, their sessions and their groups. Return those that are not gone within `within` seconds."""
    deadline = time.monotonic() + within
    while survivors := members(roots):
        if time.monotonic() > deadline:
            return survivors
        for survivor in survivors:
            send(survivor, signal.SIGKILL)
        time.sleep(0.005)  # a killed process takes a moment to be gone, and may have had time to fork
    return []


def clear_marked(job: str, task: str, serial: int, *, ended: bool = False) -> list[Process]:
    """End the processes that a dead agent left behind, unless they are known to have `ended`. Return those that could not be ended."""
    entries = [
        entry
        for entry in marks(job)
        if entry.task == task and entry.serial == serial and entry.kind in (AGENT, PROGRAM)
    ]
    survivors = [] if ended else end([entry.process for entry in entries])
    for entry in entries:
        unmark(job, entry)
    return survivors


def reap(child: int) -> None:
    """Kill a child if it still lives, and wait for it."""
    try:
        if os.waitpid(child, os.WNOHANG)[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    except ChildProcessError:  # it was waited for before
        return
