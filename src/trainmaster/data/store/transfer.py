"""Moving many files: in parallel threads, tried again, with progress, and stopped at once when asked.

A *flow* is one such undertaking. Its threads call `step(bytes)` as they go; that counts, tells whoever wants to know,
and raises `Stopped` once the caller's event is set or another file has failed for good, so that no thread goes on
behind a failure. What fails for a reason that may pass is tried again with back-off; what cannot pass (no such file,
no permission, a full disk) fails at once.

A full disk is a failure of its own, `DiskFull`, with the path and the figures; room is looked at before the first byte
is written.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from trainmaster.core.errors import BadInput, StorageFailed, TrainmasterError
from trainmaster.core.spec.quantities import format_bytes
from trainmaster.log.storage import storage_failed, write_all

T = TypeVar("T")
Tell = Callable[[int, int], None]

THREADS = 8
TRIES = 5
CHUNK = 8 * 1024 * 1024
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0  # s between two tries
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LASTING = {*_FULL, errno.EFBIG, errno.EROFS, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP}
_LASTING |= {errno.ENOTDIR, errno.EISDIR}
_LASTING_NAMES = ("PermissionDenied", "Unauthenticated", "NotSupported", "InvalidPath", "UnknownConfigurationKey")
_NO_RANGE_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}


class Stopped(Exception):
    """The transfer was stopped by whoever asked for it, or because another file of it has failed."""


class DiskFull(StorageFailed):
    """A disk of this machine has no room. `needed` and `free` in bytes; `needed` is what was still to be written, 0
    where unknown."""

    def __init__(self, path: str, needed: int, free: int) -> None:
        wanted = f"{format_bytes(needed)} needed, " if needed else ""
        super().__init__(
            f"the disk is full: {wanted}{format_bytes(free)} free",
            place=path,
            mend="free space there, or use a directory on a larger disk",
            anchor="disk-full",
        )
        self.path, self.needed, self.free = path, needed, free
        self.errno = errno.ENOSPC


class Flow:
    """What the threads of one transfer share. `tell(done, total)` is called in bytes, by one thread at a time."""

    def __init__(self, total: int = 0, tell: Tell | None = None, stop: threading.Event | None = None) -> None:
        self.total, self.done = total, 0
        self._tell, self._stop = tell, stop
        self._failed = threading.Event()
        self._lock = threading.Lock()

    def step(self, count: int) -> None:
        """So many bytes were moved (fewer than none: a file begins again). Raises Stopped."""
        self.check()
        if not count:
            return
        with self._lock:
            self.done += count
            if self._tell is not None:
                self._tell(min(self.done, self.total), self.total)  # what is tried again counts twice

    def check(self) -> None:
        if self._failed.is_set() or (self._stop is not None and self._stop.is_set()):
            raise Stopped

    def pause(self, seconds: float) -> None:
        """Wait before a try. Raises Stopped as soon as that is wished."""
        while seconds > 0:
            self.check()
            self._failed.wait(min(seconds, 0.2))
            seconds -= 0.2
        self.check()

    def run(self, items: Iterable[T], act: Callable[[T], None], threads: int = THREADS) -> None:
        """`act` on each item, several at a time; the first failure stops the rest and is raised."""
        items = list(items)
        if len(items) < 2 or threads < 2:
            for item in items:
                self.check()
                act(item)
            return
        with ThreadPoolExecutor(min(threads, len(items)), thread_name_prefix="transfer") as pool:
            running = [pool.submit(self._guarded, act, item) for item in items]
            try:
                wait(running, return_when=FIRST_EXCEPTION)
            except BaseException:
                self._failed.set()
                raise
            finally:
                if self._failed.is_set():
                    pool.shutdown(wait=True, cancel_futures=True)
        ended = [future.exception() for future in running if not future.cancelled()]
        failures = sorted((error for error in ended if error is not None), key=lambda error: isinstance(error, Stopped))
        if failures:
            raise failures[0]

    def _guarded(self, act: Callable[[T], None], item: T) -> None:
        try:
            self.check()
            act(item)
        except BaseException:
            self._failed.set()
            raise


def retried(doing: str, where: str, act: Callable[[], T], flow: Flow | None = None, tries: int = TRIES) -> T:
    """The result of `act`, tried up to `tries` times. What remains is StorageFailed, or FileNotFoundError as it is."""
    flow = flow or Flow()
    for left in reversed(range(tries)):
        try:
            return act()
        except (Stopped, TrainmasterError, FileNotFoundError):
            raise
        except Exception as error:
            if not left or _lasting(error):
                raise storage_failed(doing, where, error) from error
        longest = min(_FIRST_WAIT * 2 ** (tries - left - 1), _LONGEST_WAIT)
        flow.pause(longest * (0.5 + random.random() / 2))
    raise AssertionError("the last try returns or raises")


def _lasting(error: Exception) -> bool:
    return getattr(error, "errno", None) in _LASTING or any(word in type(error).__name__ for word in _LASTING_NAMES)


def make_room(directory: str, needed: int) -> None:
    """Raises DiskFull where `directory` (or its nearest parent that exists) has not room for `needed` bytes."""
    free = free_bytes(directory)
    if needed > free:
        raise DiskFull(directory, needed, free)


def free_bytes(path: str) -> int:
    """Room on the disk of `path`, for whoever is not root."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    figures = os.statvfs(path)
    return figures.f_bavail * figures.f_frsize


@contextmanager
def writing(path: str, needed: int = 0) -> Iterator[None]:
    """Around whatever writes at `path`, with about `needed` bytes to go: a full disk is DiskFull."""
    try:
        yield
    except DiskFull:
        raise
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFull(path, needed, free_bytes(path)) from error


def copy_file(source: str, target: str, step: Callable[[int], None], start: int = 0, durable: bool = False) -> int:
    """Copy the bytes of `source` from `start` on into `target`; returns the size. The kernel copies, and shares blocks where it can."""
    with (
        writing(target),
        open(source, "rb", buffering=0) as file,
        open(target, "r+b" if start else "wb", buffering=0) as into,
    ):
        status = os.fstat(file.fileno())
        into.seek(start)
        file.seek(start)
        done = start
        while moved := _copy_some(file.fileno(), into.fileno()):
            done += moved
            step(moved)
        into.truncate(done)
        if durable:
            os.fdatasync(into.fileno())
        os.fchmod(into.fileno(), status.st_mode & 0o777 | 0o200)
    return done


def _copy_some(source: int, target: int) -> int:
    try:
        moved = os.copy_file_range(source, target, CHUNK)
        if moved:
            return moved
    except OSError as error:
        if error.errno not in _NO_RANGE_COPY:
            raise
    # Some file systems answer copy_file_range with 0 or an error: read and write.
    data = os.read(source, CHUNK)
    write_all(target, data)
    return len(data)


def safe_path(directory: str, relative: str, what: str = "a file") -> str:
    """`relative` under `directory`. Raises BadInput where it would lead outside, whatever is on the disk."""
    if not relative or relative.startswith("/") or "\0" in relative or {"..", "."} & set(relative.split("/")):
        raise BadInput(
            f"{what} is named {relative!r}, which leads out of its directory",
            place=directory,
            mend="rename it",
            anchor="unsafe-path",
        )
    return os.path.join(directory, relative)
