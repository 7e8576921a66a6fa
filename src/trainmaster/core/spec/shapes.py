"""Readers and writers of each shape: the table behind every key of the job file.

A reader takes data from YAML, JSON, Python or a flag and returns the value, or raises `ValueError` with the expected shape; a writer
returns plain data that reads as the same value. Flags give every value as text, so numbers and booleans are read from text too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.core.spec.quantities import exact_bytes, exact_seconds, parse_bytes, parse_count, parse_seconds
from trainmaster.core.spec.signals import signal_name, signal_number
from trainmaster.core.spec.threads import CORES, MACHINE

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_SHORTEST = 0.01  # s
PER_GPU = "per-gpu"  # as many processes as the container has devices
NAME_WORDS = "a name of letters, digits, '-', '_' and '.', beginning with a letter or digit, at most 63"


def name(value: Any) -> str:
    text = _text(value)
    if not text or len(text) > 63 or not text[0].isalnum() or not _LETTERS.issuperset(text):
        raise ValueError(f"expected {NAME_WORDS}")
    return text


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bool):
        raise ValueError(f'expected text; in quotes it is one: "{str(value).lower()}"')
    raise ValueError("expected text")


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    raise ValueError("expected true or false")


def _whole(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        sign = -1 if value.startswith("-") else 1
        return sign * parse_count(value.removeprefix("-"))
    raise ValueError("expected a whole number")


def _count(value: Any) -> int:
    number = _whole(value)
    if not 0 <= number < 10**9:
        raise ValueError("expected a whole number, 0 or more")
    return number


def _positive_count(value: Any) -> int:
    number = _count(value)
    if number < 1:
        raise ValueError("expected a whole number, 1 or more")
    return number


def _number(value: Any) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        number = None
    if number is None or number != number or abs(number) == float("inf"):
        raise ValueError("expected a number")
    return number


def _positive_number(value: Any) -> float:
    number = _number(value)
    if number <= 0:
        raise ValueError("expected a number above 0")
    return number


def _part(value: Any) -> float:
    number = _number(value)
    if not 0 <= number <= 1:
        raise ValueError("expected a part between 0 and 1")
    return number


def _size(value: Any) -> int:
    if isinstance(value, str):
        return parse_bytes(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError("a size needs a unit: {0}MiB or {0}GiB?".format(_number_text(value)))
    raise ValueError("expected a size, like 512MB or 2GiB")


def _number_text(number: float) -> str:
    return f"{number:g}" if abs(number) < 1e15 else str(number)[:40]


def _duration_or_none(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        return parse_seconds(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError("a duration needs a unit: {0}s or {0}m?".format(_number_text(value)))
    raise ValueError("expected a duration, like 30s or 5m")


def _duration(value: Any) -> float:
    seconds = _duration_or_none(value)
    if seconds is None:
        raise ValueError("expected a duration, like 30s or 5m; none is not possible here")
    return seconds


def _interval(value: Any) -> float:
    """Read the time between two of many: there is no end to what is done each 0 s."""
    seconds = _duration(value)
    if seconds < _SHORTEST:
        raise ValueError("expected a duration of at least 10ms")
    return seconds


def _interval_or_none(value: Any) -> float | None:
    return None if _duration_or_none(value) is None else _interval(value)


def _signal(value: Any) -> str:
    try:
        return signal_name(signal_number(_text(value)))
    except ValueError:
        raise ValueError("expected the name of a signal, like SIGTERM or SIGUSR1") from None


def _signal_or_none(value: Any) -> str:
    return "" if value in (None, "", "none") else _signal(value)


def _positive_size(value: Any) -> int:
    size = _size(value)
    if size < 2**20:
        raise ValueError("expected a size of at least 1MiB")
    return size


def _factor(value: Any) -> float:
    number = _number(value)
    if not 1 <= number <= 100:
        raise ValueError("expected a number from 1 to 100")
    return number


def _or_none(read: Callable[[Any], Any], none: Any) -> Callable[[Any], Any]:
    return lambda value: none if value in (None, "none", none) else read(value)


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple):
        return tuple(_text(element) for element in value)
    raise ValueError("expected a list of texts")


def _command(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(argument, str | int | float) for argument in value):
        return tuple(_text(argument) for argument in value)
    raise ValueError("expected a command: text for the shell, or a list of a program and its arguments")


def _labels(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("expected names with texts")
    return {_text(key): _text(text) for key, text in value.items()}


def _counts(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise ValueError("expected names with whole numbers, like {yarn.io/fpga: 1}")
    return {_text(key): _count(count) for key, count in value.items()}


def _env(value: Any) -> dict[str, str | None]:
    if isinstance(value, list | tuple):  # NAME=VALUE, or NAME alone
        pairs = [_text(line).partition("=") for line in value]
        value = {key: text if mark else None for key, mark, text in pairs}
    if not isinstance(value, Mapping):
        raise ValueError("expected variables: NAME: value, or NAME: alone, taken from the submitter")
    for key in value:
        if not isinstance(key, str) or not key or "=" in key or "\0" in key:
            raise ValueError(f"{key!r} cannot be the name of a variable")
    return {key: None if text is None else _bool_text(text) for key, text in value.items()}


def _bool_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else _text(value)


def _ports(value: Any) -> dict[str, int]:
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list | tuple):
        value = dict.fromkeys(_texts(value), 0)
    if not isinstance(value, Mapping):
        raise ValueError("expected names of ports, or {name: number}")
    ports = {name(key): _count(number) for key, number in value.items()}
    for key, number in ports.items():
        if number > 65535:
            raise ValueError(f"port {key} is {number}, above 65535")
    return ports


def _after(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list | tuple):
        value = dict.fromkeys(_texts(value), "running")
    if not isinstance(value, Mapping) or any(condition not in ("running", "succeeded") for condition in value.values()):
        raise ValueError("expected roles, each running or succeeded, like {ps: running}")
    return {name(key): str(condition) for key, condition in value.items()}


def _processes(value: Any) -> int | str:
    try:
        return PER_GPU if value in ("gpu", PER_GPU) else _positive_count(value)
    except ValueError:
        raise ValueError("expected a whole number, 1 or more, or gpu") from None


def _threads(value: Any) -> int | str:
    try:
        return value if value in (CORES, MACHINE) else _positive_count(value)
    except ValueError:
        raise ValueError("expected a whole number, 1 or more, cores or machine") from None


def _text_or_texts(value: Any) -> str | tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return _text(value)
    texts = tuple(dict.fromkeys(_texts(value)))
    if not texts:
        raise ValueError("expected a text, or a list of at least one")
    return texts[0] if len(texts) == 1 else texts


def _relative(value: Any) -> str:
    text = _text(value)
    if not text or text.startswith("/") or ".." in text.split("/") or "\0" in text:
        raise ValueError("expected a path below the working directory, without ..")
    return text.removeprefix("./") or "."


def _path_or_url(value: Any) -> str:
    text = _text(value)
    return text if text.startswith("/") or "://" in text else _relative(text)


def _engines(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("expected a block for each engine")
    return {
        name(key): dict(block or {}) if isinstance(block, Mapping | None) else _not_a_block(key)
        for key, block in value.items()
    }


def _not_a_block(key: Any) -> Any:
    raise ValueError(f"expected a block of settings for engine {key}")


def _version(value: Any) -> str:
    text = _text(value)
    if not text.replace(".", "").isdigit():
        raise ValueError("expected a version like 1.0")
    return text


def _same(value: Any) -> Any:
    return value


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


Reader = Callable[[Any], Any]

# shape -> (its reader, its writer)
SHAPES: dict[str, tuple[Reader, Reader]] = {
    "after": (_after, _same),
    "command": (_command, _listed),
    "command or none": (_or_none(_command, ""), _listed),
    "count": (_count, _same),
    "counts": (_counts, _same),
    "duration": (_duration, exact_seconds),
    "duration or none": (_duration_or_none, exact_seconds),
    "engines": (_engines, _same),
    "env": (_env, _same),
    "factor or none": (_or_none(_factor, None), _same),
    "flag": (_flag, _same),
    "interval": (_interval, exact_seconds),
    "interval or none": (_interval_or_none, exact_seconds),
    "labels": (_labels, _same),
    "name": (name, _same),
    "number": (_whole, _same),
    "part or none": (_or_none(_part, None), _same),
    "ports": (_ports, _same),
    "positive count": (_positive_count, _same),
    "path or URL": (_path_or_url, _same),
    "positive number": (_positive_number, _same),
    "processes": (_processes, _same),
    "positive size": (_positive_size, exact_bytes),
    "positive size or none": (_or_none(_positive_size, None), exact_bytes),
    "relative path": (_relative, _same),
    "role or task": (_text, _same),
    "signal": (_signal, _same),
    "signal or none": (_signal_or_none, _same),
    "size": (_size, exact_bytes),
    "text": (_text, _same),
    "text or none": (_or_none(_text, ""), _same),
    "text or texts": (_text_or_texts, _listed),
    "texts": (_texts, _listed),
    "threads": (_threads, _same),
    "version": (_version, _same),
}


def choice(shape: str) -> Reader | None:
    """Return the reader of a shape that lists its values, like "group | task | never"; None for other shapes."""
    if " | " not in shape:
        return None
    values = shape.split(" | ")

    def read(value: Any) -> str:
        if isinstance(value, bool) and "off" in values:
            value = "on" if value else "off"  # YAML's words for flags
        if value in values:
            return str(value)
        from difflib import get_close_matches  # loaded only after a mistake

        near = get_close_matches(str(value), values, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"expected {', '.join(values[:-1])} or {values[-1]}{hint}")

    return read
