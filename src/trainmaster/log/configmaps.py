"""A storage for a job that has none of its own: ConfigMaps of its namespace, a few small ones for a small log.

    configmaps://[CONTEXT@]NAMESPACE/JOB

CONTEXT is of the kubeconfig, its "/" and "@" as %2F and %40; none: the current one, or the pod's.

A file is a *head*, the ConfigMap `<job>.<hash of the path>`, and where it is larger than a chunk (CHUNK bytes) further objects with the
rest. Each says in annotations which path it is of, and its size, so that a listing needs metadata alone. Two kinds:

- *whole* files, made by `create` and `replace`: the rest is written first, under a name that only this write uses, then the head, in which
  the API server decides: a POST is exclusive, a PUT names the version that it replaces. So who reads sees the old or the new.
- *growing* files, of an `Appender`: chunk n is `<head>.<n>`, filled in order and immutable once full. Each PUT names the version that the
  writer knows (resourceVersion), so of two writers the one that knows less loses. `settle` makes the last chunk immutable: then
  nothing can be added, whoever holds the file open, and all that was synced is there.

Every object carries the mark of the write that made it. An answer that was lost is cleared up by that: whoever meets his own mark has
succeeded.

An `Appender` keeps what it is given until `sync`: a job's writer calls that at once for barriers, and once a second for notes; each costs
one request. What is kept is bounded: LOG bytes of events (then those that the older of the snapshots covers are dropped, oldest first) and
OUTPUT bytes of what programs printed (then the oldest attempts are dropped). More belongs into a storage of the job's own.
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
from trainmaster.log.storage import Appender, Entry, Storage, checked, storage_failed

SCHEME = "configmaps://"
LOG = 16 * 1024 * 1024  # bytes of a job's events, snapshots and records
OUTPUT = 8 * 1024 * 1024  # bytes of what its programs printed
TAIL = 256 * 1024  # bytes of one attempt's
SEGMENT = 256 * 1024  # bytes in a file of events: what snapshots cover is dropped by files, but for each epoch's first
_TIMEOUT = 15.0  # s of one try
_PATIENCE = 10.0  # s of tries within one call; whoever calls tries again, and says what it waits for
_ROUNDS = 10
_QUOTA = "exceeded quota"


class ConfigMapStorage:
    """The files under a URL, as ConfigMaps; owned by the ConfigMap `<job>` where there is one."""

    appends = True
    local = False
    conditional = True
    droppable: int | None = SEGMENT

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._context, namespace, self.job = _parsed(self.url)
        with _ours("open", self.url):
            self._kube = _client(self._context, namespace, *_where())
        self._prefix = plain(self.job)
        self._labels = {
            "app.kubernetes.io/managed-by": "trainmaster",
            "trainmaster/job": label(self.job),
            "trainmaster/part": "log",
        }
        self._all = f"trainmaster/job={label(self.job)},trainmaster/part=log"
        self._owner: list[Object] | None = None
        self._settled: set[str] = set()
        self._used: dict[bool, int] = {}  # whether printed -> bytes there, as far as is known
        self._counting = threading.RLock()  # of the log's thread and of those that keep what was printed

    def gone(self) -> bool:
        """Whether the job itself was deleted, and all of it with that."""
        with _ours("look for the job", self.url):
            try:
                self._kube.get(CONFIGMAPS, self.job, metadata=True)
            except NotFound:
                return True
        return False

    # -- the Protocol --

    def entries(self, folder: str) -> list[Entry]:
        top = checked(folder).partition("/")[0]
        with _ours("list a folder", self._name(folder)):
            rows = self._rows(top)
        prefix = f"{folder}/" if folder else ""
        found: dict[str, Entry] = {}
        for row in rows:
            if not row.path.startswith(prefix) or row.rest:
                continue
            name, below, _ = row.path[len(prefix) :].partition("/")
            size = found[name].size if name in found else 0
            found[name] = Entry(name, 0 if below else size + row.listed, bool(below))
        return [found[name] for name in sorted(found)]

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes | None:
        if size == 0:
            return b""
        with _ours("read", self._name(path)):
            for _ in range(_ROUNDS):
                try:
                    return self._kube.run(read(self._kube.client, self._head(path), offset, size))
                except Swapped:
                    continue
        raise StorageFailed("it is replaced all the time", place=self._name(path), anchor="storage-failed")

    def create(self, path: str, data: bytes) -> bool:
        with _ours("create", self._name(path)):
            return self._put_new(path, data)

    def replace(self, path: str, data: bytes, durable: bool = True) -> None:
        if path.startswith(f"{PRINTED}/") and path.endswith(".log") and len(data) > TAIL:
            data = WORDS.format(what=f"{len(data) - TAIL} bytes left out here").encode() + data[-TAIL:]
        with _ours("write", self._name(path)):
            for _ in range(_ROUNDS):
                if self._put_new(path, data) or self._put_over(path, data):
                    return
        raise StorageFailed("others write it all the time", place=self._name(path), anchor="storage-failed")

    def appender(self, path: str) -> Appender:
        with _ours("create", self._name(path)):
            mark = secrets.token_hex(6)
            made = self.make(self._object(Part(path, b"", mark, chunk=0)))
        if made is None:
            raise StorageFailed("it is there already", place=self._name(path), anchor="storage-failed")
        return _Growing(self, path, mark, made["metadata"]["resourceVersion"])

    def sync(self, path: str) -> None:
        """Nothing is read that was not synced."""

    def settle(self, path: str) -> bool:
        with _ours("close", self._name(path)):
            if path not in self._settled and any(self._closed(path) for _ in range(_ROUNDS)):
                self._settled.add(path)
            return path in self._settled

    def remove(self, path: str) -> None:
        with _ours("remove", self._name(path)), self._counting:
            self._drop(self._selector(path))
            self._used.clear()

    def exists(self, path: str) -> bool:
        with _ours("look at", self._name(path)):
            try:
                self._kube.get(CONFIGMAPS, self._head(path), metadata=True)
            except NotFound:
                return False
            return True

    # -- whole files --

    def _put_new(self, path: str, data: bytes) -> bool:
        """Make a file that is not there; False where it is."""
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
        """Replace a file that is there; False where it is not (any more), or not as it was."""
        try:
            there = self._kube.get(CONFIGMAPS, self._head(path), metadata=True)
        except NotFound:
            return False
        mark, pieces = secrets.token_hex(6), parts(data)
        old = Row.of(there)
        if old.closed:  # its head is immutable: it was a growing one
            self.remove(path)
            return False
        self.room(path, len(data))
        self._put_rest(path, pieces, mark)
        head = self._object(Part(path, pieces[0], mark, whole=(len(data), len(pieces))))
        head["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"]
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

    def _closed(self, path: str) -> bool:
        """Whether nothing can be added to a file (any more)."""
        rows = [row for row in self._listed(self._selector(path)) if row.chunk is not None]
        if not rows:
            return True
        last = max(rows, key=lambda row: row.chunk or 0)
        if last.closed and last.size < CHUNK:
            return True
        if last.size >= CHUNK:  # an empty chunk behind it, where its writer would go on
            assert last.chunk is not None
            return self.make(self._object(Part(path, b"", last.mark, chunk=last.chunk + 1, closed=True))) is not None
        there = self._kube.get(CONFIGMAPS, last.name)
        if Row.of(there).size >= CHUNK:  # filled since, and its writer is at the next one
            return False
        there["metadata"].setdefault("annotations", {})["trainmaster/closed"] = "true"
        return self.put({**there, "immutable": True}) is not None

    def chunk(self, path: str, mark: str, n: int, data: bytes, version: str) -> Object | None:
        """Write chunk `n` of a growing file, in the place of `version` of it; None where another one is there."""
        obj = self._object(Part(path, data, mark, chunk=n, closed=len(data) >= CHUNK))
        if not version:
            return self.make(obj)
        obj["metadata"]["resourceVersion"] = version
        return self.put(obj)

    def chunk_there(self, path: str, n: int) -> Object:
        return self._kube.get(CONFIGMAPS, chunk_of(self._head(path), n))

    # -- objects --

    def make(self, obj: Object) -> Object | None:
        """POST; None where the name is taken by another write."""
        try:
            return self._kube.create(CONFIGMAPS, obj)
        except Conflict as error:
            return self._mine(obj, error)

    def put(self, obj: Object) -> Object | None:
        """PUT; None where the object is not the one of that version (any more)."""
        try:
            return self._kube.replace(CONFIGMAPS, obj)
        except NotFound:
            return None
        except (Conflict, Invalid) as error:
            return self._mine(obj, error)

    def _mine(self, obj: Object, error: ApiError) -> Object | None:
        """What is there, where it is what an earlier try of this very write left whose answer was lost."""
        if isinstance(error, Invalid) and "immutable" not in error.message:
            raise error
        if not error.doubtful:
            return None
        try:
            there = self._kube.get(CONFIGMAPS, obj["metadata"]["name"])
        except NotFound:
            return None
        same = there["metadata"].get("labels", {}).get(MARK) == obj["metadata"]["labels"][MARK]
        return there if same and content(there) == content(obj) else None

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
        """What there is in a folder of the root ("": in all)."""
        return self._listed(self._all + (f",trainmaster/top={plain(top)}" if top else ""))

    def _listed(self, labels: str) -> list[Row]:
        return [Row.of(obj) for obj in self._kube.list(CONFIGMAPS, labels=labels, metadata=True)[0]]

    def _drop(self, labels: str) -> None:
        """Delete objects, a head before its rest; each by its name, for the right to delete a collection is another one."""
        for row in sorted(self._listed(labels), key=lambda row: len(row.name)):
            self._kube.delete(CONFIGMAPS, row.name)

    def _selector(self, path: str) -> str:
        return f"{self._all},trainmaster/file={digest(path)}"

    def _head(self, path: str) -> str:
        return head_of(self._prefix, checked(path))

    def _name(self, path: str) -> str:
        return f"{self.url}/{path}" if path else self.url

    # -- how much there is --

    def room(self, path: str, size: int) -> None:
        """Have room for `size` more bytes. Raises StorageFailed."""
        with self._counting:
            self._room(path, size)

    def _room(self, path: str, size: int) -> None:
        printed = path.startswith(f"{PRINTED}/")
        limit = OUTPUT if printed else LOG
        if printed not in self._used or self._used[printed] + size > limit:
            rows = self._rows("")
            self._used = {kind: sum(row.size for row in rows if row.printed is kind) for kind in (True, False)}
            droppable = _printed(rows, path) if printed else self._covered()
            while self._used[printed] + size > limit and (file := next(droppable, "")):
                self._used[printed] -= sum(row.size for row in rows if row.path == file)
                used, self._used = self._used, {}
                self.remove(file)
                self._used = used
        if self._used[printed] + size > limit:
            told = f"the {limit // 1024**2} MiB that a job may keep in ConfigMaps are used up"
            mend = "name a place for the job's own storage: storage: URL"
            raise StorageFailed(told, place=self.url, mend=mend, anchor="configmaps-full")
        self._used[printed] += size

    def _covered(self) -> Iterator[str]:
        """Files of events that may go, oldest first: all that they hold is in the older of the snapshots.

        Not an epoch's first, for it says what counts of the epochs before.
        """
        ends = snapshot_ends(self)
        if not ends:
            return
        files = segments(self).values()
        for part, after in itertools.pairwise(part for found in files for part in found):
            if part not in [found[0] for found in files] and after.first - 1 <= min(ends):
                yield part.path


class _Growing:
    """The Appender. What was not synced is here alone."""

    def __init__(self, storage: ConfigMapStorage, path: str, mark: str, version: str) -> None:
        self._storage, self._path, self._mark = storage, path, mark
        self._n, self._version, self._last = 0, version, b""  # the chunk that grows, and what it holds
        self._stable = 0
        self._held = bytearray()
        self._fenced = False

    def write(self, data: bytes) -> None:
        with _ours("append", self._storage._name(self._path)):
            self._storage.room(self._path, len(data))
        self._held += data

    def sync(self) -> None:
        with _ours("append", self._storage._name(self._path)):
            while self._held:
                self._step()

    def truncate(self, size: int) -> None:
        if size < self._stable:
            raise StorageFailed(f"what was synced cannot be cut to {size} bytes", place=self._path)
        del self._held[size - self._stable :]

    def close(self) -> None:
        if not self._fenced:
            self.sync()

    def _step(self) -> None:
        """Write as much as fits into the chunk that grows."""
        if self._fenced:
            raise self._lost()
        data = self._last + bytes(self._held[: CHUNK - len(self._last)])
        made = self._storage.chunk(self._path, self._mark, self._n, data, self._version)
        if made is None:
            made, data = self._earlier()
        self._stable += len(data) - len(self._last)
        del self._held[: len(data) - len(self._last)]
        self._last, self._version = data, made["metadata"]["resourceVersion"]
        if len(data) >= CHUNK:
            self._n, self._last, self._version = self._n + 1, b"", ""

    def _earlier(self) -> tuple[Object, bytes]:
        """What an earlier call of ours has left, which failed and landed all the same. Raises StorageFailed where it is another's."""
        try:
            there = self._storage.chunk_there(self._path, self._n)
        except NotFound:
            there = {}
        data, ours = content(there), self._last + bytes(self._held)
        mark = there.get("metadata", {}).get("labels", {}).get(MARK)
        sealed = there.get("immutable") and len(data) < CHUNK
        if mark != self._mark or sealed or len(data) <= len(self._last) or not ours.startswith(data):
            self._fenced = True
            raise self._lost()
        return there, data

    def _lost(self) -> StorageFailed:
        told = "another master has closed the file: this one is not the job's any more"
        return StorageFailed(told, place=self._storage._name(self._path), anchor="storage-failed")


def keep_tail(storage: Storage, task: str, attempt: int, end: int, data: bytes) -> None:
    """Keep the last TAIL bytes of what an attempt printed, as a piece that readers of logs find; `end`: the position behind `data`."""
    kept = data[-TAIL:]
    if kept:
        storage.replace(piece_name(f"{folder(task)}/{attempt}.log", end - len(kept)), kept)


def url_of(context: str, namespace: str, job: str = "") -> str:
    """The URL of a job's storage, or of all jobs of a namespace."""
    place = f"{quote(context, safe='')}@{namespace}" if context else namespace
    return f"{SCHEME}{place}/{job}".rstrip("/")


def _parsed(url: str) -> tuple[str, str, str]:
    place, _, job = url.removeprefix(SCHEME).partition("/")
    context, _, namespace = place.rpartition("@")
    if not url.startswith(SCHEME) or not namespace or not job or "/" in job:
        told = f"{url} is no storage in ConfigMaps"
        raise BadInput(told, place=url, mend=f"write {SCHEME}[CONTEXT@]NAMESPACE/JOB", anchor="storage-url")
    return unquote(context), namespace, job


def _where() -> tuple[str, ...]:
    return tuple(os.environ.get(name, "") for name in ("KUBECONFIG", "HOME", "KUBERNETES_SERVICE_HOST"))


@functools.lru_cache(maxsize=16)
def _client(context: str, namespace: str, *_: str) -> Blocking:
    """One client for all storages of a namespace. In a pod without a kubeconfig the context is the pod's own cluster."""
    try:
        config = load(context=context, namespace=namespace)
    except ConfError:
        if not context or not os.path.exists(f"{ACCOUNT}/token"):
            raise
        config = in_cluster(namespace)
    return Blocking(config, timeout=_TIMEOUT, patience=_PATIENCE)


def _printed(rows: list[Row], path: str) -> Iterator[str]:
    """Files of what programs printed, oldest first, all but one."""
    made: dict[str, str] = {}
    for row in rows:
        if row.printed and row.path != path:
            made[row.path] = min(made.get(row.path, row.made), row.made)
    yield from sorted(made, key=lambda file: (made[file], file))


_MENDS: tuple[tuple[type[KubeError], str, str], ...] = (
    (Forbidden, _QUOTA, "ask for a larger quota of the namespace, or name a storage of the job's own: storage: URL"),
    (Forbidden, "", "ask for the right to read and write ConfigMaps there: tm cluster grants"),
    (Unauthorized, "", "log in anew"),
    (NotFound, "namespace", "check the namespace"),
)


@contextmanager
def _ours(doing: str, url: str) -> Iterator[None]:
    try:
        yield
    except TrainmasterError:
        raise
    except KubeError as error:
        fitting = (mend for kind, words, mend in _MENDS if isinstance(error, kind) and words in error.message)
        told: Any = error
        told.mend = error.mend or next(fitting, "")
        raise storage_failed(doing, url, told) from error
