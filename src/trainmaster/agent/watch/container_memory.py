"""Read the kernel's memory counters of a container whose control group is this process's.

Where the kernel kills a program for its memory, the container itself lives on, so nobody else reports it.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_UNIFIED = ("memory.events", "memory.peak", "memory.max")  # cgroups(7), version 2
_LEGACY = ("memory/memory.oom_control", "memory/memory.max_usage_in_bytes", "memory/memory.limit_in_bytes")


class ContainerMemory:
    """The counters of the container's control group, below `root`."""

    def __init__(self, root: Path = ROOT) -> None:
        self._events, self._peak, self._limit = (
            root / name for name in (_UNIFIED if (root / _UNIFIED[0]).exists() else _LEGACY)
        )
        self._killed = self._kills()

    def exceeded(self) -> dict[str, int] | None:
        """Return {"used": the peak, "limit": the limit} in bytes where the kernel has killed a process since the last call; else None."""
        earlier, self._killed = self._killed, self._kills()
        if self._killed <= earlier:
            return None
        limit = _number(self._limit)
        return {"used": _number(self._peak) or limit, "limit": limit}

    def _kills(self) -> int:
        try:
            rows = dict(line.split() for line in self._events.read_text().splitlines())
        except (OSError, ValueError):
            return 0
        return int(rows.get("oom_kill", 0))


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # of an older kernel, or "max"
        return 0
