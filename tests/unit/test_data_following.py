"""The copy of an input that is followed: what comes to its files comes to the copy, and nothing is read twice."""

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
    assert sorted(reads) == [("b.tfevents", 0, 1), ("train/a.tfevents", 3, 3)]


def test_a_file_that_was_replaced_by_a_shorter_one_is_copied_anew(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    file = tmp_path / "logs" / "x"
    following = Following(str(tmp_path / "logs"), str(tmp_path / "copy"))
    for content in (b"a long one", b"new"):
        file.write_bytes(content)
        following.look()
    assert (tmp_path / "copy" / "x").read_bytes() == b"new"
