"""Quantities as people write them: sizes, durations, counts.

A size is a number and a unit, `2GiB` (1024s) or `512MB` (1000s), and becomes whole bytes. A duration is numbers and units, `5m`, `1h30m`,
`250ms`, or `none`, and becomes seconds. A unit is always required: nobody can tell whether `512` meant bytes or megabytes. There are two
ways back to text: `exact_...` loses nothing and can be read again; `format_...` is for people and rounds.

All readers raise `ValueError` with the expected form; a caller that knows the place adds it.
"""

from __future__ import annotations

from math import isfinite

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZES = {
    "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4, "p": 1024**5,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4, "pib": 1024**5,
    "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4, "pi": 1024**5,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4, "pb": 1000**5,
}  # fmt: skip
_DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION_WORDS = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d", "week": "w"}

_LONGEST = 100 * 366 * 86400.0

SIZE_WORDS = "a number and a unit, like 512MB or 2GiB"
DURATION_WORDS = 'a number and a unit, like 30s, 5m or 2h, or "none"'


def parse_bytes(text: str) -> int:
    """Return the bytes of a size like `2GiB`, `1.5 g` (1024s) or `512MB` (1000s)."""
    parts = _parts(text)
    if len(parts) != 1:
        raise ValueError(f"expected a size: {SIZE_WORDS}")
    number, unit = parts[0]
    if not unit:
        raise ValueError(f"a size needs a unit: {number:g}MiB or {number:g}GiB?")
    factor = _SIZES.get(unit.lower())
    if factor is None:
        raise ValueError(f"{unit} is not a unit of size: use B, KB, MB, GB, TB (1000s) or KiB, MiB, GiB, TiB (1024s)")
    if not number * factor < 2**63:
        raise ValueError("larger than any machine: at most 8191PiB")
    return round(number * factor)


def parse_seconds(text: str) -> float | None:
    """Return the seconds of a duration like `5m`, `1h30m` or `250ms`; None for `none`."""
    if text.strip().lower() == "none":
        return None
    total = 0.0
    parts = _parts(text)
    if not parts:
        raise ValueError(f"expected a duration: {DURATION_WORDS}")
    for number, unit in parts:
        if not unit:
            raise ValueError(f"a duration needs a unit: {number:g}s or {number:g}m?")
        word = unit.lower()
        factor = _DURATIONS.get(_DURATION_WORDS.get(word.removesuffix("s"), word))
        if factor is None:
            raise ValueError(f"{unit} is not a unit of time: use ms, s, m, h, d or w")
        total += number * factor
    if total > _LONGEST:
        raise ValueError("longer than 100 years: say none")
    return total


def parse_count(text: str) -> int:
    """Read a whole number, 0 or more."""
    digits = text.strip().replace("_", "")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise ValueError("expected a whole number")
    return int(digits)


def exact_bytes(count: int) -> str:
    """Write a size that reads back as exactly `count`: `2GiB`, `1000001B`."""
    unit = 0
    while count and count % 1024 == 0 and unit < len(_BINARY) - 1:
        count, unit = count // 1024, unit + 1
    return f"{count}{_BINARY[unit]}"


def exact_seconds(seconds: float | None) -> str:
    """Write a duration that reads back as exactly `seconds`: `5m`, `0.1s`, `none`."""
    if seconds is None:
        return "none"
    for unit in ("w", "d", "h", "m"):
        if seconds and seconds % _DURATIONS[unit] == 0:
            return f"{seconds / _DURATIONS[unit]:.0f}{unit}"
    text = repr(seconds)
    if "e" in text:  # a tiny number: no exponents in a duration
        text = f"{seconds:.1100f}".rstrip("0")
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{text}s"


def format_bytes(count: float) -> str:
    """Write a size for people, to three figures: `12 GiB`, `1.43 MiB`, `0 B`."""
    value, unit = float(count), 0
    while abs(value) >= 1023.5 and unit < len(_BINARY) - 1:
        value, unit = value / 1024, unit + 1
    text = f"{value:.0f}" if abs(value) >= 99.5 or unit == 0 else f"{value:.3g}"
    return f"{text} {_BINARY[unit]}"


def format_seconds(seconds: float | None) -> str:
    """Write a duration for people, its two largest units: `90 ms`, `2.5 s`, `1 h 30 m`, `none`."""
    if seconds is None:
        return "none"
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms" if seconds else "0 s"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    names = ("d", "h", "m", "s")
    seconds_left, parts = round(seconds), []
    for name in names:
        count, seconds_left = divmod(seconds_left, int(_DURATIONS[name]))
        parts.append((count, name))
    first = next(i for i, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {name}" for count, name in parts[first : first + 2] if count)


def format_count(count: float, word: str) -> str:
    """Write a count with its noun: `1 task`, `1,200 tasks`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _parts(text: str) -> list[tuple[float, str]]:
    """Read `1h 30m` as [(1.0, "h"), (30.0, "m")]; [] where the text has no such form."""
    parts: list[tuple[float, str]] = []
    rest = text.strip()
    while rest:
        size = next((i for i, c in enumerate(rest) if not (c.isdigit() or c in "._")), len(rest))
        try:
            number = float(rest[:size])
        except ValueError:
            return []
        rest = rest[size:].lstrip()
        size = next((i for i, c in enumerate(rest) if not c.isalpha()), len(rest))
        parts.append((number, rest[:size]))
        rest = rest[size:].lstrip()
        if not isfinite(number):
            return []
    return parts
