"""Linux calls that the standard library lacks: processes as /proc shows them, signals to exactly one process or to nobody, and prctl(2).

A process is known by its id and its start time, which together are never used twice in one boot; an id alone may be another's by the time
it is signalled. A zombie counts as dead.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import resource
import signal
from typing import Any

import attrs

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36  # linux/prctl.h
_ARENA_MAX = -8  # malloc.h
_KEEP_SIZE = 1  # linux/falloc.h


@attrs.frozen(slots=True)
class Process:
    """A process is one line of /proc/<pid>/stat as it was when it was read. Times in clock ticks, `start` since boot."""

    pid: int
    start: int
    parent: int
    group: int
    session: int
    state: str
    ticks: int
    name: str
    status: int = 0  # of a zombie, as waitpid(2) gives it; 0 where it is hidden from us

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as its hard limit does. Programs get their user's own limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptor_limit() -> float:
    """Return how many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def look(pid: int) -> Process | None:
    """Return the process of this id, or None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(4096)
    except (FileNotFoundError, ProcessLookupError):
        return None
    close = text.rindex(b")")  # the name may hold any character
    name, rest = text[text.index(b"(") + 1 : close], text[close + 2 :].split()
    return Process(
        pid, int(rest[19]), int(rest[1]), int(rest[2]), int(rest[3]), rest[0].decode(), int(rest[11]) + int(rest[12]),
        name.decode("utf-8", "replace"), int(rest[49]),
    )  # fmt: skip


def everyone() -> list[Process]:
    """Return every process of this machine (or of this PID namespace)."""
    return [process for name in os.listdir("/proc") if name.isdigit() and (process := look(int(name))) is not None]


def lives(pid: int, start: int) -> bool:
    """Tell whether this very process is still there."""
    process = look(pid)
    return process is not None and process.start == start and process.alive


def pidfd(pid: int) -> int:
    """Return a descriptor of the process. Raises ProcessLookupError where it is gone; Linux 6.18 says ENOENT if it ends at that moment."""
    try:
        return os.pidfd_open(pid)
    except FileNotFoundError as error:
        raise ProcessLookupError(error.errno, error.strerror) from error


def send(pid: int, start: int, number: int) -> bool:
    """Signal exactly this process. Return False where it is gone, or its id is another's."""
    try:
        descriptor = pidfd(pid)
    except ProcessLookupError:
        return False
    try:
        if not lives(pid, start):  # read after the open: the descriptor can only be of the process that lived now
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def adopt_orphans(adopt: bool = True) -> None:
    """Become the parent of descendants whose own parents end, so that none can slip away. With False, stop being it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread that forked it ends. The caller checks for a parent already gone.

    Called in a forked child; its parent has called another of these before, so that nothing is imported here.
    """
    _prctl(_PR_SET_PDEATHSIG, int(number))


def set_name(name: str) -> None:
    """Set the name that ps and top show, at most 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def set_title(title: str) -> None:
    """Show `title` as this process's command in ps and top, as far as there is room: the memory of its arguments is overwritten (proc(5)).

    Programs that this process becomes, or starts, have titles of their own. Where the kernel does not say where the arguments are, nothing
    is done.
    """
    import ctypes

    with open("/proc/self/stat", "rb", buffering=0) as file:
        text = file.read(4096)
    fields = text[text.rindex(b")") + 2 :].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, fields 48 and 49 of proc(5)
    if 0 < begin < end:
        room = end - begin
        ctypes.memmove(begin, title.encode()[: room - 1].ljust(room, b"\0"), room)


def one_heap() -> None:
    """Have the C library keep one heap for all threads, before there are any: with several a master of many agents is larger by 7 %."""
    with contextlib.suppress(AttributeError):  # of glibc alone: mallopt(3)
        _libc().mallopt(_ARENA_MAX, 1)


def allocate(file: int, begin: int, size: int) -> None:
    """Give `size` bytes of the disk, from `begin`, to a file whose size stays as it is (fallocate(2)), where file systems can.

    Raises OSError where there is no room.
    """
    import ctypes

    if _libc().fallocate(file, _KEEP_SIZE, ctypes.c_int64(begin), ctypes.c_int64(size)) != 0:
        number = ctypes.get_errno()
        if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise OSError(number, os.strerror(number))


def _prctl(option: int, value: int | bytes) -> None:
    if _libc().prctl(option, value, 0, 0, 0) != 0:
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


@functools.cache
def _libc() -> Any:
    import ctypes  # commands look at processes, and do without it

    return ctypes.CDLL(None, use_errno=True)
