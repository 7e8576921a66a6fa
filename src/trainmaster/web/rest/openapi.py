"""The OpenAPI 3.1 description, made from the table of routes and the classes of requests and answers."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import json
import re
import types
import typing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import attrs

from trainmaster import __version__
from trainmaster.web.rest import answers
from trainmaster.web.rest.encoding import JSON
from trainmaster.web.rest.requests import NAME, TASK

if TYPE_CHECKING:
    from trainmaster.web.rest.routes import Route

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_PATH = {
    "job": ("the job's id", NAME),
    "task": ("the task: role:index", TASK),
    "log": ("the task: role:index, or master", f"{TASK}|master"),
}
_WORDS = frozenset({"description", "minimum", "exclusiveMinimum", "maximum", "maxLength", "pattern"})


@functools.cache
def described(routes: tuple[Route, ...]) -> bytes:
    return json.dumps(document(routes)).encode()


def document(routes: tuple[Route, ...]) -> dict[str, Any]:
    """Return the whole description."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    error = _content(_reference(answers.Error, schemas))
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, error)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Trainmaster", "version": __version__, "description": inspect.cleandoc(_ABOUT)},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


_ABOUT = """
Every request carries the job's token, or what `tm ui` asks for. Names in paths have no slash, encoded or not. Unknown parameters and fields
are refused. Every error is an object with the key `error`.
"""


def _operation(route: Route, schemas: dict[str, Any], error: dict[str, Any]) -> dict[str, Any]:
    answer = {"type": "string"} if not route.answer else schema_of(getattr(answers, route.answer), schemas)
    content = {
        media: {"schema": answer if media == JSON or len(route.media) == 1 else {"type": "string"}}
        for media in route.media
    }
    responses: dict[str, Any] = {"200": {"description": route.text, "content": content}}
    for header, _, _ in route.headers:
        status, kind = _OTHER_ANSWERS[header]
        responses[status] = {
            "description": HTTPStatus(int(status)).phrase,
            **({"content": {kind: {"schema": {"type": "string"}}}} if kind else {}),
        }
    responses |= {str(status): {"description": HTTPStatus(status).phrase, **error} for status in route.errors}
    body = {} if route.body is None else {"requestBody": _body(route.body, schemas)}
    return {
        "operationId": f"{route.method.lower()}_{route.act.__name__}",
        "summary": route.text,
        "parameters": [*_path_parameters(route), *_query_parameters(route, schemas), *_header_parameters(route)],
        **body,
        "responses": responses,
    }


_OTHER_ANSWERS = {"Range": ("206", "text/plain"), "Last-Event-ID": ("204", "")}  # by the header that asks for them


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    rows = []
    for name in re.findall(r"{(\w+)}", route.path):
        meaning, pattern = _PATH["log" if "/logs/" in route.path and name == "task" else name]
        schema = {"type": "string", "pattern": f"^({pattern})$"}
        rows.append({"name": name, "in": "path", "required": True, "description": meaning, "schema": schema})
    return rows


def _query_parameters(route: Route, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for field in attrs.fields(route.query):
        schema = _field_schema(field, field.type, schemas)
        meaning = schema.pop("description")
        if isinstance(schema["type"], list):  # a query has no null: a parameter is left out
            schema["type"] = schema["type"][0]
        rows.append({"name": field.name, "in": "query", "required": False, "description": meaning, "schema": schema})
    return rows


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": meaning,
            "schema": {"type": "string", "pattern": f"^({pattern})$"},
        }
        for name, meaning, pattern in route.headers
    ]


def _body(model: type[Any], schemas: dict[str, Any]) -> dict[str, Any]:
    if model is dict:
        return {"required": True, **_content({"type": "object", "additionalProperties": True})}
    required = any(field.default is attrs.NOTHING for field in attrs.fields(model))
    return {"required": required, **_content(_reference(model, schemas, closed=True))}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {JSON: {"schema": schema}}}


def _reference(model: type[Any], schemas: dict[str, Any], closed: bool = False) -> dict[str, Any]:
    """Return a reference to a class, whose schema is added to the components. `closed`: it has no further fields."""
    if model.__name__ not in schemas:
        schemas[model.__name__] = {}  # of a class that has itself
        kinds = typing.get_type_hints(model)
        fields = attrs.fields(model)
        schemas[model.__name__] = {
            "type": "object",
            "description": inspect.cleandoc(model.__doc__ or "").partition("\n")[0],
            "properties": {field.name: _field_schema(field, kinds[field.name], schemas) for field in fields},
            "required": [field.name for field in fields if field.default is attrs.NOTHING],
            **({"additionalProperties": False} if closed else {}),
        }
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _field_schema(field: Any, kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    words = {name: value for name, value in field.metadata.items() if name in _WORDS}
    if "pattern" in words:
        words["pattern"] = f"^({words['pattern']})$"
    schema = schema_of(kind, schemas)
    if "maxItems" in field.metadata:
        description = {"description": words.pop("description")}
        return {**schema, **description, "items": schema["items"] | words, "maxItems": field.metadata["maxItems"]}
    if field.metadata and isinstance(field.default, str | int | float):
        words["default"] = field.default
    return schema | words


def schema_of(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type: plain data, or a class of attrs."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _TYPES:
        return {"type": _TYPES[kind]}
    if attrs.has(kind):
        return _reference(kind, schemas)
    if origin in (typing.Union, types.UnionType):
        parts = [schema_of(part, schemas) for part in arguments]
        if all(part.keys() == {"type"} for part in parts):
            return {"type": [part["type"] for part in parts]}
        return {"anyOf": parts}
    if origin in (list, collections.abc.Sequence):
        return {"type": "array", "items": schema_of(arguments[0], schemas)}
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1], schemas)}
    assert kind is Any, f"no schema for {kind}"
    return {}
