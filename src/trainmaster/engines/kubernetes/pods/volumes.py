"""Read the volumes that are mounted into pods, as users write them, into those of Kubernetes.

One entry is one volume and its one mount: a source (`claim: data`), the `path` in the container, and how (`sub_path`, `read_only`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from trainmaster.engines.kubernetes.pods import keys
from trainmaster.engines.sections import Reader, flag, items, section, size, text, wrong

OURS = "/trainmaster"  # below it is what the agent needs
_SOURCES = "host_path, claim, config_map, secret, empty, ephemeral or nfs"
# For ElasticDL's --volume, "claim_name=c,mount_path=/data", which is a text.
_LIST = "[{claim: data, path: /data}]; ElasticDL's claim_name is claim here, and its mount_path is path"


@attrs.frozen(slots=True)
class Volume:
    """One volume, mounted at one path. `source` is a volume of Kubernetes without its name."""

    path: str
    source: Mapping[str, Any]
    name: str = ""  # by which a pod template may mean it
    sub_path: str = ""
    read_only: bool = False

    def volume(self, name: str) -> dict[str, Any]:
        return {"name": name, **self.source}

    def mount(self, name: str) -> dict[str, Any]:
        fields: dict[str, Any] = {"name": name, "mountPath": self.path}
        if self.sub_path:
            fields["subPath"] = self.sub_path
        if self.read_only:
            fields["readOnly"] = True
        return fields


def volumes(setting: Any, place: str) -> tuple[Volume, ...]:
    """Read a list of volumes. Raises BadInput."""
    read = tuple(_volume(entry, f"{place}[{at}]") for at, entry in enumerate(items(setting, place, _LIST)))
    for field in ("path", "name"):
        seen: set[str] = set()
        for at, volume in enumerate(read):
            value = getattr(volume, field)
            if value and value in seen:
                raise wrong(f"{place}[{at}].{field}", f"two volumes have {value}", "give one of them another")
            seen.add(value)
    return read


def joined(before: tuple[Volume, ...], more: tuple[Volume, ...]) -> tuple[Volume, ...]:
    """Return the volumes of both; of two that share a path or a name, the later."""
    paths, names = {volume.path for volume in more}, {volume.name for volume in more if volume.name}
    return (*(volume for volume in before if volume.path not in paths and volume.name not in names), *more)


def _volume(entry: Any, place: str) -> Volume:
    values = section(_READ, entry, place)
    sources = [name for name in _SOURCE_OF if name in values]
    if len(sources) != 1:
        why = f"{' and '.join(sources)} in one entry" if sources else "it has no source"
        raise wrong(place, why, f"write one of {_SOURCES}")
    if "path" not in values:
        raise wrong(f"{place}.path", "it is missing", "write where it is to be in the container, like path: /data")
    if "type" in values and sources[0] != "host_path":
        raise wrong(f"{place}.type", f"a {sources[0]} has no type", "leave it out; host_path has one")
    return Volume(
        values["path"], _SOURCE_OF[sources[0]](values), values.get("name", ""), values.get("sub_path", ""), values.get("read_only", False)
    )  # fmt: skip


def _path(value: Any, place: str) -> str:
    """Read a path in the container, none of ours."""
    path = _whole(value, place)
    if path == "/" or path == OURS or path.startswith(f"{OURS}/"):
        raise wrong(place, f"nothing can be mounted at {path}", f"choose another than / and what is below {OURS}")
    if ":" in path:
        raise wrong(place, f"{path!r} has a ':', which Kubernetes does not take", "choose another path")
    return path


def _whole(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value.startswith("/") or ".." in value.split("/"):
        raise wrong(place, f"{value!r} is not a whole path", "write one that begins with / and has no ..")
    return posixpath.normpath(value).replace("//", "/")


def _below(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value or value.startswith("/") or ".." in value.split("/"):
        raise wrong(place, f"{value!r} is not a path within the volume", "write one without / before it and without ..")
    return value


def _objects(value: Any, place: str) -> dict[str, Any]:
    """Read the name of a ConfigMap or Secret, or {name, items: {KEY: PATH}, optional, mode}."""
    if isinstance(value, str):
        return {"name": keys.object_name(value, place)}
    return section(_OBJECTS, value, place, name="write whose contents are to be mounted")


def _chosen(value: Any, place: str) -> list[dict[str, str]]:
    if not isinstance(value, Mapping):
        raise wrong(place, f"must be a mapping, not {value!r}", "write {KEY: PATH}")
    return [{"key": str(key), "path": _below(path, f"{place}.{key}")} for key, path in value.items()]


def _mode(value: Any, place: str) -> int:
    """Read an octal mode as people write it. YAML reads 0440 as a number of eights already."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and set(value) <= set("01234567"):
        value = int(value, 8)
    if type(value) is not int or not 0 <= value <= 0o777:
        raise wrong(place, f"{value!r} is not a mode", 'write "0440"')
    return value


def _empty(value: Any, place: str) -> dict[str, Any]:
    """Read `true`, a size, or {size, memory: true}."""
    if value is None or value is True or value == "true":
        return {}
    if isinstance(value, str):
        return {"sizeLimit": str(size(value, place))}
    values = section({"size": size, "memory": flag}, value, place)
    source = {"medium": "Memory"} if values.get("memory") else {}
    return {**source, "sizeLimit": str(values["size"])} if "size" in values else source


def _ephemeral(value: Any, place: str) -> dict[str, Any]:
    """Read a size, or {size, storage_class, mode}: a claim made for each pod and removed with it."""
    if isinstance(value, str):
        value = {"size": value}
    readers = {"size": size, "storage_class": keys.object_name, "mode": text}
    values = section(readers, value, place, size="write how large it is to be, like size: 10GiB")
    spec = {
        "accessModes": [values.get("mode", "ReadWriteOnce")],
        "resources": {"requests": {"storage": str(values["size"])}},
    }
    if "storage_class" in values:
        spec["storageClassName"] = values["storage_class"]
    return {"volumeClaimTemplate": {"spec": spec}}


def _nfs(value: Any, place: str) -> dict[str, Any]:
    server, colon, path = value.partition(":/") if isinstance(value, str) else ("", "", "")
    if not server or not colon:
        raise wrong(place, f"{value!r} is not SERVER:/PATH", "write files.example.org:/data")
    return {"server": server, "path": _whole(f"/{path}", place)}


def _of_objects(values: Mapping[str, Any], key: str, named: str) -> dict[str, Any]:
    return {_OBJECT_FIELDS.get(name, name) if name != "name" else named: value for name, value in values[key].items()}


_OBJECT_FIELDS = {"mode": "defaultMode"}
_OBJECTS: dict[str, Reader] = {"name": keys.object_name, "items": _chosen, "optional": flag, "mode": _mode}
_READ: dict[str, Reader] = {
    "host_path": _whole, "claim": keys.object_name, "config_map": _objects, "secret": _objects, "empty": _empty,
    "ephemeral": _ephemeral, "nfs": _nfs, "path": _path, "name": keys.object_name, "sub_path": _below, "read_only": flag,
    "type": text,
}  # fmt: skip
# source -> the volume of Kubernetes
_SOURCE_OF: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "host_path": lambda values: {"hostPath": {"path": values["host_path"], **({"type": values["type"]} if values.get("type") else {})}},
    "claim": lambda values: {"persistentVolumeClaim": {"claimName": values["claim"]}},
    "config_map": lambda values: {"configMap": _of_objects(values, "config_map", "name")},
    "secret": lambda values: {"secret": _of_objects(values, "secret", "secretName")},
    "empty": lambda values: {"emptyDir": values["empty"]},
    "ephemeral": lambda values: {"ephemeral": values["ephemeral"]},
    "nfs": lambda values: {"nfs": values["nfs"]},
}  # fmt: skip
