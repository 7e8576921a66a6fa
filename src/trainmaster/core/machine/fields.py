"""The shapes of the fields of events and orders, and the check of a message against them."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

# The Python types of the JSON of a shape. "?" behind a shape: the field may be left out.
SHAPES: dict[str, tuple[type, ...]] = {
    "text": (str,), "whole": (int,), "number": (int, float), "flag": (bool,), "list": (list, tuple), "map": (Mapping,),
    "time": (int, float), "seconds": (int, float),
    "number or none": (int, float, NoneType), "seconds or none": (int, float, NoneType), "whole or none": (int, NoneType),
    "time or none": (int, float, NoneType),
    "list or none": (list, tuple, NoneType), "text or none": (str, NoneType), "text or list": (str, list, tuple),
    "text, list or none": (str, list, tuple, NoneType),
}  # fmt: skip
_TYPES = SHAPES | {f"{shape}?": types for shape, types in SHAPES.items()}  # of a field that may be left out, too


def wrong_fields(fields: Mapping[str, str], data: Mapping[str, Any]) -> list[str]:
    """Return the fields (name -> shape) that `data` lacks or has in another shape, each in words."""
    mistakes = []
    for name, shape in fields.items():
        if name not in data:
            mistakes += [] if shape.endswith("?") else [f"{name} is missing"]
        elif not isinstance(data[name], _TYPES[shape]):
            mistakes.append(f"{name} must be {shape.removesuffix('?')}, not {data[name]!r}")
    return mistakes
