"""Start children for ourselves (a JVM, a compiler, a reader of files), where all other descendants are swept.

An agent ends every process below it once its program is over, and samples them all meanwhile. A child that it started for itself is known
from its first instant: nobody lists descendants while such a child is being started, in whichever thread that is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subprocess import CompletedProcess, Popen

PIDS: set[int] = set()  # the processes below them are theirs
STARTING = threading.Lock()  # held while a child is started, and while descendants are listed


def start(command: Sequence[str], **options: Any) -> Popen[bytes]:
    """Start a child with Popen's options. The caller waits for it, and then calls `forget`."""
    import subprocess

    with STARTING:
        process = subprocess.Popen(command, **options)
        PIDS.add(process.pid)
    return process


def forget(pid: int) -> None:
    """Forget a child that has ended and was waited for: its number may be anyone's."""
    PIDS.discard(pid)


@contextlib.contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[Popen[bytes]]:
    """Start a child that is over, by force if need be, when this context is left."""
    process = start(command, **options)
    try:
        with process:
            try:
                yield process
            finally:
                process.kill()
    finally:
        forget(process.pid)


def run(command: Sequence[str], *, timeout: float | None = None, **options: Any) -> CompletedProcess[str]:
    """Run a child to its end and return its output. Raises TimeoutExpired after `timeout` seconds."""
    import subprocess

    pipe = subprocess.PIPE
    with started(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, **options) as process:
        printed = [text.decode(errors="replace") for text in process.communicate(timeout=timeout)]
        return subprocess.CompletedProcess(command, process.returncode, *printed)
