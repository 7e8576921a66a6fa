"""`tm top` on a terminal: a real job, drawn until it ends; and the screens that it draws."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from trainmaster.client.jobs.past import Facts
from trainmaster.client.watch.top import jobs_screen
from trainmaster.core.errors import StorageFailed
from trainmaster.log.index import Headline

TM = [sys.executable, "-m", "trainmaster.cli"]


def on_terminal(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Run a command on a terminal of its own; return its status and all that it drew."""
    ours, its = pty.openpty()
    with subprocess.Popen(
        [*TM, *arguments], stdin=its, stdout=its, stderr=its, cwd=cwd, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(its)
        drawn = b""
        try:
            while piece := os.read(ours, 65536):
                drawn += piece
        except OSError:  # the terminal's other end is closed
            pass
        finally:
            os.close(ours)
        return process.wait(120), drawn.decode(errors="replace")


def test_a_job_is_drawn_until_it_ends(tmp_path: Path, home: object) -> None:
    job = subprocess.run(
        [*TM, "submit", "--name", "drawn", "--", "sh", "-c", "sleep 1; exit 3"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    ).stdout.strip()
    status, drawn = on_terminal("top", job, cwd=tmp_path)
    assert status == 0
    assert "worker:0" in drawn
    assert f"{job} failed" in drawn
    assert "exited with status 3" in drawn


def test_without_a_terminal_it_is_refused(tmp_path: Path, home: object) -> None:
    refused = subprocess.run([*TM, "top"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert refused.returncode == 2
    assert "tm status JOB --json" in refused.stderr


def test_the_list_asks_running_jobs_and_survives_one_that_cannot_be_read() -> None:
    def status(job: str) -> Facts:
        if job == "broken-1":
            raise StorageFailed("its disk is away", place="/data", mend="bring it back", anchor="storage-failed")
        tasks = [{"state": "running", "progress": 0.5, "step": 7, "cpu": 1.5, "memory": 2**30}]
        return {"tasks": tasks, "waiting": "", "phase": "1 of 1 running", "state": "running", "submitted": 90.0}

    jobs = [
        Headline("digits-1", submitted=90.0),
        Headline("broken-1", submitted=80.0),
        Headline("old-1", state="failed", submitted=1.0, ended=2.0),
    ]
    out = io.StringIO()
    Console(file=out, width=160).print(jobs_screen(jobs, status, 100.0))
    digits, broken, old = out.getvalue().splitlines()[2:]
    assert "2 running" in out.getvalue()
    assert all(text in digits for text in ("digits-1", "10 s ago", "50 % step 7", "1.5", "1 GiB", "1 of 1 running"))
    assert "its disk is away" in broken
    assert "failed" in old
