"""Explain the name of an error, or the reason of an end, for `tm explain NAME`.

Errors are in `docs/errors.md` of the repository. In an installed package that page is in this folder, where the wheel has it.
"""

from __future__ import annotations

import re
from pathlib import Path

from trainmaster.core.machine.reasons import REASONS

PAGE = "errors.md"
_HERE = Path(__file__).resolve().parent
_PLACES = (_HERE / PAGE, _HERE.parents[2] / "docs" / PAGE)
_SECTION = re.compile(r"^### [^\n]*\{#([a-z0-9-]+)\}\n+(.*?)\s*(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_FIGURE = re.compile(r"\{(\w+)\}")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def explained_names() -> set[str]:
    """Return the names of all errors and reasons."""
    return {*_sections(), *REASONS}


def explained(name: str) -> str:
    """Return what an error, or the reason of an end, means and what to do; "" where nothing has this name."""
    sections = _sections()
    parts = [_LINK.sub(r"\1", sections[name])] if name in sections else []
    if (reason := REASONS.get(name)) is not None:
        text, advice = (_FIGURE.sub(lambda figure: figure[1].upper(), part) for part in reason.whole)
        parts.append(f"The reason of an end: {text}" + (f"\nWhat to do: {advice}" if advice else ""))
    return "\n\n".join(parts)


def _sections() -> dict[str, str]:
    page = next((place for place in _PLACES if place.is_file()), None)
    return dict(_SECTION.findall(page.read_text(encoding="utf-8"))) if page is not None else {}
