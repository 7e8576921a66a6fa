"""Move many files: in parallel threads, with retries and progress, stopped at once when the caller asks.

A *flow* is one such transfer. Its threads call `step(bytes)` as they go; `step` counts, reports progress to the caller,
and raises `Stopped` once the caller's event is set or another file has failed for good, so that no thread goes on
after a failure. A failure that may pass is retried with backoff; one that cannot pass (no such file, no permission,
a full disk) is raised at once.

A full disk is a failure of its own, `DiskFull`, with the path and the figures; room is checked before the first byte
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
    """The transfer was stopped by its caller, or because another file of it has failed."""


class DiskFull(StorageFailed):
    """A disk of this machine has no room. `needed` and `free` in bytes; `needed` is the amount still to be written, 0
    where unknown.
    """

    def __init__(self, path: str, needed: int, free: int) -> None:
        need = f"{format_bytes(needed)} needed, " if needed else ""
        super().__init__(
            f"the disk is full: {need}{format_bytes(free)} free",
            place=path,
            mend="free space there, or use a directory on a larger disk",
            anchor="disk-full",
        )
        self.path, self.needed, self.free = path, needed, free
        self.errno = errno.ENOSPC


class Flow:
    """The state that the threads of one transfer share. `tell(done, total)` is called in bytes, by one thread at a time."""

    def __init__(self, total: int = 0, tell: Tell | None = None, stop: threading.Event | None = None) -> None:
        self.total, self.done = total, 0
        self._tell, self._stop = tell, stop
        self._failed = threading.Event()
        self._lock = threading.Lock()

    def step(self, count: int) -> None:
        """Count `count` bytes as moved (below 0: a file begins again). Raises Stopped."""
        self.check()
        if not count:
            return
        with self._lock:
            self.done += count
            if self._tell is not None:
                self._tell(min(self.done, self.total), self.total)  # retried bytes count twice

    def check(self) -> None:
        if self._failed.is_set() or (self._stop is not None and self._stop.is_set()):
            raise Stopped

    def pause(self, seconds: float) -> None:
        """Wait before a retry. Raises Stopped as soon as the flow is stopped."""
        while seconds > 0:
            self.check()
            self._failed.wait(min(seconds, 0.2))
            seconds -= 0.2
        self.check()

    def run(self, items: Iterable[T], act: Callable[[T], None], threads: int = THREADS) -> None:
        """Call `act` on each item, several at a time; the first failure stops the rest and is raised."""
        items = list(items)
        if len(items) < 2 or threads < 2:
            for item in items:
                self.check()
                act(item)
            return
        with ThreadPoolExecutor(min(threads, len(items)), thread_name_prefix="transfer") as pool:
            running = [pool.submit(self._run_guarded, act, item) for item in items]
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

    def _run_guarded(self, act: Callable[[T], None], item: T) -> None:
        try:
            self.check()
            act(item)
        except BaseException:
            self._failed.set()
            raise


def retried(doing: str, where: str, act: Callable[[], T], flow: Flow | None = None, tries: int = TRIES) -> T:
    """Return the result of `act`, tried up to `tries` times. Raises FileNotFoundError as it is, other lasting errors as StorageFailed."""
    flow = flow or Flow()
    for tries_left in reversed(range(tries)):
        try:
            return act()
        except (Stopped, TrainmasterError, FileNotFoundError):
            raise
        except Exception as error:
            if not tries_left or _is_lasting(error):
                raise storage_failed(doing, where, error) from error
        longest = min(_FIRST_WAIT * 2 ** (tries - tries_left - 1), _LONGEST_WAIT)
        flow.pause(longest * (0.5 + random.random() / 2))
    raise AssertionError("the last try returns or raises")


def _is_lasting(error: Exception) -> bool:
    return getattr(error, "errno", None) in _LASTING or any(word in type(error).__name__ for word in _LASTING_NAMES)


def make_room(directory: str, needed: int) -> None:
    """Raise DiskFull where `directory` (or its nearest parent that exists) has no room for `needed` bytes."""
    free = free_bytes(directory)
    if needed > free:
        raise DiskFull(directory, needed, free)


def free_bytes(path: str) -> int:
    """Return the free bytes on the disk of `path`, for users other than root."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    figures = os.statvfs(path)
    return figures.f_bavail * figures.f_frsize


@contextmanager
def writing(path: str, needed: int = 0) -> Iterator[None]:
    """Raise DiskFull where the code inside, which writes about `needed` bytes at `path`, meets a full disk."""
    try:
        yield
    except DiskFull:
        raise
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFull(path, needed, free_bytes(path)) from error


def copy_file(source: str, target: str, step: Callable[[int], None], start: int = 0, durable: bool = False) -> int:
    """Copy the bytes of `source` from `start` on into `target`; return the size. The kernel copies, and shares blocks where it can."""
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


def safe_path(directory: str, relative: str, subject: str = "a file") -> str:
    """Return `relative` under `directory`. Raises BadInput where it would lead outside, whatever is on the disk."""
    if not relative or relative.startswith("/") or "\0" in relative or {"..", "."} & set(relative.split("/")):
        raise BadInput(
            f"{subject} is named {relative!r}, which leads out of its directory",
            place=directory,
            mend="rename it",
            anchor="unsafe-path",
        )
    return os.path.join(directory, relative)
