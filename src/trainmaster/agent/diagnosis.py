"""What an error status means: a program's last lines, or the disk that it wrote to, may name a cause that is not the program's own."""

from __future__ import annotations

import os

from trainmaster.agent.failure import AttemptFailed
from trainmaster.agent.program import Outcome

FULL = 64 * 1024  # bytes; a disk with less free is full


def port_in_use(outcome: Outcome, last: str) -> AttemptFailed | None:
    """That it found an address taken."""
    line = next((line for line in last.splitlines() if "address already in use" in line.lower()), "")
    if outcome.reason != "exit" or not (line or "EADDRINUSE" in last):
        return None
    return AttemptFailed("address-in-use", {"detail": line.strip()[-200:], **outcome.figures})


def disk_full(outcome: Outcome, last: str, place: str) -> AttemptFailed | None:
    """That its disk was full; `place` is a directory on it, for what it said of that could perhaps not be kept."""
    if outcome.reason != "exit":
        return None
    detail = "the program met a full disk"
    if "No space left on device" not in last:
        if (free := _free_bytes(place)) >= FULL:
            return None
        detail += f", {free} bytes are free"
    return AttemptFailed("disk-full", {"detail": detail, **outcome.figures})


def _free_bytes(place: str) -> int:
    """What is free on the disk of a directory, for whoever may not use the superuser's reserve."""
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize
