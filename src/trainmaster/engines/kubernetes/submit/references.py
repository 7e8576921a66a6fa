"""Find the objects that a job's pods refer to and the namespace lacks: a pod that mounts a claim which nobody makes would wait for ever.

They are the volumes of the settings, and whatever a pod template mounts or has as variables. Nothing is said of an object at which
the user may not look.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from trainmaster.core.errors import BadInput
from trainmaster.engines.kubernetes.pods.keys import PLACE
from trainmaster.engines.kubernetes.settings import Settings
from trainmaster.kube.client import Client
from trainmaster.kube.errors import Forbidden, NotFound
from trainmaster.kube.kinds import CLAIMS, CONFIGMAPS, SECRETS, Kind

_WORDS = {CLAIMS: "volume claim", CONFIGMAPS: "ConfigMap", SECRETS: "Secret"}
# Where a volume, or a variable of a container, names an object: its field -> the kind, and the field of the name.
_OF_VOLUMES = {
    "persistentVolumeClaim": (CLAIMS, "claimName"),
    "configMap": (CONFIGMAPS, "name"),
    "secret": (SECRETS, "secretName"),
}
_OF_VARIABLES = {
    "configMapRef": (CONFIGMAPS, "name"), "secretRef": (SECRETS, "name"),
    "configMapKeyRef": (CONFIGMAPS, "name"), "secretKeyRef": (SECRETS, "name"),
}  # fmt: skip
Reference = tuple[Kind, str]


async def check_references(
    client: Client, settings: Settings, pods: Mapping[str, Mapping[str, Any]], ours: Collection[str]
) -> None:
    """Raise BadInput for an object that is not there. `pods`: by role, the master's too; `ours`: the names of volumes that we add."""
    roles = {reference: role for role, pod in reversed([*pods.items()]) for reference in references(pod, ours)}
    are_there = await asyncio.gather(*(_is_there(client, *reference) for reference in roles))
    for ((kind, name), role), is_there in zip(roles.items(), are_there, strict=True):
        if not is_there:
            raise BadInput(
                f"there is no {_WORDS[kind]} {name} in namespace {client.namespace}, and pods of {role} would wait for it",
                place=f"{_key(kind, name, settings, role)}: {name}", anchor="no-object",
                mend=f"make it there, or name another: kubectl get {kind.plural} -n {client.namespace}",
            )  # fmt: skip


def references(pod: Mapping[str, Any], ours: Collection[str]) -> Iterator[Reference]:
    """Yield the objects that a pod cannot start without."""
    spec = pod["spec"]
    rows = [(_OF_VOLUMES, volume) for volume in spec.get("volumes") or () if volume.get("name") not in ours]
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        rows += [(_OF_VARIABLES, source) for source in container.get("envFrom") or ()]
        rows += [(_OF_VARIABLES, variable.get("valueFrom") or {}) for variable in container.get("env") or ()]
    for fields, source in rows:
        for field, (kind, name) in fields.items():
            if (named := source.get(field)) and named.get(name) and not named.get("optional"):
                yield kind, named[name]


async def _is_there(client: Client, kind: Kind, name: str) -> bool:
    try:
        await client.get(kind, name, metadata=True)
    except NotFound:
        return False
    except Forbidden:
        return True
    return True


def _key(kind: Kind, name: str, settings: Settings, role: str) -> str:
    """Return the key by which a pod of the role refers to an object."""
    for place, pods in ((PLACE, settings.pods), (f"{PLACE}.roles.{role}", settings.of(role))):
        sources = ({"volumes": [volume.source], "containers": []} for volume in pods.volumes)
        if any((kind, name) in references({"spec": source}, ()) for source in sources):
            return f"{place}.volumes"
    quoted = json.dumps(name)
    return next((part.place for part in settings.of(role).pod if quoted in json.dumps(part.data)), PLACE)
