"""Read names and labels of Kubernetes, in settings and elsewhere in a job.

Kubernetes' own rules are checked here. So a wrong name is reported at submit and with our key, not by the API server with a field of a pod
that the user never wrote. The server does not check many names at all, such as an image's.
"""

from __future__ import annotations

import re
from typing import Any

from trainmaster.engines.sections import items, mapping, shape, wrong

PLACE = "engines.kubernetes"

# apimachinery, util/validation: names of objects (RFC 1123 subdomains), of labels, and what labels may hold.
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_LONGEST_OBJECT, _LONGEST_LABEL = 253, 63
_OURS = "trainmaster/"
# https://pkg.go.dev/github.com/distribution/reference: [DOMAIN[:PORT]/]PATH[:TAG][@DIGEST]
_DOMAIN = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[-A-Za-z0-9]*[A-Za-z0-9])?)*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"((?:{_DOMAIN}/)?{_PART}(?:/{_PART})*)(?::\w[\w.-]{{0,127}})?(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{{32,}})?",
    re.ASCII,
)
_LONGEST_IMAGE = 255  # of the name without tag and digest
IMAGE_WORDS = "write [HOST[:PORT]/]PATH[:TAG] or ..@DIGEST; a path has small letters, digits and . _ - between them"


def object_name(value: Any, place: str) -> str:
    if not is_object_name(value):
        raise wrong(
            place, f"{value!r} is not the name of an object of Kubernetes", "write small letters, digits, '-' and '.'"
        )
    return str(value)


def image(value: Any, place: str) -> str:
    """Return the name of an image. A kubelet calls a wrong one InvalidImageName, long after the submission."""
    match = _IMAGE.fullmatch(value) if isinstance(value, str) else None
    if match is None or len(match[1]) > _LONGEST_IMAGE:
        raise wrong(place, f"{value!r} is not the name of an image", IMAGE_WORDS)
    return str(value)


def object_names(value: Any, place: str) -> tuple[str, ...]:
    return tuple(object_name(name, f"{place}[{at}]") for at, name in enumerate(items(value, place, "[a, b]")))


def label_name(value: Any, place: str) -> str:
    if not is_label_name(value):
        raise wrong(place, f"{value!r} is not the name of a label", "write NAME or DOMAIN/NAME")
    return str(value)


def labels(value: Any, place: str) -> dict[str, str | None]:
    """Read labels by name; None for one that is taken away."""
    return {name: _label_value(label, f"{place}.{name}") for name, label in named(value, place).items()}


def texts(value: Any, place: str) -> dict[str, str | None]:
    read = shape("text", "write it in quotes")
    return {
        name: None if content is None else read(content, f"{place}.{name}")
        for name, content in named(value, place).items()
    }


def named(value: Any, place: str) -> dict[str, Any]:
    """Read a mapping whose keys are names of labels or annotations, none of them ours."""
    for name in mapping(value, place, "{NAME: VALUE}"):
        label_name(name, f"{place}.{name}")
        if str(name).startswith(_OURS):
            raise wrong(f"{place}.{name}", f"what begins with {_OURS} is ours", "choose another name")
    return dict(value)


def _label_value(value: Any, place: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool | int | float):
        raise wrong(place, f"must be a string, not {value!r}", f'write "{str(value).lower()}", in quotes')
    if not is_label_value(value):
        raise wrong(
            place,
            f"{value!r} is not the value of a label",
            "write up to 63 letters, digits, '-', '_' and '.' within it",
        )
    return str(value)


def is_object_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_OBJECT and _OBJECT.fullmatch(value) is not None


def is_label_name(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    domain, slash, name = value.rpartition("/")
    return bool(name) and is_label_value(name) and (is_object_name(domain) if slash else True)


def is_label_value(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_LABEL and _LABEL.fullmatch(value) is not None
