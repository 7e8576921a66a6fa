"""The row `kubernetes`: real pods on two real nodes, in a namespace that enforces the Pod Security Standard "restricted".

Jobs are submitted by a user who has the role `edit` there and no more; their masters have the account that `tm cluster grants` prints. Pods
run as a user who is not root, in an image that holds Debian with Python and nothing of this machine's. Data are on an S3 server of this
machine. The submitter's directory is a volume of the test's own, claimed by each job, by which programs see `engine.folder / "go"`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from conformance.engines import Engine, Submitted
from kubernetes import Cluster, host_volumes, revived
from s3 import Server
from waiting import until

from trainmaster.client.jobs.sweep import resume
from trainmaster.clusters.kubernetes.images import HOST
from trainmaster.host import linux
from trainmaster.kube.blocking import Blocking
from trainmaster.kube.config import load
from trainmaster.kube.kinds import (
    CLAIMS,
    CONFIGMAPS,
    PODS,
    REPLICA_SETS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Kind,
)

PYTHON = "/usr/bin/python3"  # of the image
VOLUMES = Kind("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)


class Kubernetes(Engine):
    """A Kubernetes cluster: two nodes, S3. `close` looks for what a job has left in the namespace."""

    name = "kubernetes"
    interface = "eth0"
    nodes = 2
    lacks: ClassVar = {
        "submitters-place": "a task has a directory, an environment and limits of its own: it finds nothing of its submitter's",
        "local-master": "master and agents are in pods, without sockets, ledger or control groups of this machine",
        "local-data": "inputs, outputs and storage are where every pod reaches them: a path of the submitter's is refused",
        "parquet-streams": "an agent, which reads streams, has no pyarrow there: Parquet is read as shards",
        "s3-here": "its S3 is one that pods reach, and all its jobs have everything there",
        "installed": "the image has no Trainmaster of its own",
        "one-host": "each task has an address of its own, so ports of several may be equal",
        "only-engine": "what is tried is not of an engine, and is tried on one",
        "application": "it is about YARN's applications and queues",
        "largest": "a user of a namespace is not told how large nodes are, and there may be larger ones: what fits none waits, in words",
        "numpy": "the image has no NumPy",
        "frameworks": "the image has no framework; the examples run there with this machine's Python in tests of their own",
    }

    def __init__(self, folder: Path, cluster: Cluster, s3: Server) -> None:
        super().__init__(folder)
        self.cluster, self._bucket, self.namespace = cluster, s3.bucket(), self.namespace_of(cluster)
        self._volume = f"tests-{uuid.uuid4().hex[:12]}"
        folder.chmod(0o777)  # pods are another user
        site = folder.parent / "site.yaml"  # what jobs of the command line begin with; those of the API have `own`
        site.write_text(json.dumps(self.own()))
        os.environ["TRAINMASTER_SITE"] = str(site)
        self._kube = Blocking(load({"KUBECONFIG": str(cluster.kubeconfig("admin"))}, namespace=self.namespace))
        for kind, made in zip((VOLUMES, CLAIMS), self._claimed(), strict=True):
            self._kube.create(kind, made)
        self.share("runtime", Path(os.environ["TRAINMASTER_STATE_DIR"], "runtime"))

    @staticmethod
    def namespace_of(cluster: Cluster) -> str:
        return cluster.namespace

    def submit(self, roles: Mapping[str, Any], key: str = "", **keys: Any) -> Submitted:
        """Programs in this machine's Python are in the image's."""
        roles = json.loads(json.dumps(roles).replace(json.dumps(sys.executable)[1:-1], PYTHON))
        return super().submit(roles, key, **keys)

    def own(self) -> dict[str, Any]:
        volumes = [{"claim": self._volume, "path": str(self.folder)}]
        return {"storage": f"s3://{self._bucket}/jobs", "engines": {"kubernetes": {"volumes": volumes}}}

    def place(self, name: str) -> str:
        return f"s3://{self._bucket}/{name}"

    def put(self, name: str, content: str | bytes) -> None:
        self._store().put(name, content.encode() if isinstance(content, str) else content)

    def files(self, name: str) -> dict[str, bytes]:
        from trainmaster.data.store.stores import store_for

        store = store_for(self.place(name))
        return {file.path: store.read(file.path, 0, file.size) for file in store.files()}

    def remove(self, name: str) -> None:
        self._store().remove(name)

    def command_lines(self, made: Submitted) -> list[str]:
        found = []
        for pod in self.pods(made):
            for pid in self._processes(pod):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"))
        return found

    def process(self, made: Submitted, number: int = 1, task: str = "worker:0") -> int:
        """The attempt's own process, by the number that it has in its pod, as this machine numbers it."""
        within = made.attempt(number, task)["pid"]
        serial = [event for event in made.told("granted") if event["task"] == task][-1]["container"]
        (pod,) = (pod for pod in self.pods(made) if pod["metadata"]["name"] == serial)
        return next(pid for pid in self._processes(pod) if _within(pid) == within)

    def kill_master(self, made: Submitted) -> None:
        """Kill the process of the job's master, not its pod."""
        (pod,) = self.pods(made, "master")
        for pid in self._processes(pod):
            os.kill(pid, signal.SIGKILL)

    def kill_node(self, node: str) -> None:
        self.cluster.kill_node(int(node.rpartition("-")[2]))

    def revive(self) -> None:
        revived(self.cluster)

    def pods(self, made: Submitted, part: str = "") -> list[dict[str, Any]]:
        labels = f"trainmaster/job={made.id}" + (f",trainmaster/part={part}" if part else "")
        found: list[dict[str, Any]] = self._kube.list(PODS, labels=labels)[0]
        return found

    def left(self, made: Submitted) -> list[str]:
        """What there is of a job in the namespace, but for its history: of the first kind of which there is something."""
        for kind in (SECRETS, PODS, SERVICES, REPLICA_SETS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS):
            if found := self._kube.list(kind, labels=f"trainmaster/job={made.id}", metadata=True)[0]:
                return [f"{kind.plural}/{one['metadata']['name']}" for one in found]
        return []

    def application(self, made: Submitted) -> str:
        return str(json.loads((made.storage / "site.json").read_bytes())["application"])

    def client(self) -> Any:
        from trainmaster.engines.kubernetes.client import KubernetesClient

        return KubernetesClient()

    def close(self) -> None:
        client = self.client()
        for made in self.jobs:
            if made.run.status()["state"] in ("pending", "running"):  # a failed test has left it
                client.end(self.application(made))
            until(lambda made=made: not self.left(made), what=lambda made=made: f"{made.id} leaves {self.left(made)}")
            self._kube.delete(CONFIGMAPS, made.id)
        self._kube.delete(CLAIMS, self._volume)
        self._kube.delete(VOLUMES, self._volume)
        self._kube.close()

    def _processes(self, pod: Mapping[str, Any]) -> list[int]:
        node = int(pod["spec"]["nodeName"].rpartition("-")[2])
        return [pid for pid in self.cluster.processes(node, pod["metadata"]["uid"]) if not _pause(pid)]

    def _claimed(self) -> list[dict[str, Any]]:
        size = {"storage": "1Gi"}
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        about = {"name": self._volume, "namespace": self.namespace}
        of = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **about}
        path = {"path": str(self.folder)}
        return [
            {
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": self._volume},
                "spec": {**spec, "capacity": size, "hostPath": path, "claimRef": of, "persistentVolumeReclaimPolicy": "Retain"},
            },
            {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about,
                "spec": {**spec, "volumeName": self._volume, "resources": {"requests": size}},
            },
        ]  # fmt: skip

    def _store(self) -> Any:
        from trainmaster.data.store.stores import store_for

        return store_for(f"s3://{self._bucket}")


class OnHost(Kubernetes):
    """The same for what needs frameworks: this machine's Python, by mounts that can only be read, in a namespace that allows these."""

    lacks: ClassVar = {need: why for need, why in Kubernetes.lacks.items() if need != "frameworks"}

    @staticmethod
    def namespace_of(cluster: Cluster) -> str:
        return cluster.host_namespace

    def own(self) -> dict[str, Any]:
        own = super().own()
        volumes, mounts = host_volumes()
        own["engines"]["kubernetes"] |= {"namespace": self.namespace, "run_as": 0}  # whose this Python may be alone
        own["engines"]["kubernetes"]["volumes"] += [
            {"host_path": volume["hostPath"]["path"], "path": mount["mountPath"], "read_only": True}
            for volume, mount in zip(volumes, mounts, strict=True)
        ]
        return {**own, "environment": {"image": HOST}}


class BesideClient(Kubernetes):
    """The same with the master beside the client, which acts as the user, who has the role `edit` and no more."""

    def own(self) -> dict[str, Any]:
        own = super().own()
        own["engines"]["kubernetes"]["run_master"] = "client"
        return own

    def kill_master(self, made: Submitted) -> None:
        """And take the job up, as the next command does that waits for it."""
        for pid in masters_here(made.id):
            os.kill(pid, signal.SIGKILL)
        until(lambda: resume(made.id), what="the master's end")


def masters_here(job: str) -> list[int]:
    """The processes of this machine that are the job's master."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0") if entry.isdigit() else []
            if b"--detach" in command and command[-2].endswith(job.encode()):
                found.append(int(entry))
    return found


def _within(pid: int) -> int:
    """A process's number in its own namespace (proc(5), NSpid)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return -1
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), -1)


def _pause(pid: int) -> bool:
    found = linux.look(pid)
    return found is None or found.name == "pause"
