"""The copy of an input that is followed: what comes to its files comes to the copy, and little is read twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster.data.following import Following
from trainmaster.data.store import stores


def test_the_copy_has_what_comes_later_and_what_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, copy = tmp_path / "logs", tmp_path / "copy"
    following = Following(f"{logs}/**/*tfevents*", str(copy))
    following.look()
    assert list(copy.iterdir()) == [], "nothing was written yet"
    (logs / "train").mkdir(parents=True)
    (logs / "model.ckpt").write_bytes(b"large")
    (logs / "train" / "a.tfevents").write_bytes(b"one")
    following.look()
    reads: list[tuple[Any, ...]] = []
    read = stores.LocalStore.read
    monkeypatch.setattr(stores.LocalStore, "read", lambda self, *where: reads.append(where) or read(self, *where))
    with (logs / "train" / "a.tfevents").open("ab") as file:
        file.write(b"two")
    (logs / "b.tfevents").write_bytes(b"b")
    following.look()
    following.look()
    files = {str(path.relative_to(copy)): path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert files == {"train/a.tfevents": b"onetwo", "b.tfevents": b"b"}
    expected = [("b.tfevents", 0, 1), ("train/a.tfevents", 0, 3), ("train/a.tfevents", 3, 3)]
    assert sorted(reads) == expected, "the end of the copy is compared with its file"


@pytest.mark.parametrize("content", [b"new", b"another...", b"one that is longer"])
def test_a_file_that_was_replaced_is_copied_anew(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    file = tmp_path / "logs" / "x"
    following = Following(str(tmp_path / "logs"), str(tmp_path / "copy"))
    file.write_bytes(b"a long one")
    following.look()
    file.write_bytes(content)
    following.look()
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
