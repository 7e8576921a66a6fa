"""Outputs: uploaded beside their place by every attempt, put in their place by one.

    <url>/_temporary/<attempt id>/<role>-<index>/...   what an attempt has uploaded; nobody reads it
    <url>/_temporary/commits/<role>-<index>.json       the claim: which attempt commits for the task, what, and whether it is done
    <url>/<role>-<index>/...                           the output (layout: task), or <url>/... (layout: flat)
    <url>/_SUCCESS                                     JSON, written last: every file of the output with its size
    <url>/_partial/...                                 what the finished tasks of a failed job had committed

The claim is created exclusively, so of two attempts one commits, whoever believes to have leave; it holds the list of
files, so that whoever finishes a commit that was interrupted needs nothing else, and doing it twice changes nothing,
nor does doing it twice at once: an agent that was given up may still be at it when the master commits in its place. A
later attempt of the same task, which the master names only after it wrote the earlier one off, takes over a claim that
is not done and removes what the earlier one could still move. Where a store `renames`, a task's folder appears in one
step; elsewhere files are copied, and `done` in the claim, then `_SUCCESS`, say what is whole.

With `overwrite` there may be an earlier output, which stays whole until the job has succeeded: a commit then is the
claim alone, and what was uploaded goes to its place, or to `_partial`, at the end. First the files that are to go and to
come are written down and `_SUCCESS` is removed, so that no reader takes a mixture for the whole; then the old files go,
the new ones come, and `_SUCCESS` is written. Each step may be done twice: whoever finds the switch begun goes on with
it, and a later job, where nobody did, removes what it left. The folder of a task that commits is replaced whole; other
files that nobody listed are left alone.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from trainmaster.core.errors import EngineFailed, StorageFailed
from trainmaster.core.spec.job import Output
from trainmaster.data.store.stores import Store, remove_empty, store_for
from trainmaster.data.store.transfer import Flow, Tell, retried, safe_path
from trainmaster.data.store.trees import Leaf, Tree, scan, unchanged

VERSION = "1.0"
TEMPORARY, PARTIAL, SUCCESS = "_temporary", "_partial", "_SUCCESS"
_COMMITS = f"{TEMPORARY}/commits"
_SWITCH = f"{TEMPORARY}/switch.json"
_REPEATS = 3  # times a file that changes while it is read is taken again
_MEETINGS = 3  # times that a commit may be disturbed by another call for it


class CommitRefused(EngineFailed):
    """Another attempt has committed, or something is in the place that is not the job's to replace."""

    reason = "commit-refused"  # of core.reasons


@attrs.frozen(slots=True)
class _Claim:
    """Who commits for a task. `files`: path -> size. `instead`: whoever had claimed before, or "" """

    job: str
    attempt: int
    id: str
    files: dict[str, int]
    done: bool = False
    instead: str = ""


def folder_of(task: str) -> str:
    """`worker:0` as the name of a folder."""
    return task.replace(":", "-")


def attempt_id(job: str, task: str, attempt: int) -> str:
    """Under which name an attempt uploads: no other attempt, of this job or another, has it."""
    return f"{job}.{folder_of(task)}.{attempt}"


def upload(
    output: Output | Mapping[str, Any],
    source: str,
    job: str,
    task: str,
    attempt: int,
    *,
    tell: Tell | None = None,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Upload the file or directory `source` beside the output's place.

    Returns {files, bytes, id} for `commit`, and `left_out`, {path: what it is}, where anything could not be stored. Files that an earlier
    call for the same attempt has uploaded are not sent again. Raises FileNotFoundError where there is no `source`, and BadInput where it
    is a link that leads elsewhere.
    """
    store = output_store(output)
    found = attempt_id(job, task, attempt)
    tree = scan(source)
    if tree is None:
        raise FileNotFoundError(source)
    folder = f"{TEMPORARY}/{found}/{folder_of(task)}"
    present = {file.path: file.size for file in store.files(folder)}
    leaves = [leaf for leaf in tree.leaves.values() if present.get(f"{folder}/{leaf.path}") != leaf.size]
    upload_leaves(store, folder, tree, leaves, Flow(sum(leaf.size for leaf in leaves), tell, stop))
    placed = {file.path.removeprefix(f"{folder}/"): file.size for file in store.files(folder)}
    size = sum(placed.get(path, 0) for path in tree.leaves)  # not of the first look: a file may have grown meanwhile
    kept = _keep_folders(store, folder, tree, _how(output).layout)
    left_out = tree.left_out | ({} if kept else dict.fromkeys(tree.folders, "an empty folder"))
    told: dict[str, Any] = {"files": len(tree.leaves), "bytes": size, "id": found}
    return told | ({"left_out": left_out} if left_out else {})


def _keep_folders(store: Store, folder: str, tree: Tree, layout: str) -> bool:
    """Make the empty folders too, where they are moved with the task's own; whether they are."""
    if not store.renames or layout == "flat":
        return False
    for path in tree.folders:
        store.make_folder(f"{folder}/{path}")
    return True


def upload_leaves(store: Store, folder: str, tree: Tree, leaves: Iterable[Leaf], flow: Flow) -> None:
    """Put files of `tree` below `folder`. One that changes while it is read is taken again, some times."""

    def put(leaf: Leaf) -> None:
        path = f"{folder}/{leaf.path}"
        for _ in range(_REPEATS):
            counted = 0

            def step(count: int) -> None:
                nonlocal counted
                counted += count
                flow.step(count)

            def once(step: Any = step) -> None:
                nonlocal counted
                flow.step(-counted)
                counted = 0
                store.upload(tree.at(leaf.path), path, step)

            retried("store a file", f"{store.url}/{path}", once, flow)
            if unchanged(tree.at(leaf.path), leaf):
                return

    flow.run(leaves, put, store.threads)


def commit(
    output: Output | Mapping[str, Any], uploaded: Mapping[str, Any], job: str, task: str, attempt: int
) -> dict[str, Any]:
    """Put what an attempt has uploaded in its place. A second call, by whomever, is a success too, at the same time or later.

    `uploaded`: what `upload` returned. Returns {files, bytes, id}. Raises CommitRefused where another attempt has committed, where
    something else is in the place, or (layout: flat) another task wrote equal names.
    """
    store = output_store(output)
    if "id" not in uploaded:
        told = f"attempt {attempt} of {task} has uploaded nothing that could be committed"
        raise StorageFailed(told, place=store.url, anchor="commit-refused")
    mine = _Claim(job, attempt, uploaded["id"], {})
    claim = retried("commit an output", store.url, lambda: _committed(store, _how(output), uploaded, task, mine))
    return {"files": len(claim.files), "bytes": sum(claim.files.values()), "id": claim.id}


def finish(output: Output | Mapping[str, Any], committed: Mapping[str, Any], job: str, succeeded: bool) -> None:
    """The end of a job's output: `_SUCCESS` over what the tasks in `committed` have, or all of it moved to `_partial`.

    `_temporary` is removed. A second call changes nothing.
    """
    store = output_store(output)
    retried("finish an output", store.url, lambda: _finished(store, _how(output), committed, job, succeeded))


# -- how --


@attrs.frozen(slots=True)
class _How:
    layout: str
    overwrite: bool

    def target(self, task: str) -> str:
        return "" if self.layout == "flat" else f"{folder_of(task)}/"


def _how(output: Output | Mapping[str, Any]) -> _How:
    if isinstance(output, Output):
        return _How(output.layout, output.overwrite)
    return _How(output.get("layout", "task"), bool(output.get("overwrite")))


def output_store(output: Output | Mapping[str, Any]) -> Store:
    return store_for(output.url if isinstance(output, Output) else output["url"])


def _committed(store: Store, how: _How, uploaded: Mapping[str, Any], task: str, mine: _Claim) -> _Claim:
    claim = _claimed(store, how, uploaded, task, mine)
    if how.layout == "flat" and not claim.done:
        _refuse_equal_names(store, task, claim)
    return _promised(store, task, claim) if how.overwrite else _placed(store, how, task, claim)


def _promised(store: Store, task: str, claim: _Claim) -> _Claim:
    """The claim, done: its files wait where they were uploaded for the end of the job."""
    if claim.done:
        return claim
    now = _read_claim(store, task) or _done_before(store, task, claim)
    if now is None or now.id != claim.id:
        raise _written_off(store, task, claim.attempt)
    if not now.done:
        now = attrs.evolve(now, done=True)
        _write_claim(store, task, now)
    return now


def _placed(store: Store, how: _How, task: str, claim: _Claim) -> _Claim:
    """The claim, done: its files are in their place."""
    failure: OSError | None = None
    for _ in range(_MEETINGS):
        if claim.done:
            return claim
        failure = None
        try:
            _put_in_place(store, how, task, claim)
        except (FileNotFoundError, FileExistsError) as error:
            failure = error  # or a second call for the same attempt was quicker
        now = _read_claim(store, task) or _done_before(store, task, claim)
        if now is None or now.id != claim.id:
            raise _written_off(store, task, claim.attempt) from failure
        claim = now
        if failure is None:
            break
    if isinstance(failure, FileExistsError):
        raise CommitRefused(
            f"where the output of {task} belongs, something has appeared meanwhile",
            place=str(failure.filename or failure),
            mend="give each job an output of its own",
            anchor="commit-refused",
        ) from failure
    if failure is not None and not _in_place(store, how, task, claim):
        raise _written_off(store, task, claim.attempt) from failure
    if not claim.done:
        claim = attrs.evolve(claim, done=True)
        _write_claim(store, task, claim)
    if not store.renames:
        store.remove(f"{TEMPORARY}/{claim.id}")
    return claim


def _written_off(store: Store, task: str, attempt: int) -> CommitRefused:
    return CommitRefused(f"attempt {attempt} of {task} was written off", place=store.url, anchor="commit-refused")


def _finished(store: Store, how: _How, committed: Mapping[str, Any], job: str, succeeded: bool) -> None:
    if succeeded:
        if _success(store).get("job") != job:
            claims = _commits(store, committed, job)
            if how.overwrite:
                _switch(store, how, claims)
            _write_success(store, how, claims, job)
    else:
        for task, claim in _claims(store).items():
            if claim.job == job:
                _set_apart(store, how, task, claim)
    store.remove(TEMPORARY)


def _claimed(store: Store, how: _How, uploaded: Mapping[str, Any], task: str, mine: _Claim) -> _Claim:
    """The claim of this attempt, made or found. Raises CommitRefused where it is another's."""
    there = _read_claim(store, task)
    if there is not None and there.id == mine.id:
        return there
    if there is None and (done := _done_before(store, task, mine)) is not None:
        return done
    try:
        claim = _new_claim(store, how, uploaded, task, mine, there)
    except (CommitRefused, StorageFailed):
        if _read_claim(store, task) == there:
            raise
        return _claimed(store, how, uploaded, task, mine)  # meanwhile a second call for the same attempt went on
    if there is None:
        return claim if store.create(_claim_path(task), _content(claim)) else _claimed(store, how, uploaded, task, mine)
    if _read_claim(store, task) != there:
        return _claimed(store, how, uploaded, task, mine)
    _write_claim(store, task, claim)
    store.remove(f"{TEMPORARY}/{there.id}")  # what the other could still move
    return claim


def _new_claim(
    store: Store, how: _How, uploaded: Mapping[str, Any], task: str, mine: _Claim, there: _Claim | None
) -> _Claim:
    """`mine` with its files, where it may be put in the place of the claim that is `there`."""
    if there is not None and there.job == mine.job and (there.done or there.attempt > mine.attempt):
        told = f"attempt {there.attempt} of {task} {'has committed' if there.done else 'is about to commit'} its output"
        raise CommitRefused(told, place=store.url, anchor="commit-refused")
    if there is not None and there.job != mine.job and not how.overwrite:
        raise CommitRefused(
            f"another job, {there.job}, writes to the same place",
            place=store.url,
            mend="give each job an output of its own",
            anchor="commit-refused",
        )
    source = f"{TEMPORARY}/{mine.id}/{folder_of(task)}/"
    files = {file.path.removeprefix(source): file.size for file in store.files(source.rstrip("/"))}
    if (len(files), size := sum(files.values())) != (uploaded["files"], uploaded["bytes"]):
        told = f"{len(files)} of {uploaded['files']} files and {size} of {uploaded['bytes']} bytes"
        raise StorageFailed(
            f"of the output of {task}, {told} are where they were uploaded",
            place=f"{store.url}/{source}",
            mend="keep others from changing them",
            anchor="storage-failed",
        )
    claim = attrs.evolve(mine, files=files, instead="" if there is None else there.id)
    if how.layout == "flat":
        _refuse_equal_names(store, task, claim)
    if not (how.overwrite or claim.instead):
        _refuse_strangers(store, how.target(task), files)
    return claim


def _done_before(store: Store, task: str, mine: _Claim) -> _Claim | None:
    """The commit, as `_SUCCESS` tells it, of a job that has finished."""
    told = _success(store)
    found = told.get("tasks", {}).get(task)
    if told.get("job") != mine.job or found is None or found["id"] != mine.id:
        return None
    return attrs.evolve(mine, files={file["path"]: file["size"] for file in found["files"]}, done=True)


def _refuse_strangers(store: Store, target: str, files: Mapping[str, int]) -> None:
    present = store.files(target.rstrip("/")) if target else [file for name in files if (file := store.look(name))]
    if present:
        raise CommitRefused(
            f"{present[0].path} is there already, and not of this job",
            place=store.url,
            mend="give the output another url, or say overwrite: true",
            anchor="output-exists",
        )


def _refuse_equal_names(store: Store, task: str, claim: _Claim) -> None:
    """Every task claims before it looks, so of two with equal names at least one sees the other; it withdraws."""
    for other, theirs in _claims(store).items():
        if other != task and theirs.job == claim.job and (equal := sorted(claim.files.keys() & theirs.files.keys())):
            store.remove(_claim_path(task))
            raise CommitRefused(
                f"{other} and {task} both wrote {equal[0]}",
                place=store.url,
                mend="say layout: task, or name one task that writes it: from:",
                anchor="equal-names",
            )


def _put_in_place(store: Store, how: _How, task: str, claim: _Claim) -> None:
    source, target = f"{TEMPORARY}/{claim.id}/{folder_of(task)}", how.target(task)
    replace = how.overwrite or bool(claim.instead)
    if store.renames and target:
        if store.exists(source):
            if replace:
                _put_aside(store, target.rstrip("/"), claim)
            store.move(source, target.rstrip("/"))
        elif claim.files and not store.exists(target.rstrip("/")):
            raise _written_off(store, task, claim.attempt)
        return
    if target and replace:
        for file in store.files(target.rstrip("/")):
            if file.path.removeprefix(target) not in claim.files:
                store.remove(file.path)

    def place(name: str) -> None:
        if store.renames:
            _move_file(store, f"{source}/{name}", target + _safe(name), replace)
        else:
            store.copy(f"{source}/{name}", target + _safe(name))

    Flow().run(claim.files, place, store.threads)


def _in_place(store: Store, how: _How, task: str, claim: _Claim) -> bool:
    found = {name: store.look(how.target(task) + name) for name in claim.files}
    return all(file is not None and file.size == claim.files[name] for name, file in found.items())


def _put_aside(store: Store, folder: str, claim: _Claim) -> None:
    """Have what was there before out of the way, once: what a second call finds there is what the first one has put in place."""
    aside = f"{TEMPORARY}/replaced/{claim.id}"
    if store.exists(aside):
        return
    if not store.exists(folder):
        store.create(aside, b"")
        return
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        store.move(folder, aside)


def _safe(name: str) -> str:
    safe_path("", name)
    return name


def _move_file(store: Store, source: str, target: str, replace: bool) -> None:
    if not store.exists(source) and store.exists(target):
        return  # moved by a call before
    store.move(source, target, replace)


def _switch(store: Store, how: _How, claims: Mapping[str, _Claim]) -> None:
    """Put what the tasks have committed in the place of an earlier output."""
    new = {path for task, claim in claims.items() for path in _paths(how, task, claim)}
    old = listed(store) | set(json.loads(store.get(_SWITCH) or b"[]"))
    store.put(_SWITCH, json.dumps(sorted(old | new)).encode())
    store.remove(SUCCESS)
    for path in sorted(old - new):
        store.remove(_safe(path))
        remove_empty(store, path)
    for task, claim in claims.items():
        _put_in_place(store, how, task, claim)


def listed(store: Store) -> set[str]:
    """The files of the output that is in the place, as its `_SUCCESS` lists them."""
    return {_safe(file["path"]) for task in _success(store).get("tasks", {}).values() for file in task["files"]}


def _write_success(store: Store, how: _How, claims: Mapping[str, _Claim], job: str) -> None:
    tasks: dict[str, Any] = {}
    for task, claim in claims.items():
        files = [{"path": path, "size": size} for path, size in sorted(_paths(how, task, claim).items())]
        tasks[task] = {"id": claim.id, "files": files}
    sizes = [file["size"] for task in tasks.values() for file in task["files"]]
    told = {"v": VERSION, "job": job, "files": len(sizes), "bytes": sum(sizes), "tasks": tasks}
    store.put(SUCCESS, json.dumps(told, indent=1).encode() + b"\n")


def _success(store: Store) -> dict[str, Any]:
    """What `_SUCCESS` says; nothing where there is none, or one that is not ours."""
    with contextlib.suppress(ValueError):
        if isinstance(told := json.loads(store.get(SUCCESS) or b""), dict) and "v" in told:
            return told
    return {}


def _commits(store: Store, committed: Iterable[str], job: str) -> dict[str, _Claim]:
    """The claims of the tasks that have committed, in order. Raises StorageFailed where one of them has not."""
    claims = _claims(store)
    found = {}
    for task in sorted(committed, key=lambda task: (task.partition(":")[0], int(task.partition(":")[2] or 0))):
        claim = claims.get(task)
        if claim is None or claim.job != job or not claim.done:
            told = f"the output of {task} is not committed"
            raise StorageFailed(told, place=store.url, mend="submit the job again", anchor="commit-refused")
        found[task] = claim
    return found


def _paths(how: _How, task: str, claim: _Claim) -> dict[str, int]:
    """Where its files belong, with their sizes."""
    return {how.target(task) + name: size for name, size in claim.files.items()}


def _set_apart(store: Store, how: _How, task: str, claim: _Claim) -> None:
    """Move what a task has committed to `_partial`; of a commit that was interrupted, remove what is in the place."""
    target, uploaded = how.target(task), f"{TEMPORARY}/{claim.id}/{folder_of(task)}/"
    place = uploaded if how.overwrite else target
    if not claim.done:
        for name in () if how.overwrite else claim.files:
            if not store.renames or not store.exists(uploaded + name):
                store.remove(target + name)
        return
    if store.renames and target:
        if store.exists(place.rstrip("/")):
            store.remove(f"{PARTIAL}/{folder_of(task)}")
            store.move(place.rstrip("/"), f"{PARTIAL}/{folder_of(task)}")
        return
    for name in claim.files:
        if store.exists(place + name):
            store.remove(f"{PARTIAL}/{target}{name}")
            store.move(place + name, f"{PARTIAL}/{target}{name}")
            remove_empty(store, place + name)


def _claim_path(task: str) -> str:
    return f"{_COMMITS}/{folder_of(task)}.json"


def _claims(store: Store) -> dict[str, _Claim]:
    """task -> its claim."""
    found = {}
    for entry in store.entries(_COMMITS):
        role, _, index = entry.name.removesuffix(".json").rpartition("-")
        if entry.name.endswith(".json") and (claim := _read_claim(store, f"{role}:{index}")) is not None:
            found[f"{role}:{index}"] = claim
    return found


def _read_claim(store: Store, task: str) -> _Claim | None:
    content = store.get(_claim_path(task))
    return None if content is None else _Claim(**json.loads(content))


def _write_claim(store: Store, task: str, claim: _Claim) -> None:
    store.put(_claim_path(task), _content(claim))


def _content(claim: _Claim) -> bytes:
    return json.dumps(attrs.asdict(claim)).encode()
