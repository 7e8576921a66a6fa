"""Check a job's paths, `file://PATH`, by the volumes of its pods.

A path of a pod is the pod's own and gone with it, unless a volume is mounted there that outlives pods. An output and a checkpoint are
written by tasks and put in place by the master, so the same volume must be in the pods of both. Only the cluster knows what a volume holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Job, writes
from trainmaster.engines.kubernetes.pods.keys import PLACE
from trainmaster.engines.kubernetes.pods.templates import PROGRAM
from trainmaster.log.storage import local_path

Pod = Mapping[str, Any]
# Kinds of volumes that are made for one pod, or that programs cannot write.
_OF_ONE_POD = ("emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image", "gitRepo")
VOLUME_MEND = (
    f"mount a volume that stays into all pods, {PLACE}.volumes: [{{claim: NAME, path: /results}}], and write below it, file:///results/..; "
    "or name a URL that the pods reach (s3://, hdfs://)"
)


def check_places(job: Job, pods: Mapping[str, Pod], master: Pod | None) -> None:
    """Raise BadInput where what the job keeps at a path would go with its pods. `pods`: by role; `master`: None where it is in no pod."""
    for key, url, roles in _kept(job):
        path = local_path(url)
        if path is None:
            continue
        if master is None:
            _refuse(
                key, url, "the master, which runs on this machine (run_master: client), does not see the pods' volumes",
                f"name a URL that pods and this machine reach (s3://, hdfs://); or leave {PLACE}.run_master out",
            )  # fmt: skip
        volumes = {"the master": _volume_at(path, master)} if master is not None else {}
        volumes |= {role: _volume_at(path, pods[role]) for role in roles}
        for name, (volume, reason) in volumes.items():
            if reason:
                _refuse(key, url, reason.format(path=path, pod=name))
            if volume != volumes["the master"][0]:
                _refuse(key, url, f"{name} and the master have different volumes at {path}")


def _kept(job: Job) -> Iterator[tuple[str, str, list[str]]]:
    """Yield key, URL and roles of all that the job writes and keeps."""
    for name, output in job.outputs.items():
        yield f"outputs.{name}.url", output.url, [role for role in job.roles if output in writes(job, role)]
    if job.checkpoint is not None and job.checkpoint.url:
        yield (
            "checkpoint.url",
            job.checkpoint.url,
            [role for role, spec in job.roles.items() if spec.counts or spec.serves],
        )


def _volume_at(path: str, pod: Pod) -> tuple[Any, str]:
    """Return the volume that a path of a pod's program is on, as one can compare it; and why nothing can be kept there, or ""."""
    (program,) = (container for container in pod["spec"]["containers"] if container["name"] == PROGRAM)
    mounts = [mount for mount in program["volumeMounts"] if f"{path}/".startswith(f"{mount['mountPath'].rstrip('/')}/")]
    if not mounts:
        return None, "{path} is in the pod of {pod} alone, and goes with it: no volume is mounted there"
    mount = max(mounts, key=lambda mount: len(mount["mountPath"]))
    (volume,) = (volume for volume in pod["spec"]["volumes"] if volume["name"] == mount["name"])
    source = {kind: fields for kind, fields in volume.items() if kind != "name"}
    kind = next(iter(source), "emptyDir")
    if kind in _OF_ONE_POD:
        return (
            None,
            f"{{path}} is on a volume of the pod of {{pod}} alone, and goes with it: {kind} at {mount['mountPath']}",
        )
    if mount.get("readOnly"):
        return None, f"{{pod}} cannot write {{path}}: its volume at {mount['mountPath']} is read_only"
    return (source, mount["mountPath"], mount.get("subPath", "")), ""


def _refuse(key: str, url: str, reason: str, mend: str = VOLUME_MEND) -> None:
    raise BadInput(reason, place=f"{key}: {url}", mend=mend, anchor="not-on-the-cluster")
