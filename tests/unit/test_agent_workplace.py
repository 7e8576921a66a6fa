"""The directory of a task: what its attempts find there."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from trainmaster.agent.attempt.workplace import Workplace
from trainmaster.core.machine.orders import order_fields, order_message
from trainmaster.data.archives import pack

OUTPUTS = {"model": {"as": "upload", "local": "out/model"}}


@pytest.fixture
def order(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "project/out/model").mkdir(parents=True)
    (tmp_path / "project/train.py").write_text("print(1)")
    (tmp_path / "project/out/model/vocabulary").write_text("shipped")
    archive = pack(["."], f"{tmp_path}/files", f"{tmp_path}/project").path
    return order_fields(order_message(1, 1, "prepare", workdir="copy", archive=archive, outputs=OUTPUTS))


def contents(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir()}


def test_a_python_whose_tarfile_knows_no_filters_unpacks_too(
    tmp_path: Path, order: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters came with 3.11.4; the first 3.11 have a keyword less."""
    honest = tarfile.TarFile.extractall

    def extractall(self: tarfile.TarFile, path: str = ".") -> None:
        honest(self, path)

    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)
    Workplace(f"{tmp_path}/work", f"{tmp_path}/private").furnish(order)
    assert (tmp_path / "work/train.py").read_text() == "print(1)"


def test_a_container_that_follows_finds_what_the_first_one_found(tmp_path: Path, order: dict[str, Any]) -> None:
    model = tmp_path / "work/out/model"
    for attempt in range(1, 5):
        # The machine was started anew between.
        site = Workplace(f"{tmp_path}/work", f"{tmp_path}/private{attempt // 3}")
        site.attempt = attempt
        site.furnish(order)
        assert contents(model) == {"vocabulary"}, attempt
        assert (model / "vocabulary").read_text() == "shipped"
        (model / "vocabulary").write_text("spoilt")
        (model / "stale").write_text("1")
        (tmp_path / "work/notes").write_text("what is no output stays")
    assert contents(tmp_path / "work") - contents(tmp_path / "work/out") >= {"notes", "train.py"}


def test_what_lies_elsewhere_is_not_removed(tmp_path: Path, order: dict[str, Any]) -> None:
    (tmp_path / "disk/model").mkdir(parents=True)
    (tmp_path / "disk/model/mine").write_text("of the user")
    site = Workplace(f"{tmp_path}/work", f"{tmp_path}/private")
    (tmp_path / "work").mkdir()
    os.symlink(tmp_path / "disk", tmp_path / "work/out")
    site.furnish(order_fields(order_message(1, 1, "prepare", workdir="copy", outputs=OUTPUTS)))
    assert (tmp_path / "disk/model/mine").read_text() == "of the user"
