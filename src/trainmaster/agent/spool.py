"""The file that holds what one attempt printed, within bounds.

    first HEAD bytes | mark: how many bytes are left out | the newest bytes

The file is plain text like what was printed, so `less` and `grep` read it. When it reaches its limit, the older half of what follows the
head is left out: the file is written anew beside and renamed into place, one copied byte for each byte printed at most. Whatever could
not be written (a full disk) leaves a mark too. Offsets are those of the file; `movers` are told where they went when it was compacted.
One thread at a time writes; any may read.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable

MIB = 1024 * 1024
LIMIT, HEAD = 2048 * MIB, 256 * MIB
_MARK = "\n[trainmaster: {what}]\n"
MARK = re.compile(rb"\n\[trainmaster: +(\d+) bytes left out here[^\]\n]*\]\n")
_COPY = 1 * MIB


class Spool:
    """One growing, bounded file. Writing never raises: what cannot be written is counted and marked."""

    def __init__(self, path: str, limit: int = LIMIT, head: int = HEAD) -> None:
        self.path = path
        self._limit, self._head = limit, min(head, limit // 4)
        self._file = -1
        self._left_out = 0  # bytes, at the mark after the head
        self._mark = 0  # length of that mark
        self.size = 0
        self.missed = 0  # bytes that could not be written since the last mark
        self.lost = 0  # bytes that could not be written, in all
        self.trouble = ""  # why, while it cannot be written
        self.lock = threading.Lock()  # held while offsets move
        self.movers: list[
            Callable[[int, int], None]
        ] = []  # told (offset, by how much what stood there and later moved back)

    def write(self, data: bytes | memoryview) -> bool:
        """Append `data`; False where that failed and `data` (or its end) is missing from the file."""
        try:
            self._open()
            if self.missed:
                self._append(_MARK.format(what=f"{self.missed} bytes left out here, {self.trouble}").encode())
                self.missed = 0
            if self.size + len(data) > self._limit:
                self._compact(len(data))
            self._append(data)
        except OSError as error:
            self._miss(data, error)
            return False
        self.trouble = ""
        return True

    def miss(self, size: int, why: str) -> None:
        """Count `size` bytes that the writer did not even try to write."""
        self.missed += size
        self.lost += size
        self.trouble = why

    def say(self, words: str) -> None:
        """A line of our own."""
        self.write(_MARK.format(what=words).encode())

    def close(self) -> None:
        if self.missed:
            self.write(b"")
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        if self._file < 0:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self.size = os.fstat(self._file).st_size

    def _append(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            done = os.write(self._file, rest)
            self.size += done
            rest = rest[done:]

    def _miss(self, data: bytes | memoryview, error: OSError) -> None:
        written = 0
        if self._file >= 0:
            there = os.fstat(self._file).st_size
            written, self.size = max(0, there - self.size), there
        self.miss(max(0, len(data) - written), error.strerror or str(error))

    def _compact(self, coming: int) -> None:
        """Leave out the older half of what follows the head, and make room for `coming` bytes."""
        begin = self._head + self._mark
        cut = min(self.size, max(begin + (self._limit - begin) // 2, begin + coming - (self._limit - self.size)))
        left_out = self._left_out + cut - begin
        mark = _MARK.format(what=f"{left_out:>15} bytes left out here to keep within {self._limit}").encode()
        draft = f"{self.path}.new"
        source = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        target = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _copy(source, target, 0, self._head)
            os.write(target, mark)
            _copy(source, target, cut, self.size)
            with self.lock:
                os.rename(draft, self.path)
                for moved in self.movers:
                    moved(cut, cut - self._head - len(mark))
        except OSError:
            os.close(target)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
            raise
        finally:
            os.close(source)
        os.close(self._file)
        self._file, self._left_out, self._mark = target, left_out, len(mark)
        self.size = os.fstat(target).st_size


def _copy(source: int, target: int, begin: int, end: int) -> None:
    while begin < end:
        data = os.pread(source, min(_COPY, end - begin), begin)
        if not data:
            return
        begin += len(data)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(target, rest) :]


def tail(path: str, lines: int = 20, limit: int = 16 * 1024) -> list[str]:
    """The last lines, each at most 2,000 characters, all within `limit` bytes; a binary's bytes replaced."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            data = file.read(limit)
    except FileNotFoundError:
        return []
    found = data.decode("utf-8", "replace").replace("\0", "").removesuffix("\n").split("\n") if data else []
    if size > limit and len(found) > 1:
        found = found[1:]  # its beginning was cut off
    # of a progress bar, which overwrites itself, what it showed last
    return [line.rstrip("\r").rsplit("\r", 1)[-1][:2000] for line in found[-lines:]]
