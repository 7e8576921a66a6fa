"""The checkpoints that a job has kept in a directory are read without the job, and an error names the file that is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainmaster.zoo.errors import BadModel
from trainmaster.zoo.stored_sets import states_in


def write_states(folder: Path) -> dict[str, Path]:
    """Write a set of three states, and return the files."""
    names = [f"state-{number:08}.{kind}" for number in (1, 2, 3) for kind in ("bin", "json")]
    (folder / "files").mkdir()
    for name in names:
        (folder / "files" / name).write_text(name)
    rows = [{"path": name, "size": len(name), "at": f"files/{name}"} for name in names]
    (folder / "00000001.json").write_text(json.dumps({"v": "1.0", "files": rows}))
    return {name: folder / "files" / name for name in names}


@pytest.mark.parametrize("number", [1, 3])
def test_a_set_is_read_without_its_damaged_states_which_are_named(
    tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = write_states(tmp_path)[f"state-{number:08}.bin"]
    damaged.write_text("cut")
    with states_in(str(tmp_path)) as folder:
        names = {path.name for path in Path(folder).iterdir()}
    assert names == {f"state-{other:08}.{kind}" for other in {1, 2, 3} - {number} for kind in ("bin", "json")}
    assert capsys.readouterr().err == f"trainmaster: a damaged checkpoint is passed over: {damaged} has 3 bytes of 18\n"


def write_set(folder: Path, number: int) -> Path:
    """Write a set of one file, and return the file."""
    file = folder / f"files/{number}.bin"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"x" * 1234)
    row = {"path": "state-00000001.bin", "size": 1234, "at": f"files/{number}.bin"}
    (folder / f"{number:08}.json").write_text(json.dumps({"v": "1.0", "files": [row]}))
    return file


def test_the_newest_set_that_is_whole_is_read(tmp_path: Path) -> None:
    older = write_set(tmp_path, 1)
    write_set(tmp_path, 2).write_bytes(b"x" * 100)
    with states_in(str(tmp_path)) as folder:
        assert (Path(folder) / "state-00000001.bin").resolve() == older


def test_where_no_set_is_whole_the_newest_ones_damage_is_reported(tmp_path: Path) -> None:
    write_set(tmp_path, 1).unlink()
    file = write_set(tmp_path, 2)
    file.write_bytes(b"x" * 100)
    with pytest.raises(BadModel) as raised, states_in(str(tmp_path)):
        pass
    assert str(raised.value).splitlines() == [
        f"no checkpoint in {tmp_path} is whole: {file} has 100 bytes of 1,234",
        "  --checkpoint_dir_for_init",
        "  name another checkpoint, an exported model, or a file of weights",
    ]
    (tmp_path / "00000003.json").write_text('{"v": "1.0", "fi')
    with pytest.raises(BadModel, match=r"00000003\.json is cut short, or is not a manifest"), states_in(str(tmp_path)):
        pass
