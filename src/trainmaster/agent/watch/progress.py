"""The progress and the phase that a program reports while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

METRICS = 64  # names that are kept


@attrs.define(slots=True, eq=False, repr=False)
class Progress:
    """The progress of one program so far."""

    progress: int = 0  # number of reports
    value: float | None = None
    step: int | None = None
    phase: str = ""
    best: dict[str, float] = attrs.field(factory=dict)  # the highest value and step
    metrics: dict[str, Any] = attrs.field(factory=dict)  # the newest of each name

    def measured(self, metrics: Mapping[str, Any]) -> None:
        """Note the program's metrics; names beyond METRICS are dropped."""
        for name, figure in metrics.items():
            if name in self.metrics or len(self.metrics) < METRICS:
                self.metrics[name] = figure

    def reached(self, value: float | None, step: int | None) -> None:
        """Note the program's report of its progress. Metrics alone do not count as progress."""
        self.progress += value is not None or step is not None
        self.value = value if value is not None else self.value
        self.step = step if step is not None else self.step
        for name, number in (("value", value), ("step", step)):
            if number is not None:
                self.best[name] = max(number, self.best.get(name, number))

    def fed(self, records: int, value: float | None) -> None:
        """Show the records fed to stdin as progress until the program reports its own. They do not prove that it gets anywhere."""
        if not self.progress:
            self.value, self.step = value, records
