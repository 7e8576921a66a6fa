"""What the program's process tree uses: processor, memory, disk, straight from /proc.

Memory is what a program holds: its own and shared pages, not those of files that it maps, which the kernel takes back when it needs them.
Shared pages count in proportion where asking is cheap: copies that were forked share pages, and a sum of resident sizes would count these
once a copy. The kernel walks every page for it, so it is asked only while it takes less than `DEAR`; above that, only when the resident sum
says that a limit may have been passed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

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
    """Looks at everything below this process."""

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
        spent = self._advance(self._ticks, {(p.pid, p.start): p.ticks for p in self.seen})
        self._used += spent
        self._moved += self._advance(self._bytes, {(p.pid, p.start): _moved(p.pid) for p in alive})
        cores = spent / _TICK / max(1e-3, now - self._at)
        self._at = now
        held = {process.pid: _held(process.pid) for process in alive}
        resident = sum(held.values())
        memory = self._shared_once(held) if self._cost < DEAR or (limit and resident > limit) else resident
        return Sample(cores, memory, self._used / _TICK, self._moved, len(alive))

    def _shared_once(self, held: Mapping[int, int]) -> int:
        """Bytes that all these hold together; of one that cannot be asked what it holds by itself."""
        if len(held) == 1:
            return sum(held.values())
        before = time.thread_time()
        total = sum(_proportional(pid) or size for pid, size in held.items())
        self._cost = time.thread_time() - before
        return min(total, sum(held.values()))

    @staticmethod
    def _advance(known: dict[tuple[int, int], int], now: dict[tuple[int, int], int]) -> int:
        """How much all grew together; a process that was not known brings all that it has."""
        grown = sum(max(0, value - known.get(key, 0)) for key, value in now.items())
        known.clear()
        known.update(now)
        return grown


def _held(pid: int) -> int:
    """Bytes of one process that are its own or shared memory (proc(5): shared anonymous, tmpfs)."""
    return _bytes(f"/proc/{pid}/status", (b"RssAnon:", b"RssShmem:"))


def _proportional(pid: int) -> int:
    """The same, shared pages divided among those who share them; 0 where an older kernel does not tell."""
    return _bytes(f"/proc/{pid}/smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:"))


def _bytes(path: str, names: tuple[bytes, ...]) -> int:
    """The sum of some lines "name: figure kB"."""
    try:
        with open(path, "rb", buffering=0) as file:
            return sum(int(line.split()[1]) for line in file.read().splitlines() if line.startswith(names)) * 1024
    except OSError:
        return 0  # it ended, or is not ours to ask


def _moved(pid: int) -> int:
    """Bytes that went through its reads and writes: files, pipes and most sockets."""
    try:
        with open(f"/proc/{pid}/io", "rb", buffering=0) as file:
            fields = dict(line.split(b": ") for line in file.read().splitlines())
    except OSError:
        return 0
    return int(fields[b"rchar"]) + int(fields[b"wchar"])


def network(own: bool) -> int:
    """Bytes that all interfaces but the loopback carried; 0 where the network is the whole machine's and says nothing of us."""
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


def stacks(seen: Sequence[Process]) -> list[str]:
    """A line for each process: what it does, by the kernel's word; for a hang's record in the log."""
    lines = []
    for process in seen:
        waits, inside = _read(f"/proc/{process.pid}/wchan"), _read(f"/proc/{process.pid}/stack")
        frames = " < ".join(line.split()[-1].split("+")[0] for line in inside.splitlines()[:6])
        cpu = process.ticks / _TICK
        lines.append(
            f"pid {process.pid} {process.name} state {process.state} cpu {cpu:.1f} s waits in {frames or waits or '?'}"
        )
    return lines


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""  # it ended, or the kernel tells it to root alone
