"""Daemons of a cluster: started so that they outlive whoever starts them, found again, and stopped surely.

A daemon is a session of its own whose parent is init, known by (pid, start time), which the cluster's record holds. Its environment is
made anew, so that it is the same whoever starts it, and carries the mark `TRAINMASTER_CLUSTER=<the cluster's directory>`: whatever was
started and could not be recorded any more is found by that. Containers do not inherit the mark (YARN makes their environment), but
have `LOCAL_DIRS` within the cluster's directory; they outlive a NodeManager that is killed, and are swept with all that came out of them.
Nothing is ever signalled that does not carry one of the two or descends from what does.
"""

from __future__ import annotations

import os
import pwd
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
# The shell says its own pid, which the daemon then has.
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
        """Resident bytes, 0 where it is gone."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) if self.alive else 0
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")


class Cluster(Protocol):
    """What a daemon knows of its cluster. `started`: its daemons, by name."""

    started: dict[str, Started]

    @property
    def folder(self) -> Path: ...


class Daemon:
    """One daemon of a cluster, by name."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._of, self.name = cluster, name

    @property
    def log(self) -> Path:
        return self._of.folder / "logs" / f"{self.name}.log"

    @property
    def started(self) -> Started:
        return self._of.started.get(self.name, Started(0, -1))

    @property
    def alive(self) -> bool:
        return self.started.alive

    def kill(self) -> None:
        """End it without warning (SIGKILL); returns when it is gone. What runs in its containers may go on."""
        self.signal(signal.SIGKILL)
        while self.alive:
            time.sleep(_PAUSE)

    def signal(self, number: int) -> None:
        """Signal exactly this process: SIGSTOP for one that hangs."""
        linux.send(self.started.pid, self.started.ticks, number)

    def failed(self, message: str, kind: str) -> EngineFailed:
        """What is to be raised where it failed, with its last words."""
        return EngineFailed(
            f"{message}; its last words:\n  " + "\n  ".join(last_words(self.log)),
            place=f"all of them: {self.log}",
            mend=f"mend it, then: tm cluster up {kind}",
            anchor="cluster-failed",
        )


def environment(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    """What a daemon of the cluster in `folder` finds in its environment."""
    user = pwd.getpwuid(os.getuid())
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, "HOME": user.pw_dir, "USER": user.pw_name, MARK: str(folder), **more}


def start(command: Sequence[str], folder: Path, log: Path, environ: Mapping[str, str]) -> Started:
    """Start one daemon; what it says goes to `log`. It is nobody's child."""
    said = subprocess.run(
        ["setsid", "--fork", "/bin/sh", "-c", _START, "sh", str(log), *command],
        env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, start_new_session=True,
    ).stdout  # fmt: skip
    pid = int(said)
    found = linux.look(pid)
    return Started(pid, found.start if found else -1)


def last_words(log: Path, count: int = 8) -> list[str]:
    """The last lines of a daemon's log that say something: no frames of stacks, Java's or Go's."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-400:]
    except FileNotFoundError:
        return []
    ends = [at for at, line in enumerate(lines) if line.startswith("goroutine ")]  # Go's are the last that there is
    frames = ("\tat ", "\t...", "/****", " ****")
    said = [line for line in lines[: min(ends, default=None)] if not line.startswith(frames) and line.strip()]
    return said[-count:]


def stop(started: Iterable[Started], folder: Path, grace: float = GRACE) -> None:
    """End these daemons, what else carries the cluster's mark, and its containers. Returns when all are gone, else EngineFailed."""
    with interrupts.undisturbed():
        every = {*started, *marked(folder)}
        _ended(every, signal.SIGTERM, grace)
        _ended(every, signal.SIGKILL, grace)
        left = _swept(folder, grace)
    if left:
        raise EngineFailed(
            f"{len(left)} processes of the cluster in {folder} do not end: {', '.join(str(one.pid) for one in left)}",
            mend="see what they wait for: ps -o pid,stat,wchan,args -p PID",
            anchor="cluster-failed",
        )


def _swept(folder: Path, grace: float) -> set[Started]:
    """Kill what is left, and what it could become: all are halted before any is killed, for a parent's death hides whose a child was."""
    left: set[Started] = set()
    end = time.monotonic() + grace
    while time.monotonic() < end:
        if more := {*marked(folder), *containers(folder)} - left:
            for one in more:
                linux.send(one.pid, one.ticks, signal.SIGSTOP)
            left |= more
            continue
        if not left:
            break
        _ended(left, signal.SIGKILL, 1.0)
        left = {one for one in left if one.alive}
    return left


def _ended(processes: Iterable[Started], number: int, patience: float) -> None:
    left = [one for one in processes if linux.send(one.pid, one.ticks, number)]
    end = time.monotonic() + patience
    while any(one.alive for one in left) and time.monotonic() < end:
        time.sleep(_PAUSE)


def remove(folder: Path, but: str = "") -> None:
    """Remove the cluster's directory, or all in it `but` one. What containers of other users left stays where it cannot be removed."""
    if not but:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path.is_dir() and path.name != but:
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != but:
            path.unlink()


def marked(folder: Path) -> list[Started]:
    """The processes that carry the cluster's mark."""
    mark = f"{MARK}={folder}".encode()
    return _found(lambda variables: mark in variables)


def containers(folder: Path) -> list[Started]:
    """The processes of the cluster's containers and all that descends from them or is of their sessions."""
    begin = f"LOCAL_DIRS={folder}/".encode()
    roots = {one.pid for one in _found(lambda variables: any(variable.startswith(begin) for variable in variables))}
    if not roots:
        return []
    everyone = [process for process in linux.everyone() if process.alive]
    sessions = {process.session for process in everyone if process.pid in roots and process.session in roots}
    found = {process.pid for process in everyone if process.pid in roots or process.session in sessions}
    while more := {process.pid for process in everyone if process.parent in found} - found:
        found |= more
    return [Started(process.pid, process.start) for process in everyone if process.pid in found]


def _found(wanted: Callable[[list[bytes]], bool]) -> list[Started]:
    found = []
    for process in linux.everyone():
        try:
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it ended, or is another user's
            continue
        if process.alive and process.pid != os.getpid() and wanted(variables):
            found.append(Started(process.pid, process.start))
    return found
