"""`tm zoo` and `tm elasticdl zoo`: what a zoo begins with, and how its image is built and pushed. The tools are stand-ins that tell what
they were called with.
"""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from trainmaster.cli.tm import tm
from trainmaster.core.errors import BadInput
from trainmaster.integrations.elasticdl import zoos
from trainmaster.zoo.model_file import locate

STAND_IN = """\
#!/bin/sh
if [ "$1" = info ]; then
  [ -e "$0.stopped" ] || exit 0
  echo "Cannot connect to the daemon. Is it running?" >&2
  exit 1
fi
printf '%s\\n' "$(basename "$0")" "$@" > "$TOLD"
exit ${STATUS-0}
"""


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory, and a PATH with none of the tools that build images."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "basename"):
        (folder / name).symlink_to(next(path for path in (Path("/bin", name), Path("/usr/bin", name)) if path.exists()))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def install(machine: Path, *tools: str) -> None:
    for tool in tools:
        path = machine / "bin" / tool
        path.write_text(STAND_IN)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)


def told(machine: Path) -> list[str]:
    return (machine / "told").read_text().split()


def says(*words: str) -> Result:
    return CliRunner().invoke(tm, words)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The same in a process, whose standard error the tools write to."""
    command = [sys.executable, "-m", "trainmaster.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def refused(*words: str) -> str:
    error = says(*words).exception
    assert isinstance(error, BadInput)
    return str(error)


@pytest.mark.parametrize("model", zoos.models())
def test_a_zoo_begins_with_a_model_its_test_and_a_recipe(model: str, machine: Path) -> None:
    done = says("--json", "zoo", "init", "zoo", "--model", model)
    assert done.exit_code == 0, done.output
    names = json.loads(done.stdout)["files"]
    assert {"Containerfile", "requirements.txt", "learning.py", "data.py", f"{model}/test_{model}.py"} <= set(names)
    recipe = (machine / "zoo/Containerfile").read_text()
    assert recipe.splitlines()[-1] == "COPY . /model_zoo"
    assert "COPY requirements.txt /tmp/requirements.txt" in recipe
    assert (machine / "zoo/requirements.txt").read_text().strip()


@pytest.mark.parametrize("model", zoos.models())
def test_the_printed_commands_name_what_was_written(model: str, machine: Path) -> None:
    """They are run word for word in `tests/frameworks/test_zoo_models.py`."""
    printed = says("zoo", "init", "a zoo", "--model", model).stderr.splitlines()
    assert printed[0] == "train it, where requirements.txt is installed:"
    enter, write, train = (shlex.split(line) for line in printed[1:])
    assert enter == ["cd", "a zoo"]
    assert write[0] == "python"
    assert (machine / "a zoo" / write[1]).is_file()
    zoo, definition = (train[train.index(flag) + 1] for flag in ("--model_zoo", "--model_def"))
    file, _, function = locate(str(machine / "a zoo" / zoo), definition, "model_def")
    assert function in compile(Path(file).read_text(), file, "exec").co_names


def test_commands_are_printed_for_the_present_directory_too(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "empty").mkdir()
    monkeypatch.chdir(machine / "empty")
    assert says("zoo", "init").stderr.splitlines()[1] == "  python points/data.py data"


def test_a_directory_that_is_not_empty_is_left_alone(machine: Path) -> None:
    (machine / "zoo").mkdir()
    (machine / "zoo/mine.py").write_text("mine")
    assert "zoo is not empty" in refused("zoo", "init", "zoo")
    assert "zoo/mine.py is not a directory" in refused("zoo", "init", "zoo/mine.py")
    assert "did you mean points?" in refused("zoo", "init", "other", "--model", "pints")
    assert sorted(path.name for path in machine.iterdir()) == ["bin", "zoo"]
    assert (machine / "zoo/mine.py").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_reported(machine: Path) -> None:
    assert "/proc/zoo cannot be written: No such file or directory" in refused("zoo", "init", "/proc/zoo")
    (machine / "Dockerfile").mkdir()
    assert "Dockerfile cannot be written: Is a directory" in refused("elasticdl", "zoo", "init")


def test_the_models_there_are_can_be_listed() -> None:
    assert says("zoo", "init", "--list").stdout.split() == list(zoos.models())
    assert "points" in zoos.models()


def test_an_image_is_built_by_the_first_tool_that_works(machine: Path) -> None:
    says("zoo", "init", "zoo")
    assert "none of docker, podman, buildah, nerdctl is on PATH" in refused("zoo", "build", "zoo", "--image", "x:1")
    install(machine, "docker", "buildah")
    (machine / "bin/docker.stopped").touch()
    done = run("zoo", "build", "zoo", "--image", "x:1")
    assert told(machine) == ["buildah", "bud", "--tag", "x:1", "--file", "zoo/Containerfile", "zoo"]
    assert done.stdout == "x:1 is built with buildah; push it: tm zoo push x:1\n"
    (machine / "bin/buildah.stopped").touch()
    message = refused("zoo", "build", "zoo", "--image", "x:1")
    assert "docker: Cannot connect to the daemon. Is it running?; buildah: Cannot connect" in message
    assert "has no Containerfile and no Dockerfile" in refused("zoo", "build", "bin", "--image", "x:1")


def test_an_image_is_pushed_and_a_failure_told(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(machine, "podman")
    assert run("zoo", "push", "registry.example.org/x:1").returncode == 0
    assert told(machine) == ["podman", "push", "registry.example.org/x:1"]
    monkeypatch.setenv("STATUS", "3")
    done = run("zoo", "push", "x:1")
    assert done.returncode == 3
    assert "podman could not push x:1: it exited with 3" in done.stderr


def test_elasticdl_s_commands_make_the_same_of_an_existing_zoo(machine: Path) -> None:
    (machine / "model_zoo").mkdir()
    (machine / "wheels").mkdir()
    (machine / "model_zoo/requirements.txt").write_text("numpy\n")
    words = [
        "--model_zoo=model_zoo",
        "--base_image=python:3.11",
        "--local_pkg_dir=wheels",
        "--extra_pypi_index=https://pip.example.org",
    ]
    assert says("elasticdl", "zoo", "init", *words).exit_code == 0
    recipe = (machine / "Dockerfile").read_text().splitlines()
    assert recipe[1] == "FROM python:3.11"
    assert "COPY model_zoo/requirements.txt /tmp/requirements.txt" in recipe
    assert "COPY wheels/*.whl /tmp/wheels/" in recipe
    assert (
        sum(
            line.startswith("RUN PIP_EXTRA_INDEX_URL=https://pip.example.org python3 -m pip install") for line in recipe
        )
        == 2
    )
    assert recipe[-1] == "COPY model_zoo /model_zoo"
    install(machine, "docker")
    assert run("elasticdl", "zoo", "build", "--image=x:1", ".").returncode == 0
    assert told(machine) == ["docker", "build", "--tag", "x:1", "--file", "Dockerfile", "."]
    assert run("elasticdl", "zoo", "push", "x:1").returncode == 0
    assert "nowhere is not a directory" in refused("elasticdl", "zoo", "init", "--model_zoo=nowhere")


@pytest.mark.parametrize(
    ("names", "is_added"), [("numpy\ntensorflow-datasets\n", True), ("numpy\ntensorflow-cpu==2.15.1\n", False)]
)
def test_an_image_of_elasticdl_s_has_tensorflow(names: str, is_added: bool, machine: Path) -> None:
    """ElasticDL's own package brought it, and its zoo's requirements do not name it."""
    (machine / "requirements.txt").write_text(names)
    assert "nothing to do here" in says("elasticdl", "zoo", "init", "--cluster_spec=x.py").output
    assert ("ENV TF_USE_LEGACY_KERAS=1" in (machine / "Dockerfile").read_text()) is is_added
