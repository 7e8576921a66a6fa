"""`engines.yarn:` of a job, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.core.quantities import parse_seconds

PLACE = "engines.yarn"


@attrs.frozen(slots=True)
class Settings:
    """What a user may say to YARN. `attempts`: masters that may die within `validity` seconds before YARN gives the job up."""

    queue: str = "default"
    label: str = ""  # the partition of containers whose role names none
    tags: tuple[str, ...] = ()
    attempts: int = 4
    validity: float = 600.0
    mounts: tuple[str, ...] = ()  # of the container runtime: SOURCE:TARGET:MODE
    network: str = ""  # of the container runtime


def docker(image: str, said: Settings) -> dict[str, str]:
    """The variables by which YARN's container runtime runs a container in `image`; none where there is none."""
    if not image:
        return {}
    made = {"YARN_CONTAINER_RUNTIME_TYPE": "docker", "YARN_CONTAINER_RUNTIME_DOCKER_IMAGE": image}
    if said.mounts:
        made["YARN_CONTAINER_RUNTIME_DOCKER_MOUNTS"] = ",".join(said.mounts)
    if said.network:
        made["YARN_CONTAINER_RUNTIME_DOCKER_CONTAINER_NETWORK"] = said.network
    return made


def settings(given: Mapping[str, Any]) -> Settings:
    """Raises BadInput, naming key and nearest name."""
    known = {field.name: field for field in attrs.fields(Settings)}
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            near = get_close_matches(name, known, 1, 0.5)
            raise _wrong(
                name, "there is no such key", f"did you mean {near[0]}?" if near else f"keys: {', '.join(known)}"
            )
        made[name] = _READ[name](name, value)
    return Settings(**made)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(name, f"{value!r} is no text", "write a name")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise _wrong(name, f"{value!r} is no list of texts", "write [a, b]")
    return tuple(value)


def _count(name: str, value: Any) -> int:
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if type(value) is not int or value < 1:
        raise _wrong(name, f"{value!r} is no count", "write a whole number from 1 on")
    return value


def _duration(name: str, value: Any) -> float:
    try:
        return parse_seconds(str(value)) or 0.0
    except ValueError as error:
        raise _wrong(name, str(error), "write 10m") from error


def _wrong(name: str, why: str, mend: str) -> BadInput:
    return BadInput(f"{PLACE}.{name}: {why}", place=f"{PLACE}.{name}", mend=mend, anchor="engine-settings")


_READ = {
    "queue": _text, "label": _text, "tags": _texts, "attempts": _count, "validity": _duration, "mounts": _texts, "network": _text,
}  # fmt: skip
