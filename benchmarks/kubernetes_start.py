"""From submit to the first instruction of both programs of a 2-worker job on a warm Kubernetes, beside a plain indexed Job.

    python benchmarks/kubernetes_start.py [--runs 5]

Both ask the same cluster, in turn, for two pods of the same size and image whose program prints the time; ours is `tm run`, from its exec,
the peer `kubectl apply` of an indexed Job, from its exec. The peer's pods have the same init container as ours, with the same files to put
together, and no master: its controller is the cluster's own. Before the first run each has run, so that what is kept on the cluster (our
runtime's Secrets are held by a job of the benchmark) is there.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import figures

from trainmaster.clusters import kubernetes
from trainmaster.clusters.kubernetes import Cluster, Settings
from trainmaster.core.reading import job_from
from trainmaster.engines.contract import Shipped
from trainmaster.engines.kubernetes import entry, objects, pods, shipping
from trainmaster.engines.kubernetes.settings import settings
from trainmaster.engines.runtime_archive import archive
from trainmaster.kube.client import Client
from trainmaster.kube.config import load
from trainmaster.kube.kinds import CONFIGMAPS, SECRETS

CALM = 4.0  # s in which the cluster clears up after the run before, of whichever side
WARM = 1  # runs of each before those that count
LIMIT = 300.0  # s for a run
NAME = "bench"
JOB = {"roles": {"worker": {"command": "date", "replicas": 2, "resources": {"memory": "128MiB", "cores": 0.1}}}}
PROGRAM = ["sh", "-c", "echo first $(date +%s.%N)"]
WITHOUT = ("hdfs-native", "protobuf", "obstore")  # as of a job without storage


@contextmanager
def place() -> Iterator[tuple[dict[str, str], Cluster, Path]]:
    """A cluster of the benchmark's own: the environment of who uses it, the cluster, and an empty directory."""
    with figures.place() as environ, TemporaryDirectory(prefix="bench-") as folder:
        cluster = kubernetes.up(
            Settings(nodes=2), folder=Path(folder, "kubernetes"), say=lambda line: print(line, file=sys.stderr)
        )
        try:
            (Path(folder) / "empty").mkdir()
            yield {**environ, **cluster.environ}, cluster, Path(folder)
        finally:
            kubernetes.down(folder=cluster.folder)


def peer(cluster: Cluster, environ: Mapping[str, str], folder: Path) -> Path:
    """The indexed Job, as a file; what its pods mount is made."""
    config = load({"KUBECONFIG": str(cluster.kubeconfig("admin"))}, namespace=cluster.namespace)
    read = shipping.read([Shipped(entry.RUNTIME, archive(folder / "runtime", without=WITHOUT), unpacked=True)])
    pieces = [piece for piece, _ in read]

    async def make() -> None:
        async with Client(config) as client:
            root = await client.create(CONFIGMAPS, objects.root(NAME, {}, {}, "", entry.boot(pieces)))
            owner = objects.owner_of(NAME, root["metadata"]["uid"])
            kept = await client.create(SECRETS, objects.secret(NAME, owner, {entry.AGENT_SECRET: {}}, ""))
            await shipping.put(client, objects.owner_of(NAME, kept["metadata"]["uid"], "Secret"), read)

    asyncio.run(make())
    job = job_from({"name": NAME, **JOB})
    shape = pods.Shape(NAME, job, settings({}), environ["TRAINMASTER_KUBERNETES_IMAGE"])
    made = pods.task_pod(
        shape, pods.request_of("worker", job.roles["worker"]), entry.inside(NAME, entry.AGENT, pieces, {})
    )
    spec: dict[str, Any] = made["spec"]
    del spec["hostname"], spec["subdomain"]
    spec["containers"][0]["command"] = [part.replace("$", "$$") for part in PROGRAM]
    indexed = {
        "completions": 2,
        "parallelism": 2,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": spec},
    }
    path = folder / "job.json"
    about = {"name": "indexed", "namespace": cluster.namespace}
    path.write_text(json.dumps({"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": indexed}))
    return path


def first(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"first (\d+\.\d+)", text)]


def of_ours(environ: Mapping[str, str], folder: Path) -> tuple[float, float]:
    """Seconds to the later program's first instruction, and to the command's end."""
    size = ["--memory", "128MiB", "--cores", "0.1"]
    began = time.time()
    command = [figures.TM, "run", "--engine", "kubernetes", "-n", "2", *size, "--", *PROGRAM]
    done = subprocess.run(command, env=environ, cwd=folder / "empty", capture_output=True, text=True, timeout=LIMIT)
    ended = time.time()
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return max(first(done.stdout)) - began, ended - began


def of_peer(cluster: Cluster, path: Path) -> tuple[float, float]:
    began = time.time()
    cluster.kubectl("apply", "-f", str(path))
    cluster.kubectl(
        "-n", cluster.namespace, "wait", "--for=condition=complete", f"--timeout={LIMIT:.0f}s", "job/indexed"
    )
    ended = time.time()
    text = cluster.kubectl("-n", cluster.namespace, "logs", "-l", "job-name=indexed")
    cluster.kubectl("-n", cluster.namespace, "delete", "job", "indexed")
    return max(first(text)) - began, ended - began


def measure(runs: int) -> list[figures.Row]:
    line: tuple[list[float], list[float]] = ([], [])
    whole: tuple[list[float], list[float]] = ([], [])
    with place() as (environ, cluster, folder):
        path = peer(cluster, environ, folder)
        for run in range(-WARM, runs):
            for side in range(2):
                time.sleep(CALM)
                told = of_peer(cluster, path) if side else of_ours(environ, folder)
                if run >= 0:
                    line[side].append(told[0])
                    whole[side].append(told[1])
    name = "indexed Job"
    return [
        figures.Row("first instruction of both programs, from submit", line[0], "s", None, name, line[1], 1 / 3),
        figures.Row("the command's whole run", whole[0], "s", None, name, whole[1]),
    ]


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
