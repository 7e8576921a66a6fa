"""Inputs on their way to a task's disk: whole or not at all, resumed, refused by name where the disk is full."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
import fsspec
import pytest
from parts import mounted

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.input.splits import File, Listing
from trainmaster.data import staging
from trainmaster.data.sources import list_input
from trainmaster.data.staging import download, staging_path
from trainmaster.data.store import transfer
from trainmaster.data.store.stores import LocalStore, store_for
from trainmaster.data.store.transfer import DiskFull, Flow, Stopped, retried


@pytest.fixture(params=["path", "memory"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    files = {"a/x": b"1" * 1000, "b/x": b"2" * 500, "b/empty": b""}
    if request.param == "memory":
        for name, content in files.items():
            fsspec.filesystem("memory").pipe_file(f"/staging-{tmp_path.name}/{name}", content)
        return f"memory://staging-{tmp_path.name}"
    for name, content in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    return f"{tmp_path}/in"


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_files_keep_their_folders_and_progress_is_reported_in_bytes(source: str, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    assert download(list_input(source), f"{tmp_path}/train", tell=lambda *figures: told.append(figures)) == 1500
    assert contents(tmp_path / "train") == {"a/x": b"1" * 1000, "b/x": b"2" * 500, "b/empty": b""}
    assert told[-1] == (1500, 1500)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert not Path(staging_path(f"{tmp_path}/train")).exists()


def test_a_program_may_write_into_its_input(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x").write_text("original")
    (tmp_path / "in/x").chmod(0o444)
    download(list_input(f"{tmp_path}/in"), f"{tmp_path}/train")
    (tmp_path / "train/x").write_text("changed")
    assert (tmp_path / "in/x").read_text() == "original"


def test_an_equal_split_is_kept_and_another_replaces_it(source: str, tmp_path: Path) -> None:
    listing = list_input(source)
    download(listing, f"{tmp_path}/train")
    (tmp_path / "train/mine").write_text("made by the program")
    download(listing, f"{tmp_path}/train")
    assert "mine" in contents(tmp_path / "train")
    download(attrs.evolve(listing, files=listing.files[:1]), f"{tmp_path}/train")
    assert contents(tmp_path / "train") == {"a/x": b"1" * 1000}


def test_a_directory_of_the_user_is_not_replaced(source: str, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train/precious").write_text("1")
    with pytest.raises(BadInput, match="exists"):
        download(list_input(source), f"{tmp_path}/train")
    assert contents(tmp_path / "train") == {"precious": b"1"}


@pytest.mark.parametrize("scheme", ["", "memory:/"])
def test_a_file_named_like_the_part_of_another_is_a_file_of_its_own(tmp_path: Path, scheme: str) -> None:
    files = {"a.csv": b"rows", "a.csv.part": b"notes of somebody"}
    store = store_for(f"{scheme}{tmp_path}/in")
    for name, content in files.items():
        store.put(name, content)
    listing = list_input(f"{scheme}{tmp_path}/in")
    for order in (listing.files, listing.files[::-1]):
        download(attrs.evolve(listing, files=order), f"{tmp_path}/train", threads=1)
        assert contents(tmp_path / "train") == files
        shutil.rmtree(tmp_path / "train")


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../x", ""])
def test_names_that_lead_outside_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        download(Listing("", (File(name, 0),)), f"{tmp_path}/train", store=LocalStore("/"))
    assert not (tmp_path / "train").exists()


def test_a_file_that_is_gone_is_named(source: str, tmp_path: Path) -> None:
    listing = list_input(source)
    store_for(source).remove("b/x")
    with pytest.raises(StorageFailed, match="gone") as caught:
        download(listing, f"{tmp_path}/train")
    assert "b/x" in str(caught.value)


def test_a_stopped_download_leaves_no_directory_and_goes_on_later(source: str, tmp_path: Path) -> None:
    stop = threading.Event()
    with pytest.raises(Stopped):
        download(list_input(source), f"{tmp_path}/train", tell=lambda *_: stop.set(), stop=stop, threads=1)
    assert not (tmp_path / "train").exists()
    download(list_input(source), f"{tmp_path}/train")
    assert len(contents(tmp_path / "train")) == 3


@attrs.define
class Faulty:
    """A store whose reads fail so many times, then work."""

    store: object
    failures: int
    reads: int = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    def read(self, path: str, offset: int, size: int) -> bytes:
        self.reads += 1
        if self.reads <= self.failures:
            raise ConnectionResetError("the other side hung up")
        return self.store.read(path, offset, size)  # type: ignore[attr-defined]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flow, "pause", lambda self, seconds: None)


@pytest.mark.usefixtures("patient")
def test_what_may_pass_is_tried_again(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file(f"/tries-{tmp_path.name}/x", b"1234")
    listing = list_input(f"memory://tries-{tmp_path.name}")
    store = Faulty(store_for(listing.prefix), failures=3)
    download(listing, f"{tmp_path}/train", store=store)  # type: ignore[arg-type]
    assert contents(tmp_path / "train") == {"x": b"1234"}
    assert store.reads == 4
    with pytest.raises(StorageFailed, match="hung up"):
        download(listing, f"{tmp_path}/more", store=Faulty(store_for(listing.prefix), failures=99))  # type: ignore[arg-type]


def test_what_cannot_pass_fails_at_once() -> None:
    tries = []

    def act() -> None:
        tries.append(1)
        raise PermissionError(13, "no")

    with pytest.raises(StorageFailed, match="Permission denied"):
        retried("read", "/x", act)
    assert len(tries) == 1


def test_a_small_file_is_there_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a program can see to it: the file, its name, and the names of new folders were told to the disk."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    store = LocalStore(f"{tmp_path}/new")
    assert store.create("1.json", b"{}")
    assert [path for path in synced if ".tmp" not in path] == [f"{tmp_path}", f"{tmp_path}/new"]
    store.put("2.json", b"{}")
    assert synced[-1] == f"{tmp_path}/new"
    assert len([path for path in synced if ".tmp" in path]) == 2
    assert sorted(os.listdir(tmp_path / "new")) == ["1.json", "2.json"]


def test_waiting_for_the_next_try_ends_when_asked() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        retried("read", "/x", _fail, Flow(stop=stop))


def _fail() -> None:
    raise ConnectionResetError


@pytest.mark.usefixtures("patient")
def test_a_file_that_changes_meanwhile_is_never_mixed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x").write_bytes(b"a" * 100)
    listing = list_input(f"{tmp_path}/in")
    (tmp_path / "in/x").write_bytes(b"b" * 120)
    download(listing, f"{tmp_path}/train")
    assert contents(tmp_path / "train") == {"x": b"b" * 120}


INTERRUPTED = """
import sys, threading
from trainmaster.data.sources import list_input
from trainmaster.data.staging import download
from trainmaster.data.store import transfer
transfer.CHUNK = 1 << 16
def tell(done, total):
    if done * 2 >= total:
        print(done, flush=True)
        threading.Event().wait()
download(list_input(sys.argv[1]), sys.argv[2], tell=tell, threads=1)
"""


def test_a_killed_download_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    content = os.urandom(1 << 20)
    (tmp_path / "in/large").write_bytes(content)
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, f"{tmp_path}/in", f"{tmp_path}/train"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        half = int(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    part = Path(staging_path(f"{tmp_path}/train")) / ".large.part"
    assert not (tmp_path / "train").exists()
    assert part.stat().st_size >= half > 0
    told: list[int] = []
    download(list_input(f"{tmp_path}/in"), f"{tmp_path}/train", tell=lambda done, total: told.append(done))
    assert told[0] >= half  # the bytes that were there are not fetched again
    assert (tmp_path / "train/large").read_bytes() == content


def test_a_part_of_another_content_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "CHUNK", 16)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x").write_bytes(b"a" * 100)
    stop = threading.Event()
    listing = list_input(f"{tmp_path}/in")
    with pytest.raises(Stopped):
        download(listing, f"{tmp_path}/train", tell=lambda *_: stop.set(), stop=stop)
    assert 0 < (Path(staging_path(f"{tmp_path}/train")) / ".x.part").stat().st_size < 100
    (tmp_path / "in/y").write_bytes(b"b" * 100)
    os.replace(tmp_path / "in/y", tmp_path / "in/x")
    download(list_input(f"{tmp_path}/in"), f"{tmp_path}/train")
    assert contents(tmp_path / "train") == {"x": b"b" * 100}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    with mounted(place, "size=1m"):
        yield place


def test_a_disk_without_room_is_reported_before_anything_is_written(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x").write_bytes(b"1" * (3 << 20))
    with pytest.raises(DiskFull) as caught:
        download(list_input(f"{tmp_path}/in"), f"{small_disk}/train")
    assert (caught.value.needed, caught.value.free) == (3 << 20, 1 << 20)
    assert str(small_disk) in caught.value.path
    assert "3 MiB needed, 1 MiB free" in str(caught.value)


@pytest.mark.parametrize("remote", [False, True])
def test_a_disk_that_fills_up_meanwhile(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    monkeypatch.setattr(staging, "make_room", lambda *_: None)  # as if another took the room after we looked
    data = b"1" * (3 << 20)
    if remote:
        fsspec.filesystem("memory").pipe_file(f"/full-{tmp_path.name}/x", data)
    else:
        (tmp_path / "in").mkdir()
        (tmp_path / "in/x").write_bytes(data)
    listing = list_input(f"memory://full-{tmp_path.name}" if remote else f"{tmp_path}/in")
    with pytest.raises(DiskFull) as caught:
        download(listing, f"{small_disk}/train")
    assert caught.value.free < 1 << 20
    assert ".x.part" in caught.value.path
    assert not (small_disk / "train").exists()
