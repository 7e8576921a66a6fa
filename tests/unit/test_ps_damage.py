"""Parameter servers come back to damaged checkpoints: one reader for all ways, damage is never absence, and nothing is lost in silence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy
import pytest
from parameter_servers import Model, Servers, assert_holds, await_checkpoint, define, push_some, servers

from trainmaster.agent.attempt.faults import ERROR_FILE, recorded
from trainmaster.ps.optimizers import Adam
from trainmaster.ps.specification import Updates
from trainmaster.ps.storage.checkpoints import remove_beyond
from trainmaster.ps.storage.former import Unusable, is_former, newest_former

UPDATES = Updates(tolerance=None, keep_checkpoints=3)
VERSIONS = (5, 8, 11)  # that are checkpointed; more was pushed behind the last
DAMAGES = {
    "empty manifest": ("manifest-of-2.json", 0),
    "truncated manifest": ("manifest-of-2.json", 40),
    "truncated share": ("variables-1-of-2.ckpt", 200),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    """The folder of two servers with three checkpoints, and what they held in the end."""
    folder, model, generator = tmp_path_factory.mktemp("trained"), Model(Adam(0.01)), numpy.random.default_rng(3)
    with servers(folder, 2) as group, group.client() as client:
        define(client, UPDATES)
        for before, version in zip((0, *VERSIONS), VERSIONS, strict=False):
            push_some(client, model, generator, version - before)
            await_checkpoint(client, client.checkpoint())
        push_some(client, model, generator, 2)
    return folder, model


@pytest.fixture
def left(trained: tuple[Path, Model], tmp_path: Path) -> tuple[Path, Model]:
    shutil.copytree(trained[0] / "ckpt", tmp_path / "ckpt")
    return tmp_path, trained[1]


def damage(folder: Path, what: str, *versions: int) -> None:
    name, size = DAMAGES[what]
    for version in versions:
        path = folder / "ckpt" / f"version-{version}" / name
        path.write_bytes(path.read_bytes()[:size])


def defined(group: Servers, model: Model) -> None:
    with group.client(attempt=2) as client:
        define(client, UPDATES)
        assert_holds(client, model)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("what", DAMAGES)
def test_servers_go_on_from_the_checkpoint_before_and_the_log(left: tuple[Path, Model], what: str, count: int) -> None:
    folder, model = left
    damage(folder, what, VERSIONS[-1])
    with servers(folder, count) as group:
        defined(group, model)
        assert "the checkpoint before it is tried" in "".join(map(group.log, range(count)))


@pytest.mark.parametrize("count", [2, 3])
def test_servers_whose_two_newest_checkpoints_are_damaged_say_so_and_are_not_restarted(
    left: tuple[Path, Model], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log reaches back to the last but one alone: what came between would be lost in silence."""
    folder, _ = left
    damage(folder, "truncated share", *VERSIONS[-2:])
    monkeypatch.setenv(ERROR_FILE, str(folder / "error.json"))
    with servers(folder, count) as group:
        assert group.processes[1].wait(60) == 1, "of two, it is the other one's share that is whole"
        text = group.log(1)
        assert "begins behind entry" in text
        assert "variables-1-of-2.ckpt" in text
        assert "Traceback" not in text
    assert "begins behind entry" in recorded(str(folder / "error.json"))
    assert json.loads((folder / "error.json").read_text())["message"]["is_lasting"]


@pytest.mark.parametrize("what", [name for name in DAMAGES if "manifest" in name])
def test_a_damaged_manifest_of_a_former_job_is_no_absence(left: tuple[Path, Model], what: str, tmp_path: Path) -> None:
    folder, _ = left
    damage(folder, what, VERSIONS[-1])
    place = str(folder / "ckpt")
    assert is_former(place)
    with pytest.raises(Unusable, match=rf"manifest-of-2.json is damaged.*or remove {place}/version-{VERSIONS[-1]}/"):
        newest_former(place)
    (tmp_path / "next").mkdir()
    with servers(tmp_path / "next", 1, flags=("--init", place)) as group:
        assert group.processes[0].wait(60) == 2
        assert "manifest-of-2.json is damaged" in group.log(0)
    (folder / "ckpt" / f"version-{VERSIONS[-1]}" / "manifest-of-2.json").unlink()
    assert newest_former(place).version == VERSIONS[-2], "as the error has said"


def test_a_damaged_checkpoint_is_none_of_those_that_are_kept(left: tuple[Path, Model]) -> None:
    folder, _ = left
    damage(folder, "empty manifest", VERSIONS[-1])
    for kept, present in ((2, {"version-5", "version-8", "version-11"}), (1, {"version-8", "version-11"})):
        remove_beyond(str(folder / "ckpt"), kept)
        assert {path.name for path in (folder / "ckpt").glob("version-*")} == present
