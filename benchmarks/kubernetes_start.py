"""From submit to the first instruction of both programs of a 2-worker job on a warm Kubernetes, beside a plain indexed Job.

    python benchmarks/kubernetes_start.py [--runs 5]

Both ask the same cluster, in turn, for two pods of the same size and image whose program prints the time; ours is `tm run`, from its exec,
the peer `kubectl apply` of an indexed Job, from its exec. The peer's pods have the same init container as ours, with the same files to put
together, and no master: its controller is the cluster's own. For ours, two times outside the starts of the two pods are shown too: from the
exec until the pods exist (as a watch reports it), and in each pod from its first process to the program's first instruction. Both have run
once before the first run, so that what is kept on the cluster (our runtime's Secrets are held by a job of the benchmark) is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import figures

from trainmaster.clusters import kubernetes
from trainmaster.clusters.kubernetes import Cluster, Settings
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.contract import Shipped
from trainmaster.engines.kubernetes import names
from trainmaster.engines.kubernetes.container import entry
from trainmaster.engines.kubernetes.pods import pods
from trainmaster.engines.kubernetes.settings import settings
from trainmaster.engines.kubernetes.submit import objects, shipping
from trainmaster.engines.runtime_archive import archive
from trainmaster.kube.blocking import loop
from trainmaster.kube.client import Client
from trainmaster.kube.config import load
from trainmaster.kube.kinds import CONFIGMAPS, PODS, SECRETS

CALM = 4.0  # s in which the cluster clears up after the run before, of whichever side
WARM = 1  # runs of each before those that count
LIMIT = 300.0  # s for a run
NAME = "bench"
JOB = {"roles": {"worker": {"command": "date", "replicas": 2, "resources": {"memory": "128MiB", "cores": 0.1}}}}
# When it began, and when its pod's first process did (proc_pid_stat(5): in ticks since the machine's start).
PROGRAM = ["sh", "-c", "now=$(date +%s.%N); read -r line </proc/1/stat; set -- ${line##*) }; echo first $now ${20}"]
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

    files = entry.boot(pieces)

    async def make() -> None:
        async with Client(config) as client:
            root = await client.create(CONFIGMAPS, objects.root(NAME, {}, {}, ""))
            owner = objects.owner_of(NAME, root["metadata"]["uid"])
            await client.create(CONFIGMAPS, objects.run(NAME, owner, files))
            kept = await client.create(SECRETS, objects.secret(NAME, owner, {entry.agent_key("worker"): {}}, ""))
            await shipping.put(client, objects.owner_of(NAME, kept["metadata"]["uid"], "Secret"), read)

    asyncio.run(make())
    job = job_from({"name": NAME, **JOB})
    shape = pods.Shape(NAME, job, settings({}), environ["TRAINMASTER_KUBERNETES_IMAGE"])
    inside = entry.inside(NAME, "worker", pieces, entry.digest_of(files), {})
    made = pods.task_pod(shape, pods.request_of("worker", job.roles["worker"]), inside)
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


def first(text: str) -> list[tuple[float, float]]:
    """Return the start of each program, and of the first process of its pod, as `time.time` has it."""
    start = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    found = re.findall(r"first (\d+\.\d+) (\d+)", text)
    return [(float(now), start + int(ticks) / os.sysconf("SC_CLK_TCK")) for now, ticks in found]


@attrs.frozen
class Run:
    """Seconds: `line` to the later program's first instruction, `whole` to the command's end. For ours also `asked` until the pods exist,
    and `inside` from a pod's first process to its program.
    """

    line: float
    whole: float
    asked: float = 0.0
    inside: float = 0.0


def of_ours(cluster: Cluster, environ: Mapping[str, str], folder: Path) -> Run:
    size = ["--memory", "128MiB", "--cores", "0.1"]
    config = load({"KUBECONFIG": str(cluster.kubeconfig("admin"))}, namespace=cluster.namespace)
    made: list[float] = []

    async def note() -> None:
        async with Client(config) as client:
            _, since = await client.list(PODS)
            ready.set()
            async for kind, _ in client.watch(PODS, labels=f"{names.PART}={names.TASK_PART}", since=since):
                if kind == "ADDED":
                    made.append(time.time())

    ready = threading.Event()
    watching = asyncio.run_coroutine_threadsafe(note(), loop())
    ready.wait(LIMIT)
    began = time.time()
    command = [figures.TM, "run", "--engine", "kubernetes", "-n", "2", *size, "--", *PROGRAM]
    # By SIGINT first: a command that hangs then tells what its job waits for.
    limit = ["timeout", "--signal=INT", "--kill-after=60", f"{LIMIT:.0f}"]
    done = subprocess.run([*limit, *command], env=environ, cwd=folder / "empty", capture_output=True, text=True)
    ended = time.time()
    watching.cancel()
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    told = first(done.stdout)
    return Run(
        max(line for line, _ in told) - began,
        ended - began,
        max(made) - began,
        max(line - process for line, process in told),
    )


def of_peer(cluster: Cluster, path: Path) -> Run:
    began = time.time()
    cluster.kubectl("apply", "-f", str(path))
    cluster.kubectl(
        "-n", cluster.namespace, "wait", "--for=condition=complete", f"--timeout={LIMIT:.0f}s", "job/indexed"
    )
    ended = time.time()
    text = cluster.kubectl("-n", cluster.namespace, "logs", "-l", "job-name=indexed")
    cluster.kubectl("-n", cluster.namespace, "delete", "job", "indexed")
    return Run(max(line for line, _ in first(text)) - began, ended - began)


def measure(runs: int) -> list[figures.Row]:
    ours: list[Run] = []
    peers: list[Run] = []
    with place() as (environ, cluster, folder):
        path = peer(cluster, environ, folder)
        for run in range(-WARM, runs):
            for side in range(2):
                time.sleep(CALM)
                told = of_peer(cluster, path) if side else of_ours(cluster, environ, folder)
                if run >= 0:
                    (peers if side else ours).append(told)
    name = "indexed Job"
    line, whole = [one.line for one in peers], [one.whole for one in peers]
    return [
        figures.Row(
            "first instruction of both programs, from submit", [one.line for one in ours], "s", None, name, line, 1 / 3
        ),
        figures.Row("of it outside the pods' starts", [one.asked + one.inside for one in ours], "s", 0.4),
        figures.Row("... until both pods are there", [one.asked for one in ours], "s"),
        figures.Row("... from a pod's first process to its program", [one.inside for one in ours], "s"),
        figures.Row("the command's whole run", [one.whole for one in ours], "s", None, name, whole),
    ]


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
