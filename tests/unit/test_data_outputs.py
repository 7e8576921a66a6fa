"""Outputs: one attempt commits, once; a reader sees all of it or none; what others wrote is not touched."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parts import mounted

from trainmaster.agent.attempt.materials import Materials
from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.spec.job import Job, Output, Role
from trainmaster.data import outputs, saves
from trainmaster.data.checks import check_outputs
from trainmaster.data.outputs import CommitRefused, check_free, commit, finish, upload
from trainmaster.data.store.stores import store_for


@pytest.fixture(params=["path", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for an output: where folders are renamed, and where files are copied."""
    return f"memory://out-{tmp_path.name}/model" if request.param == "memory" else f"{tmp_path}/out/model"


def there(url: str) -> dict[str, bytes]:
    store = store_for(url)
    return {file.path: store.read(file.path, 0, file.size) for file in store.files()}


def made(folder: Path, **files: str) -> str:
    """A directory that a program wrote."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    folder.mkdir(exist_ok=True)
    return str(folder)


def send(output: Output, source: str, task: str = "worker:0", attempt: int = 1, job: str = "j-1") -> dict[str, Any]:
    return upload(output, source, job, task, attempt)


def test_a_task_that_writes_nothing_commits_nothing(url: str, tmp_path: Path) -> None:
    """Only where not all tasks must write. `_SUCCESS` lists the tasks that did."""
    output = Output("model", url, required="any")
    sent = send(output, made(tmp_path / "w", model_pt="weights"))
    nothing = send(output, str(tmp_path / "absent"), "worker:1")
    assert nothing == {"files": 0, "bytes": 0}
    assert commit(output, sent, "j-1", "worker:0", 1) == sent
    assert commit(output, nothing, "j-1", "worker:1", 1) == nothing
    finish(output, {"worker:0": sent, "worker:1": nothing}, "j-1", True)
    found = there(url)
    assert list(json.loads(found.pop("_SUCCESS"))["tasks"]) == ["worker:0"]
    assert found == {"worker-0/model.pt": b"weights"}
    with pytest.raises(FileNotFoundError):
        send(Output("model", url), str(tmp_path / "absent"), "worker:2")


def test_a_task_commits_into_a_folder_of_its_own(url: str, tmp_path: Path) -> None:
    output = Output("model", url)
    sent = send(output, made(tmp_path / "w", model_pt="weights", deep__more="x"))
    assert sent == {"files": 2, "bytes": 8, "id": "j-1.worker-0.1"}
    assert all(name.startswith("_temporary/") for name in there(url))
    assert commit(output, sent, "j-1", "worker:0", 1) == sent
    finish(output, {"worker:0": sent}, "j-1", True)
    found = there(url)
    success = json.loads(found.pop("_SUCCESS"))
    assert found == {"worker-0/model.pt": b"weights", "worker-0/deep/more": b"x"}
    assert (success["job"], success["files"], success["bytes"]) == ("j-1", 2, 8)
    assert {"path": "worker-0/model.pt", "size": 7} in success["tasks"]["worker:0"]["files"]


def test_doing_it_twice_changes_nothing(url: str, tmp_path: Path) -> None:
    output = Output("model", url)
    sent = send(output, made(tmp_path / "w", a="1"))
    assert send(output, str(tmp_path / "w")) == sent
    for _ in range(2):
        assert commit(output, sent, "j-1", "worker:0", 1) == sent
    for _ in range(2):
        finish(output, {"worker:0": sent}, "j-1", True)
        assert sorted(there(url)) == ["_SUCCESS", "worker-0/a"]
    assert commit(output, sent, "j-1", "worker:0", 1) == sent
    assert sorted(there(url)) == ["_SUCCESS", "worker-0/a"]


PART = "worker:0.1.1"


def send_part(
    output: Output, source: str, number: int = 1, attempt: int = 1, **kept: Any
) -> tuple[str, int, dict[str, Any]]:
    """Upload a part of worker:0, as `finish` gets it, and add its files to those `kept`."""
    part = outputs.part_of("worker:0", attempt, number)
    sent = upload(output, source, "j-1", part, attempt, kept=kept.get("kept"))
    kept.get("kept", {}).update(sent.pop("leaves", {}))
    return part, attempt, sent


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("layout", ["task", "flat"])
def test_a_task_commits_in_parts(url: str, tmp_path: Path, layout: str, overwrite: bool) -> None:
    """Each file is in one of them; the parts of an attempt that died too are in the output, whoever puts them there."""
    output = Output("model", url, layout=layout, overwrite=overwrite)
    died = [send_part(output, made(tmp_path / "v", x="0"))]
    lost = made(tmp_path / "v", y="half")  # of the attempt that died, in no part
    kept: dict[str, Any] = {}
    parts = [*died, send_part(output, made(tmp_path / "w", a="1", deep__b="2"), 1, 2, kept=kept)]
    parts.append(send_part(output, made(tmp_path / "w", c="3"), 2, 2, kept=kept))
    nothing = send_part(output, str(tmp_path / "w"), 3, 2, kept=kept)
    assert nothing[2] == {"files": 0, "bytes": 0}
    rest = upload(output, made(tmp_path / "w", d="4"), "j-1", "worker:0", 2, kept=kept)
    commit(output, parts[1][2], "j-1", *parts[1][:2])
    assert commit(output, rest, "j-1", "worker:0", 2) == rest
    for _ in range(2):
        finish(output, {"worker:0": rest}, "j-1", True, [*parts, nothing])
        found = there(url)
        success = json.loads(found.pop("_SUCCESS"))
        assert sorted(found.values()) == [b"0", b"1", b"2", b"3", b"4"]
        assert sorted(file["path"] for task in success["tasks"].values() for file in task["files"]) == sorted(found)
    in_task = {"worker-0.1.1/x", "worker-0.2.1/a", "worker-0.2.1/deep/b", "worker-0.2.2/c", "worker-0/d"}
    assert found.keys() == (in_task if layout == "task" else {"x", "a", "deep/b", "c", "d"})
    assert lost.endswith("v")


def test_parts_with_equal_names_are_put_apart(url: str, tmp_path: Path) -> None:
    output = Output("model", url, layout="flat")
    parts = [send_part(output, made(tmp_path / str(attempt), a=str(attempt)), 1, attempt) for attempt in (1, 2)]
    rest = send(output, made(tmp_path / "w", b="3"), attempt=2)
    commit(output, rest, "j-1", "worker:0", 2)
    finish(output, {"worker:0": rest}, "j-1", True, parts)
    found = there(url)
    found.pop("_SUCCESS")
    assert found == {"a": b"1", "worker-0.2.1/a": b"2", "b": b"3"}


def test_many_parts_read_no_claim_again_for_each_of_the_others(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store answers a read in some 10 ms: 400 parts in one folder took longer than a commit may."""
    output, kept, reads = Output("model", url, layout="flat"), {}, []
    parts = [
        send_part(output, made(tmp_path / "w", **{f"f{number}": "1"}), number, kept=kept) for number in range(1, 13)
    ]
    read = outputs._read_claim
    monkeypatch.setattr(outputs, "_read_claim", lambda store, task: reads.append(task) or read(store, task))
    finish(output, {}, "j-1", True, parts)
    assert len(there(url)) == len(parts) + 1
    assert max(reads.count(part) for part, *_ in parts) <= 7


def test_a_file_that_changes_after_its_part_is_refused(url: str, tmp_path: Path) -> None:
    output, kept = Output("model", url), {}
    send_part(output, made(tmp_path / "w", a="1"), kept=kept)
    os.rename(tmp_path / "w" / "a", tmp_path / "w" / "b")
    with pytest.raises(StorageFailed, match="b was committed under another name"):
        send_part(output, str(tmp_path / "w"), 2, kept=kept)
    os.rename(tmp_path / "w" / "b", tmp_path / "w" / "a")
    made(tmp_path / "w", a="and more")
    with pytest.raises(StorageFailed, match="a has changed since it was committed"):
        send_part(output, str(tmp_path / "w"), 2, kept=kept)
    with pytest.raises(StorageFailed, match="a has changed since it was committed"):
        upload(output, str(tmp_path / "w"), "j-1", "worker:0", 1, kept=kept)


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_parts_of_a_job_that_fails_are_partial(url: str, tmp_path: Path, overwrite: bool) -> None:
    output = Output("model", url, overwrite=overwrite)
    parts = [send_part(output, made(tmp_path / "w", a="1"))]
    for _ in range(2):
        finish(output, {}, "j-1", False, parts)
        assert there(url) == {"_partial/j-1/worker-0.1.1/a": b"1"}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("layout", ["task", "flat"])
def test_partial_outputs_are_told_apart_by_their_job_and_stay_when_a_later_one_succeeds(
    url: str, tmp_path: Path, layout: str, overwrite: bool
) -> None:
    output = Output("model", url, layout=layout, overwrite=overwrite)
    for name, succeeded in (("j-1", False), ("j-2", False), ("j-3", True)):
        sent = send(output, made(tmp_path / name, a=name, **{name: name}), job=name)
        commit(output, sent, name, "worker:0", 1)
        finish(output, {"worker:0": sent}, name, succeeded)
    found = there(url)
    assert found.pop("_SUCCESS")
    folder = "" if layout == "flat" else "worker-0/"
    partial = {f"_partial/{name}/{folder}{file}": name.encode() for name in ("j-1", "j-2") for file in ("a", name)}
    assert found == partial | {f"{folder}{file}": b"j-3" for file in ("a", "j-3")}


@pytest.mark.parametrize("layout", ["task", "flat"])
def test_a_commit_that_was_interrupted_is_finished_by_the_next_call(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    output = Output("model", url, layout=layout)
    sent = send(output, made(tmp_path / "w", a="1", b="2", c="3"))
    step = "move" if url.startswith("/") else "copy"
    kind = type(store_for(url))
    honest, calls = getattr(kind, step), []

    def dying(self: object, source: str, target: str, *replace: bool) -> None:
        calls.append(target)
        if len(calls) == (1 if layout == "task" else 2):
            raise KeyboardInterrupt
        honest(self, source, target, *replace)

    monkeypatch.setattr(kind, step, dying)
    with pytest.raises(KeyboardInterrupt):
        commit(output, sent, "j-1", "worker:0", 1)
    monkeypatch.undo()
    commit(output, sent, "j-1", "worker:0", 1)
    finish(output, {"worker:0": sent}, "j-1", True)
    folder = "" if layout == "flat" else "worker-0/"
    assert sorted(there(url)) == ["_SUCCESS", f"{folder}a", f"{folder}b", f"{folder}c"]


# Whatever a commit does to a store.
MEETINGS = ("get", "put", "create", "exists", "look", "files", "copy", "move", "remove")


@pytest.mark.parametrize("layout", ["task", "flat"])
@pytest.mark.parametrize("before", ["nothing", "another job's", "an attempt written off"])
def test_two_commits_of_one_attempt_at_once_are_one(url: str, tmp_path: Path, layout: str, before: str) -> None:
    """The second comes, and goes through, before each single thing that the first one does to the storage, and after the last."""
    kind = type(store_for(url))
    for meeting in range(200):
        output = Output("model", f"{url}{meeting}", layout=layout, overwrite=before == "another job's")
        attempt = _leave(output, tmp_path, before)
        sent = send(output, made(tmp_path / "w", a="1", b="22", deep__c="333"), attempt=attempt)
        with pytest.MonkeyPatch.context() as patch:
            met = _meet(patch, kind, meeting, lambda: commit(output, sent, "j-1", "worker:0", attempt))  # noqa: B023
            assert commit(output, sent, "j-1", "worker:0", attempt) == sent
        finish(output, {"worker:0": sent}, "j-1", True)
        found = there(output.url)
        assert json.loads(found.pop("_SUCCESS"))["files"] == 3
        folder = "" if layout == "flat" else "worker-0/"
        assert found == {f"{folder}a": b"1", f"{folder}b": b"22", f"{folder}deep/c": b"333"}
        if not met:
            return
    raise AssertionError("a commit has an end")


def _leave(output: Output, tmp_path: Path, before: str) -> int:
    """Leave in the output's place what was there before; the number of the next attempt."""
    if before == "another job's":
        old = send(output, made(tmp_path / "old", a="old", z="old"), job="j-0")
        commit(output, old, "j-0", "worker:0", 1)
        finish(output, {"worker:0": old}, "j-0", True)
    elif before == "an attempt written off":
        cut = send(output, made(tmp_path / "cut", a="cut", y="cut"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(outputs, "_put_in_place", _die)
            with pytest.raises(KeyboardInterrupt):
                commit(output, cut, "j-1", "worker:0", 1)
        return 2
    return 1


def _die(*_: Any) -> None:
    raise KeyboardInterrupt


def _meet(patch: pytest.MonkeyPatch, kind: Any, meeting: int, act: Callable[[], object]) -> list[str]:
    """Have `act` done before the store is used for the `meeting`th time; the list gets the name of that use."""
    met: list[str] = []
    uses = []

    def met_by(name: str) -> Callable[..., Any]:
        honest = getattr(kind, name)

        def use(*given: Any) -> Any:
            uses.append(name)
            if len(uses) == meeting + 1:
                met.append(name)
                act()
            return honest(*given)

        return use

    for name in MEETINGS:
        patch.setattr(kind, name, met_by(name))
    return met


def test_a_role_s_name_may_hold_dots(url: str, tmp_path: Path) -> None:
    for job, succeeded in (("j-1", False), ("j-2", True)):
        output = Output("model", url)
        sent = send(output, made(tmp_path / "w", a="1"), "train.v1:0", job=job)
        commit(output, sent, job, "train.v1:0", 1)
        finish(output, {"train.v1:0": sent}, job, succeeded)
        assert (
            commit(output, sent, job, "train.v1:0", 1)["files"] == 1
            if succeeded
            else "_partial/j-1/train.v1-0/a" in there(url)
        )
    assert sorted(there(url)) == ["_SUCCESS", "_partial/j-1/train.v1-0/a", "train.v1-0/a"]


def test_of_two_attempts_one_commits(url: str, tmp_path: Path) -> None:
    output = Output("model", url)
    first = send(output, made(tmp_path / "1", a="first"), attempt=1)
    second = send(output, made(tmp_path / "2", a="second"), attempt=2)
    commit(output, first, "j-1", "worker:0", 1)
    with pytest.raises(CommitRefused, match="attempt 1 of worker:0 has committed"):
        commit(output, second, "j-1", "worker:0", 2)
    assert there(url)["worker-0/a"] == b"first"


def test_a_later_attempt_takes_over_what_the_first_left_undone(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output("model", url)
    first = send(output, made(tmp_path / "1", a="first", b="only first"), attempt=1)
    second = send(output, made(tmp_path / "2", a="second"), attempt=2)

    def late(*_: object) -> None:  # between the claim of the first and its move, the second is named
        monkeypatch.undo()
        commit(output, second, "j-1", "worker:0", 2)
        outputs._put_in_place(*_)  # type: ignore[arg-type]

    monkeypatch.setattr(outputs, "_put_in_place", late)
    with pytest.raises(CommitRefused, match=r"written off|has committed"):
        commit(output, first, "j-1", "worker:0", 1)
    with pytest.raises(CommitRefused, match="has committed"):
        commit(output, first, "j-1", "worker:0", 1)
    finish(output, {"worker:0": second}, "j-1", True)
    found = there(url)
    found.pop("_SUCCESS")
    assert found == {"worker-0/a": b"second"}


def test_flat_puts_all_together_and_refuses_equal_names(url: str, tmp_path: Path) -> None:
    output = Output("model", url, layout="flat")
    sent = {
        task: send(output, made(tmp_path / task, **{name: task}), task)
        for task, name in {"worker:0": "a", "worker:1": "b", "worker:2": "a"}.items()
    }
    commit(output, sent["worker:0"], "j-1", "worker:0", 1)
    commit(output, sent["worker:1"], "j-1", "worker:1", 1)
    with pytest.raises(CommitRefused, match="worker:0 and worker:2 both wrote a") as caught:
        commit(output, sent["worker:2"], "j-1", "worker:2", 1)
    assert "layout: task" in str(caught.value)
    finish(output, {task: sent[task] for task in ("worker:0", "worker:1")}, "j-1", True)
    found = there(url)
    found.pop("_SUCCESS")
    assert found == {"a": b"worker:0", "b": b"worker:1"}


@pytest.mark.parametrize("layout", ["task", "flat"])
def test_a_failed_job_leaves_what_was_committed_apart(url: str, tmp_path: Path, layout: str) -> None:
    output = Output("model", url, layout=layout)
    sent = [send(output, made(tmp_path / name, **{name: name}), f"worker:{i}") for i, name in enumerate("ab")]
    commit(output, sent[0], "j-1", "worker:0", 1)
    for _ in range(2):
        finish(output, {"worker:0": sent[0]}, "j-1", False)
    assert there(url) == {f"_partial/j-1/{'' if layout == 'flat' else 'worker-0/'}a": b"a"}
    check_outputs(job(output))  # the next try may go to the same place
    again = send(output, str(tmp_path / "a"), job="j-2")
    commit(output, again, "j-2", "worker:0", 1)
    finish(output, {"worker:0": again}, "j-2", True)
    assert "_SUCCESS" in there(url)


@pytest.mark.parametrize("layout", ["task", "flat"])
def test_a_place_that_is_taken_is_seen_before_a_program_starts(url: str, tmp_path: Path, layout: str) -> None:
    output = Output("model", url, layout=layout)
    check_free(output, "j-1", "worker:0")
    sent = send(output, made(tmp_path / "w", a="1"))
    commit(output, sent, "j-1", "worker:0", 1)
    check_free(output, "j-1", "worker:0")  # a later attempt of the same job
    finish(output, {"worker:0": sent}, "j-1", True)
    for other in ("worker:0", "worker:1"):
        with pytest.raises(CommitRefused, match="_SUCCESS of j-1 is there already, and not of this job"):
            check_free(output, "j-2", other)
    check_free(Output("model", url, layout=layout, overwrite=True), "j-2", "worker:0")


def test_files_of_others_are_seen_before_a_program_starts(url: str) -> None:
    store_for(url).put("worker-0/w.txt", b"of somebody")
    with pytest.raises(CommitRefused, match=r"worker-0/w\.txt is there already"):
        check_free(Output("model", url), "j-1", "worker:0")
    check_free(Output("model", url), "j-1", "worker:1")


@pytest.mark.parametrize("layout", ["task", "flat"])
def test_what_may_not_be_committed_is_kept(url: str, tmp_path: Path, layout: str) -> None:
    output = Output("model", url, layout=layout)
    sent = send(output, made(tmp_path / "w", a="of the job"))
    theirs = "a" if layout == "flat" else "worker-0/a"
    store_for(url).put(theirs, b"of somebody")  # while the program ran
    with pytest.raises(CommitRefused, match="is there already"):
        commit(output, sent, "j-1", "worker:0", 1)
    for _ in range(2):
        finish(output, {}, "j-1", False, refused={"worker:0": sent})
    assert there(url) == {theirs: b"of somebody", "_partial/j-1/worker-0/a": b"of the job"}


@pytest.mark.parametrize("layout", ["task", "flat"])
def test_overwrite_replaces_what_the_job_before_wrote_and_nothing_else(url: str, tmp_path: Path, layout: str) -> None:
    output = Output("model", url, layout=layout, overwrite=True)
    old = {
        f"worker:{i}": send(output, made(tmp_path / f"old{i}", **{name: "old"}), f"worker:{i}")
        for i, name in enumerate(["a", "deep__b"])
    }
    for task, sent in old.items():
        commit(output, sent, "j-1", task, 1)
    finish(output, old, "j-1", True)
    store_for(url).put("README", b"of the user")
    check_outputs(job(output))
    new = send(output, made(tmp_path / "new", a="new"), job="j-2")
    commit(output, new, "j-2", "worker:0", 1)
    finish(output, {"worker:0": new}, "j-2", True)
    found = there(url)
    assert json.loads(found.pop("_SUCCESS"))["job"] == "j-2"
    assert found == {("a" if layout == "flat" else "worker-0/a"): b"new", "README": b"of the user"}


def earlier(output: Output, tmp_path: Path) -> dict[str, bytes]:
    """A good output of two tasks; what is there then."""
    sent = {
        f"worker:{i}": send(output, made(tmp_path / f"earlier{i}", **{name: "old"}), f"worker:{i}", job="j-0")
        for i, name in enumerate(["a", "deep__b"])
    }
    for task in sent:
        commit(output, sent[task], "j-0", task, 1)
    finish(output, sent, "j-0", True)
    return there(output.url)


def visible(url: str) -> dict[str, bytes]:
    return {name: content for name, content in there(url).items() if not name.startswith("_temporary/")}


@pytest.mark.parametrize("layout", ["task", "flat"])
def test_a_job_that_fails_leaves_the_earlier_output_whole(url: str, tmp_path: Path, layout: str) -> None:
    output = Output("model", url, layout=layout, overwrite=True)
    good = earlier(output, tmp_path)
    new = [send(output, made(tmp_path / f"new{i}", **{"ac"[i]: "new"}), f"worker:{i}") for i in (0, 1)]
    commit(output, new[0], "j-1", "worker:0", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "_promise", _die)
        with pytest.raises(KeyboardInterrupt):
            commit(output, new[1], "j-1", "worker:1", 1)
    assert visible(url) == good
    for _ in range(2):
        finish(output, {"worker:0": new[0]}, "j-1", False)
    assert there(url) == good | {f"_partial/j-1/{'' if layout == 'flat' else 'worker-0/'}a": b"new"}


@pytest.mark.parametrize("layout", ["task", "flat"])
def test_who_replaces_an_output_may_die_at_any_moment(url: str, tmp_path: Path, layout: str) -> None:
    """Killed before each single thing that the switch does to the storage, and taken up by the next: a reader finds one output or the
    other under a `_SUCCESS`, never a mixture."""
    kind = type(store_for(url))
    for meeting in range(200):
        output = Output("model", f"{url}{meeting}", layout=layout, overwrite=True)
        good = earlier(output, tmp_path)
        sent = {"worker:0": send(output, made(tmp_path / "w", a="1", deep="22"))}
        commit(output, sent["worker:0"], "j-1", "worker:0", 1)
        with pytest.MonkeyPatch.context() as patch:
            met = _meet(patch, kind, meeting, _die)
            if meeting:  # else all is done without a death, to know what comes in the end
                try:
                    finish(output, sent, "j-1", True)
                except KeyboardInterrupt:
                    assert met
        folder = "" if layout == "flat" else "worker-0/"
        found = visible(output.url)
        told = json.loads(found.get("_SUCCESS", b"{}")).get("job")
        assert told is None or sorted(found.keys() - {"_SUCCESS"}) == sorted(
            good.keys() - {"_SUCCESS"} if told == "j-0" else [f"{folder}a", f"{folder}deep"]
        )
        finish(output, sent, "j-1", True)
        found = there(output.url)
        assert json.loads(found.pop("_SUCCESS"))["job"] == "j-1"
        assert found == {f"{folder}a": b"1", f"{folder}deep": b"22"}
        if meeting and not met:
            return
    raise AssertionError("a switch has an end")


def test_what_a_switch_left_that_nobody_ended_is_removed_by_the_next_job(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output("model", url, layout="flat", overwrite=True)
    earlier(output, tmp_path)
    for job_id, name in (("j-1", "b"), ("j-2", "c")):
        sent = send(output, made(tmp_path / name, **{name: "new"}), job=job_id)
        commit(output, sent, job_id, "worker:0", 1)
        if job_id == "j-1":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(outputs, "_write_success", _die)
                with pytest.raises(KeyboardInterrupt):
                    finish(output, {"worker:0": sent}, job_id, True)
    finish(output, {"worker:0": sent}, "j-2", True)
    assert sorted(there(url)) == ["_SUCCESS", "c"]


def test_the_mark_of_another_program_is_replaced_too(url: str, tmp_path: Path) -> None:
    for i, mark in enumerate([b"", b"ok", b"[1]"]):
        output = Output("model", f"{url}{i}", overwrite=True)
        store_for(output.url).put("_SUCCESS", mark)
        sent = send(output, made(tmp_path / "w", a="1"))
        commit(output, sent, "j-1", "worker:0", 1)
        finish(output, {"worker:0": sent}, "j-1", True)
        assert json.loads(there(output.url)["_SUCCESS"])["job"] == "j-1"


def test_without_overwrite_nothing_of_others_is_replaced(url: str, tmp_path: Path) -> None:
    output = Output("model", url)
    store_for(url).put("worker-0/a", b"of the user")  # after the check at submit
    sent = send(output, made(tmp_path / "w", a="1"))
    with pytest.raises(CommitRefused, match="is there already"):
        commit(output, sent, "j-1", "worker:0", 1)
    other = send(output, str(tmp_path / "w"), "worker:1", job="j-2")
    commit(output, other, "j-2", "worker:1", 1)
    mine = send(output, str(tmp_path / "w"), "worker:1")
    with pytest.raises(CommitRefused, match="another job, j-2"):
        commit(output, mine, "j-1", "worker:1", 1)
    assert there(url)["worker-0/a"] == b"of the user"


def test_success_wants_every_commit(url: str, tmp_path: Path) -> None:
    output = Output("model", url)
    sent = send(output, made(tmp_path / "w", a="1"))
    with pytest.raises(StorageFailed, match="worker:0 is not committed"):
        finish(output, {"worker:0": sent}, "j-1", True)
    assert "_SUCCESS" not in there(url)


def test_an_upload_that_lost_files_is_not_committed(url: str, tmp_path: Path) -> None:
    output = Output("model", url)
    sent = send(output, made(tmp_path / "w", a="1", b="2"))
    store_for(url).remove(f"_temporary/{sent['id']}/worker-0/a")
    with pytest.raises(StorageFailed, match="1 of 2 files"):
        commit(output, sent, "j-1", "worker:0", 1)


def test_one_file_an_empty_folder_and_nothing(url: str, tmp_path: Path) -> None:
    output = Output("model", url)
    (tmp_path / "model.pt").write_text("weights")
    sent = send(output, f"{tmp_path}/model.pt")
    empty = send(output, made(tmp_path / "empty"), "worker:1")
    commit(output, sent, "j-1", "worker:0", 1)
    assert commit(output, empty, "j-1", "worker:1", 1)["files"] == 0
    finish(output, {"worker:0": sent, "worker:1": empty}, "j-1", True)
    assert sorted(there(url)) == ["_SUCCESS", "worker-0/model.pt"]
    with pytest.raises(FileNotFoundError):
        send(output, f"{tmp_path}/nowhere", "worker:2")


def growing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every file grows as it is uploaded."""
    kind = type(store_for(url))
    honest = kind.upload

    def grown(self: object, local: str, *rest: Any) -> None:
        with open(local, "a") as file:
            file.write("xx")
        honest(self, local, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "upload", grown)


def test_a_file_that_grows_while_it_is_uploaded(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output("model", url)
    source = made(tmp_path / "w", log="x")
    growing(url, monkeypatch)
    sent = send(output, source)
    assert commit(output, sent, "j-1", "worker:0", 1)["bytes"] == sent["bytes"]
    assert len(there(url)["worker-0/log"]) == sent["bytes"] > 1


def test_what_was_uploaded_and_then_cut_is_reported_in_bytes(url: str, tmp_path: Path) -> None:
    output = Output("model", url)
    sent = send(output, made(tmp_path / "w", a="12345"))
    store_for(url).put("_temporary/j-1.worker-0.1/worker-0/a", b"1")
    with pytest.raises(StorageFailed, match="1 of 1 files and 1 of 5 bytes are where"):
        commit(output, sent, "j-1", "worker:0", 1)


def test_links_are_uploaded_as_what_they_lead_to(url: str, tmp_path: Path) -> None:
    output = Output("model", url)
    made(tmp_path / "w", step1="1")
    (tmp_path / "w/latest").symlink_to("step1")
    (tmp_path / "beside").write_text("2")
    (tmp_path / "w/near").symlink_to(tmp_path / "beside")
    os.mkfifo(tmp_path / "w/pipe")
    sent = send(output, f"{tmp_path}/w")
    assert sent["left_out"] == {"pipe": "a named pipe"}
    commit(output, sent, "j-1", "worker:0", 1)
    assert there(url)["worker-0/latest"] == b"1"
    assert there(url)["worker-0/near"] == b"2"


def leading_out(tmp_path: Path) -> str:
    """An output with links to a file and a folder outside of its program's directory."""
    made(tmp_path / "task" / "w", a="1")
    made(tmp_path / "elsewhere", secret="of others")
    (tmp_path / "task/w/passwd").symlink_to("/etc/passwd")
    (tmp_path / "task/w/deep").mkdir()
    (tmp_path / "task/w/deep/folder").symlink_to("../../../elsewhere")
    return f"{tmp_path}/task/w"


LED_OUT = dict.fromkeys(["passwd", "deep/folder"], "a link that leads out of the working directory")


def test_a_link_out_of_the_working_directory_is_not_followed(url: str, tmp_path: Path) -> None:
    output = Output("model", url)
    sent = send(output, leading_out(tmp_path))
    assert sent["left_out"] == LED_OUT
    assert (sent["files"], sent["bytes"]) == (1, 1)
    commit(output, sent, "j-1", "worker:0", 1)
    assert there(url).keys() == {"_temporary/commits/worker-0.json", "worker-0/a"}
    (tmp_path / "task/model").symlink_to("/etc")
    with pytest.raises(BadInput, match="a link that leads out of its folder, to /etc, and is not followed"):
        send(output, f"{tmp_path}/task/model", "worker:1")


def test_a_save_follows_no_link_out_of_the_working_directory(url: str, tmp_path: Path) -> None:
    told = saves.save(Output("model", url), leading_out(tmp_path), "worker:0", AT[0])
    assert (told["files"], told["left_out"]) == (1, LED_OUT)
    assert there(f"{url}/_saves/{AT[0]}").keys() == {"worker-0.json", "worker-0/a"}


@pytest.mark.parametrize("layout", ["task", "flat"])
def test_empty_folders_are_kept_where_there_are_folders_and_else_named(url: str, tmp_path: Path, layout: str) -> None:
    output = Output("model", url, layout=layout)
    made(tmp_path / "w", a="1")
    (tmp_path / "w/variables/none").mkdir(parents=True)
    sent = send(output, f"{tmp_path}/w")
    commit(output, sent, "j-1", "worker:0", 1)
    finish(output, {"worker:0": sent}, "j-1", True)
    if url.startswith("/") and layout == "task":
        assert "left_out" not in sent
        assert os.path.isdir(f"{url}/worker-0/variables/none")
    else:
        assert sent["left_out"] == {"variables/none": "an empty folder"}


def test_a_save_keeps_empty_folders_where_there_are_folders_and_else_names_them(url: str, tmp_path: Path) -> None:
    output = Output("model", url)
    made(tmp_path / "w", a="1")
    (tmp_path / "w/variables/none").mkdir(parents=True)
    for name in AT[:2]:
        told = saves.save(output, f"{tmp_path}/w", "worker:0", name)
        if url.startswith("/"):
            assert "left_out" not in told
            assert os.path.isdir(f"{url}/_saves/{name}/worker-0/variables/none")
        else:
            assert told["left_out"] == {"variables/none": "an empty folder"}


def test_others_may_read_what_was_committed(tmp_path: Path) -> None:
    output = Output("model", f"{tmp_path}/out")
    sent = send(output, made(tmp_path / "w", a="1"))
    commit(output, sent, "j-1", "worker:0", 1)
    finish(output, {"worker:0": sent}, "j-1", True)
    for path in ("out", "out/worker-0", "out/worker-0/a", "out/_SUCCESS"):
        assert (tmp_path / path).stat().st_mode & 0o044 == 0o044


def test_what_appears_in_the_place_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{tmp_path}/out"
    output = Output("model", url)
    sent = send(output, made(tmp_path / "w", a="1"))
    honest = outputs._put_in_place

    def late(*arguments: Any) -> None:
        store_for(url).put("worker-0/a", b"of the user")
        honest(*arguments)

    monkeypatch.setattr(outputs, "_put_in_place", late)
    with pytest.raises(CommitRefused, match="has appeared"):
        commit(output, sent, "j-1", "worker:0", 1)
    assert there(url)["worker-0/a"] == b"of the user"


@pytest.mark.parametrize("layout", ["task", "flat"])
def test_a_file_system_without_hard_links_is_a_place_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """vfat, exfat and many FUSE mounts answer link(2) with EPERM."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    output = Output("model", f"{tmp_path}/out", layout=layout)
    sent = send(output, made(tmp_path / "w", a="1", deep__b="2"))
    for _ in range(2):
        assert commit(output, sent, "j-1", "worker:0", 1) == sent
    with pytest.raises(CommitRefused, match="attempt 1 of worker:0 has committed"):
        commit(output, send(output, made(tmp_path / "w"), attempt=2), "j-1", "worker:0", 2)
    finish(output, {"worker:0": sent}, "j-1", True)
    folder = "" if layout == "flat" else "worker-0/"
    assert sorted(there(output.url)) == ["_SUCCESS", f"{folder}a", f"{folder}deep/b"]
    store = store_for(output.url)
    store.put("new", b"3")
    with pytest.raises(FileExistsError):
        store.move("new", f"{folder}a")
    assert (tmp_path / "out/_SUCCESS").stat().st_mode & 0o044 == 0o044


def test_a_move_that_got_half_way_is_finished(tmp_path: Path) -> None:
    store = store_for(f"{tmp_path}/out")
    store.put("a", b"1")
    os.link(tmp_path / "out/a", tmp_path / "out/b")  # then its process was killed
    store.move("a", "b")
    assert there(f"{tmp_path}/out") == {"b": b"1"}
    store.put("c", b"2")
    with pytest.raises(FileExistsError):
        store.move("c", "b")


# -- at submit --


def job(*given: Output) -> Job:
    return Job(roles={"worker": Role("worker", "true")}, outputs={output.name: output for output in given})


def test_a_new_place_is_fine_and_stays_untouched(url: str) -> None:
    check_outputs(job(Output("model", url)))
    assert there(url) == {}
    if url.startswith("/"):
        assert not os.path.exists(url)


def test_what_exists_is_refused_unless_it_may_be_replaced(url: str) -> None:
    store_for(url).put("x", b"1")
    with pytest.raises(BadInput) as caught:
        check_outputs(job(Output("model", url)))
    assert f"outputs.model.url: {url}" in str(caught.value)
    assert "overwrite: true" in str(caught.value)
    check_outputs(job(Output("model", url, overwrite=True)))


def test_two_outputs_in_one_place_are_refused(url: str) -> None:
    with pytest.raises(BadInput, match="go to one place"):
        check_outputs(job(Output("a", url), Output("b", f"{url}/")))


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    with pytest.raises(BadInput, match="is not a directory"):
        check_outputs(job(Output("model", f"{tmp_path}/file/out")))
    (tmp_path / "disk").mkdir()
    with mounted(tmp_path / "disk", "ro"), pytest.raises(BadInput, match="no permission to write"):
        check_outputs(job(Output("model", f"{tmp_path}/disk/out")))


def test_a_place_where_one_may_put_and_not_remove(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class PermissionDeniedError(Exception):
        """As of obstore."""

    def refused(*_: object) -> None:
        raise PermissionDeniedError("AccessDenied: s3:DeleteObject")

    url = f"memory://check-{tmp_path.name}"
    monkeypatch.setattr(type(store_for(url)), "remove", refused)
    with pytest.raises(BadInput, match=r"the output model cannot be written: .*AccessDenied: s3:DeleteObject"):
        check_outputs(job(Output("model", url)))


# -- saves --


AT = [f"1970-01-01T00-0{minute}-00Z" for minute in range(4)]  # names of saves


def saved(url: str) -> dict[str, dict[str, bytes]]:
    """Every save: its files, as a reader gets them, by task and name."""
    found: dict[str, dict[str, bytes]] = {}
    store = store_for(f"{url}/_saves")
    for file in store.files():
        if file.path.count("/") == 1 and file.path.endswith(".json"):
            save, task = file.path.removesuffix(".json").split("/")
            told = json.loads(store.get(file.path) or b"")["files"]
            contents = {name: store.get(f"{one['in']}/{task}/{name}") or b"is gone" for name, one in told.items()}
            found.setdefault(save, {}).update({f"{task}/{name}": content for name, content in contents.items()})
    return found


def test_a_save_sends_what_has_changed_and_every_save_is_whole(url: str, tmp_path: Path) -> None:
    output = Output("model", url)
    made(tmp_path / "w", vocab="words", model="0")
    assert saves.save(output, f"{tmp_path}/w", "worker:0", AT[0]) == {"save": AT[0], "files": 2, "bytes": 6}
    for i, name in enumerate(AT[1:], 1):
        made(tmp_path / "w", model=f"{i}" * (i + 1))
        assert saves.save(output, f"{tmp_path}/w", "worker:0", name)["files"] == 1
    every = {
        name: {"worker-0/vocab": b"words", "worker-0/model": model}
        for name, model in zip(AT, (b"0", b"11", b"222", b"3333"), strict=True)
    }
    assert saved(url) == every
    assert saves.prune(output, 2, AT[3]) == AT[:2]
    assert there(f"{url}/_saves/{AT[2]}/worker-0") == {"vocab": b"words", "model": b"222"}
    assert there(f"{url}/_saves/{AT[3]}/worker-0") == {"model": b"3333"}
    assert saved(url) == {name: every[name] for name in AT[2:]}
    assert saves.prune(output, 1, AT[3]) == [AT[2]]
    assert there(f"{url}/_saves/{AT[3]}/worker-0") == {"vocab": b"words", "model": b"3333"}


@pytest.mark.parametrize("meeting", ["before it is sent", "after it is sent"])
def test_old_saves_go_while_another_is_made(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meeting: str
) -> None:
    output = Output("model", url)
    made(tmp_path / "w", vocab="words")
    for i, name in enumerate(AT[:2]):
        saves.save(output, made(tmp_path / "w", model="x" * i), "worker:0", name)
    kind = type(store_for(url))
    honest = kind.upload

    def upload(self: object, *given: Any) -> None:
        monkeypatch.undo()
        if meeting == "before it is sent":
            saves.prune(output, 1, AT[1])
        honest(self, *given)  # type: ignore[arg-type]
        if meeting == "after it is sent":
            saves.prune(output, 1, AT[1])

    monkeypatch.setattr(kind, "upload", upload)
    saves.save(output, made(tmp_path / "w", model="new"), "worker:0", AT[2])
    assert saved(url)[AT[2]] == {"worker-0/vocab": b"words", "worker-0/model": b"new"}
    assert all(b"is gone" not in found.values() for found in saved(url).values())


def test_a_save_is_made_while_old_ones_go(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output("model", url)
    made(tmp_path / "w", vocab="words")
    for i, name in enumerate(AT[:2]):
        saves.save(output, made(tmp_path / "w", model="x" * i), "worker:0", name)
    kind = type(store_for(url))
    honest = kind.put

    def put(self: object, path: str, data: bytes) -> None:
        monkeypatch.undo()
        saves.save(output, made(tmp_path / "w", model="new"), "worker:0", AT[2])
        honest(self, path, data)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "put", put)
    assert saves.prune(output, 1, AT[1]) == [], "the new one refers to it"
    assert saved(url)[AT[2]] == {"worker-0/vocab": b"words", "worker-0/model": b"new"}
    assert saves.prune(output, 1, AT[2]) == AT[:2]
    assert saved(url)[AT[2]] == {"worker-0/vocab": b"words", "worker-0/model": b"new"}


def test_what_holds_no_save_is_not_one_of_those_that_are_kept(url: str, tmp_path: Path) -> None:
    output = Output("model", url)
    saves.save(output, made(tmp_path / "w", model="1"), "worker:0", AT[0])
    store_for(url).put(f"_saves/{AT[1]}/worker-0/model", b"of an agent that died")
    store_for(url).put(f"_saves/{AT[2]}/worker-0/model", b"still being made")
    assert saves.prune(output, 1, AT[1]) == [AT[1]]
    assert saved(url) == {AT[0]: {"worker-0/model": b"1"}}
    assert there(f"{url}/_saves/{AT[2]}/worker-0") == {"model": b"still being made"}


def test_a_save_says_the_size_that_a_growing_file_has_in_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output("model", url)
    growing(url, monkeypatch)
    told = saves.save(output, made(tmp_path / "w", log="x"), "worker:0", AT[0])
    (kept,) = there(f"{url}/_saves/{AT[0]}/worker-0").values()
    assert len(kept) > 1
    note = json.loads(there(f"{url}/_saves/{AT[0]}")["worker-0.json"])
    assert note["files"]["log"]["size"] == told["bytes"] == len(kept)


def test_saves_are_by_task_and_stay_beside_the_output(url: str, tmp_path: Path) -> None:
    output = Output("model", url)
    for task in ("worker:0", "worker:1"):
        saves.save(output, made(tmp_path / task, a=task), task, AT[0])
    assert saves.save(output, f"{tmp_path}/none", "worker:2", AT[0])["files"] == 0
    assert saved(url) == {AT[0]: {"worker-0/a": b"worker:0", "worker-1/a": b"worker:1"}}
    check_outputs(job(output))
    sent = send(output, f"{tmp_path}/worker:0")
    commit(output, sent, "j-1", "worker:0", 1)
    finish(output, {"worker:0": sent}, "j-1", True)
    assert f"_saves/{AT[0]}/worker-1/a" in there(url)


def test_a_save_that_fails_leaves_nothing_of_it(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output("model", url)
    first, second = AT[:2]
    saves.save(output, made(tmp_path / "w", a="1", b="2"), "worker:0", first)
    kind = type(store_for(url))
    honest = kind.upload

    def full(self: object, local: str, *rest: Any) -> None:
        if local.endswith("/b"):
            raise OSError(errno.ENOSPC, "No space left on device")
        honest(self, local, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "upload", full)
    made(tmp_path / "w", a="11", b="22")
    for name in (first, second):
        with pytest.raises(StorageFailed):
            saves.save(output, f"{tmp_path}/w", "worker:0", name)
        assert saved(url).keys() == {first}
    assert [entry.name for entry in store_for(url).entries("_saves")] == [first]
    saves.prune(output, 1, second)
    assert there(f"{url}/_saves/{first}/worker-0").keys() == {"a", "b"}


def test_a_save_of_two_outputs_is_of_both_or_of_none(url: str, tmp_path: Path) -> None:
    places = {"good": {"url": url, "local": "w"}, "bad": {"url": f"{tmp_path}/file/below", "local": "w"}}
    made(tmp_path / "w", a="1")
    (tmp_path / "file").write_text("")
    materials = Materials("j-1", "worker:0", str(tmp_path))
    with pytest.raises(StorageFailed):
        materials.save(places, str(tmp_path), AT[0], threading.Event())
    assert there(url) == {}
    assert materials.save({"good": places["good"]}, str(tmp_path), AT[0], threading.Event()) == {"files": 1, "bytes": 1}


def test_a_save_has_a_name_of_its_form(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="save"):
        saves.save(Output("model", url), str(tmp_path), "worker:0", "../x")
