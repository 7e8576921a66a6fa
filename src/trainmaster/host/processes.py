"""Which processes are ours, and ending them.

A process is known by its id and its start time (field 22 of /proc/<pid>/stat, clock ticks since boot), which together are never used
twice in one boot; a zombie counts as dead. Each process of a job is *marked* by an empty file, `<runtime>/<job>/alive/` and then
`<kind>@<task>@<serial>@<pid>@<start>`. So whether anything of a job lives is a listing and a few reads, and whoever survives can end the
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
    """One process of this boot, as it is noted: to be known again. `start` is in clock ticks since boot."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        return linux.lives(self.pid, self.start)


@attrs.frozen(slots=True, eq=False, repr=False)
class Mark(Plain):
    """A process of a job as it is marked."""

    kind: str
    task: str
    serial: int
    process: Process

    @property
    def name(self) -> str:
        return f"{self.kind}@{self.task}@{self.serial}@{self.process.pid}@{self.process.start}"


def start_time(pid: int) -> int | None:
    """When the process started, or None if there is none or it is a zombie."""
    found = linux.look(pid)
    return found.start if found is not None and found.alive else None


def process(pid: int) -> Process | None:
    """The living process of this id."""
    start = start_time(pid)
    return None if start is None else Process(pid, start)


def this_process() -> Process:
    found = process(os.getpid())
    if found is None:
        raise EngineFailed("/proc does not show this process", mend="mount /proc without hidepid", anchor="linux")
    return found


def children(pid: int) -> list[int]:
    """The children of a process, zombies not counted."""
    return [other.pid for other in linux.everyone() if other.parent == pid and other.alive]


def mark(job: str, kind: str, task: str, serial: int, pid: int) -> Mark | None:
    """Note that a living process belongs to the job; None if it is gone already. Cheap: an agent does it for each program."""
    if (known := process(pid)) is None:
        return None
    made = Mark(kind, task, serial, known)
    folder = places.job_dir(job) / "alive"
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / made.name).touch()
    return made


def unmark(job: str, made: Mark) -> None:
    (places.runtime_dir() / job / "alive" / made.name).unlink(missing_ok=True)


def marks(job: str) -> list[Mark]:
    """Every process of the job that was marked, alive or not."""
    try:
        names = os.listdir(places.runtime_dir() / job / "alive")
    except FileNotFoundError:
        return []
    split = (name.split("@") for name in names)
    return [Mark(kind, task, int(serial), Process(int(pid), int(start))) for kind, task, serial, pid, start in split]


def living(job: str, *kinds: str) -> list[Mark]:
    """The marked processes of the job that live, of these kinds or of all."""
    return [made for made in marks(job) if (not kinds or made.kind in kinds) and made.process.alive]


def members(roots: Iterable[Process]) -> list[Process]:
    """The living processes that these are, or that are in their sessions or process groups."""
    wanted = {root.pid for root in roots if (now := start_time(root.pid)) is None or now == root.start}
    wanted -= {0, 1}  # session 0 is everybody's who has none in this process-id namespace
    found = (one for one in linux.everyone() if one.alive and {one.pid, one.group, one.session} & wanted)
    return [Process(one.pid, one.start) for one in found]


def send(target: Process, number: int) -> bool:
    """Send a signal to exactly this process; False if it is gone."""
    return linux.send(target.pid, target.start, number)


def end(roots: Collection[Process], within: float = 5.0) -> list[Process]:
    """Kill these, their sessions and their groups; returns those that have not gone within so many seconds."""
    deadline = time.monotonic() + within
    while left := members(roots):
        if time.monotonic() > deadline:
            return left
        for one in left:
            send(one, signal.SIGKILL)
        time.sleep(0.005)  # a killed process takes a moment to be gone, and may have had time to fork
    return []


def clear_marked(job: str, task: str, serial: int, *, ended: bool = False) -> list[Process]:
    """End what a dead agent left behind, unless that is known to have `ended`; returns what could not be ended."""
    mine = [
        made for made in marks(job) if made.task == task and made.serial == serial and made.kind in (AGENT, PROGRAM)
    ]
    left = [] if ended else end([made.process for made in mine])
    for made in mine:
        unmark(job, made)
    return left


def reap(child: int) -> None:
    """Make sure that a child is dead, and be done with it."""
    try:
        if os.waitpid(child, os.WNOHANG)[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    except ChildProcessError:  # it was waited for before
        return
