"""Handing a job to the process that waits to become its master."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainmaster.engines.local import launch
from trainmaster.host import places, processes


@pytest.mark.parametrize("dead", [False, True])
def test_a_job_is_begun_before_its_master_has_done_anything(
    tmp_path: Path, home: Any, monkeypatch: pytest.MonkeyPatch, dead: bool
) -> None:
    """A master that was killed before it could say so left a job that nobody took up."""
    spawned: list[str] = []
    monkeypatch.setattr(launch, "start_master", lambda storage, told: spawned.append(storage))
    storage, told = str(tmp_path / "t-aaaaaa"), {"token": "secret"}
    ours, theirs = socket.socketpair()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as master, theirs:
        monkeypatch.setattr(launch, "_prepared", (ours, master.pid))
        if dead:
            master.kill()
            master.wait()
            theirs.close()
        launch._hand_over(storage, told)
        assert places.live_jobs() == ["t-aaaaaa"]
        if dead:
            assert spawned == [storage]
        else:
            assert json.loads(theirs.recv(1024)) == [storage, told]
            assert [mark.process.pid for mark in processes.living("t-aaaaaa", processes.MASTER)] == [master.pid]
    places.set_live("t-aaaaaa", False)
    places.remove_job_dir("t-aaaaaa")


INTERRUPTED = """
import os, socket
from trainmaster.engines.local import launch
launch._serve_as_master = lambda *arguments: 0
ours, theirs = socket.socketpair()
ours.close()
if not os.fork():
    launch._fork_master(theirs, None, ())
os.wait()
"""


def test_a_command_that_is_interrupted_while_its_master_is_forked_leaves_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
