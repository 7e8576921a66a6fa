"""An engine whose containers are processes of this machine, made outside of the package by its contract alone."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import trainmaster_processes as processes
from waiting import until

import trainmaster

WORKER = """
import os, pathlib, time
place = pathlib.Path(os.environ["PLACE"])
(place / (os.environ["TRAINMASTER_ROLE"] + "-" + os.environ["TRAINMASTER_INDEX"] + "." + os.environ["TRAINMASTER_ATTEMPT"])).touch()
while not (place / "go").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(processes.FOLDER, str(tmp_path / "jobs"))
    for name in ("place", "empty"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return tmp_path / "place"


def submitted(place: Path, **role: object) -> trainmaster.Run:
    environ = {"PLACE": str(place)}
    command = [sys.executable, "-c", WORKER]
    roles = {"worker": {"command": command, "env": environ, "replicas": 2, **role}}
    return trainmaster.submit({"name": "outside", "roles": roles}, engine="processes")


@pytest.mark.usefixtures("home")
def test_a_job_runs_and_a_container_that_dies_is_replaced(place: Path) -> None:
    run = submitted(place)
    until(lambda: {path.name for path in place.iterdir()} == {"worker-0.1", "worker-1.1"}, what=run.status)
    pids = processes.living(run.id)
    os.kill(next(pid for path, pid in pids.items() if path.name == "worker:1.1"), signal.SIGKILL)
    until(lambda: (place / "worker-1.2").exists(), what=run.status)
    (place / "go").touch()
    assert run.wait(120)["state"] == "succeeded"
    assert run.status()["restarts"] == 1
    until(lambda: not any(processes.living(run.id).values()))


@pytest.mark.usefixtures("home")
def test_a_job_that_is_killed_leaves_no_process(place: Path) -> None:
    run = submitted(place, restart={"scope": "group"})
    until(lambda: len([*place.iterdir()]) == 2, what=run.status)
    run.kill()
    assert run.wait(120, check=False)["state"] == "killed"
    until(lambda: not any(processes.living(run.id).values()))
