"""Storages: exclusive creation, atomic replacement, and what is said when a storage fails."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.log.objects import CLAIM, ObjectStorage, check_scheme
from trainmaster.log.storage import LocalStorage, Storage, draft_of, remove_drafts, storage_failed, storage_for

PAGE = Path(__file__).parents[2] / "docs/extend/storage.md"
MakeStorage = Callable[[], Storage]


@pytest.fixture(params=["local", "memory", "claims"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return storage_for(tmp_path / "job")
    storage = storage_for(f"memory://{uuid.uuid4()}/job")
    if request.param == "claims":
        assert isinstance(storage, ObjectStorage)
        storage._create = storage._claim
    return storage


def test_a_file_that_is_not_there_is_none(storage: Storage) -> None:
    assert storage.read("a/b") is None
    assert storage.entries("a") == []
    assert not storage.exists("a/b")
    storage.remove("a/b")


def test_create_is_exclusive_and_whole(storage: Storage) -> None:
    assert storage.create("epochs/1", b"first")
    assert not storage.create("epochs/1", b"second")
    assert storage.read("epochs/1") == b"first"
    assert [(entry.name, entry.size) for entry in storage.entries("epochs")] == [("1", 5)]


def test_replace_swaps_the_whole(storage: Storage) -> None:
    storage.replace("master", b"long content")
    storage.replace("master", b"short")
    assert storage.read("master") == b"short"
    assert storage.read("master", 1, 3) == b"hor"
    assert storage.read("master", 2) == b"ort"
    assert storage.read("master", 2, 0) == b""
    assert [entry.name for entry in storage.entries("")] == ["master"]
    storage.remove("master")
    assert not storage.exists("master")


def test_the_documents_show_a_storage_that_works(tmp_path: Path) -> None:
    """The blocks of the page are a package; a file is created once below the directory that its scheme names."""
    for name, block in re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', PAGE.read_text(), re.DOTALL):
        (tmp_path / name).write_text(block)
    points = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["entry-points"]["fsspec.specs"]
    info = tmp_path / "sharefs-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sharefs\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[fsspec.specs]\nshare = {points['share']}\n")
    program = (
        "from trainmaster.log.storage import storage_for\n"
        "storage = storage_for('share://jobs/digits')\n"
        "print(storage.create('epochs/1', b'first'), storage.create('epochs/1', b'second'))\n"
    )
    environ = os.environ | {"PYTHONPATH": str(tmp_path), "SHARE": str(tmp_path / "share")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "True False\n", done.stderr
    assert (tmp_path / "share/jobs/digits/epochs/1").read_bytes() == b"first"


def test_folders_are_told_from_files(storage: Storage) -> None:
    storage.replace("events/1-1.jsonl", b"x")
    assert [(entry.name, entry.folder) for entry in storage.entries("")] == [("events", True)]


@pytest.mark.parametrize("kind", ["local", "memory", "claims"])
def test_of_many_who_create_at_once_one_wins(kind: str, tmp_path: Path) -> None:
    url = str(tmp_path) if kind == "local" else f"memory://{uuid.uuid4()}"

    def contend(index: int) -> list[bool]:
        storage = storage_for(url)
        if kind == "claims":
            assert isinstance(storage, ObjectStorage)
            storage._create = storage._claim
        return [storage.create(f"epochs/{n}", str(index).encode()) for n in range(20)]

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(contend, range(8)))
    for n in range(20):
        winners = [index for index in range(8) if won[index][n]]
        assert len(winners) == 1 if kind != "claims" else len(winners) <= 1  # by claims all may withdraw
        if winners:
            assert storage_for(url).read(f"epochs/{n}") == str(winners[0]).encode()


def test_claims_are_not_listed_and_a_dead_rival_keeps_the_name() -> None:
    storage = ObjectStorage(f"memory://{uuid.uuid4()}")
    storage._create = storage._claim
    storage.replace(f"epochs/1{CLAIM}dead", b"")
    assert not storage.create("epochs/1", b"")
    assert storage.create("epochs/2", b"")
    assert [entry.name for entry in storage.entries("epochs")] == ["2"]
    assert not storage.conditional


def test_a_server_that_ignores_the_condition_is_found_out() -> None:
    storage = ObjectStorage(f"memory://{uuid.uuid4()}")

    class Heedless:
        """The filesystem of a server that overwrites whatever it is told."""

        protocol = "s3"

        def __getattr__(self, name: str) -> Any:
            return getattr(true, name)

        def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
            true.pipe_file(path, data)

    true = storage._fs
    Heedless.__module__ = "s3fs"
    storage._fs = Heedless()
    assert not storage.conditional
    assert storage.create("epochs/1", b"first")
    assert not storage.create("epochs/1", b"second")
    assert storage.read("epochs/1") == b"first"
    assert [entry.name for entry in storage.entries("")] == ["epochs"]  # the trial object is gone


def test_files_are_the_owners_alone_and_no_draft_stays(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "deep" / "job")
    storage.create("epochs/1", b"")
    storage.replace("master", b"")
    storage.appender("events/1-1.jsonl").close()
    files = [path for path in (tmp_path / "deep").rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["1", "1-1.jsonl", "master"]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert (tmp_path / "deep" / "job").stat().st_mode & 0o777 == 0o700


def test_an_existing_file_is_not_appended_to(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.replace("events/1-1.jsonl", b"x")
    with pytest.raises(StorageFailed, match="could not create"):
        storage.appender("events/1-1.jsonl")


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../b", "a\0b"])
def test_paths_stay_inside(storage: Storage, path: str) -> None:
    with pytest.raises(BadInput):
        storage.read(path)


def test_the_file_scheme_is_a_path(tmp_path: Path) -> None:
    storage = storage_for(f"file://{tmp_path}/a%20b")
    assert isinstance(storage, LocalStorage)
    assert storage.root == f"{tmp_path}/a b"


def test_an_unknown_scheme_is_bad_input() -> None:
    with pytest.raises(BadInput, match="nonsense"):
        storage_for("nonsense://x/y")


@pytest.mark.parametrize(
    ("url", "module", "package"), [("s3://b", "obstore", "obstore"), ("hdfs://h/x", "hdfs_native", "hdfs-native")]
)
def test_a_scheme_without_its_package_is_refused_before_anything_is_opened(
    url: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_scheme(url, "storage")
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(BadInput, match="is not installed") as refused:
        check_scheme(url, "storage")
    assert (refused.value.place, refused.value.mend) == (f"storage: {url}", f"pip install {package}")


@pytest.mark.parametrize(
    ("scheme", "packages"),
    [("smb", "smbprotocol"), ("sftp", "paramiko"), ("https", "aiohttp"), ("lakefs", "lakefs-spec")],
)
def test_the_packages_to_install_are_named_as_they_are_called(
    scheme: str, packages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module that is missing may have another name: smbclient is of smbprotocol, and a package of its own."""
    for module in ("smbclient", "paramiko", "aiohttp", "lakefs_spec"):
        monkeypatch.setitem(sys.modules, module, None)
    for name in ("http", "smb", "sftp"):
        monkeypatch.delitem(sys.modules, f"fsspec.implementations.{name}", raising=False)
    for ask in (lambda url: check_scheme(url, "storage"), storage_for):
        with pytest.raises(BadInput) as refused:
            ask(f"{scheme}://host/x")
        assert refused.value.mend == f"pip install {packages}"


def test_a_full_disk_is_called_one_with_its_path(tmp_path: Path) -> None:
    failure = storage_failed("append", str(tmp_path / "log"), OSError(errno.ENOSPC, "whatever"))
    assert failure.anchor == "disk-full"
    assert "no space left" in str(failure)
    assert "KiB free of" in str(failure)
    assert str(tmp_path / "log") in str(failure)
    assert failure.errno == errno.ENOSPC
    assert isinstance(failure, OSError)


def test_a_folder_in_the_way_is_a_failure_of_the_storage(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    os.mkdir(tmp_path / "master")
    with pytest.raises(StorageFailed) as caught:
        storage.replace("master", b"x")
    assert str(tmp_path / "master") in str(caught.value)
    assert os.listdir(tmp_path) == ["master"]


def test_drafts_of_writers_that_were_killed_are_swept(tmp_path: Path) -> None:
    left = [draft_of(str(tmp_path / name)) for name in ("job.json", "epochs/1")]
    young, program = (
        draft_of(str(tmp_path / "master")),
        draft_of(str(tmp_path / "work" / "worker-0" / "x")),
    )
    kept = [young, program, str(tmp_path / "mine.tmp")]
    for path in [*left, *kept]:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()
        if path != young:
            os.utime(path, (0, 0))
    remove_drafts(str(tmp_path))
    assert [Path(path).exists() for path in left] == [False, False]
    assert all(Path(path).exists() for path in kept)


def test_a_file_that_its_server_has_forgotten_is_a_storage_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master waits for it then, and does not end."""
    appender = LocalStorage(tmp_path).appender("events/1-1.jsonl")
    appender.write(b"x")

    def stale(descriptor: int) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", stale)
        with pytest.raises(StorageFailed, match="Stale file handle"):
            appender.hold(4096)
    appender.close()
