"""The lock of a server's log: one process has it, the next one waits for that process's end, and says so.

Two kinds of process may have it. The former process of the same task ends soon: it was killed, or its agent stops it. A server of another
job, whose directory was given to this one too, may serve for days; so the wait for that has an end.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time

from ... import runtime
from ...runtime.folders import make_own_folder
from ..errors import InUse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 60.0  # s that another job's server may still take to end
_TOLD_AFTER = 1.0  # s; a process that was killed takes less, as a rule
_AGAIN = 0.02  # s between two tries


def take_lock(folder: str, warn: Callable[[str], None], *, is_shared: bool = False, patience: float = PATIENCE) -> int:
    """Wait until nobody has the lock of a log, take it, and return its descriptor. Raises InUse.

    `is_shared`: others that only read the log may have it too. `warn` is called once, where the wait is longer than a moment.
    """
    make_own_folder(folder, levels=2)  # DIRECTORY/journal/I-of-N
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not _is_taken(lock, is_shared):
            with runtime.phase(f"waiting for {'the former servers' if is_shared else 'its former process'} to end"):
                _wait(lock, folder, warn, is_shared, patience)
    except BaseException:
        os.close(lock)
        raise
    if not is_shared:
        task = runtime.task()
        owner = {"job": task.job, "task": task.key, "process": os.getpid(), "host": socket.gethostname()}
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(owner).encode(), 0)
    return lock


def is_left(folder: str) -> bool:
    """Tell whether a log is here, and its process has ended."""
    with contextlib.suppress(OSError):
        lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return _is_taken(lock, is_shared=True)
        finally:
            os.close(lock)
    return False


def _is_taken(lock: int, is_shared: bool) -> bool:
    """Take a lock where it is free, and tell whether it was."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        return True
    return False


def _wait(lock: int, folder: str, warn: Callable[[str], None], is_shared: bool, patience: float) -> None:
    began, is_told = time.monotonic(), False
    while True:
        if _is_taken(lock, is_shared):
            return
        seconds = time.monotonic() - began
        owner, is_own = _owner(lock)
        if not is_own and seconds >= patience:
            raise InUse(
                f"{folder} is in use by {owner}, which has not ended within {patience:g} s: end that job, or give each job"
                " that runs at the same time a --checkpoint_dir of its own"
            )
        if not is_told and seconds >= min(_TOLD_AFTER, patience):
            is_told = True
            until = "its end" if is_own else f"its end, for {patience:g} s at most"
            warn(f"{folder} is in use by {owner}: waiting for {until}")
        time.sleep(_AGAIN)


def _owner(lock: int) -> tuple[str, bool]:
    """Describe the process that has the lock, and tell whether it is of this job."""
    try:
        owner = json.loads(os.pread(lock, 4096, 0))
        where = f"process {owner['process']} on {owner['host']}"
        job = runtime.task().job
        if owner["job"] and owner["job"] == job:
            return f"this job's former {owner['task']} ({where})", True
        return f"{owner['task']} of job {owner['job']} ({where})" if owner[
            "job"
        ] else f"another server ({where})", False
    except (ValueError, KeyError, TypeError, RecursionError):  # it has just begun, and is about to write this
        return "another server", False
