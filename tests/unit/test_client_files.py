"""The files that are shipped with a job: its programs, and nothing that its tasks get another way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster.client.submit import files
from trainmaster.client.submit.files import largest, much_shipped, pack_files, shipped_files
from trainmaster.client.submit.preview import lines, preview
from trainmaster.core.spec.reading import job_from
from trainmaster.data import archives
from trainmaster.data.archives import unpack

MIB = 2**20


def written(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def shipped(folder: Path, **keys: Any) -> list[str]:
    job = job_from({"name": "t", "roles": {"worker": {"command": "true", "workdir": "copy"}}, **keys})
    return [name for name, _ in shipped_files(job, folder)[0]]


@pytest.mark.parametrize(
    "url", ["data", "data/", "./data", "data/*.csv", "file://{folder}/data", "{folder}/d?ta/[ab].csv"]
)
def test_an_input_in_the_jobs_directory_is_not_shipped_again(tmp_path: Path, url: str) -> None:
    written(tmp_path, "train.py", "data/a.csv", "data/b.csv")
    inputs = {"train": {"url": url.format(folder=tmp_path)}}
    assert shipped(tmp_path, inputs=inputs) == ["train.py"]
    assert shipped(tmp_path, inputs=inputs, files=["train.py", "data"]) == ["data/a.csv", "data/b.csv", "train.py"]


def test_an_input_above_the_jobs_directory_leaves_it_whole(tmp_path: Path) -> None:
    written(tmp_path, "job/train.py", "job/a.csv")
    assert shipped(tmp_path / "job", inputs={"all": {"url": ".."}, "own": {"url": "."}}) == ["a.csv", "train.py"]


def test_where_a_job_writes_is_not_shipped(tmp_path: Path) -> None:
    written(tmp_path, "train.py", "out/model/1", "sets/1/x", "jobs/1/log", "model/old", "ckpt/old")
    keys = {
        "outputs": {"model": {"url": "out/model"}},
        "checkpoint": {"path": "ckpt", "url": "sets"},
        "storage": "jobs",
    }
    assert shipped(tmp_path, **keys) == ["train.py"]


def test_a_job_above_the_state_directory_does_not_ship_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, path in {"TRAINMASTER_STATE_DIR": "s", "TRAINMASTER_RUNTIME_DIR": "r", "XDG_CACHE_HOME": "c"}.items():
        monkeypatch.setenv(name, str(tmp_path / path))
    written(tmp_path, "train.py", "s/jobs/1/log", "r/ledger", "c/wheels/1", "notes/c/1")
    assert shipped(tmp_path) == ["notes/c/1", "train.py"]
    assert shipped(tmp_path, files=[".", "c"]) == ["c/wheels/1", "notes/c/1", "train.py"]


def test_caches_are_not_shipped(tmp_path: Path) -> None:
    written(
        tmp_path,
        "train.py",
        "__pycache__/train.pyc",
        "lib/__pycache__/x.pyc",
        "lib/x.py",
        "tool/1",
        "mine/CACHEDIR.TAG",
    )
    (tmp_path / "tool" / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert shipped(tmp_path) == ["lib/x.py", "mine/CACHEDIR.TAG", "train.py"]


def test_much_is_named_by_its_five_largest_places() -> None:
    sizes = [
        ("a/b/c/big", 60 * MIB),
        ("a/small", 1),
        *((f"p{number}/x", number * MIB) for number in range(1, 8)),
        ("q/1", MIB),
        ("q/2", MIB),
    ]
    assert largest(sizes) == [("a/b/c/big", 60 * MIB), *((f"p{number}/x", number * MIB) for number in (7, 6, 5, 4))]
    assert much_shipped(sizes) == []
    (line,) = much_shipped([*sizes, ("data/1", 40 * MIB), ("data/2", 40 * MIB)])
    assert "shipping 13 files" in line
    assert "data 80 MiB, a/b/c/big 60 MiB" in line


def test_submitting_and_a_dry_run_say_how_much_is_shipped(
    tmp_path: Path, home: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "MUCH", 1000)
    written(tmp_path / "job", "train.py")
    (tmp_path / "job" / "weights").write_bytes(bytes(2000))
    job = job_from({"name": "t", "roles": {"worker": {"command": "true", "workdir": "copy"}}})
    assert any(
        "the job: weights 2 KB" in line or "weights 1.95 KiB" in line for line in lines(preview(job, tmp_path / "job"))
    )
    pack_files(job, tmp_path / "job")
    assert "weights" in capsys.readouterr().err


def test_an_empty_folder_is_shipped_as_one(tmp_path: Path, home: Any) -> None:
    """A program that writes into it finds it; at the place of an input it would be in the way."""
    written(tmp_path / "job", "train.py", "lib/x.py")
    for name in ("logs/deep", "lib/cache", "data", "model"):
        (tmp_path / "job" / name).mkdir(parents=True)
    keys: dict[str, Any] = {"inputs": {"data": {"url": "/tmp", "as": "mount"}}, "outputs": {"model": {"url": "s3://m"}}}
    assert shipped(tmp_path / "job", **keys) == ["lib/cache/", "lib/x.py", "logs/deep/", "train.py"]
    job = job_from({"name": "t", "roles": {"worker": {"command": "true", "workdir": "copy"}}, **keys})
    unpack(pack_files(job, tmp_path / "job"), str(tmp_path / "there"))
    assert sorted(str(path.relative_to(tmp_path / "there")) for path in (tmp_path / "there").rglob("*")) == [
        "lib", "lib/cache", "lib/x.py", "logs", "logs/deep", "train.py",
    ]  # fmt: skip


def test_a_virtual_environment_is_shipped_where_it_is_named(tmp_path: Path) -> None:
    written(tmp_path, "train.py", ".venv/pyvenv.cfg", ".venv/bin/tool", "old/env/pyvenv.cfg", "old/x")
    assert shipped(tmp_path) == ["old/x", "train.py"]
    assert shipped(tmp_path, files=[".", ".venv"]) == [".venv/bin/tool", ".venv/pyvenv.cfg", "old/x", "train.py"]


def test_the_files_are_looked_through_once(tmp_path: Path, home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    listed = archives.listed
    monkeypatch.setattr(archives, "listed", lambda *where: looks.append(where) or listed(*where))
    written(tmp_path / "job", "train.py")
    pack_files(job_from({"name": "t", "roles": {"worker": {"command": "true"}}}), tmp_path / "job")
    assert len(looks) == 1
