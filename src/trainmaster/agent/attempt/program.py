"""Starting a program exactly as its user would, and ending all that it became.

A *launch* is one or more copies of a command. Each copy gets its own session and process group, dies with the agent (PDEATHSIG, set
before the program runs and checked against a parent already gone), holds the descriptors 0, 1 and 2 alone, and has its user's limits,
umask, signals and environment. A command that cannot be executed is told by its errno, through a pipe that `exec` closes.

`fork` is done by the one thread that runs the loop; the child calls nothing but plain system calls until it has become the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shlex
import signal
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import attrs

from trainmaster.core.plain import Plain
from trainmaster.host import allowance as kernel
from trainmaster.host import linux
from trainmaster.host import process_tree as processes
from trainmaster.host.allowance import Allowance
from trainmaster.host.linux import Process

SHELL = "/bin/sh"
LEFT_BEHIND = 2.0  # s that background children have to end by themselves once their program has
# Exit statuses that shells use, the last with a signal's number added.
NOT_EXECUTABLE, NOT_FOUND, SIGNALLED = (126, 127, 128)

Command = Sequence[str] | str


@attrs.frozen(slots=True, eq=False, repr=False)
class Launch:
    """What to run. A command as a list is executed as it is; as a string it is given to /bin/sh -c."""

    command: Command
    cwd: str
    environ: Mapping[str, str]
    allowance: Allowance
    copies: Sequence[Mapping[str, str]] = ({},)  # environment of each copy, over `environ`
    before: Sequence[Callable[[], None]] = ()  # plain system calls of the child before exec, e.g. joining a cgroup


@attrs.frozen(slots=True, eq=False, repr=False)
class Outcome(Plain):
    """How one copy ended: an exit status, or a signal; `reason` is a key of core.reasons."""

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

    @property
    def pids(self) -> list[int]:
        return [copy.pid for copy in self.copies]

    @property
    def running(self) -> bool:
        return any(not copy.over.done() for copy in self.copies)

    @property
    def died(self) -> bool:
        """Whether a copy has ended already, though nobody may have been told yet."""
        return any(copy.over.done() or _zombie(copy.pid) for copy in self.copies)

    def signal(self, number: int) -> None:
        """Signal every copy's process group. The number of one that has ended may be a stranger's, where nobody stayed in it."""
        kept = {process.group for process in self.in_groups()} if any(copy.over.done() for copy in self.copies) else ()
        for copy in self.copies:
            if not copy.over.done() or copy.pid in kept:
                processes.send_group(copy.pid, number)

    async def wait(self) -> Outcome:
        """The program's end: of the first copy that did not end well, else of the last."""
        pending = {copy.over for copy in self.copies}
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            bad = [copy for copy in self.copies if copy.over in done and not copy.over.result().well]
            if bad:
                self.failed_copy = self.copies.index(bad[0])
                return bad[0].over.result()
        return self.copies[-1].over.result()

    def in_groups(self) -> list[Process]:
        """Descendants that are still in a copy's process group or session."""
        groups = set(self.pids)
        return [p for p in processes.descendants(os.getpid()) if p.group in groups or p.session in groups]

    async def stop(self, number: int, grace: float) -> list[Process]:
        """Signal the program, give it `grace` seconds, then end every descendant; what withstood even SIGKILL."""
        self.signal(number)
        self.signal(signal.SIGCONT)  # one that is stopped could not hear it
        await processes.wait_until_gone(self.in_groups, grace)
        return await self.sweep()

    async def tidy(self) -> list[Process]:
        """After the program's own end: end what it left behind, gently where that is enough."""
        if any(p.alive for p in self.in_groups()):
            self.signal(signal.SIGTERM)
            await processes.wait_until_gone(self.in_groups, LEFT_BEHIND)
        return await self.sweep()

    async def sweep(self) -> list[Process]:
        """SIGKILL every descendant, double-forked ones too, and take leave of the copies."""
        left = await processes.end_all(os.getpid())
        stuck = {process.pid for process in left}
        processes.reap_orphans(os.getpid(), self.pids)
        ending = [copy.over for copy in self.copies if copy.pid not in stuck]
        if ending:
            await asyncio.wait(ending)
        return left


def _zombie(pid: int) -> bool:
    """Whether our child has ended and was not waited for yet."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


async def start(launch: Launch, outputs: Sequence[tuple[int, int]], stdin: int | None = None) -> Program:
    """Start every copy; `outputs` are the descriptors of stdout and stderr, of each copy or one pair for all.

    Raises CannotStart; copies that had started by then are ended.
    """
    copies: list[Copy] = []
    nothing = os.open(os.devnull, os.O_RDONLY) if stdin is None else -1
    try:
        for number, extra in enumerate(launch.copies or ({},)):
            environ = {**launch.environ, **extra}
            output = outputs[number % len(outputs)]
            pid, told = _fork(launch, environ, (nothing if stdin is None else stdin, *output))
            trouble = await _told(told)
            if trouble is not None:
                os.waitpid(pid, 0)  # noqa: ASYNC222  it has told that it ends
                raise CannotStart(_trouble(launch, environ, *trouble))
            copies.append(Copy(pid, launch.command))
    except BaseException:
        await Program(copies).sweep()
        raise
    finally:
        if nothing >= 0:
            os.close(nothing)
    return Program(copies)


def _fork(launch: Launch, environ: Mapping[str, str], descriptors: tuple[int, int, int]) -> tuple[int, int]:
    parent = os.getpid()
    told, tell = os.pipe2(os.O_CLOEXEC)
    candidates = _candidates(launch.command, environ)
    arguments = [SHELL, "-c", launch.command] if isinstance(launch.command, str) else list(launch.command)
    everything = set(signal.valid_signals())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, everything)  # no handler of ours may run in the child
    try:
        pid = os.fork()
    except OSError:  # not `finally`: the child goes another way
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(told)
        os.close(tell)
        raise
    if pid == 0:
        _become(launch, environ, descriptors, parent, tell, candidates, arguments)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(tell)
    return pid, told


def _become(
    launch: Launch, environ: Mapping[str, str], descriptors: tuple[int, int, int], parent: int, tell: int,
    candidates: Sequence[str], arguments: list[str],
) -> NoReturn:  # fmt: skip
    """The child's way to the program; on failure (step, errno) goes into `tell`."""
    step = b"s"
    try:
        linux.die_with_parent()
        if os.getppid() != parent:
            os._exit(NOT_FOUND)
        os.setsid()
        for act in launch.before:
            act()
        tell = _place(descriptors, tell)
        step = b"d"
        os.chdir(launch.cwd)
        step = b"l"
        launch.allowance.apply()
        step = b"e"
        _exec(candidates, arguments, environ)
    except OSError as error:
        os.write(tell, step + struct.pack("i", error.errno or 0))
    except BaseException as error:  # noqa: BLE001  nothing may return into the agent's code
        os.write(tell, step + struct.pack("i", 0) + repr(error).encode()[:500])
    finally:
        os._exit(NOT_FOUND)


def _place(descriptors: tuple[int, int, int], tell: int) -> int:
    """Put the three descriptors at 0, 1, 2 and close all others but `tell`, whose new number is returned."""
    high = [os.dup(descriptor) for descriptor in (*descriptors, tell)]
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
    """The files that may be meant, in the order of PATH."""
    if isinstance(command, str):
        return [SHELL]
    name = command[0] if command else ""
    if "/" in name:
        return [name]
    return [os.path.join(folder or ".", name) for folder in environ.get("PATH", os.defpath).split(":")] if name else []


def _exec(candidates: Sequence[str], arguments: list[str], environ: Mapping[str, str]) -> NoReturn:
    """As execvp(3): the first candidate that can be executed; a text without `#!` is a script of the shell."""
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


async def _told(pipe: int) -> tuple[str, int, str] | None:
    """What the child tells through its pipe: (step, errno, words), or None once it has become the program."""
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


def _trouble(launch: Launch, environ: Mapping[str, str], step: str, number: int, text: str) -> Outcome:
    command = launch.command if isinstance(launch.command, str) else (launch.command[0] if launch.command else "")
    detail = text or os.strerror(number)
    if step == "d":
        return Outcome(
            "not-executable",
            NOT_EXECUTABLE,
            figures={"command": command, "detail": f"directory {launch.cwd}: {detail}"},
        )
    if step != "e":
        return Outcome(
            "not-executable", NOT_EXECUTABLE, figures={"command": command, "detail": f"preparing it: {detail}"}
        )
    if number in (errno.ENOENT, errno.ENOTDIR):
        found = [
            path for path in _candidates(launch.command, environ) if os.path.exists(os.path.join(launch.cwd, path))
        ]
        if not found:
            words = {"shell": shlex.quote(command)} if len(launch.command) == 1 and len(command.split()) > 1 else {}
            figures = {"command": command, "path": environ.get("PATH", ""), **words}
            return Outcome("command-not-found", NOT_FOUND, figures=figures)
        detail = f"the interpreter that {found[0]} names is missing"
    return Outcome("not-executable", NOT_EXECUTABLE, figures={"command": command, "detail": detail})


def outcome_of(status: int, command: Command) -> Outcome:
    """What a wait status means; 126, 127 and those above are a shell's words for what it could not execute, or what was killed."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return Outcome("signal", None, number, {"name": kernel.signal_name(number), "core": os.WCOREDUMP(status)})
    code = os.WEXITSTATUS(status)
    if isinstance(command, str) and code - SIGNALLED in signal.valid_signals():
        number = code - SIGNALLED
        return Outcome("signal", None, number, {"name": kernel.signal_name(number)})
    if isinstance(command, str) and code in (NOT_EXECUTABLE, NOT_FOUND):
        reason = "command-not-found" if code == NOT_FOUND else "not-executable"
        line = command if len(command) <= 200 else command[:197] + "..."
        return Outcome(reason, code, figures={"line": line})  # which of its words it was is in what the shell says
    return Outcome("exit", code, figures={"status": code})
