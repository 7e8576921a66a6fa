"""Slots of shared memory: the newest state of a program, whole at any moment, for its successor and for who writes it to a disk.

A slot is a file without a name (memfd_create(2)). The agent makes three for its container, and tells their paths, `/proc/PID/fd/N`, by
TRAINMASTER_MEMORY: they outlive every program, and end with the agent. They belong to the place to which a program first saves, as the
record of the first of them says; so no place overwrites the states of another, in whichever order a successor uses them. For other places,
and without an agent, a program makes slots of its own.

    record (40 bytes) | header (JSON) at `at` | buffers

The record gets the number 0 before a slot is overwritten, and is written last, in one call: a slot with the number 0 was cut short. The
next state goes into a slot that is neither the newest nor being written to a disk, so there is always one whole set; the third slot is used
only where a state comes while the one before is still on its way to the disk.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
import zlib

from . import gpu_copies
from .state_format import ALIGNMENT, view_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .state_format import Leaf

COUNT = 3
VARIABLE = "TRAINMASTER_MEMORY"
_RECORD = struct.Struct("<8sQQQII")  # magic, number, where the header begins, its length, its CRC-32, that of the place
_MAGIC = b"tm-state"
_START = ALIGNMENT  # where the buffers begin
_SPARE = 1024 * 1024  # bytes of memory that must be free beside a new slot, and a sixteenth of its size
_PARALLEL = 64 * 1024 * 1024  # bytes from which on a copy is worth a second thread
_THREADS = 2


class NoRoom(OSError):
    """There is too little memory for a slot."""


class Slot:
    """One slot. `number` is that of the state in it, 0 for none."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.number = 0
        self.header: dict[str, Any] = {}
        self.size = os.fstat(descriptor).st_size
        self.used = 0  # bytes, of the state that was copied into it last
        self._map: mmap.mmap | None = None
        self._locked: gpu_copies.LockedPages | None = None

    def look(self) -> None:
        """Read the record that an earlier program left."""
        record = os.pread(self.descriptor, _RECORD.size, 0)
        if len(record) < _RECORD.size:
            return
        magic, number, at, length, checksum, _ = _RECORD.unpack(record)
        content = os.pread(self.descriptor, length, at) if magic == _MAGIC else b""
        if number and len(content) == length and zlib.crc32(content) == checksum:
            self.number, self.header = number, json.loads(content)

    def fill(self, number: int, place: int, header: dict[str, Any], leaves: Sequence[Leaf]) -> None:
        """Copy a state into this slot. Raises NoRoom, and leaves the slot without a state then."""
        content = json.dumps({**header, "number": number}).encode()
        at = _START + header["size"]
        self.clear(place)
        self.used = at + len(content)
        self.reserve(self.used)
        self.lock(next((leaf.gpu_tensor.device for leaf in leaves if leaf.gpu_tensor is not None), None))
        _copy(self._address + _START, header["buffers"], leaves)
        os.pwrite(self.descriptor, content, at)
        record = _RECORD.pack(_MAGIC, number, at, len(content), zlib.crc32(content), place)
        os.pwrite(self.descriptor, record, 0)
        self.number, self.header = number, {**header, "number": number}

    def clear(self, place: int) -> None:
        self.number, self.header = 0, {}
        os.pwrite(self.descriptor, _empty_record(place), 0)

    @property
    def gpu(self) -> Any:
        """The device that copies into this slot itself; None where none does."""
        return self._locked.device if self._locked is not None else None

    def lock(self, gpu: Any) -> None:
        """Lock the pages of this slot for copies from a GPU, where there is one."""
        if gpu is not None and self._locked is None:
            self._locked = gpu_copies.LockedPages(self._address, self.size, gpu)

    @property
    def _address(self) -> int:
        assert self._map is not None
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def reserve(self, size: int, warm: bool = False) -> None:
        """Make room for `size` bytes. Raises NoRoom. `warm`: touch every page too, so that the first copy is as fast as the later ones."""
        if self.size < size:
            needed, free = size + size // 16 + _SPARE - self.size, free_memory()
            if free < needed:
                raise NoRoom(f"a copy of the state needs {needed:,} bytes of memory, and {free:,} are free")
        try:
            self._allocate(size, warm)
        except OSError as error:  # a limit that free memory does not show, as RLIMIT_FSIZE or RLIMIT_AS
            raise NoRoom(
                f"a copy of the state needs {size:,} bytes of memory, which cannot be allocated ({error.strerror})"
            ) from error

    def _allocate(self, size: int, warm: bool) -> None:
        if self.size < size:
            if self._locked is not None:
                self._locked.release()
            self._map = self._locked = None
            room = -(-(size + size // 64) // ALIGNMENT) * ALIGNMENT  # a header may become a little longer
            os.posix_fallocate(self.descriptor, 0, room)
            self.size = room
        if self._map is None:
            self._map = mmap.mmap(self.descriptor, self.size)
            if warm:
                ctypes.memset(self._address + _START, 0, self.size - _START)

    def read(self, offset: int, view: memoryview) -> None:
        """Fill `view` from the buffers' byte `offset` on. Raises EOFError."""
        read_all(lambda part, at: os.preadv(self.descriptor, [part], at), _START + offset, view)


class Slots:
    """The slots of one place where states are stored: a directory or URL."""

    def __init__(self, place: str) -> None:
        self.place = zlib.crc32(place.encode())
        self._slots = self._open(claim=False)

    def _open(self, claim: bool) -> list[Slot]:
        """Open the agent's slots where they belong to this place. `claim`: they do from now on if they belong to none."""
        paths = [path for path in os.environ.get(VARIABLE, "").split(":") if path]
        try:
            if not paths or _owner(paths[0], self.place if claim else None) != self.place:
                return []
            slots = [Slot(os.open(path, os.O_RDWR | os.O_CLOEXEC)) for path in paths]
        except OSError:  # the agent is gone, or of another PID namespace
            return []
        for slot in slots:
            slot.look()
        return slots

    @property
    def descriptors(self) -> list[int]:
        return [slot.descriptor for slot in self._slots]

    @property
    def newest(self) -> Slot | None:
        whole = [slot for slot in self._slots if slot.number]
        return max(whole, key=lambda slot: slot.number, default=None)

    def free(self, busy: Slot | None) -> Slot:
        """Return the slot for the next state: the largest of those that hold neither the newest state nor the one at work."""
        if not self._slots:
            self._slots = self._open(claim=True) or [
                Slot(os.memfd_create("trainmaster-checkpoint", os.MFD_CLOEXEC)) for _ in range(COUNT)
            ]
        newest = self.newest
        return max((slot for slot in self._slots if slot not in (newest, busy)), key=lambda slot: slot.size)


def _owner(path: str, claimant: int | None) -> int | None:
    """Return the place to which the agent's slots belong, `path` being the first of them; if to none, give them to the claimant."""
    with open(path, "a+b", buffering=0) as first:
        if claimant is not None and not os.fstat(first.fileno()).st_size:
            first.write(_empty_record(claimant))  # appended: of several claimants at once the first one's record counts
        record = os.pread(first.fileno(), _RECORD.size, 0)
    return int(_RECORD.unpack(record)[-1]) if record else None


def _empty_record(place: int) -> bytes:
    return _RECORD.pack(_MAGIC, 0, 0, 0, 0, place)


def read_all(read: Callable[[memoryview, int], int], offset: int, view: memoryview) -> None:
    """Fill `view` by `read(part, offset)`, which may return less than asked for. Raises EOFError."""
    while view:
        count = read(view[: 1 << 30], offset)
        if not count:
            raise EOFError("the bytes end too early")
        view, offset = view[count:], offset + count


def _copy(address: int, buffers: Sequence[Sequence[int]], leaves: Sequence[Leaf]) -> None:
    """Copy the leaves to their offsets from `address` on; large ones by several threads, for one does not use all of the memory's speed."""
    from concurrent.futures import ThreadPoolExecutor

    def copy(offset: int, source: int, size: int) -> None:
        ctypes.memmove(address + offset, source, size)  # without the GIL

    parallel = sum(leaf.size for leaf in leaves) >= _PARALLEL and len(os.sched_getaffinity(0)) > 1
    pool = ThreadPoolExecutor(_THREADS - 1) if parallel else None
    try:
        for (offset, size), leaf in zip(buffers, leaves, strict=True):
            if leaf.gpu_tensor is not None:
                gpu_copies.copy(leaf.gpu_tensor, view_of(address + offset, size))
                continue
            source, keep = leaf.source()
            half = size // 2 if pool is not None and size >= _PARALLEL // 16 else 0
            other = pool.submit(copy, offset, source, half) if pool is not None and half else None
            copy(offset + half, source + half, size - half)
            if other is not None:
                other.result()
            del keep
    finally:
        if pool is not None:
            pool.shutdown()


# -- free memory --


def free_memory(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> int:
    """Return the bytes that may still be used: of the machine, and of the control groups that this process is in."""
    free = []
    with open(f"{proc}/meminfo", encoding="ascii") as lines:
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    try:
        with open(f"{proc}/self/cgroup", encoding="utf-8") as lines:
            rows = [line.rstrip("\n").split(":", 2) for line in lines]
    except OSError:
        rows = []
    for _, controllers, path in rows:
        if not controllers:
            free += _group_rooms(groups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            free += _group_rooms(f"{groups}/memory", path, *names)
    return max(0, min(free, default=0))


def _group_rooms(root: str, path: str, limit: str, used: str, cached: str) -> list[int]:
    """Return what is free in the group at `path` and in those above it. A container sees its own group as the root."""
    rooms = []
    parts = [part for part in path.split("/") if part and part != ".."]
    for depth in range(len(parts), -1, -1):
        folder = "/".join([root, *parts[:depth]])
        try:
            texts = {}
            for name in (limit, used, "memory.stat"):
                with open(f"{folder}/{name}", encoding="ascii") as file:
                    texts[name] = file.read()
            stat = dict(line.split() for line in texts["memory.stat"].splitlines())
            rooms.append(int(texts[limit]) - int(texts[used]) + int(stat.get(cached, 0)))
        except (OSError, ValueError):  # no such group, or no limit: "max"
            continue
    return rooms
