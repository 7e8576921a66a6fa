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
from collections.abc import Collection, Iterable, Iterator

import attrs

from trainmaster.core.errors import EngineFailed
from trainmaster.engines.local import places

MASTER, TEMPLATE, AGENT, PROGRAM = "master", "template", "agent", "program"

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36  # linux/prctl.h


@attrs.frozen(slots=True)
class Process:
    """One process of this boot. `start` is in clock ticks since boot."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.start


@attrs.frozen(slots=True)
class Mark:
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
    found = _stat(pid)
    return None if found is None or found[0] in "ZX" else found[4]


def _stat(pid: int | str) -> tuple[str, int, int, int, int] | None:
    """State, parent, process group, session and start time; the name before them may hold any character."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19])


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
    return [other for other, found in _all() if found[1] == pid and found[0] not in "ZX"]


def _all() -> Iterator[tuple[int, tuple[str, int, int, int, int]]]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := _stat(name)) is not None:
            yield int(name), found


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
    found = ((pid, state, {pid, group, session}, start) for pid, (state, _, group, session, start) in _all())
    return [Process(pid, start) for pid, state, ids, start in found if state not in "ZX" and ids & wanted]


def send(target: Process, number: int) -> bool:
    """Send a signal to exactly this process; False if it is gone."""
    try:
        descriptor = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return False
    try:
        if not target.alive:  # read after the open: the descriptor can only be of the process that was alive now
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


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


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (PR_SET_CHILD_SUBREAPER)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Be killed when the parent dies. Called after fork; ends at once if the parent has died in between."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(128 + number)


def set_name(name: str) -> None:
    """The name that ps and top show, at most 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def _prctl(option: int, value: int | bytes) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(
        option, ctypes.c_char_p(value) if isinstance(value, bytes) else value, 0, 0, 0
    ):
        number = ctypes.get_errno()
        raise EngineFailed(f"prctl({option}) failed: {os.strerror(number)}", anchor="linux")
