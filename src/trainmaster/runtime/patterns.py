"""Patterns in the places of inputs: `*`, `?` and `[..]`.

A folder's name may hold such letters too, as in `exp[1]` or `bs=[32,64]`. So a part of a place that is the name of a folder there is that
folder, and patterns begin after it: `exp[1]/data/*.csv` never means `exp1/data/a.csv` where there is a folder `exp[1]`.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_LETTERS = "*?["


def has_pattern(text: str) -> bool:
    return any(letter in text for letter in _LETTERS)


def fixed_prefix(place: str, is_folder: Callable[[str], bool] = os.path.isdir) -> str:
    """Return the beginning of a path or URL that is meant as it is written: all before the first part that holds a pattern and names no
    folder. It ends with "/" where there is one.
    """
    begin = place.find("/", place.find("://") + 3) + 1 if "://" in place else 0  # a host may be an address in brackets
    while True:
        first = next((at for at in range(begin, len(place)) if place[at] in _LETTERS), len(place))
        end = place.find("/", first)
        if end < 0 or not is_folder(place[:end]):
            return place[: max(place.rfind("/", 0, first) + 1, begin)]
        begin = end + 1


def is_pattern(place: str, is_folder: Callable[[str], bool] = os.path.isdir) -> bool:
    """Tell whether a path or URL holds a pattern, and is not all of it the name of a folder."""
    place = place.rstrip("/") + "/"
    return has_pattern(place[len(fixed_prefix(place, is_folder)) :])


def matching(path: str) -> list[str]:
    """Return the local paths that `path` names: itself, where something is there, else those that it matches."""
    import glob

    if os.path.lexists(path):
        return [path]
    prefix = fixed_prefix(path)
    return sorted(glob.glob(glob.escape(prefix) + path[len(prefix) :], recursive=True))
