"""The rule by which CI leaves out full tests, and the note of the landing by which they take turns."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from rotation import ALL, LATEST, NO_TEST, REACH, TURNS, Choice, choice, is_late, summary, turn_of

ROOT = Path(__file__).parents[2]
ON_YARN = [f"tests/conformance/test_ends.py::test_{number}[yarn]" for number in range(300)]
ON_KUBERNETES = [test.replace("yarn", "kubernetes") for test in ON_YARN]
KILLS = "tests/chaos/test_yarn_kills.py::test_20_kills"


def choices(tests: list[str], *files: str, turn: int = 0) -> Counter[Choice]:
    return Counter(choice(test, test, turn, files) for test in tests)


def test_each_test_runs_once_in_a_round_of_landings_however_late_that_is() -> None:
    for first in range(5):
        chosen = [[choice(test, test, turn, []) for turn in range(first, first + TURNS)] for test in ON_YARN]
        assert all(Choice.TURN in at for at in chosen)
    assert not is_late(Choice.TURN, 1e6)


def test_a_landing_that_touches_nothing_runs_about_its_share() -> None:
    for turn in range(TURNS):
        chosen = choices(ON_YARN, "docs/tutorial.md", "CHANGELOG.md", "tests/unit/test_job.py", turn=turn)
        assert 0.6 < chosen[Choice.TURN] * TURNS / len(ON_YARN) < 1.4
        assert chosen[Choice.TURN] + chosen[Choice.NONE] == len(ON_YARN)


def test_a_change_of_an_engine_is_about_all_of_its_tests_and_touches_no_others() -> None:
    file = "src/trainmaster/engines/yarn/master/engine.py"
    assert not choices(ON_YARN, file)[Choice.NONE] + choices(ON_YARN, file)[Choice.FAR]
    assert choices(ON_KUBERNETES, file).keys() == {Choice.TURN, Choice.NONE}


@pytest.mark.parametrize(
    "file",
    [
        "agent/program.py", "master/main.py", "data/outputs.py", "client/api.py", "cli/run.py", "log/writer.py", "web/rest/logs.py",
        "engines/contract.py", "engines/packed.py", "core/plan.py", "linux.py",
    ],
)  # fmt: skip
def test_a_change_of_what_all_share_is_about_the_kills_and_reaches_every_test(file: str) -> None:
    path = f"src/trainmaster/{file}"
    assert choice(KILLS, KILLS, turn_of(KILLS) + 1, [path]) is Choice.NEAR
    assert not choices([*ON_YARN, *ON_KUBERNETES], path)[Choice.NONE]


def test_a_change_of_a_fixture_reaches_the_tests_that_have_it() -> None:
    assert choices(ON_YARN, "tests/hadoop.py").keys() == {Choice.TURN, Choice.FAR}
    assert choices(ON_KUBERNETES, "tests/hadoop.py").keys() == {Choice.TURN, Choice.NONE}
    for file in ("tests/conftest.py", "tests/conformance/engines.py", "tests/waiting.py", "constraints/dev.txt"):
        assert not choices([*ON_YARN, *ON_KUBERNETES], file)[Choice.NONE]


def test_a_test_whose_file_changes_is_near() -> None:
    assert choices(ON_YARN, "tests/conformance/test_ends.py").keys() == {Choice.TURN, Choice.NEAR}


def test_what_a_change_only_reaches_is_left_out_before_what_it_is_about() -> None:
    assert LATEST[Choice.FAR] < LATEST[Choice.NEAR]
    assert is_late(Choice.FAR, LATEST[Choice.FAR] + 1)
    assert not is_late(Choice.NEAR, LATEST[Choice.FAR] + 1)


def test_each_row_is_of_files_and_of_tests_that_there_are() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    tests = "\n".join([*(file for file in listed if file.startswith("tests/")), "[local [netns yarn kubernetes-client"])
    for path, near, far in REACH:
        assert any(re.match(path, file) for file in listed), path
        for words in {near, far} - {ALL, NO_TEST}:
            assert [word for word in re.split(r"\|(?![^(]*\))", words) if not re.search(word, tests)] == [], path


def test_what_is_left_out_is_printed_with_the_rule_and_its_turn() -> None:
    others = {test: test for test in ON_YARN if turn_of(test) != 1}
    late = dict(list(others.items())[:10])
    untouched = dict(list(others.items())[10:])
    lines = summary(untouched, late, 1)
    assert lines[0].startswith(f"rule: 1/{TURNS} of the full tests in turn; ")
    assert lines[1].startswith(
        f"turn 1 of {TURNS}: left out are {len(untouched)} full tests that the change cannot touch, 10 "
    )
    assert {line.partition(":")[0] for line in lines[2:]} == {
        f"left out until turn {turn}" for turn in range(TURNS) if turn != 1
    }


INNER = """
import pytest

@pytest.fixture(scope="module")
def cluster():
    pass

@pytest.mark.parametrize("number", range(20))
def test_alone(number):
    pass

@pytest.mark.parametrize("number", range(20))
def test_together(cluster, number):
    pass
"""


def run_inner(folder: Path, *options: str) -> list[str]:
    """Run tests of turn 0 at a landing that changes everything; return the last lines."""
    (folder / "test_inner.py").write_text(INNER)
    empty = subprocess.run(
        ["git", "hash-object", "-t", "tree", os.devnull], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    run = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", f"--rootdir={folder}", "-c",
            os.devnull, f"--basetemp={folder}/temporary", "--turn=0", f"--since={empty}", *options, "test_inner.py",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")}, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.splitlines()


@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["alone", "xdist"])
def test_an_old_landing_runs_its_turn_alone_and_says_so(tmp_path: Path, workers: list[str]) -> None:
    lines = run_inner(tmp_path, "--began=0", *workers)
    alone = sum(turn_of(f"test_inner.py::test_alone[{number}]") == 0 for number in range(20))
    together = 20 * (turn_of("test_inner.py") == 0)
    late = 40 - alone - together
    assert 0 < alone < 20
    assert f"{alone + together} passed, {late} skipped" in lines[-1]
    assert (
        f"turn 0 of {TURNS}: left out are 0 full tests that the change cannot touch, {late} for want of time" in lines
    )


def test_a_young_landing_runs_all_that_its_change_reaches(tmp_path: Path) -> None:
    assert "40 passed" in run_inner(tmp_path, "--began=1e12")[-1]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of a repository whose last landing noted turn 4, with one commit of new work."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "somebody@example.org")
    origin, work = tmp_path / "origin", tmp_path / "work"
    for folder in (".ci", "tools"):
        (origin / folder).mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "landing", origin / "tools")
    (origin / ".ci" / "landing").write_text("# a note\nturn 4\nsince 1347df311429\n")
    git(origin, "init", "-q", "-b", "main")
    commit(origin)
    git(tmp_path, "clone", "-q", str(origin), str(work))
    assert landing(work, "--check").returncode == 0, "nothing is new"
    (work / "new").touch()
    commit(work)
    return work


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "work")


def landing(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(
        ["tools/landing", *words], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("remote", [True, False], ids=["with a remote", "without"])
def test_a_landing_has_to_be_noted_once(clone: Path, remote: bool) -> None:
    start = git(clone, "rev-parse", "--short=12", "HEAD^")
    if not remote:
        git(clone, "remote", "remove", "origin")
    check = landing(clone, "--check")
    assert (check.returncode, "run tools/landing" in check.stderr) == (1, True)
    for number in range(2):  # as before CI, and again after CI has failed
        assert landing(clone).stdout == f"turn 5\nsince {start}\n"
        (clone / f"mend-{number}").touch()
        commit(clone)
        assert landing(clone, "--check").returncode == 0


def test_where_the_last_landing_ended_can_be_said(clone: Path) -> None:
    start = git(clone, "rev-parse", "--short=12", "HEAD")
    assert landing(clone, "HEAD").stdout == f"turn 5\nsince {start}\n"
