"""The containers of a job out of ElasticDL's flags: images, resources, and what only Kubernetes has.

Keys that only Kubernetes has are kept in the job file, and a remark says that they change nothing elsewhere.
"""

from __future__ import annotations

from typing import Any

from trainmaster.core.spec.quantities import exact_bytes
from trainmaster.host import machine
from trainmaster.integrations.dialect import Option, count
from trainmaster.integrations.elasticdl import values
from trainmaster.integrations.elasticdl.request import Request

_KUBERNETES = "engines.kubernetes"
_PULL = {"Always": "always", "IfNotPresent": "missing", "Never": "never"}


def set_containers(job: Request) -> None:
    for role in job.roles:
        _set_resources(job, role, f"roles.{role}")
    if not job.is_here or job.has("master_resource_request") or job.has("master_resource_limit"):
        _set_resources(job, "master", "master")
    images = {"environment.image": "image_name"}
    images |= {f"roles.{role}.image": "ps_image" if role == "ps" else "worker_image" for role in job.roles}
    for path, flag in images.items():
        if job.has(flag) and job.is_here:
            job.remark(f"--{flag}: nothing to do; this machine runs no images")
        elif job.has(flag):
            job.set(path, job.text(flag), job.words[flag])
    _set_kubernetes(job)


def _set_resources(job: Request, role: str, section: str) -> None:
    """Set what the containers of a role have. Memory is asked for and limited as one, so the limit counts where it is larger."""
    request, limit = job.option(f"{role}_resource_request"), job.option(f"{role}_resource_limit")
    if job.is_here and not request.strong and not limit.text:
        amounts, disk = _share(job), ""
        job.set(f"{section}.threads", "machine", request)
    else:
        amounts, disk = values.resources(request)
    for key, value in amounts.items():
        job.set((*section.split("."), "resources", key), value, request)
    if limit.text:
        most, _ = values.resources(limit)
        for key in {"memory", "gpus"} & most.keys():
            job.set(f"{section}.resources.{key}", most[key], limit)
        if most.get("cores", 0) > amounts.get("cores", 0):
            job.remark(
                f"--{role}_resource_limit: cpu is not a limit here; idle cores may be used beyond what is asked for"
            )
    if disk:
        container = {"name": "program", "resources": {"requests": {"ephemeral-storage": disk}}}
        job.set(f"{_KUBERNETES}.roles.{role}.pod", {"spec": {"containers": [container]}}, request)


def _share(job: Request) -> dict[str, Any]:
    """Return the part of this machine that lets all tasks run at once; at most what ElasticDL asks for by itself."""
    tasks = sum(map(count, job.sizes.values()))
    memory = int(machine.memory() * 0.9 / tasks) >> 20 << 20
    cores = max(0.01, int(machine.cores() / tasks * 100) / 100)
    return {"cores": min(1.0, cores), "memory": exact_bytes(min(4 << 30, memory))}


def _set_kubernetes(job: Request) -> None:
    """Set what only Kubernetes has. Elsewhere it changes nothing, and a remark says so."""
    if job.has("namespace") or job.is_in_image:
        option = job.words.get("namespace") or Option("default", "flag --namespace's default", False)
        job.set(f"{_KUBERNETES}.namespace", option.text, option)
    if job.has("image_pull_policy") or (job.in_pods and job.has("image_name")):
        job.set(f"{_KUBERNETES}.pull", _PULL[job.text("image_pull_policy")], job.option("image_pull_policy"))
    if job.volumes:
        job.set(f"{_KUBERNETES}.volumes", job.volumes, job.words["volume"])
    for role in (*job.roles, "master"):
        if job.has(flag := f"{role}_pod_priority"):
            path = f"priority_class.{role}" if role != "master" else "roles.master.priority_class"
            job.set(f"{_KUBERNETES}.{path}", values.priority(job.words[flag]), job.words[flag])
    if job.has("cluster_spec_json"):
        _set_pod_specs(job, job.words["cluster_spec_json"])
    kept = ["namespace", "image_pull_policy", "volume", "cluster_spec_json"]
    for name in [*kept, *(name for name in job.words if name.endswith("_pod_priority"))]:
        if job.has(name) and not job.in_pods and not (name == "volume" and job.is_here):
            job.remark(f"--{name}: changes nothing on {job.engine}; the job file keeps it for Kubernetes")


def _set_pod_specs(job: Request, option: Option) -> None:
    for role, spec in values.pod_specs(option).items():
        if role == values.SERVICE:
            job.remark(
                f"--cluster_spec_json: nothing to do for {role}; tasks find each other without services of theirs"
            )
            continue
        if role not in ("", "master", *job.roles):
            job.remark(f"--cluster_spec_json: the job has no {role}")
            continue
        for name, value in spec.pop("env", {}).items():
            for target in [role] if role else job.roles:
                place = ("master",) if target == "master" else ("roles", target)
                job.set((*place, "env", name), value, option)
        for key, value in spec.items():
            job.set(f"{_KUBERNETES}.roles.{role}.{key}" if role else f"{_KUBERNETES}.{key}", value, option)
