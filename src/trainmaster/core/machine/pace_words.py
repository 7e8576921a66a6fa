"""Put into words how fast tasks work, and what follows from that for the size of a role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.core.spec.quantities import format_seconds

Figures = Mapping[str, Any]


def pace_words(figures: Figures) -> str:
    """Return `2.1 s a step, their median is 1 s`. `figures`: seconds, median, per."""
    seconds, median = (format_seconds(_rounded(figures[name])) for name in ("seconds", "median"))
    return f"{seconds} a {figures['per']}, their median is {median}"


def speed_words(rate: float, unit: str) -> str:
    """Return `412 steps a second`; without a unit it is the program's own."""
    number = _rounded(rate)
    noun = unit.removesuffix("s") if number == 1 else unit
    return f"{number:,} {noun}{' ' if noun else ''}a second"


def scale_words(figures: Figures, size: int) -> str:
    """Say why a role should go to `size` members."""
    members, share, base = figures["members"], figures["share"], figures["base"]
    work = f"{members} {'makes' if members == 1 else 'make'} {speed_words(figures['rate'], figures['unit'])}"
    if base is None:
        return f"{work}, and what more would bring is not known yet"
    each = f"each beyond {base} brings {100 * share:.0f} % of what each of those does"
    return f"{work}, and {each}" + (f", so {size} would do" if size < members else "")


def advice_words(role: str, members: int, advice: Figures) -> str:
    """Say what autoscaling would do with the `members` of a role, and why. `advice`: size, figures."""
    if advice["size"] == members:
        return f"{role} would stay at {members}: {scale_words(advice['figures'], members)}"
    return f"{role} would go from {members} to {advice['size']}: {scale_words(advice['figures'], advice['size'])}"


def _rounded(value: float) -> float:
    """Return three significant figures."""
    rounded = float(f"{value:.3g}")
    return int(rounded) if rounded == int(rounded) else rounded
