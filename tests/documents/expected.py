"""Compare what a page shows with what a command printed.

Figures differ from run to run. Each of these may have another value, and all other words must be the same: the letters of a job's id,
durations, decimal fractions, numbers of four or more digits (ports, processes), the number behind `epoch`, `step` and `set`, and the names
of the user and the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_TIME = r"\d+(?:\.\d+)? (?:ms|s|m|h|d)\b"
# What stands for another value -> the expression for that value. The first that fits counts.
_LOOSE = (
    (r"\.\.\.", r".*"),
    (rf"{_TIME}(?: {_TIME})*", rf"{_TIME}(?: {_TIME})*"),
    (r"(?<=-)(?=[a-z]*\d)[a-z0-9]{6}\b", r"[a-z0-9]{6}"),
    (r"(?<![\d.])\d+\.\d+(?![\d.])", r"\d+(?:\.\d+)?(?:e-?\d+)?"),
    (r"\d{4,}", r"\d+"),
    (r"(?<=\bby user )[\w.-]+", r"[\w.-]+"),
    (r"(?<=local://)[\w.-]+", r"[\w.-]+"),
    (r"(?<=\bepoch )\d+|(?<=\bstep )\d+|(?<=\bset )\d+", r"\d+"),
    (r"\d+ of \d+ free", r"\d+ of \d+ free"),
    (r"\s+", r"\s+"),
)
_PARTS = re.compile("|".join(f"(?P<k{number}>{pattern})" for number, (pattern, _) in enumerate(_LOOSE)))


def missing(expected: Iterable[str], output: str, values: dict[str, str]) -> list[str]:
    """Return the expected lines that do not appear. `values` gets the page's ids and numbers -> those of this run."""
    lines = [line.strip() for line in output.splitlines()]
    return [line for line in expected if line.strip() not in ("", "...") and not _appears(line.strip(), lines, values)]


def _appears(expected: str, lines: Iterable[str], values: dict[str, str]) -> bool:
    pattern, shown, end = "", [], 0
    for part in _PARTS.finditer(expected):
        pattern += re.escape(expected[end : part.start()])
        pattern += f"({_LOOSE[int((part.lastgroup or 'k0')[1:])][1]})"
        shown.append(part[0])
        end = part.end()
    pattern += re.escape(expected[end:])
    for line in lines:
        if match := re.fullmatch(pattern, line):
            values |= {of_page: here for of_page, here in zip(shown, match.groups(), strict=True) if _is_name(of_page)}
            return True
    return False


def _is_name(shown: str) -> bool:
    """Is this what a later command may say: the letters of an id, a process, a port?"""
    return bool(re.fullmatch(r"[a-z0-9]{6}|\d{4,}", shown))
