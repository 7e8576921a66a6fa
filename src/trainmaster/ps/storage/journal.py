"""The log of one server: each draft and each entry of the order, written before its sender gets the acknowledgement.

Records have the form of messages, with a CRC-32. They are in segments, `segment-SEQUENCE-COUNT.log`: a new one begins at each checkpoint,
with SEQUENCE its entry, and whenever a server begins. So what came after a checkpoint is in the segments from its SEQUENCE on. A kill may
tear the end of any segment: a record that is not whole there was never acknowledged. Anything else that does not read is damage.

Writes reach the system (write(2)), and so survive the end of the process; they survive that of the machine where the file system does.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib

import numpy

from ..wire.messages import HEADER_LIMIT, PAYLOAD_LIMIT, PREFIX, Malformed, Prefix, buffers, parse_arrays, parse_header
from .locks import take_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from numpy.typing import NDArray

    from ..wire.messages import Arrays, Header

_SEGMENT = re.compile(r"segment-([0-9]{1,16})-([0-9]{1,9})\.log")
_VECTOR = 256  # buffers that one call writes


class Damaged(ValueError):
    """A file is not what was written."""


class Journal:
    """The log in a folder. It belongs to one process: the next one waits until that has ended. Raises InUse."""

    def __init__(self, folder: str, warn: Callable[[str], None]) -> None:
        self.folder = folder
        self._lock = take_lock(folder, warn)
        self._file = -1
        self.size = 0  # bytes of the present segment

    def begin(self, sequence: int) -> None:
        """Begin a segment, behind entry `sequence`."""
        if self._file >= 0:
            os.close(self._file)
        counts = [count for number, count, _ in segments(self.folder) if number == sequence]
        name = f"segment-{sequence:016d}-{max(counts, default=-1) + 1:04d}.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file, self.size = os.open(os.path.join(self.folder, name), flags, 0o600), 0

    def append(self, header: Header, arrays: Arrays | None = None) -> None:
        parts = buffers(header, arrays or {}, is_checked=True)
        write_all(self._file, parts)
        self.size += sum(map(len, parts))

    def forget(self, sequence: int) -> None:
        """Remove what came before entry `sequence`, at which a segment began."""
        for number, _, path in segments(self.folder):
            if number < sequence:
                os.unlink(path)

    def clear(self) -> None:
        for _, _, path in segments(self.folder):
            os.unlink(path)

    def close(self) -> None:
        """Close the files. The lock goes with the last process that has it."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1


class Record:
    """A record of a file. Its arrays are read when asked for."""

    __slots__ = ("_path", "_position", "_prefix", "header")

    def __init__(self, path: str, position: int, prefix: Prefix, header: Header) -> None:
        self._path, self._position, self._prefix, self.header = path, position, prefix, header

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays, in memory of their own. Raises Damaged."""
        content = numpy.empty(PREFIX.size + self._prefix.header + self._prefix.payload, numpy.uint8)
        with open(self._path, "rb", buffering=0) as file:
            file.seek(self._position)
            read_all(file, content.data)
        checked = content.data[PREFIX.size :]
        if zlib.crc32(checked) != self._prefix.checksum:
            raise Damaged(f"{self._path}: the record at byte {self._position:,} is damaged")
        try:
            return parse_arrays(self.header, checked[self._prefix.header :])
        except Malformed as error:
            raise Damaged(f"{self._path}: the record at byte {self._position:,}: {error}") from None


def records(path: str, may_be_torn: bool = False) -> Iterator[Record]:
    """Yield the records of a file. `may_be_torn`: its last one need not be whole. Raises Damaged."""
    size = os.path.getsize(path)
    position = 0
    with open(path, "rb") as file:
        while position < size:
            file.seek(position)
            head = file.read(PREFIX.size)
            try:
                if len(head) < PREFIX.size:
                    raise _Torn
                prefix = Prefix(head, HEADER_LIMIT, PAYLOAD_LIMIT)
                content = file.read(prefix.header)
                end = position + PREFIX.size + prefix.header + prefix.payload
                if end > size:
                    raise _Torn
                if not prefix.payload and zlib.crc32(content) != prefix.checksum:
                    raise Malformed("its CRC is another one")
                header = parse_header(content)
            except _Torn:
                if may_be_torn:
                    return
                raise Damaged(f"{path} ends in the middle of a record, at byte {size:,}") from None
            except Malformed as error:
                raise Damaged(f"{path}: the record at byte {position:,} is damaged: {error}") from None
            yield Record(path, position, prefix, header)
            position = end


def records_behind(folder: str, sequence: int) -> Iterator[Record]:
    """Yield the records of a log that came behind entry `sequence`, at which a segment began. Raises Damaged."""
    for number, _, path in segments(folder):
        if number >= sequence:
            yield from records(path, may_be_torn=True)


def segments(folder: str) -> list[tuple[int, int, str]]:
    """Return sequence, count and path of the segments in a folder, in their order."""
    present = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if match := _SEGMENT.fullmatch(name):
                present.append((int(match[1]), int(match[2]), os.path.join(folder, name)))
    return sorted(present)


def write_all(descriptor: int, parts: list[bytes | memoryview]) -> None:
    """Write buffers to a file. Raises OSError."""
    views = [memoryview(part) for part in parts]
    while views:
        count = os.writev(descriptor, views[:_VECTOR])
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if count:
            views[0] = views[0][count:]


def read_all(file: Any, space: memoryview) -> None:
    while space:
        count = file.readinto(space)
        if not count:
            raise Damaged(f"{file.name} is shorter than it was")
        space = space[count:]


class _Torn(Exception):
    pass
