"""The values of ElasticDL's flags that have a form of their own: resources, volumes, variables, priorities, specifications of pods.

Each function reads one text as ElasticDL did and returns data of a job file. A wrong value is a BadInput that names the flag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from trainmaster.core.foreign import number_in
from trainmaster.integrations.dialect import Option, unsupported, wrong_value

_AMOUNT = re.compile(r"(\d{1,12})([KMGTP]i?)")
_CPU = re.compile(r"(\d{1,6}(?:\.\d+)?)|(\d{1,9})m")
_GPU = "nvidia.com/gpu"
_DISK = ("disk", "ephemeral-storage")
_VOLUME = {name: name for name in ("host_path", "sub_path", "type")} | {"claim_name": "claim", "mount_path": "path"}
_TRUE, _FALSE = ("true", "yes", "t", "y"), ("false", "no", "f", "n")
_SPECS = {"pod_spec": "", "master_pod_spec": "master", "ps_pod_spec": "ps", "worker_pod_spec": "worker"}
SERVICE = "service_spec"
_OF_PODS = ("labels", "annotations", "tolerations", "affinity", "env")


def boolean(option: Option) -> bool:
    word = option.text.strip().lower()
    if word not in (*_TRUE, *_FALSE):
        raise wrong_value(option, "true or false")
    return word in _TRUE


def resources(option: Option) -> tuple[dict[str, Any], str]:
    """Return `cpu=1,memory=4096Mi,gpu=1` as keys of a role's resources; and the amount of the node's disk, "" where none is named."""
    amounts: dict[str, Any] = {}
    disk = ""
    for name, text in pairs(option, ",", "pairs like cpu=1,memory=4096Mi,gpu=1").items():
        if name == "cpu":
            amounts["cores"] = _cores(text, option)
        elif name == "memory":
            amounts["memory"] = _size(text, option)
        elif name in _DISK:
            disk = text if _size(text, option) else ""
        elif "gpu" not in name and not name.startswith("nvidia.com/"):
            raise wrong_value(option, f"cpu, memory, gpu, disk and ephemeral-storage, not {name}")
        elif number_in(text) is None:
            raise wrong_value(option, f"a whole number of {name}")
        elif name in ("gpu", _GPU):
            amounts["gpus"] = int(text)
        else:
            amounts.setdefault("extended", {})[name] = int(text)
    return amounts, disk


def _cores(text: str, option: Option) -> float:
    amount = _CPU.fullmatch(text)
    cores = (float(amount[1]) if amount[1] else int(amount[2]) / 1000) if amount else 0.0
    if cores <= 0:
        raise wrong_value(option, "a number of cores like cpu=2, cpu=0.5 or cpu=250m")
    return cores


def _size(text: str, option: Option) -> str:
    amount = _AMOUNT.fullmatch(text)
    if amount is None:
        raise wrong_value(option, "a size with a unit, like memory=4096Mi or memory=4Gi")
    return f"{amount[1]}{amount[2]}B"


def pairs(option: Option, separator: str, expected: str) -> dict[str, str]:
    """Return `a=1,b=2` as a dictionary. A name that occurs twice is refused, as in ElasticDL."""
    entries: dict[str, str] = {}
    for entry in filter(None, (entry.strip() for entry in option.text.split(separator))):
        name, mark, text = (part.strip() for part in entry.partition("="))
        if not mark or not name or name in entries:
            raise wrong_value(option, expected + (f", each once: {name}" if name in entries else ""))
        entries[name] = text
    return entries


def volumes(option: Option) -> list[dict[str, str]]:
    """Return `host_path=/h,mount_path=/m;claim_name=c,mount_path=/n` as `engines.kubernetes.volumes`."""
    entries = []
    for text in filter(None, (entry.strip() for entry in option.text.split(";"))):
        fields = pairs(Option(text, option.origin), ",", "pairs like host_path=/data,mount_path=/data")
        if unknown := [name for name in fields if name not in _VOLUME]:
            raise wrong_value(option, f"{', '.join(_VOLUME)}, not {unknown[0]}")
        if "mount_path" not in fields or ("claim_name" in fields) == ("host_path" in fields):
            raise wrong_value(option, "a mount_path, and either a claim_name or a host_path, in each volume")
        entries.append({_VOLUME[name]: value for name, value in fields.items()})
    return entries


def variables(option: Option) -> dict[str, str]:
    """Return `k1=v1,k2=v2` as variables. A comma may be part of a value: only the last one before a `=` ends it."""
    parts = option.text.split("=")
    names, values = [parts[0].strip()], []
    for part in parts[1:-1]:
        value, mark, name = part.rpartition(",")
        if not mark:
            raise wrong_value(
                option, "k=v,k2=v2; a value with = in it cannot be said so, and --set roles.worker.env.NAME=VALUE can"
            )
        values.append(value)
        names.append(name.strip())
    values.append(parts[-1])
    if len(parts) == 1 or not all(re.fullmatch(r"[^\W\d][\w.-]*", name) for name in names):
        raise wrong_value(option, "k=v,k2=v2")
    return dict(zip(names, values, strict=False))


def priority(option: Option) -> Any:
    """Return `high`, a part like `0.5` or `high=0.5`, as `engines.kubernetes.priority_class` of a role."""
    name, mark, part = option.text.strip().partition("=")
    text = part if mark else name
    try:
        fraction = float(text)
    except ValueError:
        if mark:
            raise wrong_value(option, "a class, or a part of the workers from 0 to 1, like 0.5 or high=0.5") from None
        return name
    if not 0 <= fraction <= 1:
        raise wrong_value(option, "a part of the workers from 0 to 1")
    return {"class": name if mark else "high", "fraction": fraction, "other": "low"}


def pod_specs(option: Option) -> dict[str, dict[str, Any]]:
    """Return `--cluster_spec_json` as role -> labels, annotations, tolerations, affinity and env (a dictionary); "" means all pods, and
    SERVICE its specification of services.
    """
    try:
        data = json.loads(option.text)
    except ValueError as error:
        raise wrong_value(option, f"JSON ({error})") from error
    if not isinstance(data, Mapping) or not all(isinstance(spec, Mapping) for spec in data.values()):
        raise wrong_value(option, f"an object with {', '.join(_SPECS)}")
    specs: dict[str, dict[str, Any]] = {}
    for name, spec in data.items():
        if name == SERVICE:
            specs[SERVICE] = dict(spec)
            continue
        if name not in _SPECS:
            raise wrong_value(option, f"{', '.join(_SPECS)}, not {name}")
        if wrong := [key for key in spec if key not in _OF_PODS]:
            raise wrong_value(option, f"{', '.join(_OF_PODS)} in {name}, not {wrong[0]}")
        specs[_SPECS[name]] = {key: _env(value, option) if key == "env" else value for key, value in spec.items()}
    return specs


def _env(entries: Any, option: Option) -> dict[str, str]:
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) and "name" in entry for entry in entries):
        raise wrong_value(option, 'env as [{"name": NAME, "value": VALUE}]')
    for entry in entries:
        if "value" not in entry:
            instead = "a template says it: --set engines.kubernetes.pod=..."
            raise unsupported(Option(str(entry["name"]), option.origin), "a variable that Kubernetes fills in", instead)
    return {str(entry["name"]): str(entry["value"]) for entry in entries}
