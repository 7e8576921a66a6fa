"""The cost of keeping jobs alive: a sweep that finds nothing, which each command begins with, and the way to a new master.

    python benchmarks/upkeep.py [--runs 5]

A master is killed while the programs of its job run; the time is until its successor answers readers. There is no peer: torchrun has no
coordinator that another one takes over from.
"""

from __future__ import annotations

import os
import signal
import time

import figures

import trainmaster
from trainmaster.engines.local.sweep import sweep
from trainmaster.host import processes

LIMIT = 60.0  # s
SWEEPS = 20


def swept() -> float:
    """Seconds of the quickest of some sweeps."""
    times = []
    for _ in range(SWEEPS):
        began = time.perf_counter()
        sweep()
        times.append(time.perf_counter() - began)
    return min(times)


def until_epoch(run: trainmaster.Run, epoch: int) -> float:
    """The moment at which the master of that epoch answers."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        status = run.status()
        if status.get("epoch") == epoch and status["state"] == "running" and status["tasks"][0]["state"] == "running":
            return time.monotonic()
        time.sleep(0.01)
    raise RuntimeError(f"no master of epoch {epoch} answers: {status}")


def measure(runs: int) -> list[figures.Row]:
    sweeps: list[float] = []
    ways: list[float] = []
    with figures.place() as environ:
        os.environ.update(environ)
        role = {
            "command": "sleep 1000",
            "replicas": 2,
            "resources": {"cores": 0.01, "memory": "16MiB"},
            "stop": {"grace": "1s"},
        }
        run = trainmaster.submit({"name": "upkeep", "roles": {"worker": role}})
        try:
            until_epoch(run, 1)
            for number in range(runs):
                sweeps.append(swept())
                (master,) = {
                    made.process for made in processes.living(run.id, processes.MASTER)
                }  # marked by itself and its starter
                began = time.monotonic()
                processes.send(master, signal.SIGKILL)
                ways.append(until_epoch(run, number + 2) - began)
        finally:
            run.kill()
            run.wait(LIMIT, check=False)
    return [
        figures.Row("a sweep beside one job", sweeps, "s", 0.002),
        figures.Row("a killed master to its successor's answer, 2 workers", ways, "s", 1.0),
    ]


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
