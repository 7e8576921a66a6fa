"""What a program tells of itself while it runs: its progress, and the phase that it is in."""

from __future__ import annotations

import attrs


@attrs.define(slots=True, eq=False, repr=False)
class Progress:
    """What one program has told so far."""

    progress: int = 0  # how many times
    value: float | None = None
    step: int | None = None
    phase: str = ""
    best: dict[str, float] = attrs.field(factory=dict)  # the highest value and step

    def reached(self, value: float | None, step: int | None) -> None:
        """The program told of its progress. Metrics alone are none."""
        self.progress += value is not None or step is not None
        self.value = value if value is not None else self.value
        self.step = step if step is not None else self.step
        for name, number in (("value", value), ("step", step)):
            if number is not None:
                self.best[name] = max(number, self.best.get(name, number))

    def fed(self, records: int, value: float | None) -> None:
        """Records went into its stdin: shown as its progress until it tells of its own, but no sign that it gets anywhere."""
        if not self.progress:
            self.value, self.step = value, records
