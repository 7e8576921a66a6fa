"""Draw figures as SVG, for readers with and without scripts. Sizes and colours come from the stylesheet; coordinates are drawn here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
from markupsafe import Markup, escape

from trainmaster.core.metrics import Series

WIDTH = 1000  # units of a figure's width, whatever its size on the page
POINTS = 60  # of a small chart


@attrs.frozen
class Span:
    """One bar of a time line: from `begin` to `end` in seconds since 1970. `kind` is a class of the stylesheet; `title` is its text."""

    begin: float
    end: float
    kind: str
    title: str
    link: str = ""


@attrs.frozen
class Range:
    """The time that a figure shows."""

    begin: float
    end: float

    def x(self, at: float) -> float:
        """Return a time's place, in units."""
        return round(min(1.0, max(0.0, (at - self.begin) / max(1e-3, self.end - self.begin))) * WIDTH, 1)


def bars(spans: Iterable[Span], shown: Range) -> Markup:
    """Draw one row of a time line."""
    parts = []
    for span in spans:
        x = shown.x(span.begin)
        width = max(2.0, round(shown.x(span.end) - x, 1))
        bar = f'<rect x="{x}" width="{width}" height="10" class="{escape(span.kind)}"><title>{escape(span.title)}</title></rect>'
        parts.append(f'<a href="{escape(span.link)}" tabindex="-1">{bar}</a>' if span.link else bar)
    return Markup(
        f'<svg class="bars" viewBox="0 0 {WIDTH} 10" preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'
    )


def ticks(marks: Iterable[tuple[float, str, str]], shown: Range) -> Markup:
    """Draw the marks (time, kind, text) of a time line."""
    lines = [
        f'<line x1="{(x := shown.x(at))}" x2="{x}" y1="0" y2="10" class="mark {escape(kind)}"><title>{escape(text)}</title></line>'
        for at, kind, text in marks
    ]
    return Markup(
        f'<svg class="bars marks" viewBox="0 0 {WIDTH} 10" preserveAspectRatio="none" aria-hidden="true">{"".join(lines)}</svg>'
    )


def spark(series: Series | None, label: str = "") -> Markup:
    """Draw the last samples as a small line, whose upper edge is the highest of them."""
    if series is None:
        return Markup("")
    values = list(series.values)[-POINTS:]
    points = line(values, max((value for value in values if value is not None), default=0.0), 20)
    if not points:
        return Markup("")
    return Markup(
        f'<svg class="spark" viewBox="0 0 {WIDTH} 20" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">{points}</svg>'
    )


def line(values: Sequence[float | None], top: float, height: int) -> str:
    """Return polylines through the values, evenly spaced, broken where there is none."""
    step = WIDTH / max(1, len(values) - 1)
    runs: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            y = height - min(1.0, max(0.0, value / top if top else 0.0)) * (height - 1)
            runs[-1].append(f"{number * step:.0f},{y:.1f}")
    return "".join(f'<polyline points="{" ".join(run if len(run) > 1 else run * 2)}"/>' for run in runs if run)


def nice_end(begin: float, now: float) -> float:
    """Return an end of the time shown that changes seldom while the job goes on: a little after now."""
    grain = max(1.0, (now - begin) / 100)
    return begin + (int((now - begin) / grain) + 1) * grain
