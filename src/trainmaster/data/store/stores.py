"""Where data lies: folders of files under a URL, of this machine or of any storage that fsspec opens.

A `Store` moves whole files; the log's `Storage` underneath makes the small ones that decide something (`create` is
exclusive). Paths are relative to the store's URL, with "/" between their parts.

What stores differ in is said by one attribute. Where a store `renames`, a folder moves in one step, all or nothing: a
local or mounted directory, HDFS. Elsewhere (S3, Google, Azure, memory) files are copied by the store itself, one by
one, and a manifest written last says what belongs to the whole.

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

from trainmaster.core.errors import StorageFailed
from trainmaster.core.input.splits import File
from trainmaster.data.store.transfer import CHUNK, THREADS, copy_file, retried, writing
from trainmaster.data.store.trees import leads_back
from trainmaster.log import objects
from trainmaster.log.storage import NO_LINKS, draft, draft_of, link, make_folders, sync_folder

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
    """What a folder holds under one name; of a folder, size and stamp mean nothing. `odd`: what it is, if neither file nor folder."""

    name: str
    folder: bool
    size: int = 0
    stamp: str = ""
    odd: str = ""


class Store(Protocol):
    """Folders of files under `url`. What is not there raises FileNotFoundError; other errors are the storage's own."""

    url: str
    renames: bool
    threads: int  # files that are best moved at once

    @property
    def folder(self) -> str | None:
        """The directory of this machine that the store is; None where it is none."""

    def entries(self, folder: str) -> list[Entry]:
        """What `folder` holds, by name, hidden names too; nothing where it does not exist."""

    def files(self, folder: str = "") -> list[File]:
        """Every file below `folder`, with its path in this store."""

    def look(self, path: str) -> File | None:
        """The file at `path` as it is now; None where there is none."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def get(self, path: str) -> bytes | None:
        """The content of a small file; None where there is none."""

    def put(self, path: str, data: bytes) -> None:
        """Make or replace a small file; readers see the old or the new."""

    def create(self, path: str, data: bytes) -> bool:
        """Make a small file; False where it exists. Of several who try at once, one is told True."""

    def upload(self, local: str, path: str, step: Step) -> None:
        """Put a file of this machine at `path`, replacing what is there. It appears whole."""

    def copy(self, source: str, target: str) -> None:
        """Copy a file within the store, replacing what is there."""

    def move(self, source: str, target: str, replace: bool = False) -> None:
        """Move a file or, where the store `renames`, a folder. Raises FileExistsError where the target exists; a file may `replace` one."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all that is in it; nothing where there is none."""

    def make_folder(self, path: str) -> None:
        """Make a folder, with those above it; where folders are nothing but parts of names, this does nothing."""

    def remove_folder(self, path: str) -> bool:
        """Remove a folder if nothing is in it, whoever may be putting something there; whether it is gone."""

    def unwritable(self, probe: str) -> str | None:
        """Say why nothing can be made there; None where it can, or where that is not looked at without a `probe`: the path of a small file
        that may be written and removed to find out.
        """


def store_for(url: str) -> Store:
    """The store at a path or URL. Raises BadInput for a scheme that nobody knows."""
    if (path := local_path(url)) is not None:
        return LocalStore(path)
    if (name := STORES.get(url.partition("://")[0].lower())) is None:
        return RemoteStore(url)
    module, _, class_name = name.partition(":")
    store: Store = getattr(import_module(module), class_name)(url)
    return store


def remove_empty(store: Store, path: str) -> None:
    """Remove the folders that what was at `path` leaves empty; a new file may have such a folder's name by now."""
    while (path := path.rpartition("/")[0]) and store.remove_folder(path):
        pass


def local_path(url: str) -> str | None:
    """The absolute path that a bare path or file:// URL means; None for others. Patterns are kept as they are."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return os.path.abspath(os.path.expanduser(url)) + ("/" if url.endswith("/") and url.strip("/") else "")
    if scheme[0].lower() not in ("file://", "local://"):
        return None
    host, slash, path = url[scheme.end() :].partition("/")
    return slash + unquote(path) if host in ("", "localhost") else os.path.abspath(unquote(f"{host}/{path}"))


class LocalStore:
    """A directory. Files and folders get the permissions that the user's umask gives."""

    renames = True
    threads = THREADS

    def __init__(self, root: str) -> None:
        self.root = self.url = root.rstrip("/") or "/"

    @property
    def folder(self) -> str | None:
        return self.root

    def _at(self, path: str) -> str:
        return os.path.join(self.root, path) if path else self.root

    def entries(self, folder: str) -> list[Entry]:
        try:
            with os.scandir(self._at(folder)) as found:
                return sorted(filter(None, map(_entry, found)), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self, folder: str = "") -> list[File]:
        found, folders = [], [folder]
        for at in folders:
            for entry in self.entries(at):
                path = f"{at}/{entry.name}" if at else entry.name
                if entry.folder:
                    folders.append(path)
                elif not entry.odd:
                    found.append(File(path, entry.size, stamp=entry.stamp))
        if not found and (one := self.look(folder)):
            return [one]
        return found

    def look(self, path: str) -> File | None:
        full_path = self._at(path)
        if not os.path.isfile(full_path):
            return None
        status = os.stat(full_path)
        return File(path, status.st_size, stamp=stamp_of(status))

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._at(path))

    def read(self, path: str, offset: int, size: int) -> bytes:
        with open(self._at(path), "rb", buffering=0) as file:
            file.seek(offset)
            data = file.read(size) or b""
            while len(data) < size and (more := file.read(size - len(data))):
                data += more
            return data

    def get(self, path: str) -> bytes | None:
        try:
            with open(self._at(path), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, path: str, data: bytes) -> None:
        at = self._at(path)
        with writing(at, len(data)):
            beside = draft(at, data, self._open)
        os.replace(beside, at)
        _sync_name(at)

    def create(self, path: str, data: bytes) -> bool:
        at = self._at(path)
        if os.path.lexists(at):
            return False
        with writing(at, len(data)):
            beside = draft(at, data, self._open)
        try:
            made = link(beside, at, data, 0o666)
        finally:
            os.unlink(beside)
        _sync_name(at)
        return made

    def upload(self, local: str, path: str, step: Step) -> None:
        at = self._at(path)
        os.makedirs(os.path.dirname(at), exist_ok=True)
        beside = draft_of(at)
        try:
            copy_file(local, beside, step, durable=True)
            os.replace(beside, at)
        except BaseException:
            if os.path.lexists(beside):
                os.unlink(beside)
            raise

    def copy(self, source: str, target: str) -> None:
        self.upload(self._at(source), target, lambda _: None)

    def move(self, source: str, target: str, replace: bool = False) -> None:
        at = self._at(target)
        os.makedirs(os.path.dirname(at), exist_ok=True)
        if replace:
            os.replace(self._at(source), at)
        elif os.path.isdir(self._at(source)):
            if os.path.lexists(at):  # rename(2) would replace an empty folder
                raise FileExistsError(at)
            try:
                os.rename(self._at(source), at)
            except OSError as error:
                raise (FileExistsError(at) if os.path.lexists(at) else error) from error
        else:
            try:
                os.link(self._at(source), at)  # refuses an existing name, as rename does not
            except FileExistsError:
                if not os.path.samefile(self._at(source), at):  # else a call before got as far as this
                    raise
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                if os.path.lexists(at):
                    raise FileExistsError(at) from error
                os.rename(self._at(source), at)
                return
            os.unlink(self._at(source))

    def remove(self, path: str) -> None:
        at = self._at(path)
        try:
            if os.path.isdir(at) and not os.path.islink(at):
                shutil.rmtree(at)
            else:
                os.unlink(at)
        except (FileNotFoundError, NotADirectoryError):
            return

    def make_folder(self, path: str) -> None:
        os.makedirs(self._at(path), exist_ok=True)

    def remove_folder(self, path: str) -> bool:
        with contextlib.suppress(OSError):
            os.rmdir(self._at(path))
        return not self.exists(path)

    def unwritable(self, probe: str) -> str | None:
        place = self.root
        while not os.path.lexists(place):
            place = os.path.dirname(place)
        if not os.path.isdir(place):
            return f"{place} is not a directory"
        return None if os.access(place, os.W_OK | os.X_OK) else f"no permission to write in {place}"

    def _open(self, full: str, flags: int) -> int:
        make_folders(os.path.dirname(full), 0o777)
        return os.open(full, flags | os.O_CLOEXEC, 0o666)


class RemoteStore:
    """Files behind any URL that fsspec knows."""

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
        return f"{self._root}/{path}" if path else self._root

    def _below(self, name: str) -> str:
        return name.rstrip("/").removeprefix(self._root).lstrip("/")

    def entries(self, folder: str) -> list[Entry]:
        at = self._at(folder)
        self._fs.invalidate_cache(at)
        try:
            rows = self._fs.ls(at, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = []
        for row in rows:
            name = self._below(str(row["name"])).rpartition("/")[2]
            if name and str(row["name"]).rstrip("/") != at.rstrip("/"):
                found.append(Entry(name, row["type"] == "directory", int(row.get("size") or 0), _stamp(row)))
        return sorted(found, key=lambda entry: entry.name)

    def files(self, folder: str = "") -> list[File]:
        self._fs.invalidate_cache()
        rows = self._fs.find(self._at(folder), detail=True).values()
        found = [row for row in rows if row["type"] != "directory" and not str(row["name"]).endswith("/")]
        return sorted(
            (File(self._below(str(row["name"])), int(row.get("size") or 0), stamp=_stamp(row)) for row in found),
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

    def get(self, path: str) -> bytes | None:
        return self._small.read(path)

    def put(self, path: str, data: bytes) -> None:
        self._make_folder(path)
        self._small.replace(path, data)

    def create(self, path: str, data: bytes) -> bool:
        self._make_folder(path)
        return self._small.create(path, data)

    def upload(self, local: str, path: str, step: Step) -> None:
        size = os.path.getsize(local)
        self._make_folder(path)
        if size <= _SMALL:
            self._fs.put_file(local, self._at(path))
            step(size)
            return
        with open(local, "rb", buffering=0) as file:
            self._write(path, iter(lambda: file.read(CHUNK), b""), step)

    def copy(self, source: str, target: str) -> None:
        self._make_folder(target)
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
        self._make_folder(f"{path}/")

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

    def _make_folder(self, path: str) -> None:
        """Objects need no folder; file systems do."""
        if self._folders:
            self._fs.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)

    def _write(self, path: str, chunks: Iterator[bytes], step: Step) -> None:
        file = self._fs.open(self._at(path), "wb")
        try:
            for data in chunks:
                file.write(data)
                step(len(data))
        except BaseException:
            file.closed = True  # its close() would put what was written so far, as if it were the whole
            raise
        file.close()


def _sync_name(at: str) -> None:
    """Have the name of a file on stable storage; its folder may be gone by now, with all that was in it."""
    with contextlib.suppress(FileNotFoundError):
        sync_folder(os.path.dirname(at))


def stamp_of(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_ino}"


def _stamp(row: dict[str, Any]) -> str:
    found = next((row[key] for key in _STAMPS if row.get(key)), "")
    return str(found)


def _entry(entry: os.DirEntry[str]) -> Entry | None:
    try:
        if entry.is_dir():
            return None if entry.is_symlink() and leads_back(entry.path) else Entry(entry.name, True)
        status = entry.stat()
    except FileNotFoundError:  # else it was removed since it was listed
        return Entry(entry.name, False, odd="a link to nothing") if os.path.islink(entry.path) else None
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
        return Entry(entry.name, False, odd=kinds.get(stat.S_IFMT(status.st_mode), "a device"))
    return Entry(entry.name, False, status.st_size, stamp_of(status))
