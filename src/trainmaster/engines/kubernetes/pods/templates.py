"""Check a user's pod template, and merge it into a pod of ours.

The merge is Kubernetes' strategic merge: mappings are merged key by key, null takes away, and a list whose elements have a key of their own
(containers by `name`, mounts by `mountPath`) is merged element by element; any other list is replaced. `$patch: delete` and `replace`
do what they do in `kubectl patch`. A volume of another kind takes the place of that with its name.

A template cannot change what is ours, for a job would not run, or would get other pods than it asked for: `FIXED` says which paths are ours
and which key to use instead. Every conflict is reported by its path in the template.

Which fields a pod has, and what may be in them, the API server says (`submit.refusals`). It is asked once our pod is made, so a template is
held here to what the merge needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from trainmaster.engines.sections import items, mapping, wrong

PROGRAM, RUNTIME, FILES = (
    "program",
    "runtime",
    "files",
)  # our container, and the init containers that bring runtime and files
Path = tuple[str, ...]

_PATCH, _NAME = "$patch", "name"
# A list (by its path without elements) -> the key of its elements: `patchMergeKey` of k8s.io/api/core/v1.
_OF_CONTAINERS = {"env": _NAME, "ports": "containerPort", "volumeMounts": "mountPath", "volumeDevices": "devicePath"}
_KEYS: dict[Path, str] = {
    ("metadata", "ownerReferences"): "uid",
    ("spec", "containers"): _NAME, ("spec", "initContainers"): _NAME, ("spec", "volumes"): _NAME,
    ("spec", "imagePullSecrets"): _NAME, ("spec", "hostAliases"): "ip", ("spec", "topologySpreadConstraints"): "topologyKey",
    ("spec", "resourceClaims"): _NAME, ("spec", "schedulingGates"): _NAME,
    **{("spec", of, name): key for of in ("containers", "initContainers") for name, key in _OF_CONTAINERS.items()},
}  # fmt: skip
_SETS = frozenset({("metadata", "finalizers")})  # lists of texts that are joined
_OF_ONE_KIND = (("spec", "volumes"), ("spec", "resourceClaims"))  # `retainKeys`

# Mappings that we read ourselves once the templates are merged.
_MAPPINGS: frozenset[Path] = frozenset({
    ("metadata",), ("spec",), ("spec", "affinity"), ("spec", "affinity", "nodeAffinity"), ("spec", "containers", "securityContext"),
    ("spec", "initContainers", "securityContext"),
})  # fmt: skip
_QUANTITIES = frozenset({"requests", "limits", "sizeLimit", "overhead"})  # fields of them

# Paths that are ours -> what to write instead. Elements of lists are named by their keys.
_CONTAINERS = ("spec", "containers", PROGRAM)
_RESOURCES = "say it by resources: of the role"
FIXED: dict[Path, str] = {
    ("metadata", "name"): "leave it out: each pod has a name of its own",
    ("metadata", "generateName"): "leave it out: each pod has a name of its own",
    ("metadata", "namespace"): "name it by engines.kubernetes.namespace",
    ("metadata", "ownerReferences"): "leave it out: pods are owned by their job, and removed with it",
    ("spec", "restartPolicy"): "say it by restart: of the role",
    ("spec", "hostname"): "leave it out: peers use it to find a task",
    ("spec", "subdomain"): "leave it out: peers use it to find a task",
    ("spec", "terminationGracePeriodSeconds"): "say it by stop.grace of the role",
    ("spec", "serviceAccountName"): "name it by engines.kubernetes.task_service_account, the master's by service_account",
    ("spec", "serviceAccount"): "name it by engines.kubernetes.task_service_account, the master's by service_account",
    ("spec", "ephemeralContainers"): "leave them out: Kubernetes takes them for running pods alone",
    (*_CONTAINERS, "image"): "name it by image: of the role, or by environment.image",
    (*_CONTAINERS, "imagePullPolicy"): "say it by engines.kubernetes.pull",
    (*_CONTAINERS, "command"): "say it by command: of the role; our agent starts it",
    (*_CONTAINERS, "args"): "say it by command: of the role; our agent starts it",
    (*_CONTAINERS, "workingDir"): "leave it out: programs start in a directory of their task's own",
    (*_CONTAINERS, "resources", "requests", "cpu"): _RESOURCES,
    (*_CONTAINERS, "resources", "requests", "memory"): _RESOURCES,
    (*_CONTAINERS, "resources", "limits", "memory"): _RESOURCES,
}  # fmt: skip
# Labels and annotations that say whose a pod is.
_OUR_NAMES = re.compile(r"trainmaster/.*|app\.kubernetes\.io/(instance|component|managed-by)")
_NAMES = (("metadata", "labels"), ("metadata", "annotations"))


@attrs.frozen(slots=True)
class Template:
    """A part of a pod that a user writes. `place`: the key under which it is written."""

    place: str
    data: Mapping[str, Any]


def template(value: Any, place: str) -> Template:
    """Read a template. Raises BadInput for one that is not part of a pod."""
    _check(mapping(value, place), (), place)
    if others := [str(name) for name in value if name not in ("apiVersion", "kind", "metadata", "spec")]:
        raise wrong(f"{place}.{others[0]}", "a pod has no such field", "write it below metadata: or spec:")
    kind, version = value.get("kind", "Pod"), value.get("apiVersion", "v1")
    if (kind, version) not in (("Pod", "v1"), ("PodTemplate", "v1")):
        raise wrong(f"{place}.kind", f"{version}/{kind} is not a pod", "write metadata: and spec: of a pod")
    return Template(place, {name: value[name] for name in ("metadata", "spec") if name in value})


def check_conflicts(of: Template, pod: Mapping[str, Any], ours: Mapping[Path, str] | None = None) -> None:
    """Raise BadInput where the template changes a path of `pod` that is ours: one of `FIXED`, or of `ours`."""
    fixed = {**FIXED, **(ours or {})}
    for path, value in _changes(of.data, (), pod):
        whole = value is None or value is _PATCH
        for at, mend in fixed.items():
            if path[: len(at)] == at or (whole and at[: len(path)] == path):
                raise wrong(_path_text(of.place, path), "this is ours, and a template cannot change it", mend)
        if path[:2] in _NAMES and len(path) > 2 and _OUR_NAMES.fullmatch(path[2]):
            raise wrong(
                _path_text(of.place, path),
                "this says whose the pod is, and a template cannot change it",
                "choose another name",
            )
        if whole and path in (*_NAMES, ("metadata",)):
            raise wrong(
                _path_text(of.place, path),
                "this says whose the pod is, and a template cannot change it",
                "leave it out",
            )


def applied(pod: Mapping[str, Any], of: Template) -> dict[str, Any]:
    """Return the pod with the template merged in. Neither is changed."""
    return _merge(pod, of.data, ())


def without_containers(template: Template) -> Template:
    """Return the template without containers of the user's own; its changes to ours stay."""
    spec = {
        field: [row for row in value if row.get(_NAME, PROGRAM) in (PROGRAM, RUNTIME, FILES)]
        if field in ("containers", "initContainers") and value else value
        for field, value in (template.data.get("spec") or {}).items()
    }  # fmt: skip
    return attrs.evolve(template, data={**template.data, "spec": spec})


# -- the merge --


def _merge(base: Any, patch: Mapping[str, Any], path: Path) -> dict[str, Any]:
    replaced = patch.get(_PATCH) == "replace" or not isinstance(base, Mapping)
    merged: dict[str, Any] = {} if replaced else dict(base)
    for name, value in patch.items():
        if name == _PATCH:
            continue
        inner_path = (*path, name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            merged[name] = _merge(merged.get(name), value, inner_path)
        elif isinstance(value, list | tuple):
            merged[name] = _merge_list(merged.get(name) or [], value, inner_path)
        else:
            merged[name] = value
    return merged


def _merge_list(base: list[Any], patch: list[Any] | tuple[Any, ...], path: Path) -> list[Any]:
    if path in _SETS:
        return [*base, *(text for text in patch if text not in base)]
    key = _KEYS.get(path)
    if key is None:
        return [_merge(None, element, path) if isinstance(element, Mapping) else element for element in patch]
    replaced = any(element == {_PATCH: "replace"} for element in patch)
    elements = {} if replaced else {element[key]: element for element in base}
    for element in patch:
        if key not in element:
            continue
        if element.get(_PATCH) == "delete":
            elements.pop(element[key], None)
        else:
            before = elements.get(element[key])
            if path in _OF_ONE_KIND and before and set(element) - set(before) - {_PATCH}:
                before = None
            elements[element[key]] = _merge(before, element, path)
    return list(elements.values())


def _changes(patch: Any, path: Path, base: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the path and value of each change that a template makes: leaves, None where it takes away, `_PATCH` where it replaces all; not
    what is there already, word for word. Elements of lists are named by their keys.
    """
    if isinstance(patch, Mapping):
        if patch.get(_PATCH) in ("delete", "replace"):
            yield path, _PATCH
        for name, value in patch.items():
            if name != _PATCH:
                yield from _changes(value, (*path, str(name)), base.get(name) if isinstance(base, Mapping) else None)
        return
    key = _KEYS.get(_kind(path)) if isinstance(patch, list | tuple) else None
    if key is None:
        if patch is None or patch != base:
            yield path, patch
        return
    existing = {element[key]: element for element in base or ()}
    for element in patch:
        if key in element:
            yield from _changes(
                {name: value for name, value in element.items() if name != key},
                (*path, str(element[key])),
                existing.get(element[key]),
            )
        else:
            yield path, _PATCH


def _kind(path: Path) -> Path:
    """Return a path without the elements of lists, as the tables have it."""
    named_path: Path = ()
    named = False
    for part in path:
        if named:
            named = False
            continue
        named_path = (*named_path, part)
        named = named_path in _KEYS
    return named_path


# -- what the merge needs --


def _check(fields: Mapping[str, Any], path: Path, place: str) -> None:
    """Raise BadInput where the merge, or what we do with the merged pod, needs a list or a mapping and the template has something else."""
    for name, value in fields.items():
        inner_path = (*path, str(name))
        at, key = _path_text(place, inner_path), _KEYS.get(_kind(inner_path))
        if name == _PATCH and value not in ("merge", "replace", "delete"):
            raise wrong(at, f"there is no {value!r}", "write merge, replace or delete")
        if key is not None and value is not None:
            _check_elements(items(value, at, f"[{{{key}: ..}}]"), inner_path, place, key)
        elif isinstance(value, Mapping):
            _check(value, inner_path, place)
        elif value is not None and _kind(inner_path) in _MAPPINGS:
            mapping(value, at)


def _check_elements(elements: Sequence[Any], path: Path, place: str, key: str) -> None:
    seen = set()
    for number, element in enumerate(elements):
        at = f"{_path_text(place, path)}[{number}]"
        if mapping(element, at) == {_PATCH: "replace"}:
            continue
        if not isinstance(element.get(key), str | int):
            raise wrong(f"{at}.{key}", "it is missing", f"elements are distinguished by {key}")
        if element[key] in seen:
            raise wrong(at, f"there are two with {key}: {element[key]}", "leave one")
        seen.add(element[key])
        _check(element, (*path, str(element[key])), place)


# -- where a template sets what the API server refuses --


def place_of(field: str, pod: Mapping[str, Any], templates: Sequence[Template]) -> str:
    """Return the place of a field of `pod`, as the API server names it, in the last template that sets it; "" where none does."""
    section, name, *_ = *re.findall(r"[^.\[]+", field), ""
    for template in reversed(templates):
        if name in (template.data.get(section) or {}):
            return f"{template.place}.{_named(field, pod)}"
    return ""


def place_of_quantity(pattern: str, templates: Sequence[Template]) -> str:
    """Return the place of a quantity that does not match the pattern; "" where there is none. The API server names no field then."""
    for template in templates:
        for path, value in _changes(template.data, (), None):
            if _QUANTITIES.intersection(path) and not re.fullmatch(pattern, str(value)):
                return _path_text(template.place, path)
    return ""


def _named(field: str, pod: Any) -> str:
    """Return a field, `spec.containers[0].image`, with elements of lists by their names: `spec.containers[program].image`."""
    text = ""
    path: Path = ()
    for name, index in re.findall(r"([^.\[]+)(?:\[(.*?)\])?", field):
        path = (*path, name)
        pod = pod.get(name) if isinstance(pod, Mapping) else None
        if index.isdigit() and isinstance(pod, list):
            pod = pod[int(index)]
            index = pod[_KEYS[path]] if path in _KEYS else index
        text += f".{name}[{index}]" if index else f".{name}"
    return text[1:]


def _path_text(place: str, path: Path) -> str:
    """Return a path as people read it: `place.spec.containers[program].command`."""
    text, named = place, False
    named_path: Path = ()
    for part in path:
        if named or part.startswith("["):
            text += f"[{part.strip('[]')}]"
            named = False
            continue
        named_path = (*named_path, part)
        text, named = f"{text}.{part}", named_path in _KEYS
    return text
