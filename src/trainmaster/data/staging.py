"""Bring a task's part of an input onto its disk, before its program starts.

The files come into a *staging directory*, `.NAME.staging`, beside the final one, NAME. Each is named `.X.part` until it
is whole (a hidden name, for no input holds one beside X); when all are, the directory is renamed to NAME. So NAME appears
with everything or not at all. An interrupted download goes on where it stopped: the journal `.stamps` in the staging
directory records to which content (size and stamp) the bytes belong; a file that changed since begins again.

Programs may write into their inputs, so local files are copied, never linked; where the file system can share blocks, the kernel does.
(`as: mount` gives the original itself.)
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading

import attrs

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.foreign import json_in
from trainmaster.core.input.splits import File, Listing
from trainmaster.data.store.stores import Store, store_for
from trainmaster.data.store.transfer import (
    CHUNK,
    THREADS,
    TRIES,
    Flow,
    Tell,
    copy_file,
    make_room,
    retried,
    safe_path,
    writing,
)
from trainmaster.log.storage import write_all

_JOURNAL = ".stamps"
_REPEATS = 3  # times a file that changes while it is read begins again


def download(
    listing: Listing,
    directory: str,
    *,
    threads: int = THREADS,
    tell: Tell | None = None,
    stop: threading.Event | None = None,
    tries: int = TRIES,
    store: Store | None = None,
) -> int:
    """Bring the files of `listing` to `directory`, and return their size in bytes.

    A directory that an earlier call filled is left as it is where the listing is the same, else replaced; any other is refused with
    BadInput. `tell(done, total)` in bytes, resumed ones included. Raises DiskFull, StorageFailed, or transfer.Stopped once `stop` is set;
    the bytes that have come are kept for the next call.
    """
    directory = os.path.abspath(directory)
    content = _digest(listing)
    if os.path.lexists(directory):
        staged = _read_marker(directory)
        if staged == content:
            if tell is not None:
                tell(listing.size, listing.size)
            return listing.size
        if staged is None and (not os.path.isdir(directory) or os.listdir(directory)):
            raise BadInput(
                f"{directory} exists and is not an input brought by an earlier attempt",
                place=listing.prefix,
                mend="move it away, or give the input another path: local:",
                anchor="input-exists",
            )
    staging = staging_path(directory)
    os.makedirs(staging, exist_ok=True)
    stores = {"": store or store_for(listing.prefix)} if listing.prefix else {}

    def fetch(file: File) -> _Fetch:
        """Return the file on its way. A file of several URLs is in a store of its own folder."""
        folder = "" if listing.prefix else file.path.rpartition("/")[0]
        if folder not in stores:
            stores[folder] = store_for(folder or "/")
        key = listing.relative(file) if listing.prefix else file.path.rpartition("/")[2]
        return _Fetch(stores[folder], key, listing.relative(file), file, staging, journal, flow, tries)

    flow = Flow(listing.size, tell, stop)
    with _Journal(os.path.join(staging, _JOURNAL)) as journal:
        plan = [fetch(file) for file in listing.files]
        make_room(staging, sum(fetch.missing() for fetch in plan))
        flow.run(plan, _Fetch.run, threads)
    _remove_others(staging, {fetch.path for fetch in plan})
    if os.path.lexists(directory):
        shutil.rmtree(directory)
    with writing(staging), open(_marker(directory), "w") as file:
        file.write(content)
    os.rename(staging, directory)
    return flow.done


def staging_path(directory: str) -> str:
    parent, name = os.path.split(os.path.abspath(directory))
    return os.path.join(parent, f".{name}.staging")


def is_staged(directory: str) -> bool:
    """Tell whether the directory is the outcome of a download."""
    return _read_marker(os.path.abspath(directory)) is not None


def let_go(directory: str) -> None:
    """Give up a downloaded directory: it belongs to the caller from now on."""
    os.unlink(_marker(os.path.abspath(directory)))


def _marker(directory: str) -> str:
    parent, name = os.path.split(directory)
    return os.path.join(parent, f".{name}.staged")


def _read_marker(directory: str) -> str | None:
    """Return the digest of the listing that filled the directory; None where no download did."""
    try:
        with open(_marker(directory)) as file:
            return file.read()
    except FileNotFoundError:
        return None


def _digest(listing: Listing) -> str:
    rows = sorted((listing.relative(file), file.size, file.stamp) for file in listing.files)
    return hashlib.sha256(json.dumps([listing.prefix, rows]).encode()).hexdigest()


def _remove_others(staging: str, needed: set[str]) -> None:
    """Remove the files that an interrupted download of another listing has left, and the journal."""
    for folder, _, names in os.walk(staging):
        for name in names:
            if (path := os.path.join(folder, name)) not in needed:
                os.unlink(path)


class _Journal:
    """The record of the content that each file in the staging directory holds: lines of JSON; the last one about a file counts."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.stamps: dict[str, tuple[int, str]] = {}
        whole = 0
        if os.path.exists(path):
            with open(path, "rb") as file:
                for line in file:
                    try:
                        name, size, stamp = json_in(line)
                    except (
                        ValueError,
                        TypeError,
                    ):  # cut where the writer died, or damaged: the files that follow are fetched anew
                        break
                    if line.endswith(b"\n"):
                        self.stamps[name] = (size, stamp)
                        whole += len(line)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        self._file.truncate(whole)

    def __enter__(self) -> _Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def note(self, name: str, size: int, stamp: str) -> None:
        with self._lock:
            with writing(self._path):
                self._file.write(json.dumps([name, size, stamp]).encode() + b"\n")
            self.stamps[name] = (size, stamp)


@attrs.define
class _Fetch:
    """One file on its way."""

    store: Store
    key: str  # its path in the store
    name: str  # its path in the input's directory
    file: File
    staging: str
    journal: _Journal
    flow: Flow
    tries: int
    counted: int = 0  # of its bytes, how many the flow has counted

    @property
    def path(self) -> str:
        return safe_path(self.staging, self.name, "a file of the input")

    @property
    def part(self) -> str:
        """Return the path of the file until it is whole."""
        folder, name = os.path.split(self.path)
        return os.path.join(folder, f".{name}.part")

    def missing(self) -> int:
        """Return the number of bytes not on the disk yet, as far as sizes tell."""
        return max(self.file.size - _size(self.path) - _size(self.part), 0)

    def run(self) -> None:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        where = f"{self.store.url}/{self.key}"
        try:
            for _ in range(_REPEATS):
                if retried("fetch an input", where, self._try_once, self.flow, self.tries):
                    return
        except FileNotFoundError as error:
            raise StorageFailed(
                "a file of the input is gone since it was listed",
                place=where,
                mend="submit again",
                anchor="input-changed",
            ) from error
        raise StorageFailed(
            "a file of the input changes while it is read",
            place=where,
            mend="let its writer finish first",
            anchor="input-changed",
        )

    def _try_once(self) -> bool:
        """Fetch what is missing; False where the file changed meanwhile."""
        size, stamp = self.file.size, self.file.stamp
        noted = self.journal.stamps.get(self.name)
        if noted is not None or not stamp:
            current = self.store.look(self.key)
            if current is None:
                raise FileNotFoundError(self.key)
            size, stamp = current.size, current.stamp
        part = self.part
        if noted != (size, stamp):
            for old in (part, self.path):
                if os.path.lexists(old):
                    os.unlink(old)
            self.journal.note(self.name, size, stamp)
        if os.path.exists(self.path) and _size(self.path) == size:
            self._count(size)
            return True
        start = min(_size(part), size)
        self._count(start)
        if self.store.folder is not None:
            done = copy_file(os.path.join(self.store.folder, self.key), part, self._step, start)
        else:
            done = self._read(part, start, size)
        one_request = size <= CHUNK and self.store.folder is None
        current = File(self.key, size, stamp=stamp) if one_request else self.store.look(self.key)
        if current is None or done != size or (current.size, current.stamp) != (size, stamp):
            self.journal.note(self.name, -1, "")  # never the stamp of a content
            self.file = attrs.evolve(self.file, stamp="")
            return False
        os.rename(part, self.path)
        return True

    def _read(self, part: str, start: int, size: int) -> int:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.ftruncate(descriptor, start)
            os.lseek(descriptor, start, os.SEEK_SET)
            while start < size:
                data = self.store.read(self.key, start, min(CHUNK, size - start))
                if not data:
                    break
                with writing(part, size - start):
                    write_all(descriptor, data)
                start += len(data)
                self._step(len(data))
        finally:
            os.close(descriptor)
        return start

    def _step(self, count: int) -> None:
        self.counted += count
        self.flow.step(count)

    def _count(self, present: int) -> None:
        """Count the bytes that are on the disk by now; fewer than before where the file began again."""
        difference, self.counted = present - self.counted, present
        self.flow.step(difference)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
