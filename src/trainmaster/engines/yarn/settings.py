"""The section `engines.yarn` of a job file, read strictly."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import attrs

from trainmaster.engines.sections import Reader, section, shape, text, wrong

PLACE = "engines.yarn"
_LONGEST = 1e9  # seconds; YARN counts milliseconds in 64 bits
_VALIDITY = "write 10m; none: deaths count for ever"
_PRINCIPAL_WORDS, _PATH_WORDS = "write YOU@REALM", "write /the/whole/path.keytab"
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
    runtime: Mapping[str, str] = attrs.field(
        factory=dict
    )  # more of its variables, by their names behind YARN_CONTAINER_RUNTIME_
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
    return {f"YARN_CONTAINER_RUNTIME_{name}": value for name, value in options.runtime.items()} | variables


def settings(entries: Mapping[str, Any]) -> Settings:
    """Read the section. Raises BadInput, naming the key and the nearest name."""
    return Settings(**section(_READ, entries, PLACE))


def _validity(value: Any, place: str) -> float:
    seconds = shape("duration or none", _VALIDITY)(value, place)
    if seconds == 0:
        raise wrong(place, f"{value!r} is not a time", _VALIDITY)
    return min(seconds or 0.0, _LONGEST)


def _keytab(value: Any, place: str) -> Keytab:
    known = {"principal": _principal, "keytab": _path}
    return Keytab(**section(known, value, place, principal=_PRINCIPAL_WORDS, keytab=_PATH_WORDS))


def _principal(value: Any, place: str) -> str:
    if not _PRINCIPAL.fullmatch(text(value, place)):
        raise wrong(place, f"{value!r} is not a principal with its realm", _PRINCIPAL_WORDS)
    return str(value)


def _path(value: Any, place: str) -> str:
    path = os.path.expanduser(text(value, place))
    if not os.path.isabs(path):
        raise wrong(place, f"{value!r} is not a whole path", _PATH_WORDS)
    return path


_READ: dict[str, Reader] = {
    "queue": text, "label": text, "tags": shape("texts"), "attempts": shape("positive count"), "validity": _validity,
    "mounts": shape("texts"), "network": text, "kerberos": _keytab, "view": text,
    "runtime": shape("labels", 'write {DOCKER_DELAYED_REMOVAL: "true"}'),
}  # fmt: skip
