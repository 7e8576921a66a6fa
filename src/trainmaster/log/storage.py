"""A storage keeps the log: one small Protocol over a directory of this machine, or any fsspec URL.

Paths are relative, with "/" between their parts. A *folder* need not be made first. `create` makes a file that was not there, whole or not
at all. If several callers try at once, at most one gets True: epochs rely on that. `replace` swaps a whole file. Only a storage that
`appends` gives out an `Appender`; objects cannot be appended to, so a log on them is many files, each put once.

Every error of a storage is StorageFailed, made in `storage_failed` alone. A missing file is not an error: reading it
gives None.

Links out of the directory of a storage are not followed (`require_inside`): another user may have put them there. The directory itself may
be a link, or be behind one.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Protocol

import attrs

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.host import linux

SILENT = 5.0  # s after which a storage that does not answer is waited for in words
_FULL = {errno.ENOSPC: "no space left on the disk", errno.EDQUOT: "the disk quota is spent"}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}  # a file system without links
_PAGE = 4096  # bytes
DRAFT_AGE = 600.0  # s after which nobody writes a draft any more
_DRAFT = re.compile(r"\..*\.?[0-9a-f]{12,16}\.tmp")
_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
LISTING = 512 << 20  # bytes of the largest listing that is read: of the files of an input, or of what a checkpoint has
DOCUMENT = 64 << 20  # bytes of the largest file that is read whole, where `LARGEST` has no row
LARGEST = {  # folder of a storage -> bytes of the largest file in it that is read whole
    "inputs": LISTING,
    "snapshots": 256 << 20,
    "logs": 256 << 20,
}
OTHER = ""  # every scheme that has no row of its own
STORAGES = {  # scheme of a URL -> the class of its storages, loaded when one is opened
    "hdfs": "trainmaster.log.hdfs:HdfsStorage",
    "viewfs": "trainmaster.log.hdfs:HdfsStorage",
    "configmaps": "trainmaster.log.configmaps:ConfigMapStorage",
    OTHER: "trainmaster.log.objects:ObjectStorage",
}


@attrs.frozen(slots=True)
class Entry:
    """One name in a folder. `size` in bytes, 0 for a folder."""

    name: str
    size: int
    folder: bool = False


class Appender(Protocol):
    """A file that grows. After an error the length is unknown until `truncate` succeeds."""

    def write(self, data: bytes) -> None:
        """Append all of `data`."""

    def sync(self) -> None:
        """Make all written bytes durable."""

    def truncate(self, size: int) -> None: ...

    def hold(self, size: int) -> None:
        """Hold at least `size` bytes of the disk for what is still to be written, where others share it. Raises StorageFailed where it has
        not so much left; what was held before stays.
        """

    def close(self) -> None: ...


class Storage(Protocol):
    """Files under one root."""

    url: str
    appends: bool  # whether files can grow
    local: bool  # whether it is a directory of this machine, which agents write to themselves

    droppable: (
        int | None
    )  # bytes in a file of events, if events are dropped, file by file, once snapshots cover them; None: they stay

    @property
    def conditional(self) -> bool:
        """Tell whether the storage itself decides `create`, so that a late one is refused."""

    def entries(self, folder: str) -> list[Entry]:
        """Return the entries of `folder`, by name; none where it does not exist."""

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes | None:
        """Read up to `size` bytes from `offset`; None where there is no such file. Without a size, read all that follow; raises Damaged
        where these are more than `largest(path)` bytes.
        """

    def create(self, path: str, data: bytes) -> bool:
        """Make a file, durable and whole; return False where it exists already."""

    def replace(self, path: str, data: bytes, durable: bool = True) -> None:
        """Replace the file at `path`, if any, by `data`; readers see the old or the new."""

    def appender(self, path: str) -> Appender:
        """Make an empty file to append to. Raises StorageFailed where it exists already."""

    def sync(self, path: str) -> None:
        """Make durable what anyone wrote to `path`."""

    def settle(self, path: str) -> bool:
        """Close a file that another process holds open, where the storage knows open files. Return True once it is closed: then all bytes
        that were ever synced can be read, and none can be added.
        """

    def remove(self, path: str) -> None:
        """Remove a file; nothing where there is none."""

    def exists(self, path: str) -> bool: ...

    def other_writers(self, own: str) -> str:
        """Return in words who else may write here, "" where nobody may, as far as the storage tells. `own`: a file just made by us."""

    def gone(self) -> bool:
        """Tell whether the whole storage was deleted with the objects of its cluster; False where it is not an object of a cluster."""


def storage_for(place: str | Path) -> Storage:
    """Return the storage at a path, a file:// URL, or any other URL that fsspec knows. Raises BadInput for others."""
    text = os.fspath(place)
    if (path := local_path(text)) is not None:
        return LocalStorage(path)
    scheme = _SCHEME.match(text)
    assert scheme is not None
    module, _, name = STORAGES.get(scheme[1].lower(), STORAGES[OTHER]).partition(":")
    storage: Storage = getattr(import_module(module), name)(text)
    return storage


def local_path(place: str) -> str | None:
    """Return the path that a path or file:// URL means; None for any other URL."""
    scheme = _SCHEME.match(place)
    if scheme is None:
        return place
    if scheme[1].lower() not in ("file", "local"):
        return None
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(place).path)


class Damaged(StorageFailed):
    """A file of ours does not hold what was written: the message names the file, and no wait helps."""


def largest(path: str) -> int:
    """Return the bytes of the largest file that is read whole at `path` of a storage: another user may have put a larger one there."""
    return LARGEST.get(path.partition("/")[0], DOCUMENT)


def check_size(size: int, limit: int, place: str) -> None:
    """Raise Damaged where a file at `place`, to be read whole, has more than `limit` bytes."""
    if size > limit:
        raise Damaged(
            f"{place.rpartition('/')[2]} is damaged: it has more than {limit >> 20} MiB",
            place=place,
            mend="bring it back from a copy, or remove it",
            anchor="damaged-file",
        )


def storage_failed(doing: str, path: str, error: BaseException) -> StorageFailed:
    """Turn a foreign error into ours, in this one place: what was done, to what, why it failed, what to do."""
    number = getattr(error, "errno", None)
    if own_mend := getattr(error, "mend", ""):  # the code that raised it knows better
        reason, mend, anchor = _words(error), own_mend, getattr(error, "anchor", "storage-failed")
    elif number in _FULL:
        reason, mend, anchor = (
            _FULL[number] + _free_space_note(path),
            "free space there, or use a larger place",
            "disk-full",
        )
    elif number == errno.EFBIG:
        reason, mend, anchor = (
            "the file would exceed the limit on file sizes",
            "raise the limit: ulimit -f",
            "disk-full",
        )
    elif number in _REFUSED:
        reason, mend, anchor = os.strerror(number), "check the permissions there", "storage-failed"
    else:
        reason, mend, anchor = _words(error), "check that it can be reached", "storage-failed"
    failure = StorageFailed(f"could not {doing}: {reason}", place=path, mend=mend, anchor=anchor)
    failure.errno = number
    if anchor == "ticket":  # it is the user's to get one
        failure.status = BadInput.status
    return failure


def silent(place: str, seconds: float) -> StorageFailed:
    """Return the failure of a storage that has not answered for so long: a mount whose server is away hangs, and raises nothing."""
    error = TimeoutError(f"it has not answered for {seconds:.0f} s")
    return storage_failed("use the storage", place, error)


def may_pass(failure: StorageFailed) -> bool:
    """Tell whether waiting can help: the storage is away or full. It cannot where access is refused, or where the log is damaged."""
    return failure.anchor in ("storage-failed", "disk-full") and failure.errno not in _REFUSED


def _words(error: BaseException) -> str:
    text = (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip().splitlines()[0]
    return text[:200]


def _free_space_note(path: str) -> str:
    try:
        figures = os.statvfs(os.path.dirname(path) or ".")
    except OSError:
        return ""  # the figure is an extra; the message does without it
    free, whole = (blocks * figures.f_frsize // 1024 for blocks in (figures.f_bavail, figures.f_blocks))
    return f" ({free} KiB free of {whole} KiB)"


def checked(path: str) -> str:
    """Return `path` if it stays under its root. Raises BadInput if not."""
    if path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise BadInput(f"{path!r} is not a path inside the storage", anchor="storage-path")
    return path


def require_inside(root: str, path: str, is_followed: bool = True) -> None:
    """Raise Damaged where a link at or above `path`, which is relative to `root`, leads out of `root`. Where the link at `path` itself is
    not `is_followed`, as when it is removed or replaced, only those above it count.
    """
    full = root
    parts = path.split("/")
    for part in parts if is_followed else parts[:-1]:
        full = os.path.join(full, part)
        if os.path.islink(full) and not is_inside(full, os.path.realpath(root)):
            raise Damaged(
                f"{path} leads out of {root} through a link, which is not followed",
                place=full,
                mend="remove the link, and put there what it leads to if it is yours",
                anchor="unsafe-path",
            )


def not_private(owner: object, ours: object, mode: int, shared: int) -> str:
    """Return in words why a directory is not its job's alone; "" where it is. `shared`: the bits of its mode that let others write."""
    if owner != ours:
        return f"it belongs to user {owner}, and we are {ours}"
    return f"others may write there (mode {mode:o})" if shared else ""


def open_own(path: str, flags: int) -> int:
    """Open a file of a storage, as the `opener` of `open`. Raises OSError for a FIFO or a device, which would make its reader wait."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return descriptor


def read_rest(file: io.FileIO, limit: int) -> bytes:
    """Read an open file to the end that it has now. Raises Damaged, before it reads, where more than `limit` bytes follow."""
    size = os.fstat(file.fileno()).st_size - file.tell()
    check_size(size, limit, str(file.name))
    return read_up_to(file, max(size, 0))


def read_up_to(file: io.FileIO, size: int) -> bytes:
    """Read `size` bytes, or to the end of the file."""
    data = file.read(size) or b""
    while len(data) < size and (piece := file.read(size - len(data))):
        data += piece
    return data


def read_file(path: str | Path, limit: int = DOCUMENT) -> bytes:
    """Read a small file of ours. Raises FileNotFoundError and other OSErrors as they are, Damaged where it has more than `limit` bytes."""
    with open(path, "rb", buffering=0, opener=open_own) as file:
        return read_rest(file, limit)


def is_inside(path: str, boundary: str) -> bool:
    """Tell whether a path, its links followed, is below `boundary`, in which there are no links."""
    return os.path.commonpath([os.path.realpath(path), boundary]) == boundary


class LocalStorage:
    """A storage in a directory, of this machine or mounted. Files are the owner's alone; dot files are not listed."""

    appends = True
    local = True
    conditional = True
    droppable: int | None = None

    def __init__(self, root: str | Path) -> None:
        self.root = os.path.abspath(os.path.expanduser(root))
        self.url = self.root

    def _at(self, path: str, is_followed: bool = False) -> str:
        """Return the full path. Raises Damaged where a link leads out; the link at the path itself may, unless it `is_followed`."""
        if not path:
            return self.root
        require_inside(self.root, checked(path), is_followed)
        return os.path.join(self.root, path)

    def entries(self, folder: str) -> list[Entry]:
        entries = []
        full = self._at(folder, is_followed=True)
        try:
            with os.scandir(full) as listing:
                for entry in listing:
                    if entry.name.startswith("."):
                        continue
                    try:
                        is_folder = entry.is_dir()
                        entries.append(Entry(entry.name, 0 if is_folder else entry.stat().st_size, is_folder))
                    except FileNotFoundError:
                        continue  # removed since: as if it had never been listed
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise storage_failed("list a folder", full, error) from error
        return sorted(entries, key=lambda entry: entry.name)

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes | None:
        full = self._at(path, is_followed=True)
        try:
            with open(full, "rb", buffering=0, opener=open_own) as file:
                if offset:
                    file.seek(offset)
                return read_rest(file, largest(path)) if size is None else read_up_to(file, size)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Damaged:
            raise
        except OSError as error:
            raise storage_failed("read", full, error) from error

    def create(self, path: str, data: bytes) -> bool:
        full = self._at(path)
        try:
            if os.path.lexists(full):
                return False
            draft_path = draft(full, data, self._open)
            try:
                created = link(draft_path, full, data)
            finally:
                os.unlink(draft_path)
            if created:
                sync_folder(os.path.dirname(full))
            return created
        except OSError as error:
            raise storage_failed("create", full, error) from error

    def replace(self, path: str, data: bytes, durable: bool = True) -> None:
        full = self._at(path)
        try:
            draft_path = draft(full, data, self._open, durable)
            try:
                os.rename(draft_path, full)
            except OSError:
                os.unlink(draft_path)
                raise
            if durable:
                sync_folder(os.path.dirname(full))
        except OSError as error:
            raise storage_failed("write", full, error) from error

    def appender(self, path: str) -> Appender:
        full = self._at(path)
        try:
            descriptor = self._open(full, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
            try:
                sync_folder(os.path.dirname(full))
            except OSError:
                os.close(descriptor)
                os.unlink(full)
                raise
        except OSError as error:
            raise storage_failed("create", full, error) from error
        return _LocalAppender(full, descriptor)

    def sync(self, path: str) -> None:
        full = self._at(path, is_followed=True)
        try:
            descriptor = open_own(full, os.O_RDONLY)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_failed("sync", full, error) from error
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise storage_failed("sync", full, error) from error
        finally:
            os.close(descriptor)

    def settle(self, path: str) -> bool:
        """Return True: a process that has a file open may go on, for only lines that are read and then synced (`open_writer`) count."""
        return True

    def remove(self, path: str) -> None:
        full = self._at(path)
        try:
            os.unlink(full)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_failed("remove", full, error) from error

    def exists(self, path: str) -> bool:
        full = self._at(path)
        try:
            os.lstat(full)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise storage_failed("look at", full, error) from error
        return True

    def other_writers(self, own: str) -> str:
        try:
            folder, ours = os.stat(self.root), os.stat(self._at(own))
        except OSError as error:
            raise storage_failed("look at", self.root, error) from error
        # The owner of our own file, as the file system writes it: NFS may take us for another. A volume of Kubernetes with `fsGroup` gets
        # the bit of the group's id and lets that group write: it is the pods' own.
        shared = stat.S_IWOTH | (0 if folder.st_mode & stat.S_ISGID else stat.S_IWGRP)
        return not_private(folder.st_uid, ours.st_uid, folder.st_mode & 0o777, folder.st_mode & shared)

    def gone(self) -> bool:
        return False

    def _open(self, full: str, flags: int) -> int:
        try:
            return os.open(full, flags | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            make_folders(os.path.dirname(full), 0o700)
            return os.open(full, flags | os.O_CLOEXEC, 0o600)


class _LocalAppender:
    def __init__(self, path: str, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._held_to = 0  # offset in the file up to which the disk is ours

    def write(self, data: bytes) -> None:
        self._do("append", lambda: write_all(self._descriptor, data))

    def sync(self) -> None:
        self._do("sync", lambda: os.fdatasync(self._descriptor))

    def truncate(self, size: int) -> None:
        self._held_to = 0  # it is given back
        self._do("truncate", lambda: os.ftruncate(self._descriptor, size))

    def hold(self, size: int) -> None:
        self._do("append", lambda: self._hold(size))

    def _hold(self, size: int) -> None:
        length = os.fstat(self._descriptor).st_size
        if self._held_to < length + size:
            held_to = length - length % _PAGE + size + _PAGE
            linux.allocate(self._descriptor, length, held_to - length)
            self._held_to = held_to

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            if self._held_to:
                with contextlib.suppress(OSError):  # a file that keeps what it held is as good
                    os.ftruncate(descriptor, os.fstat(descriptor).st_size)
            self._do("close", lambda: os.close(descriptor))

    def _do(self, doing: str, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            raise storage_failed(doing, self._path, error) from error


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`: a disk that fills up takes a part first, and names the reason on the next call."""
    done = os.write(descriptor, data)
    if done < len(data):
        rest = memoryview(data)[done:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def draft_of(full: str) -> str:
    """Return a unique path beside `full` to write its content to first; listings leave such names out, and `remove_drafts` knows them. All
    drafts are named so, on HDFS too.
    """
    folder, name = os.path.split(full)
    return os.path.join(folder, f".{name[:200]}.{secrets.token_hex(6)}.tmp")


def remove_drafts(root: str, age: float = DRAFT_AGE) -> None:
    """Remove the drafts below `root` that were last written over `age` seconds ago: of writers that were killed. Files in `work` belong to
    the programs.
    """
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "work"]
        for path in (os.path.join(folder, name) for name in names if _DRAFT.fullmatch(name)):
            with contextlib.suppress(OSError):  # it was renamed meanwhile, or another removed it
                if time.time() - os.stat(path).st_mtime > age:
                    os.unlink(path)


def draft(full: str, data: bytes, opened: Callable[[str, int], int], durable: bool = True) -> str:
    """Write `data` to a draft beside `full` and return its path; where that fails, remove it again. `opened(path, flags)` opens it."""
    path = draft_of(full)
    descriptor = opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        write_all(descriptor, data)
        if durable:
            os.fsync(descriptor)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
    return path


def link(draft: str, full: str, data: bytes, mode: int = 0o600) -> bool:
    """Give `draft`, which holds `data`, the name `full` too; return False where that exists. Only one of several callers gets True."""
    try:
        os.link(draft, full)
    except FileExistsError:
        # NFS may repeat a link whose answer was lost (open(2), O_EXCL): two names then prove that it was ours.
        return os.stat(draft).st_nlink == 2
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return _create_in_place(full, data, mode)
    return True


def _create_in_place(full: str, data: bytes, mode: int) -> bool:
    try:
        descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        return False
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def make_folders(folder: str, mode: int) -> None:
    """Make a folder and those above it, all durable."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    make_folders(parent, mode)
    try:
        os.mkdir(folder, mode)
    except FileExistsError:
        return
    sync_folder(parent)


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems know no fsync of a directory
            raise
    finally:
        os.close(descriptor)
