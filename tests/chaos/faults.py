"""What may happen to a running job, each a class: `strike` does it, once."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from trainmaster.host import processes
from trainmaster.host.processes import AGENT, MASTER, PROGRAM, TEMPLATE, Mark


def living(job: str, *kinds: str) -> list[Mark]:
    """The living processes of a job, of these kinds."""
    return sorted(processes.living(job, *kinds), key=lambda made: (made.task, made.process.start))


@attrs.frozen(slots=True)
class Kill:
    """kill -9 of one process; `strike` says whether there was one."""

    kind = ""

    def strike(self, job: str, choice: random.Random) -> bool:
        found = living(job, self.kind)
        return bool(found) and processes.send(choice.choice(found).process, signal.SIGKILL)


class KillProgram(Kill):
    """A program dies."""

    kind = PROGRAM


class KillAgent(Kill):
    """An agent dies, and its program with it."""

    kind = AGENT


class KillMaster(Kill):
    """The master dies."""

    kind = MASTER


class KillTemplate(Kill):
    """The process that agents are forked from dies."""

    kind = TEMPLATE


@attrs.frozen(slots=True)
class KillCommandLine:
    """The command that watches the job dies."""

    pid: int

    def strike(self, job: str, choice: random.Random) -> bool:
        os.kill(self.pid, signal.SIGKILL)
        return True


class KillEverything:
    """All processes of the job die at once, as when the machine is restarted."""

    def strike(self, job: str, choice: random.Random) -> bool:
        struck = False
        order = (MASTER, TEMPLATE, AGENT, PROGRAM)
        while found := living(job):
            for made in sorted(found, key=lambda made: order.index(made.kind)):
                if made.kind in (MASTER, TEMPLATE):  # stopped first: nobody starts another meanwhile
                    processes.send(made.process, signal.SIGSTOP)
            for made in found:
                if made.kind == AGENT:
                    processes.send(made.process, signal.SIGSTOP)
            for made in found:
                struck = processes.send(made.process, signal.SIGKILL) or struck
        return struck


class StopMaster:
    """The master does nothing for a while, and comes back when its successor may be there already."""

    def strike(self, job: str, choice: random.Random) -> bool:
        found = living(job, MASTER)
        return bool(found) and processes.send(found[0].process, signal.SIGSTOP)


@contextmanager
def full_disk(folder: Path, leave: int = 0) -> Iterator[None]:
    """The file system of `folder` (a small one of its own) is full but for `leave` bytes, inside the context."""
    filler = folder / ".filler"
    with filler.open("wb", buffering=0) as file:
        for piece in (1 << 20, 1 << 12, 1):
            while True:
                try:
                    if not file.write(b"\0" * piece):
                        break
                except OSError:
                    break
        if leave:
            file.truncate(max(0, file.tell() - leave))
    try:
        yield
    finally:
        filler.unlink()
