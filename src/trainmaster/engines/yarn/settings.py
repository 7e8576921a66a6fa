"""The section `engines.yarn` of a job file, read strictly."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.quantities import parse_seconds

PLACE = "engines.yarn"
_LONGEST = 1e9  # seconds; YARN counts milliseconds in 64 bits
_PRINCIPAL = re.compile(r"[^\s/@]+(/[^\s/@]+)?@[^\s/@]+")


@attrs.frozen(slots=True)
class Keytab:
    """A keytab by which a job's master logs in on a secure cluster: the principal, and the file of this machine with its key."""

    principal: str
    keytab: str


@attrs.frozen(slots=True)
class Settings:
    """The settings of `engines.yarn`. `attempts`: masters that may die within `validity` seconds before YARN gives the job up."""

    queue: str = "default"
    label: str = ""  # the partition of the containers of roles that name none
    tags: tuple[str, ...] = ()
    attempts: int = 4
    validity: float = 600.0
    mounts: tuple[str, ...] = ()  # for the container runtime: SOURCE:TARGET:MODE
    network: str = ""  # for the container runtime
    view: str = ""  # others than the owner who may see the job, as Hadoop writes access lists: USER,USER GROUP,GROUP
    kerberos: Keytab | None = None


def docker(image: str, options: Settings) -> dict[str, str]:
    """Return the variables by which YARN's container runtime runs a container in `image`; none where there is no image."""
    if not image:
        return {}
    variables = {"YARN_CONTAINER_RUNTIME_TYPE": "docker", "YARN_CONTAINER_RUNTIME_DOCKER_IMAGE": image}
    if options.mounts:
        variables["YARN_CONTAINER_RUNTIME_DOCKER_MOUNTS"] = ",".join(options.mounts)
    if options.network:
        variables["YARN_CONTAINER_RUNTIME_DOCKER_CONTAINER_NETWORK"] = options.network
    return variables


def settings(section: Mapping[str, Any]) -> Settings:
    """Read the section. Raises BadInput, naming the key and the nearest name."""
    _check_names(section, Settings)
    fields: dict[str, Any] = {name: _READ[name](name, value) for name, value in section.items()}
    return Settings(**fields)


def _check_names(section: Mapping[str, Any], kind: type[attrs.AttrsInstance], before: str = "") -> None:
    known = [field.name for field in attrs.fields(kind)]
    for name in section:
        if name not in known:
            near = get_close_matches(name, known, 1, 0.5)
            mend = f"did you mean {near[0]}?" if near else f"keys: {', '.join(known)}"
            raise _wrong(before + name, "there is no such key", mend)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(name, f"{value!r} is no text", "write a name")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise _wrong(name, f"{value!r} is no list of texts", "write [a, b]")
    return tuple(value)


def _count(name: str, value: Any) -> int:
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if type(value) is not int or not 1 <= value < 2**31:
        raise _wrong(name, f"{value!r} is no count", "write a whole number from 1 on, below 2**31")
    return value


def _duration(name: str, value: Any) -> float:
    try:
        seconds = parse_seconds(str(value))
    except ValueError as error:
        raise _wrong(name, str(error), "write 10m") from error
    if seconds == 0:
        raise _wrong(name, f"{value!r} is no time", "write 10m; none: deaths count for ever")
    return min(seconds or 0.0, _LONGEST)


def _keytab(name: str, value: Any) -> Keytab:
    mend = "write {principal: YOU@REALM, keytab: /the/whole/path.keytab}"
    if not isinstance(value, Mapping):
        raise _wrong(name, f"{value!r} is no mapping", mend)
    _check_names(value, Keytab, f"{name}.")
    for key in ("principal", "keytab"):
        if not isinstance(value.get(key), str) or not value[key]:
            raise _wrong(f"{name}.{key}", f"{value.get(key)!r} is no text" if key in value else "it is missing", mend)
    principal, path = value["principal"], os.path.expanduser(value["keytab"])
    if not _PRINCIPAL.fullmatch(principal):
        raise _wrong(f"{name}.principal", f"{principal!r} is no principal with its realm", mend)
    if not os.path.isabs(path):
        raise _wrong(f"{name}.keytab", f"{value['keytab']!r} is no whole path", mend)
    return Keytab(principal, path)


def _wrong(name: str, why: str, mend: str) -> BadInput:
    return BadInput(f"{PLACE}.{name}: {why}", place=f"{PLACE}.{name}", mend=mend, anchor="engine-settings")


_READ = {
    "queue": _text, "label": _text, "tags": _texts, "attempts": _count, "validity": _duration, "mounts": _texts, "network": _text,
    "kerberos": _keytab, "view": _text,
}  # fmt: skip
