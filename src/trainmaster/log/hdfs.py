"""A storage on HDFS: files that grow by `hsync`, names that the NameNode decides about.

Facts about HDFS, each seen on a real one (3.4.2, hdfs-native 0.14.7; tests/conformance/test_hdfs.py):

- `create` without overwrite and `rename` without overwrite are both decided by the NameNode: of 16 at once one succeeds. A
  file exists from its creation on; so `create` here writes a draft, syncs and renames, which is all or nothing. A file
  that is open can be renamed, and closed afterwards.
- Closing a file with content waits for a DataNode's report and costs 0.5 s; `hsync` of a batch costs 2 to 3 ms. So the
  event log is one open file an epoch, not a file a batch.
- After `hsync` the bytes are on the DataNodes' disks and the NameNode tells the new length. After a write without
  it nobody sees them, and a writer that dies loses them.
- hdfs-native reads closed blocks only: of an open file's last block it sees nothing, however long ago it was
  synced. `openfile` asks the DataNode for that.
- A writer that was killed leaves its file open, for an hour by HDFS's own clock. `recoverLease` closes it with all that
  was synced: 0.4 s where the writer is dead, up to 3 s (one heartbeat of a DataNode) where it lives. From then on the
  old writer's next `hsync` fails: it is fenced. While no DataNode that has the block answers, it returns False, for ever.
- A NameNode that is restarted takes 5 s of a client's tries; a writer goes on after it as if nothing had happened. A
  DataNode that is killed breaks every writer to it, at the next `hsync`; another file can be begun once one is back.

So a master reads the earlier epochs' files while they are open, with all lines that were ever reported durable, and
closes them meanwhile (`settle`): then nobody can add to them. An appender that has failed is not used again, for nobody knows
what it has written: `truncate` refuses, and the writer begins another segment. The file that it leaves is closed as soon as
HDFS answers.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from trainmaster.core.errors import StorageFailed, TrainmasterError
from trainmaster.log.dfs import Dfs, DfsError, open_dfs
from trainmaster.log.storage import Appender, Entry, check_size, checked, draft_of, largest, not_private, storage_failed

if TYPE_CHECKING:
    from hdfs_native import FileReader, FileWriter

T = TypeVar("T")

_AGAIN = 0.1  # s between two looks whether a file is closed
_CLOSING = 60.0  # s that closing a file of our own may take
_DRAFTS = 3  # drafts of a small file: of a thousand closes on a busy cluster one fails by hdfs-native's fault, with SASL's integrity
_LOOKS = 3  # times that a file is read while it is being closed
_OURS_ALONE, _FOLDER = 0o600, 0o700

log = logging.getLogger(__name__)


class HdfsStorage:
    """A storage of the files under a URL. They are the owner's alone; dot files are not listed."""

    appends = True
    local = False
    conditional = True
    droppable: int | None = None

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        with _storage_errors("open", self.url):
            self._dfs, self._root = open_dfs(self.url)
        self._left_open: set[str] = set()  # files of ours that a failure has left open

    def _at(self, path: str) -> str:
        return f"{self._root}/{checked(path)}" if path else self._root or "/"

    def _name(self, path: str) -> str:
        return f"{self.url}/{path}" if path else self.url

    def entries(self, folder: str) -> list[Entry]:
        at = self._at(folder)
        with _storage_errors("list a folder", self._name(folder)):
            try:
                rows = self._dfs.call(lambda client: list(client.list_status(at, False)))
            except FileNotFoundError:
                return []
        entries = [Entry(row.path.rpartition("/")[2], 0 if row.isdir else row.length, row.isdir) for row in rows]
        alone = len(rows) == 1 and rows[0].path == at  # it is no folder
        return [] if alone else sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes | None:
        if size == 0:
            return b""
        with _storage_errors("read", self._name(path)):
            try:
                if size is None:
                    return read_rest(self._dfs, self._at(path), self._name(path), offset, largest(path))
                return read_range(self._dfs, self._at(path), offset, size)
            except FileNotFoundError:
                return None

    def create(self, path: str, data: bytes) -> bool:
        with _storage_errors("create", self._name(path)):
            try:
                if self._exists(path):
                    return False
                self._put(path, data, overwrite=False)
            except FileExistsError:
                return False
        return True

    def replace(self, path: str, data: bytes, durable: bool = True) -> None:
        with _storage_errors("write", self._name(path)):
            self._put(path, data, overwrite=True)

    def appender(self, path: str) -> Appender:
        self._try_close_left()
        with _storage_errors("create", self._name(path)):
            return _HdfsAppender(self, path, self._open(self._at(path)))

    def sync(self, path: str) -> None:
        """Do nothing: readers see synced bytes only."""

    def settle(self, path: str) -> bool:
        with _storage_errors("close", self._name(path)):
            return self._recover_lease(path)

    def remove(self, path: str) -> None:
        with _storage_errors("remove", self._name(path)), contextlib.suppress(FileNotFoundError):
            self._dfs.call(lambda client: client.delete(self._at(path), False))

    def exists(self, path: str) -> bool:
        with _storage_errors("look at", self._name(path)):
            return self._exists(path)

    def other_writers(self, own: str) -> str:
        with _storage_errors("look at", self.url):
            folder = self._dfs.call(lambda client: client.get_file_info(self._at("")))
            ours = self._dfs.call(lambda client: client.get_file_info(self._at(own)))
        return not_private(folder.owner, ours.owner, folder.permission & 0o777, folder.permission & 0o022)

    def gone(self) -> bool:
        return False

    # -- inside --

    def _exists(self, path: str) -> bool:
        try:
            self._dfs.call(lambda client: client.get_file_info(self._at(path)))
        except FileNotFoundError:
            return False
        return True

    def _open(self, at: str) -> FileWriter:
        return opened(self._dfs, at, _OURS_ALONE, _FOLDER)

    def _put(self, path: str, data: bytes, overwrite: bool) -> None:
        if not put(self._dfs, self._at(path), data, overwrite, _OURS_ALONE, _FOLDER):
            self.leave(path)

    def _recover_lease(self, path: str) -> bool:
        try:
            return self._dfs.call(lambda client: client.recover_lease(self._at(path)))
        except FileNotFoundError:
            return True

    def close_left(self) -> None:
        """Close the files that failures have left open, and wait for it."""
        self._try_close_left(_CLOSING)

    def _try_close_left(self, within: float = 0.0) -> None:
        """Close the files that failures have left open; one that is not closed `within` seconds is tried at the next call."""
        deadline = time.monotonic() + within
        for path in list(self._left_open):
            try:
                while not (closed := self._recover_lease(path)) and time.monotonic() < deadline:
                    time.sleep(_AGAIN)
                if not closed:
                    continue
            except OSError as error:
                log.info("%s is still open: %s", self._name(path), error.strerror)
                return
            self._left_open.discard(path)

    def do(self, doing: str, path: str, act: Callable[[], T], limit: float = 0.0) -> T:
        with _storage_errors(doing, self._name(path)):
            return self._dfs.bounded(act, limit) if limit else self._dfs.bounded(act)

    def leave(self, path: str) -> None:
        self._left_open.add(path)
        self._try_close_left()


class _HdfsAppender:
    def __init__(self, storage: HdfsStorage, path: str, writer: FileWriter) -> None:
        self._storage, self._path, self._writer = storage, path, writer
        self._closed = self._broken = False

    def write(self, data: bytes) -> None:
        self._do("append", lambda: self._writer.write(data))

    def sync(self) -> None:
        self._do("sync", self._writer.hsync)

    def truncate(self, size: int) -> None:
        raise StorageFailed(f"a file of HDFS that is being written cannot be cut to {size} bytes", place=self._path)

    def hold(self, size: int) -> None:
        """Hold nothing: HDFS gives a file a block's room at a time."""

    def close(self) -> None:
        """Close the file; a failure is only logged, for synced bytes are safe whatever happens here."""
        if self._closed:
            return
        self._closed = True
        if not self._broken:
            try:
                self._storage.do("close", self._path, self._writer.close, _CLOSING)
            except StorageFailed as failure:
                log.warning("%s", failure)
                self._broken = True
        if self._broken:
            self._storage.leave(self._path)
        else:  # HDFS answers; later readers of the log need those files closed that earlier failures have left
            self._storage.close_left()

    def _do(self, doing: str, act: Callable[[], object]) -> None:
        broken, self._broken = self._broken, True
        if broken:
            raise StorageFailed("a write to it has failed before", place=self._path, anchor="storage-failed")
        self._storage.do(doing, self._path, act)
        self._broken = False


def read_rest(dfs: Dfs, at: str, place: str, offset: int, limit: int) -> bytes:
    """Return a file from `offset` on. Raises FileNotFoundError, and Damaged, naming `place`, where more than `limit` bytes follow."""
    data = read_range(dfs, at, offset, limit + 1)
    check_size(len(data), limit, place)
    return data


def read_range(dfs: Dfs, at: str, offset: int, size: int, reader: FileReader | None = None) -> bytes:
    """Return up to `size` bytes of a file from `offset` on, those of its open end too. Raises FileNotFoundError.

    `reader`: of the file, where it is open already.
    """
    failure = DfsError(errno.EAGAIN, "it is opened and closed all the time", "try again")
    for _ in range(_LOOKS):
        reader = reader or dfs.call(lambda client: client.read(at))
        try:
            data = _read_as_it_is(dfs, at, offset, size, reader)
        except DfsError as error:
            failure = error  # its last block may have been closed, and renamed, between our requests
        else:
            if data is not None:
                return data
        reader = None
    raise failure


def _read_as_it_is(dfs: Dfs, at: str, offset: int, size: int, reader: FileReader) -> bytes | None:
    """Read once; return None where the reader was opened before the file was closed."""
    closed = len(reader)  # bytes in whole blocks: hdfs-native panics where more is asked for
    end = offset + size
    data = b""
    if offset < closed:
        data = dfs.bounded(lambda: reader.read_range(offset, min(closed, end) - offset))
    if end <= closed:
        return data
    length = dfs.call(lambda client: client.get_file_info(at)).length
    if length <= max(closed, offset):
        return data
    from trainmaster.log.openfile import read_end

    begin = max(closed, offset)
    rest = read_end(dfs, at, begin, min(length, end) - begin)
    return None if rest is None else data + rest


def opened(dfs: Dfs, at: str, mode: int = 0o644, folder_mode: int = 0o755, overwrite: bool = False) -> FileWriter:
    """Make a file, open for writing, with the folders above it. Raises FileExistsError."""
    from hdfs_native import WriteOptions

    options = WriteOptions(permission=mode, overwrite=overwrite, create_parent=False)
    try:
        writer = dfs.call(lambda client: client.create(at, options))
    except FileNotFoundError:
        dfs.call(lambda client: client.mkdirs(at.rpartition("/")[0] or "/", folder_mode, True))
        writer = dfs.call(lambda client: client.create(at, options))
    # To Python the file counts as closed, so that the garbage collector, in any thread, does not close one that failed: that
    # would ask the NameNode for 16 s and more. Only a call of its own `close` closes it.
    io.RawIOBase.close(writer)
    return writer


def put(dfs: Dfs, at: str, data: bytes, overwrite: bool, mode: int = 0o644, folder_mode: int = 0o755) -> bool:
    """Make a small file, whole or not at all; return False where it was not closed. Raises FileExistsError where it exists and
    `overwrite` is False.

    It gets its name before it is closed: only the writer waits for the closing.
    """
    for tries_left in reversed(range(_DRAFTS)):
        try:
            draft, writer = _write_draft(dfs, at, data, mode, folder_mode)
            break
        except OSError as error:
            if not tries_left or error.errno != errno.EIO:
                raise
    with _discarding(dfs, draft):
        dfs.call(lambda client: client.rename(draft, at, overwrite))
    try:
        dfs.bounded(writer.close, _CLOSING)
    except OSError as error:  # its content is safe: it was synced
        log.info("%s was not closed: %s", at, error.strerror)
        return False
    return True


def _write_draft(dfs: Dfs, at: str, data: bytes, mode: int, folder_mode: int) -> tuple[str, FileWriter]:
    """Write the content to a draft beside `at`. Return the draft's path and its writer."""
    draft = draft_of(at)
    with _discarding(dfs, draft):
        writer = opened(dfs, draft, mode, folder_mode)
        if data:
            dfs.bounded(lambda: writer.write(data))
            dfs.bounded(writer.hsync)
    return draft, writer


@contextmanager
def _discarding(dfs: Dfs, draft: str) -> Iterator[None]:
    """Remove the draft where the code inside fails."""
    try:
        yield
    except OSError:
        dfs.discard(draft)
        raise


@contextmanager
def _storage_errors(doing: str, url: str) -> Iterator[None]:
    try:
        yield
    except TrainmasterError:
        raise
    except OSError as error:
        raise storage_failed(doing, url, error) from error
