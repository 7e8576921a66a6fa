"""A process that outlives a run of tests, however the run ends, and ends whatever the run has started.

Fixtures end what they start, but a run that is ended by SIGKILL, SIGTERM or SIGHUP does not come to that. So each process of a run,
pytest's own and those of pytest-xdist's workers, has a watchdog, which waits for the end of that one process. The watchdog then kills the
processes that carry the run's mark in their environment, pytest-xdist's workers among them, and those that work in its temporary directory
(see `leftovers`), and takes down the run's clusters.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import leftovers

CLUSTERS = {
    "hadoop": Path(tempfile.gettempdir()) / f"trainmaster-test-clusters-{os.getuid()}",
    "kubernetes": Path(tempfile.gettempdir()) / f"trainmaster-test-kubernetes-{os.getuid()}",
    "spark": Path(tempfile.gettempdir()) / f"trainmaster-test-spark-{os.getuid()}",
}
QUIET = 0.3  # s without a marked process, after which the run has none: a dying master's agents may just start another
LONGEST = 60.0  # s that killing may take


def run_id() -> str:
    """Return this process as one name, which no other process ever has: its id and its start time."""
    return f"{os.getpid()}-{_start(os.getpid())}"


def begin(temporary: Path) -> None:
    """Mark all that this process starts from now on, and start the watchdog. `temporary`: the directory of the run's files."""
    environ = {name: value for name, value in os.environ.items() if name != leftovers.MARK}
    # Neither this process's child nor of its session: no signal to a terminal's processes ends it.
    subprocess.run(
        ["setsid", "--fork", sys.executable, __file__, run_id(), str(temporary)], env=environ, cwd="/", check=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.environ[leftovers.MARK] = run_id()


def main(run: str, temporary: Path) -> None:
    _wait_for_end(run)
    kill_run(run, temporary)
    for kind, place in CLUSTERS.items():
        if (place / run).exists():
            take_down(kind, place / run)


def kill_run(run: str, temporary: Path) -> None:
    """Kill the run's processes, again and again until there has been none for a while."""
    end, quiet_since = time.monotonic() + LONGEST, time.monotonic()
    while time.monotonic() < min(end, quiet_since + QUIET):
        if pids := leftovers.of_run(run, temporary):
            quiet_since = time.monotonic()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def take_down(kind: str, folder: Path) -> None:
    """End the clusters below `folder`, and remove it."""
    from trainmaster.clusters import hadoop, kubernetes, spark

    down = {"hadoop": hadoop.down, "kubernetes": kubernetes.down, "spark": spark.down}[kind]
    for place in folder.glob(f"*/{kind}"):
        down(folder=place)
    shutil.rmtree(folder, ignore_errors=True)


def sweep(kind: str) -> None:
    """Take down the clusters of runs that are over and whose watchdogs were killed too."""
    for folder in CLUSTERS[kind].glob("*-*"):
        pid, _, start = folder.name.partition("-")
        if _start(int(pid)) != int(start):
            take_down(kind, folder)


def _wait_for_end(run: str) -> None:
    pid, _, start = run.partition("-")
    try:
        descriptor = os.pidfd_open(int(pid))
    except OSError:  # it has ended already
        return
    if _start(int(pid)) == int(start):  # read after the open: the descriptor can only be of the process that lived now
        select.select([descriptor], [], [])


def _start(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; -1 where there is none, or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return -1 if fields[0] in (b"Z", b"X") else int(fields[19])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
