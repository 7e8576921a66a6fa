"""Read the query of a page's address."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import urlencode

from starlette.requests import Request

T = TypeVar("T")


def whole(request: Request, name: str, default: T, digits: int = 18) -> int | T:
    """Return a whole number of the query; the default where it has none. Raises ValueError for anything else, or more digits."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= digits):
        raise ValueError(f"{name} is not a whole number of at most {digits} digits: {text[:40]!r}")
    return int(text)


def without(request: Request, name: str) -> str:
    """Return the query without one name."""
    return urlencode([(key, value) for key, value in request.query_params.multi_items() if key != name])
