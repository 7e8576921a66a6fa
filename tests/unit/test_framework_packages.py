"""Frameworks that other packages add: where one is checked, how it reaches a cluster, and what its user reads where it fails.

`ring` is a package that is installed with the tests (tests/ring_framework); the others are made here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from trainmaster import frameworks, plugins
from trainmaster.client.jobs import doctor
from trainmaster.core.errors import BadInput
from trainmaster.engines import runtime_archive

TM = Path(sys.executable).with_name("tm")
FRAMEWORK = """\
from trainmaster.frameworks.contract import Placement
def ports(role, job): return ["ring"]
def environment(formation, task): return Placement({"A": "1"})
"""
Install = Callable[[str, str], str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that installs a package with a framework, for this process and for commands, and returns the framework's name."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))

    def installed(name: str, source: str) -> str:
        module = f"tests_framework_{name}"
        if source:
            (folder / f"{module}.py").write_text(source)
        metadata = folder / f"{module}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2\n")
        (metadata / "entry_points.txt").write_text(f"[{plugins.FRAMEWORKS}]\n{name} = {module}\n")
        (metadata / "RECORD").write_text(
            "".join(f"{metadata.name}/{file},,\n" for file in ("METADATA", "entry_points.txt"))
        )
        return name

    return installed


def tm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TM, *words], capture_output=True, text=True, check=False, timeout=60)


def test_a_job_runs_with_a_framework_of_an_installed_package(home: Path) -> None:
    command = ("sh", "-c", "echo $RING_PLACE of $RING_SIZE, then $RING_NEXT")
    done = tm("run", "-n", "2", "--framework", "ring", "--set", "gang=true", "--", *command)
    assert done.returncode == 0, done.stderr
    assert [line.rpartition(":")[0] for line in sorted(done.stdout.splitlines())] == [
        "worker:0 0 of 2, then 127.0.0.1",
        "worker:1 1 of 2, then 127.0.0.1",
    ]


@pytest.mark.parametrize(
    ("name", "source", "why"),
    [
        ("gone", "", "ModuleNotFoundError: No module named 'tests_framework_gone'"),
        ("crash", "1 / 0\n", "ZeroDivisionError: division by zero"),
        ("half", "def ports(role, job): return ()\n", "tests_framework_half has no function environment"),
        ("narrow", FRAMEWORK.replace("(role, job)", "(role)"), "the function ports must take two parameters: ports(role, job)"),
        ("raises", FRAMEWORK.replace('["ring"]', "job.nothing"), "ports raised AttributeError: 'Job' object has no attribute 'nothing'"),
        ("word", FRAMEWORK.replace('["ring"]', '"ring"'), "ports returned 'ring', and must return a list of names"),
    ],
)  # fmt: skip
def test_a_package_without_a_framework_is_named_and_nothing_starts(
    home: Path, install: Install, name: str, source: str, why: str
) -> None:
    install(name, source)
    done = tm("run", "--framework", name, "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: the framework {name} cannot be used: {why}  [framework-package]\n"
        f"  package tests_framework_{name} 1.2, entry point tests_framework_{name}\n"
        "  correct or remove this package\n"
    )
    assert tm("list").stdout.startswith("no jobs yet")


def test_the_doctor_names_a_broken_package(install: Install) -> None:
    name = install("ill", "import tests_no_such_module\n")
    (found,) = (finding for finding in doctor.examined() if finding.check == name)
    assert (found.state, found.place) == ("warning", "package tests_framework_ill 1.2, entry point tests_framework_ill")


@pytest.mark.parametrize(
    ("name", "placement", "why"),
    [
        ("late", "1 / 0", "environment raised ZeroDivisionError: division by zero"),
        ("number", 'Placement({"A": 1})', "environment returned {'A': 1}, and variables must be text"),
        ("copies", "Placement(copies=[{}] * 3)", "environment returned variables of 3 copies, not of 1"),
        ("nothing", "None", "environment returned None, and must return a Placement"),
    ],
)
def test_a_framework_that_fails_while_a_job_runs_ends_it_by_its_name(
    home: Path, install: Install, name: str, placement: str, why: str
) -> None:
    """The master neither dies of it nor calls it a fault of ours."""
    install(name, FRAMEWORK.replace('Placement({"A": "1"})', placement))
    done = tm("run", "-n", "2", "--framework", name, "--", "true")
    assert done.returncode == 1, done.stderr
    assert (
        f"its framework cannot be used: the framework {name} cannot be used: {why}, package tests_framework_{name} 1.2"
        in (" ".join(done.stderr.split()))
    )
    assert "masters in a row" not in done.stderr


def test_the_archive_brings_the_framework_to_a_machine_without_it(tmp_path: Path) -> None:
    """The archive's own start, in an empty environment and directory, finds the framework and the name of its package."""
    made = runtime_archive.archive(tmp_path / "archives", framework=frameworks.entry_point("ring"))
    with tarfile.open(made) as archive:
        archive.extractall(tmp_path / "runtime", filter="data")
    (tmp_path / "runtime/lib/probe.py").write_text(
        "from trainmaster import frameworks, plugins\n"
        "def main():\n"
        "    role = type('Role', (), {'counts': True})\n"
        "    print(*frameworks.load('ring').ports(role, None), plugins.package(frameworks.entry_point('ring')), frameworks.names())\n"
    )
    (tmp_path / "empty").mkdir()
    environ = {"PATH": os.environ["PATH"], "TRAINMASTER_PYTHON": sys.executable}
    command = ["sh", "../runtime/start", "probe:main"]
    done = subprocess.run(command, cwd=tmp_path / "empty", env=environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("ring trainmaster-ring 0.1 [")
    assert "'ring'" in done.stdout


def test_only_the_jobs_own_framework_travels(install: Install) -> None:
    ours = dict(runtime_archive.files())
    added = dict(runtime_archive.files(framework=frameworks.entry_point("ring")))
    assert {name.partition("/")[0] for name in added.keys() - ours.keys()} == {
        "trainmaster_ring.py", "trainmaster_ring-0.1.dist-info",
    }  # fmt: skip
    assert frameworks.entry_point("pytorch") is None
    with pytest.raises(BadInput, match=r"no framework 'rinj'\n  framework: rinj\n  did you mean ring"):
        frameworks.load("rinj")
