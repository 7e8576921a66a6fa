"""Find the known name that somebody meant by an unknown one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

ALIKE = 0.66  # difflib's ratio, 1 for equal names: low enough for `rnu`, too high for `delete` to become `evaluate`
_NONE: Mapping[str, str] = {}


def meant(word: str, known: Iterable[str], synonyms: Mapping[str, str] = _NONE) -> str:
    """Return what `word`, a name that other systems have, is called here; else the known name that is like it; "" where there is none."""
    if word.lower() in synonyms:
        return synonyms[word.lower()]
    from difflib import get_close_matches  # loaded only after a mistake

    return next(iter(get_close_matches(word.lower(), sorted(known), 1, ALIKE)), "")
