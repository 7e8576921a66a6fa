"""Keep settings of clusters in their records, and refuse figures out of range: the same for every kind of cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs

from trainmaster.core.errors import BadInput


class Recorded:
    """Settings that a cluster's record keeps; an attrs class inherits it."""

    def plain(self) -> dict[str, Any]:
        """Return the settings as plain data for JSON."""
        return attrs.asdict(self)  # type: ignore[arg-type]

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """Return the settings of plain data from JSON; unknown names are ignored."""
        names = {field.name for field in attrs.fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in plain.items() if name in names})


def check_range(option: str, value: float, least: int, most: int) -> None:
    """Raise BadInput where the value of an option is out of its range."""
    if not least <= value <= most:
        raise BadInput(f"{option} is {value:.15g}, from {least} to {most} can be had")
