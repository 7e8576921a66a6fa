"""Describe and remove the objects of a job in the cluster, except its pods.

    ConfigMap  <job>           the root: deleting it deletes all. It stays as the job's history, with the kept part of its log
    ConfigMap  <job>.run       files of init containers. It owns the Secret: the master, which may delete no Secret, deletes it at the end
    Secret     <job>           token, key and secrets, by role; it owns all that follows, the pods, and the pieces of the files
    Service    <job>           headless: the tasks' names
    Service    <job>-master    by which agents find the master, wherever its pod is
    ReplicaSet <job>-master    the master's pod: another one is made at once where it is deleted, or lost with its node
    ServiceAccount, Role, RoleBinding  <job>   where the submitter may make them: the master's rights in the namespace

The Secret's objects are for a job that runs; the cluster's garbage collector removes them with the Secret at the end. Both ConfigMaps
are immutable: nobody changes what a pod runs, or what commands believe of a job. Labels and annotations may still change.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from trainmaster.engines.kubernetes.names import (
    JOB,
    MANAGED_BY,
    MASTER_PART,
    OUR_NAME,
    PART,
    ROLE,
    label_value,
    labels_of_master,
    run_name,
    subdomain_of,
)
from trainmaster.kube.client import Client
from trainmaster.kube.errors import Forbidden, NotFound
from trainmaster.kube.kinds import CONFIGMAPS, REPLICA_SETS, ROLE_BINDINGS, ROLES, SECRETS, SERVICE_ACCOUNTS, Kind

JOB_PART = "job"  # of the root: by which a namespace's jobs are found
ENDED, STAMP = "trainmaster/ended", "%Y-%m-%dT%H:%M:%SZ"  # an annotation of the root, and the form of its time
BESIDE = "trainmaster/master"  # an annotation of the root: the master's place, if the cluster does not run it
KEPT = timedelta(days=7)  # that a job's history stays, where nobody deletes it
SUBMITTED_WITHIN = timedelta(seconds=330)  # from the root to what runs the master: a submission takes seconds
FORGOTTEN = timedelta(hours=1)  # after which the objects of a submission that was broken off are removed
# The rights of a master in its namespace. `tm cluster grants` prints the same for an administrator.
RULES: tuple[dict[str, Any], ...] = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create", "update", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
)


def master_name(job_id: str) -> str:
    """Return the name of the master's Service and ReplicaSet."""
    return f"{subdomain_of(job_id)}-master"


def owner_of(job_id: str, uid: str, kind: str = "ConfigMap") -> dict[str, Any]:
    """Return the ownerReference to the job's root, or to its Secret."""
    return {"apiVersion": "v1", "kind": kind, "name": job_id, "uid": uid}


def _labels(job_id: str, part: str) -> dict[str, str]:
    labels = {**labels_of_master(job_id), "app.kubernetes.io/component": part, PART: part}
    del labels[ROLE]
    return labels


def _about(job_id: str, part: str, owner: Mapping[str, Any] | None, name: str = "") -> dict[str, Any]:
    about: dict[str, Any] = {"name": name or job_id, "labels": _labels(job_id, part)}
    return about | ({"ownerReferences": [dict(owner)]} if owner else {})


def root(
    job_id: str, job: Mapping[str, Any], site: Mapping[str, Any], certificate: str, on_client: bool = False
) -> dict[str, Any]:
    """Return the root: the job without secrets, and its site. `on_client`: the master runs beside the client."""
    about = _about(job_id, JOB_PART, None) | ({"annotations": {BESIDE: "client"}} if on_client else {})
    kept = {"job.json": json.dumps(dict(job)), "site.json": json.dumps(dict(site)), "certificate": certificate}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "immutable": True, "data": kept}


def run(job_id: str, owner: Mapping[str, Any], boot: Mapping[str, str]) -> dict[str, Any]:
    """Return the ConfigMap of a job that runs: the files of its init containers. It owns the Secret."""
    about = _about(job_id, "run", owner, run_name(job_id))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "immutable": True, "data": dict(boot)}


def secret(job_id: str, owner: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]], token: str) -> dict[str, Any]:
    """Return the job's Secret. `files`: name -> its content, to be written as JSON."""
    contents = {name: json.dumps(dict(content)).encode() for name, content in files.items()} | {"token": token.encode()}
    data = {name: base64.b64encode(content).decode() for name, content in contents.items()}
    about = _about(job_id, "secret", owner)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": about, "type": "Opaque", "data": data}


def names(job_id: str, owner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headless Service: a task's name leads to its pod as soon as that has an address."""
    spec = {"clusterIP": "None", "selector": {JOB: label_value(job_id)}}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _about(job_id, "names", owner, subdomain_of(job_id)),
        "spec": spec,
    }


def way_to_master(job_id: str, owner: Mapping[str, Any], port: int) -> dict[str, Any]:
    selector = {JOB: label_value(job_id), PART: MASTER_PART}
    ports = [{"name": "master", "port": port, "targetPort": port}]
    spec = {"selector": selector, "ports": ports}
    about = _about(job_id, "master", owner, master_name(job_id))
    return {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": spec}


def masters_set(job_id: str, owner: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the master's ReplicaSet. A Job would wait ever longer after each pod that was deleted."""
    selector = {"matchLabels": {JOB: label_value(job_id), PART: MASTER_PART}}
    spec = {"replicas": 1, "selector": selector, "template": dict(template)}
    about = _about(job_id, "master", owner, master_name(job_id))
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": about, "spec": spec}


def account(job_id: str, owner: Mapping[str, Any]) -> list[tuple[Kind, dict[str, Any]]]:
    """Return the master's own ServiceAccount, with its Role."""
    about = _about(job_id, "rights", owner)
    group = "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "Role", "name": job_id}
    subject = {"kind": "ServiceAccount", "name": job_id}
    return [
        (SERVICE_ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about, "automountServiceAccountToken": False}),
        (ROLES, {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": about, "rules": list(RULES)}),
        (ROLE_BINDINGS, {"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": about, "roleRef": role, "subjects": [subject]}),
    ]  # fmt: skip


def expired(roots: Iterable[Mapping[str, Any]], now: datetime) -> list[str]:
    """Return the jobs whose history has stayed its time."""
    ended = {_name(root): _annotation(root, ENDED) for root in roots}
    return [name for name, at in ended.items() if at and now - datetime.strptime(at, STAMP).replace(tzinfo=UTC) > KEPT]


def is_beside_client(root: Mapping[str, Any]) -> bool:
    """Tell whether the job's master is beside its client."""
    return bool(_annotation(root, BESIDE))


def created_at(manifest: Mapping[str, Any]) -> datetime:
    """Return when the API server made an object."""
    return datetime.fromisoformat(manifest["metadata"]["creationTimestamp"])


async def roots_in(client: Client) -> list[dict[str, Any]]:
    """Return the metadata of the roots of our jobs in the namespace."""
    roots, _ = await client.list(CONFIGMAPS, labels=f"{MANAGED_BY}={OUR_NAME},{PART}={JOB_PART}", metadata=True)
    return roots


async def tidy(client: Client) -> None:
    """Delete the jobs of the namespace that have expired, with all that they own, and those whose submission was broken off.

    Only a submission does so: a command that looks a job up changes nothing of anybody's.
    """
    roots, now = await roots_in(client), datetime.now(UTC)
    over = {*expired(roots, now), *await _broken_off(client, roots, now)}
    uids = {name: str(root["metadata"]["uid"]) for root in roots if (name := _name(root)) in over}
    removing = (client.delete(CONFIGMAPS, name, uid=uid, propagation="Background") for name, uid in uids.items())
    await asyncio.gather(
        *removing, return_exceptions=True
    )  # a submission that may not, or cannot now, leaves it to the next one


async def remove_submission(client: Client, job_id: str, certificate: str) -> None:
    """Delete what the submission with this certificate has made so far; the Secret at once, for what it holds.

    A job that somebody else has under the same id has another certificate, and is left alone.
    """
    try:
        root = await client.get(CONFIGMAPS, job_id)
    except NotFound:
        return
    if (root.get("data") or {}).get("certificate") != certificate:
        return
    uid = owner = str(root["metadata"]["uid"])
    with contextlib.suppress(NotFound):
        for kind, name in ((CONFIGMAPS, run_name(job_id)), (SECRETS, job_id)):
            owned = (await client.get(kind, name, metadata=True))["metadata"]
            if not any(reference["uid"] == owner for reference in owned.get("ownerReferences") or ()):
                break
            owner = str(owned["uid"])
            await client.delete(kind, name, uid=owner, propagation="Background")
    await client.delete(CONFIGMAPS, job_id, uid=uid, propagation="Background")


async def _broken_off(client: Client, roots: Iterable[Mapping[str, Any]], now: datetime) -> list[str]:
    """Return the jobs that nothing runs, and of which there is no log: their submission was broken off long ago."""
    old = [
        _name(root)
        for root in roots
        if not (_annotation(root, ENDED) or is_beside_client(root)) and now - created_at(root) > FORGOTTEN
    ]
    if not old:
        return []
    try:
        sets, _ = await client.list(REPLICA_SETS, labels=f"{MANAGED_BY}={OUR_NAME}", metadata=True)
    except Forbidden:
        return []
    run = {_name(replica_set) for replica_set in sets}
    idle = [name for name in old if master_name(name) not in run]
    logs = [client.list(CONFIGMAPS, labels=f"{JOB}={label_value(name)},{PART}=log", metadata=True) for name in idle]
    return [name for name, (log, _) in zip(idle, await asyncio.gather(*logs), strict=True) if not log]


def _name(manifest: Mapping[str, Any]) -> str:
    return str(manifest["metadata"]["name"])


def _annotation(manifest: Mapping[str, Any], annotation: str) -> str:
    return str((manifest["metadata"].get("annotations") or {}).get(annotation) or "")
