"""What an input's URL names, here and behind fsspec."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.input.splits import Listing
from trainmaster.core.spec.job import Input
from trainmaster.data.sources import list_input, mount, write_list
from trainmaster.data.store.stores import RemoteStore
from trainmaster.log.storage import remove_drafts

TREE = (
    "a/1.csv",
    "a/2.csv",
    "b/1.csv",
    "b/deep/3.csv",
    "b/note.txt",
    "_SUCCESS",
    "a/.hidden.csv",
    "_tmp/4.csv",
    "x[1].csv",
)


@pytest.fixture(params=["path", "file", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL under which the tree lies."""
    if request.param == "memory":
        place = f"/sources-{tmp_path.name}/in"
        for name in TREE:
            fsspec.filesystem("memory").pipe_file(f"{place}/{name}", name.encode())
        return f"memory:/{place}"
    for name in TREE:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
    return f"{'file://' if request.param == 'file' else ''}{tmp_path}/in"


def test_a_storage_that_cannot_be_listed_is_reported_with_the_key_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object) -> None:
        raise RuntimeError("no route to host")

    monkeypatch.setattr(RemoteStore, "entries", down)
    with pytest.raises(StorageFailed) as caught:
        list_input(Input("train", "memory://nobody/there/*.csv"))
    assert str(caught.value).splitlines() == [
        "could not list the input: no route to host",
        "  inputs.train.url: memory://nobody/there/*.csv",
        "  check that it can be reached",
    ]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", ["a/1.csv", "a/2.csv", "b/1.csv", "b/deep/3.csv", "b/note.txt", "x[1].csv"]),
        ("/", ["a/1.csv", "a/2.csv", "b/1.csv", "b/deep/3.csv", "b/note.txt", "x[1].csv"]),
        ("/*/*.csv", ["a/1.csv", "a/2.csv", "b/1.csv"]),
        ("/**/*.csv", ["a/1.csv", "a/2.csv", "b/1.csv", "b/deep/3.csv", "x[1].csv"]),
        ("/[ac]/?.csv", ["a/1.csv", "a/2.csv"]),
        ("/b*", ["b/1.csv", "b/deep/3.csv", "b/note.txt"]),
        ("/_*", ["_SUCCESS", "_tmp/4.csv"]),
        ("/*/1.csv", ["a/1.csv", "b/1.csv"]),
    ],
)
def test_patterns_and_folders(root: str, pattern: str, names: list[str]) -> None:
    listing = list_input(root + pattern)
    assert [listing.relative(file) for file in listing.files] == sorted(names)
    assert all(file.size == len(listing.relative(file)) for file in listing.files)
    assert all(file.stamp for file in listing.files)


@pytest.mark.parametrize("name", ["a/1.csv", "x[1].csv", "_SUCCESS", "a/.hidden.csv"])
def test_a_file_that_is_spelled_out_is_taken(root: str, name: str) -> None:
    listing = list_input(f"{root}/{name}")
    assert [listing.relative(file) for file in listing.files] == [name.rpartition("/")[2]]


def test_nothing_found_names_key_and_url(root: str) -> None:
    with pytest.raises(BadInput) as caught:
        list_input(Input("train", f"{root}/*.parquet"))
    assert f"{root}/*.parquet matches no file" in str(caught.value)
    assert "inputs.train.url" in str(caught.value)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(BadInput, match="nosuch"):
        list_input("nosuch://x/y", "inputs.train.url")


def test_links_that_lead_back_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/data").write_text("1")
    (tmp_path / "in/sub/up").symlink_to(tmp_path / "in")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/more").write_text("2")
    (tmp_path / "in/linked").symlink_to(tmp_path / "elsewhere")
    listing = list_input(f"{tmp_path}/in")
    assert [listing.relative(file) for file in listing.files] == ["data", "linked/more"]


@pytest.mark.parametrize("kind", ["a named pipe", "a socket", "a device", "a link to nothing"])
def test_what_is_no_file_is_refused_by_name(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    for name in ("in/a.csv", "in/sub/b.csv"):
        (tmp_path / name).write_text("1")
    odd = tmp_path / "in/sub/odd"
    if kind == "a named pipe":
        os.mkfifo(odd)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as bound:
            monkeypatch.chdir(odd.parent)  # a socket's path is short
            bound.bind("odd")
    else:
        odd.symlink_to("/dev/null" if kind == "a device" else "nowhere")
    for url in (f"{tmp_path}/in", f"{tmp_path}/in/*", f"{tmp_path}/in/sub/o*", f"{tmp_path}/in/**"):
        with pytest.raises(BadInput, match=rf"in/sub/odd is {kind}, and no file\n  inputs\.train\.url"):
            list_input(url, "inputs.train.url")
    assert len(list_input(f"{tmp_path}/in/**/*.csv").files) == 2
    odd.rename(odd.with_name(".odd"))
    assert len(list_input(f"{tmp_path}/in").files) == 2
    assert list_input(Input("train", f"{tmp_path}/in", as_="mount")).files == ()


def test_urls_are_unquoted_and_paths_are_not(tmp_path: Path) -> None:
    (tmp_path / "a b%20").write_text("1")
    assert len(list_input(f"{tmp_path}/a b%20").files) == 1
    assert len(list_input(f"file://{tmp_path}/a%20b%2520").files) == 1


def test_the_list_that_a_program_finds(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x").write_text("1")
    write_list(list_input(f"{tmp_path}/in"), f"{tmp_path}/list")
    assert (tmp_path / "list").read_text() == f"{tmp_path}/in/x\n"


def test_a_list_refuses_a_name_that_its_lines_would_cut_in_two(tmp_path: Path, home: object) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a\nb").write_text("1")

    def run(way: str) -> subprocess.CompletedProcess[bytes]:
        words = ["run", "--input", f"x:{way}=in/*", "--", "ls", "-b", "x"]
        return subprocess.run(
            [sys.executable, "-m", "trainmaster.cli", *words], cwd=tmp_path, capture_output=True, check=False
        )

    refused = run("list")
    assert refused.returncode == 2
    assert b"in/a\\nb' holds a line end, and a list has one name per line  [line-end]" in refused.stderr
    assert run("download").stdout == b"a\\nb\n"


def test_mount_gives_the_original(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    mount(f"file://{tmp_path}/in", f"{tmp_path}/train")
    mount(f"{tmp_path}/in/", f"{tmp_path}/train")  # a second attempt
    (tmp_path / "train/new").write_text("1")
    assert os.listdir(tmp_path / "in") == ["new"]


def test_what_is_at_the_place_of_a_mount_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "train").write_text("of the user")
    with pytest.raises(BadInput, match="exists and is not a link"):
        mount(f"{tmp_path}/in", f"{tmp_path}/train", "inputs.train.url")
    assert (tmp_path / "train").read_text() == "of the user"


@pytest.mark.parametrize("url", ["memory://x", "/tmp/*", "/no/such/folder"])
def test_what_cannot_be_mounted_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"inputs\.train\.url"):
        mount(url, f"{tmp_path}/train", "inputs.train.url")


def test_local_files_need_no_library(tmp_path: Path) -> None:
    import subprocess
    import sys

    (tmp_path / "x").write_text("1")
    code = f"import sys; from trainmaster.data.sources import list_input; list_input({str(tmp_path)!r}); print('fsspec' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == "False\n"


def test_a_listing_knows_its_size(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("12")
    assert isinstance(found := list_input(str(tmp_path)), Listing)
    assert found.size == 2


def test_the_draft_of_a_list_is_swept_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(source: str, target: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_list(Listing("", ()), str(tmp_path / "train.list"))
    (left,) = tmp_path.iterdir()
    os.utime(left, (0, 0))
    remove_drafts(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
