"""The fields of parameters and bodies, with their bounds as words of JSON Schema. These check requests, and describe them.

A class of such fields is read from a query, whose values are texts, or from a JSON body. Each fault is a `Refusal` that names the field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

import attrs

TEXTS, WHOLE, WHOLE_OR_NONE = list[str], int, int | None

Model = TypeVar("Model")


class Refusal(Exception):
    """A request is answered by an error status and a text."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})


def field(description: str, default: Any = attrs.NOTHING, **words: Any) -> Any:
    """Return a field with its bounds: minimum, maximum, exclusiveMinimum, maxLength, pattern (of the whole text), maxItems."""
    return attrs.field(default=default, metadata={"description": description, **words})


def from_query(model: type[Model], items: Iterable[tuple[str, str]]) -> Model:
    """Return the parameters of a query."""
    texts: dict[str, list[str]] = {}
    for name, text in items:
        texts.setdefault(name, []).append(text)
    fields = _fields(model, texts, "parameter")
    values = {}
    for name, values_of_name in texts.items():
        if fields[name].type == TEXTS:
            values[name] = _bounded(fields[name], values_of_name)
        elif len(values_of_name) > 1:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"the parameter {name} is there {len(values_of_name)} times")
        else:
            values[name] = _bounded(fields[name], _from_text(fields[name], values_of_name[0]))
    return model(**values)


def from_body(model: type[Model], body: Mapping[str, Any]) -> Model:
    """Return the fields of a JSON body."""
    fields = _fields(model, body, "field")
    for name, known in fields.items():
        if known.default is attrs.NOTHING and name not in body:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"the field {name} is missing: {known.metadata['description']}")
    return model(**{name: _bounded(fields[name], _from_json(fields[name], value)) for name, value in body.items()})


def _fields(model: type[Any], names: Iterable[str], kind: str) -> dict[str, Any]:
    fields = {known.name: known for known in attrs.fields(model)}
    for name in names:
        if name not in fields:
            known_names = ", ".join(fields) or "there are none"
            raise Refusal(HTTPStatus.BAD_REQUEST, f"unknown {kind} {name[:40]!r}; known: {known_names}")
    return fields


_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?([eE][-+]?[0-9]{1,3})?")
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _from_text(known: Any, text: str) -> Any:
    if known.type is bool:
        if text.lower() not in _FLAGS:
            raise _wrong(known, text, "true or false")
        return _FLAGS[text.lower()]
    if known.type in (WHOLE, WHOLE_OR_NONE):
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise _wrong(known, text, "a whole number")
        return int(text)
    if known.type is float:
        if not _NUMBER.fullmatch(text):
            raise _wrong(known, text, "a number")
        return float(text)
    return text


def _from_json(known: Any, value: Any) -> Any:
    if known.type in (WHOLE, WHOLE_OR_NONE):
        if value is None and known.type == WHOLE_OR_NONE:
            return None
        if isinstance(value, float) and value.is_integer():  # JSON Schema takes 2.0 for an integer
            return int(value)
        if type(value) is not int:
            raise _wrong(known, value, "a whole number")
    elif known.type is float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise _wrong(known, value, "a number")
    elif type(value) is not str:
        raise _wrong(known, value, "a text")
    return value


def _bounded(known: Any, value: Any) -> Any:
    """Return a value that keeps the bounds of its field."""
    words = known.metadata
    if isinstance(value, list):
        if len(value) > words["maxItems"]:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"{known.name} is there more than {words['maxItems']} times")
        for item in value:
            _check_text(known, item)
    elif isinstance(value, str):
        _check_text(known, value)
    elif value is not None and not isinstance(value, bool):
        least, above, most = words.get("minimum"), words.get("exclusiveMinimum"), words.get("maximum")
        if (least is not None and value < least) or (above is not None and value <= above):
            raise _wrong(known, value, f"at least {least}" if above is None else f"above {above}")
        if most is not None and value > most:
            raise _wrong(known, value, f"at most {most}")
    return value


def _check_text(known: Any, text: str) -> None:
    if len(text) > known.metadata["maxLength"]:
        raise _wrong(known, text, f"at most {known.metadata['maxLength']} characters")
    if not is_whole_match(known.metadata["pattern"], text) or not _is_encodable(text):
        raise _wrong(known, text, f"{known.metadata['description']}, like {known.metadata['pattern']}")


def is_whole_match(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text, re.ASCII) is not None


def _is_encodable(text: str) -> bool:
    """Tell whether a text has no half of a surrogate pair."""
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


def _wrong(known: Any, value: Any, expected: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, f"{known.name} must be {expected}: {str(value)[:40]!r}")
