"""Start a program exactly as its user would, and end every process that it became.

A *launch* is one or more copies of a command. Each copy gets its own session and process group. It dies with the agent (PDEATHSIG, set
before the program runs and checked against a parent already gone). It holds only the descriptors 0, 1 and 2, and has its user's limits,
umask, signals and environment. A pipe that `exec` closes reports the errno of a command that cannot be executed.

Only the thread that runs the loop forks; the child makes nothing but plain system calls until it has become the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shlex
import signal
import struct
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NoReturn

import attrs

from trainmaster.core.plain import Plain
from trainmaster.core.spec.job import LONGEST_WORD
from trainmaster.core.spec.signals import signal_name
from trainmaster.host import linux, pipelines, process_tree, recipients
from trainmaster.host.allowance import Allowance
from trainmaster.host.linux import Process
from trainmaster.host.recipients import Recipients

SHELL = "/bin/sh"
LEFT_BEHIND = 2.0  # s in which background children may end by themselves after their program
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # exit statuses that shells use
_MENDS = {  # by the error of execve
    errno.E2BIG: f"give what is long in a file: a word of a command, or a variable, has at most {LONGEST_WORD // 1024} KiB, and all"
    " together a quarter of ulimit -s",
    errno.ELOOP: "see where its symbolic links lead",
    errno.ENOEXEC: "begin it with a line that names its interpreter, like #!/usr/bin/env python3",
}
LARGER_SHM = (
    "make shared memory larger: engines.kubernetes.shm on Kubernetes, --shm-size for Docker, else mount -o remount,size=SIZE /dev/shm;"
    " or have DataLoaders use fewer workers"
)

Command = Sequence[str] | str
# Starts a copy with this environment and these descriptors, warm; returns None where it is to start cold.
Warm = Callable[["Launch", Mapping[str, str], tuple[int, int, int]], Awaitable["Copy | None"]]


@attrs.frozen(slots=True, eq=False, repr=False)
class Launch:
    """A command to run. A list is executed as it is; a string is passed to /bin/sh -c."""

    command: Command
    cwd: str
    environ: Mapping[str, str]
    allowance: Allowance
    copies: Sequence[Mapping[str, str]] = ({},)  # environment of each copy, over `environ`
    before: Sequence[
        Callable[[int], None]
    ] = ()  # plain system calls with the child's id (0: its own), before it is the program: join a cgroup


@attrs.frozen(slots=True, eq=False, repr=False)
class Outcome(Plain):
    """The end of one copy: an exit status, or a signal. `reason` is a key of core.reasons."""

    reason: str
    status: int | None = None
    signal: int | None = None
    figures: Mapping[str, object] = attrs.field(factory=dict)

    @property
    def well(self) -> bool:
        return self.reason == "exit" and self.status == 0


class CannotStart(Exception):
    """The command could not be executed; nothing of it runs."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class Copy:
    """One running copy of a program."""

    def __init__(self, pid: int, command: Command) -> None:
        self.pid = pid
        self._command = command
        self._descriptor = os.pidfd_open(pid)
        self.over: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._descriptor, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        _pid, status = os.waitpid(self.pid, 0)
        self.over.set_result(outcome_of(status, self._command))


class Program:
    """The copies of a launch that runs."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        self.copies = copies
        self.failed_copy: int | None = None
        self.answer: Outcome | None = (
            None  # the end of the processes that were asked to end, where it was not the copies' own
        )

    @property
    def pids(self) -> list[int]:
        return [copy.pid for copy in self.copies]

    @property
    def running(self) -> bool:
        return any(not copy.over.done() for copy in self.copies)

    @property
    def died(self) -> bool:
        """Tell whether a copy has ended already, even if nobody has noticed yet."""
        return any(copy.over.done() or _is_zombie(copy.pid) for copy in self.copies)

    def signal(self, number: int) -> str:
        """Send a signal to the processes that it is for, as `host.recipients` says. Return why it was not sent, "" where it was."""
        return _send_all(self._recipients(number).processes, number)

    def warn(self, number: int) -> str:
        """Send a signal to the processes that take it; it never ends the others. Return why it was not sent, "" where it was."""
        takers = [taker for copy in self._running() for taker in recipients.takers(copy.pid, number)]
        return _send_all(takers, number) if takers else "the program has no handler for it, so it would end"

    def _running(self) -> list[Copy]:
        return [copy for copy in self.copies if not copy.over.done()]

    def _recipients(self, number: int, *, stop: bool = False) -> Recipients:
        chosen = [recipients.recipients(copy.pid, number, stop=stop) for copy in self._running()]
        return Recipients(
            [process for part in chosen for process in part.processes],
            [process for part in chosen for process in part.waiting],
            [process for part in chosen for process in part.speaking],
        )

    def _signal_groups(self, number: int) -> None:
        """Signal every copy's process group. The group of an ended copy may be a stranger's by now, unless some process stayed in it."""
        kept = {process.group for process in self.in_groups()} if any(copy.over.done() for copy in self.copies) else ()
        for copy in self.copies:
            if not copy.over.done() or copy.pid in kept:
                process_tree.send_group(copy.pid, number)

    async def wait(self) -> Outcome:
        """Return the program's end: of the first copy that did not end well, else of the last."""
        pending = {copy.over for copy in self.copies}
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            bad = [copy for copy in self.copies if copy.over in done and not copy.over.result().well]
            if bad:
                self.failed_copy = self.copies.index(bad[0])
                return bad[0].over.result()
        return self.copies[-1].over.result()

    def in_groups(self) -> list[Process]:
        """Return the descendants that are still in a copy's process group or session."""
        groups = set(self.pids)
        return [p for p in process_tree.descendants(os.getpid()) if p.group in groups or p.session in groups]

    async def stop(self, number: int, grace: float) -> list[Process]:
        """Ask the program to end, give it `grace` seconds, then end every descendant. Return those that withstood even SIGKILL.

        The signal is for the processes that do the work (`host.recipients`). Whatever is above them is stopped until they have ended, for a
        shell whose child ends begins its next command. Then the rest of the program is asked to end, except those that read what these
        printed, like `tee` and `gzip`: the end of their input ends them, for which they have half of the remaining grace.
        """
        deadline = time.monotonic() + grace
        targets = self._recipients(number, stop=True)
        readers = pipelines.readers(targets.processes, process_tree.descendants(os.getpid()))
        reading = {process.pid for process in readers}
        first = [process for process in targets.processes if process.pid not in reading] or targets.processes
        for process in targets.waiting:
            _send(process, signal.SIGSTOP)
        _ask(first, number)
        alive = await process_tree.wait_until_gone(lambda: _now(first), grace)
        if alive:
            return await self.sweep()
        speaking = [process for process in targets.speaking if process.pid not in reading]
        self.answer = self._answer(speaking or targets.speaking)
        if readers:
            rest = [process for process in self.in_groups() if process.pid not in reading]
            for process in rest:
                _ask([process], signal.SIGCONT if recipients.forwards(process.pid) else signal.SIGTERM)
            # While one of the rest lives, it may hold a pipe open.
            await self._finish_reading(readers, (deadline - time.monotonic()) / 2, rest)
            late = [process for process in targets.processes if process.pid in reading]
            _ask(_now(late), number)
            await process_tree.wait_until_gone(lambda: _now(late), deadline - time.monotonic())
        return await self.tidy(deadline - time.monotonic())

    def _answer(self, processes: Sequence[Process]) -> Outcome | None:
        """Return the end of the processes that were asked to end, below shells that have not noticed it; None where it is not known."""
        ends = {process.pid: outcome_of(process.status, ()) for process in _now(processes)}
        if not ends or len(ends) < len(processes):
            return None
        return next((end for end in ends.values() if not end.well), ends[processes[-1].pid])

    async def tidy(self, limit: float = LEFT_BEHIND) -> list[Process]:
        """End the processes that a program left behind at its own end, gently where that is enough within `limit` seconds."""
        deadline = time.monotonic() + limit
        if any(p.alive for p in self.in_groups()):
            # As in `python train.py > >(tee log)`.
            readers = [process for process in self.in_groups() if "0" in pipelines.read_pipes(process.pid).values()]
            await self._finish_reading(readers, min(limit, LEFT_BEHIND))
            self._signal_groups(signal.SIGTERM)
            self._signal_groups(signal.SIGCONT)
            await process_tree.wait_until_gone(self.in_groups, deadline - time.monotonic())
        return await self.sweep()

    async def _finish_reading(self, readers: Sequence[Process], limit: float, writers: Sequence[Process] = ()) -> None:
        """Wait until `writers` have ended, and these have read and stored what there is to read, for `limit` seconds at most."""

        def unfinished() -> list[Process]:
            living = [process for process in _now(writers) if process.alive]
            return living or pipelines.busy(readers, process_tree.descendants(os.getpid()))

        if readers:
            await process_tree.wait_until_gone(unfinished, limit)

    async def sweep(self) -> list[Process]:
        """SIGKILL every descendant, double-forked ones too, and reap the copies. Return those that withstood it."""
        survivors = await process_tree.end_all(os.getpid())
        stuck = {process.pid for process in survivors}
        process_tree.reap_orphans(os.getpid(), self.pids)
        ending = [copy.over for copy in self.copies if copy.pid not in stuck]
        if ending:
            await asyncio.wait(ending)
        return survivors


def _send(process: Process, number: int) -> None:
    with contextlib.suppress(PermissionError):  # another user's, as under sudo
        linux.send(process.pid, process.start, number)


def _ask(processes: Sequence[Process], number: int) -> None:
    """Send a signal to each of the processes, also to one that is stopped: it could not handle the signal."""
    for process in processes:
        _send(process, number)
        _send(process, signal.SIGCONT)


def _send_all(processes: Sequence[Process], number: int) -> str:
    """Send a signal to each of the processes. Return why one did not get it, "" where all did."""
    try:
        for process in processes:
            linux.send(process.pid, process.start, number)
    except PermissionError as error:  # another user's, as under sudo
        return str(error.strerror)
    return ""


def _now(processes: Sequence[Process]) -> list[Process]:
    """Return these processes as they are now, without those that are gone."""
    looks = [(process, linux.look(process.pid)) for process in processes]
    return [now for process, now in looks if now is not None and now.start == process.start]


def _is_zombie(pid: int) -> bool:
    """Tell whether our child has ended and was not waited for yet."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


async def start(
    launch: Launch, outputs: Sequence[tuple[int, int]], stdin: int | None = None, warm: Warm | None = None
) -> Program:
    """Start every copy; `outputs` are the descriptors of stdout and stderr, of each copy or one pair for all. Those that can start `warm`.

    Raises CannotStart; copies that had started by then are ended.
    """
    copies: list[Copy] = []
    null = os.open(os.devnull, os.O_RDONLY) if stdin is None else -1
    try:
        for number, extra in enumerate(launch.copies or ({},)):
            environ = {**launch.environ, **extra}
            output = outputs[number % len(outputs)]
            descriptors = (null if stdin is None else stdin, *output)
            if warm is not None and (copy := await warm(launch, environ, descriptors)) is not None:
                copies.append(copy)
                continue
            pid, pipe = fork(launch, environ, descriptors)
            report = await _read_report(pipe)
            if report is not None:
                os.waitpid(pid, 0)  # noqa: ASYNC222  it has reported that it ends
                raise CannotStart(_start_failure(launch, environ, *report))
            copies.append(Copy(pid, launch.command))
    except BaseException:
        await Program(copies).sweep()
        raise
    finally:
        if null >= 0:
            os.close(null)
    return Program(copies)


def fork(launch: Launch, environ: Mapping[str, str], descriptors: tuple[int, int, int]) -> tuple[int, int]:
    """Fork a child that becomes the program. Return its id, and the pipe of `_read_report`."""
    parent = os.getpid()
    reading_end, writing_end = os.pipe2(os.O_CLOEXEC)
    candidates = _candidates(launch.command, environ)
    arguments = [SHELL, "-c", launch.command] if isinstance(launch.command, str) else list(launch.command)
    all_signals = set(signal.valid_signals())
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, all_signals)  # no handler of ours may run in the child
    try:
        pid = os.fork()
    except OSError:  # not `finally`: the child goes another way
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        os.close(reading_end)
        os.close(writing_end)
        raise
    if pid == 0:
        _become(launch, environ, descriptors, parent, writing_end, candidates, arguments)
    signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    os.close(writing_end)
    return pid, reading_end


def _become(
    launch: Launch, environ: Mapping[str, str], descriptors: tuple[int, int, int], parent: int, pipe: int,
    candidates: Sequence[str], arguments: list[str],
) -> NoReturn:  # fmt: skip
    """Turn the forked child into the program. On failure (step, errno) goes into `pipe`."""
    step = b"s"
    try:
        linux.die_with_parent()
        if os.getppid() != parent:
            os._exit(NOT_FOUND)
        os.setsid()
        for act in launch.before:
            act(0)
        pipe = _place(descriptors, pipe)
        step = b"d"
        os.chdir(launch.cwd)
        step = b"l"
        launch.allowance.apply()
        step = b"e"
        _exec(candidates, arguments, environ)
    except OSError as error:
        os.write(pipe, step + struct.pack("i", error.errno or 0))
    except BaseException as error:  # noqa: BLE001  nothing may return into the agent's code
        os.write(pipe, step + struct.pack("i", 0) + repr(error).encode()[:500])
    finally:
        os._exit(NOT_FOUND)


def _place(descriptors: tuple[int, int, int], pipe: int) -> int:
    """Put the three descriptors at 0, 1, 2 and close all others but `pipe`, whose new number is returned."""
    high = [os.dup(descriptor) for descriptor in (*descriptors, pipe)]
    while min(high) < 3:  # a number that is about to be overwritten
        high = [os.dup(descriptor) for descriptor in high]
    for number, descriptor in enumerate(high[:3]):
        os.dup2(descriptor, number, inheritable=True)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number != high[3]:
            with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
                os.close(number)
    os.set_inheritable(high[3], False)
    return high[3]


def _candidates(command: Command, environ: Mapping[str, str]) -> list[str]:
    """Return the files that the command may mean, in the order of PATH."""
    if isinstance(command, str):
        return [SHELL]
    name = command[0] if command else ""
    if "/" in name:
        return [name]
    return [os.path.join(folder or ".", name) for folder in environ.get("PATH", os.defpath).split(":")] if name else []


def _exec(candidates: Sequence[str], arguments: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Execute the first candidate that can be executed, as execvp(3) does. A text file without `#!` is a shell script."""
    denied: OSError | None = None
    for path in candidates:
        try:
            os.execve(path, arguments, environ)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                os.execve(SHELL, [SHELL, path, *arguments[1:]], environ)
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                raise
            if error.errno == errno.EACCES or os.path.exists(path):
                denied = denied or error
    raise denied or OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _read_report(pipe: int) -> tuple[str, int, str] | None:
    """Return the child's report through its pipe: (step, errno, text), or None once it has become the program."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    os.set_blocking(pipe, False)
    loop.add_reader(pipe, _settle, readable)
    try:
        await readable
        data = os.read(pipe, 1024)
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)
    if not data:
        return None
    return data[:1].decode(), struct.unpack("i", data[1:5])[0], data[5:].decode("utf-8", "replace")


def _start_failure(launch: Launch, environ: Mapping[str, str], step: str, number: int, text: str) -> Outcome:
    command = launch.command if isinstance(launch.command, str) else (launch.command[0] if launch.command else "")
    detail = text or os.strerror(number)
    mend = _MENDS.get(number, "")
    if step == "d":
        detail, mend = f"directory {launch.cwd}: {detail}", "see that the directory is there and may be entered"
    elif step != "e":
        detail, mend = f"preparing it: {detail}", ""
    elif number in (errno.ENOENT, errno.ENOTDIR):
        existing = [
            path for path in _candidates(launch.command, environ) if os.path.exists(os.path.join(launch.cwd, path))
        ]
        if not existing:
            quoted = {"shell": shlex.quote(command)} if len(launch.command) == 1 and len(command.split()) > 1 else {}
            figures = {"command": _short(command), "path": environ.get("PATH", ""), **quoted}
            return Outcome("command-not-found", NOT_FOUND, figures=figures)
        detail = f"the interpreter that the first line of {existing[0]} names is missing"
        mend = "mend that line, or name an interpreter before it, as in python3 PROGRAM"
    elif number == errno.EACCES:
        paths = [os.path.join(launch.cwd, path) for path in _candidates(launch.command, environ)]
        executable = next((path for path in paths if os.access(path, os.X_OK)), "")  # by its own mode
        if os.path.isdir(executable):
            mend = "it is a directory: name a program in it"
        elif executable:
            mend = "see that the interpreter that its first line names may be executed, and that its file system is not mounted noexec"
    figures = {"command": _short(command), "detail": detail} | ({"mend": mend} if mend else {})
    return Outcome("not-executable", NOT_EXECUTABLE, figures=figures)


def _short(command: str) -> str:
    """Return a command as an error shows it."""
    return command if len(command) <= 200 else command[:197] + "..."


def outcome_of(status: int, command: Command) -> Outcome:
    """Return the outcome of a wait status. A shell uses 126 and 127 for what it could not execute."""
    if os.WIFSIGNALED(status):
        return killed_by(os.WTERMSIG(status), core=os.WCOREDUMP(status))
    code = os.WEXITSTATUS(status)
    if isinstance(command, str) and code in (NOT_EXECUTABLE, NOT_FOUND):
        reason = "command-not-found" if code == NOT_FOUND else "not-executable"
        return Outcome(
            reason, code, figures={"line": _short(command)}
        )  # the shell's own output names the word at fault
    return Outcome("exit", code, figures={"status": code})


def killed_by(number: int, **figures: object) -> Outcome:
    if number == signal.SIGBUS:  # memory that it had mapped was not there
        figures["mend"] = f"its /dev/shm may be full, or a file that it had mapped was cut short: {LARGER_SHM}"
    return Outcome("signal", None, number, {"name": signal_name(number), **figures})
