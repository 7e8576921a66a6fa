"""Diagnose the end of a program: its last lines, the disk that it wrote to, or a user's act may name a cause that is not its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

import attrs

from trainmaster.agent.attempt.failure import AttemptFailed
from trainmaster.agent.attempt.program import LARGER_SHM, Outcome, killed_by

FULL = 64 * 1024  # bytes; a disk with less free is full

# In the words of a program whose disk, or shared memory, is full; PyTorch's names begin with torch_.
_FULL = ("No space left on device", "insufficient shared memory", "out of shared memory")
_SHARED_MEMORY = ("/dev/shm", "</torch_", *_FULL[1:])
_NEAR = 12  # lines before an error in which its traceback names a path
_SIGNALLED = 128  # added to a signal's number by shells


def signalled(outcome: Outcome, last_words: Callable[[], bytes], sent: Mapping[int, str]) -> Outcome:
    """Return the end by a signal where it is one, with the user who `sent` it; any other as it is.

    A shell turns the death of its program into an exit status, which is any other program's too; but it also prints how its program died.
    """
    number = outcome.signal or ((outcome.status or 0) - _SIGNALLED if outcome.reason == "exit" else 0)
    if number not in signal.valid_signals():
        return outcome
    if (by := sent.get(number)) is not None:
        death = killed_by(number)
        return attrs.evolve(death, reason="killed-by-user", figures={"sent": death.figures["name"], "by": by})
    if outcome.signal is None and (signal.strsignal(number) or "?").encode() in last_words():
        return killed_by(number)
    return outcome


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
    lines = last.splitlines()
    full = [number for number, text in enumerate(lines) if any(sign in text for sign in _FULL)]
    line = lines[full[-1]] if full else ""
    near = "\n".join(lines[max(0, full[-1] - _NEAR) : full[-1] + 1]) if full else ""
    if any(sign in near for sign in _SHARED_MEMORY):
        figures = {"detail": f"the program met a full /dev/shm: {line.strip()[-200:]}", "mend": LARGER_SHM}
    elif line:
        figures = {"detail": f"the program met a full disk: {line.strip()[-200:]}"}
    elif free is not None and free < FULL:
        figures = {"detail": f"the program met a full disk, {free} bytes are free"}
    else:
        return None
    return AttemptFailed("disk-full", {**figures, **outcome.figures})


def free_bytes(place: str) -> int:
    """Return the free bytes on a directory's disk, without the superuser's reserve. It may hang with the disk."""
    figures = os.statvfs(place)
    return figures.f_bavail * figures.f_frsize
