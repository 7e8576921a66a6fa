"""Folders that others may write too: find out, before much work is done for it, whether one can be written, and begin files there."""

from __future__ import annotations

import contextlib
import errno
import os

_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)


def reason_unwritable(folder: str, is_tried: bool = True) -> str:
    """Return why nothing can be made in a folder, which need not exist yet; "" where it can. `is_tried`: as of `require_writable`."""
    try:
        require_writable(folder, is_tried)
    except OSError as error:
        return str(error.strerror)
    return ""


def require_writable(folder: str, is_tried: bool = True) -> None:
    """Raise OSError, whose `strerror` names the place, where nothing can be made in a folder, which need not exist yet.

    `is_tried`: a folder is made there and removed, for permissions are not the whole truth on every file system.
    """
    place = os.path.abspath(folder)
    trial = f".trainmaster-{os.urandom(6).hex()}"
    try:
        while not _is_there(place):
            place = os.path.dirname(place)
        if not os.path.isdir(place):
            raise NotADirectoryError(errno.ENOTDIR, "")
        if is_tried:
            os.mkdir(os.path.join(place, trial))
            os.rmdir(os.path.join(place, trial))
        elif not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "")
    except OSError as error:
        if error.errno == errno.ENOTDIR:
            reason = f"{place} is not a directory"
        elif error.errno in _NO_PERMISSION:
            reason = f"no permission to write in {place}"
        else:
            reason = f"nothing can be made in {place}: {error.strerror}"
        raise OSError(error.errno, reason) from error


def make_own_folder(path: str, levels: int = 1) -> None:
    """Make a folder, with those above it. Raises OSError where one of the last `levels` of its path is a link, which another user
    may have put there.
    """
    link = path
    for _ in range(levels):
        if os.path.islink(link):
            raise OSError(errno.ELOOP, "it is a link, and is not followed: remove it", link)
        link = os.path.dirname(link)
    os.makedirs(path, exist_ok=True)


def create_draft(path: str, mode: int = 0o666) -> int:
    """Make an empty file and return its descriptor, to write. Whatever has the name gives way, and is never written to: what a program that
    was killed has left, or a link that another user has put there.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def _is_there(place: str) -> bool:
    try:
        os.lstat(place)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    return True
