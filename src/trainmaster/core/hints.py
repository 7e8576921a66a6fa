"""Hints to the user out of what was measured: resources that a job does not use, limits that it nearly reached, tasks that hold it up.

A hint says what was seen, with figures, and which key of the job file to change. It speaks of a role, whose tasks ask for the same, and
only of tasks that were measured for `LONG` seconds. For memory the highest sample counts. For cores and GPUs the mean counts, without the
first `START` seconds: while a program imports and opens its data, its use is not yet typical.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from trainmaster.core.metrics import Series
from trainmaster.core.spec.job import BOARD
from trainmaster.core.spec.quantities import exact_bytes, format_bytes, format_seconds, parse_bytes, parse_seconds

LONG = 60.0  # seconds
START = 30.0  # seconds
ENOUGH = 3  # samples
UNUSED = 0.5  # of what was asked for: a hint is given where less was used (XLearning warned below 0.7)
SPARE = 256 * 1024 * 1024  # bytes; less is not worth a word
ROOM = 1.25  # the memory advised, as a multiple of the highest that was used
NEARLY = 0.9  # of a limit
IDLE = 10.0  # percent of a GPU's time
NAMED = 5  # tasks of a hint's text
MIB = 1024 * 1024

_GPU = re.compile(r"gpu\.(\w+)\.util")

Figures = Mapping[str, Any]
Usage = dict[str, float]  # task -> what it used of one resource


@attrs.frozen
class Hint:
    """One hint: what was seen, with figures, and the key of the job file to change."""

    kind: str  # memory-unused, memory-limit, cores-unused, gpu-idle, straggler or time-limit
    text: str
    tasks: Sequence[str] = ()


def hints(status: Figures, job: Figures, series: Sequence[Series]) -> list[Hint]:
    """Return the hints for a job, as its status, its description and its samples give them: those that matter most first."""
    roles = {task["task"]: task["role"] for task in status["tasks"]}
    usage = _usage(roles, series)
    advice = [*_stragglers(status), *_time_limit(status, job)]
    for role, section in _section(job.get("roles")).items():
        resources = _section(_section(section).get("resources"))
        advice += _memory(role, resources, usage.get((role, "memory")))
        advice += _devices(role, [(name, used) for (of, name), used in usage.items() if of == role])
        advice += _cores(role, resources, usage.get((role, "cpu")))
    return advice


def _section(value: Any) -> Figures:
    return value if isinstance(value, Mapping) else {}


def _usage(roles: Mapping[str, str], series: Iterable[Series]) -> dict[tuple[str, str], Usage]:
    """Return what was used, by role and name, of the tasks that were measured for long enough. A page asks for it at each change."""
    usage: dict[tuple[str, str], Usage] = {}
    for row in series:
        role, measure = roles.get(row.task), _MEASURES.get(row.name) or (_mean if _GPU.fullmatch(row.name) else None)
        if role is not None and measure is not None and len(row.times) and row.times[-1] - row.times[0] >= LONG:
            used = measure(row)
            if used is not None:
                usage.setdefault((role, row.name), {})[row.task] = used
    return usage


def _mean(row: Series) -> float | None:
    """Return the mean after the start; None where too little was measured."""
    later = bisect_left(row.times, row.times[0] + START)
    values = [value for value in row.values[later:] if value is not None]
    return math.fsum(values) / len(values) if len(values) >= ENOUGH else None


def _highest(row: Series) -> float | None:
    values = [value for value in row.highest if value is not None]
    return max(values) if len(values) >= ENOUGH else None


_MEASURES = {"memory": _highest, "cpu": _mean}


def _memory(role: str, resources: Figures, used: Usage | None) -> list[Hint]:
    requested = _quantity(resources.get("memory"), parse_bytes)
    if used is None or not requested:
        return []
    highest = max(used.values())
    key = "tensorboard.memory" if role == BOARD else f"roles.{role}.resources.memory"
    near = [task for task, most in used.items() if most >= NEARLY * requested]
    if near:
        text = f"{_names(near)} used up to {format_bytes(highest)} of the {format_bytes(requested)} that {_each(near)} may use: raise {key}"
        return [Hint("memory-limit", text, near)]
    enough = _rounded_up(highest * ROOM)
    if highest >= UNUSED * requested or requested - enough < SPARE:
        return []
    tasks = list(used)
    return [
        Hint(
            "memory-unused",
            f"{_names(tasks)} used at most {format_bytes(highest)} of the {format_bytes(requested)} that {_each(tasks)} asks for:"
            f" {key}: {exact_bytes(enough)} would do",
            tasks,
        )
    ]


def _cores(role: str, resources: Figures, used: Usage | None) -> list[Hint]:
    requested = _quantity(resources.get("cores"), float)
    if used is None or not requested or role == BOARD:  # whose cores no key sets
        return []
    most, tasks = max(used.values()), list(used)
    enough = max(1, math.ceil(most * ROOM))
    if most >= UNUSED * requested or enough > requested - 1:
        return []
    return [
        Hint(
            "cores-unused",
            f"{_names(tasks)} kept at most {most:.1f} of the {requested:g} cores busy that {_each(tasks)} asks for:"
            f" roles.{role}.resources.cores: {enough} would do",
            tasks,
        )
    ]


def _devices(role: str, usages: Iterable[tuple[str, Usage]]) -> list[Hint]:
    """Name the tasks whose GPUs idle; one of several GPUs is enough."""
    idle: dict[str, float] = {}
    for name, used in usages:
        if _GPU.fullmatch(name):
            for task, mean in used.items():
                if mean < IDLE:
                    idle[task] = max(mean, idle.get(task, 0.0))
    if not idle:
        return []
    tasks = list(idle)
    text = (
        f"{_names(tasks)} kept a GPU busy for {max(idle.values()):.0f} % of the time: see that the program computes on all its GPUs and"
        f" does not wait for data, or lower roles.{role}.resources.gpus"
    )
    return [Hint("gpu-idle", text, tasks)]


def _stragglers(status: Figures) -> list[Hint]:
    slow = {task["task"]: task for task in status["tasks"] if task.get("straggling")}
    return [
        Hint(
            "straggler",
            f"{name} is much slower than its peers: {task['straggling']['words']}; see what else runs on {task.get('node') or 'its node'},"
            f" or have such tasks restarted elsewhere: roles.{task['role']}.stragglers: replace",
            [name],
        )
        for name, task in slow.items()
    ]


def _time_limit(status: Figures, job: Figures) -> list[Hint]:
    limit = _quantity(_section(job.get("timeouts")).get("job"), parse_seconds)
    if not limit or status.get("ended") is not None:
        return []
    since = status["at"] - status["submitted"]
    if since < NEARLY * limit:
        return []
    text = f"the job was submitted {format_seconds(round(since))} ago and is ended after {format_seconds(limit)}: raise timeouts.job"
    return [Hint("time-limit", text)]


def _quantity(value: Any, read: Any) -> float | None:
    """Return a figure of a job file, None where there is none or it cannot be read."""
    try:
        return None if value in (None, "") else read(str(value))
    except ValueError:
        return None


def _rounded_up(count: float) -> int:
    """Round bytes up as people write them: to 64 MiB, above 2 GiB to half a GiB."""
    step = 64 * MIB if count < 2048 * MIB else 512 * MIB
    return math.ceil(count / step) * step


def _names(tasks: Sequence[str]) -> str:
    if len(tasks) <= NAMED:
        return ", ".join(tasks)
    return f"{', '.join(tasks[: NAMED - 2])} and {len(tasks) - NAMED + 2} more tasks"


def _each(tasks: Sequence[str]) -> str:
    return "it" if len(tasks) == 1 else "each"
