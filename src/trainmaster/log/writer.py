"""Append to the log.

One writer writes one epoch, one call at a time. `append(lines, sync=True)` returns when the lines, and all before them,
are on stable storage: that is for barriers. With `sync=False` the lines are handed to the storage and become stable at
the next `flush()`, which the caller makes within a second: that is for notes. Many lines in one call cost one sync, so
lines that gather while a call runs are committed as a group by the next.

A call that fails (StorageFailed) has appended nothing. The caller keeps the lines and hands in *the same* lines again,
first, with more after them if it likes. A line whose number is in the log already is skipped, so a call may be
repeated whenever its outcome is unknown.

After a failure nothing is doubled or lost:

- A write that took a part of the bytes (a full disk) is cut off again at once.
- Where that fails, or a sync failed, nobody knows what is on the disk, and a second sync may lie (the kernel has marked
  the pages clean). The file is left as it is; the lines since the last good sync, which are kept in memory, begin
  another segment.
- An object's content is fixed when it is first put, and exactly that is put again, so a put that lands late changes
  nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trainmaster.core.errors import StorageFailed
from trainmaster.log.segments import Segment, number, segments
from trainmaster.log.storage import Appender, Damaged, Storage

SEGMENT_SIZE = 64 * 1024 * 1024
ROOM = 64 * 1024  # bytes held for the lines of a job's end
UNSYNCED_LIMIT = 4 * 1024 * 1024  # bytes kept in memory until they are stable
OBJECT_SIZE = 4 * 1024 * 1024  # small objects are put together up to about this
OBJECTS_LIMIT = 128  # or this many of them


class Writer(Protocol):
    """A writer of the lines of one epoch."""

    last: int  # the number of the last line appended
    stable: int  # the number of the last line known to be on stable storage

    def append(self, lines: Sequence[bytes], sync: bool) -> None: ...

    def flush(self) -> None:
        """Make all appended lines durable."""

    def hold_room(self) -> None:
        """Hold room for the lines of a job's end on a disk that others may fill. Raises StorageFailed where there is none."""

    def close(self) -> None:
        """Flush, and close the file."""


def open_writer(storage: Storage, epoch: int, last: int, segment_size: int | None = None) -> Writer:
    """Return a writer for an epoch that was just taken; `last` is the last number read of the earlier epochs (0: none).

    Lines of earlier epochs that only the operating system holds are made stable first: this epoch will say that they were read.
    """
    if storage.appends:
        for parts in segments(storage).values():
            storage.sync(parts[-1].path)
        return _FileWriter(storage, epoch, last, segment_size or storage.droppable or SEGMENT_SIZE)
    return _ObjectWriter(storage, epoch, last)


class _FileWriter:
    """A writer that grows one file until it is large, then the next."""

    def __init__(self, storage: Storage, epoch: int, last: int, segment_size: int) -> None:
        self.last = self.stable = last
        self._storage, self._epoch, self._segment_size = storage, epoch, segment_size
        # Events are dropped file by file, except each epoch's first file: so that one holds little more than the line that is needed.
        self._first, self._first_size = True, segment_size if storage.droppable is None else 1
        self._file: Appender | None = None
        self._path = ""
        self._size = 0  # of the file, all whole lines
        self._doubtful = False  # the content of the file after the last good sync is unknown
        self._unsynced: list[bytes] = []  # the lines appended since then
        self._unsynced_size = 0

    def append(self, lines: Sequence[bytes], sync: bool) -> None:
        new, data = _new_lines(lines, self.last)
        if self._doubtful:
            self._begin_anew()
        self._doubtful = True  # until this call has ended well, whatever ends it
        if data:
            self._write(data)
        if (sync and (data or self._unsynced)) or self._unsynced_size + len(data) > UNSYNCED_LIMIT:
            assert self._file is not None
            self._file.sync()
            self._mark_stable(self.last + new)
        elif data:
            self._unsynced.append(data)
            self._unsynced_size += len(data)
        self._size += len(data)
        self.last += new
        self._doubtful = False

    def flush(self) -> None:
        self.append((), sync=True)

    def hold_room(self) -> None:
        if self._file is not None:
            self._file.hold(ROOM)

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._close_file()

    def _write(self, data: bytes) -> None:
        if self._file is not None and self._size >= (self._first_size if self._first else self._segment_size):
            self._first = False
            self._file.sync()
            self._mark_stable(self.last)
            self._close_file()
        if self._file is None:
            self._path = Segment(self._epoch, self.last + 1).path
            self._file, self._size = self._storage.appender(self._path), 0
        try:
            self._file.write(data)
        except StorageFailed as failure:
            try:
                self._file.truncate(self._size)
            except StorageFailed:
                raise failure from None  # the file stays doubtful
            self._doubtful = False
            raise

    def _mark_stable(self, last: int) -> None:
        self.stable = last
        self._unsynced.clear()
        self._unsynced_size = 0

    def _begin_anew(self) -> None:
        """Leave the doubtful file and begin another segment: a reader takes a line from the segment that begins nearest before it."""
        if self._unsynced:
            self._storage.replace(Segment(self._epoch, self.stable + 1).path, b"".join(self._unsynced))
        elif self._path == Segment(self._epoch, self.last + 1).path:
            self._storage.remove(self._path)  # nothing in it was ever appended
        self._mark_stable(self.last)
        self._doubtful = False
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class _ObjectWriter:
    """A writer that puts one segment per sync. Small ones are compacted later, so that a long job stays few objects."""

    def __init__(self, storage: Storage, epoch: int, last: int) -> None:
        self.last = self.stable = last
        self._storage, self._epoch = storage, epoch
        self._pending: list[bytes] = []  # the lines appended but not put yet
        self._pending_size = 0
        self._failed_put: tuple[bytes, int] | None = None  # a segment whose put failed, and its last number
        self._group = bytearray()  # the lines of all segments in `_firsts`
        self._firsts: list[int] = []
        self._left_over: list[int] = []  # segments to remove: the first of their group holds their lines

    def append(self, lines: Sequence[bytes], sync: bool) -> None:
        if self._failed_put is not None:
            self._put(*self._failed_put)
        self._compact()
        new, data = _new_lines(lines, self.last)
        if (sync and (data or self._pending)) or self._pending_size + len(data) > UNSYNCED_LIMIT:
            self._put(b"".join(self._pending) + data, self.last + new)
        elif data:
            self._pending.append(data)
            self._pending_size += len(data)
            self.last += new

    def flush(self) -> None:
        self.append((), sync=True)

    def hold_room(self) -> None:
        return

    def close(self) -> None:
        self.flush()

    def _put(self, data: bytes, last: int) -> None:
        self._failed_put = (data, last)
        first = self.stable + 1
        path = Segment(self._epoch, first).path
        if not self._storage.conditional:
            self._storage.replace(path, data)
        elif not self._storage.create(path, data):
            self._resolve_taken_name(path, data)
        self._failed_put = None
        self.last = self.stable = last
        self._pending.clear()
        self._pending_size = 0
        if self._storage.conditional:
            self._group += data
            self._firsts.append(first)

    def _resolve_taken_name(self, path: str, data: bytes) -> None:
        """Go on where an earlier try of our own, whose answer was lost, has taken the name. Raises StorageFailed where another has."""
        content = self._storage.read(path)
        if content == data:
            return
        if content is not None and not data.startswith(content):
            raise Damaged(
                "another master writes the event log under the same epoch",
                place=f"{self._storage.url}/{path}",
                mend="keep two jobs from sharing one storage",
                anchor="log-damaged",
            )
        self._storage.replace(path, data)

    def _compact(self) -> None:
        """Put the lines of the last segments into the first of them, then remove the others, the first of them first.

        At every moment the segment that begins nearest before a line holds it. This is done only where the server
        heeds conditions: there a late put of the first segment is refused, since the name is taken.
        """
        large = len(self._group) >= OBJECT_SIZE
        if not self._left_over and len(self._firsts) > 1 and (large or len(self._firsts) >= OBJECTS_LIMIT):
            self._storage.replace(Segment(self._epoch, self._firsts[0]).path, bytes(self._group))
            self._left_over, self._firsts = self._firsts[1:], self._firsts[:1]
        while self._left_over:
            self._storage.remove(Segment(self._epoch, self._left_over[0]).path)
            del self._left_over[0]
        if large:
            self._group.clear()
            self._firsts.clear()


def _new_lines(lines: Sequence[bytes], last: int) -> tuple[int, bytes]:
    """Return the number of `lines` that are not in the log yet, and those lines as bytes.

    Raises ValueError where the lines do not go on from `last`, which is a fault of the caller.
    """
    if not lines:
        return 0, b""
    first = number(lines[0])
    if not 0 < first <= last + 1:
        raise ValueError(f"the log ends at {last}, and the next line is numbered {first}: {lines[0][:80]!r}")
    new = lines if first == last + 1 else lines[last + 1 - first :]
    if not new:
        return 0, b""
    if number(new[-1]) != last + len(new):
        raise ValueError(f"{len(new)} lines after {last}, and the last is numbered {number(new[-1])}")
    data = b"".join(new)
    if data.count(b"\n") != len(new) or not data.endswith(b"\n"):
        raise ValueError("each line ends in its only newline")
    return len(new), data
