"""Read whole numbers and short texts that somebody else may have written: names of files in a storage, labels of pods, addresses, phases.

Python reads numbers of any length. One that fits in no counter of ours would fail far from where it was read, each time that it is. A
terminal obeys control characters in a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

DIGITS = 15  # at most; each such number is whole in a float of JSON's readers too
NUMERAL = rf"[0-9]{{1,{DIGITS}}}"  # in a regular expression


def number_in(text: str) -> int | None:
    """Return the number that a text of ASCII digits says; None for any other text, and for a longer one."""
    return int(text) if len(text) <= DIGITS and text.isascii() and text.isdecimal() else None


def numbers_in(texts: Iterable[str]) -> list[int]:
    """Return the numbers that some of the texts say, rising."""
    return sorted(number for text in texts if (number := number_in(text)) is not None)


def json_in(text: str | bytes) -> Any:
    """Return what a text of JSON says. Raises ValueError, for a text that is nested too deeply too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def printable(text: str, most: int) -> str:
    """Return the first `most` characters of a text, without those that a terminal obeys, or that cannot be written."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:most])
