"""Locks of a host, of files and directories: a lock is free again once its holder is dead, however it died (flock(2)).

Descriptors are closed on exec; a process forked out of the holder must close them, or it keeps the lock too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

YOUNG = 60.0  # s; a younger temporary directory may not be locked yet


def lock(path: Path) -> int | None:
    """Make the lock file and return a descriptor that holds its lock; None where another process has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_same_file(path, descriptor):
            return descriptor
        os.close(descriptor)  # it was removed between our opening and our locking it


def unlock(path: Path, descriptor: int) -> None:
    """Release the lock. The file is removed while the lock is held: nobody locks a file that has no name any more."""
    path.unlink(missing_ok=True)
    os.close(descriptor)


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def scratch(prefix: str) -> Path:
    """Make a temporary directory, locked while this process lives. Remove this user's others with the prefix that nobody locks."""
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # it is locked, or was removed meanwhile
            facts = left.lstat()
            if facts.st_uid == os.geteuid() and time.time() - facts.st_mtime > YOUNG:
                _remove_unlocked(left)
    folder = tempfile.mkdtemp(prefix=prefix)
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)  # until the process ends
    return Path(folder)


def _remove_unlocked(folder: Path) -> None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
