"""The surroundings of a side process: a JVM that reads or writes the program's records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import attrs

LOOK = 0.2  # s between two checks whether to stop
LINGER = 1.0  # s for bytes still in the pipe when the program has ended
READ = 256 * 1024  # bytes read from a pipe at once


@attrs.frozen(slots=True, eq=False)
class SideProcess:
    """The environment, the directory and a private folder of a side process.

    `halt` is set when the attempt is stopped. `say`, called in the loop, puts a line into the task's log.
    """

    environ: Mapping[str, str]
    cwd: str
    private: str
    halt: threading.Event
    say: Callable[[str], None]
