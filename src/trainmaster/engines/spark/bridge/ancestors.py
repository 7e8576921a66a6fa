"""The processes above a Spark task's: its daemon of Python, then the executor's JVM, whose arguments name executor and host.

Spark sends this function to the executors as it is, since nothing of ours is installed there.
"""

from __future__ import annotations

from collections.abc import Iterator


def commands() -> Iterator[list[str]]:
    """Yield the arguments of this process, then those of each one above it."""
    import os

    process = os.getpid()
    while process > 1:
        with open(f"/proc/{process}/cmdline", "rb") as command:
            yield command.read().decode(errors="surrogateescape").split("\0")
        with open(f"/proc/{process}/stat", "rb") as stat:
            process = int(stat.read().rpartition(b")")[2].split()[1])
