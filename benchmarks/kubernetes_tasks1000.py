"""A job of 1,000 tasks on a Kubernetes of 500 simulated nodes: granted, preempted in part, granted again, finished.

    python benchmarks/kubernetes_tasks1000.py [--runs 3]

API server, etcd, scheduler and controllers are real, and share the machine with the rest; nodes are simulated: their pods run nothing.
The master is the real one, in a process of its own beside the client; the 1,000 agents are channels of this process, really connected.
Measured: from the event `asked` to the last pod's being there, and how many requests the API server refused as too many; the master's
proportional set size with all agents connected; and the way through a preemption of 50 tasks by pods of higher priority to the job's end.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import figures

from trainmaster.clusters import kubernetes
from trainmaster.clusters.kubernetes import Settings

sys.path.append(str(figures.ROOT / "tests"))
from many_tasks import IMAGE, LIMIT, Told, submitted, through

NODES, TASKS, TAKEN = 500, 1000, 50


def one() -> Told:
    """One run, on a cluster of its own."""
    with figures.place() as environ, TemporaryDirectory(prefix="bench-") as folder:
        settings, there = Settings(nodes=0, simulated=NODES), Path(folder, "kubernetes")
        cluster = kubernetes.up(settings, folder=there, say=lambda line: print(line, file=sys.stderr))
        try:
            os.environ.update({**environ, **cluster.environ, "TRAINMASTER_KUBERNETES_IMAGE": IMAGE})
            run = submitted(TASKS)
            try:
                return asyncio.run(through(cluster, run, TASKS, TAKEN))
            finally:
                run.kill()
                run.wait(LIMIT, check=False)
        finally:
            kubernetes.down(folder=there)


def measure(runs: int) -> list[figures.Row]:
    found = [one() for _ in range(runs)]
    return [
        figures.Row(f"{TASKS} pods asked for", [one.asked for one in found], "s", 15),
        figures.Row("requests that the API server refused", [float(one.refused) for one in found], "", 0),
        figures.Row(f"until {TASKS} programs run", [one.granted for one in found], "s"),
        figures.Row(f"the master of {TASKS} pods", [one.memory for one in found], "MiB", 150),
        figures.Row(f"until the {TAKEN} that gave way run again", [one.again for one in found], "s"),
        figures.Row("from there to the job's end", [one.ended for one in found], "s"),
    ]  # fmt: skip


if __name__ == "__main__":
    figures.main(measure, 3, __doc__)
