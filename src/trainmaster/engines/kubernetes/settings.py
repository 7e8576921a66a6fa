"""`engines.kubernetes:` of a job, read strictly.

Settings of pods may be written for all of them, and again under `roles.ROLE` for those of one role (`roles.master` for the master's). There
labels, selectors and other mappings are added to the general ones (a key without a value is taken away), and so are volumes, tolerations
and pull secrets. Pod templates are merged. Every other key replaces the general one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from trainmaster.engines.kubernetes.pods import keys
from trainmaster.engines.kubernetes.pods.keys import PLACE
from trainmaster.engines.kubernetes.pods.templates import Template, template
from trainmaster.engines.kubernetes.pods.volumes import Volume, joined, volumes
from trainmaster.engines.sections import Reader, flag, items, mapping, section, shape, size, text, wrong

MASTER = "master"  # among the roles: the job's master
CLUSTER, CLIENT = "cluster", "client"  # where the master runs
NVIDIA = "nvidia.com/gpu"
USER = 1000  # no root, as "restricted" wants; the first ordinary user of most images
NO_SHM = 0
_PULL = {"always": "Always", "missing": "IfNotPresent", "never": "Never"}
_HIGH, _LOW = "high", "low"  # ElasticDL's classes for a fraction alone


@attrs.frozen(slots=True)
class Priority:
    """The PriorityClass of a role's tasks: `name` for the first part of them, `other` ("": none) for the rest."""

    name: str
    fraction: float = 1.0
    other: str = ""


@attrs.frozen(slots=True)
class RunAs:
    """The user and groups that programs run as. None: as the image or the cluster has it."""

    user: int | None = USER
    group: int | None = USER
    fs_group: int | None = USER  # of the volumes that Kubernetes gives to a group


@attrs.frozen(slots=True)
class Pods:
    """The settings of pods that a user may write."""

    pull: str = ""  # imagePullPolicy; "": as Kubernetes decides
    pull_secrets: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = attrs.field(factory=dict)
    affinity: Mapping[str, Any] = attrs.field(factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    priority_class: Priority | None = None
    volumes: tuple[Volume, ...] = ()
    shm: int | None = (
        None  # bytes of /dev/shm; None: half of the program's memory; NO_SHM: what the container runtime gives
    )
    run_as: RunAs = RunAs()
    accelerator: str = NVIDIA  # what `resources.gpus` counts
    limit_cores: bool = False  # whether a container may use no more cores than it asks for
    labels: Mapping[str, str] = attrs.field(factory=dict)
    annotations: Mapping[str, str] = attrs.field(factory=dict)
    pod: tuple[Template, ...] = ()  # merged strategically, one after the other


@attrs.frozen(slots=True)
class Settings:
    """The settings of Kubernetes that a user may write. `pods` are the general ones, `roles` those of roles that have some, complete."""

    context: str = ""
    namespace: str = ""
    service_account: str = ""  # of the master's pod, one that may make pods; "": made with the job
    run_master: str = CLUSTER
    task_service_account: str = ""  # "": programs get no token of the cluster
    runtime_image: str = ""
    queue: str = ""  # Kueue's local queue
    volcano: str = ""  # Volcano's queue
    page: str = ""  # the address of a job's page in a console of the cluster's, with {namespace} and {job}
    gang_timeout: float | None = 300.0  # s until what was granted of a gang is given back; None: never
    pods: Pods = Pods()
    roles: Mapping[str, Pods] = attrs.field(factory=dict)

    def of(self, role: str) -> Pods:
        """Return the settings for the pods of a role, or of the master."""
        return self.roles.get(role, self.pods)


def settings(entries: Mapping[str, Any]) -> Settings:
    """Read the section of Kubernetes. Raises BadInput, naming key and nearest name."""
    values = section(_READ, entries, PLACE)
    if values.get("queue") and values.get("volcano"):
        raise wrong(f"{PLACE}.volcano", "queue names one of Kueue already", "name one of them: pods have one queue")
    classes: dict[str, Priority] = values.pop("priority_class", {})
    of_roles: dict[str, dict[str, Any]] = values.pop("roles", {})
    general = _with(Pods(), {name: values.pop(name) for name in _PODS if name in values} | _class_of("", classes))
    roles = {
        role: _with(general, _class_of(role, classes) | of_roles.get(role, {}))
        for role in dict.fromkeys([*of_roles, *(role for role in classes if role)])
    }
    return Settings(**values, pods=general, roles=roles)


def _class_of(role: str, classes: Mapping[str, Priority]) -> dict[str, Any]:
    return {"priority_class": classes[role]} if role in classes else {}


def _with(before: Pods, values: Mapping[str, Any]) -> Pods:
    """Return `before` with `values`: each is joined to the earlier value, or replaces it."""
    joined_with = {
        name: _JOINED[name](getattr(before, name), value) for name, value in values.items() if name in _JOINED
    }
    return attrs.evolve(before, **{**values, **joined_with})


def _together(before: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**before, **more}.items() if value is not None}


def _added(before: tuple[Any, ...], more: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*before, *(entry for entry in more if entry not in before))


# A role's value is joined to the general one by these functions; a value that has none here replaces it.
_JOINED: dict[str, Any] = {
    "pull_secrets": _added, "tolerations": _added, "volumes": joined, "node_selector": _together, "labels": _together,
    "annotations": _together, "pod": _added,
}  # fmt: skip


# -- readers --


def _pull(value: Any, place: str) -> str:
    if value not in _PULL:
        raise wrong(place, f"there is no {value!r}", f"write one of {', '.join(_PULL)}")
    return _PULL[value]


def _tolerations(value: Any, place: str) -> tuple[dict[str, Any], ...]:
    entries = items(value, place, "[{key: KEY, operator: Exists}]")
    return tuple(mapping(entry, f"{place}[{at}]") for at, entry in enumerate(entries))


def _priority(value: Any, place: str) -> Priority:
    """Read NAME, a fraction alone as ElasticDL has it, or {class, fraction, other}."""
    if isinstance(value, str):
        return Priority(keys.object_name(value, place))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Priority(_HIGH, _fraction(value, place), _LOW)
    known = {"class": keys.object_name, "fraction": _fraction, "other": keys.object_name}
    values = section(known, value, place, **{"class": "write {class: NAME, fraction: 0.5, other: NAME}"})
    return Priority(values["class"], values.get("fraction", 1.0), values.get("other", ""))


def _priorities(value: Any, place: str) -> dict[str, Priority]:
    """Return the priorities by role; "" means all roles."""
    if not isinstance(value, Mapping) or "class" in value:
        return {"": _priority(value, place)}
    return {str(role): _priority(entry, f"{place}.{role}") for role, entry in value.items()}


def _fraction(value: Any, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise wrong(place, f"{value!r} is not a fraction", "write a part between 0 and 1")
    return float(value)


def _shm(value: Any, place: str) -> int:
    return NO_SHM if value in (None, "none") else int(size(value, place))


def _run_as(value: Any, place: str) -> RunAs:
    """Read {user, group, fs_group}, a user's number alone, or `image`: whom the image or the cluster names."""
    if value == "image":
        return RunAs(None, None, None)
    known = dict.fromkeys(("user", "group", "fs_group"), _id)
    ids = {"user": _id(value, place)} if type(value) is int else section(known, value, place)
    group = ids.get("group", ids.get("user", USER))  # a group of one's own, as most images have it
    return RunAs(ids.get("user", USER), group, ids.get("fs_group", group))


def _id(value: Any, place: str) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise wrong(
            place, f"it must be the number of a user or group, not {value!r}", "write one, like 1000; or run_as: image"
        )
    return value


def _accelerator(value: Any, place: str) -> str:
    if not keys.is_label_name(value) or "/" not in value:
        raise wrong(place, f"{value!r} is not a resource that a device plug-in counts", f"write one like {NVIDIA}")
    return str(value)


def _page(value: Any, place: str) -> str:
    if not text(value, place).startswith(("http://", "https://")):
        raise wrong(
            place, f"{value!r} is not the address of a page", "write one like https://console.example/{namespace}/{job}"
        )
    return str(value)


def _templates(value: Any, place: str) -> tuple[Template, ...]:
    return (template(value, place),)


def _roles(value: Any, place: str) -> dict[str, dict[str, Any]]:
    known = {**_PODS, "priority_class": _priority}
    roles = mapping(value, place, "{ROLE: {node_selector: ..}}")
    return {str(role): section(known, entries, f"{place}.{role}") for role, entries in roles.items()}


_PODS: dict[str, Reader] = {
    "pull": _pull, "pull_secrets": keys.object_names, "node_selector": keys.labels, "affinity": mapping,
    "tolerations": _tolerations, "volumes": volumes, "shm": _shm, "run_as": _run_as, "accelerator": _accelerator,
    "limit_cores": flag, "labels": keys.labels, "annotations": keys.texts, "pod": _templates,
}  # fmt: skip
_READ: dict[str, Reader] = {
    "context": text, "namespace": keys.object_name, "service_account": keys.object_name,
    "run_master": shape(f"{CLUSTER} | {CLIENT}", f"write {CLUSTER} or {CLIENT}"), "task_service_account": keys.object_name,
    "runtime_image": keys.image, "queue": keys.object_name, "volcano": keys.object_name, "page": _page,
    "gang_timeout": shape("duration or none", "write 5m; none: never"), **_PODS, "priority_class": _priorities, "roles": _roles,
}  # fmt: skip
