"""A job's values come from layers: a later layer goes before an earlier one, and each value has its origin.

    built-in < site file < user file < environment < job file < flags

The site file is /etc/trainmaster/config.yaml (or $TRAINMASTER_SITE), the user's is config.yaml in $XDG_CONFIG_HOME/trainmaster. A variable
TRAINMASTER_SET_<PATH> sets one key, the parts of its path joined by two underscores: TRAINMASTER_SET_TIMEOUTS__STALL=10m. A path is in
small letters, except the names of variables, labels and annotations.

These three hold keys of the job file, and two keys of their own. `defaults` has keys of a role: they are part of their layer for every role
of the job, below those of `roles`. `engine` names the engine of commands without `--engine`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from trainmaster.client.spec.flags import put
from trainmaster.client.spec.settings_files import ENGINE, PREFIX, settings_files
from trainmaster.core.errors import BadInput
from trainmaster.core.spec import description
from trainmaster.core.spec.description import Place, leaves, source, sources_of
from trainmaster.core.spec.job import Job
from trainmaster.core.spec.reading import check_role, job_from, job_to
from trainmaster.core.spec.shorthands import spelled_out
from trainmaster.engines import registry
from trainmaster.words.text import readable

Layer = tuple[Mapping[str, Any], Mapping[Place, str]]
DEFAULTS = "defaults"
_CHOICES = {("completion",), ("environment",)}  # one of their keys excludes the others
_AS_WRITTEN = {"env", "labels", "annotations", "secrets"}


@attrs.frozen(slots=True)
class Row:
    """One value of a job as `tm explain` shows it."""

    key: str
    value: str
    origin: str


class ForEveryRole(NamedTuple):
    """A layer that is below the roles of the next one: its keys are those of a role, and hold for every role of the job."""

    data: Mapping[str, Any]
    origins: Mapping[Place, str]


def standing(environ: Mapping[str, str] | None = None) -> list[Layer]:
    """Return the layers below the job file, as this machine has them. Raises BadInput where the site file that is named is missing, and
    where `defaults` has anything but keys of a role.
    """
    layers: list[Layer] = []
    for data, origins in _settings(os.environ if environ is None else environ):
        if DEFAULTS in data:
            check_role(data[DEFAULTS] or {}, origins, (DEFAULTS,))
            inside = {place[1:]: origin for place, origin in origins.items() if place[:1] == (DEFAULTS,) != place}
            layers.append(ForEveryRole(data[DEFAULTS] or {}, inside))
        layers.append(({key: value for key, value in data.items() if key not in (DEFAULTS, ENGINE)}, origins))
    return layers


def default_engine(built_in: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the engine of a command that names none. Raises BadInput where the settings name one that does not exist."""
    for data, origins in reversed(_settings(os.environ if environ is None else environ)):
        if (engine := data.get(ENGINE)) is not None:
            place = (
                f"{ENGINE}: {engine}   ({next(origin for path, origin in origins.items() if path[:1] == (ENGINE,))})"
            )
            if not isinstance(engine, str):
                raise BadInput(
                    "expected the name of an engine",
                    place=place,
                    mend="write it like engine: yarn",
                    anchor="wrong-value",
                )
            registry.engine(engine, place)
            return engine
    return built_in


def _settings(environ: Mapping[str, str]) -> list[Layer]:
    """Return the content of the site file, of the user file and of the variables, where they exist."""
    site = environ.get("TRAINMASTER_SITE") or ""
    if site and (os.path.isdir(site) or not os.path.exists(site)):
        raise BadInput(
            "there is no such file", place=f"TRAINMASTER_SITE={site}", mend="correct it, or unset it", anchor="no-file"
        )
    layers: list[Layer] = [_file(path) for path in settings_files(environ) if os.path.isfile(path)]
    variables = {name: text for name, text in environ.items() if name.startswith(PREFIX)}
    return [*layers, _variables(variables)] if variables else layers


def job(layers: Iterable[Layer]) -> tuple[Job, dict[Place, str]]:
    """Return the job that the layers make, and the origin of every path that one of them set."""
    data, origins = merged(layers)
    return job_from(data, origins), origins


def merged(layers: Iterable[Layer]) -> tuple[dict[str, Any], dict[Place, str]]:
    """Join many layers into one: sections are joined key by key; all else, and a section that is a choice of keys, is replaced whole."""
    layers = list(layers)
    roles = [name for layer in layers if not isinstance(layer, ForEveryRole) for name in _roles(layer[0])]
    data: dict[str, Any] = {}
    origins: dict[Place, str] = {}
    for layer, places in (_for_roles(layer, roles) if isinstance(layer, ForEveryRole) else layer for layer in layers):
        plain = spelled_out(layer)
        _join(data, plain, (), origins, _of_leaves(plain, (), places))
    return data, origins


def explain(job: Job, origins: Mapping[Place, str]) -> list[Row]:
    """Return every value of the job with its origin; secret values are redacted."""
    sources = sources_of(origins)
    rows = ((".".join(path), _text(value)) for path, value in leaves(redacted(job)))
    return [Row(key, text, source(key, sources)) for key, text in rows]


def redacted(job: Job) -> Any:
    """Return the job as plain data in which secret values are redacted."""
    return description.redacted(job_to(job))


def _roles(data: Mapping[str, Any]) -> Iterable[str]:
    roles = data.get("roles")
    return roles if isinstance(roles, Mapping) else ()


def _for_roles(layer: ForEveryRole, roles: Iterable[str]) -> Layer:
    """Return the layer with its keys under each of the roles."""
    origins = {("roles", role, *place): origin for role in roles for place, origin in layer.origins.items()}
    return {"roles": dict.fromkeys(roles, layer.data)}, origins


def _file(path: str) -> Layer:
    from trainmaster.client.spec import jobfile  # YAML is loaded only where something is written in it

    return jobfile.load(path, "file of settings", path)


def _variables(variables: Mapping[str, str]) -> Layer:
    from trainmaster.client.spec import jobfile

    data: dict[str, Any] = {}
    origins: dict[Place, str] = {}
    for name, text in sorted(variables.items()):
        path = _path(name.removeprefix(PREFIX).split("__"))
        put(data, path, jobfile.value(text, path))
        origins[path] = f"variable {name}"
    return data, origins


def _path(parts: Sequence[str]) -> Place:
    path: list[str] = []
    for part in parts:
        path.append(part if path and path[-1] in _AS_WRITTEN else part.lower())
    return tuple(path)


def _join(
    data: dict[str, Any], layer: Mapping[str, Any], path: Place, origins: dict[Place, str], places: Mapping[Place, str]
) -> None:
    for key, value in layer.items():
        at = (*path, key)
        if isinstance(value, Mapping) and isinstance(data.get(key), dict) and at not in _CHOICES:
            if at in places:
                origins[at] = places[at]
            _join(data[key], value, at, origins, places)
            continue
        for old in [old for old in origins if old[: len(at)] == at]:
            del origins[old]
        origins |= {place: origin for place, origin in places.items() if place[: len(at)] == at}
        data[key] = _copied(value)


def _of_leaves(value: Any, path: Place, places: Mapping[Place, str]) -> dict[Place, str]:
    """Return `places` and the origin of every value below them: the values of a shorthand have the shorthand's origin."""
    origins = dict(places)

    def walk(value: Any, path: Place, origin: str) -> None:
        origin = places.get(path, origin)
        if origin:
            origins[path] = origin
        if isinstance(value, Mapping):
            for key, child in value.items():
                walk(child, (*path, str(key)), origin)

    walk(value, path, "")
    return origins


def _copied(value: Any) -> Any:
    return {key: _copied(child) for key, child in value.items()} if isinstance(value, Mapping) else value


def _text(value: Any) -> str:
    """Return a value as it may be written in a job file; an odd number of bytes, as people read it."""
    if value is None or isinstance(value, bool | list | tuple):
        return "none" if value is None else json.dumps(value, ensure_ascii=False)
    return str(readable(value))
