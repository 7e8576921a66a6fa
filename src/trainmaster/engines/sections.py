"""Read the section `engines.NAME` of a job strictly, by a table: key -> its reader.

A reader takes a value and its place, `engines.kubernetes.volumes[0].path`, and returns the value to keep, or raises BadInput with the
place and what to write instead. The shapes of the job file's own keys are readers too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.quantities import SIZE_WORDS
from trainmaster.core.spec.reading import nearest
from trainmaster.core.spec.shapes import SHAPES, choice

Reader = Callable[[Any, str], Any]


def wrong(place: str, why: str, mend: str) -> BadInput:
    return BadInput(f"{place}: {why}", place=place, mend=mend, anchor="engine-settings")


def section(readers: Mapping[str, Reader], entries: Any, place: str, /, **required: str) -> dict[str, Any]:
    """Read the entries that are written under `place`, each by its reader. `required`: keys that must be there -> what to write."""
    if not isinstance(entries, Mapping):
        raise wrong(place, f"it must be a mapping, not {entries!r}", f"write keys: {', '.join(readers)}")
    for name in entries:
        if name not in readers:
            raise wrong(f"{place}.{name}", "there is no such key", nearest(str(name), readers) or "leave it out")
    for name, mend in required.items():
        if name not in entries:
            raise wrong(f"{place}.{name}", "it is missing", mend)
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
        raise wrong(place, f"it must be a string, not {value!r}", "write a string")
    return value


def mapping(value: Any, place: str, example: str = "{KEY: VALUE}") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong(place, f"it must be a mapping, not {value!r}", f"write {example}")
    return dict(value)


def items(value: Any, place: str, example: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise wrong(place, f"it must be a list, not {value!r}", f"write {example}")
    return list(value)
