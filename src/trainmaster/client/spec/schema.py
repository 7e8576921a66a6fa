"""The JSON Schema of job files, for editors and CI, made from the table that reads them.

It accepts all that reads, and refuses unknown keys, missing ones and values of a wrong kind. `tm run --dry-run` also checks the names of
signals, the least sizes and intervals, and what depends on several keys or on the engine.
"""

from __future__ import annotations

from typing import Any

import attrs

from trainmaster.core.spec.job import Job
from trainmaster.core.spec.shapes import PER_GPU
from trainmaster.core.spec.shorthands import BY_NAME, keys_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DIGITS = r" *([0-9]+(\.[0-9]*)?|\.[0-9]+) *"


def _any_case(words: str) -> str:
    return "".join(f"[{letter}{letter.upper()}]" if letter.isalpha() else letter for letter in words)


_SIZE = f"^{_DIGITS}({_any_case('b|(k|m|g|t|p)(i?b|i)?')}) *$"
_DURATION = f"^({_DIGITS}({_any_case('ms|s|m|h|d|w|(sec|second|min|minute|hour|day|week)s?')}))+ *$"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
_BELOW = r"^(?!/)(?!(.*/)?\.\.(/|$)).+$"  # a path below the working directory
_TEXT: dict[str, Any] = {"type": ["string", "number"]}
_TEXTS: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT}]}
_FLAG: dict[str, Any] = {
    "anyOf": [{"type": "boolean"}, {"type": "string", "pattern": f"^({_any_case('true|false|yes|no|on|off')}|[01])$"}]
}
_NAMES: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "pattern": _NAME},
        {"type": "array", "items": {"type": ["string", "integer"], "pattern": _NAME}},
    ]
}
_NONE: dict[str, Any] = {"anyOf": [{"type": "null"}, {"type": "string", "pattern": f"^ *{_any_case('none')} *$"}]}
_COMMAND: dict[str, Any] = {
    "anyOf": [{"type": "string", "pattern": r"\S"}, {"type": "array", "items": _TEXT, "minItems": 1}]
}


def _whole(least: int | None = None) -> dict[str, Any]:
    bounds = {} if least is None else {"minimum": least, "maximum": 10**9 - 1}
    sign = "-?" if least is None else ""
    return {"anyOf": [{"type": "integer", **bounds}, {"type": "string", "pattern": f"^ *{sign}[0-9_]+ *$"}]}


def _number(**bounds: float) -> dict[str, Any]:
    return {
        "anyOf": [{"type": "number", **bounds}, {"type": "string", "pattern": r"^ *\+?[0-9._]+([eE][-+]?[0-9]+)? *$"}]
    }


def _mapping(values: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}


_SHAPES: dict[str, dict[str, Any]] = {
    "after": {"anyOf": [_NAMES, _mapping({"enum": ["running", "succeeded"]})]},
    "command": _COMMAND,
    "count": _whole(0),
    "counts": _mapping(_whole(0)),
    "duration": {"type": "string", "pattern": _DURATION},
    "engines": _mapping({"type": ["object", "null"]}),
    "env": {"anyOf": [{"type": "array", "items": _TEXT}, _mapping({"type": ["string", "number", "boolean", "null"]})]},
    "factor": _number(minimum=1, maximum=100),
    "flag": _FLAG,
    "interval": {"type": "string", "pattern": _DURATION},
    "labels": _mapping({"type": ["string", "number", "boolean"]}),  # a file's booleans are texts here
    "name": {"type": ["string", "number"], "pattern": _NAME, "minimum": 0},
    "number": _whole(),
    "part": _number(minimum=0, maximum=1),
    "path or URL": {"type": ["string", "number"], "pattern": f"{_BELOW}|^/|://"},
    "ports": {"anyOf": [_NAMES, {**_mapping(_whole(0)), "propertyNames": {"pattern": _NAME}}]},
    "positive count": _whole(1),
    "positive number": _number(exclusiveMinimum=0),
    "positive size": {"type": "string", "pattern": _SIZE},
    "processes": {"anyOf": [{"enum": ["gpu", PER_GPU]}, _whole(1)]},
    "relative path": {"type": ["string", "number"], "pattern": _BELOW},
    "role or task": _TEXT,
    "signal": _TEXT,
    "size": {"type": "string", "pattern": _SIZE},
    "text": _TEXT,
    "text or texts": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]},
    "texts": _TEXTS,
    "threads": {"anyOf": [{"enum": ["cores", "machine"]}, _whole(1)]},
    "version": {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^[0-9.]*[0-9][0-9.]*$"}]},
}


def schema() -> dict[str, Any]:
    """Return the schema of a whole job file."""
    sections: dict[str, Any] = {}
    whole = _section(Job, sections)
    return {"$schema": DIALECT, "title": "a job of trainmaster", **whole, "$defs": sections}


def _section(of: type[Any], sections: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a section, and add those of the sections in it to `sections`, by the names of their classes."""
    keys = keys_of(of)
    required = [key for key, field in keys.items() if field.default is attrs.NOTHING]
    properties = {key: _described(field, sections) for key, field in keys.items()}
    shape = {"type": "object", "properties": properties, "additionalProperties": False}
    return shape | ({"required": required} if required else {})


def _described(field: Any, sections: dict[str, Any]) -> dict[str, Any]:
    meta = field.metadata
    default = "" if field.default is attrs.NOTHING or not meta["default"] else f"; default: {meta['default']}"
    return {"description": meta["doc"] + default, **_value(meta["shape"], meta["of"], sections)}


def _value(shape: str, of: type[Any] | None, sections: dict[str, Any]) -> dict[str, Any]:
    if of is not None:
        if of.__name__ not in sections:
            sections[of.__name__] = {}  # a section may be in several
            sections[of.__name__] = _section(of, sections)
        section = {"$ref": f"#/$defs/{of.__name__}"}
        if shape not in BY_NAME:  # by a shorter way too, and without a value
            return {"anyOf": [section, _whole(1) if shape == "replicas" else _TEXT, {"type": "null"}]}
        entry = {"anyOf": [section, {"type": ["string", "null"]}]}
        return {"anyOf": [_mapping(entry), {"type": "null"}] + ([_TEXTS] if shape == "secrets" else [])}
    if " | " in shape:
        words: list[str | bool] = [*shape.split(" | ")]
        return {"enum": words + ([True, False] if "off" in words else [])}  # YAML's own reading of on and off
    base = shape.removesuffix(" or none")
    if base == shape:
        return _SHAPES[shape]
    return {"anyOf": [_SHAPES[base], _NONE if base in ("duration", "interval") else {"enum": ["none", "", None]}]}
