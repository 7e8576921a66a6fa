"""Find out, before much work is done for it, whether a folder can be written."""

from __future__ import annotations

import os


def reason_unwritable(folder: str, is_tried: bool = True) -> str:
    """Return why nothing can be made in a folder, which need not exist yet; "" where it can.

    `is_tried`: a folder is made there and removed, for permissions are not the whole truth on every file system.
    """
    place = os.path.abspath(folder)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        return f"{place} is not a directory"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"no permission to write in {place}"
    trial = os.path.join(place, f".trainmaster-{os.urandom(6).hex()}")
    try:
        if is_tried:
            os.mkdir(trial)
            os.rmdir(trial)
    except OSError as error:
        return f"nothing can be made in {place}: {error.strerror}"
    return ""
