"""Show what every process of a hanging program does, as lines for its log: where the kernel says it waits, and the stacks of its Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from trainmaster.agent.watch.python_stacks import NoPython, Unreadable, python_stacks
from trainmaster.host.linux import Process

_TICK = os.sysconf("SC_CLK_TCK")


def stacks(processes: Iterable[Process]) -> Iterator[str]:
    """Yield the lines of all processes that live. A process that hangs may keep its reader waiting: read them in a thread."""
    for process in processes:
        if process.alive:
            yield _kernel_line(process)
            yield from _python_lines(process.pid)


def _kernel_line(process: Process) -> str:
    waits, inside = _read(f"/proc/{process.pid}/wchan"), _read(f"/proc/{process.pid}/stack")
    frames = " < ".join(line.split()[-1].split("+")[0] for line in inside.splitlines()[:6])
    cpu = process.ticks / _TICK
    return f"pid {process.pid} {process.name} state {process.state} cpu {cpu:.1f} s waits in {frames or waits or '?'}"


def _python_lines(pid: int) -> Iterator[str]:
    try:
        yield from python_stacks(pid)
    except NoPython:
        return
    except Unreadable as error:
        yield f"  (its stacks cannot be read: {error})"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""  # it ended, or the kernel shows it only to root
