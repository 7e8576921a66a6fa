"""A job of many tasks on simulated nodes, of which each has room for two: granted, preempted in part, granted again, finished.

API server, etcd, scheduler and controllers are real, the master too, beside its client; pods run nothing, their agents are a `Crowd`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

import attrs
from crowd import Crowd
from waiting import until_async

import trainmaster
from trainmaster.clusters.kubernetes import Cluster
from trainmaster.kube.config import load

LIMIT = 600.0  # s
HALF = {"cores": 4, "memory": "1GiB"}  # of a node of 8 cores
HIGH = "urgent"
IMAGE = "localhost/none:1"  # that nobody pulls
CLASS = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": HIGH}, "value": 1000}
SAFE = {
    "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip


@attrs.frozen
class Told:
    """Seconds from the event `asked` to the last pod's being there and to the last program's running, from the last one's giving way to all
    running again, and from there to the job's end; MiB of the master while all ran; how many requests the API server refused as too many.
    """

    asked: float
    granted: float
    again: float
    ended: float
    memory: float
    refused: int


def submitted(tasks: int) -> trainmaster.Run:
    """The job. Its environment leads to the cluster, and to `IMAGE`."""
    role = {"command": "true", "replicas": tasks, "resources": HALF, "restart": {"scope": "task", "limit": 0}}
    engines = {"kubernetes": {"run_master": "client"}}
    return trainmaster.submit(
        {"name": "many", "files": [], "roles": {"worker": role}, "engines": engines}, engine="kubernetes"
    )


async def through(cluster: Cluster, run: trainmaster.Run, tasks: int, taken: int) -> Told:
    """See the job through to its end; `taken` of its tasks give way in the middle."""

    def when(kind: str) -> list[float]:
        return [event["at"] for event in run.events() if event["type"] == kind]

    config = load({"KUBECONFIG": str(cluster.kubeconfig("admin"))}, namespace=cluster.namespace)
    async with Crowd(config, run.id) as crowd:
        await until_async(lambda: len(crowd.made) >= tasks, LIMIT, lambda: f"{len(crowd.made)} pods")
        began = when("asked")[0]
        await until_async(lambda: crowd.running == tasks, LIMIT, lambda: f"{crowd.running} programs")
        granted, memory = time.time() - began, _memory(_master_of(run.id))
        _urgent(cluster, taken)
        # Or fewer: the scheduler takes another's place for a pod whose own one was given away meanwhile.
        await until_async(lambda: crowd.running <= tasks - taken, LIMIT, lambda: f"{crowd.running} programs are left")
        cluster.kubectl("-n", cluster.namespace, "delete", "pod", "-l", f"app={HIGH}", "--wait=false")
        await until_async(lambda: crowd.running == tasks, LIMIT, lambda: f"{crowd.running} programs again")
        freed = time.time()
        crowd.finish()
        await asyncio.to_thread(run.wait, LIMIT)
        return Told(
            max(sorted(crowd.made.values())[:tasks]) - began, granted, freed - when("attempt-written-off")[-1],
            time.time() - freed, memory, _refused(cluster),
        )  # fmt: skip


def _urgent(cluster: Cluster, count: int) -> None:
    """Pods of a higher priority, each of which takes the place of a task."""
    size = {"cpu": str(HALF["cores"]), "memory": "1100Mi"}
    container = {
        "name": "main",
        "image": IMAGE,
        "resources": {"requests": size, "limits": size},
        "securityContext": SAFE,
    }
    pods: list[dict[str, Any]] = [
        {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"{HIGH}-{number}", "namespace": cluster.namespace, "labels": {"app": HIGH}},
            "spec": {"priorityClassName": HIGH, "containers": [container]},
        }
        for number in range(count)
    ]  # fmt: skip
    cluster.kubectl("apply", "-f", "-", input=json.dumps(CLASS))
    cluster.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))


def _refused(cluster: Cluster) -> int:
    """Of all requests since it began."""
    told = re.findall(
        r"^apiserver_flowcontrol_rejected_requests_total\{.*} (\S+)$", cluster.ask("GET", "/metrics").said, re.M
    )
    return sum(int(float(number)) for number in told)


def _master_of(job_id: str) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"trainmaster.master" in words and any(word.endswith(job_id.encode()) for word in words):
                return int(folder.name)
    raise RuntimeError(f"no master of {job_id}")


def _memory(pid: int) -> float:
    """Its proportional set size, MiB."""
    told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB$", told, re.M)
    assert found is not None
    return int(found[1]) / 1024
