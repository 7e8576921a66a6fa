"""The memory that is left to this process, of what its job gives it: rows must fit into it, new ones and those of a checkpoint.

A process that uses more is ended by its agent or by the system, and begins again with the same rows. So rows are refused before that.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os

from ..errors import NoRoom

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

VARIABLE = "TRAINMASTER_MEMORY_LIMIT"  # bytes
_RESERVE = 0.1  # of the limit: for messages, indices that grow, and what a checkpoint puts aside


def memory_left(reserve: float = _RESERVE) -> float:
    """Return the bytes that rows may still take; infinite without a limit. `reserve`: the share of the limit kept for other data."""
    limit = os.environ.get(VARIABLE)
    return int(limit) * (1 - reserve) - _resident() if limit else math.inf


def release_memory() -> None:
    """Give back to the system what malloc(3) keeps of memory that was freed: it would count as used."""
    with contextlib.suppress(AttributeError):  # of glibc alone
        ctypes.CDLL(None).malloc_trim(0)


def check_room(index: int, servers: int, version: int, shares: Sequence[int]) -> None:
    """Raise NoRoom where a server's part of a checkpoint does not fit. `shares`: the bytes of those that it was written in.

    A row takes about as many bytes in memory as in its file. A server that comes back among as many servers had room for its share, if need
    be in the reserve too.
    """
    is_own = len(shares) == servers
    needed = shares[index] if is_own else sum(shares) / servers
    left = memory_left(0.0) if is_own else memory_left()
    if needed > left:
        raise NoRoom(
            f"server {index} of {servers} has no memory for its part of the checkpoint of version {version}: that takes"
            f" {needed / 2**20:,.0f} MiB, and {max(0.0, left) / 2**20:,.0f} MiB are left for rows:"
            " give it more memory, or begin with more servers"
        )


def _resident() -> int:
    """Return the bytes of this process that are in memory."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
