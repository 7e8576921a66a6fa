"""Durations as the job file has them: "7d", "1h30m", "none". Programs of users have not got the job file's own reader."""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])\s*")
_DURATION = re.compile(f"({_PART.pattern})+")


def parse_seconds(text: str) -> float | None:
    """Return the seconds of a duration; None for `none`. Raises ValueError."""
    if text.strip().lower() == "none":
        return None
    if not _DURATION.fullmatch(text.strip()):
        raise ValueError(
            f"{text!r} is not a duration: write a number and a unit (ms, s, m, h, d, w), like 30s, 7d or 1h30m, or none"
        )
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def seconds_of(value: str | float | None) -> float | None:
    """Return the seconds of a duration as an argument may have it: text, seconds, or None. Raises ValueError."""
    return parse_seconds(value) if isinstance(value, str) else value
