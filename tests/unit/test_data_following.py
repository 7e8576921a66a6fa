"""The copy of an input that is followed: what comes to its files comes to the copy, and little is read twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from trainmaster.core.input.splits import File, Listing
from trainmaster.data import following
from trainmaster.data.following import Following
from trainmaster.data.store import stores


def test_the_copy_has_what_comes_later_and_what_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, copy = tmp_path / "logs", tmp_path / "copy"
    copies = Following(f"{logs}/**/*tfevents*", str(copy))
    copies.look()
    assert list(copy.iterdir()) == [], "nothing was written yet"
    (logs / "train").mkdir(parents=True)
    (logs / "model.ckpt").write_bytes(b"large")
    (logs / "train" / "a.tfevents").write_bytes(b"one")
    copies.look()
    reads: list[tuple[Any, ...]] = []
    read = stores.LocalStore.read
    monkeypatch.setattr(stores.LocalStore, "read", lambda self, *where: reads.append(where) or read(self, *where))
    with (logs / "train" / "a.tfevents").open("ab") as file:
        file.write(b"two")
    (logs / "b.tfevents").write_bytes(b"b")
    copies.look()
    copies.look()
    files = {str(path.relative_to(copy)): path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert files == {"train/a.tfevents": b"onetwo", "b.tfevents": b"b"}
    expected = [("b.tfevents", 0, 1), ("train/a.tfevents", 0, 3), ("train/a.tfevents", 3, 3)]
    assert sorted(reads) == expected, "the end of the copy is compared with its file"


@pytest.mark.parametrize("content", [b"new", b"another...", b"one that is longer"])
def test_a_file_that_was_replaced_is_copied_anew(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    file = tmp_path / "logs" / "x"
    copies = Following(str(tmp_path / "logs"), str(tmp_path / "copy"))
    file.write_bytes(b"a long one")
    copies.look()
    file.write_bytes(content)
    copies.look()
    assert (tmp_path / "copy" / "x").read_bytes() == content


def test_a_file_that_cannot_be_copied_keeps_no_other_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    for name in "abc":
        (tmp_path / "logs" / name).write_text(name)
    read = stores.LocalStore.read

    def read_all_but_a(store: stores.LocalStore, path: str, *where: int) -> bytes:
        if path == "a":
            raise PermissionError(path)
        return read(store, path, *where)

    monkeypatch.setattr(stores.LocalStore, "read", read_all_but_a)
    with pytest.raises(PermissionError):
        Following(str(tmp_path / "logs"), str(tmp_path / "copy")).look()
    assert {path.name: path.read_text() for path in (tmp_path / "copy").iterdir()} == {"a": "", "b": "b", "c": "c"}


class OpenFiles(stores.LocalStore):
    """A storage whose sizes count what is in whole blocks of four bytes, as long as a writer holds a file open."""

    is_open = True

    def files(self, folder: str = "") -> list[File]:
        return [self.look(file.path) or file for file in super().files(folder)]

    def look(self, path: str) -> File | None:
        file = super().look(path)
        return file and attrs.evolve(file, size=file.size // 4 * 4 if self.is_open else file.size, stamp=self._stamp())

    def _stamp(self) -> str:
        """A file has one stamp while it is open, and another once it is closed: that of its first line."""
        return f"{(Path(self.root) / 'x').read_text().partition(' ')[0]} {self.is_open}"

    def read_flushed(self, path: str, offset: int, size: int) -> bytes | None:  # type: ignore[override]
        return (Path(self.root) / path).read_bytes()[offset : offset + size] if self.is_open else None


@pytest.fixture
def open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Following]:
    """A file, its copy, and what copies it."""
    (tmp_path / "logs").mkdir()
    store, file, copy = OpenFiles(str(tmp_path / "logs")), tmp_path / "logs" / "x", tmp_path / "copy"
    monkeypatch.setattr(following, "store_for", lambda _: store)
    monkeypatch.setattr(following, "list_input", lambda _: Listing("", tuple(store.files())))
    monkeypatch.setattr(OpenFiles, "is_open", True)
    return file, copy / "x", Following(str(tmp_path / "logs"), str(copy))


def test_what_an_open_file_has_beyond_its_size_is_copied(open_file: tuple[Path, Path, Following]) -> None:
    file, copy, copies = open_file
    for content in ("a", "a b", "a b c d e", "a b c d e f"):
        file.write_text(content)
        copies.look()
        assert copy.read_text() == content
    inode = copy.stat().st_ino, copy.stat().st_mtime_ns
    OpenFiles.is_open = False
    for _ in range(2):
        copies.look()
        assert (copy.stat().st_ino, copy.stat().st_mtime_ns) == inode, "nothing is copied again"


@pytest.mark.parametrize("content", ["b", "b instead", "b is longer than that"])
def test_an_open_file_that_is_written_anew_is_copied_anew(
    content: str, open_file: tuple[Path, Path, Following]
) -> None:
    file, copy, copies = open_file
    file.write_text("a long one")
    copies.look()
    file.write_text(content)
    copies.look()
    assert copy.read_text() == content


def test_a_file_that_is_shorter_once_it_is_closed_loses_the_end_of_its_copy(
    open_file: tuple[Path, Path, Following],
) -> None:
    file, copy, copies = open_file
    file.write_text("a b c d e")
    copies.look()
    file.write_text("a b c")
    OpenFiles.is_open = False
    copies.look()
    copies.look()
    assert copy.read_text() == "a b c"
