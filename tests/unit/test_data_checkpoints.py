"""Checkpoints: only whole sets, the newest first, put back as they were; and when a set is worth storing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import waiting
from stored_sets import put_back, sets

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.data import checkpoints
from trainmaster.data.checkpoints import Unsettled, prune, restore, save_set
from trainmaster.data.store import trees
from trainmaster.data.store.stores import Store, store_for
from trainmaster.data.store.transfer import Flow, Stopped
from trainmaster.data.watch import Watch, writers


@pytest.fixture(params=["path", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://ckpt-{tmp_path.name}" if request.param == "memory" else f"{tmp_path}/stored"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "work/ckpt"
    place.mkdir(parents=True)
    return place


def write(path: Path, **files: str) -> None:
    for name, content in files.items():
        (path / name).write_text(content)


def read(path: Path) -> dict[str, str]:
    return {str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()}


def test_a_program_of_a_set_does_not_come_back_as_one_that_runs_as_its_owner(url: str, path: Path) -> None:
    write(path, shell="#!/bin/sh")
    (path / "shell").chmod(0o6755)
    save_set(url, f"{path}", "worker:0", 1)
    put_back(url, path)
    assert (path / "shell").stat().st_mode & 0o7777 == 0o755


def test_a_set_is_put_back_as_it_was(url: str, path: Path) -> None:
    write(path, step1="one", step2="two")
    (path / "step2").chmod(0o755)
    os.utime(path / "step1", ns=(0, 1_500_000_000_123_456_789))
    (path / "latest").symlink_to("step2")
    (path / "empty").mkdir()
    made = save_set(url, f"{path}", "worker:0", 1, marks={"train": [[0, 7]]})
    assert made is not None
    assert made.report_fields() == {
        "set": 1, "files": 3, "bytes": 6, "marks": {"train": [[0, 7]]}, "manifest": "00000001.json",
    }  # fmt: skip
    write(path, step1="overwritten", stale="not in the set")
    found = put_back(url, path)
    assert found == made
    assert read(path) == {"step1": "one", "step2": "two", "latest": "two"}
    assert os.readlink(path / "latest") == "step2"
    assert (path / "empty").is_dir()
    assert (path / "step1").stat().st_mtime_ns == 1_500_000_000_123_456_789
    assert (path / "step2").stat().st_mode & 0o777 == 0o755
    assert sorted(os.listdir(path.parent)) == ["ckpt"]


def test_a_set_follows_no_link_out_of_the_working_directory(url: str, path: Path) -> None:
    write(path, step1="one")
    (path / "passwd").symlink_to("/etc/passwd")
    (path / "folder").symlink_to("../..")
    (path.parent / "beside").write_text("two")
    (path / "near").symlink_to("../beside")
    watch = Watch(str(path))
    assert watch.left_out == dict.fromkeys(["folder", "passwd"], "a link that leads out of the working directory")
    made = save_set(url, f"{path}", "worker:0", 1)
    assert made is not None
    assert [file.path for file in made.files] == ["near", "step1"]
    put_back(url, path)
    assert read(path) == {"step1": "one", "near": "two"}


def test_a_single_file(url: str, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    assert save_set(url, f"{file}", "worker:0", 1) is None
    assert put_back(url, file) is None
    file.write_text("one")
    save_set(url, f"{file}", "worker:0", 1)
    file.unlink()
    put_back(url, file)
    assert file.read_text() == "one"


def test_numbers_rise_over_attempts_and_tasks_and_old_sets_go(url: str, path: Path) -> None:
    for number, (task, attempt) in enumerate([("worker:0", 1), ("worker:1", 1), ("worker:0", 2), ("worker:1", 4)], 1):
        write(path, step=f"{number}" * number)
        made = save_set(url, f"{path}", task, attempt)
        assert made is not None
        assert made.number == number
        prune(url, made, keep=2)
    assert [(found.number, found.task, found.attempt) for found in sets(url)] == [
        (3, "worker:0", 2),
        (4, "worker:1", 4),
    ]
    assert len(store_for(url).files()) == 4  # two manifests and what they refer to
    restore(url, f"{path}", 3)
    assert read(path) == {"step": "333"}


def test_sets_after_the_one_that_is_known_do_not_count(url: str, path: Path) -> None:
    made = []
    for number in range(1, 6):
        write(path, step=f"{number}" * number)
        made.append(save_set(url, f"{path}", "worker:0", 1))
    known = made[2]
    assert known is not None
    prune(url, known, keep=2)
    assert [found.number for found in sets(url)] == [2, 3, 4, 5]
    for number in (2, 5):
        restore(url, f"{path}", number)
        assert read(path) == {"step": f"{number}" * number}


def test_what_has_not_changed_is_not_sent_again(url: str, path: Path) -> None:
    write(path, large="x" * 1000, step="1")
    assert save_set(url, f"{path}", "worker:0", 1) is not None
    assert save_set(url, f"{path}", "worker:0", 1) is None
    write(path, step="22")
    os.utime(path / "large")  # touched, and yet the same bytes
    made = save_set(url, f"{path}", "worker:0", 1)
    assert made is not None
    prune(url, made, keep=1)
    stored = [file for file in store_for(url).files("files") if file.size == 1000]
    assert len(stored) == 1
    (path / "large").unlink()
    put_back(url, path)
    assert read(path) == {"large": "x" * 1000, "step": "22"}


def test_a_number_that_another_took_is_not_used_twice(url: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, step="1")
    honest = checkpoints._publish

    def late(store: Store, *rest: object) -> object:
        other = path.parent / "other"
        other.mkdir()
        write(other, step="other")
        monkeypatch.undo()
        assert save_set(url, f"{other}", "worker:1", 1).number == 1  # type: ignore[union-attr]
        return honest(store, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoints, "_publish", late)
    made = save_set(url, f"{path}", "worker:0", 1)
    assert made is not None
    assert made.number == 2
    assert [found.task for found in sets(url)] == ["worker:1", "worker:0"]


def test_a_file_that_changes_while_it_is_sent_is_sent_again(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, a="old", b="b")
    kind = type(store_for(url))
    honest = kind.upload

    def upload(self: Store, local: str, *rest: object) -> None:
        honest(self, local, *rest)  # type: ignore[arg-type]
        if local.endswith("/b"):
            monkeypatch.undo()
            write(path, a="newer")

    monkeypatch.setattr(kind, "upload", upload)
    assert save_set(url, f"{path}", "worker:0", 1) is not None
    write(path, a="-", b="-")
    put_back(url, path)
    assert read(path) == {"a": "newer", "b": "b"}


def test_a_set_that_the_next_one_overtakes_halfway_is_none(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, a="1", b="1")
    kind = type(store_for(url))
    honest = kind.upload
    whole = True

    def upload(self: Store, local: str, *rest: object) -> None:
        nonlocal whole
        honest(self, local, *rest)  # type: ignore[arg-type]
        whole = False
        write(path, a="of the next one, whose b is still to come")

    with monkeypatch.context() as slow:
        slow.setattr(kind, "upload", upload)
        with pytest.raises(Unsettled, match="the next checkpoint was begun"):
            save_set(url, f"{path}", "worker:0", 1, whole=lambda: whole)
    assert sets(url) == []
    write(path, b="of the next one")
    assert save_set(url, f"{path}", "worker:0", 1, whole=lambda: True) is not None


def test_what_never_settles_makes_no_set(url: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, a="")
    kind = type(store_for(url))
    honest = kind.upload

    def upload(self: Store, local: str, *rest: object) -> None:
        honest(self, local, *rest)  # type: ignore[arg-type]
        (path / "a").write_text((path / "a").read_text() + "x")

    monkeypatch.setattr(kind, "upload", upload)
    with pytest.raises(Unsettled, match="changed 5 times"):
        save_set(url, f"{path}", "worker:0", 1)
    assert store_for(url).files() == []


def damaged_by_loss(store: Store, at: str) -> None:
    store.remove(at)


def damaged_by_cut(store: Store, at: str) -> None:
    store.put(at, b"2")


def damaged_inside(store: Store, at: str) -> None:
    store.put(at, b"2-")


@pytest.mark.parametrize("damage", [damaged_by_loss, damaged_by_cut, damaged_inside])
def test_a_set_that_is_not_whole_is_passed_over(url: str, path: Path, damage: object) -> None:
    write(path, step="1")
    save_set(url, f"{path}", "worker:0", 1)
    write(path, step="22")
    second = save_set(url, f"{path}", "worker:0", 1)
    assert second is not None
    damage(store_for(url), second.files[0].at)  # type: ignore[operator]
    with pytest.raises(StorageFailed, match="checkpoint set 2 cannot be restored"):
        restore(url, f"{path}", 2)
    assert read(path) == {"step": "22"}  # what was there is not touched
    if damage is not damaged_inside:  # sizes do not tell that one
        assert put_back(url, path).number == 1  # type: ignore[union-attr]
        assert read(path) == {"step": "1"}


@pytest.mark.parametrize("damage", [damaged_by_loss, damaged_by_cut])
def test_what_has_not_changed_is_stored_again_where_its_set_is_not_whole_any_more(
    url: str, path: Path, damage: object
) -> None:
    write(path, step="11")
    first = save_set(url, f"{path}", "worker:0", 1)
    assert first is not None
    damage(store_for(url), first.files[0].at)  # type: ignore[operator]
    assert save_set(url, f"{path}", "worker:0", 1) is not None
    write(path, step="22")
    assert put_back(url, path) is not None
    assert read(path) == {"step": "11"}


@pytest.mark.parametrize("damage", [damaged_by_loss, damaged_by_cut, damaged_inside])
def test_a_set_with_a_damaged_older_state_is_restored_without_that(url: str, path: Path, damage: object) -> None:
    """Which state is left out is told. One whose newest state is damaged is not whole: what was read goes by that one."""
    states = {f"state-{number:08}.{kind}": f"{number}{kind}" for number in (1, 2) for kind in ("bin", "json")}
    for name, text in states.items():
        write(path, **{name: text[:2]})
    saved = save_set(url, f"{path}", "worker:0", 1)
    assert saved is not None
    at = {file.path: file.at for file in saved.files}
    damage(store_for(url), at["state-00000001.bin"])  # type: ignore[operator]
    trees.remove(f"{path}")
    assert checkpoints.newest(url) is not None
    faults: list[str] = []
    restore(url, f"{path}", 1, tell_fault=faults.append)
    assert {*read(path)} == {"state-00000002.bin", "state-00000002.json"}
    assert len(faults) == 1
    assert "is restored without an older state: " in faults[0]
    assert "state-00000001.bin " in faults[0]
    store_for(url).put(at["state-00000002.bin"], b"-")
    with pytest.raises(StorageFailed, match=r"set 1 cannot be restored: "):
        checkpoints.newest(url)


def test_a_manifest_that_is_cut_short_is_passed_over_and_told(url: str, path: Path) -> None:
    write(path, step="1")
    save_set(url, f"{path}", "worker:0", 1)
    store = store_for(url)
    store.put("00000002.json", b'{"v": "1.0", "fi')
    found = checkpoints.newest(url)
    assert found is not None
    assert found.number == 1
    faults: list[str] = []
    restore(url, f"{path}", 1, tell_fault=faults.append)
    assert faults == ["checkpoint set 2 is passed over: 00000002.json is damaged: it is cut short, or overwritten"]
    store.remove("00000001.json")
    with pytest.raises(StorageFailed, match=r"set 2 cannot be restored: 00000002\.json is damaged"):
        checkpoints.newest(url)


def test_tasks_of_one_directory_restore_at_once(url: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, a="1", b="2")
    save_set(url, f"{path}", "worker:0", 1)
    kind = type(store_for(url))
    honest = kind.read
    waits = threading.Event()
    monkeypatch.setattr(Flow, "pause", lambda self, _: waits.set())
    with ThreadPoolExecutor(1) as pool:
        others: list[Future[object]] = []

        def read_while_another_restores(self: Store, *rest: object) -> bytes:
            if not others:
                others.append(pool.submit(restore, url, f"{path}", 1))
                waiting.until(lambda: waits.is_set() or others[0].done())
            return honest(self, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(kind, "read", read_while_another_restores)
        restore(url, f"{path}", 1)
        others[0].result()
    assert read(path) == {"a": "1", "b": "2"}
    assert sorted(os.listdir(path.parent)) == ["ckpt"]


def test_tasks_of_one_directory_begin_anew_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, a="1", b="2")
    honest = os.unlink

    def unlink_after_the_other(name: str, **where: int) -> None:
        monkeypatch.undo()
        subprocess.run(["rm", "-r", path], check=True)
        honest(name, **where)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "unlink", unlink_after_the_other)
    trees.remove(f"{path}")
    assert not path.exists()


@pytest.mark.parametrize("at", ["00000001.json", "files/"])
def test_a_set_is_stored_while_the_one_that_it_refers_to_goes(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The other is about to remove the set's manifest, or its bytes, when the new set is made."""
    write(path, large="x" * 1000, step="1")
    save_set(url, f"{path}", "worker:0", 1)
    write(path, step="22")
    other = path.parent / "other"
    other.mkdir()
    write(other, step="other")
    kind = type(store_for(url))
    upload, remove = kind.upload, kind.remove
    begun, removing, withdrawn = threading.Event(), threading.Event(), threading.Event()

    def uploading(self: Store, local: str, *rest: object) -> None:
        if local == f"{path}/step":
            begun.set()
            waiting.until(removing.is_set)
        upload(self, local, *rest)  # type: ignore[arg-type]

    def remove_once_it_is_made(self: Store, place: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            withdrawn.set()
        elif place.startswith(at):
            removing.set()
            waiting.until(lambda: saver.done() or withdrawn.is_set())
        remove(self, place)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "upload", uploading)
    monkeypatch.setattr(kind, "remove", remove_once_it_is_made)
    with ThreadPoolExecutor(1) as pool:
        saver = pool.submit(save_set, url, f"{path}", "worker:1", 1)
        waiting.until(begun.is_set)
        second = save_set(url, f"{other}", "worker:0", 1)
        assert second is not None
        prune(url, second, keep=1)
        made = saver.result()
    assert made is not None
    restore(url, f"{path}", made.number)
    assert read(path) == {"large": "x" * 1000, "step": "22"}


def test_a_set_that_is_not_there_is_named(url: str, path: Path) -> None:
    write(path, step="1")
    save_set(url, f"{path}", "worker:0", 1)
    with pytest.raises(StorageFailed, match="checkpoint set 9 cannot be restored: its manifest is gone"):
        restore(url, f"{path}", 9)
    assert read(path) == {"step": "1"}


def test_a_stopped_save_leaves_nothing(url: str, path: Path) -> None:
    write(path, a="1")
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        save_set(url, f"{path}", "worker:0", 1, stop=stop)
    assert store_for(url).files() == []


def test_a_manifest_from_outside_cannot_lead_outside(url: str, path: Path) -> None:
    write(path, step="1")
    save_set(url, f"{path}", "worker:0", 1)
    store = store_for(url)
    told = json.loads(store.get("00000001.json") or b"")
    for changed in ({"path": "../../escaped"}, {"link": "../../escaped", "at": ""}, {"link": "/etc/passwd", "at": ""}):
        store.put("00000001.json", json.dumps(told | {"files": [told["files"][0] | changed]}).encode())
        with pytest.raises(BadInput, match="leads out"):
            restore(url, f"{path}", 1)
    assert read(path) == {"step": "1"}
    store.put("00000001.json", json.dumps(told | {"v": "2.0"}).encode())
    with pytest.raises(StorageFailed, match=r"version 2\.0"):
        restore(url, f"{path}", 1)


# -- when a set is worth storing --


def test_a_set_is_ready_once_it_has_been_still(path: Path) -> None:
    write(path, step="1")
    watch = Watch(f"{path}", settle=1.0, mark=0)
    assert watch.look(0.0, mark=5) is None
    write(path, step="22")
    assert watch.look(1.0, mark=9) is None
    assert watch.look(1.9, mark=11) is None
    write(path, step="333")
    assert watch.look(2.5, mark=12) is None
    ready = watch.look(3.5, mark=13)
    assert ready is not None
    assert ready.mark == 5  # what was read up to the last look before the first change
    watch.stored()
    assert watch.look(9.0, mark=20) is None
    write(path, step="4444")
    assert watch.look(10.0, mark=21) is None
    assert watch.look(11.0, mark=22).mark == 20  # type: ignore[union-attr]


def test_a_program_that_says_so_need_not_be_waited_for(path: Path) -> None:
    watch = Watch(f"{path}")
    write(path, step="1")
    assert watch.look(0.0, settled=True) is not None


def renew(path: Path, content: str) -> None:
    """As the documents have it: under another name, and then renamed."""
    (path / "step.tmp").write_text(content)
    (path / "step.tmp").rename(path / "step")


def test_what_is_renamed_into_place_again_and_again_is_stored_once_that_presses(path: Path) -> None:
    renew(path, "0")
    write(path, settings="of the first hour")
    watch = Watch(f"{path}", mark=0)
    for i in range(1, 5):
        renew(path, f"{i}")
        assert watch.look(i / 2, mark=i) is None
        assert "is never still for 1 s" in watch.why
    assert watch.changed == 0.5
    renew(path, "5")
    ready = watch.look(2.5, mark=5, pressed=True)
    assert ready is not None
    assert ready.mark == 0
    watch.stored()
    assert watch.look(3.0, mark=6, pressed=True) is None
    assert watch.why == ""


def test_what_is_written_in_place_has_to_be_still_however_it_presses(path: Path) -> None:
    renew(path, "0")
    watch = Watch(f"{path}")
    for i in range(1, 5):
        renew(path, f"{i}")
        write(path, log="x" * i)
        assert watch.look(i / 2, pressed=True) is None
    assert watch.look(2.4, pressed=True) is None
    assert watch.look(3.0) is not None


def test_what_is_open_for_writing_is_not_ready(path: Path) -> None:
    program = "import sys; f = open(sys.argv[1], 'w'); f.write('x' * 10); f.flush(); print('open', flush=True); input()"
    watch = Watch(f"{path}", settle=0.0)
    with subprocess.Popen(
        [sys.executable, "-c", program, f"{path}/step"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            assert writers(f"{path}", [process.pid]) == [process.pid]
            assert watch.look(5.0, pids=[process.pid]) is None
            assert watch.look(9.0, pids=[process.pid], pressed=True) is None
            assert watch.why == f"process {process.pid} has a file of it open for writing"
        finally:
            process.kill()
    assert watch.look(10.0, pids=[process.pid]) is not None


def test_a_link_or_pipe_that_comes_after_the_last_set_is_named(url: str, path: Path) -> None:
    watch = Watch(str(path), settle=1.0)
    write(path, a="1")
    assert watch.look(0.0, settled=True)
    save_set(url, f"{path}", "worker:0", 1)
    watch.stored()
    (path / "passwd").symlink_to("/etc/passwd")
    os.mkfifo(path / "pipe")
    assert watch.look(1.0) is None, "it may be gone in a moment"
    assert watch.look(2.0)
    assert watch.left_out == {"passwd": "a link that leads out of the working directory", "pipe": "a named pipe"}
    assert save_set(url, f"{path}", "worker:0", 1) is None
    watch.stored()
    assert watch.look(3.0) is None


def test_a_path_that_holds_nothing_that_can_be_stored_says_what_it_holds(path: Path) -> None:
    watch = Watch(str(path))
    assert watch.unstorable == ""
    (path / "passwd").symlink_to("/etc/passwd")
    assert watch.look(0.0, settled=True) is None
    assert watch.why == "it holds nothing that can be stored: passwd (a link that leads out of the working directory)"
    assert watch.unstorable == watch.why
    path.rename(path.parent / "before")
    os.mkfifo(path)
    assert watch.look(1.0, settled=True) is None
    assert watch.why == "it holds nothing that can be stored: ckpt (a named pipe)"


def test_a_store_that_cannot_make_its_folder_is_the_cause_that_is_reported(path: Path) -> None:
    """It read that the checkpoint changed 5 times while it was sent."""
    write(path, a="1")
    with pytest.raises(StorageFailed, match="could not store a checkpoint: No such file or directory") as failure:
        save_set("/proc/nowhere/ckpt", f"{path}", "worker:0", 1)
    assert not isinstance(failure.value, Unsettled)


def test_a_path_that_vanished_is_not_ready(path: Path) -> None:
    write(path, step="1")
    watch = Watch(f"{path}", settle=0.0)
    (path / "step").unlink()
    assert watch.look(5.0) is None
    assert watch.look(9.0) is None
