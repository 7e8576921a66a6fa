"""Deaths on Kubernetes: of a job's master, until all agents are back; of a worker's pod, until that is noticed.

    python benchmarks/kubernetes_deaths.py [--runs 5]

A job of two workers on a cluster of two real nodes. The master's pod is deleted; from the start of the process in its successor's
container, which is Kubernetes' to bring about, until the event that tells of the last agent's return. Then a worker's agent, the first
process of its container, is killed with -9; until the event that its connection is gone, and until the one that its attempt is over, which
the kubelet's word brings. No program but the killed one is touched: that is checked.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import figures
from kubernetes_start import place

import trainmaster
from trainmaster.clusters.kubernetes import Cluster
from trainmaster.host import linux

LIMIT = 180.0  # s
PROGRAM = "echo pid $$; exec sleep 3600"


def until(what: Callable[[], Any]) -> Any:
    ends = time.monotonic() + LIMIT
    while not (found := what()):
        if time.monotonic() > ends:
            raise TimeoutError
        time.sleep(0.05)
    return found


def told(run: trainmaster.Run, kind: str, after: float = 0.0, **fields: Any) -> list[dict[str, Any]]:
    """Its events of a kind, after a time (s since 1970)."""
    found = [event for event in run.events() if event["type"] == kind and event["at"] > after]
    return [event for event in found if all(event.get(name) == value for name, value in fields.items())]


def process_of(cluster: Cluster, run: trainmaster.Run, part: str, besides: int = 0) -> int:
    """The first process of a pod of the job's that is not going, by this machine's number; 0 where there is none but `besides`."""
    for pod in cluster_pods(cluster, run, part):
        node = (pod["spec"].get("nodeName") or "-0").rpartition("-")[2]
        for pid in cluster.processes(int(node), pod["metadata"]["uid"]) if node.isdigit() and int(node) else ():
            found = linux.look(pid)
            if found is not None and pid != besides and f"trainmaster.{part}.container".encode() in command_of(pid):
                return pid
    return 0


def cluster_pods(cluster: Cluster, run: trainmaster.Run, part: str) -> list[dict[str, Any]]:
    label = f"trainmaster/job={run.id},trainmaster/part={'master' if part == 'master' else 'task'}"
    answer = cluster.ask(
        "GET", f"/api/v1/namespaces/{cluster.namespace}/pods?labelSelector={label.replace('=', '%3D')}"
    )
    found = json.loads(answer.said)["items"]
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


def command_of(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def started_at(pid: int) -> float:
    """Seconds since 1970."""
    process = linux.look(pid)
    assert process is not None
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot + process.start / os.sysconf("SC_CLK_TCK")


def master_dies(cluster: Cluster, run: trainmaster.Run) -> tuple[float, float]:
    """Seconds to the start of the next one's process, and from there to the last agent's return."""
    first = until(lambda: process_of(cluster, run, "master"))
    epoch = len(told(run, "master-started"))
    (pod,) = cluster_pods(cluster, run, "master")
    killed = time.time()
    cluster.ask("DELETE", f"/api/v1/namespaces/{cluster.namespace}/pods/{pod['metadata']['name']}")
    second = until(lambda: process_of(cluster, run, "master", first))
    started = started_at(second)
    back = until(lambda: found if len(found := told(run, "agent-connected", killed, epoch=epoch + 1)) >= 2 else [])
    return started - killed, max(event["at"] for event in back) - started


def worker_dies(cluster: Cluster, run: trainmaster.Run) -> tuple[float, float]:
    """Seconds to the event that its connection is gone, and to that of the attempt's end; returns when the next one runs."""
    victim = until(lambda: process_of(cluster, run, "agent"))
    killed = time.time()
    os.kill(victim, signal.SIGKILL)
    gone = until(lambda: told(run, "agent-disconnected", killed))[0]["at"]
    over = until(lambda: told(run, "attempt-written-off", killed))[0]["at"]
    until(lambda: told(run, "started", killed))
    return gone - killed, over - killed


def measure(runs: int) -> list[figures.Row]:
    masters, workers = [], []
    with place() as (environ, cluster, _):
        os.environ.update(environ)
        size = {"cores": 0.1, "memory": "96MiB"}
        role = {"command": PROGRAM, "replicas": 2, "resources": size, "restart": {"scope": "task", "limit": 0}}
        run = trainmaster.submit({"name": "deaths", "files": [], "roles": {"worker": role}}, engine="kubernetes")
        try:
            until(lambda: len(told(run, "started")) == 2)
            for _ in range(runs):
                masters.append(master_dies(cluster, run))
            assert [task["attempt"] for task in run.status()["tasks"]] == [1, 1], "a program was touched"
            for _ in range(runs):
                workers.append(worker_dies(cluster, run))
        finally:
            run.kill()
            run.wait(LIMIT, check=False)
    return [
        figures.Row("from a master's deletion to its successor's process", [one[0] for one in masters], "s", note="Kubernetes' own"),
        figures.Row("from there to both agents' return", [one[1] for one in masters], "s", 3),
        figures.Row("from a killed worker's death to the word that it is gone", [one[0] for one in workers], "s", 0.5),
        figures.Row("and to its attempt's end", [one[1] for one in workers], "s", note="the kubelet's word"),
    ]  # fmt: skip


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
