"""A path that survives: whole sets of its files, stored behind training, and put back before an attempt starts.

    <url>/00000007.json             the manifest of set 7: written last and created exclusively, it is the set
    <url>/files/<writer>/<n>/...    the bytes, under a name of its writer's own (task, attempt)

Numbers rise over attempts and tasks: the first to create the manifest of a number has it, another writer takes the next. A manifest lists
every file with size, time of change, permissions, SHA-256 and the place of its bytes. A file that has not changed since the last set is not
sent again: the manifest names the bytes of that set. The manifest also carries `marks`, which the caller hands in: what had been read of
the inputs before the first byte of the set changed.

A set holds the path as it was at one moment: a file that changes while it is sent is sent again, until a last look
finds everything as it was sent. A path that changes too often for that gives no set this time (`Unsettled`).

A set is *whole* when its manifest is there and every file it names has its size; one that is not is passed over, and named in a warning,
both when a set is restored and when the next one is stored. A damaged manifest does not say which bytes are its own: while it is among the
newest, no bytes are removed, so that it can be brought back. Where the files are states of `runtime.checkpoint`, a set in which only older
states are damaged is restored without these. Restoring checks the digests too. The path is replaced by renames, so it holds the old or the
new. Times of change are put back, because programs use them to find their newest file.

The master names the set to restore; the agents store sets, and the master may be cut off from them. So `prune` removes old
sets only up to one that the master is known to have heard of. One task may remove a set while another stores one that refers
to its bytes: the first removes manifests and then looks which bytes the others still need; the second creates its manifest
and then looks whether the manifest of the set that it refers to is still there. One of the two sees the other.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import posixpath
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.foreign import number_in, numbers_in
from trainmaster.data.outputs import folder_of
from trainmaster.data.store.stores import Store, store_for
from trainmaster.data.store.transfer import CHUNK, Flow, Tell, make_room, retried, safe_path, writing
from trainmaster.data.store.trees import Leaf, Tree, remove, scan
from trainmaster.log.documents.files import damaged, parse
from trainmaster.log.storage import Damaged, storage_failed, write_all

VERSION = "1.0"
_FILES = "files"
_STATE = re.compile(
    r"(?P<folder>(?:.*/)?)state-(?P<number>[0-9]{8,15})\.(?:bin|json)"
)  # of `runtime.states.stored_states`
_LOOKS = 5  # times the path is looked at until nothing has changed while it was sent
NAME_MAX, PATH_MAX = 255, 4096  # bytes, of Linux (limits.h)
_LATEST = 1000  # numbers tried from the newest on
_WAIT = 0.05  # s between two looks whether another task has finished restoring
_NO_LOCKS = {errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}  # a folder of NFS, for one: flock(2)


class _LostFile(StorageFailed):
    """A file of a set, `path`, is not what was stored; `why` says so."""

    path = why = ""


class Unsettled(StorageFailed):
    """The path changes more often than it can be sent."""


@attrs.frozen(slots=True)
class Stored:
    """A file of a set. `at`: the place of its bytes in the store; `link`: the target, if it is a link."""

    path: str
    size: int
    mtime_ns: int = 0
    mode: int = 0o644
    sha256: str = ""
    at: str = ""
    link: str = ""


@attrs.frozen(slots=True)
class Set:
    """One set. `single`: the path is a file. `marks`: as they were handed in."""

    number: int
    task: str
    attempt: int
    files: tuple[Stored, ...]
    folders: tuple[str, ...] = ()
    single: bool = False
    marks: Any = None

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def manifest(self) -> str:
        """Return the name of the manifest in the store."""
        return _manifest(self.number)

    def report_fields(self) -> dict[str, Any]:
        """Return the fields of a report."""
        return {
            "set": self.number,
            "files": len(self.files),
            "bytes": self.bytes,
            "marks": self.marks,
            "manifest": self.manifest,
        }


def save_set(
    url: str,
    path: str,
    task: str,
    attempt: int,
    *,
    marks: Any = None,
    whole: Callable[[], bool] = lambda: True,
    tell: Tell | None = None,
    stop: threading.Event | None = None,
    tell_fault: Callable[[str], None] = lambda fault: None,
) -> Set | None:
    """Store what is at `path` as the next set. Return None where nothing is there, or where the newest set is whole and holds the same.

    `whole` is called once all was sent. It returns False where the path, though it has not changed, is not a whole set. `tell_fault` gets
    the words for each damaged manifest that is passed over. Raises Unsettled.
    """
    store = store_for(url, is_own=True)
    by = (task, attempt, marks)
    return retried("store a checkpoint", url, lambda: _save(store, path, by, whole, (tell, stop), tell_fault))


def prune(url: str, known: Set, keep: int) -> None:
    """Remove the sets before the `keep` newest of those up to `known`: the newest set that may be named for a restore, as far as the
    caller knows. Later ones stay: perhaps nobody has heard of them yet.
    """
    store = store_for(url, is_own=True)
    retried("remove old checkpoints", url, lambda: _prune(store, known, keep))


def newest(url: str) -> Set | None:
    """Return the newest set that can be restored; None where there are no sets. Raises StorageFailed where none is whole."""
    store = store_for(url, is_own=True)

    def find() -> Set | None:
        first: StorageFailed | None = None
        for number in reversed(_numbers(store)):
            checkpoint, faults = _usable(store, number)
            if checkpoint is not None:
                return checkpoint
            if faults and first is None:
                first = _lost_error(store, number, faults[0])
                first.mend = "bring the file back, or name another place to begin anew"
        if first is not None:
            raise first
        return None

    return retried("look for a checkpoint", url, find)


def restore(
    url: str,
    path: str,
    number: int,
    *,
    tell: Tell | None = None,
    stop: threading.Event | None = None,
    tell_fault: Callable[[str], None] = lambda fault: None,
) -> Set:
    """Put set `number` back at `path`. Raises StorageFailed rather than take another set: all members of a group begin from the same one.
    `path` appears with the whole set or not at all; only older states that are damaged are left out. `tell_fault` gets each fault of the
    store.
    """
    store = store_for(url, is_own=True)
    for later in retried("look for a checkpoint", url, lambda: [other for other in _numbers(store) if other > number]):
        other, faults = retried("read a checkpoint", url, lambda later=later: _usable(store, later))  # type: ignore[misc]
        if other is None and faults:
            tell_fault(f"checkpoint set {later} is passed over: {faults[0]}")
    checkpoint, faults = retried("read a checkpoint", url, lambda: _usable(store, number))
    if checkpoint is None:
        raise _lost_error(store, number, faults[0] if faults else "its manifest is gone")
    while True:
        try:
            _put_back(store, checkpoint, path, tell, stop)
            break
        except _LostFile as error:
            rest = _without_states(checkpoint, {error.path})
            if rest is None:
                raise
            checkpoint, faults = rest, [*faults, error.why]
    for fault in faults:
        tell_fault(f"checkpoint set {number} is restored without an older state: {fault}")
    return checkpoint


# -- saving --


def _save(
    store: Store, path: str, by: tuple[str, int, Any], whole: Callable[[], bool], caller: tuple[Tell | None, threading.Event | None],
    tell_fault: Callable[[str], None],
) -> Set | None:  # fmt: skip
    tree = scan(path, keep_links=True)
    if tree is None or not (tree.leaves or tree.folders):
        return None
    numbers = _numbers(store)
    previous = next(_readable(store, reversed(numbers), tell_fault), None)
    known = {file.path: file for file in previous.files} if previous is not None else {}
    if previous is not None and _is_same(tree, previous) and _is_whole(store, previous):
        return None
    folder = f"{_FILES}/{folder_of(by[0])}.{by[1]}.{secrets.token_hex(4)}"
    flow = Flow(tree.size, *caller)
    sent: dict[str, Stored] = {}
    try:
        for _ in range(_LOOKS):
            sent = {name: file for name, file in sent.items() if name in tree.leaves}
            changed = [leaf for leaf in tree.leaves.values() if _version(sent.get(leaf.path)) != leaf.version]
            flow.run(changed, partial(_send, store, folder, tree, known, sent, flow), store.threads)
            if not whole():
                raise Unsettled("the next checkpoint was begun before this one was sent, and is not whole", place=path)
            current = scan(path, keep_links=True)
            if current is not None and current.versions == {name: _version(file) for name, file in sent.items()}:
                saved = _publish(store, tree, sent, numbers, by)
                if _is_whole(store, saved) and _keeps_previous(store, saved, previous, folder):
                    return saved
                store.remove(saved.manifest)  # a set that it refers to was removed meanwhile
                known, sent = {}, {}
            if current is None:
                store.remove(folder)
                return None
            tree = current
        raise Unsettled(f"the checkpoint changed {_LOOKS} times while it was sent", place=path)
    except BaseException:
        store.remove(folder)
        raise


def _keeps_previous(store: Store, saved: Set, previous: Set | None, folder: str) -> bool:
    """Tell whether the set `previous` is still there, where `saved` refers to its bytes."""
    own = all(file.at.startswith(f"{folder}/") for file in saved.files if file.at)
    return own or previous is None or store.get(previous.manifest) is not None


def _version(file: Stored | None) -> tuple[int, int, str] | None:
    return None if file is None else (file.size, file.mtime_ns, file.link)


def _is_same(tree: Tree, previous: Set) -> bool:
    return tree.versions == {file.path: _version(file) for file in previous.files} and tree.folders == previous.folders


def _send(
    store: Store,
    folder: str,
    tree: Tree,
    known: Mapping[str, Stored],
    sent: dict[str, Stored],
    flow: Flow,
    leaf: Leaf,
) -> None:
    """Send a file, or refer to the bytes that the last set has; enter it in `sent` only if it did not change meanwhile."""
    if leaf.link:
        sent[leaf.path] = Stored(leaf.path, 0, link=leaf.link)
        return
    file = tree.at(leaf.path)
    at = f"{folder}/{leaf.path}"
    try:
        digest = _digest(file, flow.check)
        old = known.get(leaf.path)
        if old is not None and old.at and (old.size, old.sha256) == (leaf.size, digest):
            at = old.at
            flow.step(leaf.size)
        else:
            retried("store a checkpoint", f"{store.url}/{at}", lambda: store.upload(file, at, flow.step), flow)
        status = os.stat(file)
    except FileNotFoundError as error:
        if error.filename != file and os.path.exists(file):  # it is the store that lacks something
            raise storage_failed("store a checkpoint", f"{store.url}/{at}", error) from error
        return  # removed meanwhile: the next look tells
    if (status.st_size, status.st_mtime_ns) == (leaf.size, leaf.mtime_ns):
        sent[leaf.path] = Stored(leaf.path, leaf.size, leaf.mtime_ns, leaf.mode, digest, at)


def _publish(store: Store, tree: Tree, sent: Mapping[str, Stored], numbers: list[int], by: tuple[str, int, Any]) -> Set:
    """Create the manifest under the first free number: from then on the set exists."""
    task, attempt, marks = by
    first = max(numbers, default=0) + 1
    for number in range(first, first + _LATEST):
        saved = Set(number, task, attempt, tuple(sent[name] for name in sorted(sent)), tree.folders, tree.single, marks)
        if store.create(saved.manifest, _content(saved)):
            return saved
    raise StorageFailed(
        f"the {_LATEST} numbers from {first} on are all taken", place=store.url, anchor="storage-failed"
    )


def _prune(store: Store, known: Set, keep: int) -> None:
    """Remove the manifests first, then the bytes that no manifest refers to. Bytes that no set ever had are removed only for this writer's
    own task, since those of another may be on their way.
    """
    numbers = [n for n in _numbers(store) if n <= known.number]
    newest_sets = [checkpoint.number for checkpoint in _readable(store, reversed(numbers))][: max(keep, 1)]
    gone = [n for n in numbers if n < newest_sets[-1]] if newest_sets else []
    old = [*_readable(store, gone)]
    for number in gone:
        store.remove(_manifest(number))
    numbers = _numbers(store)
    kept = [*_readable(store, numbers)]
    if len(kept) < len(numbers):
        return
    needed = {file.at for checkpoint in kept for file in checkpoint.files}
    for place in {file.at for checkpoint in old for file in checkpoint.files if file.at} - needed:
        store.remove(place)
    folders = {"/".join(place.split("/")[:2]) for place in needed if place}
    for entry in store.entries(_FILES):
        task, _, attempt = entry.name.rpartition(".")[0].rpartition(".")
        earlier = number_in(attempt)
        own = task == folder_of(known.task) and earlier is not None and earlier <= known.attempt
        if own and f"{_FILES}/{entry.name}" not in folders:
            store.remove(f"{_FILES}/{entry.name}")


# -- restoring --


def _put_back(store: Store, checkpoint: Set, path: str, tell: Tell | None, stop: threading.Event | None) -> None:
    path = os.path.abspath(path)
    parent, name = os.path.split(path)
    fresh = os.path.join(parent, f".{name}.restoring")
    os.makedirs(parent, exist_ok=True)
    flow = Flow(checkpoint.bytes, tell, stop)
    with _folder_lock(parent, flow):
        remove(fresh)
        make_room(parent, checkpoint.bytes)
        os.makedirs(fresh)
        try:
            for folder in checkpoint.folders:
                os.makedirs(safe_path(fresh, folder), exist_ok=True)
            sent = [file for file in checkpoint.files if not file.link]
            flow.run(sent, lambda file: _fetch(store, checkpoint, file, fresh, flow))
            for file in checkpoint.files:
                if file.link:
                    _make_link(fresh, file)
            _swap_in(os.path.join(fresh, checkpoint.files[0].path) if checkpoint.single else fresh, path)
        finally:
            remove(fresh)


@contextlib.contextmanager
def _folder_lock(folder: str, flow: Flow) -> Iterator[None]:
    """Hold the lock of a directory: tasks that share one (`workdir: share`) restore into it one after the other."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                flow.pause(_WAIT)
                continue
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            break
        yield
    finally:
        os.close(lock)


def _fetch(store: Store, checkpoint: Set, file: Stored, directory: str, flow: Flow) -> None:
    target = safe_path(directory, file.path)
    os.makedirs(os.path.dirname(target), exist_ok=True)

    def fetch() -> str:
        digest = hashlib.sha256()
        with writing(target, file.size), open(target, "wb", buffering=0) as into:
            for offset in range(0, file.size, CHUNK):
                data = store.read(file.at, offset, min(CHUNK, file.size - offset))
                digest.update(data)
                write_all(into.fileno(), data)
                flow.step(len(data))
        return digest.hexdigest()

    try:
        digest_read = retried("restore a checkpoint", f"{store.url}/{file.at}", fetch, flow)
    except FileNotFoundError as error:
        if os.path.isdir(directory):
            raise _lost_error(store, checkpoint.number, f"{file.path} is gone", file.path) from error
        raise
    if digest_read != file.sha256:
        raise _lost_error(store, checkpoint.number, f"{file.path} is not what was stored", file.path)
    os.chmod(target, file.mode & 0o777)  # others may write to the store: no program of theirs is to run as us
    os.utime(target, ns=(file.mtime_ns, file.mtime_ns))


def _make_link(directory: str, file: Stored) -> None:
    target = safe_path(directory, file.path)
    place = os.path.normpath(os.path.join(os.path.dirname(file.path), file.link))
    if os.path.isabs(file.link) or place == ".." or place.startswith("../"):
        safe_path(directory, "..", f"the target of {file.path}")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.symlink(file.link, target)


def _swap_in(fresh: str, path: str) -> None:
    old = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.replaced")
    remove(old)
    try:
        os.rename(path, old)
    except FileNotFoundError:
        os.rename(fresh, path)
        return
    os.rename(fresh, path)
    remove(old)


def _lost_error(store: Store, number: int, why: str, path: str = "") -> _LostFile:
    failure = _LostFile(
        f"checkpoint set {number} cannot be restored: {why}",
        place=store.url,
        mend="keep others from changing what is there",
        anchor="checkpoint-lost",
    )
    failure.errno = errno.EIO
    failure.path, failure.why = path, why
    return failure


# -- manifests --


def _numbers(store: Store) -> list[int]:
    return numbers_in(entry.name.removesuffix(".json") for entry in store.entries("") if entry.name.endswith(".json"))


def _manifest(number: int) -> str:
    """Return the name of a set's manifest in the store."""
    return f"{number:08}.json"


def _readable(
    store: Store, numbers: Iterable[int], tell_fault: Callable[[str], None] = lambda fault: None
) -> Iterator[Set]:
    """Yield the sets whose manifests can be read. `tell_fault` gets the words for each that is damaged."""
    for number in numbers:
        try:
            checkpoint = _read(store, number)
        except Damaged as error:
            tell_fault(f"checkpoint set {number} is passed over: {error.message}")
            continue
        if checkpoint is not None:
            yield checkpoint


def _read(store: Store, number: int) -> Set | None:
    """Return a set; None where it was removed. Raises Damaged."""
    content = store.get(_manifest(number))
    if content is None:
        return None
    path = f"{store.url}/{_manifest(number)}"
    manifest = parse(content, path)
    try:
        return _set_of(store, number, manifest)
    except (KeyError, TypeError, ValueError, BadInput):
        raise damaged(path, content) from None


def _set_of(store: Store, number: int, manifest: Mapping[str, Any]) -> Set:
    if int(str(manifest["v"]).partition(".")[0]) > int(VERSION.partition(".")[0]):
        raise StorageFailed(
            f"checkpoint set {number} is of version {manifest['v']}, and {VERSION} is the newest known here",
            place=store.url,
            mend="use a newer Trainmaster",
            anchor="newer-version",
        )
    if manifest["single"] is not False and (manifest["single"] is not True or len(manifest["files"]) != 1):
        raise ValueError("one file was stored alone")
    known = {field.name for field in attrs.fields(Stored)}
    files = tuple(Stored(**{key: value for key, value in file.items() if key in known}) for file in manifest["files"])
    task, attempt, folders = manifest["task"], manifest["attempt"], tuple(manifest["folders"])
    _check(files, folders)
    if type(task) is not str or type(attempt) is not int or not 0 <= attempt < 1 << 63:
        raise TypeError("task or attempt")
    return Set(number, task, attempt, files, folders, manifest["single"], manifest.get("marks"))


def _check(files: Sequence[Stored], folders: Sequence[str]) -> None:
    """Check what a manifest says, which others may have written. Raises ValueError or TypeError, or BadInput for a path that leads out."""
    for file in files:
        if not (
            type(file.size) is type(file.mtime_ns) is type(file.mode) is int
            and type(file.sha256) is type(file.link) is str
        ):
            raise TypeError("a field of another type")
        if not (0 <= file.size < 1 << 63 and abs(file.mtime_ns) < 1 << 70 and 0 <= file.mode < 1 << 12):
            raise ValueError("a number that no file has")
        if len(os.fsencode(file.link)) >= PATH_MAX:
            raise ValueError("a link that leads to no path")
        _check_name(file.path)
        _check_name(file.at)
        if file.at and not safe_path("", file.at).startswith(f"{_FILES}/"):
            raise ValueError(f"{file.at!r} is not where a set's bytes are")
    for folder in folders:
        _check_name(folder)
    paths, above = {file.path for file in files}, {*folders}
    for path in [*paths, *folders]:
        while (path := posixpath.dirname(path)) and path not in above:
            above.add(path)
    if len(paths) < len(files) or above & paths:
        raise ValueError("two files at one place")


def _check_name(text: str) -> None:
    """Raise TypeError or ValueError where no file on Linux can have a name; for half a character it is a UnicodeEncodeError."""
    parts = os.fsencode(text).split(b"/") if type(text) is str else None
    if parts is None:
        raise TypeError("a name that is not a text")
    if len(text) >= PATH_MAX or any(len(part) > NAME_MAX for part in parts) or b"" in parts[1:]:
        raise ValueError(f"{text[:100]!r} is not a name of a file")


def _content(checkpoint: Set) -> bytes:
    return json.dumps({"v": VERSION, **attrs.asdict(checkpoint)}).encode()


def _is_whole(store: Store, checkpoint: Set) -> bool:
    """Tell whether every file is there with its size."""
    return not _damages(store, checkpoint)


def _damages(store: Store, checkpoint: Set) -> dict[str, str]:
    """Return the files that are not there with their sizes, path -> the words for it."""
    folders = {file.at.rpartition("/")[0] for file in checkpoint.files if file.at}
    sizes: dict[str, int] = {}
    for folder in folders:
        with contextlib.suppress(Damaged):  # it leads out through a link
            sizes |= {f"{folder}/{e.name}": e.size for e in store.entries(folder) if not (e.folder or e.odd)}
    return {
        file.path: f"{file.at} has {sizes[file.at]:,} bytes of {file.size:,}"
        if file.at in sizes
        else f"{file.at} is missing"
        for file in checkpoint.files
        if not file.link and sizes.get(file.at) != file.size
    }


def _usable(store: Store, number: int) -> tuple[Set | None, list[str]]:
    """Return what can be restored of a set, None for nothing, and the words for each damage."""
    try:
        checkpoint = _read(store, number)
    except Damaged as error:
        return None, [error.message]
    if checkpoint is None:
        return None, []
    damages = _damages(store, checkpoint)
    return (_without_states(checkpoint, {*damages}) if damages else checkpoint), list(damages.values())


def _without_states(checkpoint: Set, damaged: set[str]) -> Set | None:
    """Return a set without the states that these files are of; None where one is of no state, or of the newest, whose position counts."""
    states = {file.path: match for file in checkpoint.files if (match := _STATE.fullmatch(file.path))}
    newest_of: dict[str, int] = {}
    for match in states.values():
        newest_of[match["folder"]] = max(newest_of.get(match["folder"], 0), int(match["number"]))
    if any(path not in states or int(states[path]["number"]) == newest_of[states[path]["folder"]] for path in damaged):
        return None
    lost = {(states[path]["folder"], states[path]["number"]) for path in damaged}
    kept = [
        file
        for file in checkpoint.files
        if file.path not in states or (states[file.path]["folder"], states[file.path]["number"]) not in lost
    ]
    return attrs.evolve(checkpoint, files=tuple(kept))


def _digest(path: str, check: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while data := file.read(CHUNK):
            digest.update(data)
            check()
    return digest.hexdigest()
