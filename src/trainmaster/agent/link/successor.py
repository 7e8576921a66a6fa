"""Start a new master on the local engine when the old one has died.

Every agent holds a lock on `<runtime>/<job>/agents/<role>-<index>@<serial>`, a file with its pid. An agent whose lock can be taken is gone;
and a container has one agent, even where two masters ordered it. The lowest living agent starts the successor, under a separate lock, so
that two never do. If it fails, the next agent does so later. The successor's secrets go to it through a pipe, never through a file or a
command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.core.foreign import number_in
from trainmaster.host import children
from trainmaster.host.linux import Process, lives, look

if TYPE_CHECKING:
    from subprocess import Popen

TURN = 1.0  # s that each lower living agent gets to start it first
ANSWERS_WITHIN = 20.0  # s in which a successor must answer on its socket

log = logging.getLogger(__name__)


class Presence:
    """This agent's own lock file, held as long as the agent lives. Raises BlockingIOError where the container has an agent already."""

    def __init__(self, folder: str, task: str, serial: int) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._folder, self._name = folder, f"{task.replace(':', '-')}@{serial}"
        self._file = os.open(os.path.join(folder, self._name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, b"%d\n" % os.getpid(), 0)

    def lower(self) -> list[str]:
        """Return the living agents before this one, in order of role and index."""
        own = _order(self._name)
        names = (name for name in os.listdir(self._folder) if _order(name) < own)
        return [name for name in sorted(names, key=_order) if _is_locked(os.path.join(self._folder, name))]

    def close(self) -> None:
        os.close(self._file)


def _order(name: str) -> tuple[str, int]:
    role, _, index = name.partition("@")[0].rpartition("-")
    return role, number_in(index) or 0


def _is_locked(path: str) -> bool:
    """Tell whether some process holds the lock on `path`."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def alive(process: Process | None) -> bool:
    """Tell whether this very process is still there, and no zombie: its pid alone may be another's by now."""
    return process is not None and lives(process.pid, process.start)


async def answers(path: str) -> bool:
    """Tell whether some process accepts connections on a Unix socket."""
    try:
        _reader, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True


async def succeed(
    folder: str, presence: Presence, socket: str, spawn: Callable[[], int], master: Callable[[], Process | None],
) -> None:  # fmt: skip
    """Make sure that the job has a master: called when its socket refused and the known master is dead.

    `folder` is the job's runtime directory. Returns when a master answers, or when another agent starts one.
    """
    lower = presence.lower()
    if lower:
        await _wait_for(socket, TURN * len(lower))
    if await answers(socket) or alive(master()):
        return
    lock = os.open(os.path.join(folder, "successor.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if await answers(socket):
                return
            pid = spawn()
            log.warning("the master is gone; started its successor, pid %d", pid)
            successor = look(pid)
            await _wait_for(socket, ANSWERS_WITHIN, lambda: alive(successor))
    finally:
        os.close(lock)


async def _wait_for(socket: str, within: float, is_hopeful: Callable[[], bool] = lambda: True) -> None:
    """Wait until a master answers, `within` seconds at most, and only while there is hope for it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            while not await answers(socket) and is_hopeful():  # noqa: ASYNC110  a bind tells nobody
                await asyncio.sleep(0.02)


def spawn(
    job: str, payload: Mapping[str, Any], *, cwd: str, output: str, umask: int,
    command: Sequence[str] = (sys.executable, "-I", "-m", "trainmaster.master"),
) -> int:  # fmt: skip
    """Start a detached master of the job at `job`, with `payload` as JSON on its stdin. Return its pid. It may outlive us."""
    from subprocess import PIPE

    os.makedirs(os.path.dirname(output), mode=0o700, exist_ok=True)
    with open(output, "ab") as trace:
        process = children.start(
            [*command, job], stdin=PIPE, stdout=trace, stderr=trace, cwd=cwd if os.path.isdir(cwd) else "/",
            start_new_session=True, umask=umask,
        )  # fmt: skip
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended at once; its trace says why
        process.stdin.write(json.dumps(payload).encode())
        process.stdin.close()
    threading.Thread(target=_reap, args=(process,), name="successor", daemon=True).start()
    return process.pid


def _reap(process: Popen[bytes]) -> None:
    process.wait()
    children.forget(process.pid)


def mark(job: str, pid: int) -> None:
    """Note the successor as a master of the job at once: until it does so itself, its starter's death must not end it too."""
    from trainmaster.host import processes

    processes.mark(job, processes.MASTER, "", 0, pid)
