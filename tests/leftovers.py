"""What a test left behind: processes, sockets that listen, files.

A process belongs to a test when its environment carries the test's mark (`TRAINMASTER_TEST`), or when it works in one of the test's
directories: programs that clear their environment are found by the second. Whoever merely takes a moment to end is given it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "TRAINMASTER_TEST"
PATIENCE = 10.0  # s that what a test started has to end by itself
_TCP = {(socket.AF_INET, socket.SOCK_STREAM): "tcp", (socket.AF_INET6, socket.SOCK_STREAM): "tcp6"}


def marked(mark: str, places: Iterable[Path]) -> dict[int, str]:
    """pid -> command line of the living processes that belong to the test."""
    wanted = f"{MARK}={mark}".encode()
    roots = tuple(f"{place}" for place in places)
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            here = wanted in _read(f"/proc/{entry}/environ").split(b"\0")
            if not here:
                cwd = os.readlink(f"/proc/{entry}/cwd")
                here = any(cwd == root or cwd.startswith(root + "/") for root in roots)
            if here and not _zombie(int(entry)):
                command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(entry)] = command.strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it ended while we looked, or is not ours
            continue
    return found


def _read(path: str) -> bytes:
    """Return the whole of a file of /proc; pathlib takes three times as long, and each test reads those of all processes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return b"".join(iter(lambda: os.read(descriptor, 1 << 17), b""))
    finally:
        os.close(descriptor)


def of_run(run: str, temporary: Path) -> list[int]:
    """Return the processes of a whole run of tests: their mark begins with the run's name, or they work in its temporary directory."""
    marks, found = (f"{MARK}={run}".encode(), f"{MARK}={run}.".encode()), []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            variables = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            is_marked = any(variable == marks[0] or variable.startswith(marks[1]) for variable in variables)
            if (is_marked or Path(os.readlink(f"/proc/{entry}/cwd")).is_relative_to(temporary)) and not _zombie(
                int(entry)
            ):
                found.append(int(entry))
        except OSError:  # it ended while we looked, or is not ours
            continue
    return found


def _zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"


def children() -> set[int]:
    """The children of this very process, forked ones included."""
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            found.update(map(int, Path(f"/proc/self/task/{thread}/children").read_text().split()))
        except FileNotFoundError:  # the thread ended
            continue
    return found


def listening() -> set[str]:
    """Return the TCP ports on which this very process listens. /proc/net/tcp tells them too, but takes 8 ms to read."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:["):
                continue
            with socket.socket(fileno=os.dup(int(number))) as copy:
                table = _TCP.get((copy.family, copy.type))
                if table and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.add(f"{table} port {copy.getsockname()[1]}")
        except OSError:  # the descriptor of the listing itself, or one that another thread has just closed
            continue
    return found


def shared_memory() -> set[str]:
    """Segments that carry our name."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("trainmaster")}


def runtime_files(runtime: Path) -> list[str]:
    """What is in a runtime directory although no job runs: all but the ledger and the directories that hold it."""
    return sorted(
        str(path.relative_to(runtime))
        for path in runtime.rglob("*")
        if (not path.is_dir() and not path.name.startswith("ledger.sqlite")) or path.is_socket()
    )


def wait_gone(mark: str, places: Iterable[Path], patience: float = PATIENCE) -> dict[int, str]:
    """What still lives after `patience` seconds; it is killed."""
    places = list(places)
    end = time.monotonic() + patience
    while (left := marked(mark, places)) and time.monotonic() < end:
        time.sleep(0.02)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has just ended
            continue
    return left
