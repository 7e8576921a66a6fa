"""Stores keep data: folders of files under a URL, of this machine or of any storage that fsspec opens.

A `Store` moves whole files; the log's `Storage` underneath makes the small files that decide something (`create` is
exclusive). Paths are relative to the store's URL, with "/" between their parts.

Stores differ in one attribute. Where a store `renames`, a folder moves in one step, all or nothing: a local or mounted
directory, HDFS. Elsewhere (S3, Google, Azure, memory) the store itself copies files, one by one, and a manifest written
last lists the files that belong to the whole.

Choice of libraries: `file://` and bare paths use the operating system and import nothing else. s3, gs and az go
through obstore, whose one abi3 build serves every Python, behind its fsspec class; credentials and endpoint come from
the environment that the cloud's own tools read (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_REGION, AWS_ENDPOINT_URL, instance and web identities). hdfs and viewfs are `hdfs.HdfsStore`, by hdfs-native. Without obstore installed,
and for every other scheme, fsspec finds its own (s3fs, gcsfs, ...).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Protocol
from urllib.parse import unquote

import attrs

from trainmaster.core.errors import AWAY, StorageFailed
from trainmaster.core.input.splits import File
from trainmaster.data.store.transfer import CHUNK, THREADS, copy_file, retried, safe_path, writing
from trainmaster.data.store.trees import leads_back
from trainmaster.log import objects
from trainmaster.log.storage import (
    LISTING,
    NO_LINKS,
    draft,
    draft_of,
    is_inside,
    link,
    make_folders,
    open_own,
    read_rest,
    read_up_to,
    require_inside,
    sync_folder,
)
from trainmaster.runtime.folders import require_writable

_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
STORES = {  # scheme of a URL -> the class of its stores, loaded when one is opened; every other scheme is fsspec's (`RemoteStore`)
    "hdfs": "trainmaster.data.store.hdfs:HdfsStore",
    "viewfs": "trainmaster.data.store.hdfs:HdfsStore",
}
_SMALL = 64 * 1024 * 1024  # files up to this size are put by one call
_COPY_LIMIT = 5 * 1024**3  # S3's CopyObject takes no more (Amazon S3 API reference)
_STAMPS = ("e_tag", "ETag", "etag", "mtime", "modification_time", "LastModified", "last_modified", "created")

Step = Callable[[int], None]


@attrs.frozen(slots=True)
class Entry:
    """One name in a folder; for a folder, size and stamp mean nothing. `odd`: what the entry is, if neither file nor folder."""

    name: str
    folder: bool
    size: int = 0
    stamp: str = ""
    odd: str = ""


class Store(Protocol):
    """Folders of files under `url`. A missing file raises FileNotFoundError; other errors are the storage's own."""

    url: str
    renames: bool
    threads: int  # files that are best moved at once

    @property
    def folder(self) -> str | None:
        """Return the directory of this machine that the store is; None for a store elsewhere."""

    def entries(self, folder: str) -> list[Entry]:
        """Return the entries of `folder`, by name, hidden names too; none where it does not exist."""

    def files(self, folder: str = "") -> list[File]:
        """Return every file below `folder`, with its path in this store."""

    def look(self, path: str) -> File | None:
        """Return the file at `path` as it is now; None where there is none."""

    def exists(self, path: str) -> bool:
        """Tell whether there is a file or folder."""

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""

    def read_flushed(self, path: str, offset: int, size: int) -> bytes | None:
        """Read up to `size` bytes that are flushed to an open file, and do not count as its size yet; None once it is closed."""

    def get(self, path: str) -> bytes | None:
        """Return the content of a small file; None where there is none. Raises Damaged where it has more than `LISTING` bytes."""

    def put(self, path: str, data: bytes) -> None:
        """Make or replace a small file; readers see the old or the new."""

    def create(self, path: str, data: bytes) -> bool:
        """Make a small file; return False where it exists. If several callers try at once, one gets True."""

    def upload(self, local: str, path: str, step: Step) -> None:
        """Put a file of this machine at `path`, replacing what is there. It appears whole."""

    def copy(self, source: str, target: str) -> None:
        """Copy a file within the store, replacing what is there."""

    def move(self, source: str, target: str, replace: bool = False) -> None:
        """Move a file or, where the store `renames`, a folder. Raises FileExistsError where the target exists; a file may `replace` one."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all that is in it; nothing where there is none."""

    def make_folder(self, path: str) -> None:
        """Make a folder, with those above it; do nothing where folders are only parts of names."""

    def remove_folder(self, path: str) -> bool:
        """Remove a folder if it is empty, even while others put files there. Return True if it is gone."""

    def unwritable(self, probe: str) -> str | None:
        """Say why nothing can be made there; None where it can, or where only a `probe` could tell and none is given: the path of a small
        file that may be written and removed to find out.
        """


def store_for(url: str, is_own: bool = False) -> Store:
    """Return the store at a path or URL. Raises BadInput for an unknown scheme. `is_own`: Trainmaster has made all that is there, so no
    link out of the directory belongs there. In an input the user's own links are followed.
    """
    if (path := local_path(url)) is not None:
        return LocalStore(path, is_own)
    if (name := STORES.get(url.partition("://")[0].lower())) is None:
        return RemoteStore(url)
    module, _, class_name = name.partition(":")
    store: Store = getattr(import_module(module), class_name)(url)
    return store


def remove_empty(store: Store, path: str) -> None:
    """Remove the folders that the removal of `path` has left empty; a new file may have such a folder's name by now."""
    while (path := path.rpartition("/")[0]) and store.remove_folder(path):
        pass


def local_path(url: str) -> str | None:
    """Return the absolute path that a bare path or file:// URL means; None for others. Patterns are kept as they are."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return os.path.abspath(os.path.expanduser(url)) + ("/" if url.endswith("/") and url.strip("/") else "")
    if scheme[0].lower() not in ("file://", "local://"):
        return None
    host, slash, path = url[scheme.end() :].partition("/")
    return slash + unquote(path) if host in ("", "localhost") else os.path.abspath(unquote(f"{host}/{path}"))


class LocalStore:
    """A store in a directory. Files and folders get the permissions that the user's umask gives.

    Nothing is made, moved or removed through a link that leads out of it; in one that `is_own` (`store_for`), nothing is read so either.
    """

    renames = True
    threads = THREADS

    def __init__(self, root: str, is_own: bool = False) -> None:
        self.root = self.url = root.rstrip("/") or "/"
        self._is_own = is_own
        self._opener = open_own if is_own else None

    @property
    def folder(self) -> str | None:
        return self.root

    def _at(self, path: str, is_read: bool = False) -> str:
        """Return the full path. Raises Damaged where a link leads out: one above it, or to read also the path itself."""
        full_path = safe_path(self.root, path) if path else self.root
        if self._is_own or not is_read:
            require_inside(self.root, path, is_followed=is_read)
        return full_path

    def entries(self, folder: str) -> list[Entry]:
        full_path, boundary = self._at(folder, is_read=True), os.path.realpath(self.root) if self._is_own else ""
        try:
            with os.scandir(full_path) as listing:
                entries = filter(None, (_entry(entry, boundary) for entry in listing))
                return sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self, folder: str = "") -> list[File]:
        files, folders = [], [folder]
        for parent in folders:
            for entry in self.entries(parent):
                path = f"{parent}/{entry.name}" if parent else entry.name
                if entry.folder:
                    folders.append(path)
                elif not entry.odd:
                    files.append(File(path, entry.size, stamp=entry.stamp))
        if not files and (file := self.look(folder)):
            return [file]
        return files

    def look(self, path: str) -> File | None:
        full_path = self._at(path, is_read=True)
        if not os.path.isfile(full_path):
            return None
        status = os.stat(full_path)
        return File(path, status.st_size, stamp=stamp_of(status))

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._at(path))

    def read(self, path: str, offset: int, size: int) -> bytes:
        with open(self._at(path, is_read=True), "rb", buffering=0, opener=self._opener) as file:
            file.seek(offset)
            return read_up_to(file, size)

    def read_flushed(self, path: str, offset: int, size: int) -> None:
        return None  # the size has all

    def get(self, path: str) -> bytes | None:
        full_path = self._at(path, is_read=True)
        try:
            with open(full_path, "rb", buffering=0, opener=self._opener) as file:
                return read_rest(file, LISTING)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, path: str, data: bytes) -> None:
        full_path = self._at(path)
        with writing(full_path, len(data)):
            draft_path = draft(full_path, data, self._open)
        os.replace(draft_path, full_path)
        _sync_name(full_path)

    def create(self, path: str, data: bytes) -> bool:
        full_path = self._at(path)
        if os.path.lexists(full_path):
            return False
        with writing(full_path, len(data)):
            draft_path = draft(full_path, data, self._open)
        try:
            created = link(draft_path, full_path, data, 0o666)
        finally:
            os.unlink(draft_path)
        _sync_name(full_path)
        return created

    def upload(self, local: str, path: str, step: Step) -> None:
        full_path = self._at(path)
        os.makedirs(os.path.dirname(full_path), exist_ok=True)
        draft_path = draft_of(full_path)
        try:
            copy_file(local, draft_path, step, durable=True)
            os.replace(draft_path, full_path)
        except BaseException:
            if os.path.lexists(draft_path):
                os.unlink(draft_path)
            raise

    def copy(self, source: str, target: str) -> None:
        self.upload(self._at(source, is_read=True), target, lambda _: None)

    def move(self, source: str, target: str, replace: bool = False) -> None:
        full_source, full_target = self._at(source), self._at(target)
        os.makedirs(os.path.dirname(full_target), exist_ok=True)
        if replace:
            os.replace(full_source, full_target)
        elif os.path.isdir(full_source):
            if os.path.lexists(full_target):  # rename(2) would replace an empty folder
                raise FileExistsError(full_target)
            try:
                os.rename(full_source, full_target)
            except OSError as error:
                raise (FileExistsError(full_target) if os.path.lexists(full_target) else error) from error
        else:
            try:
                os.link(full_source, full_target, follow_symlinks=False)  # refuses an existing name, as rename does not
            except FileExistsError:
                if not os.path.samefile(full_source, full_target):  # else an earlier call has got as far as this
                    raise
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                if os.path.lexists(full_target):
                    raise FileExistsError(full_target) from error
                os.rename(full_source, full_target)
                return
            os.unlink(full_source)

    def remove(self, path: str) -> None:
        full_path = self._at(path)
        try:
            if os.path.isdir(full_path) and not os.path.islink(full_path):
                shutil.rmtree(full_path)
            else:
                os.unlink(full_path)
        except (FileNotFoundError, NotADirectoryError):
            return

    def make_folder(self, path: str) -> None:
        os.makedirs(self._at(path), exist_ok=True)

    def remove_folder(self, path: str) -> bool:
        full_path = self._at(path)
        with contextlib.suppress(OSError):
            os.rmdir(full_path)
        return not self.exists(path)

    def unwritable(self, probe: str) -> str | None:
        try:
            require_writable(self.root, is_tried=bool(probe))
        except OSError as error:
            if error.errno in AWAY:
                raise
            return error.strerror
        return None

    def _open(self, full: str, flags: int) -> int:
        make_folders(os.path.dirname(full), 0o777)
        return os.open(full, flags | os.O_CLOEXEC, 0o666)


class RemoteStore:
    """A store behind any URL that fsspec knows."""

    renames = False
    threads = THREADS
    folder: str | None = None

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") + ("//" if url.endswith("://") else "")
        self._fs, self._root = objects.open_filesystem(self.url)
        self._small = objects.ObjectStorage(self.url)
        package = type(self._fs).__module__.partition(".")[0]
        self._folders = package not in ("obstore", "s3fs", "gcsfs", "adlfs")

    def _at(self, path: str) -> str:
        return safe_path(f"{self._root}/", path) if path else self._root

    def _below(self, name: str) -> str:
        return name.rstrip("/").removeprefix(self._root).lstrip("/")

    def entries(self, folder: str) -> list[Entry]:
        at = self._at(folder)
        self._fs.invalidate_cache(at)
        try:
            rows = self._fs.ls(at, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        entries = []
        for row in rows:
            name = self._below(str(row["name"])).rpartition("/")[2]
            if name and str(row["name"]).rstrip("/") != at.rstrip("/"):
                entries.append(Entry(name, row["type"] == "directory", int(row.get("size") or 0), _stamp(row)))
        return sorted(entries, key=lambda entry: entry.name)

    def files(self, folder: str = "") -> list[File]:
        self._fs.invalidate_cache()
        rows = self._fs.find(self._at(folder), detail=True).values()
        file_rows = [row for row in rows if row["type"] != "directory" and not str(row["name"]).endswith("/")]
        return sorted(
            (File(self._below(str(row["name"])), int(row.get("size") or 0), stamp=_stamp(row)) for row in file_rows),
            key=lambda file: file.path,
        )

    def look(self, path: str) -> File | None:
        row = self._info(path)
        if row is None or row["type"] == "directory":
            return None
        return File(path, int(row.get("size") or 0), stamp=_stamp(row))

    def exists(self, path: str) -> bool:
        return self._info(path) is not None

    def read(self, path: str, offset: int, size: int) -> bytes:
        return bytes(self._fs.cat_file(self._at(path), start=offset, end=offset + size)) if size else b""

    def read_flushed(self, path: str, offset: int, size: int) -> None:
        return None  # objects appear whole

    def get(self, path: str) -> bytes | None:
        return self._small.read_rest(path, 0, LISTING)

    def put(self, path: str, data: bytes) -> None:
        self._make_parent(path)
        self._small.replace(path, data)

    def create(self, path: str, data: bytes) -> bool:
        self._make_parent(path)
        return self._small.create(path, data)

    def upload(self, local: str, path: str, step: Step) -> None:
        size = os.path.getsize(local)
        self._make_parent(path)
        if size <= _SMALL:
            self._fs.put_file(local, self._at(path))
            step(size)
            return
        with open(local, "rb", buffering=0) as file:
            self._write(path, iter(lambda: file.read(CHUNK), b""), step)

    def copy(self, source: str, target: str) -> None:
        self._make_parent(target)
        size = self._fs.size(self._at(source)) or 0
        if size <= _COPY_LIMIT:
            self._fs.cp_file(self._at(source), self._at(target))
            return
        offsets = range(0, size, CHUNK)
        self._write(target, (self.read(source, at, min(CHUNK, size - at)) for at in offsets), lambda _: None)

    def move(self, source: str, target: str, replace: bool = False) -> None:
        if not replace and self.exists(target):
            raise FileExistsError(f"{self.url}/{target}")
        self.copy(source, target)
        self.remove(source)

    def remove(self, path: str) -> None:
        self._fs.invalidate_cache()
        try:
            if self._fs.isfile(self._at(path)):
                self._fs.rm_file(self._at(path))
            else:
                self._fs.rm(self._at(path), recursive=True)
        except FileNotFoundError:
            return

    def make_folder(self, path: str) -> None:
        self._make_parent(f"{path}/")

    def remove_folder(self, path: str) -> bool:
        if self._folders:
            with contextlib.suppress(OSError):
                self._fs.rmdir(self._at(path))
        return not self.exists(path)

    def unwritable(self, probe: str) -> str | None:
        if not probe:
            return None

        def trial() -> None:
            self.put(probe, b"")
            self.remove(probe)

        try:
            retried("write there", self.url, trial)
        except StorageFailed as error:
            return error.message
        return None

    def _info(self, path: str) -> dict[str, Any] | None:
        self._fs.invalidate_cache(self._at(path))
        try:
            row: dict[str, Any] = self._fs.info(self._at(path))
        except FileNotFoundError:
            return None
        return row

    def _make_parent(self, path: str) -> None:
        """Make the folder of a path. Objects need none; file systems do."""
        if self._folders:
            self._fs.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)

    def _write(self, path: str, chunks: Iterator[bytes], step: Step) -> None:
        file = self._fs.open(self._at(path), "wb")
        try:
            for data in chunks:
                file.write(data)
                step(len(data))
        except BaseException:
            file.closed = True  # its close() would put the bytes written so far, as if they were the whole
            raise
        file.close()


def _sync_name(at: str) -> None:
    """Make the name of a file durable; its folder may be gone by now, with all that was in it."""
    with contextlib.suppress(FileNotFoundError):
        sync_folder(os.path.dirname(at))


def stamp_of(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_ino}"


def _stamp(row: dict[str, Any]) -> str:
    stamp = next((row[key] for key in _STAMPS if row.get(key)), "")
    return str(stamp)


def _entry(entry: os.DirEntry[str], boundary: str) -> Entry | None:
    try:
        if boundary and entry.is_symlink() and not is_inside(entry.path, boundary):
            return Entry(entry.name, False, odd="a link that leads out of the directory")
        if entry.is_dir():
            return None if entry.is_symlink() and leads_back(entry.path) else Entry(entry.name, True)
        status = entry.stat()
    except FileNotFoundError:  # a link to nothing, or a file removed since it was listed
        return Entry(entry.name, False, odd="a link to nothing") if os.path.islink(entry.path) else None
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
        return Entry(entry.name, False, odd=kinds.get(stat.S_IFMT(status.st_mode), "a device"))
    return Entry(entry.name, False, status.st_size, stamp_of(status))
