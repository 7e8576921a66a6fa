"""Say whether our words have colours: as `--color` says; else on terminals, unless NO_COLOR is set (no-color.org)."""

from __future__ import annotations

import os

option: bool | None = None  # by --color: always, never, or auto


def allowed() -> bool:
    """Tell whether a terminal gets colours."""
    return bool(option) or (option is None and not os.environ.get("NO_COLOR"))


def of_echo() -> bool | None:
    """Return what `click.echo` takes as `color`: whether colours stay, None for on a terminal alone."""
    return option if allowed() else False
