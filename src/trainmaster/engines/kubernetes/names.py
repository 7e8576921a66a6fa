"""Name the pods of a job, and the labels by which they are found.

Names are unique among what a namespace has of ours: a task's pod is `<job>-<role>-<index>-<serial>`. A text that is too long for
a name, or has other letters, is cut, and ends with a hash of the whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from trainmaster.core.foreign import number_in
from trainmaster.engines.kubernetes.pods import keys

# Labels: what a pod is to us. Selectors of the master, of commands and of people use these.
JOB, PART, ROLE, INDEX, SERIAL = (f"trainmaster/{name}" for name in ("job", "part", "role", "index", "serial"))
TASK, EPOCH = "trainmaster/task", "trainmaster/epoch"  # annotations: the task, exact; the master that asked
MANAGED_BY, OUR_NAME = "app.kubernetes.io/managed-by", "trainmaster"
TASK_PART, MASTER_PART, GANG_PART = "task", "master", "gang"  # values of PART

_LONGEST = 63  # of a DNS label, and of a label's value


def name_of(job_id: str, task: str, serial: int) -> str:
    """Return the name of the pod of a task's container."""
    role, _, index = task.partition(":")
    return dns_label(f"{job_id}-{role}-{index}-{serial}")


def hostname_of(role: str, index: int) -> str:
    """Return the name by which peers find a task: `<hostname>.<subdomain_of(job id)>`, of whichever of its pods runs."""
    return dns_label(f"{role}-{index}")


def subdomain_of(job_id: str) -> str:
    """Return the name of the job's headless Service, the subdomain of its pods. A Service's name begins with a letter (RFC 1035)."""
    return dns_label(job_id if job_id[:1].isalpha() else f"j-{job_id}")


def run_name(job_id: str) -> str:
    """Name the ConfigMap that owns what is there for the job to run: the master deletes it at the end."""
    return f"{job_id}.run"


def dns_label(text: str) -> str:
    """Return `text` where it is a DNS label (RFC 1123); else cut to one, with a hash of the whole."""
    cleaned = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    return text if cleaned == text and len(text) <= _LONGEST else _hashed(cleaned or "x", text)


def label_value(text: str) -> str:
    """Return `text` where a label can have that value; else cut to one, with a hash of the whole."""
    if keys.is_label_value(text):
        return text
    return _hashed(re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.") or "x", text)


def _hashed(cleaned: str, text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{cleaned[: _LONGEST - 9].rstrip('-_.')}-{digest}"


def labels_of(job_id: str, role: str, index: int, serial: int, name: str = "") -> dict[str, str]:
    """Return the labels of a task's pod; `name` is the job's."""
    return {**_labels(job_id, role, TASK_PART, name), INDEX: str(index), SERIAL: str(serial)}


def labels_of_master(job_id: str, name: str = "") -> dict[str, str]:
    return _labels(job_id, MASTER_PART, MASTER_PART, name)


def labels_of_gang(job_id: str, name: str = "") -> dict[str, str]:
    return _labels(job_id, GANG_PART, GANG_PART, name)


def selector(job_id: str, part: str = TASK_PART) -> str:
    """Return the selector of the pods of a job."""
    return f"{JOB}={label_value(job_id)},{PART}={part}"


def task_of(pod: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the task and serial of a pod; None for a pod of no task."""
    meta = pod.get("metadata") or {}
    task, serial = (meta.get("annotations") or {}).get(TASK), number_in((meta.get("labels") or {}).get(SERIAL, ""))
    return (task, serial) if task and serial is not None else None


def stamped(pod: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Mark the pod with its master's `epoch`: a master that does not know its successor yet leaves the successor's pods alone."""
    about = pod["metadata"]
    return {**pod, "metadata": {**about, "annotations": {**about.get("annotations", {}), EPOCH: str(epoch)}}}


def epoch_of(pod: Mapping[str, Any]) -> int:
    """Return the epoch of the master that made the pod; 0 where the pod does not say."""
    epoch = ((pod.get("metadata") or {}).get("annotations") or {}).get(EPOCH, "")
    return number_in(epoch) or 0


def _labels(job_id: str, role: str, part: str, name: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": OUR_NAME, "app.kubernetes.io/instance": label_value(job_id),
        "app.kubernetes.io/component": label_value(role), "app.kubernetes.io/part-of": label_value(name or job_id),
        MANAGED_BY: OUR_NAME, JOB: label_value(job_id), PART: part, ROLE: label_value(role),
    }  # fmt: skip
