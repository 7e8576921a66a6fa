"""Measure the use of the program's process tree (processor, memory, disk) straight from /proc.

Memory means a program's own and shared pages, not those of files that it maps, which the kernel takes back when it needs them. Shared pages
count in proportion where that is cheap: forked copies share pages, and a sum of resident sizes would count these once for each copy. The
kernel walks every page for it, so it is asked only while it takes less than `DEAR`; above that, only when the resident sum says that a
limit may have been passed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import attrs

from trainmaster.host.linux import Process
from trainmaster.host.process_tree import kin

EVERY = 3.0  # s
DEAR = 0.01  # s that the proportional sizes of a whole tree may take each time
_TICK = os.sysconf("SC_CLK_TCK")


@attrs.frozen(slots=True)
class Sample:
    """One look. `cpu` in cores since the last look, `cpu_seconds` and `moved` (bytes read and written) never fall; `memory` in bytes."""

    cpu: float
    memory: int
    cpu_seconds: float
    moved: int
    processes: int


class Sampler:
    """Samples every process below this one."""

    def __init__(self) -> None:
        self._ticks: dict[tuple[int, int], int] = {}
        self._bytes: dict[tuple[int, int], int] = {}
        self._used = 0
        self._moved = 0
        self._at = time.monotonic()
        self._cost = 0.0
        self.seen: list[Process] = []

    def look(self, limit: int | None = None) -> Sample:
        now = time.monotonic()
        self.seen = kin(os.getpid())
        alive = [process for process in self.seen if process.alive]
        ticks = self._advance(self._ticks, {(p.pid, p.start): p.ticks for p in self.seen})
        self._used += ticks
        self._moved += self._advance(self._bytes, {(p.pid, p.start): _moved(p.pid) for p in alive})
        cores = ticks / _TICK / max(1e-3, now - self._at)
        self._at = now
        sizes = {process.pid: _own_memory(process.pid) for process in alive}
        resident = sum(sizes.values())
        memory = self._shared_once(sizes) if self._cost < DEAR or (limit and resident > limit) else resident
        return Sample(cores, memory, self._used / _TICK, self._moved, len(alive))

    def _shared_once(self, sizes: Mapping[int, int]) -> int:
        """Return the bytes that all these processes hold together. One that cannot be asked counts with its own size."""
        if len(sizes) == 1:
            return sum(sizes.values())
        start = time.thread_time()
        total = sum(_proportional(pid) or size for pid, size in sizes.items())
        self._cost = time.thread_time() - start
        return min(total, sum(sizes.values()))

    @staticmethod
    def _advance(known: dict[tuple[int, int], int], now: dict[tuple[int, int], int]) -> int:
        """Return the sum of all growth. A new process counts with all that it has."""
        grown = sum(max(0, value - known.get(key, 0)) for key, value in now.items())
        known.clear()
        known.update(now)
        return grown


def _own_memory(pid: int) -> int:
    """Return the bytes of one process's own and shared memory (proc(5): shared anonymous, tmpfs)."""
    return _bytes(f"/proc/{pid}/status", (b"RssAnon:", b"RssShmem:"))


def _proportional(pid: int) -> int:
    """Return the same, with shared pages divided among those who share them; 0 where an older kernel does not say."""
    return _bytes(f"/proc/{pid}/smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:"))


def _bytes(path: str, names: tuple[bytes, ...]) -> int:
    """Return the sum, in bytes, of some lines "name: figure kB"."""
    try:
        with open(path, "rb", buffering=0) as file:
            return sum(int(line.split()[1]) for line in file.read().splitlines() if line.startswith(names)) * 1024
    except OSError:
        return 0  # it ended, or is not ours to ask


def _moved(pid: int) -> int:
    """Return the bytes of a process's reads and writes: files, pipes and most sockets."""
    try:
        with open(f"/proc/{pid}/io", "rb", buffering=0) as file:
            fields = dict(line.split(b": ") for line in file.read().splitlines())
    except OSError:
        return 0
    return int(fields[b"rchar"]) + int(fields[b"wchar"])


def network(own: bool) -> int:
    """Return the bytes that all interfaces but the loopback carried; 0 where the network is the whole machine's, not ours."""
    if not own:
        return 0
    total = 0
    with open("/proc/net/dev", "rb", buffering=0) as file:
        for line in file.read().splitlines()[2:]:
            name, _, figures = line.partition(b":")
            if name.strip() != b"lo":
                values = figures.split()
                total += int(values[0]) + int(values[8])
    return total
