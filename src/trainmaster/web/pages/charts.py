"""The charts of a job or a task: what each shows, drawn here for readers without scripts, and as data for those with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from markupsafe import Markup

from trainmaster.core.metrics import Series
from trainmaster.core.spec.quantities import format_bytes, parse_bytes
from trainmaster.web.pages.drawing import WIDTH, line
from trainmaster.web.pages.render import clock
from trainmaster.words.text import names

_TITLES = {
    "cpu": "Cores", "memory": "Memory", "progress": "Progress", "step": "Step", "steps": "Steps a second", "records": "Records done",
    "records.rate": "Records a second",
}  # fmt: skip
_GPU = re.compile(r"gpu\.(.+)\.(util|memory)")
NOT_A_NUMBER = "nan or inf"  # a point does not say which
METRIC = "metric."  # begins the names of what programs report
ROWS = 8  # tasks that have lines of their own in a chart
POINTS = 200  # of the mean of more tasks
BYTES, PERCENT, PART, NUMBER = "bytes", "percent", "part", "number"  # forms of a value
HEIGHT = 100  # units
Job = Mapping[str, Any]  # a job file as understood


def charts(series: Sequence[Series], task: str, tasks: Sequence[Mapping[str, Any]], job: Job) -> list[dict[str, Any]]:
    """Return one chart a name: {name, title, form, lines, rows: [{task, times, values, nans}], low, high, nan}; of a whole job ("") or of
    one task.

    `lines`: label -> value, of what was asked for. `tasks`: those of the job's status. A program's metric has a row for each task that
    reports it. Those of more than `ROWS` tasks are one row, their mean, between `low` and `high`. `nan`: words about what is nan.
    """
    running = [entry["role"] for entry in tasks if (entry["task"] == task if task else entry["node"])]
    place = {entry["task"]: number for number, entry in enumerate(tasks)}  # series are in the order in which they began
    by_name: dict[str, list[Series]] = {}
    for row in sorted(series, key=lambda row: place.get(row.task, len(place))):
        by_name.setdefault(row.name, []).append(row)
    ordered = sorted(by_name, key=lambda name: (name.startswith(METRIC), _GPU.match(name) is not None))
    return [
        {
            "name": name, "title": title(name), "form": form(name), "lines": asked_for(name, running, job), "nan": nan_words(by_name[name]),
            **(_each(by_name[name]) if len(by_name[name]) <= ROWS else _together(by_name[name])),
        }
        for name in ordered
    ]  # fmt: skip


def _each(rows: Sequence[Series]) -> dict[str, Any]:
    return {
        "rows": [
            {"task": row.task, "times": list(row.times), "values": list(row.values), "nans": list(row.nans)} for row in rows
        ],
        "low": [], "high": [],
    }  # fmt: skip


def _together(rows: Sequence[Series]) -> dict[str, Any]:
    """Return one row for many tasks: in each interval the mean over the tasks, the lowest and the highest.

    A task that reported nothing in an interval counts as in the one before, until just after its last report.
    """
    begin, end = min(row.times[0] for row in rows), max(row.times[-1] for row in rows)
    width = max(1.0, (end - begin) / max(1, min(POINTS, max(len(row.times) for row in rows) // 2)))
    intervals: dict[int, list[float]] = {}  # number -> the mean of each task in it
    for row in rows:
        own: dict[int, list[float]] = {}  # nothing, where a task was nan
        for at, value in zip(row.times, row.values, strict=True):
            own.setdefault(int((at - begin) / width), []).extend(() if value is None else (value,))
        last = min(max(own) + 1, int((end - begin) / width))
        values: list[float] = []
        for number in range(min(own), last + 1):
            values = own.get(number, values)
            if values:
                intervals.setdefault(number, []).append(fmean(values))
    nans = {int((at - begin) / width) for row in rows for at in row.nans}
    numbers = sorted(intervals.keys() | nans)
    means = [intervals.get(number, []) for number in numbers]

    def edge(of: Callable[[list[float]], float]) -> list[float | None]:
        return [of(values) if values else None for values in means]

    together = {
        "task": f"mean of {len(rows)} tasks", "times": [begin + number * width for number in numbers], "values": edge(fmean),
        "nans": [begin + number * width for number in sorted(nans)],
    }  # fmt: skip
    return {"rows": [together], "low": edge(min), "high": edge(max)}


def nan_words(rows: Sequence[Series]) -> str:
    """Say which tasks report no number for a metric, or did before; "" where none did."""
    present, past = [row for row in rows if row.is_nan], [row for row in rows if row.nans]
    if present:
        since = clock(min(_nan_since(row) for row in present))
        return f"{NOT_A_NUMBER} in {names([row.task for row in present])} since {since}"
    return (
        f"was {NOT_A_NUMBER} in {names([row.task for row in past])}, last at {clock(max(row.nans[-1] for row in past))}"
        if past
        else ""
    )


def _nan_since(row: Series) -> float:
    """Return when a series that is nan became so."""
    last = max((at for at, value in zip(row.times, row.values, strict=True) if value is not None), default=0.0)
    return next(at for at in row.nans if at >= last)  # equal times: the clock of a new master was behind


def title(name: str) -> str:
    if (gpu := _GPU.fullmatch(name)) is not None:
        devices = "GPUs'" if gpu[1] == "all" else f"GPU {gpu[1]}"
        return f"{devices} {'use' if gpu[2] == 'util' else 'memory'}"
    return _TITLES.get(name) or name.removeprefix(METRIC)


def form(name: str) -> str:
    if name == "memory" or ((gpu := _GPU.fullmatch(name)) is not None and gpu[2] == "memory"):
        return BYTES
    return PERCENT if gpu is not None else PART if name == "progress" else NUMBER


def asked_for(name: str, roles: Sequence[str], job: Job) -> dict[str, float]:
    """Return what tasks of these roles asked for together, where all of them asked."""
    if name not in ("cpu", "memory") or not roles:
        return {}
    resources = [(job.get("roles") or {}).get(role, {}).get("resources") or {} for role in roles]
    values = [entry.get("cores" if name == "cpu" else "memory") for entry in resources]
    if not all(values):
        return {}
    return {"asked": sum(float(value) if name == "cpu" else parse_bytes(str(value)) for value in values if value)}


def figure(value: float | None, form: str) -> str:
    """Return a value as a chart's caption has it."""
    if value is None:
        return ""
    if form == BYTES:
        return format_bytes(value)
    if form in (PERCENT, PART):
        return f"{value * (100 if form == PART else 1):.0f} %"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _nan_marks(chart: Mapping[str, Any]) -> str:
    """Return a mark at each point of a chart that is not a number."""
    marks = set()
    for row in chart["rows"]:
        marks |= {round(row["times"].index(at) * WIDTH / max(1, len(row["times"]) - 1)) for at in row["nans"]}
    return "".join(f'<line class="nan" x1="{x}" x2="{x}" y1="0" y2="{HEIGHT}"/>' for x in sorted(marks))


def drawn(chart: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chart as an image, with its title and figures."""
    known = [
        value
        for row in (*chart["rows"], *({"values": chart[edge]} for edge in ("low", "high")))
        for value in row["values"]
        if value is not None
    ]
    low, high = min(known, default=0.0), max(known, default=0.0)
    bottom = min(low, 0.0) if chart["form"] != NUMBER or low < high / 2 else low
    top = {PERCENT: 100.0, PART: 1.0}.get(chart["form"], high)
    images = [
        line([None if value is None else value - bottom for value in row["values"]], top - bottom, HEIGHT)
        for row in chart["rows"]
    ]
    band = [
        line([None if value is None else value - bottom for value in chart[edge]], top - bottom, HEIGHT)
        for edge in ("low", "high")
    ]
    first = chart["rows"][0]
    last = next((value for value in reversed(first["values"]) if value is not None), None)
    tasks = [row["task"] for row in chart["rows"]]
    return {
        "title": chart["title"], "nan": chart["nan"], "tasks": names(tasks) if any(tasks) else "",
        **{label: figure(value, chart["form"]) for label, value in {"last": last, "low": low, "high": high, **chart["lines"]}.items()},
        **({"last": NOT_A_NUMBER} if first["nans"] and first["nans"][-1] >= first["times"][-1] else {}),
        "image": Markup(
            f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true">{"".join(images)}'
            f'<g class="band">{"".join(band)}</g>{_nan_marks(chart)}</svg>'
        ),
    }  # fmt: skip
