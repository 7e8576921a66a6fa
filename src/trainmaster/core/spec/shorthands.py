"""Shorter ways of writing a section, and the keys they stand for: `replicas: 2` is `{min: 2, max: 2}`.

`spelled` expands one value of a known shape. `spelled_out` expands a whole description without judging it: layers of settings are joined
key by key, so `restart: task` in one and `restart: {limit: 5}` in the next must both be sections by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from trainmaster.core.spec.job import Input, Job, Output, file_name
from trainmaster.core.spec.shapes import SHAPES, choice

# Other systems' names of the keys of a job or of a role -> the key here.
SYNONYMS = {
    **dict.fromkeys(("count", "instances", "nnodes", "num_workers", "worker_num", "workers"), "replicas"),
    **dict.fromkeys(("cpu", "cpus", "cores", "vcores"), "resources.cores"),
    **dict.fromkeys(("gpu", "gpus"), "resources.gpus"),
    **dict.fromkeys(("mem", "memory"), "resources.memory"),
    **dict.fromkeys(("cmd", "entrypoint", "script"), "command"),
    **dict.fromkeys(("max_restarts", "retries"), "restart.limit"),
    **dict.fromkeys(("envs", "variables"), "env"),
    "nproc_per_node": "processes", "tasks": "roles", "timeout": "timeouts.job",
}  # fmt: skip
BY_NAME = ("sections by name", "secrets", "links")
_ONE_KEY = {"restart": "scope", "stop": "grace", "checkpoint": "path", "tensorboard": "logs", "network": "interface"}
_ENVIRONMENTS = (
    (".txt", "requirements"),
    (".tar.gz", "archive"),
    (".tgz", "archive"),
    (".zip", "archive"),
    (".tar", "archive"),
)
_LISTS = ("env", "ports", "after")  # mappings that may be written as lists


def keys_of(of: type[Any]) -> dict[str, Any]:
    """Return the fields of a section by key, without `name`: a section's own name is the key that it stands under."""
    fields = attrs.fields(of)
    return {
        file_name(field.name): field
        for field in fields
        if field.metadata and not (field.name == "name" and of is not Job)
    }


def spelled(shape: str, of: type[Any], value: Any) -> Any:
    """Expand a section written in a shorter way into its keys; return any other value unchanged. Raises ValueError."""
    if isinstance(value, Mapping):
        return value
    if value is None:
        return None if shape == "links" else {}
    if shape == "replicas" and isinstance(value, int | str):
        return _readable(of, {"min": value, "max": value})
    if not isinstance(value, str):
        return value
    if shape in _ONE_KEY:
        return _readable(of, {_ONE_KEY[shape]: value})
    if of in (Input, Output):
        return {"url": value}
    if shape == "environment":
        return {next((kind for ending, kind in _ENVIRONMENTS if value.endswith(ending)), "path"): value}
    if shape == "links":
        return _readable(of, _link(value))
    if shape == "completion":
        if value != "all":
            raise ValueError("expected all, {first: ROLE} or {failures: PART}")
        return {}
    if shape == "secrets":
        raise ValueError(
            "a value does not belong here: {file: PATH} reads one, {} takes the submitter's variable of this name"
        )
    return value


def _readable(of: type[Any], section: dict[str, Any]) -> dict[str, Any]:
    """Return the section; raise ValueError where a value in it is wrong, so that messages name the key that the user wrote."""
    known = keys_of(of)
    for key, value in section.items():
        shape = known[key].metadata["shape"]
        (choice(shape) or SHAPES[shape][0])(value)
    return section


def spelled_out(data: Any, of: type[Any] = Job) -> Any:
    """Return the description with every section as keys. A value that cannot be understood stays unchanged, for the reader to refuse."""
    if not isinstance(data, Mapping):
        return data
    known = keys_of(of)
    return {key: _value(known[key], value) if key in known else value for key, value in data.items()}


def by_name(shape: str, value: Any) -> Any:
    """Return the sections as a mapping by name; secrets may be a list of names."""
    is_list = shape == "secrets" and isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    return dict.fromkeys(value) if is_list else value


def _value(field: Any, value: Any) -> Any:
    shape, of = field.metadata["shape"], field.metadata["of"]
    if value is None:
        return None
    if shape in BY_NAME:
        value = by_name(shape, value)
        return (
            {key: _section(shape, of, section) for key, section in value.items()}
            if isinstance(value, Mapping)
            else value
        )
    if of is not None:
        return _section(shape, of, value)
    if shape in _LISTS and isinstance(value, list | tuple):
        try:
            return SHAPES[shape][0](value)
        except ValueError:
            return value
    return value


def _section(shape: str, of: type[Any], value: Any) -> Any:
    try:
        return spelled_out(value if value is None else spelled(shape, of, value), of)
    except ValueError:
        return value


def _link(value: str) -> dict[str, Any]:
    """Parse `role:index:port/path`. Raises ValueError."""
    head, mark, page = value.partition("/")
    parts = head.split(":")
    if len(parts) != 3:
        raise ValueError("expected role:index:port/path")
    return {"role": parts[0], "index": parts[1], "port": parts[2], "path": mark + page}
