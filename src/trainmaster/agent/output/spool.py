"""The spool is the file that holds one attempt's output, within bounds.

    first HEAD bytes | mark: how many bytes are left out | the newest bytes

The file is plain text like the output, so `less` and `grep` read it. When it reaches its limit, the older half of the bytes after the head
is left out: a new file is written next to it and renamed into place, with at most one copied byte for each byte printed. A reader that has
the old file open reads on in it, undisturbed. Bytes that could not be written (a full disk) leave a mark too. Readers count positions, not
offsets (`log.output`): one thread at a time writes, any process may read.
"""

from __future__ import annotations

import contextlib
import os

from trainmaster.log.output import WORDS, Gap, first_size, mark

MIB = 1024 * 1024
LIMIT, HEAD = 2048 * MIB, 256 * MIB
_COPY = 1 * MIB


class Spool:
    """One growing, bounded file. Writing never raises: bytes that cannot be written are counted and marked."""

    def __init__(self, path: str, limit: int = LIMIT, head: int = HEAD) -> None:
        self.path = path
        self.head = first_size(limit, head)
        self._limit = limit
        self._file = -1
        self._gap = Gap()
        self.size = 0  # of the file
        self.missed = 0  # bytes that could not be written since the last mark
        self.lost = 0  # bytes that could not be written, in all
        self.trouble = ""  # the reason, while it cannot be written

    @property
    def printed(self) -> int:
        """Return the position at its end."""
        return self._gap.printed(self.size)

    def write(self, data: bytes | memoryview) -> bool:
        """Append `data`. Return False where that failed and `data` (or its end) is missing from the file."""
        try:
            self._open()
            if self.missed:
                self._append(WORDS.format(what=f"{self.missed} bytes left out here, {self.trouble}").encode())
                self.missed = 0
            if self.size + len(data) > self._limit:
                self._compact(len(data))
        except OSError as error:
            self._miss(len(data), error)
            return False
        begin = self.size
        try:
            self._append(data)
        except OSError as error:
            self._miss(len(data) - (self.size - begin), error)  # a disk that fills up takes a part
            return False
        self.trouble = ""
        return True

    def miss(self, size: int, why: str) -> None:
        """Count `size` bytes that the writer did not even try to write."""
        self.missed += size
        self.lost += size
        self.trouble = why

    def close(self) -> None:
        if self.missed:
            self.write(b"")
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        if self._file < 0:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self.size = os.fstat(self._file).st_size
            self._gap = Gap.of(lambda offset, size: os.pread(self._file, size, offset), self.head)

    def _append(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            done = os.write(self._file, rest)
            self.size += done
            rest = rest[done:]

    def _miss(self, size: int, error: OSError) -> None:
        if self._file >= 0:
            self.size = os.fstat(self._file).st_size
        self.miss(size, error.strerror or str(error))

    def _compact(self, coming: int) -> None:
        """Leave out the older half of the bytes after the head, and make room for `coming` bytes."""
        begin = self.head + self._gap.mark
        cut = min(self.size, max(begin + (self._limit - begin) // 2, begin + coming - (self._limit - self.size)))
        left_out = self._gap.size + cut - begin
        mark_text = mark(left_out, self._limit)
        draft = f"{self.path}.new"
        source = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        target = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _copy(source, target, 0, self.head)
            os.write(target, mark_text)
            _copy(source, target, cut, self.size)
            os.rename(draft, self.path)
        except OSError:
            os.close(target)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
            raise
        finally:
            os.close(source)
        os.close(self._file)
        self._file, self._gap = target, Gap(self.head, left_out, len(mark_text))
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
    """Return the last lines, each at most 2,000 characters, all within `limit` bytes; a binary's bytes replaced."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            data = file.read(limit)
    except FileNotFoundError:
        return []
    rows = data.decode("utf-8", "replace").replace("\0", "").removesuffix("\n").split("\n") if data else []
    if size > limit and len(rows) > 1:
        rows = rows[1:]  # the beginning of the first line was cut off
    # a progress bar overwrites itself: only its last state counts
    return [line.rstrip("\r").rsplit("\r", 1)[-1][:2000] for line in rows[-lines:]]
