"""A program started by us and one started by its user's shell find the same around them, but for what the documents name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import TM, Engine, workers

from trainmaster.frameworks.variables import VARIABLES

pytestmark = pytest.mark.needs("submitters-place")

PROGRAM = Path(__file__).parents[1] / "programs" / "show_surroundings.py"
DOCUMENTED = {variable.name for variable in VARIABLES} | {"PYTHONUNBUFFERED"}
# What each shell, and the command that stands between, sets for itself.
SHELLS = {"_", "SHLVL", "OLDPWD"}


def documented(name: str) -> bool:
    """Whether the reference names this variable."""
    return name in DOCUMENTED or any(name.startswith(known.split("<")[0]) for known in DOCUMENTED if "<" in known)


def by_its_user(folder: Path, setting: str = "") -> dict[str, Any]:
    """What the program prints when the user's shell starts it, after the user's `setting`."""
    made = subprocess.run(
        ["/bin/sh", "-c", f"{setting}\nexec {sys.executable} {PROGRAM} an 'argument of two'"],
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=True, text=True,
    )  # fmt: skip
    return dict(json.loads(made.stdout))


def by_us(engine: Engine, command: list[str] | str, setting: str = "") -> dict[str, Any]:
    """What it prints when the same shell, after the same setting, runs `tm run`."""
    engine.write("job.yaml", json.dumps({"name": "t", "roles": workers(command)}))
    made = subprocess.run(
        ["/bin/sh", "-c", f"{setting}\nexec {TM} run job.yaml"],
        cwd=engine.folder, stdin=subprocess.DEVNULL, capture_output=True, check=False, text=True, timeout=60,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    return dict(json.loads(made.stdout))


def without_ours(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Take away the one directory that may be added to a program's path, last, which holds our packages for programs alone."""
    more = [folder for folder in ours["path"] if folder not in theirs["path"]]
    assert len(more) <= 1
    for folder in more:
        assert ours["environment"]["PYTHONPATH"].split(":")[-1] == folder
        assert ours["last"] == [["trainmaster"], ["elasticdl", "ps", "runtime", "zoo"]]
        ours["path"].remove(folder)
        left = ours["environment"]["PYTHONPATH"].removesuffix(folder).rstrip(":")
        ours["environment"]["PYTHONPATH"] = left
        if not left:
            del ours["environment"]["PYTHONPATH"]


SETTINGS = {
    "as it is": "",
    "limits": "ulimit -Sn 200; ulimit -Sc 0; ulimit -Ss 4096; ulimit -v 8000000",
    "umask": "umask 027",
    "signals": "trap '' HUP USR1 QUIT",
    "environment": "export A_NAME='value with \"quotes\" and\n a line' EMPTY= PYTHONPATH=/somewhere TERM=dumb LANG=C PS1=x",
}


@pytest.mark.parametrize("shell", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_ours_and_theirs_are_the_same(engine: Engine, setting: str, shell: bool) -> None:
    arguments = [str(PROGRAM), "an", "argument of two"]
    command = [sys.executable, *arguments]
    text = f"{sys.executable} {PROGRAM} an 'argument of two'"
    theirs = by_its_user(engine.folder, SETTINGS[setting])
    ours = by_us(engine, text if shell else command, SETTINGS[setting])
    without_ours(ours, theirs)
    changed = {
        name: (theirs[name], ours[name])
        for name in theirs
        if name not in ("environment", "descriptors", "last") and theirs[name] != ours[name]
    }
    assert not changed
    assert sorted(ours["descriptors"]) == sorted(theirs["descriptors"]) == ["0", "1", "2"]
    assert {ours["descriptors"][number] for number in ("1", "2")} == {"pipe"}
    environment, wanted = ours["environment"], theirs["environment"]
    added = {name for name in environment.keys() - wanted.keys() if not documented(name)}
    lost = wanted.keys() - environment.keys()
    altered = {
        name
        for name in wanted.keys() & environment.keys()
        if wanted[name] != environment[name] and not documented(name)
    }
    assert not (added | lost | altered) - SHELLS, (added, lost, altered)


def test_a_program_started_from_python_finds_the_same(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_PYTHON", "yes")
    job = engine.submit(workers([sys.executable, str(PROGRAM)]))
    job.succeeded()
    ours = json.loads(job.lines()[0])
    theirs = json.loads(subprocess.run(
        [sys.executable, str(PROGRAM)], cwd=engine.folder, stdin=subprocess.DEVNULL, capture_output=True, check=True, text=True,
    ).stdout)  # fmt: skip
    without_ours(ours, theirs)
    for name in ("limits", "umask", "ignored", "blocked", "capabilities", "cwd", "nice", "oom", "path", "dispositions"):
        assert ours[name] == theirs[name], name
    assert ours["environment"]["FROM_PYTHON"] == "yes"
    assert not [name for name in os.environ if name not in ours["environment"]]


def test_the_limits_of_a_program_are_those_of_its_submitter_not_of_a_later_master(engine: Engine) -> None:
    """A master that was taken over hands the same on."""
    from conformance.engines import processes_of

    from trainmaster.host import processes

    wait = f"while ! test -e '{engine.folder}/go'; do sleep 0.02; done"
    flaky = f"ulimit -Sn; umask; test $TRAINMASTER_ATTEMPT = 2 || {{ echo ready; {wait}; exit 1; }}"
    engine.write("job.yaml", json.dumps({"name": "t", "roles": workers(flaky)}))
    made = subprocess.run(
        ["/bin/sh", "-c", f"ulimit -Sn 123; umask 037; exec {TM} submit job.yaml"],
        cwd=engine.folder,
        capture_output=True,
        check=True,
        text=True,
    )
    from conformance.engines import Submitted

    import trainmaster

    job = Submitted(trainmaster.attach(made.stdout.split()[0]))
    engine.jobs.append(job)
    job.until_line("ready")
    for made_ in processes_of(job.id):
        if made_.kind == processes.MASTER:
            processes.send(made_.process, 9)
    job.until_status("a new master", lambda status: status["epoch"] == 2)
    (engine.folder / "go").touch()
    job.succeeded()
    assert job.lines("worker:0", 2) == job.lines("worker:0", 1)[:2] == ["123", "0037"]
