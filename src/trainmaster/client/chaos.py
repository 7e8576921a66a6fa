"""Do harm to a running job, to see that it survives: named faults, drawn from a seed.

A fault strikes one process or one task of the job. Those that need its processes work where these are on this machine; the others go
through the job's master, on every engine. What was stopped goes on after a while, and at the latest when the chaos ends.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from trainmaster.client.jobs.actions import kill_task, scale
from trainmaster.client.jobs.past import Past
from trainmaster.client.watch.connect import status
from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.core.plain import Plain
from trainmaster.engines import registry
from trainmaster.host import processes
from trainmaster.host.processes import AGENT, MASTER, PROGRAM, Process

PAUSE = (0.5, 5.0)  # s that a stopped process stays so, at least and at most
SLOW, BEAT = 5.0, 0.05  # s that a slowed process is slow; s of each stop and of each run meanwhile


class Chaos:
    """The faults of one job. `strike` lets one happen; `end` lets all that was stopped go on."""

    def __init__(self, job: str, seed: int) -> None:
        self.job, self.random = job, random.Random(seed)
        self._paused: dict[Process, threading.Timer] = {}  # stopped processes -> what lets each go on

    def strike(self, name: str) -> str:
        """Let a fault happen; return whom it hit, "" where there was nobody to be hit now."""
        return FAULTS[name].strike(self)

    def pause(self, process: Process, seconds: float) -> bool:
        """Stop a process for a while; return False where it is gone. A thread lets it go on: a fault may wait for a paused master."""
        if not processes.send(process, signal.SIGSTOP):
            return False
        timer = self._paused[process] = threading.Timer(seconds, processes.send, (process, signal.SIGCONT))
        timer.daemon = True
        timer.start()
        return True

    def end(self) -> None:
        for process, timer in self._paused.items():
            timer.cancel()
            processes.send(process, signal.SIGCONT)

    def one(self, kind: str) -> processes.Mark | None:
        """Return one of the job's living processes of a kind."""
        living = sorted(processes.living(self.job, kind), key=lambda mark: (mark.task, mark.process.start))
        return self.random.choice(living) if living else None


@attrs.frozen(slots=True, eq=False, repr=False)
class Fault(Plain):
    """One way to harm a job. `on_this_machine`: it needs the job's processes."""

    text: str
    strike: Callable[[Chaos], str]
    on_this_machine: bool = True


def _kill(kind: str) -> Callable[[Chaos], str]:
    def strike(chaos: Chaos) -> str:
        mark = chaos.one(kind)
        return _named(mark) if mark is not None and processes.send(mark.process, signal.SIGKILL) else ""

    return strike


def _pause(kind: str) -> Callable[[Chaos], str]:
    def strike(chaos: Chaos) -> str:
        mark, seconds = chaos.one(kind), chaos.random.uniform(*PAUSE)
        return f"{_named(mark)} for {seconds:.1f} s" if mark is not None and chaos.pause(mark.process, seconds) else ""

    return strike


def _slow(chaos: Chaos) -> str:
    mark = chaos.one(PROGRAM)
    if mark is None:
        return ""
    end = time.monotonic() + SLOW
    while time.monotonic() < end and processes.send(mark.process, signal.SIGSTOP):
        time.sleep(BEAT)
        processes.send(mark.process, signal.SIGCONT)
        time.sleep(BEAT)
    return f"{_named(mark)} for {SLOW:g} s"


def _kill_task(chaos: Chaos) -> str:
    try:
        running = [task["task"] for task in status(chaos.job)["tasks"] if task["state"] == "running"]
        if not running:
            return ""
        task: str = chaos.random.choice(sorted(running))
        kill_task(chaos.job, task, "chaos")
    except TrainmasterError:  # it came to its end meanwhile, or no master answers now
        return ""
    return task


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
    "scale": Fault("another size for an elastic role, as by tm scale", _scale, on_this_machine=False),
}


def possible(engine: str, chosen: Sequence[str] = ()) -> list[str]:
    """Return the faults that are chosen, or all that a job of this engine can have. Raises BadInput for one that it cannot."""
    is_here = registry.is_on_this_machine(engine)
    for name in chosen:
        if name not in FAULTS:
            raise BadInput(
                f"there is no fault {name}", place="--fault", mend=f"one of {', '.join(FAULTS)}", anchor="no-fault"
            )
        if FAULTS[name].on_this_machine and not is_here:
            raise BadInput(
                f"{name} needs the job's processes, which are not on this machine", place="--fault",
                mend="use kill-task or scale, or what the cluster has for this", anchor="no-fault",
            )  # fmt: skip
    return list(chosen) or [name for name, fault in FAULTS.items() if is_here or not fault.on_this_machine]


def unleash(
    job: str, names: Sequence[str], seed: int, every: float, seconds: float
) -> Iterator[tuple[float, str, str]]:
    """Let faults happen, one each `every` seconds on average, for `seconds` or until the job ends.

    Yields for each: the seconds since the beginning, its name, whom it hit.
    """
    chaos, began = Chaos(job, seed), time.monotonic()
    try:
        while True:
            due = time.monotonic() + chaos.random.expovariate(1 / every)
            name = chaos.random.choice(list(names))
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
