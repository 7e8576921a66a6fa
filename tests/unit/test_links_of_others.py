"""Links that another user has put into a directory of ours lead nowhere: nothing behind them is read, written, moved or removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from another_user import as_another_user
from log_jobs import Job

from trainmaster.core.errors import StorageFailed
from trainmaster.core.spec.job import Output
from trainmaster.data import saves
from trainmaster.data.checkpoints import Set, newest, prune, save_set
from trainmaster.data.outputs import commit, finish, upload
from trainmaster.data.store.stores import LocalStore, store_for
from trainmaster.log.index import jobs
from trainmaster.log.storage import Damaged, LocalStorage
from trainmaster.ps.optimizers import Adam
from trainmaster.ps.shard import Shard
from trainmaster.ps.specification import Definition, Updates
from trainmaster.ps.storage.checkpoints import Share, write_manifest
from trainmaster.ps.storage.locks import take_lock
from trainmaster.ps.storage.placements import note_servers
from trainmaster.runtime.states.stored_states import Folder

SECRET = "of the victim alone"


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Path]:
    """A directory of the victim's, with one file; after the test it is as it was."""
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "keys").write_text(SECRET)
    yield folder
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"keys": SECRET}


def stored(url: str, program: Path, content: str) -> Set:
    program.mkdir(exist_ok=True)
    (program / "model").write_text(content)
    checkpoint_set = save_set(url, f"{program}", "worker:0", 1)
    assert checkpoint_set is not None
    return checkpoint_set


@pytest.mark.parametrize("link", ["the folder", "the file"])
def test_pruning_removes_nothing_behind_a_link(tmp_path: Path, private: Path, link: str) -> None:
    url = f"{tmp_path}/stored"
    first = stored(url, tmp_path / "w", "one")
    manifest = tmp_path / "stored" / first.manifest
    content = json.loads(manifest.read_text())
    content["files"][0]["at"] = "files/evil/keys"
    manifest.write_text(json.dumps(content))
    if link == "the folder":
        (tmp_path / "stored/files/evil").symlink_to(private)
    else:
        (tmp_path / "stored/files/evil").mkdir()
        (tmp_path / "stored/files/evil/keys").symlink_to(private / "keys")
    second = stored(url, tmp_path / "w", "two")
    if link == "the folder":
        with pytest.raises(Damaged, match=r"files/evil/keys leads out of .*/stored through a link") as caught:
            prune(url, second, keep=1)
        assert (caught.value.place, caught.value.anchor) == (f"{url}/files/evil", "unsafe-path")
        assert "remove the link" in caught.value.mend
    else:
        prune(url, second, keep=1)
        assert not os.path.lexists(f"{url}/files/evil/keys")
    assert newest(url) == second


def test_a_set_behind_a_link_is_passed_over(tmp_path: Path, private: Path) -> None:
    url = f"{tmp_path}/stored"
    first = stored(url, tmp_path / "w", "one")
    second = stored(url, tmp_path / "w", "two")
    manifest = tmp_path / "stored" / second.manifest
    content = json.loads(manifest.read_text())
    content["files"][0] |= {"at": "files/evil/keys", "size": len(SECRET)}
    manifest.write_text(json.dumps(content))
    (tmp_path / "stored/files/evil").symlink_to(private)
    assert newest(url) == first
    manifest.unlink()
    manifest.symlink_to(private / "keys")
    assert newest(url) == first
    assert stored(url, tmp_path / "w", "three").number == 3


def commit_output(output: Output, source: Path, job: str) -> None:
    sent = upload(output, f"{source}", job, "worker:0", 1)
    commit(output, sent, job, "worker:0", 1)
    finish(output, {"worker:0": sent}, job, True)


@pytest.mark.parametrize("layout", ["task", "flat"])
def test_overwriting_an_output_removes_nothing_behind_a_link(tmp_path: Path, private: Path, layout: str) -> None:
    output = Output("model", f"{tmp_path}/out", layout=layout, overwrite=True)
    (tmp_path / "w").mkdir()
    (tmp_path / "w/model").write_text("weights")
    commit_output(output, tmp_path / "w", "j-1")
    success = tmp_path / "out/_SUCCESS"
    content = json.loads(success.read_text())
    content["tasks"]["worker:0"]["files"].append({"path": "evil/keys", "size": 1})
    success.write_text(json.dumps(content))
    (tmp_path / "out/evil").symlink_to(private)
    with pytest.raises(Damaged, match=r"evil/keys leads out of .*/out through a link"):
        commit_output(output, tmp_path / "w", "j-2")
    (tmp_path / "out/evil").unlink()
    commit_output(output, tmp_path / "w", "j-2")


def test_an_output_is_not_written_through_a_link_and_replaces_one_in_its_place(tmp_path: Path, private: Path) -> None:
    (tmp_path / "w/deep").mkdir(parents=True)
    (tmp_path / "w/deep/keys").write_text("weights")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/deep").symlink_to(private)
    with pytest.raises(Damaged, match=r"deep/keys leads out"):
        commit_output(Output("model", f"{tmp_path}/out", layout="flat", overwrite=True), tmp_path / "w", "j-1")
    (tmp_path / "out/deep").unlink()
    (tmp_path / "out/worker-0").symlink_to(private)
    commit_output(Output("model", f"{tmp_path}/out", overwrite=True), tmp_path / "w", "j-2")
    assert (tmp_path / "out/worker-0/deep/keys").read_text() == "weights"
    assert not (tmp_path / "out/worker-0").is_symlink()


def test_a_save_takes_nothing_over_from_behind_a_link(tmp_path: Path, private: Path) -> None:
    output, names = Output("model", f"{tmp_path}/out"), [f"1970-01-01T00-0{minute}-00Z" for minute in range(2)]
    (tmp_path / "w").mkdir()
    (tmp_path / "w/keys").write_text("public")
    for name in names:
        (tmp_path / "w/model").write_text(name)
        saves.save(output, f"{tmp_path}/w", "worker:0", name)
    kept = tmp_path / "out/_saves" / names[0] / "worker-0/keys"
    kept.unlink()
    kept.symlink_to(private / "keys")
    with pytest.raises(Damaged, match=r"leads out of .*/out through a link"):
        saves.prune(output, 1, names[1])
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in files if SECRET in path.read_text()]


ACTS: dict[str, Callable[[LocalStorage, str], object]] = {
    "read": lambda storage, path: storage.read(path),
    "entries": lambda storage, path: storage.entries(path),
    "create": lambda storage, path: storage.create(f"{path}.new", b"x"),
    "replace": lambda storage, path: storage.replace(path, b"x"),
    "appender": lambda storage, path: storage.appender(f"{path}.new"),
    "sync": lambda storage, path: storage.sync(path),
    "remove": lambda storage, path: storage.remove(path),
    "exists": lambda storage, path: storage.exists(path),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_storage_does_nothing_through_a_link(tmp_path: Path, private: Path, act: str) -> None:
    (tmp_path / "job/logs").mkdir(parents=True)
    (tmp_path / "job/logs/evil").symlink_to(private)
    with pytest.raises(Damaged, match=r"logs/evil/keys.* leads out of .*/job through a link") as caught:
        ACTS[act](LocalStorage(tmp_path / "job"), "logs/evil/keys")
    assert (caught.value.place, caught.value.anchor) == (f"{tmp_path}/job/logs/evil", "unsafe-path")


def test_a_link_in_the_place_of_a_file_is_removed_or_replaced_itself(tmp_path: Path, private: Path) -> None:
    storage, store = LocalStorage(tmp_path / "job"), LocalStore(f"{tmp_path}/job")
    for act in (
        lambda: storage.remove("x"),
        lambda: storage.replace("x", b"new"),
        lambda: store.remove("x"),
        lambda: store.put("x", b"new"),
        lambda: store.upload(__file__, "x", lambda _: None),
    ):
        storage.replace("x", b"")
        storage.remove("x")
        (tmp_path / "job/x").symlink_to(private / "keys")
        act()
        assert not (tmp_path / "job/x").is_symlink()


def test_links_that_stay_inside_and_a_root_behind_links_go_on_working(tmp_path: Path) -> None:
    (tmp_path / "disk/job/logs").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    (tmp_path / "root").symlink_to(tmp_path / "home/job")
    (tmp_path / "disk/job/latest").symlink_to("logs")
    (tmp_path / "disk/job/first").symlink_to(tmp_path / "disk/job/logs/a")
    storage, store = LocalStorage(tmp_path / "root"), store_for(f"{tmp_path}/root", is_own=True)
    storage.replace("latest/a", b"1")
    store.put("latest/b", b"2")
    assert [storage.read(path) for path in ("logs/a", "first", "latest/b")] == [b"1", b"1", b"2"]
    assert [store.get(path) for path in ("logs/a", "first", "latest/b")] == [b"1", b"1", b"2"]
    assert {file.path for file in store.files()} == {"first", "latest/a", "latest/b", "logs/a", "logs/b"}
    store.remove("latest/b")
    assert store.get("logs/b") is None


def test_jobs_may_be_kept_on_another_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "state/jobs").symlink_to(tmp_path / "disk")
    state = LocalStorage(tmp_path / "state")
    Job(state, "digits-aaaaaa", 100.0)
    assert [job.id for job in jobs(state)] == ["digits-aaaaaa"]


def test_a_link_in_the_place_of_a_draft_is_not_written_to(tmp_path: Path, private: Path) -> None:
    key = private / "keys"
    place = tmp_path / "shared"
    for folder in ("", "version-0", "serving"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    drafts = [
        ".state-00000001.bin.part",
        ".state-00000001.json.part",
        "version-0/variables-0-of-1.ckpt.part",
        "version-0/manifest-of-1.json.part",
        "serving/servers-of-0.part",
    ]
    for draft in drafts:
        (place / draft).symlink_to(key)
    for name in ("state-00000001.bin", "state-00000001.json"):
        Folder(str(place)).write(name, [memoryview(b"state")])
    shard = Shard(0, 1)
    shard.define(Definition({"w": (4,)}, {}, Adam(0.1), Updates()), {"w": numpy.arange(4, dtype=numpy.float32)})
    write_manifest(str(place), 0, shard.sequence, [Share(shard).write(str(place))])
    note_servers(str(place), 0, "j-1", 1, 2)
    for draft in drafts:
        assert not os.path.lexists(place / draft)
        file = place / draft.removesuffix(".part").removeprefix(".")
        assert file.is_file()
        assert not file.is_symlink()


def test_the_lock_and_the_folders_of_servers_are_no_links(tmp_path: Path, private: Path) -> None:
    folder = tmp_path / "shared/journal/0-of-1"
    folder.mkdir(parents=True)
    (folder / "lock").symlink_to(private / "keys")
    with pytest.raises(OSError, match=r"lock"):
        take_lock(f"{folder}", print)
    (folder / "lock").unlink()
    folder.rmdir()
    folder.symlink_to(private)
    with pytest.raises(OSError, match=r"it is a link, and is not followed: remove it: '.*/journal/0-of-1'"):
        take_lock(f"{folder}", print)
    folder.parent.rename(tmp_path / "away")
    folder.parent.symlink_to(private)
    with pytest.raises(OSError, match=r"it is a link, and is not followed: remove it: '.*/journal'"):
        take_lock(f"{folder}", print)
    (tmp_path / "shared/version-0").symlink_to(private)
    shard = Shard(0, 1)
    shard.define(Definition({"w": (4,)}, {}, Adam(0.1), Updates()), {"w": numpy.arange(4, dtype=numpy.float32)})
    with pytest.raises(OSError, match=r"it is a link, and is not followed: remove it: '.*/version-0'"):
        Share(shard).write(f"{tmp_path}/shared")


JOB = """
name: digits
roles:
  worker:
    command: mkdir -p out && echo weights > out/model
outputs:
  model: {{local: out, url: {url}, overwrite: true}}
"""


@pytest.mark.usefixtures("home")
def test_another_user_who_may_write_to_an_output_cannot_have_our_files_removed() -> None:
    with tempfile.TemporaryDirectory(prefix="tm-open-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        private, out = Path(folder, "private"), Path(folder, "out")
        private.mkdir(0o700)
        (private / "keys").write_text(SECRET)
        out.mkdir()
        out.chmod(0o777)
        Path(folder, "job.yaml").write_text(JOB.format(url=out))

        def run() -> subprocess.CompletedProcess[str]:
            line = [sys.executable, "-m", "trainmaster.cli", "run", "job.yaml"]
            return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, timeout=120)

        def plant() -> None:
            content = json.loads((out / "_SUCCESS").read_text())
            content["tasks"]["worker:0"]["files"].append({"path": "evil/keys", "size": 1})
            (out / "new").write_text(json.dumps(content))
            (out / "new").replace(out / "_SUCCESS")
            (out / "evil").symlink_to(private)

        assert run().returncode == 0
        as_another_user(plant)
        done = run()
        assert (private / "keys").read_text() == SECRET
        assert done.returncode != 0
        assert f"evil/keys leads out of {out} through a link" in done.stderr
        (out / "evil").unlink()
        assert run().returncode == 0


@pytest.mark.parametrize(
    ("opened", "error"), [(LocalStorage, StorageFailed), (lambda url: store_for(url, is_own=True), OSError)], ids=["log", "data"]
)  # fmt: skip
def test_a_named_pipe_that_another_put_there_keeps_no_reader_waiting(
    tmp_path: Path, opened: Callable[[str], Any], error: type[Exception]
) -> None:
    os.mkfifo(tmp_path / "manifest")
    with pytest.raises(error, match="not a regular file"):
        opened(f"{tmp_path}").read("manifest", 0, 10)
