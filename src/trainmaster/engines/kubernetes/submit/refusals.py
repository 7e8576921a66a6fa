"""Ask the API server whether it would make a pod, and report its refusal by the key of the job file.

The server's dry run (`dryRun=All`, `fieldValidation=Strict`) is the source of truth for the fields of a pod, what may be in them, and the
policies of the namespace. It names a field of the pod that we have made; the user has written a pod template, or a setting of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainmaster.core.errors import BadInput
from trainmaster.engines.kubernetes.master import waiting
from trainmaster.engines.kubernetes.pods.keys import PLACE
from trainmaster.engines.kubernetes.pods.pods import Shape
from trainmaster.engines.kubernetes.pods.templates import place_of, place_of_quantity
from trainmaster.engines.kubernetes.settings import MASTER
from trainmaster.kube.client import Client
from trainmaster.kube.errors import ApiError, Conflict
from trainmaster.kube.kinds import PODS

# Words of a server that cannot decode a pod. If it can decode a wrong pod, it lists the fields.
_FIELD = re.compile(r'unknown field "([^"]+)"|Go struct field \w+\.(\S+) of type')
_QUANTITY = re.compile(r"quantities must match the regular expression '(.+)'")
_SETTINGS = {
    "spec.tolerations": "tolerations", "spec.affinity": "affinity", "spec.nodeSelector": "node_selector", "spec.volumes": "volumes",
    "spec.securityContext": "run_as", "metadata.labels": "labels", "metadata.annotations": "annotations",
}  # fmt: skip
# Words of the namespace's policies and quotas -> the setting that they are about, and what to do beside choosing another namespace.
_POLICIES = (
    (r"hostPath volumes|restricted volume types", "volumes", "use a claim in its place"),
    (r"runAsNonRoot|runAsUser", "run_as", "name a user other than 0"),
    (r"must specify (?:\S+,)?limits\.cpu", "limit_cores", f"set {PLACE}.limit_cores: true"),
)


async def try_pod(client: Client, shape: Shape, role: str, pod: Mapping[str, Any]) -> None:
    """Raise BadInput where the cluster would not make this pod of a role, or of the master."""
    try:
        await client.create(PODS, pod, dry_run=True, strict=True)
    except Conflict:
        return
    except ApiError as error:
        trouble = waiting.denial(error)
        if error.code not in (400, 403, 422):
            raise
        if trouble.hopeless is not None:  # else a quota that is full now
            place, mend = _place(error, shape, role, pod)
            raise BadInput(f"{role}: {trouble.detail}", place=place, mend=mend, anchor="pod-refused") from error


def _place(error: ApiError, shape: Shape, role: str, pod: Mapping[str, Any]) -> tuple[str, str]:
    """Return the key that makes the field that a refused pod is wrong by, the role's own where none is known; and what to do."""
    place, templates = role if role == MASTER else f"roles.{role}", shape.settings.of(role).pod
    if match := _QUANTITY.search(error.message):
        return place_of_quantity(match[1], templates) or place, "write a quantity like 500m, 2 or 1Gi"
    for pattern, key, mend in _POLICIES:
        if re.search(pattern, error.message):
            return _key(key, shape, role) or f"{PLACE}.{key}", f"{mend}; or choose another namespace"
    match = _FIELD.search(error.message)
    field = match[1] or match[2] if match else next(iter(error.causes), ("", ""))[0]
    if not field:
        return place, "change the job, or choose another namespace"
    section = re.sub(r"\[[^\]]*\]", "", field.rpartition(".")[0])
    place = place_of(field, pod, templates) or _setting(field, shape, role) or place
    return place, f"write what Kubernetes has there: kubectl explain pod.{section}"


def _setting(field: str, shape: Shape, role: str) -> str:
    """Return the setting, of the role or of all pods, that makes a field; "" where none does."""
    return _key(next((key for prefix, key in _SETTINGS.items() if field.startswith(prefix)), ""), shape, role)


def _key(key: str, shape: Shape, role: str) -> str:
    """Return where the job has a setting, for the role or for all pods; "" where it has none."""
    entries = shape.job.engines["kubernetes"]
    if key in ((entries.get("roles") or {}).get(role) or {}):
        return f"{PLACE}.roles.{role}.{key}"
    return f"{PLACE}.{key}" if key in entries else ""
