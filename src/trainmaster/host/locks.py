"""Lock files of a host: a lock is free again once its holder is dead, however it died (flock(2)).

Descriptors are closed on exec; a process forked out of the holder must close them, or it keeps the lock too.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock(path: Path) -> int | None:
    """Make the lock file and return a descriptor that holds its lock; None where another process has it."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
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
