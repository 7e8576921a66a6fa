"""The charts of a job or a task: what each shows, drawn here for readers without scripts, and as data for those with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from trainmaster.core.metrics import Series
from trainmaster.core.spec.quantities import format_bytes, parse_bytes
from trainmaster.web.pages.drawing import WIDTH, line

_TITLES = {
    "cpu": "Cores", "memory": "Memory", "progress": "Progress", "step": "Step", "steps": "Steps a second", "records": "Records done",
    "records.rate": "Records a second",
}  # fmt: skip
_GPU = re.compile(r"gpu\.(.+)\.(util|memory)")
METRIC = "metric."  # begins the names of what programs report
ROWS = 8  # tasks in one chart
BYTES, PERCENT, PART, NUMBER = "bytes", "percent", "part", "number"  # forms of a value
HEIGHT = 100  # units
Job = Mapping[str, Any]  # a job file as understood


def charts(series: Sequence[Series], task: str, tasks: Sequence[Mapping[str, Any]], job: Job) -> list[dict[str, Any]]:
    """Return one chart a name: {name, title, form, lines, rows: [{task, times, values}]}; of a whole job ("") or of one task.

    `lines`: label -> value, of what was asked for. `tasks`: those of the job's status. A metric of a program has a row for each task that
    reports it, `ROWS` at most.
    """
    running = [entry["role"] for entry in tasks if (entry["task"] == task if task else entry["node"])]
    names: dict[str, list[Series]] = {}
    for row in series:
        names.setdefault(row.name, []).append(row)
    ordered = sorted(names, key=lambda name: (name.startswith(METRIC), _GPU.match(name) is not None))
    return [
        {
            "name": name, "title": title(name), "form": form(name), "lines": asked_for(name, running, job),
            "rows": [{"task": row.task, "times": list(row.times), "values": list(row.values)} for row in names[name][:ROWS]],
        }
        for name in ordered
    ]  # fmt: skip


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


def drawn(chart: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chart as an image, with its title and figures."""
    known = [value for row in chart["rows"] for value in row["values"] if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    bottom = min(low, 0.0) if chart["form"] != NUMBER or low < high / 2 else low
    top = {PERCENT: 100.0, PART: 1.0}.get(chart["form"], high)
    images = [
        line([None if value is None else value - bottom for value in row["values"]], top - bottom, HEIGHT)
        for row in chart["rows"]
    ]
    last = next((value for value in reversed(chart["rows"][0]["values"]) if value is not None), None)
    return {
        "title": chart["title"],
        **{label: figure(value, chart["form"]) for label, value in {"last": last, "low": low, "high": high, **chart["lines"]}.items()},
        "image": Markup(
            f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true">{"".join(images)}</svg>'
        ),
    }  # fmt: skip
