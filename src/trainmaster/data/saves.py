"""Saves: copies of an output while its program runs, beside the place where it will be at the end.

    <url>/_saves/<UTC time>/<role>-<index>/...     the files that changed since the save before
    <url>/_saves/<UTC time>/<role>-<index>.json    written last: every file of the task then, and in which save it lies

or, where the job says `saves.names: interResult`, in <url>/interResult_<time>/ (`core.fold.saving`). A save's name is the time
at which it was asked for, sent to all tasks, so that one name holds all of them. Names sort by time. Only changed files are
sent, recognised by size and time of change. Before old saves are removed, the files that a kept save still refers to move
into that save: every save that exists is complete. Another save may be made meanwhile. `prune` changes nothing of it: last
of all it looks whether the new save refers to what should go, and leaves that to the next time. `save`, once its manifest
is there, looks whether the files that it refers to are where they were, else it saves anew. A save whose manifest is damaged is passed
over: the next one sends all files. Empty folders are in every save, where the store has folders.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from typing import Any

from trainmaster.core.fold.saving import NAME, SAVES, is_save, save_folder
from trainmaster.core.spec.job import Output
from trainmaster.data.outputs import folder_of, output_store, upload_leaves
from trainmaster.data.store.stores import Store, remove_empty
from trainmaster.data.store.transfer import Flow, Tell, retried
from trainmaster.data.store.trees import Leaf, Tree, scan
from trainmaster.log.documents.files import damaged, parse
from trainmaster.log.storage import Damaged


def save(
    output: Output | Mapping[str, Any],
    source: str,
    task: str,
    name: str,
    *,
    tell: Tell | None = None,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Save the file or directory `source` of a task. Returns {save, files, bytes} of the files sent, and `left_out`, {path: what it is},
    where anything could not be saved. Where there is no `source`, nothing is sent.

    A save that fails leaves nothing behind.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"not the name of a save: {name!r}")
    store = output_store(output)
    try:
        return retried("save an output", store.url, lambda: _save(store, source, task, name, tell, stop))
    except BaseException:
        with contextlib.suppress(Exception):  # the storage may fail in this too
            if not _read_or_none(store, name, task):  # else the same save was made before
                _discard(store, task, name)
        raise


def discard(output: Output | Mapping[str, Any], task: str, name: str) -> None:
    """Remove the files that a task has saved under this name."""
    store = output_store(output)
    retried("remove a save", store.url, lambda: _discard(store, task, name))


def _discard(store: Store, task: str, name: str) -> None:
    place = f"{save_folder(name)}/{folder_of(task)}"
    store.remove(f"{place}.json")
    store.remove(place)
    remove_empty(store, place)


def prune(output: Output | Mapping[str, Any], keep: int, newest: str) -> list[str]:
    """Remove the saves up to `newest`, which no task adds to any more, but keep the last `keep` that hold anything. Returns those removed.

    Only one caller at a time (the master).
    """
    store = output_store(output)
    return retried("remove old saves", store.url, lambda: _prune(store, keep, newest))


def _save(
    store: Store, source: str, task: str, name: str, tell: Tell | None, stop: threading.Event | None
) -> dict[str, Any]:
    tree = scan(source)
    if tree is None:
        return {"save": name, "files": 0, "bytes": 0}
    while True:  # again where the previous save was removed meanwhile; there are only so many of those
        previous, known, damaged_lists = _previous_save(store, name, task)
        report, files = _send_changed(store, tree, task, name, known, (tell, stop))
        current = (_read_or_none(store, previous, task) or {}) if previous else {}
        if all(file["in"] == name or current.get(path) == file for path, file in files.items()):
            left_out = tree.left_out | _keep_folders(store, tree, task, name) | damaged_lists
            return report | ({"left_out": left_out} if left_out else {})
        store.remove(_list_path(name, task))


def _keep_folders(store: Store, tree: Tree, task: str, name: str) -> dict[str, str]:
    """Make the empty folders of `tree` in a save. Return those that the store cannot have: path -> what it is."""
    if not store.renames:
        return dict.fromkeys(tree.folders, "an empty folder")
    for path in tree.folders:
        store.make_folder(f"{save_folder(name)}/{folder_of(task)}/{path}")
    return {}


def _previous_save(store: Store, name: str, task: str) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Return the task's newest save before this one that can be read, and its files ("", {} for none); and the damaged lists."""
    passed_over: dict[str, str] = {}
    for old in reversed([known for known in _names(store) if known < name]):
        files = _read_or_none(store, old, task)
        if files:
            return old, files, passed_over
        if files is None:
            passed_over[_list_path(old, task)] = (
                "the list of an earlier save, which is damaged: that save is passed over"
            )
    return "", {}, passed_over


def _send_changed(
    store: Store, tree: Tree, task: str, name: str, known: Mapping[str, Any], by: tuple[Tell | None, threading.Event | None]
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Send the changed files. Return a report of them, and all files of the save; unchanged ones of `known` stay where they are."""
    files: dict[str, Any] = {}
    changed: list[Leaf] = []
    for path, leaf in tree.leaves.items():
        old = known.get(path)
        if old is not None and (old["size"], old["mtime_ns"]) == (leaf.size, leaf.mtime_ns):
            files[path] = old
        else:
            changed.append(leaf)
            files[path] = {"size": leaf.size, "mtime_ns": leaf.mtime_ns, "in": name}
    folder = f"{save_folder(name)}/{folder_of(task)}"
    upload_leaves(store, folder, tree, changed, Flow(sum(leaf.size for leaf in changed), *by))
    for file in store.files(folder) if changed else ():  # one may have grown while it was sent
        if (path := file.path.removeprefix(f"{folder}/")) in files and files[path]["in"] == name:
            files[path]["size"] = file.size
    _write(store, name, task, files)
    return {"save": name, "files": len(changed), "bytes": sum(files[leaf.path]["size"] for leaf in changed)}, files


def _prune(store: Store, keep: int, newest: str) -> list[str]:
    names = _names(store)
    done = [name for name in names if name <= newest]
    kept = [name for name in done if _tasks(store, name)][-max(keep, 1) :]
    gone = [name for name in done if name not in kept]
    if any(
        _read_or_none(store, name, task) is None for name in names if name not in gone for task in _tasks(store, name)
    ):
        return []  # a damaged list does not say which files of earlier saves are its own; they go once it is old itself
    for name in gone:  # from now on no new save can come to refer to it
        for task in _tasks(store, name):
            store.remove(_list_path(name, task))
    for task in sorted({task for name in kept for task in _tasks(store, name)}) if gone else ():
        _take_over(store, gone, kept, task)
    needed = {
        file["in"]
        for name in _names(store) if gone and name > newest
        for task in _tasks(store, name)
        for file in _read(store, name, task).values()
    }  # fmt: skip
    removed = [name for name in gone if name not in needed]
    for name in removed:
        store.remove(save_folder(name))
    return removed


def _take_over(store: Store, gone: list[str], kept: list[str], task: str) -> None:
    """Copy files of saves that go into the first kept save of the task that refers to them; the others then refer to that one."""
    manifests = {name: _read(store, name, task) for name in kept}
    holders: dict[tuple[str, str], str] = {}  # (path, save that goes) -> the save that has it from now on
    for name, files in manifests.items():
        for path, file in files.items():
            if file["in"] in gone:
                holders.setdefault((path, file["in"]), name)

    def copy(holder: tuple[tuple[str, str], str]) -> None:
        (path, old), new = holder
        source, target = (f"{save_folder(name)}/{folder_of(task)}/{path}" for name in (old, new))
        if not store.exists(target):  # else a call that was stopped has copied it
            store.copy(source, target)

    Flow().run(holders.items(), copy, store.threads)
    for name, files in manifests.items():
        moved = {path: file | {"in": holders.get((path, file["in"]), file["in"])} for path, file in files.items()}
        if moved != files:
            _write(store, name, task, moved)


def _names(store: Store) -> list[str]:
    entries = [*store.entries(SAVES), *(entry for entry in store.entries("") if is_save(entry.name))]
    return [entry.name for entry in entries if entry.folder and NAME.fullmatch(entry.name)]


def _tasks(store: Store, name: str) -> list[str]:
    folders = [
        entry.name.removesuffix(".json") for entry in store.entries(save_folder(name)) if entry.name.endswith(".json")
    ]
    return [":".join(folder.rsplit("-", 1)) for folder in folders]


def _list_path(name: str, task: str) -> str:
    return f"{save_folder(name)}/{folder_of(task)}.json"


def _read(store: Store, name: str, task: str) -> dict[str, Any]:
    """Return a task's files of a save; none where it has none. Raises Damaged."""
    path = _list_path(name, task)
    content = store.get(path)
    if content is None:
        return {}
    files = parse(content, f"{store.url}/{path}").get("files")
    if not isinstance(files, dict):
        raise damaged(f"{store.url}/{path}", content)
    return files


def _read_or_none(store: Store, name: str, task: str) -> dict[str, Any] | None:
    """Return a task's files of a save; None where the list of them is damaged."""
    try:
        return _read(store, name, task)
    except Damaged:
        return None


def _write(store: Store, name: str, task: str, files: Mapping[str, Any]) -> None:
    content = json.dumps({"v": "1.0", "task": task, "files": files}).encode()
    store.put(_list_path(name, task), content)
