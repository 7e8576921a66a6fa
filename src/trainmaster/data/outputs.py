"""Outputs: every attempt uploads its files to a temporary place, and one attempt commits them to their final place.

    <url>/_temporary/<attempt id>/<role>-<index>/...   the upload of an attempt; nobody reads it
    <url>/_temporary/commits/<role>-<index>.json       the claim: which attempt commits for the task, which files, and whether it is done
    <url>/<role>-<index>/...                           the output (layout: task), or <url>/... (layout: flat)
    <url>/_SUCCESS                                     JSON, written last: every file of the output with its size
    <url>/_partial/<job>/...                           the files that finished tasks of a failed job had committed, or could not
                                                       commit; they stay for the user

The claim is created exclusively, so of two attempts one commits, even where both believe that they may. The claim holds the list of files,
so that whoever finishes an interrupted commit needs nothing else. Committing twice changes nothing, not even twice at once: an agent that
was given up may still be committing when the master commits in its place. The master names a later attempt of the same task only after it
wrote the earlier one off. The later one takes over a claim that is not done, and removes what the earlier one could still move. Where a
store `renames`, a task's folder appears in one step; elsewhere files are copied, and `done` in the claim, then `_SUCCESS`, say what is
whole.

With `overwrite` there may be an earlier output, which stays whole until the job has succeeded: a commit then is the
claim alone, and the upload goes to its place, or to `_partial`, at the end. First the lists of old and of new files are
written down and `_SUCCESS` is removed, so that no reader takes a mixture for the whole; then the old files are removed, the
new ones are put in place, and `_SUCCESS` is written. Each step may be done twice: whoever finds the switch begun goes on
with it, and where nobody did, a later job removes what it left. The folder of a task that commits is replaced whole; other
files that nobody listed are left alone.

A task may commit in *parts*, each of which counts from the moment when the master has logged it, whatever becomes of its attempt. A part is
uploaded, claimed and put in place as a task is, under a name of its own, `<role>-<index>.<attempt>.<part>`; nobody takes over its claim.
With the layout `flat`, files of a part whose names are taken go into the folder of that name.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from trainmaster.core.errors import EngineFailed, StorageFailed
from trainmaster.core.foreign import json_in
from trainmaster.core.spec.job import Output
from trainmaster.data.store.stores import Store, remove_empty, store_for
from trainmaster.data.store.transfer import Flow, Tell, retried, safe_path
from trainmaster.data.store.trees import Leaf, Tree, scan, unchanged
from trainmaster.log.documents.files import damaged, parse

VERSION = "1.0"
TEMPORARY, PARTIAL, SUCCESS = "_temporary", "_partial", "_SUCCESS"
_COMMITS = f"{TEMPORARY}/commits"
_SWITCH = f"{TEMPORARY}/switch.json"
_REMOVE = "see what is in the output; what is not wanted goes, with this file, and then: submit again"  # where such a list is damaged
_REPEATS = 3  # times a file that changes while it is read is sent again
_MEETINGS = 3  # times that a commit may be disturbed by another call for it


class CommitRefused(EngineFailed):
    """Another attempt has committed, or something is in the place that is not the job's to replace."""

    reason = "commit-refused"  # of core.reasons


@attrs.frozen(slots=True)
class _Claim:
    """The claim of the attempt that commits for a task, or of a part. `files`: path -> size. `instead`: the id of the claim that it
    replaced, or "". `apart`: of the layout `flat`, and its files go into a folder of their own.
    """

    job: str
    attempt: int
    id: str
    files: dict[str, int]
    done: bool = False
    instead: str = ""
    apart: bool = False


def folder_of(task: str) -> str:
    """Return a task's name, as in `worker:0`, as the name of a folder."""
    return task.replace(":", "-")


def part_of(task: str, attempt: int, part: int) -> str:
    """Return the name under which a part is committed, in the place of a task's."""
    return f"{task}.{attempt}.{part}"


def is_part(task: str) -> bool:
    return "." in task.rpartition(":")[2]


def attempt_id(job: str, task: str, attempt: int) -> str:
    """Return the name under which an attempt uploads: no other attempt, of this job or another, has it."""
    return f"{job}.{folder_of(task)}.{attempt}"


def upload(
    output: Output | Mapping[str, Any],
    source: str,
    job: str,
    task: str,
    attempt: int,
    *,
    kept: Mapping[str, Leaf] | None = None,
    tell: Tell | None = None,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Upload the file or directory `source` beside the output's place, without the files that earlier parts have `kept`.

    Returns {files, bytes, id} for `commit`, of a part the `leaves` that it has, and `left_out`, {path: why}, of what was not stored.
    Files that an earlier call for the same attempt has uploaded are not sent again. Where there is no `source`, and not all tasks must
    write the output, or a part is uploaded, it returns an upload without an id, of no files. Raises FileNotFoundError where all must,
    BadInput where `source` is a link that leads elsewhere, and StorageFailed where a file of an earlier part was changed or renamed.
    """
    store = output_store(output)
    upload_id = attempt_id(job, task, attempt)
    tree = scan(source)
    if tree is None:
        if _options(output).required == "all" and not is_part(task):
            raise FileNotFoundError(source)
        return {"files": 0, "bytes": 0}
    tree = _without(tree, kept or {})
    if is_part(task) and not tree.leaves:
        return {"files": 0, "bytes": 0}
    folder = f"{TEMPORARY}/{upload_id}/{folder_of(task)}"
    present = {file.path: file.size for file in store.files(folder)}
    leaves = [leaf for leaf in tree.leaves.values() if present.get(f"{folder}/{leaf.path}") != leaf.size]
    upload_leaves(store, folder, tree, leaves, Flow(sum(leaf.size for leaf in leaves), tell, stop))
    placed = {file.path.removeprefix(f"{folder}/"): file.size for file in store.files(folder)}
    size = sum(placed.get(path, 0) for path in tree.leaves)  # not of the first look: a file may have grown meanwhile
    report: dict[str, Any] = {"files": len(tree.leaves), "bytes": size, "id": upload_id}
    if is_part(task):  # folders that are still empty may be filled
        return {**report, "leaves": tree.leaves} | ({"left_out": tree.left_out} if tree.left_out else {})
    has_folders = _keep_folders(store, folder, tree, _options(output).layout)
    left_out = tree.left_out | ({} if has_folders else dict.fromkeys(tree.folders, "an empty folder"))
    return report | ({"left_out": left_out} if left_out else {})


def _without(tree: Tree, kept: Mapping[str, Leaf]) -> Tree:
    """Return the tree without the files that are in parts. Raises StorageFailed where one of those was changed, or has another name now."""
    was = {(leaf.inode, leaf.version) for leaf in kept.values()}
    for path, leaf in tree.leaves.items():
        why = ""
        if path in kept and leaf.version != kept[path].version:
            why = "has changed since it was committed"
        elif path not in kept and leaf.inode and (leaf.inode, leaf.version) in was:
            why = "was committed under another name"
        if why:
            raise StorageFailed(
                f"{path} {why}",
                place=tree.at(path),
                mend="begin new files after each commit, and leave those before it as they are",
                anchor="commit-refused",
            )
    return attrs.evolve(tree, leaves={path: leaf for path, leaf in tree.leaves.items() if path not in kept})


def _keep_folders(store: Store, folder: str, tree: Tree, layout: str) -> bool:
    """Make the empty folders too, where they will move with the task's own folder. Return False where they will not."""
    if not store.renames or layout == "flat":
        return False
    for path in tree.folders:
        store.make_folder(f"{folder}/{path}")
    return True


def upload_leaves(store: Store, folder: str, tree: Tree, leaves: Iterable[Leaf], flow: Flow) -> None:
    """Put files of `tree` below `folder`. A file that changes while it is read is sent again, a few times."""

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
    """Put the upload of an attempt in its place. A second call, by anyone, at the same time or later, succeeds too.

    `uploaded`: what `upload` returned. Returns {files, bytes, id}. Raises CommitRefused where another attempt has committed, where
    something else is in the place, or (layout: flat) another task wrote equal names.
    """
    return _commit_upload(output_store(output), _options(output), uploaded, job, task, attempt)


def commit_parts(
    output: Output | Mapping[str, Any], parts: Iterable[tuple[str, int, Mapping[str, Any]]], job: str
) -> dict[str, Any]:
    """Put parts, (name, attempt, what `upload` returned), in their places, as `commit` does. Return name -> what that returns."""
    store, options = output_store(output), _options(output)
    return {part: _commit_upload(store, options, uploaded, job, part, attempt) for part, attempt, uploaded in parts}


def _commit_upload(
    store: Store, options: _Options, uploaded: Mapping[str, Any], job: str, task: str, attempt: int
) -> dict[str, Any]:
    if "id" not in uploaded and uploaded.get("files") == 0:
        return dict(uploaded)  # the task wrote nothing, and need not
    if "id" not in uploaded:
        problem = f"attempt {attempt} of {task} has uploaded nothing that could be committed"
        raise StorageFailed(problem, place=store.url, anchor="commit-refused")
    mine = _Claim(job, attempt, uploaded["id"], {})
    claim = retried("commit an output", store.url, lambda: _commit(store, options, uploaded, task, mine))
    return {"files": len(claim.files), "bytes": sum(claim.files.values()), "id": claim.id}


def check_free(output: Output | Mapping[str, Any], job: str, task: str) -> None:
    """Raise CommitRefused where another job has written the output, or something is where the task's files belong.

    An agent calls it before the program starts: on a volume of its container the client could not look. The job has a claim
    on its own files of an earlier attempt.
    """
    store, options = output_store(output), _options(output)
    if options.overwrite:
        return
    other = _read_success(store).get("job", job)
    if other != job:
        raise _taken_error(store, f"{SUCCESS} of {other}")
    present = store.files(folder_of(task)) if options.layout == "task" else ()
    if present and ((claim := _read_claim(store, task)) is None or claim.job != job):
        raise _taken_error(store, present[0].path)


def finish(
    output: Output | Mapping[str, Any],
    committed: Mapping[str, Any],
    job: str,
    succeeded: bool,
    parts: Iterable[tuple[str, int, Mapping[str, Any]]] = (),
    refused: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """End a job's output: write `_SUCCESS` over the files of the tasks in `committed` and of all `parts`, or move them to `_partial`.

    `parts`: (name, attempt, what `upload` returned); those that nobody has put in their place yet are. `refused`: task -> what `upload`
    returned, of those that could not commit; these go to `_partial` too. `_temporary` is removed. A second call changes nothing.
    """
    store = output_store(output)
    written = {task: report for task, report in committed.items() if "id" in report}
    # An earlier call may have set apart those of a failed job.
    written |= commit_parts(
        output,
        (row for row in parts if "id" in row[2] and (succeeded or not _is_gone(store, row[0], row[2]))),
        job,
    )
    kept = {} if succeeded else {task: report["id"] for task, report in (refused or {}).items() if "id" in report}
    retried("finish an output", store.url, lambda: _finish(store, _options(output), written, job, succeeded, kept))


def _is_gone(store: Store, part: str, uploaded: Mapping[str, Any]) -> bool:
    """Tell whether neither the files of a part nor its claim wait any more."""
    return _read_claim(store, part) is None and not store.files(f"{TEMPORARY}/{uploaded['id']}")


# -- committing --


@attrs.frozen(slots=True)
class _Options:
    layout: str
    overwrite: bool
    required: str
    done: dict[str, _Claim] = attrs.field(factory=dict)  # claims that are done, as they were read: they change no more

    def target(self, task: str, is_apart: bool = False) -> str:
        return "" if self.layout == "flat" and not is_apart else f"{folder_of(task)}/"


def _options(output: Output | Mapping[str, Any]) -> _Options:
    if isinstance(output, Output):
        return _Options(output.layout, output.overwrite, output.required)
    return _Options(output.get("layout", "task"), bool(output.get("overwrite")), output.get("required", "all"))


def output_store(output: Output | Mapping[str, Any]) -> Store:
    return store_for(output.url if isinstance(output, Output) else output["url"], is_own=True)


def _commit(store: Store, options: _Options, uploaded: Mapping[str, Any], task: str, mine: _Claim) -> _Claim:
    claim = _take_claim(store, options, uploaded, task, mine)
    if options.layout == "flat" and not (claim.done or claim.apart):
        own = _with_own_names(store, options, task, claim)
        if own != claim:
            claim = own
            _write_claim(store, task, claim)
    return _promise(store, task, claim) if options.overwrite else _place(store, options, task, claim)


def _promise(store: Store, task: str, claim: _Claim) -> _Claim:
    """Mark the claim as done: its files wait where they were uploaded until the job ends."""
    if claim.done:
        return claim
    current = _read_claim(store, task) or _earlier_commit(store, task, claim)
    if current is None or current.id != claim.id:
        raise _written_off_error(store, task, claim.attempt)
    if not current.done:
        current = attrs.evolve(current, done=True)
        _write_claim(store, task, current)
    return current


def _place(store: Store, options: _Options, task: str, claim: _Claim) -> _Claim:
    """Put the files of the claim in their place and mark the claim as done."""
    failure: OSError | None = None
    for _ in range(_MEETINGS):
        if claim.done:
            return claim
        failure = None
        try:
            _put_in_place(store, options, task, claim)
        except (FileNotFoundError, FileExistsError) as error:
            failure = error  # or a second call for the same attempt was quicker
        current = _read_claim(store, task) or _earlier_commit(store, task, claim)
        if current is None or current.id != claim.id:
            raise _written_off_error(store, task, claim.attempt) from failure
        claim = current
        if failure is None:
            break
    if isinstance(failure, FileExistsError):
        raise CommitRefused(
            f"where the output of {task} belongs, something has appeared meanwhile",
            place=str(failure.filename or failure),
            mend="give each job an output of its own",
            anchor="commit-refused",
        ) from failure
    if failure is not None and not _is_in_place(store, options, task, claim):
        raise _written_off_error(store, task, claim.attempt) from failure
    if not claim.done:
        claim = attrs.evolve(claim, done=True)
        _write_claim(store, task, claim)
    if not store.renames:
        store.remove(f"{TEMPORARY}/{claim.id}")
    return claim


def _written_off_error(store: Store, task: str, attempt: int) -> CommitRefused:
    return CommitRefused(f"attempt {attempt} of {task} was written off", place=store.url, anchor="commit-refused")


def _finish(
    store: Store, options: _Options, committed: Mapping[str, Any], job: str, succeeded: bool, refused: Mapping[str, str]
) -> None:
    if succeeded:
        if _read_success(store).get("job") != job:
            claims = _commits(store, committed, job)
            if options.overwrite:
                _switch(store, options, claims)
            _write_success(store, options, claims, job)
    else:
        for task, claim in _claims(store).items():
            if claim.job == job:
                _set_apart(store, options, task, claim)
        for task, upload_id in refused.items():
            _keep_upload(store, task, upload_id, job)
    store.remove(TEMPORARY)


def _take_claim(store: Store, options: _Options, uploaded: Mapping[str, Any], task: str, mine: _Claim) -> _Claim:
    """Return the claim of this attempt, new or from an earlier call. Raises CommitRefused where another attempt holds it."""
    existing = _read_claim(store, task)
    if existing is not None and existing.id == mine.id:
        return existing
    if existing is None and (earlier := _earlier_commit(store, task, mine)) is not None:
        return earlier
    try:
        claim = _new_claim(store, options, uploaded, task, mine, existing)
    except (CommitRefused, StorageFailed):
        if _read_claim(store, task) == existing:
            raise
        return _take_claim(store, options, uploaded, task, mine)  # meanwhile a second call for the same attempt went on
    if existing is None:
        return (
            claim
            if store.create(_claim_path(task), _content(claim))
            else _take_claim(store, options, uploaded, task, mine)
        )
    if _read_claim(store, task) != existing:
        return _take_claim(store, options, uploaded, task, mine)
    _write_claim(store, task, claim)
    store.remove(f"{TEMPORARY}/{existing.id}")  # what the other could still move
    return claim


def _new_claim(
    store: Store, options: _Options, uploaded: Mapping[str, Any], task: str, mine: _Claim, existing: _Claim | None
) -> _Claim:
    """Return `mine` with its files. Raises CommitRefused where it may not replace the `existing` claim."""
    if existing is not None and existing.job == mine.job and (existing.done or existing.attempt > mine.attempt):
        problem = f"attempt {existing.attempt} of {task} {'has committed' if existing.done else 'is about to commit'} its output"
        raise CommitRefused(problem, place=store.url, anchor="commit-refused")
    if existing is not None and existing.job != mine.job and not options.overwrite:
        raise CommitRefused(
            f"another job, {existing.job}, writes to the same place",
            place=store.url,
            mend="give each job an output of its own",
            anchor="commit-refused",
        )
    source = f"{TEMPORARY}/{mine.id}/{folder_of(task)}/"
    files = {file.path.removeprefix(source): file.size for file in store.files(source.rstrip("/"))}
    if (len(files), size := sum(files.values())) != (uploaded["files"], uploaded["bytes"]):
        problem = f"{len(files)} of {uploaded['files']} files and {size} of {uploaded['bytes']} bytes"
        raise StorageFailed(
            f"of the output of {task}, {problem} are where they were uploaded",
            place=f"{store.url}/{source}",
            mend="keep others from changing them",
            anchor="storage-failed",
        )
    claim = attrs.evolve(mine, files=files, instead="" if existing is None else existing.id)
    if options.layout == "flat":
        claim = _with_own_names(store, options, task, claim)
    if not (options.overwrite or claim.instead):
        _refuse_strangers(store, options.target(task, claim.apart), files)
    return claim


def _earlier_commit(store: Store, task: str, mine: _Claim) -> _Claim | None:
    """Return the task's commit as `_SUCCESS` of a finished job lists it; None where it does not."""
    success = _read_success(store)
    entry = success.get("tasks", {}).get(task)
    if success.get("job") != mine.job or entry is None or entry["id"] != mine.id:
        return None
    return attrs.evolve(mine, files={file["path"]: file["size"] for file in entry["files"]}, done=True)


def _refuse_strangers(store: Store, target: str, files: Mapping[str, int]) -> None:
    present = store.files(target.rstrip("/")) if target else [file for name in files if (file := store.look(name))]
    if present:
        raise _taken_error(store, present[0].path)


def _taken_error(store: Store, path: str) -> CommitRefused:
    return CommitRefused(
        f"{path} is there already, and not of this job",
        place=store.url,
        mend="give the output another url, or say overwrite: true",
        anchor="output-exists",
    )


def _with_own_names(store: Store, options: _Options, task: str, claim: _Claim) -> _Claim:
    """Return the claim, apart where it or another with an equal name is of a part. Raises CommitRefused for the names of two tasks.

    Every task claims before it looks, so at least one of two sees the other.
    """
    claims = _claims(store, options.done)
    options.done.update({other: theirs for other, theirs in claims.items() if theirs.done})
    for other, theirs in claims.items():
        if other == task or theirs.job != claim.job or theirs.apart:
            continue
        if equal := sorted(claim.files.keys() & theirs.files.keys()):
            if is_part(task) or is_part(other):
                return attrs.evolve(claim, apart=True)
            store.remove(_claim_path(task))
            raise CommitRefused(
                f"{other} and {task} both wrote {equal[0]}",
                place=store.url,
                mend="say layout: task, or name one task that writes it: from:",
                anchor="equal-names",
            )
    return claim


def _put_in_place(store: Store, options: _Options, task: str, claim: _Claim) -> None:
    source, target = f"{TEMPORARY}/{claim.id}/{folder_of(task)}", options.target(task, claim.apart)
    replace = options.overwrite or bool(claim.instead)
    if store.renames and target:
        if store.exists(source):
            if replace:
                _put_aside(store, target.rstrip("/"), claim)
            store.move(source, target.rstrip("/"))
        elif claim.files and not store.exists(target.rstrip("/")):
            raise _written_off_error(store, task, claim.attempt)
        return
    if target and replace:
        for file in store.files(target.rstrip("/")):
            if file.path.removeprefix(target) not in claim.files:
                store.remove(file.path)

    def place(name: str) -> None:
        if store.renames:
            _move_file(store, f"{source}/{name}", target + _checked_path(name), replace)
        else:
            store.copy(f"{source}/{name}", target + _checked_path(name))

    Flow().run(claim.files, place, store.threads)


def _is_in_place(store: Store, options: _Options, task: str, claim: _Claim) -> bool:
    files = {name: store.look(options.target(task, claim.apart) + name) for name in claim.files}
    return all(file is not None and file.size == claim.files[name] for name, file in files.items())


def _put_aside(store: Store, folder: str, claim: _Claim) -> None:
    """Move the earlier output out of the way, once: a second call finds there what the first one has put in place."""
    aside = f"{TEMPORARY}/replaced/{claim.id}"
    if store.exists(aside):
        return
    if not store.exists(folder):
        store.create(aside, b"")
        return
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        store.move(folder, aside)


def _checked_path(name: str) -> str:
    safe_path("", name)
    return name


def _move_file(store: Store, source: str, target: str, replace: bool) -> None:
    if not store.exists(source) and store.exists(target):
        return  # moved by a call before
    store.move(source, target, replace)


def _switch(store: Store, options: _Options, claims: Mapping[str, _Claim]) -> None:
    """Replace an earlier output by what the tasks have committed."""
    new = {path for task, claim in claims.items() for path in _paths(options, task, claim)}
    old = listed(store) | _switched(store)
    store.put(_SWITCH, json.dumps(sorted(old | new)).encode())
    store.remove(SUCCESS)
    for path in sorted(old - new):
        store.remove(_checked_path(path))
        remove_empty(store, path)
    for task, claim in claims.items():
        _put_in_place(store, options, task, claim)


def _switched(store: Store) -> set[str]:
    """Return the files of old and new that an interrupted switch has noted. Raises Damaged."""
    content = store.get(_SWITCH)
    if content is None:
        return set()
    try:
        return {_checked_path(path) for path in json_in(content)}
    except (ValueError, TypeError, AttributeError):
        raise damaged(f"{store.url}/{_SWITCH}", content, _REMOVE) from None


def listed(store: Store) -> set[str]:
    """Return the files of the output that is in place, as its `_SUCCESS` lists them."""
    return {
        _checked_path(file["path"]) for task in _read_success(store).get("tasks", {}).values() for file in task["files"]
    }


def _write_success(store: Store, options: _Options, claims: Mapping[str, _Claim], job: str) -> None:
    tasks: dict[str, Any] = {}
    for task, claim in claims.items():
        files = [{"path": path, "size": size} for path, size in sorted(_paths(options, task, claim).items())]
        tasks[task] = {"id": claim.id, "files": files}
    sizes = [file["size"] for task in tasks.values() for file in task["files"]]
    success = {"v": VERSION, "job": job, "files": len(sizes), "bytes": sum(sizes), "tasks": tasks}
    store.put(SUCCESS, json.dumps(success, indent=1).encode() + b"\n")


def _read_success(store: Store) -> dict[str, Any]:
    """Return the content of `_SUCCESS`; {} where there is none, or it is not ours: Hadoop writes an empty one. Raises Damaged."""
    content = (store.get(SUCCESS) or b"").strip()
    if not content.startswith(b"{"):
        return {}
    success = parse(content, f"{store.url}/{SUCCESS}", _REMOVE)
    return success if "v" in success else {}


def _commits(store: Store, committed: Iterable[str], job: str) -> dict[str, _Claim]:
    """Return the claims of the tasks that have committed, in order. Raises StorageFailed where one of them has not."""
    claims = _claims(store)
    commits = {}
    for task in sorted(committed, key=_place_in_order):
        claim = claims.get(task)
        if claim is None or claim.job != job or not claim.done:
            problem = f"the output of {task} is not committed"
            raise StorageFailed(problem, place=store.url, mend="submit the job again", anchor="commit-refused")
        commits[task] = claim
    return commits


def _place_in_order(task: str) -> tuple[str, list[int]]:
    role, _, numbers = task.partition(":")
    return role, [int(number) for number in numbers.split(".") if number]


def _paths(options: _Options, task: str, claim: _Claim) -> dict[str, int]:
    """Return the path of each file of the claim in the output, with its size."""
    target = options.target(task, claim.apart)
    return {target + name: size for name, size in claim.files.items()}


def _set_apart(store: Store, options: _Options, task: str, claim: _Claim) -> None:
    """Move what a task has committed to `_partial`; where its commit was interrupted, remove the files that are in place."""
    target, uploaded = options.target(task, claim.apart), f"{TEMPORARY}/{claim.id}/{folder_of(task)}/"
    partial = f"{PARTIAL}/{claim.job}/{target}"
    place = uploaded if options.overwrite else target
    if not claim.done:
        for name in () if options.overwrite else claim.files:
            if not store.renames or not store.exists(uploaded + name):
                store.remove(target + name)
        return
    if store.renames and target:
        if store.exists(place.rstrip("/")):
            store.remove(partial.rstrip("/"))
            store.move(place.rstrip("/"), partial.rstrip("/"))
        return
    for name in claim.files:
        if store.exists(place + name):
            store.remove(partial + name)
            store.move(place + name, partial + name)
            remove_empty(store, place + name)


def _keep_upload(store: Store, task: str, upload_id: str, job: str) -> None:
    """Move what a task has uploaded and could not commit to `_partial`, into a folder of its own: others may have equal names."""
    place, partial = f"{TEMPORARY}/{upload_id}/{folder_of(task)}", f"{PARTIAL}/{job}/{folder_of(task)}"
    if store.renames:
        if store.exists(place):
            store.remove(partial)
            store.move(place, partial)
        return
    for file in store.files(place):
        target = partial + file.path.removeprefix(place)
        store.remove(target)
        store.move(file.path, target)


def _claim_path(task: str) -> str:
    return f"{_COMMITS}/{folder_of(task)}.json"


def _claims(store: Store, known: Mapping[str, _Claim] | None = None) -> dict[str, _Claim]:
    """Return the claims: task -> its claim. Those that are `known` are not read again."""
    claims = dict(known or {})
    for entry in store.entries(_COMMITS):
        role, _, index = entry.name.removesuffix(".json").rpartition("-")
        task = f"{role}:{index}"
        if entry.name.endswith(".json") and task not in claims and (claim := _read_claim(store, task)) is not None:
            claims[task] = claim
    return claims


def _read_claim(store: Store, task: str) -> _Claim | None:
    """Return the claim for a task's output; None where nobody has claimed it. Raises Damaged: who has, and which files, only it tells."""
    path = _claim_path(task)
    content = store.get(path)
    if content is None:
        return None
    try:
        return _Claim(**parse(content, f"{store.url}/{path}", _REMOVE))
    except TypeError:
        raise damaged(f"{store.url}/{path}", content, _REMOVE) from None


def _write_claim(store: Store, task: str, claim: _Claim) -> None:
    store.put(_claim_path(task), _content(claim))


def _content(claim: _Claim) -> bytes:
    return json.dumps(attrs.asdict(claim)).encode()
