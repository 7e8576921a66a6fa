"""Do harm to a running job, to see that it survives: named faults, drawn from a seed.

A fault strikes one process or one task of the job. Those that need its processes work where these are on this machine; the others go
through the job's master, on every engine. A stopped process goes on after a while, and at the latest when the chaos ends; a filled disk is
freed likewise. A cut link works again after its time, whether the chaos has ended or not.

No network of the machine is touched, for which one would have to be root: a cut is of our own link, by the agent at its end, which neither
reads nor writes. A disk is filled only where it is the job's own: a small file system, mounted within the state directory.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from trainmaster.client.jobs.actions import cut, kill_task, scale
from trainmaster.client.jobs.past import Past
from trainmaster.client.watch.connect import status
from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.core.plain import Plain
from trainmaster.engines import registry
from trainmaster.host import processes
from trainmaster.host.places import job_storage, state_dir
from trainmaster.host.processes import AGENT, MASTER, PROGRAM, Process

PAUSE = (0.5, 5.0)  # s that a stopped process stays so, at least and at most
SLOW, BEAT = 5.0, 0.05  # s that a slowed process is slow; s of each stop and of each run meanwhile
CUTS = (
    1.0,
    10.0,
    60.0,
)  # s that a link is cut: less than its silence is noticed in, less than the usual grace, more than it
FULL = (1.0, 10.0)  # s that a disk stays full, at least and at most
LONGEST = 3600.0  # s that a fault lasts
LARGEST = 1 << 30  # bytes of the largest file system that is filled


class Chaos:
    """The faults of one job. `strike` lets one happen; `end` lets all that was stopped go on.

    `lasting`: the seconds that each pause, slowness, cut or full disk lasts; None: drawn for each.
    """

    def __init__(self, job: str, seed: int, lasting: float | None = None) -> None:
        """Raises BadInput where `lasting` is not a time that a fault can last."""
        if lasting is not None and not 0 < lasting <= LONGEST:
            raise BadInput(
                f"a fault lasts more than 0 s and at most {LONGEST:g} s: {lasting:g}", place="--lasting",
                mend="give a time like 10s", anchor="no-fault",
            )  # fmt: skip
        # Which task is hit depends on those there are; it is drawn apart from the order of faults, which is the seed's alone.
        self.job, self.random, self.lasting = job, random.Random(f"whom {seed}"), lasting
        self._undoing: list[tuple[threading.Timer, Callable[[], object]]] = []  # what undoes each fault, and when

    def strike(self, name: str) -> str:
        """Let a fault happen; return whom it hit, "" where there was nobody to be hit now."""
        return FAULTS[name].strike(self)

    def seconds(self, least: float, most: float) -> float:
        """Return how long a fault lasts."""
        drawn = self.random.uniform(least, most)
        return drawn if self.lasting is None else self.lasting

    def pause(self, process: Process, seconds: float) -> bool:
        """Stop a process for a while; return False where it is gone."""
        if not processes.send(process, signal.SIGSTOP):
            return False
        self.undo_after(seconds, lambda: processes.send(process, signal.SIGCONT))
        return True

    def undo_after(self, seconds: float, undo: Callable[[], object]) -> None:
        """Undo a fault after a while, in a thread: the next fault may wait for a paused master."""
        timer = threading.Timer(seconds, undo)
        self._undoing.append((timer, undo))
        timer.daemon = True
        timer.start()

    def end(self) -> None:
        """Undo each fault now. Doing it twice changes nothing."""
        for timer, undo in self._undoing:
            timer.cancel()
            undo()

    def living_process(self, kind: str) -> processes.Mark | None:
        """Return one of the job's living processes of a kind."""
        living = sorted(processes.living(self.job, kind), key=lambda mark: (mark.task, mark.process.start))
        return self.random.choice(living) if living else None

    def running_task(self) -> str:
        """Return one of the tasks that run now. Raises TrainmasterError where nobody knows them, IndexError where there are none."""
        return str(
            self.random.choice(sorted(task["task"] for task in status(self.job)["tasks"] if task["state"] == "running"))
        )


@attrs.frozen(slots=True, eq=False, repr=False)
class Fault(Plain):
    """One way to harm a job. `on_this_machine`: it needs the job's processes."""

    text: str
    strike: Callable[[Chaos], str]
    on_this_machine: bool = True


def _kill(kind: str) -> Callable[[Chaos], str]:
    def strike(chaos: Chaos) -> str:
        mark = chaos.living_process(kind)
        return _named(mark) if mark is not None and processes.send(mark.process, signal.SIGKILL) else ""

    return strike


def _pause(kind: str) -> Callable[[Chaos], str]:
    def strike(chaos: Chaos) -> str:
        mark, seconds = chaos.living_process(kind), chaos.seconds(*PAUSE)
        return f"{_named(mark)} for {seconds:.1f} s" if mark is not None and chaos.pause(mark.process, seconds) else ""

    return strike


def _slow(chaos: Chaos) -> str:
    mark, seconds = chaos.living_process(PROGRAM), chaos.seconds(SLOW, SLOW)
    if mark is None:
        return ""
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end and processes.send(mark.process, signal.SIGSTOP):
            time.sleep(BEAT)
            processes.send(mark.process, signal.SIGCONT)
            time.sleep(BEAT)
    finally:
        processes.send(mark.process, signal.SIGCONT)
    return f"{_named(mark)} for {seconds:g} s"


def _kill_task(chaos: Chaos) -> str:
    try:
        task = chaos.running_task()
        kill_task(chaos.job, task, "chaos")
    except (TrainmasterError, IndexError):  # it came to its end meanwhile, or no master answers now
        return ""
    return task


def _cut(chaos: Chaos) -> str:
    drawn = chaos.random.choice(CUTS)
    seconds = drawn if chaos.lasting is None else chaos.lasting
    try:
        task = chaos.running_task()
        cut(chaos.job, task, seconds)
    except (TrainmasterError, IndexError):
        return ""
    return f"{task} for {seconds:g} s"


def _fill_disk(chaos: Chaos) -> str:
    """Fill it by a file without a name, which is gone with this process at the latest."""
    seconds, folder = chaos.seconds(*FULL), str(job_storage(chaos.job))
    check_own_disk(chaos.job)
    filler = os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600), "wb", buffering=0)
    with contextlib.suppress(OSError):  # it is full
        while filler.write(b"\0" * (1 << 16)):
            pass
    chaos.undo_after(seconds, filler.close)
    return f"{folder} for {seconds:.1f} s"


def _scale(chaos: Chaos) -> str:
    roles = Past(chaos.job).described.roles.values()
    elastic = [role for role in roles if role.replicas.elastic]
    if not elastic:
        return ""
    role = chaos.random.choice(elastic)
    size = chaos.random.randint(role.replicas.min, role.replicas.max)
    try:
        scale(chaos.job, role.name, size)
    except TrainmasterError:
        return ""
    return f"{role.name} to {size}"


def _named(mark: processes.Mark) -> str:
    return f"{mark.task or mark.kind} (process {mark.process.pid})"


FAULTS: Mapping[str, Fault] = {
    "kill-program": Fault("SIGKILL for the program of a task", _kill(PROGRAM)),
    "kill-agent": Fault("SIGKILL for an agent, with which its program dies", _kill(AGENT)),
    "kill-master": Fault("SIGKILL for the master", _kill(MASTER)),
    "pause-program": Fault("a program does nothing for up to 5 s", _pause(PROGRAM)),
    "pause-agent": Fault("an agent does nothing for up to 5 s", _pause(AGENT)),
    "pause-master": Fault("the master does nothing for up to 5 s", _pause(MASTER)),
    "slow-program": Fault("a program has half the time, for 5 s", _slow),
    "kill-task": Fault("a task's container is given back, as by tm kill JOB TASK", _kill_task, on_this_machine=False),
    "cut": Fault(
        "the link between a task's agent and the master is silent, for 1, 10 or 60 s", _cut, on_this_machine=False
    ),
    "fill-disk": Fault(
        "the file system of the job's directory is full for up to 10 s, where it is its own", _fill_disk
    ),
    "scale": Fault("another size for an elastic role, as by tm scale", _scale, on_this_machine=False),
}


def possible(job: str, engine: str, chosen: Sequence[str] = ()) -> list[str]:
    """Return the faults that are chosen, or all that this job can have. Raises BadInput for one that it cannot."""
    is_here = registry.is_on_this_machine(engine)
    described = Past(job).described
    is_elastic = any(role.replicas.elastic for role in described.roles.values())
    if not described.chaos:
        raise BadInput(
            f"no faults may be let happen to {job}",
            place="chaos: false",
            mend="submit another with --set chaos=true",
            anchor="no-fault",
        )
    for name in chosen:
        if name not in FAULTS:
            raise BadInput(
                f"there is no fault {name}", place="--fault", mend=f"one of {', '.join(FAULTS)}", anchor="no-fault"
            )
        if FAULTS[name].on_this_machine and not is_here:
            raise BadInput(
                f"{name} needs the job's processes, which are not on this machine", place="--fault",
                mend="use cut, kill-task or scale, or what the cluster has for this", anchor="no-fault",
            )  # fmt: skip
        if name == "scale" and not is_elastic:
            raise BadInput(
                f"no role of {job} has a size that may change", place="--fault scale",
                mend="submit another with replicas: {min: 1, max: 2}", anchor="no-fault",
            )  # fmt: skip
        if name == "fill-disk":
            check_own_disk(job)
    if chosen:
        return list(chosen)
    names = [name for name, fault in FAULTS.items() if is_here or not fault.on_this_machine]
    left_out = {"fill-disk": not has_own_disk(job), "scale": not is_elastic}
    return [name for name in names if not left_out.get(name)]


def has_own_disk(job: str) -> bool:
    """Tell whether the job's directory is on a small file system that is mounted at the state directory or within it."""
    mount = job_storage(job).resolve()
    while not mount.is_mount():
        mount = mount.parent
    figures = os.statvfs(mount)
    return mount.is_relative_to(state_dir().resolve()) and figures.f_blocks * figures.f_frsize <= LARGEST


def check_own_disk(job: str) -> None:
    """Raise BadInput where filling the disk of the job's directory would harm others."""
    if not has_own_disk(job):
        raise BadInput(
            f"{job_storage(job)} is not on a file system of its own, and the machine's disk is never filled", place="--fault fill-disk",
            mend="before the job is submitted mount one at TRAINMASTER_STATE_DIR: mount -t tmpfs -o size=64m tmpfs DIRECTORY",
            anchor="no-fault",
        )  # fmt: skip


def unleash(
    job: str, names: Sequence[str], seed: int, every: float, seconds: float, lasting: float | None = None
) -> Iterator[tuple[float, str, str]]:
    """Let faults happen, one each `every` seconds on average, for `seconds` or until the job ends.

    `lasting`: how long each pause, slowness, cut or full disk lasts, in seconds; None: drawn for each.
    Yields for each: the seconds since the beginning, its name, whom it hit.
    """
    chaos, order, began = Chaos(job, seed, lasting), random.Random(seed), time.monotonic()
    try:
        while True:
            due = time.monotonic() + order.expovariate(1 / every)
            name = order.choice(list(names))
            while (now := time.monotonic()) < due:
                if now - began > seconds or _is_over(job):
                    return
                time.sleep(min(0.1, due - now))
            if whom := chaos.strike(name):
                yield time.monotonic() - began, name, whom
    finally:
        chaos.end()


def _is_over(job: str) -> bool:
    return Past(job).state().ended is not None
