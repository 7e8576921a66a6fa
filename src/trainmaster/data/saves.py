"""Saves: an output as it is while its program runs, beside where it will be at the end.

    <url>/_saves/<UTC time>/<role>-<index>/...     the files that changed since the save before
    <url>/_saves/<UTC time>/<role>-<index>.json    written last: every file of the task then, and in which save it lies

or, where the job says `saves.names: interResult`, in <url>/interResult_<time>/ (`core.fold.saving`). A save's name is the time
at which it was asked for, told to all tasks, so that one name holds all of them. Names sort by time. Only what changed is
sent, told by size and time of change. When old saves go, what a kept one still refers to moves into that one first: every
save that is there is complete. Another save may be made meanwhile. Who removes changes nothing of it: after all else is
done it looks whether the new save refers to what should go, and leaves that to the next time. Who saves, once its manifest
is there, looks whether what it refers to is where it was, else saves anew. Empty folders are in every save, where the
store has folders.
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


def save(
    output: Output | Mapping[str, Any],
    source: str,
    task: str,
    name: str,
    *,
    tell: Tell | None = None,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Save the file or directory `source` of a task; returns {save, files, bytes} of what was sent, and `left_out`, {path: what it is},
    where anything could not be. Nothing there is nothing sent.

    A save that fails leaves nothing of it.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"not the name of a save: {name!r}")
    store = output_store(output)
    try:
        return retried("save an output", store.url, lambda: _save(store, source, task, name, tell, stop))
    except BaseException:
        with contextlib.suppress(Exception):  # the storage may fail in this too
            if not _read(store, name, task):  # else the same save was made before
                _discard(store, task, name)
        raise


def discard(output: Output | Mapping[str, Any], task: str, name: str) -> None:
    """Remove what a task has saved under this name."""
    store = output_store(output)
    retried("remove a save", store.url, lambda: _discard(store, task, name))


def _discard(store: Store, task: str, name: str) -> None:
    place = f"{save_folder(name)}/{folder_of(task)}"
    store.remove(f"{place}.json")
    store.remove(place)
    remove_empty(store, place)


def prune(output: Output | Mapping[str, Any], keep: int, newest: str) -> list[str]:
    """Remove saves up to `newest`, of which no task makes any more, but for the last `keep` that hold anything; returns those removed.

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
    while True:  # again where the save before was removed meanwhile, of which there are only so many
        before, known = _before(store, name, task)
        told, files = _sent(store, tree, task, name, known, (tell, stop))
        now = _read(store, before, task) if before else {}
        if all(file["in"] == name or now.get(path) == file for path, file in files.items()):
            left_out = tree.left_out | _keep_folders(store, tree, task, name)
            return told | ({"left_out": left_out} if left_out else {})
        store.remove(f"{save_folder(name)}/{folder_of(task)}.json")


def _keep_folders(store: Store, tree: Tree, task: str, name: str) -> dict[str, str]:
    """Make the empty folders of `tree` in a save. Return those that the store cannot have: path -> what it is."""
    if not store.renames:
        return dict.fromkeys(tree.folders, "an empty folder")
    for path in tree.folders:
        store.make_folder(f"{save_folder(name)}/{folder_of(task)}/{path}")
    return {}


def _before(store: Store, name: str, task: str) -> tuple[str, dict[str, Any]]:
    """The task's newest save before this one, and its files."""
    names = (old for old in reversed(_names(store)) if old < name)
    return next(((old, found) for old in names if (found := _read(store, old, task))), ("", {}))


def _sent(
    store: Store, tree: Tree, task: str, name: str, known: Mapping[str, Any], by: tuple[Tell | None, threading.Event | None]
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """What was sent, and the files of the save, those of `known` that have not changed where that has them."""
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
    for name in gone:  # from now on no new save can come to refer to it
        for task in _tasks(store, name):
            store.remove(f"{save_folder(name)}/{folder_of(task)}.json")
    for task in sorted({task for name in kept for task in _tasks(store, name)}) if gone else ():
        _take_over(store, gone, kept, task)
    wanted = {
        file["in"]
        for name in _names(store) if gone and name > newest
        for task in _tasks(store, name)
        for file in _read(store, name, task).values()
    }  # fmt: skip
    removed = [name for name in gone if name not in wanted]
    for name in removed:
        store.remove(save_folder(name))
    return removed


def _take_over(store: Store, gone: list[str], kept: list[str], task: str) -> None:
    """Copy what saves of a task refer to in those that go into the first that does; the others refer to it there."""
    manifests = {name: _read(store, name, task) for name in kept}
    holders: dict[tuple[str, str], str] = {}  # (path, save that goes) -> the save that has it from now on
    for name, files in manifests.items():
        for path, file in files.items():
            if file["in"] in gone:
                holders.setdefault((path, file["in"]), name)

    def copy(item: tuple[tuple[str, str], str]) -> None:
        (path, old), new = item
        source, target = (f"{save_folder(name)}/{folder_of(task)}/{path}" for name in (old, new))
        if not store.exists(target):  # else by one who was stopped
            store.copy(source, target)

    Flow().run(holders.items(), copy, store.threads)
    for name, files in manifests.items():
        moved = {path: file | {"in": holders.get((path, file["in"]), file["in"])} for path, file in files.items()}
        if moved != files:
            _write(store, name, task, moved)


def _names(store: Store) -> list[str]:
    there = [*store.entries(SAVES), *(entry for entry in store.entries("") if is_save(entry.name))]
    return [entry.name for entry in there if entry.folder and NAME.fullmatch(entry.name)]


def _tasks(store: Store, name: str) -> list[str]:
    found = [
        entry.name.removesuffix(".json") for entry in store.entries(save_folder(name)) if entry.name.endswith(".json")
    ]
    return [":".join(folder.rsplit("-", 1)) for folder in found]


def _read(store: Store, name: str, task: str) -> dict[str, Any]:
    content = store.get(f"{save_folder(name)}/{folder_of(task)}.json")
    found: dict[str, Any] = {} if content is None else json.loads(content)["files"]
    return found


def _write(store: Store, name: str, task: str, files: Mapping[str, Any]) -> None:
    content = json.dumps({"v": "1.0", "task": task, "files": files}).encode()
    store.put(f"{save_folder(name)}/{folder_of(task)}.json", content)
