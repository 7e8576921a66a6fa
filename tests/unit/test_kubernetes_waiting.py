"""Why a pod does not run yet, out of the words of the API server, the scheduler and the kubelet, as a real cluster says them."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster.core.containers import Request
from trainmaster.engines.contract import Free
from trainmaster.engines.kubernetes.master import waiting
from trainmaster.engines.kubernetes.master.nodes import asked
from trainmaster.engines.kubernetes.master.waiting import denial, of_containers, of_events, of_pod, unscheduled
from trainmaster.kube.errors import Unreachable, of_status

GIB = 2**30
ASK = Request("worker:0", 1, "worker", 0, 4 * GIB, 2.0)


def refusal(code: int, message: str, reason: str = "") -> Any:
    return of_status({"code": code, "message": message, "reason": reason})


QUOTA = (
    'pods "x-worker-0-1" is forbidden: exceeded quota: small, requested: limits.memory=1Gi,pods=1, '
    "used: limits.memory=2Gi,pods=3, limited: limits.memory=2Gi,pods=10"
)
DENIALS = [
    (refusal(403, QUOTA), "quota small", None, "quota small is full: asked limits.memory=1Gi, used 2Gi of 2Gi; asked pods=1, used 3 of 10"),
    (refusal(403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes (volume "data")'), "admission", 0.0,
     'the cluster refuses the pod: violates PodSecurity "restricted:latest": hostPath volumes (volume "data")'),
    (refusal(403, 'pods "x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 4Gi'), "limit range", 0.0,
     "the cluster refuses the pod: maximum memory usage per Container is 1Gi, but limit is 4Gi"),
    (refusal(403, 'pods "x" is forbidden: failed quota: small: must specify limits.cpu for: program'), "quota", 0.0,
     "the cluster refuses the pod: failed quota: small: must specify limits.cpu for: program"),
    (refusal(403, 'pods is forbidden: User "u" cannot create resource "pods" in API group "" in the namespace "n"'), "permission", None,
     'the cluster refuses the pod: pods is forbidden: User "u" cannot create resource "pods" in API group "" in the namespace "n"'),
    (refusal(403, 'pods "x" is forbidden: no PriorityClass with name high was found'), "priority class", 0.0,
     "the cluster refuses the pod: no PriorityClass with name high was found"),
    (refusal(400, 'admission webhook "no.example" denied the request: no'), "admission", 0.0,
     'the cluster refuses the pod: admission webhook "no.example" denied the request: no'),
    (refusal(500, 'failed calling webhook "no.example": connection refused'), "API server", None,
     'the cluster does not make the pod: failed calling webhook "no.example": connection refused'),
    (refusal(422, 'Pod "x" is invalid: spec.nodeSelector: Invalid value: "a b"'), "API server", 0.0,
     'the cluster does not make the pod: spec.nodeSelector: Invalid value: "a b"'),
    (refusal(409, "Operation cannot be fulfilled on resourcequotas", "Conflict"), "API server", None,
     "the cluster does not make the pod: Operation cannot be fulfilled on resourcequotas"),
    (refusal(429, "too many requests"), "API server", None, "the API server cannot be asked: too many requests"),
    (Unreachable("no answer"), "API server", None, "the API server cannot be asked: no answer"),
]  # fmt: skip


@pytest.mark.parametrize("row", DENIALS, ids=lambda row: row[3][:60])
def test_denials(row: Any) -> None:
    error, resource, hopeless, detail = row
    trouble = denial(error)
    assert (trouble.resource, trouble.hopeless, trouble.detail) == (resource, hopeless, detail)


def test_a_full_quota_is_reported_with_its_figures() -> None:
    told = waiting.words([ASK], denial(refusal(403, QUOTA)))
    assert (told.resource, told.asked, told.free) == (
        "quota small", "limits.memory=1Gi, pods=1", "limits.memory: 2Gi of 2Gi used, pods: 3 of 10 used",
    )  # fmt: skip


SCHEDULER = [
    ("0/3 nodes are available: 1 node(s) had untolerated taint {gpu: only}, 2 Insufficient memory. preemption: 0/3 nodes: 1 No",
     "no node of 3 can take it: 1 has the taint gpu=only; 2 have too little memory free"),
    ("0/2 nodes are available: 2 Insufficient cpu, 2 Insufficient nvidia.com/gpu.",
     "no node of 2 can take it: 2 have too little cores free; 2 have too little nvidia.com/gpu free"),
    ("0/2 nodes are available: 2 node(s) had untolerated taint {node.kubernetes.io/unreachable: }.",
     "no node of 2 can take it: 2 have the taint node.kubernetes.io/unreachable"),
    ("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
     "no node of 2 can take it: 2 have not the labels that are wanted"),
    ("0/2 nodes are available: 1 node(s) were unschedulable, 1 something new.",
     "no node of 2 can take it: 1 has been cordoned; 1 something new"),
    ("no nodes available to schedule pods", "the scheduler has not placed it: no nodes available to schedule pods"),
    ('0/2 nodes are available: persistentvolumeclaim "data" not found. preemption: 0/2', "volume claim data not found"),
    ("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "volume claim is not bound to a volume yet"),
]  # fmt: skip


@pytest.mark.parametrize("row", SCHEDULER, ids=lambda row: row[1][:60])
def test_the_schedulers_words(row: tuple[str, str]) -> None:
    message, detail = row
    assert unscheduled(message).detail == detail


def test_what_is_free_is_reported_where_it_is_known() -> None:
    nodes = [Free("n1", 4, 8 * GIB, 0, 1, 1 * GIB, 0), Free("n2", 4, 8 * GIB, 0, 3, 3 * GIB, 0)]
    message = "0/2 nodes are available: 2 Insufficient memory."
    told = waiting.words([ASK, ASK], unscheduled(message, nodes, ASK))
    assert told.detail == (
        "worker: 2 x 4 GiB, 2 cores: no node of 2 can take it: 2 have too little memory free; "
        "the most that is free is 3 GiB, 3 cores on n2"
    )
    assert told.free == "3 GiB, 3 cores"
    larger = Request("worker:0", 1, "worker", 0, 16 * GIB, 2.0)
    assert unscheduled(message, nodes, larger).detail == "no node is that large; the largest, n1, has 8 GiB, 4 cores"


def waits(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    row = {"name": "program", "image": "debian:9", "state": {"waiting": {"reason": reason, "message": message}}}
    return {
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Pending", "containerStatuses": [row], **more},
    }


KUBELET = [
    ("ContainerCreating", "", None, None),
    ("PodInitializing", "", None, None),
    ("InvalidImageName", "", 0.0, "debian:9 is not the name of an image"),
    ("ErrImageNeverPull", "", 5.0, "n1 does not have the image debian:9, and may not fetch it (pull: never)"),
    ("ErrImagePull", 'rpc error: code = NotFound desc = failed to pull: debian:9: not found', 60.0,
     "n1 cannot fetch the image debian:9: failed to pull: debian:9: not found"),
    ("ImagePullBackOff", 'Back-off pulling image "debian:9"', None, "n1 cannot fetch the image debian:9: it tries again later"),
    ("ErrImagePull", "rpc error: code = Unknown desc = dial tcp: i/o timeout", None,
     "n1 cannot fetch the image debian:9: dial tcp: i/o timeout"),
    ("CreateContainerConfigError", 'secret "s" not found', None, 'n1 cannot make container program: secret "s" not found'),
    ("CreateContainerConfigError", "container has runAsNonRoot and image will run as root", 0.0,
     "n1 cannot make container program: container has runAsNonRoot and image will run as root"),
]  # fmt: skip


@pytest.mark.parametrize("row", KUBELET, ids=lambda row: f"{row[0]} {row[1][:30]}")
def test_the_kubelets_words(row: Any) -> None:
    reason, message, hopeless, detail = row
    trouble = of_containers(waits(reason, message))
    assert (trouble and trouble.hopeless, trouble and trouble.detail) == (hopeless, detail)


def test_a_pod_that_is_not_placed() -> None:
    def unplaced(reason: str, message: str = "", **spec: Any) -> dict[str, Any]:
        row = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        return {"metadata": {"name": "p"}, "spec": spec, "status": {"phase": "Pending", "conditions": [row]}}

    held = unplaced("SchedulingGated", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    assert (of_pod(held, 0.0) or waiting.Trouble("", "")).detail == "Kueue has not admitted it to run yet"
    other = unplaced("SchedulingGated", schedulingGates=[{"name": "example.org/later"}])
    assert (of_pod(other, 0.0) or waiting.Trouble("", "")).detail == "it is held back by example.org/later"
    full = of_pod(unplaced("Unschedulable", "0/1 nodes are available: 1 Too many pods."), 0.0)
    assert full is not None
    assert full.detail == "no node of 1 can take it: 1 has as many pods as it may have"
    young: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {}, "status": {"phase": "Pending"}}
    assert of_pod(young, 1.0) is None
    assert of_pod(young, 60.0) is not None


def test_a_pod_that_is_being_made_ready_for_long_is_reported_by_its_events() -> None:
    def event(reason: str, message: str, at: int) -> dict[str, Any]:
        return {"reason": reason, "message": message, "lastTimestamp": f"2024-01-01T00:00:{at:02}Z"}

    one = waits("ContainerCreating")
    mount = event("FailedMount", 'MountVolume.SetUp failed for volume "x" : configmap "c" not found', 5)
    pulling = event("Pulling", 'Pulling image "debian:9"', 3)
    assert of_events(one, [pulling]).detail == "n1 is fetching image debian:9"
    found = of_events(one, [pulling, mount])
    assert (found.resource, found.detail) == (
        "volume", 'n1 cannot mount a volume: MountVolume.SetUp failed for volume "x" : configmap "c" not found',
    )  # fmt: skip
    assert of_events(one, []).detail == "n1 is making it ready"


def test_what_a_pod_takes_of_its_node_is_its_containers_or_the_largest_before_them() -> None:
    def container(cpu: str, memory: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu, "memory": memory}}}

    spec = {
        "containers": [container("500m", "1Gi"), container("1", "1Gi")],
        "initContainers": [container("100m", "4Gi")],
    }
    assert asked({"spec": spec}) == {"cpu": 1.5, "memory": 4 * GIB}
