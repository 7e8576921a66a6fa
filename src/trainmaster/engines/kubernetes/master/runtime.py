"""The host of a master on Kubernetes, in a pod or beside the client."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from trainmaster.core.containers import Request
from trainmaster.core.spec.job import Job
from trainmaster.engines.contract import MasterContainer, MasterSide
from trainmaster.engines.kubernetes.container.entry import Piece, inside
from trainmaster.engines.kubernetes.errors import failed
from trainmaster.engines.kubernetes.master.engine import AT_ONCE, BESIDE, KubernetesMaster
from trainmaster.engines.kubernetes.names import run_name
from trainmaster.engines.kubernetes.pods.pods import Shape, task_pod
from trainmaster.engines.kubernetes.settings import NVIDIA, settings
from trainmaster.engines.kubernetes.submit.objects import ENDED, STAMP, owner_of
from trainmaster.engines.packed import packed
from trainmaster.kube.blocking import Blocking
from trainmaster.kube.client import Client
from trainmaster.kube.config import Config, in_cluster
from trainmaster.kube.errors import KubeError
from trainmaster.kube.kinds import CONFIGMAPS

PORT = 7077  # of the master, in its pod and at its Service
CLOSE_WITHIN = 13.0  # s of the 15 that a pod has beside its role's grace
FEW, KEPT_WELL = 64, 16 * 1024  # tasks of a job of which so many bytes are kept of logs of attempts that ended well
LEAVING = 600.0  # s that an API server may be away at the job's end; in a pod another master tries again then
GONE_WITHIN = 20.0  # s that our own pod may live on after the job's end
_SECRET = ("token", "secrets")  # of a spec: agents have it from the job's Secret


class ContainerRuntime(MasterContainer):
    """`uid`: of the job's Secret. `address`: by which agents reach the master. `config`: of the API server, where we are not in a pod of
    the cluster.
    """

    def __init__(
        self, payload: Mapping[str, Any], uid: str, address: str, port: int = PORT, config: Config | None = None
    ) -> None:
        self.begun_again = config is None
        self._payload, self._config = payload, config or in_cluster(payload["namespace"])
        self._owner = owner_of(payload["job_id"], uid, "Secret")
        self.address, self.port = address, port
        self.agents: dict[str, Any] = {}

    def engine(self, job: Job, spec: Any, page: Callable[[bool], str]) -> MasterSide:
        """Return the master's side of Kubernetes."""
        payload, options = self._payload, settings(job.engines.get("kubernetes") or {})
        shape = Shape(payload["job_id"], job, options, payload["image"], self._owner)
        self.agents = agents(payload, job)
        client = Client(self._config, concurrency=AT_ONCE + BESIDE)
        return KubernetesMaster(payload["job_id"], job, client, pod_of(payload, shape, spec), options)

    def leave(self) -> None:
        """Delete all that was made for the job to run, including ourselves. The job's history stays."""
        client, ended = Blocking(self._config, patience=LEAVING), {ENDED: datetime.now(UTC).strftime(STAMP)}
        try:
            client.patch(CONFIGMAPS, self._payload["job_id"], {"metadata": {"annotations": ended}})
            client.delete(CONFIGMAPS, run_name(self._payload["job_id"]), propagation="Background")
        except KubeError as error:
            raise failed(error, self._config) from error
        finally:
            client.close()
        if self.begun_again:  # Kubernetes would start us again: it ends us with our pod
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
            time.sleep(GONE_WITHIN)


def agents(payload: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """Return the fields that agents get beyond those of all hosts in containers. `payload`: the master's."""
    if payload["storage_of_agents"]:
        return {}
    few = sum(role.replicas.most for role in job.roles.values()) <= FEW
    return {"storage": "", "log_end": KEPT_WELL if few else 0}


def pod_of(
    payload: Mapping[str, Any], shape: Shape, spec: Callable[[Request, Sequence[str]], Mapping[str, Any]]
) -> Callable[[Request], dict[str, Any]]:
    """Return a function that makes the pod of an ask. `spec(request, devices)`: the spec of its agent."""
    pieces = [
        Piece(piece["name"], piece["digest"], tuple(piece["secrets"]), piece["unpacked"]) for piece in payload["pieces"]
    ]

    def make(request: Request) -> dict[str, Any]:
        agent_spec = {name: value for name, value in spec(request, _devices(request)).items() if name not in _SECRET}
        if shape.settings.of(request.role).accelerator != NVIDIA:
            agent_spec["gpus"] = 0  # the agent sees devices of NVIDIA alone
        agent_spec["close_within"] = shape.job.roles[request.role].stop.grace + CLOSE_WITHIN
        environment = {**payload["environment"], **packed(agent_spec)}
        inner = inside(
            payload["job_id"], request.role, pieces, payload["boot"], environment, shape.settings.runtime_image
        )
        return task_pod(shape, request, inner)

    return make


def address_towards(config: Config) -> str:
    """Return our address as the cluster's machines see it: the one by which we reach the API server. Nothing is sent."""
    url = urlsplit(config.server)
    family, _, _, _, address = socket.getaddrinfo(url.hostname, url.port or 443, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _devices(request: Request) -> tuple[str, ...]:
    """A container sees the devices that it was given, and no others, numbered from 0 on."""
    return tuple(map(str, range(request.gpus)))
