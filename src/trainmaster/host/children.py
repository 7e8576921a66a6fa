"""Children that we start for ourselves (a JVM, a compiler, a reader of files), where all other descendants are swept.

An agent ends all that is below it once its program is over, and samples all of it meanwhile. What it started for itself is known from
its first instant: nobody lists descendants while such a child is being started, in whichever thread that is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subprocess import CompletedProcess, Popen

PIDS: set[int] = set()  # what is below them is theirs
STARTING = threading.Lock()  # held while one is started, and while descendants are listed


def start(command: Sequence[str], **given: Any) -> Popen[bytes]:
    """Start one, `given` as for Popen. Who started it waits for it, and then calls `forget`."""
    import subprocess

    with STARTING:
        process = subprocess.Popen(command, **given)
        PIDS.add(process.pid)
    return process


def forget(pid: int) -> None:
    """It has ended and was waited for: its number may be anyone's."""
    PIDS.discard(pid)


@contextlib.contextmanager
def started(command: Sequence[str], **given: Any) -> Iterator[Popen[bytes]]:
    """One that is over, by force if need be, when this is left."""
    process = start(command, **given)
    try:
        with process:
            try:
                yield process
            finally:
                process.kill()
    finally:
        forget(process.pid)


def run(command: Sequence[str], *, timeout: float | None = None, **given: Any) -> CompletedProcess[str]:
    """Run one to its end; what it printed. Raises TimeoutExpired after `timeout` seconds."""
    import subprocess

    pipe = subprocess.PIPE
    with started(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, **given) as process:
        printed = [text.decode(errors="replace") for text in process.communicate(timeout=timeout)]
        return subprocess.CompletedProcess(command, process.returncode, *printed)
