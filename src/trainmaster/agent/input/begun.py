"""Know which shards the processes of a program were in the middle of when they ended.

A process that reads shards shows the number of the one that it is in the middle of in a file without a name (`runtime.mark`). The agent
opens that file when the process greets it, and reads it when the connection has closed. The note about each ended process is a row,
[process, input, shard, elapsed]; `core.decide.poison` says which row accuses a shard. A process whose parent died before it, as the workers
of a loader do with their program, was ended by that, so its shard is not noted.
"""

from __future__ import annotations

import contextlib
import os
import stat

from trainmaster.host.linux import look
from trainmaster.runtime.mark import NOTHING

_SIZE = 8  # bytes of a number


class Mark:
    """The mark of one process: where it shows the shard that it is in the middle of."""

    def __init__(self, process: int, parent: int, descriptor: int) -> None:
        self.process, self._parent, self._descriptor = process, parent, descriptor

    @property
    def number(self) -> int | None:
        """Return the number of the shard, or None where the process was in the middle of none, or its parent died before it."""
        parent = look(self._parent)
        if parent is None or not parent.alive:
            return None
        number = self._shown()
        return number if number >= 0 else None

    @property
    def is_within(self) -> bool:
        """Tell whether the process was in the middle of a shard, or of several."""
        return self._shown() != NOTHING

    def _shown(self) -> int:
        with contextlib.suppress(OSError):
            # Read, not mapped: a program may cut its file short, and to touch a map of that would kill the agent.
            data = os.pread(self._descriptor, _SIZE, 0)
            return int.from_bytes(data, "little", signed=True) if len(data) == _SIZE else NOTHING
        return NOTHING

    def close(self) -> None:
        os.close(self._descriptor)


def open_mark(process: int, descriptor: int) -> Mark | None:
    """Return the mark that a process has at its own `descriptor`, or None where there is none that may be read."""
    known = look(process)
    if known is None or not 0 <= descriptor < 2**31:
        return None
    try:
        opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        return None
    return Mark(process, known.parent, opened)
