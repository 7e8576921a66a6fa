"""A job of 1,000 tasks on a Kubernetes of 500 simulated nodes: granted, preempted in part, granted again, finished.

    python benchmarks/kubernetes_tasks1000.py [--runs 3]

API server, etcd, scheduler and controllers are real, and share the machine with the rest; nodes are simulated: their pods run nothing.
The master is the real one, in a process of its own beside the client; the 1,000 agents are channels of this process, really connected.
Measured: from the event `asked` to the last pod's being there, and how many requests the API server refused as too many; the master's
proportional set size with all agents connected; and the way through a preemption of 50 tasks by pods of higher priority to the job's end.
The peer is an indexed Job of as many pods of that size on the same cluster, before it: from its being there to its last pod's.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import figures

from trainmaster.clusters import kubernetes
from trainmaster.clusters.kubernetes import Cluster, Settings
from trainmaster.kube.client import Client
from trainmaster.kube.config import load
from trainmaster.kube.kinds import PODS, Kind

sys.path.append(str(figures.ROOT / "tests"))
from many_tasks import HALF, IMAGE, LIMIT, SAFE, Told, submitted, through
from waiting import until_async

NODES, TASKS, TAKEN = 500, 1000, 50
JOBS = Kind("batch", "v1", "jobs", "Job")
SIZE = {"cpu": str(HALF["cores"]), "memory": "1100Mi"}


async def indexed(cluster: Cluster) -> float:
    """Seconds until the pods of an indexed Job are there; none is left of it."""
    config = load({"KUBECONFIG": str(cluster.kubeconfig("admin"))}, namespace=cluster.namespace)
    container = {
        "name": "main",
        "image": IMAGE,
        "resources": {"requests": SIZE, "limits": SIZE},
        "securityContext": SAFE,
    }
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = {"completions": TASKS, "parallelism": TASKS, "completionMode": "Indexed", "template": pod}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "indexed"}, "spec": spec}
    async with Client(config) as client:
        seen: set[str] = set()
        _, since = await client.list(PODS)
        await client.create(JOBS, job)
        began = time.monotonic()
        async for _, pod in client.watch(PODS, labels="job-name=indexed", since=since):
            seen.add(pod["metadata"]["name"])
            if len(seen) == TASKS:
                break
        took = time.monotonic() - began
        await client.delete(JOBS, "indexed", propagation="Foreground")  # goes when the last of its pods has gone

        async def gone() -> bool:
            return not (await client.list(JOBS))[0]

        await until_async(gone, LIMIT)
    return took


def one() -> tuple[Told, float]:
    """One run, on a cluster of its own; and the peer's seconds."""
    with figures.place() as environ, TemporaryDirectory(prefix="bench-") as folder:
        settings, there = Settings(nodes=0, simulated=NODES), Path(folder, "kubernetes")
        cluster = kubernetes.up(settings, folder=there, say=lambda line: print(line, file=sys.stderr))
        try:
            os.environ.update({**environ, **cluster.environ, "TRAINMASTER_KUBERNETES_IMAGE": IMAGE})
            took = asyncio.run(indexed(cluster))
            run = submitted(TASKS)
            try:
                return asyncio.run(through(cluster, run, TASKS, TAKEN)), took
            finally:
                run.kill()
                run.wait(LIMIT, check=False)
        finally:
            kubernetes.down(folder=there)


def measure(runs: int) -> list[figures.Row]:
    both = [one() for _ in range(runs)]
    found, peers = [ours for ours, _ in both], [peer for _, peer in both]
    return [
        figures.Row(f"{TASKS} pods asked for", [one.asked for one in found], "s", 15, "indexed Job", peers),
        figures.Row("requests that the API server refused", [float(one.refused) for one in found], "", 0),
        figures.Row(f"until {TASKS} programs run", [one.granted for one in found], "s"),
        figures.Row(f"the master of {TASKS} pods", [one.memory for one in found], "MiB", 150),
        figures.Row(f"until the {TAKEN} that gave way run again", [one.again for one in found], "s"),
        figures.Row("from there to the job's end", [one.ended for one in found], "s"),
    ]  # fmt: skip


if __name__ == "__main__":
    figures.main(measure, 3, __doc__)
