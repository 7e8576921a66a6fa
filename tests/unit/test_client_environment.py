"""`environment:` on this machine: programs find its interpreter first."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from trainmaster.client.spec.environment import activated
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Environment

MINE = {"PATH": os.environ["PATH"], "PYTHONHOME": "/elsewhere"}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A directory that looks like an environment: its `hello` says where it is."""
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "hello").write_text('#!/bin/sh\necho "from $VIRTUAL_ENV"\n')
    (tmp_path / "env" / "bin" / "hello").chmod(0o755)
    return tmp_path / "env"


def said(environ: dict[str, str], *command: str) -> str:
    return subprocess.run(["/usr/bin/env", *command], env=environ, capture_output=True, text=True, check=True).stdout


def test_none_changes_nothing(tmp_path: Path) -> None:
    assert activated(Environment(), tmp_path, MINE) == MINE


def test_a_path_is_activated(tmp_path: Path, made: Path) -> None:
    environ = activated(Environment(path="env"), tmp_path, MINE)
    assert said(environ, "hello") == f"from {made}\n"
    assert "PYTHONHOME" not in environ


def test_an_archive_is_unpacked_once(tmp_path: Path, made: Path, home, capsys) -> None:
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(made, ".")
    first = activated(Environment(archive="env.tar.gz"), tmp_path, MINE)
    place = Path(first["VIRTUAL_ENV"])
    assert capsys.readouterr().err.startswith(f"making the environment of {tmp_path}/env.tar.gz")
    assert said(first, "hello") == f"from {place}\n"
    assert place.is_relative_to(home.state)
    (place / "mark").touch()
    assert activated(Environment(archive="env.tar.gz"), tmp_path, MINE) == first
    assert capsys.readouterr().err == ""
    assert (place / "mark").exists()
    (place / ".whole").unlink()  # whoever made it died
    activated(Environment(archive="env.tar.gz"), tmp_path, MINE)
    assert not (place / "mark").exists()


@pytest.mark.full
def test_requirements_are_installed_once_for_each_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is the python3 that programs find, not the one that runs us. No module of the present directory is taken for Python's."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for name in ("venv", "json", "ensurepip", "pip", "sys", "subprocess"):
        (elsewhere / f"{name}.py").write_text("raise SystemExit('a module of whoever writes here')")
    package = tmp_path / "package"
    package.mkdir()
    (package / "pyproject.toml").write_text(
        "[project]\nname='told'\nversion='1'\n[build-system]\nrequires=[]\nbuild-backend='b'\nbackend-path=['.']\n"
    )
    (package / "b.py").write_text(BACKEND)
    (tmp_path / "req.txt").write_text(f"{package}\n")
    environ = activated(Environment(requirements="req.txt"), tmp_path, {"PATH": os.environ["PATH"]})
    assert said(environ, "python", "-c", "import told; print(told.WORD)") == "here\n"
    assert activated(Environment(requirements="req.txt"), tmp_path, {"PATH": os.environ["PATH"]}) == environ
    (tmp_path / "bin").mkdir()
    shim = tmp_path / "bin" / "python3"
    shim.write_text(f'#!/bin/sh\n[ "$2" != -c ] || exec echo 3.99\nexec {sys.executable} "$@"\n')
    shim.chmod(0o755)
    other = {"PATH": f"{shim.parent}:{os.environ['PATH']}"}
    (tmp_path / "none.txt").write_text("")
    second = activated(Environment(requirements="none.txt"), tmp_path, other)
    assert second["VIRTUAL_ENV"] != environ["VIRTUAL_ENV"]
    assert activated(Environment(requirements="none.txt"), tmp_path, other) == second


BACKEND = """
import zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "told-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
        wheel.writestr("told.py", "WORD = 'here'\\n")
        wheel.writestr("told-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: told\\nVersion: 1\\n")
        wheel.writestr("told-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: b\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("told-1.dist-info/RECORD", "")
    return name
"""


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        (Environment(path="nowhere"), "environment.path"),
        (Environment(archive="nowhere.tar"), "environment.archive"),
        (Environment(requirements="bad.txt"), "environment.requirements"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, wanted: Environment, place: str) -> None:
    (tmp_path / "bad.txt").write_text("./no-such-directory\n")
    with pytest.raises(BadInput, match=place):
        activated(wanted, tmp_path, MINE | {"PYTHONHOME": ""})
