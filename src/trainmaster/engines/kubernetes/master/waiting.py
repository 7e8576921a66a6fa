"""Explain why a pod does not run yet, and whether it ever will.

Three places say so. The API server refuses to make a pod: a quota is full (it may be made later), or the pod breaks a policy (it never
will be). The scheduler says in the pod's condition what is wrong with the nodes. The kubelet says in the states of its containers what it
cannot do: fetch an image, mount a volume. Each has a table from its words to ours; words that are in no table are shown as they are.

A hopeless pod is refused, so that the job ends with that as its reason instead of waiting for ever; but not where the same role's pods
have run before, for then it is a matter of one node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from trainmaster.core.containers import Request
from trainmaster.core.machine.stimuli import Waiting
from trainmaster.core.spec.quantities import format_bytes
from trainmaster.engines.contract import Free
from trainmaster.engines.kubernetes.master import pod_status
from trainmaster.engines.kubernetes.master.pod_status import Pod
from trainmaster.kube.errors import ApiError, Conflict, Forbidden, KubeError, TooMany, Unauthorized, Unreachable

NOTHING = Waiting("", "", "")  # nothing is waited for any more
SLOW = 5.0  # s that a pod may be made ready before that is reported
HOPELESS = 60.0  # s after which an image that is not found is given up


@attrs.frozen(slots=True)
class Trouble:
    """A trouble of a pod: the resource that it waits for, and a line for people. `hopeless`: s until the pod is given up; None: never."""

    resource: str
    detail: str
    hopeless: float | None = None
    needed: str = ""  # the need to show, where it is not the request's
    free: str = ""


# -- what the API server does not make --

_QUOTA = re.compile(r"exceeded quota: ([^,]+), requested: (.+?), used: (.+?), limited: (.+)$", re.DOTALL)
_REFUSED = re.compile(
    r'^(?:pods|Pod) (?:"[^"]*" is (?:forbidden|invalid)|in version "v1" cannot be handled as a Pod): (?:strict decoding error: |json: )?'
)
_NEVER, _LATER = 0.0, None
# A pattern of messages of 403, the resource that it names, whether it is for ever.
_FORBIDDEN: tuple[tuple[str, str, float | None], ...] = (
    (r"exceeded quota", "quota", _LATER),
    (r"violates PodSecurity", "admission", _NEVER),
    (r"failed quota|must specify", "quota", _NEVER),
    (r"(?:maximum|minimum) \S+ usage per|limit to request ratio", "limit range", _NEVER),
    (r"no PriorityClass with name", "priority class", _NEVER),
    (r"because it is being terminated", "namespace", _NEVER),
    (r"error looking up service account", "service account", _LATER),
    (r"cannot \w+ resource", "permission", _LATER),
    (r"admission webhook .* denied|ValidatingAdmissionPolicy", "admission", _NEVER),
)  # fmt: skip


def denial(error: KubeError) -> Trouble:
    """Explain why the API server did not make a pod."""
    message = _without_pod_name(error.message)
    if isinstance(error, Unreachable | TooMany):
        return Trouble("API server", f"the API server cannot be asked: {message}")
    if isinstance(error, Unauthorized):
        cause = "its service account was replaced, or its token is refused: tm kill, tm retry"
        return Trouble("API server", f"the API server does not believe who the master is ({message}): {cause}")
    for pattern, resource, hopeless in _FORBIDDEN if isinstance(error, ApiError) else ():
        if re.search(pattern, error.message):
            return _quota(error.message) or Trouble(resource, f"the cluster refuses the pod: {message}", hopeless)
    if not isinstance(error, ApiError):
        return Trouble("API server", message)
    forever = 400 <= error.code < 500 and not isinstance(error, Conflict | Forbidden)
    if isinstance(error, Forbidden):
        return Trouble("admission", f"the cluster refuses the pod: {message}", _NEVER)
    return Trouble("API server", f"the cluster does not make the pod: {message}", _NEVER if forever else _LATER)


def _without_pod_name(message: str) -> str:
    """Return a refusal without the name of the pod, which the user has not chosen."""
    return _REFUSED.sub("", " ".join(message.split()))[:600]


def _quota(message: str) -> Trouble | None:
    """Return the trouble of a full quota, with the figures of the resources that are short."""
    match = _QUOTA.search(message)
    if match is None:
        return None
    requested, used, limited = (dict(row.partition("=")[::2] for row in match[n].split(",")) for n in (2, 3, 4))
    rows = [
        f"asked {name}={requested[name]}, used {used.get(name, '?')} of {limited.get(name, '?')}" for name in requested
    ]
    figures = ", ".join(f"{name}={value}" for name, value in requested.items())
    usage = ", ".join(f"{name}: {used.get(name, '?')} of {limited.get(name, '?')} used" for name in requested)
    return Trouble(f"quota {match[1]}", f"quota {match[1]} is full: {'; '.join(rows)}", needed=figures, free=usage)


# -- what the scheduler says --

_IN_THE_WAY: tuple[tuple[str, str], ...] = (
    (r"Insufficient (\S+)", "{n} too little {0} free"),
    (r"node\(s\) had untolerated taint \{(\S+?): (.*?)\}", "{n} the taint {0}={1}"),
    (r"node\(s\) had untolerated taint", "{n} taints that the pod does not tolerate"),
    (r"node\(s\) didn't match Pod's node affinity/selector", "{n} not the labels that are wanted"),
    (r"node\(s\) were unschedulable", "{n} been cordoned"),
    (r"Too many pods", "{n} as many pods as it may have"),
    (r"node\(s\) had volume node affinity conflict", "{n} no way to the pod's volume"),
    (r"node\(s\) didn't find available persistent volumes to bind", "{n} no volume for its claim"),
    (r"node\(s\) didn't have free ports", "{n} its ports taken"),
)
_NOT_BOUND = re.compile(
    r'persistentvolumeclaim "([^"]+)" (not found|bound to non-existent)|unbound immediate PersistentVolumeClaims'
)
_COUNTED = re.compile(r"(\d+)/(\d+) nodes are available: (.*)", re.DOTALL)
_NAMES = {"cpu": "cores", "memory": "memory", "ephemeral-storage": "disk", "pods": "pods"}


def unscheduled(message: str, nodes: Sequence[Free] = (), request: Request | None = None) -> Trouble:
    """Explain the scheduler's message, with the figures of the nodes where they are known."""
    message = " ".join(message.split())
    if (match := _NOT_BOUND.search(message)) is not None:
        name = f"volume claim {match[1]}" if match[1] else "volume claim"
        return Trouble(name, f"{name} {match[2] or 'is not bound to a volume yet'}")
    counted = _COUNTED.search(re.split(r"\.? preemption: ", message)[0])
    if counted is None:
        return Trouble(
            "nodes",
            f"the scheduler has not placed it: {message[:300]}" if message else "the scheduler has not placed it yet",
        )
    if counted[2] == "0":
        return Trouble("nodes", "the cluster has no node")
    reasons = [_reason(reason.strip().rstrip(".")) for reason in re.split(r", (?=\d)", counted[3])]
    detail = f"no node of {counted[2]} can take it: {'; '.join(reasons)}"
    best = max(nodes, key=lambda node: (node.free_gpus, len(node.free_extended), node.free_memory), default=None)
    if best is None or request is None:
        return Trouble("nodes", detail)
    largest = max(nodes, key=lambda node: (node.gpus, len(node.extended), node.memory))
    if not any(_holds((node.memory, node.cores, node.gpus, node.extended), request) for node in nodes):
        most = amount(largest.memory, largest.cores, largest.gpus, largest.extended)
        return Trouble("nodes", f"no node is that large; the largest, {largest.node}, has {most}", free="0 nodes")
    free = amount(best.free_memory, best.free_cores, best.free_gpus, best.free_extended)
    return Trouble("nodes", f"{detail}; the most that is free is {free} on {best.node}", free=free)


def _reason(text: str) -> str:
    number, _, rest = text.partition(" ")
    if not number.isdigit():
        return text
    for pattern, words in _IN_THE_WAY:
        if (match := re.search(pattern, rest)) is not None:
            names = [_NAMES.get(name, name) for name in match.groups()]
            sentence = words.format(*names, n=f"{number} has" if number == "1" else f"{number} have")
            return sentence.rstrip("=")
    return text


# -- what the kubelet says --

_ABSENT = re.compile(
    r"not found|manifest unknown|does not exist|pull access denied|repository does not exist|unauthorized|denied",
    re.IGNORECASE,
)
_ROOT = re.compile(r"runAsNonRoot|will run as root|non-numeric user", re.IGNORECASE)


def _image(why: str, message: str, image: str, node: str) -> Trouble | None:
    """Return the trouble with an image, if any, by the reason of a container that waits."""
    if why == "InvalidImageName":
        return Trouble(f"image {image}", f"{image} is not the name of an image", _NEVER)
    if why == "ErrImageNeverPull":
        return Trouble(
            f"image {image}",
            f"{node} does not have the image {image}, and may not fetch it (pull: never)",
            HOPELESS / 12,
        )
    if why in (
        "ErrImagePull",
        "ImagePullBackOff",
        "RegistryUnavailable",
        "ImageInspectError",
        "SignatureValidationFailed",
    ):
        cause = _pull_error(message)
        absent = _ABSENT.search(message) is not None
        return Trouble(
            f"image {image}", f"{node} cannot fetch the image {image}: {cause}", HOPELESS if absent else _LATER
        )
    return None


def _pull_error(message: str) -> str:
    """Return the end of a chain of errors, which says most, without containerd's `rpc error: code = ... desc =`."""
    text = re.sub(r'^Back-off pulling image "[^"]*"(?:: ErrImagePull: )?', "", message.strip())
    text = re.sub(r"rpc error: code = \w+ desc = ", "", text)
    return (text or "it tries again later")[:300]


def of_containers(pod: Pod) -> Trouble | None:
    """Return the trouble that a container of a placed pod waits for, if any."""
    status, node = pod.get("status") or {}, pod_status.node_of(pod)
    for row in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waits = (row.get("state") or {}).get("waiting") or {}
        why, message = str(waits.get("reason") or ""), " ".join(str(waits.get("message") or "").split())
        if (trouble := _image(why, message, str(row.get("image") or ""), node)) is not None:
            return trouble
        if why in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"):
            return Trouble(
                "container",
                f"{node} cannot make container {row.get('name')}: {message or why}",
                _NEVER if _ROOT.search(message) else _LATER,
            )
    return None


_STUCK = (
    "FailedMount",
    "FailedAttachVolume",
    "FailedCreatePodSandBox",
    "FailedMapVolume",
    "Failed",
    "NetworkNotReady",
)


def of_events(pod: Pod, events: Iterable[Mapping[str, Any]]) -> Trouble:
    """Return what a pod waits for that is being made ready for long, by the newest of its events that says so."""
    node = pod_status.node_of(pod)
    newest = sorted(
        events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""), reverse=True
    )
    for event in newest:
        why, message = event.get("reason"), " ".join(str(event.get("message") or "").split())
        if why in ("FailedMount", "FailedAttachVolume", "FailedMapVolume"):
            return Trouble("volume", f"{node} cannot mount a volume: {message[:300]}")
        if why in _STUCK:
            return Trouble("container", f"{node} cannot make it ready: {message[:300]}")
        if why == "Pulling":
            image = re.search(r'"([^"]+)"', message)
            name = f"image {image[1]}" if image else "its image"
            return Trouble(name, f"{node} is fetching {name}")
        if why in ("Pulled", "Created", "Started"):
            break
    return Trouble(f"node {node}", f"{node} is making it ready")


def of_pod(pod: Pod, age: float, nodes: Sequence[Free] = (), request: Request | None = None) -> Trouble | None:
    """Return the trouble of a pod that does not run and was asked for `age` s ago; None where there is none, or it is too early to say."""
    if not pod_status.node_of(pod):
        placed = pod_status.condition(pod, "PodScheduled")
        if gates := [str(gate.get("name")) for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]:
            queued = any("kueue" in gate for gate in gates)
            detail = "Kueue has not admitted it to run yet" if queued else f"it is held back by {', '.join(gates)}"
            return Trouble("Kueue" if queued else gates[0], detail)
        if placed.get("reason") == "Unschedulable":
            return unscheduled(str(placed.get("message") or ""), nodes, request)
        if placed.get("reason") == "SchedulerError":
            return Trouble("scheduler", f"the scheduler failed: {str(placed.get('message') or '')[:300]}")
        return Trouble("scheduler", "the scheduler has not looked at it yet") if age > SLOW else None
    return of_containers(pod)


# -- words --


def words(requests: Sequence[Request], trouble: Trouble) -> Waiting:
    """Say what these requests of one role wait for."""
    largest = max(requests, key=lambda request: (request.gpus, len(request.extended), request.memory, request.cores))
    size = request_amount(largest)
    need = f"{largest.role}: {len(requests)} x {size}" if len(requests) > 1 else f"{largest.task}: {size}"
    return Waiting(trouble.resource, trouble.needed or need, trouble.free, f"{need}: {trouble.detail}")


def request_amount(request: Request) -> str:
    return amount(request.memory, request.cores, request.gpus, request.extended)


def amount(memory: int, cores: float, gpus: int, others: Mapping[str, int] | None = None) -> str:
    counted = [*([f"{gpus} GPUs"] if gpus else []), *(f"{count} {name}" for name, count in (others or {}).items())]
    return ", ".join([format_bytes(memory), f"{cores:g} cores", *counted])


def _holds(size: tuple[int, float, int, Mapping[str, int]], request: Request) -> bool:
    memory, cores, gpus, others = size
    plain = memory >= request.memory and cores >= request.cores and gpus >= request.gpus
    return plain and all(others.get(name, 0) >= count for name, count in request.extended.items())
