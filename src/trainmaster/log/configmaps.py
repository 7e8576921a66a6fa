"""A storage for a job that names none: ConfigMaps of its namespace, a few small ones for a small log.

    configmaps://[CONTEXT@]NAMESPACE/JOB

CONTEXT names one of the kubeconfig's, its "/" and "@" as %2F and %40; without it: the current one, or the pod's.

A file is a *head*, the ConfigMap `<job>.<hash of the path>`, and where it is larger than a chunk (CHUNK bytes) further objects with the
rest. Annotations of each give the file's path and the object's size, so that a listing needs metadata alone. Two kinds:

- *whole* files, made by `create` and `replace`: the rest is written first, under a name that only this write uses, then the head, where
  the API server decides: a POST is exclusive, a PUT names the version that it replaces. So readers see the old or the new.
- *growing* files, of an `Appender`: chunk n is `<head>.<n>`, filled in order and immutable once full. Each PUT names the version that the
  writer knows (resourceVersion), so of two writers the one that knows less loses. `settle` makes the last chunk immutable: then
  no writer that holds the file open can add to it, and all synced bytes are there.

Every object carries the mark of the write that made it. The mark resolves a lost answer: a writer that meets its own mark has
succeeded.

An `Appender` keeps written bytes until `sync`: a job's writer calls that at once for barriers, and once a second for notes; each costs
one request. The storage is bounded: LOG bytes of events (then those that the older of the snapshots covers are dropped, oldest first) and
OUTPUT bytes of the programs' output (then the oldest attempts are dropped). More belongs into a storage of the job's own.
"""

from __future__ import annotations

import functools
import itertools
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

from trainmaster.core.errors import BadInput, StorageFailed, TrainmasterError
from trainmaster.kube.blocking import Blocking
from trainmaster.kube.client import Object
from trainmaster.kube.config import ACCOUNT, in_cluster, load
from trainmaster.kube.errors import ApiError, ConfError, Conflict, Forbidden, Invalid, KubeError, NotFound, Unauthorized
from trainmaster.kube.kinds import CONFIGMAPS
from trainmaster.log.chunks import (
    CHUNK,
    MARK,
    PRINTED,
    Part,
    Row,
    Swapped,
    chunk_of,
    content,
    digest,
    head_of,
    label,
    parts,
    plain,
    read,
)
from trainmaster.log.output import WORDS, folder, piece_name
from trainmaster.log.segments import segments
from trainmaster.log.snapshots import snapshot_ends
from trainmaster.log.storage import Appender, Entry, Storage, check_size, checked, largest, storage_failed

SCHEME = "configmaps://"
LOG = 16 * 1024 * 1024  # bytes of a job's events, snapshots and records
OUTPUT = 8 * 1024 * 1024  # bytes of its programs' output
TAIL = 256 * 1024  # bytes of one attempt's output
SEGMENT = (
    256 * 1024
)  # bytes in a file of events: events that snapshots cover are dropped file by file, except each epoch's first file
_TIMEOUT = 15.0  # s of one try
_PATIENCE = 10.0  # s of tries within one call; the caller tries again, and says what it waits for
_ROUNDS = 10
_QUOTA = "exceeded quota"


class ConfigMapStorage:
    """A storage of the files under a URL, as ConfigMaps; owned by the ConfigMap `<job>` where there is one."""

    appends = True
    local = False
    conditional = True
    droppable: int | None = SEGMENT

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._context, namespace, self.job = _parse_url(self.url)
        with _storage_errors("open", self.url):
            self._kube = _client(self._context, namespace, *_environment())
        self._prefix = plain(self.job)
        self._labels = {
            "app.kubernetes.io/managed-by": "trainmaster",
            "trainmaster/job": label(self.job),
            "trainmaster/part": "log",
        }
        self._job_selector = f"trainmaster/job={label(self.job)},trainmaster/part=log"
        self._owner: list[Object] | None = None
        self._settled: set[str] = set()
        self._bytes_used: dict[bool, int] = {}  # whether output -> bytes stored, as far as is known
        self._counting = threading.RLock()  # held by the log's thread and by those that keep output

    def other_writers(self, own: str) -> str:
        return ""  # the rights of the namespace tell

    def gone(self) -> bool:
        """Tell whether the job itself was deleted, and all its objects with it."""
        with _storage_errors("look for the job", self.url):
            try:
                self._kube.get(CONFIGMAPS, self.job, metadata=True)
            except NotFound:
                return True
        return False

    # -- the Protocol --

    def entries(self, folder: str) -> list[Entry]:
        top = checked(folder).partition("/")[0]
        with _storage_errors("list a folder", self._name(folder)):
            rows = self._rows(top)
        prefix = f"{folder}/" if folder else ""
        entries: dict[str, Entry] = {}
        for row in rows:
            if not row.path.startswith(prefix) or row.rest:
                continue
            name, has_more, _ = row.path[len(prefix) :].partition("/")
            size = entries[name].size if name in entries else 0
            entries[name] = Entry(name, 0 if has_more else size + row.listed, bool(has_more))
        return [entries[name] for name in sorted(entries)]

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes | None:
        if size is None:
            data = self.read(path, offset, largest(path) + 1)
            check_size(len(data or b""), largest(path), self._name(path))
            return data
        if size == 0:
            return b""
        with _storage_errors("read", self._name(path)):
            for _ in range(_ROUNDS):
                try:
                    return self._kube.run(read(self._kube.client, self._head(path), offset, size))
                except Swapped:
                    continue
        raise StorageFailed("it is replaced all the time", place=self._name(path), anchor="storage-failed")

    def create(self, path: str, data: bytes) -> bool:
        with _storage_errors("create", self._name(path)):
            return self._put_new(path, data)

    def replace(self, path: str, data: bytes, durable: bool = True) -> None:
        if path.startswith(f"{PRINTED}/") and path.endswith(".log") and len(data) > TAIL:
            data = WORDS.format(what=f"{len(data) - TAIL} bytes left out here").encode() + data[-TAIL:]
        with _storage_errors("write", self._name(path)):
            for _ in range(_ROUNDS):
                if self._put_new(path, data) or self._put_over(path, data):
                    return
        raise StorageFailed("others write it all the time", place=self._name(path), anchor="storage-failed")

    def appender(self, path: str) -> Appender:
        with _storage_errors("create", self._name(path)):
            mark = secrets.token_hex(6)
            chunk = self.make(self._object(Part(path, b"", mark, chunk=0)))
        if chunk is None:
            raise StorageFailed("it is there already", place=self._name(path), anchor="storage-failed")
        return _Growing(self, path, mark, chunk["metadata"]["resourceVersion"])

    def sync(self, path: str) -> None:
        """Do nothing: readers see synced bytes only."""

    def settle(self, path: str) -> bool:
        with _storage_errors("close", self._name(path)):
            if path not in self._settled and any(self._seal(path) for _ in range(_ROUNDS)):
                self._settled.add(path)
            return path in self._settled

    def remove(self, path: str) -> None:
        with _storage_errors("remove", self._name(path)), self._counting:
            self._drop(self._selector(path))
            self._bytes_used.clear()

    def exists(self, path: str) -> bool:
        with _storage_errors("look at", self._name(path)):
            try:
                self._kube.get(CONFIGMAPS, self._head(path), metadata=True)
            except NotFound:
                return False
            return True

    # -- whole files --

    def _put_new(self, path: str, data: bytes) -> bool:
        """Make a file that is not there; return False where it is."""
        mark, pieces = secrets.token_hex(6), parts(data)
        if len(pieces) > 1 and self.exists(path):
            return False
        self.room(path, len(data))
        self._put_rest(path, pieces, mark)
        if self.make(self._object(Part(path, pieces[0], mark, whole=(len(data), len(pieces))))) is not None:
            return True
        self._drop_rest(path, pieces, mark)
        return False

    def _put_over(self, path: str, data: bytes) -> bool:
        """Replace a file that is there; return False where it is gone, or has changed."""
        try:
            current = self._kube.get(CONFIGMAPS, self._head(path), metadata=True)
        except NotFound:
            return False
        mark, pieces = secrets.token_hex(6), parts(data)
        old = Row.of(current)
        if old.closed:  # its head is immutable: it was a growing file
            self.remove(path)
            return False
        self.room(path, len(data))
        self._put_rest(path, pieces, mark)
        head = self._object(Part(path, pieces[0], mark, whole=(len(data), len(pieces))))
        head["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        if self.put(head) is None:
            self._drop_rest(path, pieces, mark)
            return False
        if old.chunk is not None or old.listed > CHUNK:
            self._drop(f"{self._selector(path)},{MARK}={old.mark}")
        return True

    def _put_rest(self, path: str, pieces: list[bytes], mark: str) -> None:
        for n, piece in enumerate(pieces[1:], 1):
            self.make(self._object(Part(path, piece, mark, rest=n)))

    def _drop_rest(self, path: str, pieces: list[bytes], mark: str) -> None:
        if len(pieces) > 1:
            self._drop(f"{self._selector(path)},{MARK}={mark}")

    # -- growing files --

    def _seal(self, path: str) -> bool:
        """Close a growing file; return False where its writer was quicker, and this is to be tried again."""
        rows = [row for row in self._list_rows(self._selector(path)) if row.chunk is not None]
        if not rows:
            return True
        last = max(rows, key=lambda row: row.chunk or 0)
        if last.closed and last.size < CHUNK:
            return True
        if last.size >= CHUNK:  # an empty chunk after it, where its writer would go on
            assert last.chunk is not None
            return self.make(self._object(Part(path, b"", last.mark, chunk=last.chunk + 1, closed=True))) is not None
        current = self._kube.get(CONFIGMAPS, last.name)
        if Row.of(current).size >= CHUNK:  # filled since, and its writer is at the next one
            return False
        current["metadata"].setdefault("annotations", {})["trainmaster/closed"] = "true"
        return self.put({**current, "immutable": True}) is not None

    def chunk(self, path: str, mark: str, n: int, data: bytes, version: str) -> Object | None:
        """Write chunk `n` of a growing file, replacing its `version`; return None where another version is there."""
        obj = self._object(Part(path, data, mark, chunk=n, closed=len(data) >= CHUNK))
        if not version:
            return self.make(obj)
        obj["metadata"]["resourceVersion"] = version
        return self.put(obj)

    def read_chunk(self, path: str, n: int) -> Object:
        return self._kube.get(CONFIGMAPS, chunk_of(self._head(path), n))

    # -- objects --

    def make(self, obj: Object) -> Object | None:
        """POST an object; return None where another write has the name."""
        try:
            return self._kube.create(CONFIGMAPS, obj)
        except Conflict:
            return None

    def put(self, obj: Object) -> Object | None:
        """PUT an object; return None where the one there is not, or no longer, of that version."""
        try:
            return self._kube.replace(CONFIGMAPS, obj)
        except NotFound:
            return None
        except (Conflict, Invalid) as error:
            return self._own_earlier_write(obj, error)

    def _own_earlier_write(self, obj: Object, error: ApiError) -> Object | None:
        """Return the object that is there, if an earlier try of this same write, whose answer was lost, has left it."""
        if isinstance(error, Invalid) and "immutable" not in error.message:
            raise error
        if not error.doubtful:
            return None
        try:
            current = self._kube.get(CONFIGMAPS, obj["metadata"]["name"])
        except NotFound:
            return None
        same = current["metadata"].get("labels", {}).get(MARK) == obj["metadata"]["labels"][MARK]
        return current if same and content(current) == content(obj) else None

    def _object(self, part: Part) -> Object:
        return part.object(self._prefix, self._labels, self._owners())

    def _owners(self) -> list[Object]:
        if self._owner is None:
            try:
                about = self._kube.get(CONFIGMAPS, self.job, metadata=True)["metadata"]
                self._owner = [{"apiVersion": "v1", "kind": "ConfigMap", "name": self.job, "uid": about["uid"]}]
            except (NotFound, Invalid):
                self._owner = []
        return self._owner

    def _rows(self, top: str) -> list[Row]:
        """Return the objects in a folder of the root ("": in all)."""
        return self._list_rows(self._job_selector + (f",trainmaster/top={plain(top)}" if top else ""))

    def _list_rows(self, labels: str) -> list[Row]:
        return [Row.of(obj) for obj in self._kube.list(CONFIGMAPS, labels=labels, metadata=True)[0]]

    def _drop(self, labels: str) -> None:
        """Delete objects, a head before its rest; each by its name, for deleting a collection takes another right."""
        for row in sorted(self._list_rows(labels), key=lambda row: len(row.name)):
            self._kube.delete(CONFIGMAPS, row.name)

    def _selector(self, path: str) -> str:
        return f"{self._job_selector},trainmaster/file={digest(path)}"

    def _head(self, path: str) -> str:
        return head_of(self._prefix, checked(path))

    def _name(self, path: str) -> str:
        return f"{self.url}/{path}" if path else self.url

    # -- bounds --

    def room(self, path: str, size: int) -> None:
        """Make room for `size` more bytes. Raises StorageFailed."""
        with self._counting:
            self._make_room(path, size)

    def _make_room(self, path: str, size: int) -> None:
        printed = path.startswith(f"{PRINTED}/")
        limit = OUTPUT if printed else LOG
        if printed not in self._bytes_used or self._bytes_used[printed] + size > limit:
            rows = self._rows("")
            self._bytes_used = {kind: sum(row.size for row in rows if row.printed is kind) for kind in (True, False)}
            droppable = _droppable_output(rows, path) if printed else self._droppable_events()
            while self._bytes_used[printed] + size > limit and (file := next(droppable, "")):
                self._bytes_used[printed] -= sum(row.size for row in rows if row.path == file)
                used, self._bytes_used = self._bytes_used, {}
                self.remove(file)
                self._bytes_used = used
        if self._bytes_used[printed] + size > limit:
            problem = f"the {limit // 1024**2} MiB that a job may keep in ConfigMaps are used up"
            mend = "name a place for the job's own storage: storage: URL"
            raise StorageFailed(problem, place=self.url, mend=mend, anchor="configmaps-full")
        self._bytes_used[printed] += size

    def _droppable_events(self) -> Iterator[str]:
        """Yield the files of events that may be dropped, oldest first: the older of the snapshots covers all their events.

        An epoch's first file stays, for it says which lines of earlier epochs count.
        """
        ends = snapshot_ends(self)
        if not ends:
            return
        files = segments(self).values()
        for part, after in itertools.pairwise(part for parts_of_epoch in files for part in parts_of_epoch):
            if part not in [parts_of_epoch[0] for parts_of_epoch in files] and after.first - 1 <= min(ends):
                yield part.path


class _Growing:
    """The Appender of a growing file. It alone holds the bytes that are not synced."""

    def __init__(self, storage: ConfigMapStorage, path: str, mark: str, version: str) -> None:
        self._storage, self._path, self._mark = storage, path, mark
        self._n, self._version, self._last = 0, version, b""  # the chunk that grows: its number, its version, its bytes
        self._stable = 0
        self._unsynced = bytearray()
        self._fenced = False

    def write(self, data: bytes) -> None:
        with _storage_errors("append", self._storage._name(self._path)):
            self._storage.room(self._path, len(data))
        self._unsynced += data

    def sync(self) -> None:
        with _storage_errors("append", self._storage._name(self._path)):
            while self._unsynced:
                self._write_chunk()

    def truncate(self, size: int) -> None:
        if size < self._stable:
            raise StorageFailed(f"what was synced cannot be cut to {size} bytes", place=self._path)
        del self._unsynced[size - self._stable :]

    def hold(self, size: int) -> None:
        """Hold nothing: what its limits keep for the end is `room`'s."""

    def close(self) -> None:
        if not self._fenced:
            self.sync()

    def _write_chunk(self) -> None:
        """Write as much as fits into the chunk that grows."""
        if self._fenced:
            raise self._fenced_error()
        data = self._last + bytes(self._unsynced[: CHUNK - len(self._last)])
        chunk = self._storage.chunk(self._path, self._mark, self._n, data, self._version)
        if chunk is None:
            chunk, data = self._earlier_write()
        self._stable += len(data) - len(self._last)
        del self._unsynced[: len(data) - len(self._last)]
        self._last, self._version = data, chunk["metadata"]["resourceVersion"]
        if len(data) >= CHUNK:
            self._n, self._last, self._version = self._n + 1, b"", ""

    def _earlier_write(self) -> tuple[Object, bytes]:
        """Return the chunk of an earlier call of ours that failed but landed all the same. Raises StorageFailed where it is another's."""
        try:
            current = self._storage.read_chunk(self._path, self._n)
        except NotFound:
            current = {}
        data, expected = content(current), self._last + bytes(self._unsynced)
        mark = current.get("metadata", {}).get("labels", {}).get(MARK)
        sealed = current.get("immutable") and len(data) < CHUNK
        if mark != self._mark or sealed or len(data) <= len(self._last) or not expected.startswith(data):
            self._fenced = True
            raise self._fenced_error()
        return current, data

    def _fenced_error(self) -> StorageFailed:
        problem = "another master has closed the file: this one is not the job's any more"
        return StorageFailed(problem, place=self._storage._name(self._path), anchor="storage-failed")


def keep_tail(storage: Storage, task: str, attempt: int, end: int, data: bytes) -> None:
    """Keep the last TAIL bytes of an attempt's output, as a piece that readers of logs find; `end`: the position after `data`."""
    tail = data[-TAIL:]
    if tail:
        storage.replace(piece_name(f"{folder(task)}/{attempt}.log", end - len(tail)), tail)


def url_of(context: str, namespace: str, job: str = "") -> str:
    """Return the URL of a job's storage, or of all jobs of a namespace."""
    place = f"{quote(context, safe='')}@{namespace}" if context else namespace
    return f"{SCHEME}{place}/{job}".rstrip("/")


def _parse_url(url: str) -> tuple[str, str, str]:
    place, _, job = url.removeprefix(SCHEME).partition("/")
    context, _, namespace = place.rpartition("@")
    if not url.startswith(SCHEME) or not namespace or not job or "/" in job:
        problem = f"{url} is not a storage in ConfigMaps"
        raise BadInput(problem, place=url, mend=f"write {SCHEME}[CONTEXT@]NAMESPACE/JOB", anchor="storage-url")
    return unquote(context), namespace, job


def _environment() -> tuple[str, ...]:
    return tuple(os.environ.get(name, "") for name in ("KUBECONFIG", "HOME", "KUBERNETES_SERVICE_HOST"))


@functools.lru_cache(maxsize=16)
def _client(context: str, namespace: str, *_: str) -> Blocking:
    """Return the one client for all storages of a namespace. In a pod without a kubeconfig the context is the pod's own cluster."""
    try:
        config = load(context=context, namespace=namespace)
    except ConfError:
        if not context or not os.path.exists(f"{ACCOUNT}/token"):
            raise
        config = in_cluster(namespace)
    return Blocking(config, timeout=_TIMEOUT, patience=_PATIENCE)


def _droppable_output(rows: list[Row], path: str) -> Iterator[str]:
    """Yield the files of the programs' output, oldest first, all but `path`."""
    created: dict[str, str] = {}
    for row in rows:
        if row.printed and row.path != path:
            created[row.path] = min(created.get(row.path, row.created), row.created)
    yield from sorted(created, key=lambda file: (created[file], file))


# For a pod's own account; a URL of the master's in its pod names no context of a kubeconfig.
ACCOUNT_MEND = "the service account was replaced, or its token is refused: tm kill, tm retry"
_MENDS: tuple[tuple[type[KubeError], str, str], ...] = (
    (Forbidden, _QUOTA, "ask for a larger quota of the namespace, or name a storage of the job's own: storage: URL"),
    (Forbidden, "", "ask for the right to read and write ConfigMaps there: tm cluster grants"),
    (NotFound, "namespace", "check the namespace"),
)


@contextmanager
def _storage_errors(doing: str, url: str) -> Iterator[None]:
    try:
        yield
    except TrainmasterError:
        raise
    except KubeError as error:
        fitting = (mend for kind, words, mend in _MENDS if isinstance(error, kind) and words in error.message)
        login = "log in anew" if "@" in url else ACCOUNT_MEND
        failure: Any = error
        failure.mend = error.mend or (login if isinstance(error, Unauthorized) else next(fitting, ""))
        raise storage_failed(doing, url, failure) from error
