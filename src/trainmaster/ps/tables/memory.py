"""The memory that is left to this process, of what its job gives it: new rows must fit into it.

A process that uses more is ended by its agent or by the system, and begins again with the same rows. So rows are refused before that.
"""

from __future__ import annotations

import math
import os

VARIABLE = "TRAINMASTER_MEMORY_LIMIT"  # bytes
_RESERVE = 0.1  # of the limit: for messages, indices that grow, and what a checkpoint puts aside


def memory_left() -> float:
    """Return the bytes that rows may still take; infinite where nothing limits them."""
    limit = os.environ.get(VARIABLE)
    return int(limit) * (1 - _RESERVE) - _resident() if limit else math.inf


def _resident() -> int:
    """Return the bytes of this process that are in memory."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
