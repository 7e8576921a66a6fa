"""`tm image build`: the recipe, the choice of the tool, and what it is given. The tools are stand-ins that tell what they got."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from trainmaster.clusters import recipes
from trainmaster.engines.kubernetes.container.entry import PUBLISHED

STAND_IN = """\
#!/bin/sh
if [ "$1" = info ]; then
  [ -e "$0.stopped" ] || exit 0
  echo "Cannot connect to the daemon. Is it running?" >&2
  exit 1
fi
for last; do :; done
printf '%s\\n' "$0" "$@" > "$TOLD/arguments"
cp "$last"/* "$TOLD"
echo building
exit ${STATUS-0}
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with none of the tools, and a place where they tell what they got."""
    folder, told = tmp_path / "bin", tmp_path / "told"
    folder.mkdir()
    told.mkdir()
    for name in ("sh", "cp"):
        (folder / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("TOLD", str(told))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def install(machine: Path, *tools: str) -> None:
    for tool in tools:
        path = machine / "bin" / tool
        path.write_text(STAND_IN)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)


def tm(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainmaster.cli", "image", "build", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def told(machine: Path, name: str) -> str:
    return (machine / "told" / name).read_text()


def test_without_a_tool_one_error_names_them_and_the_recipe_is_printed(machine: Path) -> None:
    done = tm("team/torch:1")
    assert (done.returncode, done.stderr.count("error: ")) == (2, 1)
    assert "none of docker, podman, buildah, nerdctl is on PATH" in done.stderr
    assert "--print" in done.stderr
    done = tm("--print", "--base", "debian:12")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "FROM debian:12" in lines
    assert "USER 1000:1000" in lines
    assert "requirements" not in done.stdout
    assert "@" not in done.stdout
    assert "[" not in done.stdout.replace("sys.version_info[", "")


@pytest.mark.parametrize("tools", [["docker", "podman"], ["podman", "buildah"], ["buildah"], ["nerdctl"]])
def test_the_first_tool_that_is_there_builds_it(machine: Path, tools: list[str]) -> None:
    install(machine, *tools)
    (machine / "needs.txt").write_text("numpy\n")
    done = tm("team/torch:1", "-r", "needs.txt", "--", "--network", "host")
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout == f"team/torch:1 is built; push it to where the cluster fetches it: {tools[0]} push team/torch:1\n"
    )
    assert "building" in done.stderr
    program, verb, *arguments, folder = told(machine, "arguments").splitlines()
    assert os.path.basename(program) == tools[0]
    assert (verb,) == recipes.TOOLS[tools[0]]
    assert arguments == ["--tag", "team/torch:1", "--file", f"{folder}/Containerfile", "--network", "host"]
    assert not Path(folder).exists()
    assert told(machine, "requirements.txt") == "numpy\n"
    assert "--requirement /tmp/requirements.txt" in told(machine, "Containerfile")


def test_a_tool_whose_daemon_does_not_run_is_passed_over(machine: Path) -> None:
    install(machine, "docker", "buildah")
    (machine / "bin" / "docker.stopped").touch()
    done = tm("team/torch:1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tool"] == "buildah"
    (machine / "bin" / "buildah.stopped").touch()
    done = tm("team/torch:1")
    assert (done.returncode, done.stderr.count("error: ")) == (2, 1)
    assert "docker: Cannot connect to the daemon. Is it running?; buildah: Cannot" in done.stderr


def test_the_runtime_is_where_init_containers_look_for_it(machine: Path) -> None:
    install(machine, "podman")
    done = tm("team/runtime:1", "--runtime", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"image": "team/runtime:1", "tool": "podman"}
    assert f"ADD {recipes.ARCHIVE} {PUBLISHED}/\n" in told(machine, "Containerfile")
    with tarfile.open(machine / "told" / recipes.ARCHIVE) as archive:
        assert {"start", "begin.py", "lib/trainmaster/__init__.py"} <= set(archive.getnames())


def test_what_is_wrong_is_reported(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(machine, "podman")
    for words, status, said in (
        (["x", "--with", "kaniko"], 2, "there is no tool 'kaniko'"),
        (["x", "--with", "docker"], 2, "docker is not on PATH"),
        (["x", "-r", "no.txt"], 2, "the file no.txt does not exist"),
        (["x", "-r", "no.txt", "--runtime"], 2, "no packages of programs"),
        ([], 2, "missing argument 'NAME[:TAG]'"),
    ):
        done = tm(*words)
        assert (done.returncode, done.stderr.count("error: ")) == (status, 1), words
        assert said in done.stderr
    monkeypatch.setenv("STATUS", "7")
    done = tm("x")
    assert done.returncode == 3
    assert "podman could not build x: it exited with 7" in done.stderr
