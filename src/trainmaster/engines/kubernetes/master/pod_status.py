"""Translate what Kubernetes says of a pod that ends into our reasons.

There are three cases. A *warning*: the pod will be taken away and still runs (the condition DisruptionTarget, a deletion that is not ours).
An *end*: nothing of it runs any more, for its phase or the state of its container says so. For a pod that is taken away the kubelet reports
neither before its last container has ended, and a sidecar may take the whole grace: our agent's own report comes before. A *loss*:
Kubernetes has given the pod up and its processes may run on (its node does not answer, or the object was removed by force), for then nobody
has seen the container end.

Sources: k8s.io/api core/v1 (PodFailed, PodReason..., container states), the kubelet's eviction and shutdown packages, the node lifecycle
controller's taints; each row that the tests of a real cluster can bring about was seen there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from trainmaster.core.spec.quantities import parse_count
from trainmaster.engines.statuses import NO_PYTHON, OUT_OF_REACH, TERMINATED

Pod = Mapping[str, Any]
Figures = dict[str, Any]
PROGRAM, RUNTIME = "program", "runtime"  # our container, and the one that prepares it
OVER = ("Succeeded", "Failed")

# Conditions' reasons (core/v1 types.go, and Kueue's TerminationTarget): our reason, and by whom or of what.
DISRUPTIONS: dict[str, tuple[str, str]] = {
    "PreemptionByScheduler": ("preempted", "a pod of higher priority"),
    "DeletionByTaintManager": ("killed-by-engine", "its node was tainted, and takes the pod no longer"),
    "EvictionByEvictionAPI": ("killed-by-engine", "it was evicted, as by a drain of its node"),
    "DeletionByPodGC": ("node-lost", ""),
    "TerminationByKubelet": ("killed-by-engine", "its node ran short, or was shut down"),
    "Preempted": ("preempted", "other jobs of its queue"),
    "StoppedByKueue": ("preempted", "other jobs of its queue"),
    "WorkloadEvictedDueToPreempted": ("preempted", "other jobs of its queue"),
}
_OTHER = ("killed-by-engine", "")

# `status.reason` of a pod: our reason; its message is the detail.
STATUSES: dict[str, str] = {
    "Evicted": "killed-by-engine",
    "DeadlineExceeded": "killed-by-engine",
    "Preempting": "preempted",
    "NodeLost": "node-lost",
    "Terminated": "killed-by-engine",  # its node was shut down
    "Shutdown": "killed-by-engine",
    "NodeShutdown": "killed-by-engine",
    "UnexpectedAdmissionError": "localization-failed",
    "NodeAffinity": "localization-failed",
    "NodePorts": "localization-failed",
    "TopologyAffinityError": "localization-failed",
    "Unschedulable": "localization-failed",
}
_DISK = re.compile(
    r"ephemeral local storage|ephemeral storage limit|Usage of EmptyDir", re.IGNORECASE
)  # what the pod itself used up
_NOT_THERE = re.compile(r"executable file not found|no such file or directory", re.IGNORECASE)
_SIGNALS = 64  # a status above 128 is a signal's, as shells and runtimes write it
_UNKNOWN = "ContainerStatusUnknown"  # also of a container that was deleted while it was being started
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
          "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}  # fmt: skip


@attrs.frozen(slots=True)
class End:
    """The end of a pod. `lost`: its processes may run on. `reason` None: Kubernetes knows none."""

    status: int | None = None
    reason: str | None = None
    figures: Figures = attrs.field(factory=dict)
    lost: bool = False


# -- what a pod is --


def essence(pod: Pod) -> dict[str, Any]:
    """Return the fields of a pod that are looked at: a thousand whole pods are many MiB."""
    about, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    containers = [
        {name: row.get(name) for name in ("name", "image", "resources")} for row in spec.get("containers") or ()
    ]
    return {
        "metadata": {name: about[name] for name in _OF_METADATA if name in about},
        "spec": {**{name: spec[name] for name in _OF_SPEC if name in spec}, "containers": containers},
        "status": {name: status[name] for name in _OF_STATUS if name in status},
    }


_OF_METADATA = ("name", "uid", "labels", "annotations", "deletionTimestamp", "deletionGracePeriodSeconds")
_OF_SPEC = ("nodeName", "terminationGracePeriodSeconds", "schedulingGates")
_OF_STATUS = ("phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses")


def node_of(pod: Pod) -> str:
    """Return the pod's node; "" while it is placed nowhere."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def deleted(pod: Pod) -> bool:
    """Tell whether anyone has asked for the pod's deletion."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def condition(pod: Pod, name: str) -> Mapping[str, Any]:
    """Return a condition of the pod's status; an empty one where the status lacks it."""
    rows = (pod.get("status") or {}).get("conditions") or ()
    return next((row for row in rows if row.get("type") == name), {})


def container(pod: Pod, name: str = PROGRAM) -> Mapping[str, Any]:
    """Return the status of one of the pod's containers; an empty one where the pod's status lacks it."""
    status = pod.get("status") or {}
    rows = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    return next((row for row in rows if row.get("name") == name), {})


def state(pod: Pod, name: str, of: str) -> Mapping[str, Any]:
    """Return the state `waiting`, `running` or `terminated` of a container; an empty one where it is in another state."""
    return (container(pod, name).get("state") or {}).get(of) or {}


def started(pod: Pod) -> bool:
    """Tell whether our agent runs in the pod, or ran."""
    return bool(state(pod, PROGRAM, "running") or state(pod, PROGRAM, "terminated"))


def out_of_reach(pod: Pod) -> bool:
    """Tell whether the pod's node does not answer: then the node lifecycle controller makes only the pod not ready, not its containers; a
    kubelet reports both.
    """
    ready, containers = condition(pod, "Ready"), condition(pod, "ContainersReady")
    return ready.get("status") == "False" and containers.get("status") == "True"


# -- what becomes of it --


def warning(pod: Pod) -> tuple[float, str, Figures] | None:
    """Return the seconds until a pod is taken away, not by us, and our reason for it with its figures; None where it stays.

    The seconds are those that it is given from now on: clocks of two machines are not compared.
    """
    if not disruption(pod) and not deleted(pod):
        return None
    about = pod["metadata"]
    grace = about.get("deletionGracePeriodSeconds")
    if grace is None:
        grace = (pod.get("spec") or {}).get("terminationGracePeriodSeconds") or 30
    reason, figures = _of_disruption(pod) or _deleted(pod)
    return float(grace), reason, figures


def disruption(pod: Pod) -> str:
    """Return the reason in the condition that says that the pod is taken away; "" where none says so."""
    for name in ("DisruptionTarget", "TerminationTarget"):
        row = condition(pod, name)
        if row.get("status") == "True":
            return str(row.get("reason") or "unknown")
    return ""


def ended(pod: Pod, *, by_us: bool = False) -> End | None:
    """Return how the pod ended; None while something of it runs, or may begin to. `by_us`: we have deleted it."""
    status = pod.get("status") or {}
    died = state(pod, PROGRAM, "terminated")
    if status.get("phase") not in OVER and not died:
        return None
    code = _code(died)
    if died.get("reason") == _UNKNOWN and not deleted(pod):  # its node was started anew: the container has ended
        return End(code, "node-lost", {"node": node_of(pod)})
    cause = _by_status(pod) or _of_disruption(pod) or _of_container(pod, died) or preparation(pod)
    reason, figures = cause or (None, {})
    if reason is None and deleted(pod) and not by_us:
        reason, figures = _deleted(pod)
    return End(code, reason, {"node": node_of(pod), **figures})


def vanished(pod: Pod, *, by_us: bool = False) -> End:
    """Return the end of a pod, last seen so, that is no more. A pod that had begun and was not seen to end was removed by force."""
    if (end := ended(pod, by_us=by_us)) is not None and (end.reason or by_us):
        return end
    reason, figures = _of_disruption(pod) or ((None, {}) if by_us else _deleted(pod))
    begun = bool((pod.get("status") or {}).get("containerStatuses")) and end is None and not by_us
    return End(end.status if end else None, reason, {"node": node_of(pod), **figures}, lost=begun)


def given_up(pod: Pod) -> End:
    """Return the end of a pod whose node is away."""
    return End(None, "node-lost", {"node": node_of(pod)}, lost=True)


def _deleted(pod: Pod) -> tuple[str, Figures]:
    return "killed-by-engine", {"detail": f"its pod {pod['metadata'].get('name', '')} was deleted"}


def _by_status(pod: Pod) -> tuple[str, Figures] | None:
    status = pod.get("status") or {}
    why, message = str(status.get("reason") or ""), line(str(status.get("message") or ""))
    if not why:
        return None
    if why.startswith("OutOf"):
        return "localization-failed", {"detail": f"node {node_of(pod)} had no room left: {message or why}"}
    reason = STATUSES.get(why, "killed-by-engine")
    if why == "Evicted" and _DISK.search(message):
        return "disk-full", {"detail": message}
    if why == "DeadlineExceeded":
        message = "activeDeadlineSeconds, which its pod template sets, have passed"
    return reason, {"by": "a pod of its node"} if reason == "preempted" else {"detail": message or why}


def _of_disruption(pod: Pod) -> tuple[str, Figures] | None:
    if not (why := disruption(pod)):
        return None
    reason, words = DISRUPTIONS.get(why, _OTHER)
    if reason == "preempted":
        return reason, {"by": words}
    message = line(str(condition(pod, "DisruptionTarget").get("message") or ""))
    if why == "TerminationByKubelet" and _DISK.search(message):
        return "disk-full", {"detail": message}
    detail = f"{words}: {message}" if words and why == "TerminationByKubelet" and message else words or message or why
    return reason, {"detail": detail}


def _of_container(pod: Pod, died: Mapping[str, Any]) -> tuple[str | None, Figures] | None:
    """Return our reason by the end of our own container."""
    why, code, message = died.get("reason"), died.get("exitCode"), line(str(died.get("message") or ""))
    if code == OUT_OF_REACH:
        return "no-master", {}
    # OOMKilled is set where any process of the container was ever killed so: an agent that did not fail has reported that itself.
    if why == "OOMKilled" and code not in (0, TERMINATED):
        limit = memory_of(pod)
        return "out-of-memory", {"used": limit, "limit": limit} if limit else {}
    if why in ("StartError", "ContainerCannotRun"):
        return "localization-failed", {"detail": message or str(why)}
    if code == NO_PYTHON:
        return no_python(pod)
    return (None, {}) if died else None


def preparation(pod: Pod) -> tuple[str, Figures] | None:
    """Return our reason if a container that prepares ours, or runs with it, has failed."""
    status = pod.get("status") or {}
    for row in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        died = (row.get("state") or {}).get("terminated") or {}
        if not died or died.get("exitCode") == 0:
            continue
        message = line(str(died.get("message") or ""))
        absent = died.get("reason") == "StartError" and _NOT_THERE.search(message)
        if row.get("name") == RUNTIME and (absent or died.get("exitCode") == NO_PYTHON):
            return no_python(pod)
        outcome = (
            "was killed for its memory" if died.get("reason") == "OOMKilled" else f"exited with {died.get('exitCode')}"
        )
        return "localization-failed", {
            "detail": f"container {row.get('name')} {outcome}" + (f": {message}" if message else "")
        }
    return None


def no_python(pod: Pod) -> tuple[str, Figures]:
    """Return our reason for an image without a Python that is new enough."""
    images = [row.get("image") for row in (pod.get("spec") or {}).get("containers") or () if row.get("name") == PROGRAM]
    return "no-python", {"node": f"{node_of(pod)}, image {images[0]}" if images else node_of(pod)}


def _code(died: Mapping[str, Any]) -> int | None:
    """Return the exit status of a container; negative: the signal that ended it."""
    code = died.get("exitCode")
    if code is None or code == TERMINATED:  # it means no signal: SIGTERM does not end the first process of a container
        return code
    number = died.get("signal") or (code - 128 if 128 < code <= 128 + _SIGNALS else 0)
    return -int(number) if number else int(code)


def memory_of(pod: Pod) -> int:
    """Return the limit of our container's memory, in bytes; 0: none."""
    for row in (pod.get("spec") or {}).get("containers") or ():
        if row.get("name") == PROGRAM:
            return quantity((((row.get("resources") or {}).get("limits")) or {}).get("memory") or "0")
    return 0


def quantity(text: Any) -> int:
    """Return the whole number of a quantity of Kubernetes: `1536Mi`, `2G`, `500m` (rounded down), `1e9`; 0 for anything else."""
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", str(text).strip())
    if match is None:
        return 0
    if match[2] == "m":
        return int(float(match[1]) / 1000)
    if match[1].isdigit():
        return parse_count(match[1]) * _UNITS.get(match[2], 1)
    return int(float(match[1]) * _UNITS.get(match[2], 1))


def cores(text: Any) -> float:
    """Return the cores of a quantity: `500m`, `1.5`; 0 for anything else."""
    match = re.fullmatch(r"([0-9.]+)(m?)", str(text).strip())
    return 0.0 if match is None else float(match[1]) / (1000 if match[2] else 1)


def line(text: str) -> str:
    """Return the last line that says something, for use within a sentence: a termination message is the end of what was printed."""
    lines = [printed.strip() for printed in text.strip().splitlines() if printed.strip()]
    return lines[-1][:300].rstrip(".") if lines else ""
