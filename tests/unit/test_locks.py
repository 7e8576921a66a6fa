"""Temporary directories: one of a process that was killed is removed by the next process, one of a living process is not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainmaster.host.locks import YOUNG, scratch

MAKE = "import sys; from trainmaster.host.locks import scratch; print(scratch('thing-'), flush=True); sys.stdin.read()"


def test_what_dead_processes_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    made = []
    for _ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", MAKE], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        made.append((child, Path(child.stdout.readline().decode().strip())))
    (living, kept), (dead, left) = made
    try:
        (left / "file").write_text("x")
        dead.kill()
        dead.wait()
        young = scratch("thing-")
        assert left.exists(), "it may be of a process that is about to lock it"
        for folder in (kept, left, young):
            os.utime(folder, (0, time.time() - 2 * YOUNG))
        other = scratch("thing-")
        assert sorted(tmp_path.iterdir()) == sorted([kept, young, other])
    finally:
        for child, _ in made:
            child.communicate()
    living.wait()
