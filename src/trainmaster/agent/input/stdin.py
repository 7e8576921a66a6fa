"""A task's standard input: the named pipe by which a command passes its own on, and whether a program has read of it.

Nothing keeps the input that a program has read, so no other attempt can have it. The command records in the job's storage how
many bytes it has put into the pipe. If fewer are in the pipe, some were read, or were lost with an agent or a boot. The pipe
stays open as long as the agent lives: an attempt finds all that was not read.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from array import array
from fcntl import ioctl
from termios import FIONREAD

_COUNT = re.compile(rb"[0-9]+\n")
_READ = ".read"  # beside the record: a program has read of it


class Stdin:
    """`pipe` is the path of the named pipe, `record` that of the count of bytes. Both exist only where a command passes its stdin on."""

    def __init__(self, pipe: str, record: str) -> None:
        self._pipe, self._record, self._descriptor = pipe, record, -1

    def open(self) -> int | None:
        """Return the descriptor that programs read; None where no command passes its stdin on."""
        if self._descriptor < 0:
            with contextlib.suppress(FileNotFoundError):
                self._descriptor = os.open(self._pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                # The command may now close its end.
                os.close(os.open(f"{self._pipe}.opened", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        if self._descriptor < 0:
            return None
        os.set_blocking(self._descriptor, True)  # as no earlier program left it
        return self._descriptor

    def was_read(self) -> bool:
        """Tell whether not all of what the command passed on can be read any more."""
        try:
            with open(self._record, "rb") as file:
                count = file.read()
        except FileNotFoundError:
            return False
        passed_on = (
            int(count) if _COUNT.fullmatch(count) else math.inf
        )  # damaged: then nobody knows whether all is left
        left = array("i", [0])
        if self.open() is not None:
            ioctl(self._descriptor, FIONREAD, left)
        if passed_on <= left[0]:
            return False
        os.close(os.open(self._record + _READ, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        return True

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def record_path(storage: str, task: str) -> str:
    """Return the path of the count of bytes that a command has passed on to `task`, in the job's directory on this machine."""
    return os.path.join(storage, f"{task.replace(':', '-')}.stdin")


def has_been_read(storage: str) -> bool:
    """Tell whether a program of the job has read of its command's stdin."""
    return any(name.endswith(f".stdin{_READ}") for name in os.listdir(storage))
