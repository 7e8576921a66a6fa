"""Diagnose an error status: a program's last lines, or the disk that it wrote to, may name a cause that is not the program's own."""

from __future__ import annotations

import os

from trainmaster.agent.attempt.failure import AttemptFailed
from trainmaster.agent.attempt.program import Outcome

FULL = 64 * 1024  # bytes; a disk with less free is full


def port_in_use(outcome: Outcome, last: str) -> AttemptFailed | None:
    """Return the failure of a program that found an address in use, else None."""
    line = next((line for line in last.splitlines() if "address already in use" in line.lower()), "")
    if not (line or "EADDRINUSE" in last):
        return None
    return AttemptFailed("address-in-use", {"detail": line.strip()[-200:], **outcome.figures})


def disk_full(outcome: Outcome, last: str, free: int | None) -> AttemptFailed | None:
    """Return the failure of a program whose disk was full, else None.

    `free`: bytes on that disk, where known. They are asked because the program's own message may have been lost on the full disk.
    """
    detail = "the program met a full disk"
    if "No space left on device" not in last:
        if free is None or free >= FULL:
            return None
        detail += f", {free} bytes are free"
    return AttemptFailed("disk-full", {"detail": detail, **outcome.figures})


def free_bytes(place: str) -> int:
    """Return the free bytes on a directory's disk, without the superuser's reserve. It may hang with the disk."""
    figures = os.statvfs(place)
    return figures.f_bavail * figures.f_frsize
