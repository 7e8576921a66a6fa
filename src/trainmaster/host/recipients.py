"""Choose the processes of a program that a signal is for: those that do its work.

A program is often a tree: the shell that runs a command's text, the members of a pipeline, a launcher (`conda run`), workers (PyTorch's
DataLoader). A process *takes* a signal if it has a handler for it, or blocks it to fetch it (sigwait(3), signalfd(2)). The rule:

1. Go down from the program's first process through those that only wait for others: shells, to their foreground children, and whatever
   sleeps in wait4(2) and does not take the signal. On each way down, the first process that takes the signal gets it, and nothing below
   does. So workers keep serving a main process that saves, and `tee` keeps reading what it prints.
2. The trap of a shell counts where nothing in its foreground takes the signal: a shell runs its trap after the end of the foreground. The
   background counts last, because a trap is there to pass a signal on to it.
3. Where nothing takes the signal, it goes to whatever the shells wait for: each member of a pipeline.

A background job of a shell without job control is known by SIGINT and SIGQUIT, which it ignores and its shell does not (POSIX, 2.11).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import attrs

from trainmaster.core.plain import Plain
from trainmaster.host import linux, process_tree
from trainmaster.host.linux import Process

SHELLS = frozenset({"sh", "ash", "dash", "bash", "ksh", "mksh", "zsh", "fish", "busybox"})
_WAITING = "do_wait"  # the kernel's function in which a process waits for a child


@attrs.frozen(slots=True, eq=False, repr=False)
class Recipients(Plain):
    """The processes that a signal is for, and those above them, which wait for their end and may go on with something else then."""

    processes: Sequence[Process] = ()
    waiting: Sequence[Process] = ()


def recipients(first: int, number: int) -> Recipients:
    """Return the processes that a signal is for, of the program that began as process `first`."""
    tree = _Tree(first, number)
    chosen = tree.takers(tree.first) or tree.workers(tree.first)
    waiting = {above.pid: above for process in chosen for above in tree.above(process)}
    return Recipients(chosen, [process for process in waiting.values() if process not in chosen])


def takers(first: int, number: int) -> list[Process]:
    """Return the nearest processes that take a signal, at `first` or below: those that it does not end against their will."""
    tree = _Tree(first, number)
    return tree.takers(tree.first, everywhere=True)


def main_process(first: int) -> int:
    """Return the process that does the work: `first`, or the only one that its shell waits for."""
    tree = _Tree(first, 0)
    workers = tree.workers(tree.first)
    return workers[0].pid if len(workers) == 1 else first


class _Tree:
    """The living processes of a program, as one signal meets them."""

    def __init__(self, first: int, number: int) -> None:
        root = linux.look(first)
        processes = [] if root is None else [root, *process_tree.descendants(first)]
        self._processes = {process.pid: process for process in processes if process.alive}
        self._number = number
        self.first = self._processes.get(first)

    def above(self, process: Process) -> Iterator[Process]:
        """Yield the processes from the parent of a process up to the first of the program."""
        above: Process | None = process
        while above is not self.first and above is not None:
            above = self._processes.get(above.parent)
            if above is not None:
                yield above

    def takers(self, process: Process | None, *, everywhere: bool = False) -> list[Process]:
        """Return the processes that get the signal by rules 1 and 2. `everywhere`: also those below a process that does not wait."""
        if process is None:
            return []
        foreground, background = self._children(process)
        itself = [process] if _takes(process.pid, self._number) and not self._is_about_to_execute(process) else []

        def below(children: Iterable[Process]) -> list[Process]:
            return [taker for child in children for taker in self.takers(child, everywhere=everywhere)]

        if _is_shell(process.pid):
            return below(foreground) or itself or below(background)
        return itself or (below(foreground) if everywhere or _sleeps_in_wait(process.pid) else [])

    def workers(self, process: Process | None) -> list[Process]:
        """Return the processes that get the signal by rule 3. A shell that handles SIGINT gets it too, as at a terminal."""
        if process is None:
            return []
        foreground, background = self._children(process) if _is_shell(process.pid) else ([], [])
        below = [worker for child in foreground or background for worker in self.workers(child)]
        is_interrupted = self._number == signal.SIGINT and _holds(_signals(process.pid).caught, signal.SIGINT)
        return [process, *below] if is_interrupted or not below else below

    def _is_about_to_execute(self, process: Process) -> bool:
        """Tell whether a process is a fork of a shell with a trap: until it executes its program, it seems to have the trap too."""
        shell = self._processes.get(process.parent)
        if shell is None or not _is_shell(shell.pid) or not _takes(shell.pid, self._number):
            return False
        return _command_line(process.pid) == _command_line(shell.pid)

    def _children(self, process: Process) -> tuple[list[Process], list[Process]]:
        """Return the children that a process waits for, and the background jobs of a shell."""
        children = [child for child in self._processes.values() if child.parent == process.pid]
        if not _is_shell(process.pid) or _is_in_background(process.pid):
            return children, []
        background = [child for child in children if _is_in_background(child.pid)]
        return [child for child in children if child not in background], background


class _Signals(NamedTuple):
    """The signals that a process blocks, ignores and catches, each a mask of bits."""

    blocked: int
    ignored: int
    caught: int


def _signals(pid: int) -> _Signals:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
        fields = dict(line.split(b":\t", 1) for line in file if line.startswith(b"Sig"))
        return _Signals(*(int(fields[name], 16) for name in (b"SigBlk", b"SigIgn", b"SigCgt")))
    return _Signals(0, 0, 0)


def _holds(mask: int, number: int) -> bool:
    return bool(mask >> (number - 1) & 1)


def _takes(pid: int, number: int) -> bool:
    """Tell whether a process takes a signal. A shell blocks signals for a moment, and bash handles SIGINT without a trap too."""
    signals = _signals(pid)
    if _is_shell(pid):
        return number != signal.SIGINT and _holds(signals.caught, number)
    return _holds(signals.caught | signals.blocked, number)


def _is_in_background(pid: int) -> bool:
    ignored = _signals(pid).ignored
    return _holds(ignored, signal.SIGINT) and _holds(ignored, signal.SIGQUIT)


def _is_shell(pid: int) -> bool:
    return os.path.basename(os.path.realpath(f"/proc/{pid}/exe")) in SHELLS


def _command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return b""


def _sleeps_in_wait(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan") as file:
        return file.read() == _WAITING
    return False
