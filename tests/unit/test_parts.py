"""A test that needs a part of the machine that is missing is told as not run, with the line that installs it; under CI it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGES = "apt-get install containerd runc"
TESTS = f"""
import pytest
from hadoop import own_hadoop
from trainmaster.clusters.hadoop import Settings
from trainmaster.core.errors import BadInput

@pytest.mark.xdist_group("hadoop")
def test_of_a_group():
    raise AssertionError("it ran")

@pytest.fixture(scope="session")
def cluster():
    with own_hadoop(Settings()) as started:
        yield started

def test_first_with_a_cluster(cluster):
    raise AssertionError("it ran")

def test_second_with_a_cluster(cluster):
    raise AssertionError("it ran")

def test_of_a_real_kubernetes():
    mend = "{PACKAGES}; or have nodes that only say that they run pods: --nodes 0 --simulated 10"
    raise BadInput("a Kubernetes needs what is not here", mend=mend, anchor="no-kubernetes-parts")

def test_that_needs_nothing():
    pass
"""
REFUSED = """
from trainmaster.core.errors import BadInput

def test_whose_job_is_refused():
    raise BadInput("there is no such queue", anchor="no-queue")
"""


def run_pytest(folder: Path, tests: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run these tests under the project's conftest, on a machine that has no Java."""
    (folder / "test_inner.py").write_text(tests)
    environ = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", f"--rootdir={folder}", "-c",
            os.devnull, f"--basetemp={folder}/temporary", "test_inner.py",
        ],
        env={**environ, "PYTHONPATH": str(Path(__file__).parent.parent), "JAVA_HOME": "/nowhere", **variables},
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_test_whose_part_is_missing_is_named_below_the_line_that_installs_it(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, TESTS)
    lines = run.stdout.splitlines()
    assert run.returncode == 0, run.stdout
    assert "1 passed, 4 skipped" in lines[-1]
    kubernetes, java = (at for at, line in enumerate(lines) if " tests not run -" in line)
    assert lines[kubernetes + 1 : kubernetes + 4] == [
        "a Kubernetes needs what is not here", PACKAGES, "    test_inner.py::test_of_a_real_kubernetes",
    ]  # fmt: skip
    assert lines[java + 1] == "there is no Java in JAVA_HOME (/nowhere), which Hadoop needs"
    assert "apt-get install openjdk" in lines[java + 2]
    assert lines[java + 3 : java + 6] == [
        f"    test_inner.py::test_{name}" for name in ("first_with_a_cluster", "of_a_group", "second_with_a_cluster")
    ]


def test_under_ci_a_missing_part_is_a_failure(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, TESTS, CI="true")
    assert run.returncode == 1, run.stdout
    assert "1 passed" in run.stdout
    assert run.stdout.count("apt-get install openjdk") >= 3
    assert PACKAGES in run.stdout
    assert " tests not run -" not in run.stdout


def test_an_error_about_anything_else_is_not_taken_for_a_missing_part(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, REFUSED)
    assert run.returncode == 1, run.stdout
    assert "there is no such queue" in run.stdout


def test_a_machine_without_a_browser(tmp_path: Path) -> None:
    test = "import pytest\n\n@pytest.mark.xdist_group('browser')\ndef test_in_a_browser():\n    raise AssertionError('it ran')\n"
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "setsid").symlink_to("/usr/bin/setsid")
    result = run_pytest(tmp_path, test, PATH=str(programs))
    assert result.returncode == 0, result.stdout
    assert (
        "there is no Chromium on the path\napt-get install chromium\n    test_inner.py::test_in_a_browser"
        in result.stdout
    )
