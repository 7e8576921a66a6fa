"""Choose the processes of a program that a signal is for: those that do its work.

A program is often a tree: the shell that runs a command's text, the members of a pipeline, a launcher (`conda run`), workers (PyTorch's
DataLoader). A process *takes* a signal if it has a handler for it, or blocks it to fetch it (sigwait(3), signalfd(2)). The rule:

1. Go down from the program's first process through those that only wait for others: shells, to their foreground children, `timeout`, and
   whatever sleeps in wait4(2) and does not take the signal. On each way down, the first process that takes the signal gets it, and nothing
   below does. So workers keep serving a main process that saves, and `tee` keeps reading what it prints. SIGINT reaches also what a process
   that takes it waits for, as at a terminal: each Python program handles it.
2. The trap of a shell counts where nothing in its foreground takes the signal: a shell runs its trap after the end of the foreground. The
   background counts last, because a trap is there to pass a signal on to it.
3. Where nothing takes the signal, it goes to whatever the shells wait for: each member of a pipeline.

A stop ends the processes without a handler too, so two things differ: it goes down through all of them, also where they wait in another way
(`torch.multiprocessing.spawn` polls; others read what a child prints), and a shell's trap comes with the end of its foreground.

A background job of a shell without job control is known by SIGINT and SIGQUIT, which it ignores and its shell does not (POSIX, 2.11). A
process in system(3) ignores them too, but its child does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import attrs

from trainmaster.core.plain import Plain
from trainmaster.host import linux, pipelines, process_tree
from trainmaster.host.linux import Process

SHELLS = frozenset({"sh", "ash", "dash", "bash", "ksh", "mksh", "zsh", "fish", "busybox"})
_FORWARDERS = frozenset({"timeout", "dumb-init"})  # they send a signal on to a whole group, workers too
_WAITING = "do_wait"  # the kernel's function in which a process waits for a child


@attrs.frozen(slots=True, eq=False, repr=False)
class Recipients(Plain):
    """The processes that a signal is for.

    `waiting` are those above them, which may go on with something else at their end; not those that read what they print. `speaking` are
    those whose end is the program's own: it is not where a process above them has another task than to wait.
    """

    processes: Sequence[Process] = ()
    waiting: Sequence[Process] = ()
    speaking: Sequence[Process] = ()


def recipients(first: int, number: int, *, stop: bool = False) -> Recipients:
    """Return the processes that a signal is for, of the program that began as process `first`. `stop`: the program is to end."""
    tree = _Tree(first, number)
    takers = tree.takers(tree.first, everywhere=stop)
    chosen = takers or tree.workers(tree.first)
    speaking = tree.takers(tree.first) if takers else chosen
    if stop:
        chosen = [*chosen, *(worker for process in takers for worker in tree.foreground_workers(process))]
    waiting = {above.pid: above for process in chosen for above in tree.above(process) if above not in chosen}
    return Recipients(chosen, list(waiting.values()), speaking)


def takers(first: int, number: int) -> list[Process]:
    """Return the nearest processes that take a signal, at `first` or below: those that it does not end against their will."""
    tree = _Tree(first, number)
    return tree.takers(tree.first, everywhere=True)


def forwards(pid: int) -> bool:
    """Tell whether a process sends a signal that it gets on to its whole group, and ends by itself with its child."""
    program = _program(pid)
    return program is not None and program.is_forwarder


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
        read = {process.pid: _program(process.pid) for process in processes}
        self._programs = {pid: program for pid, program in read.items() if program is not None}
        self._processes = {process.pid: process for process in processes if process.pid in self._programs}
        self._number = number
        self.first = self._processes.get(first)

    def above(self, process: Process) -> Iterator[Process]:
        """Yield the processes from the parent of a process up to the first of the program, without those that read from it."""
        below = process
        while below is not self.first and (above := self._processes.get(below.parent)) is not None:
            if self._programs[above.pid].is_shell or not _reads_output(above.pid, below.pid):
                yield above
            below = above

    def takers(self, process: Process | None, *, everywhere: bool = False) -> list[Process]:
        """Return the processes that get the signal by rules 1 and 2. `everywhere`: also those below a process that does not wait."""
        if process is None:
            return []
        foreground, background = self._children(process)
        itself = [process] if self._takes(process) and not self._is_about_to_execute(process) else []

        def below(children: Iterable[Process]) -> list[Process]:
            return [taker for child in children for taker in self.takers(child, everywhere=everywhere)]

        program = self._programs[process.pid]
        if program.is_shell:
            return below(foreground) or itself or below(background)
        waits = program.is_forwarder or _sleeps_in_wait(process.pid)
        if not itself:
            return below(foreground) if everywhere or waits else []
        if not waits:
            return itself
        if self._number == signal.SIGINT:
            return [*itself, *below(foreground)]
        handles = _holds(program.caught, self._number) and not program.is_forwarder  # `unshare --fork` only blocks it
        return itself if handles else below(foreground) or itself

    def foreground_workers(self, process: Process) -> list[Process]:
        """Return the processes that a shell with a trap waits for before it runs that, by rule 3."""
        program = self._programs[process.pid]
        foreground = self._children(process)[0] if program.is_shell else []
        return [worker for child in foreground for worker in self.workers(child)]

    def workers(self, process: Process | None) -> list[Process]:
        """Return the processes that get the signal by rule 3. A shell that handles SIGINT gets it too, as at a terminal."""
        if process is None:
            return []
        program = self._programs[process.pid]
        foreground, background = self._children(process) if program.is_shell else ([], [])
        below = [worker for child in foreground or background for worker in self.workers(child)]
        is_interrupted = self._number == signal.SIGINT and _holds(program.caught, signal.SIGINT)
        return [process, *below] if is_interrupted or not below else below

    def _is_about_to_execute(self, process: Process) -> bool:
        """Tell whether a process is a fork of a shell with a trap: until it executes its program, it seems to have the trap too."""
        shell = self._processes.get(process.parent)
        if shell is None or not self._programs[shell.pid].is_shell or not self._takes(shell):
            return False
        return self._programs[process.pid].command_line == self._programs[shell.pid].command_line

    def _takes(self, process: Process) -> bool:
        """Tell whether a process takes the signal. A shell blocks signals for a moment, and bash handles SIGINT without a trap too."""
        program = self._programs[process.pid]
        if program.is_shell:
            return self._number != signal.SIGINT and _holds(program.caught, self._number)
        return _holds(program.caught | program.blocked, self._number)

    def _children(self, process: Process) -> tuple[list[Process], list[Process]]:
        """Return the children that a process waits for, and the background jobs of a shell."""
        children = [child for child in self._processes.values() if child.parent == process.pid]
        program = self._programs[process.pid]
        if not program.is_shell or program.ignores_terminal:
            return children, []
        background = [child for child in children if self._is_in_background(child)]
        return [child for child in children if child not in background], background

    def _is_in_background(self, process: Process) -> bool:
        """Tell whether a child of a shell is a background job, rather than a process in system(3)."""
        children = [child for child in self._processes.values() if child.parent == process.pid]
        return all(self._programs[each.pid].ignores_terminal for each in (process, *children))


class _Program(NamedTuple):
    """The program of a process, and the signals that it blocks, ignores and catches, each a mask of bits."""

    executable: str
    command_line: bytes
    blocked: int
    ignored: int
    caught: int

    @property
    def is_shell(self) -> bool:
        return os.path.basename(self.executable) in SHELLS

    @property
    def is_forwarder(self) -> bool:
        return os.path.basename(self.executable) in _FORWARDERS

    @property
    def ignores_terminal(self) -> bool:
        return _holds(self.ignored, signal.SIGINT) and _holds(self.ignored, signal.SIGQUIT)


def _program(pid: int) -> _Program | None:
    """Read the program as it is at one moment, None where the process has ended. A shell's fork has other signals than what it executes."""
    program = _read_program(pid)
    while program != (again := _read_program(pid)):
        program = again
    return program


def _read_program(pid: int) -> _Program | None:
    executable = ""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = dict(line.split(b":\t", 1) for line in file if line.startswith((b"Sig", b"State")))
        with contextlib.suppress(PermissionError):  # another user's
            executable = os.readlink(f"/proc/{pid}/exe")
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command_line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    blocked, ignored, caught = (int(fields[name], 16) for name in (b"SigBlk", b"SigIgn", b"SigCgt"))
    return None if fields[b"State"][:1] in b"ZX" else _Program(executable, command_line, blocked, ignored, caught)


def _holds(mask: int, number: int) -> bool:
    return bool(mask >> (number - 1) & 1)


def _sleeps_in_wait(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan") as file:
        return file.read() == _WAITING
    return False


def _reads_output(pid: int, child: int) -> bool:
    """Tell whether a process reads what its child prints: while it was stopped, the child could not print."""
    return not pipelines.printed_pipes(child).isdisjoint(pipelines.read_pipes(pid))
