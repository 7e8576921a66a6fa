"""Programs that are started as `python` on a node that has `python3` alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster.engines.python_name import path_with_python
from trainmaster.engines.yarn.container import bootstrap as inside


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A directory for PATH with python3 and no python."""
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    (folder / "sh").symlink_to(str(shutil.which("sh")))
    return folder


def test_python_is_python3_where_there_is_no_other_and_the_log_says_so(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(bare))
    (tmp_path / ".trainmaster").mkdir()
    environ = inside._program_environment(str(tmp_path), None)
    for command in (["python", "-c", "print(6 * 7)"], ["sh", "-c", "python -c 'print(6 * 7)'"]):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        assert done.stdout == "42\n"
        assert done.stderr == f"trainmaster: this node has no python, so python3 runs: {bare}/python3\n"


def test_a_node_with_a_python_keeps_its_path(bare: Path, tmp_path: Path) -> None:
    (bare / "python").symlink_to(sys.executable)
    assert path_with_python(str(bare), str(tmp_path)) == str(bare)
    assert path_with_python(str(tmp_path), str(tmp_path)) == str(tmp_path), "nor where there is no Python at all"
    assert not os.path.exists(tmp_path / "bin")
