"""Daemons of a cluster: they outlive the process that starts them, are found again, and are surely stopped.

A daemon is a session of its own whose parent is init; the cluster's record names it by (pid, start time). Its environment is made anew, so
that it is the same whoever starts it, and carries the mark `TRAINMASTER_CLUSTER=<the cluster's directory>`. The mark finds processes that
were started but could not be recorded. Containers do not inherit the mark (YARN makes their environment), but have `LOCAL_DIRS` within the
cluster's directory; they outlive a NodeManager that is killed, and are swept with all their descendants.
No process is ever signalled unless it carries one of the two, or descends from one that does.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import attrs

from trainmaster import interrupts
from trainmaster.core.errors import EngineFailed
from trainmaster.host import linux

MARK = "TRAINMASTER_CLUSTER"
GRACE = 10.0  # s between TERM and KILL
_PAUSE = 0.05
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "JAVA_HOME", "LD_LIBRARY_PATH")
# The shell prints its own pid, which the daemon then has.
_START = 'umask 022; echo $$; log=$1; shift; exec "$@" >>"$log" 2>&1'


@attrs.frozen
class Started:
    """A process as the record names it. `ticks`: its start, in clock ticks since boot."""

    pid: int
    ticks: int

    @property
    def alive(self) -> bool:
        return linux.lives(self.pid, self.ticks)

    @property
    def memory(self) -> int:
        """The resident bytes, 0 where the process is gone."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) if self.alive else 0
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")


class Cluster(Protocol):
    """The part of a cluster that its daemons know. `started`: its daemons, by name."""

    started: dict[str, Started]

    @property
    def folder(self) -> Path: ...


class Daemon:
    """One daemon of a cluster, by name."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self.name = cluster, name

    @property
    def log(self) -> Path:
        return self._cluster.folder / "logs" / f"{self.name}.log"

    @property
    def started(self) -> Started:
        return self._cluster.started.get(self.name, Started(0, -1))

    @property
    def alive(self) -> bool:
        return self.started.alive

    def kill(self) -> None:
        """End the daemon without warning (SIGKILL); return when it is gone, with its ports. Programs in its containers may go on."""
        with contextlib.suppress(ProcessLookupError):
            descriptor = linux.pidfd(self.started.pid)
            try:
                if self.alive:
                    self.signal(signal.SIGKILL)
                    last_thread = select.poll()  # it holds the ports; the process itself may look dead before
                    last_thread.register(descriptor, select.POLLIN)
                    last_thread.poll()
            finally:
                os.close(descriptor)

    def signal(self, number: int) -> None:
        """Send a signal to exactly this process, such as SIGSTOP to make it hang."""
        linux.send(self.started.pid, self.started.ticks, number)

    def failed(self, message: str, kind: str) -> EngineFailed:
        """Return the error to raise where the daemon failed, with its last words."""
        return EngineFailed(
            f"{message}; its last words:\n  " + "\n  ".join(last_words(self.log)),
            place=f"all of them: {self.log}",
            mend=f"mend it, then: tm cluster up {kind}",
            anchor="cluster-failed",
        )


def environment(folder: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a daemon of the cluster in `folder`; `extra` variables go before the others."""
    user = pwd.getpwuid(os.getuid())
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, "HOME": user.pw_dir, "USER": user.pw_name, MARK: str(folder), **extra}


def start(command: Sequence[str], folder: Path, log: Path, environ: Mapping[str, str]) -> Started:
    """Start one daemon, which is nobody's child; its output goes to `log`."""
    printed = subprocess.run(
        ["setsid", "--fork", "/bin/sh", "-c", _START, "sh", str(log), *command],
        env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, start_new_session=True,
    ).stdout  # fmt: skip
    pid = int(printed)
    process = linux.look(pid)
    return Started(pid, process.start if process else -1)


def last_words(log: Path, count: int = 8) -> list[str]:
    """Return the last telling lines of a daemon's log, without the frames of Java's or Go's stacks."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-400:]
    except FileNotFoundError:
        return []
    stacks = [number for number, line in enumerate(lines) if line.startswith("goroutine ")]  # Go's stacks end the log
    frames = ("\tat ", "\t...", "/****", " ****")
    words = [line for line in lines[: min(stacks, default=None)] if not line.startswith(frames) and line.strip()]
    return words[-count:]


def stop(started: Iterable[Started], folder: Path, grace: float = GRACE) -> None:
    """End these daemons, all else that carries the cluster's mark, and its containers.

    Returns when all are gone. Raises EngineFailed where some do not end.
    """
    with interrupts.undisturbed():
        processes = {*started, *marked(folder)}
        _end(processes, signal.SIGTERM, grace)
        _end(processes, signal.SIGKILL, grace)
        survivors = _sweep(folder, grace)
    if survivors:
        pids = ", ".join(str(process.pid) for process in survivors)
        raise EngineFailed(
            f"{len(survivors)} processes of the cluster in {folder} do not end: {pids}",
            mend="see what they wait for: ps -o pid,stat,wchan,args -p PID",
            anchor="cluster-failed",
        )


def _sweep(folder: Path, grace: float) -> set[Started]:
    """Kill the remaining processes, and all that they start meanwhile; return those that do not end.

    All are halted before any is killed, for a parent's death hides whose child a process was.
    """
    halted: set[Started] = set()
    end = time.monotonic() + grace
    while time.monotonic() < end:
        if further := {*marked(folder), *containers(folder)} - halted:
            for process in further:
                linux.send(process.pid, process.ticks, signal.SIGSTOP)
            halted |= further
            continue
        if not halted:
            break
        _end(halted, signal.SIGKILL, 1.0)
        halted = {process for process in halted if process.alive}
    return halted


def _end(processes: Iterable[Started], number: int, patience: float) -> None:
    signalled = [process for process in processes if linux.send(process.pid, process.ticks, number)]
    end = time.monotonic() + patience
    while any(process.alive for process in signalled) and time.monotonic() < end:
        time.sleep(_PAUSE)


def remove(folder: Path, but: str = "") -> None:
    """Remove the cluster's directory, or all in it `but` one entry. Files of other users' containers stay where they cannot be removed."""
    if not but:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path.is_dir() and path.name != but:
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != but:
            path.unlink()


def marked(folder: Path) -> list[Started]:
    """Return the processes that carry the cluster's mark."""
    mark = f"{MARK}={folder}".encode()
    return _processes_by_environ(lambda variables: mark in variables)


def containers(folder: Path) -> list[Started]:
    """Return the processes of the cluster's containers, with all their descendants and the members of their sessions."""
    prefix = f"LOCAL_DIRS={folder}/".encode()
    roots = {
        process.pid
        for process in _processes_by_environ(
            lambda variables: any(variable.startswith(prefix) for variable in variables)
        )
    }
    if not roots:
        return []
    everyone = [process for process in linux.everyone() if process.alive]
    sessions = {process.session for process in everyone if process.pid in roots and process.session in roots}
    pids = {process.pid for process in everyone if process.pid in roots or process.session in sessions}
    while children := {process.pid for process in everyone if process.parent in pids} - pids:
        pids |= children
    return [Started(process.pid, process.start) for process in everyone if process.pid in pids]


def _processes_by_environ(is_match: Callable[[list[bytes]], bool]) -> list[Started]:
    matches = []
    for process in linux.everyone():
        try:
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:  # the process ended, or is another user's
            continue
        if process.alive and process.pid != os.getpid() and is_match(variables):
            matches.append(Started(process.pid, process.start))
    return matches
