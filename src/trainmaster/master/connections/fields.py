"""Check the fields of an agent's messages against a table before the core sees them.

The core trusts the forms of its input. A field that is not in the table may hold anything; a field in the table that does not fit makes
the whole message invalid, so that a broken agent loses its connection and harms no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.core.frames import FrameError

_MOST = 2**53  # a number that JSON carries exactly

Check = Callable[[Any], bool]


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _MOST


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _counts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_count, value.values()))


def _mappings(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(mapping, dict) for mapping in value.values())


def _progress(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() <= {"value", "step"} and all(map(_number, value.values()))


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


FIELDS: Mapping[str, Check] = {
    **dict.fromkeys(
        ("task", "node", "address", "container", "phase", "name", "input", "save", "gave_up", "detail", "what"),
        _text,
    ),
    **dict.fromkeys(("n", "attempt", "serial", "epoch", "set", "pid", "devices", "files", "bytes", "want"), _count),
    **dict.fromkeys(("elapsed", "done", "total", "memory", "cpu"), _number),
    **dict.fromkeys(("value", "progress", "step"), _or_none(_number)),
    **dict.fromkeys(("status", "signal"), _or_none(_number)),
    **dict.fromkeys(("figures", "metrics"), _mapping),
    **dict.fromkeys(("ports", "marks"), _counts),
    "reached": _progress,
    "reason": _text,
    "tail": _texts,
    "outputs": _mappings,
}


def check(message: Mapping[str, Any]) -> None:
    """Raise FrameError where a field has not its form."""
    for name, value in message.items():
        fits = FIELDS.get(name)
        if fits is not None and not fits(value):
            raise FrameError(
                f"the field {name} of {str(message.get('type'))[:20]} is not of its form: {str(value)[:60]!r}"
            )
