"""A run of tests that is ended by a signal leaves nothing running: no job, no server, no cluster's daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import leftovers
import pytest
import watchdog
from waiting import until

RUN = """
import os, subprocess
from pathlib import Path

import trainmaster
import watchdog
from trainmaster.clusters import daemons
from waiting import until

FOREVER = ["sleep", "1000"]

def test_forever(home, tmp_path):
    command = ["sh", "-c", "echo ready; exec sleep 1000"]
    job = trainmaster.submit({"name": "t", "roles": {"worker": {"command": command, "replicas": 2}}}, directory=tmp_path)
    until(lambda: len([task for task in job.status()["tasks"] if task["state"] == "running"]) == 2)
    subprocess.Popen(FOREVER, env={}, cwd=tmp_path, start_new_session=True)
    cluster = watchdog.CLUSTERS["hadoop"] / watchdog.run_id() / "c" / "hadoop"
    cluster.mkdir(parents=True)
    daemons.start(FOREVER, cluster, cluster / "log", daemons.environment(cluster, {}))
    Path(os.environ["READY"]).write_text(f"{watchdog.run_id()} {cluster}")
    until(lambda: False, 1000.0)
"""


@pytest.mark.parametrize(
    ("number", "options"),
    [(signal.SIGTERM, []), (signal.SIGHUP, []), (signal.SIGKILL, []), (signal.SIGKILL, ["-n1"])],
    ids=["SIGTERM", "SIGHUP", "SIGKILL", "SIGKILL-xdist"],
)
def test_a_run_of_tests_that_is_killed_leaves_no_process(
    tmp_path: Path, number: signal.Signals, options: list[str]
) -> None:
    (tmp_path / "test_forever.py").write_text(RUN)
    ready, tests, temporary = tmp_path / "ready", Path(__file__).parent.parent, tmp_path / "temporary"
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", f"--basetemp={temporary}"]
    with subprocess.Popen(
        [*command, *options, f"--rootdir={tmp_path}", "-c", os.devnull, "test_forever.py"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tests), "READY": str(ready)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # which nohup has every process ignore
    ) as process:  # fmt: skip
        try:
            until(lambda: (ready.exists() and ready.read_text()) or process.poll() is not None, what="the run")
            assert process.poll() is None, process.stdout and process.stdout.read().decode()
            run, cluster = ready.read_text().split()
            running = leftovers.of_run(run, temporary)
            assert len(running) >= 6, "a master, two agents, two programs, and one without a mark"
        finally:
            process.send_signal(number)
    until(lambda: not leftovers.of_run(run, temporary), what=lambda: leftovers.of_run(run, temporary))
    until(lambda: not Path(cluster).exists(), what=lambda: watchdog.CLUSTERS)
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _works_in(pid, cluster)]


def _works_in(pid: str, folder: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd").startswith(folder)
    except OSError:
        return False
