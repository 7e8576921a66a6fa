"""Read one value of `engines.kubernetes`, and report a wrong one.

A reader takes the value and its place, `engines.kubernetes.volumes[0].path`, and returns the value to keep, or raises BadInput with the
place and what to write instead. Names and labels of Kubernetes are held to its own rules here, so that a wrong one is reported at submit
and by our key rather than by the API server and by a field of a pod that the user never wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.quantities import SIZE_WORDS
from trainmaster.core.spec.shapes import SHAPES, choice

PLACE = "engines.kubernetes"
Reader = Callable[[Any, str], Any]

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


def wrong(place: str, why: str, mend: str) -> BadInput:
    return BadInput(f"{place}: {why}", place=place, mend=mend, anchor="engine-settings")


def near(name: str, known: Iterable[str]) -> str:
    """Return "did you mean X?", or the names there are."""
    names = list(known)
    matches = get_close_matches(name, names, 1, 0.5)
    return f"did you mean {matches[0]}?" if matches else f"keys: {', '.join(names)}"


def section(readers: Mapping[str, Reader], entries: Any, place: str) -> dict[str, Any]:
    """Read the entries that are written under `place`, each by its reader."""
    if not isinstance(entries, Mapping):
        raise wrong(place, f"{entries!r} is no mapping", f"write keys: {', '.join(readers)}")
    for name in entries:
        if name not in readers:
            raise wrong(f"{place}.{name}", "there is no such key", near(str(name), readers))
    return {name: readers[name](value, f"{place}.{name}") for name, value in entries.items()}


def shape(name: str, mend: str = "") -> Reader:
    """Return a reader by a shape of the job file."""
    read = choice(name) or SHAPES[name][0]

    def checked(value: Any, place: str) -> Any:
        try:
            return read(value)
        except ValueError as error:
            raise wrong(place, f"{value!r}: {error}", mend or "write what is expected") from error

    return checked


flag = shape("flag", "write true or false")
size = shape("positive size", f"write {SIZE_WORDS}")


def text(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise wrong(place, f"{value!r} is no text", "write a text")
    return value


def object_name(value: Any, place: str) -> str:
    if not is_object_name(value):
        raise wrong(
            place, f"{value!r} is no name of an object of Kubernetes", "write small letters, digits, '-' and '.'"
        )
    return str(value)


def image(value: Any, place: str) -> str:
    """Return the name of an image. A kubelet calls a wrong one InvalidImageName, long after the submission."""
    match = _IMAGE.fullmatch(value) if isinstance(value, str) else None
    if match is None or len(match[1]) > _LONGEST_IMAGE:
        raise wrong(place, f"{value!r} is no name of an image", IMAGE_WORDS)
    return str(value)


def object_names(value: Any, place: str) -> tuple[str, ...]:
    return tuple(object_name(name, f"{place}[{at}]") for at, name in enumerate(items(value, place, "[a, b]")))


def label_name(value: Any, place: str) -> str:
    if not is_label_name(value):
        raise wrong(place, f"{value!r} is no name of a label", "write NAME or DOMAIN/NAME")
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


def named(value: Any, place: str) -> Mapping[str, Any]:
    """Read a mapping whose keys are names of labels or annotations, none of them ours."""
    if not isinstance(value, Mapping):
        raise wrong(place, f"{value!r} is no mapping", "write {NAME: VALUE}")
    for name in value:
        label_name(name, f"{place}.{name}")
        if str(name).startswith(_OURS):
            raise wrong(f"{place}.{name}", f"what begins with {_OURS} is ours", "choose another name")
    return value


def _label_value(value: Any, place: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool | int | float):
        raise wrong(place, f"{value!r} is no text", f'write "{str(value).lower()}", in quotes')
    if not is_label_value(value):
        raise wrong(
            place, f"{value!r} is no value of a label", "write up to 63 letters, digits, '-', '_' and '.' within it"
        )
    return str(value)


def mapping(value: Any, place: str) -> dict[str, Any]:
    """Read a mapping of Kubernetes' own, as it is."""
    if not isinstance(value, Mapping):
        raise wrong(place, f"{value!r} is no mapping", "write it as Kubernetes' documents do")
    return dict(value)


def items(value: Any, place: str, example: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise wrong(place, f"{value!r} is no list", f"write {example}")
    return list(value)


def is_object_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_OBJECT and _OBJECT.fullmatch(value) is not None


def is_label_name(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    domain, slash, name = value.rpartition("/")
    return bool(name) and is_label_value(name) and (is_object_name(domain) if slash else True)


def is_label_value(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_LABEL and _LABEL.fullmatch(value) is not None
