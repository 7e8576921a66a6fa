"""Bounded series of samples of a running job, by task and name.

Names: `cpu` (cores), `memory` (bytes), `gpu.<n>.util` (percent), `gpu.<n>.memory` (bytes), `progress` (0 to 1), `step`, `steps` (a second),
`records` (done), `records.rate` (a second), and `metric.<name>` of the program. The task "" is the whole job: sums of what its tasks use
and do, its progress, and of all its GPUs, as `gpu.all`, the mean use and the sum of memory.

A series is a row of points. Each of them stands for all samples of an interval: their mean, the highest, and their number. While there is
room each sample is a point. A series that is full merges neighbours: its interval doubles until a quarter of its room is free. So the whole
life of a job stays visible, ever more coarsely, and the sum and the highest of all samples stay what they were.

A gap is a time in which nothing was measured: the task's attempt had ended, or samples that come by themselves (`SAMPLED`) did not. It
is kept as long as it is wider than the interval. Reports of a program have no rhythm, so there only the end of an attempt makes a gap.

A figure of a program that is not a number (a loss that is nan or infinite) is a point too; `nans` has its time. A point that is merged
with it is one as well: a loss that became nan must not look like one that ended well.

All series together have at most `BUDGET` points: each gets `POINTS`, and half as many each time that there are too many series for that.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import gt
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from trainmaster.core.spec.job import Job

POINTS = 512  # of a series, while there are few; those of the whole job always have as many
BUDGET = 256 * 1024  # points of all series
SERIES = 32 * 1024  # then all have 8 points; half of them may be of other names than USAGE
NAMES = 128  # of one task
METRICS = 64  # of a program; a name is cut at this number of characters
MOST = 1e300  # the largest figure that is kept

JOB = ""  # the task of the job's own series
USAGE = ("cpu", "memory")
PREFIX = "metric."  # of names that programs chose
RATES = {"step": "steps", "records": "records.rate"}  # a count -> its rate
SUMS = (*USAGE, "records", "steps", "records.rate")  # over the tasks
SAMPLED = frozenset({*USAGE, "steps"})  # an agent sends them each 3 s; so it does those of devices
SILENCE = 15.0  # s without one of these that are a gap; older ones are not in the job's sums
SPACING = 2.5  # s between two counts that make a rate


@attrs.frozen(slots=True)
class Series:
    """Samples of one name of one task, oldest first. `times` in seconds since 1970; a value is None where nothing was measured.

    A point stands for all samples of its interval: `values` has their means, `highest` the highest of them. Its time is that of the first.
    `nans`: the times of the points in which a sample was not a number; their values are None.
    """

    task: str
    name: str
    times: Sequence[float]
    values: Sequence[float | None]
    highest: Sequence[float | None]
    nans: Sequence[float] = ()

    @property
    def is_nan(self) -> bool:
        """Tell whether the newest sample is not a number."""
        return bool(self.nans) and self.nans[-1] == self.times[-1]


class Store:
    """The series of one job."""

    def __init__(self) -> None:
        self._tasks: dict[str, dict[str, Points]] = {}
        self._counts: dict[
            tuple[str, str], tuple[float, float]
        ] = {}  # (task, name) -> the count that its next rate begins at
        self._series, self._room = 0, POINTS

    # -- samples --

    def add(self, at: float, task: str, values: Mapping[str, float]) -> None:
        """Take in what was measured of a task at a time, in seconds since 1970. Rates follow from the counts among it."""
        for name, value in values.items():
            self._add(at, task, name, value)
            if task and (rate := RATES.get(name)) is not None:
                self._add_rate(at, task, name, value, rate)

    def interrupt(self, task: str) -> None:
        """Begin a gap in all series of a task: its attempt has ended."""
        for points in self._tasks.get(task, {}).values():
            points.interrupted = True
        for count in RATES:
            self._counts.pop((task, count), None)

    def last(self, task: str, name: str) -> float | None:
        """Return the newest value; None where there is none."""
        points = self._tasks.get(task, {}).get(name)
        return None if points is None else points.value

    def totals(self, at: float) -> dict[str, float]:
        """Return the values of the whole job at a time, without its progress: tasks that have left do not count there."""
        values: dict[str, float] = {}
        uses, memories = [], []
        for task, names in self._tasks.items():
            if task == JOB:
                continue
            for name in SUMS:
                if (points := names.get(name)) is not None and (name == "records" or points.is_fresh(at)):
                    values[name] = values.get(name, 0.0) + points.value
            of_gpus = [
                (name, points) for name, points in names.items() if name.startswith("gpu.") and points.is_fresh(at)
            ]
            uses += [points.value for name, points in of_gpus if name.endswith(".util")]
            memories += [points.value for name, points in of_gpus if name.endswith(".memory")]
        if uses:
            values |= {"gpu.all.util": math.fsum(uses) / len(uses), "gpu.all.memory": math.fsum(memories)}
        return values

    def _add(self, at: float, task: str, name: str, value: float) -> None:
        points = self._tasks.get(task, _NONE).get(name) or self._begin(task, name)
        if points is not None and points.add(at, value):
            points.shrink(self._room_of(task))

    def _add_rate(self, at: float, task: str, name: str, count: float, rate: str) -> None:
        began, first = self._counts.setdefault((task, name), (at, count))
        if count < first:
            self._counts[task, name] = at, count  # it begins again
        elif at - began >= SPACING:
            self._counts[task, name] = at, count
            self._add(at, task, rate, (count - first) / (at - began))

    def _begin(self, task: str, name: str) -> Points | None:
        """Make a series; return None where there may be no more."""
        names = self._tasks.get(task) or {}
        most = SERIES if name in USAGE or task == JOB else SERIES // 2
        if len(names) >= NAMES or self._series >= most:
            return None
        points = self._tasks.setdefault(task, names)[name] = Points(silence=_silence(name))
        self._series += 1
        while self._series * self._room > BUDGET:
            self._room //= 2
            for other, rows in self._tasks.items():
                for row in rows.values():
                    row.shrink(self._room_of(other))
        return points

    def _room_of(self, task: str) -> int:
        return self._room if task != JOB else POINTS

    # -- reading --

    def series(
        self, tasks: Collection[str] | None = None, names: Collection[str] | None = None, since: float = 0.0
    ) -> list[Series]:
        """Return what was measured after `since`, of some tasks and names or of all; the name `metric.*` is all that begin so. A series
        begins with the point in which `since` lies, which may have grown. Series without anything newer are left out.
        """
        begins = tuple(name[:-1] for name in names or () if name.endswith("*"))
        rows = self._tasks if tasks is None else {task: self._tasks[task] for task in tasks if task in self._tasks}
        return [
            points.series(task, name, since)
            for task, known in rows.items()
            for name, points in known.items()
            if (names is None or name in names or name.startswith(begins)) and points.last > since
        ]

    # -- snapshots --

    def rows(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield each series as (plain data, the bytes of its points), the job's own first; `restore` takes them back."""
        for task in sorted(self._tasks):
            for name, points in self._tasks[task].items():
                yield {"task": task, "name": name, **points.facts()}, points.content()

    def restore(self, facts: Mapping[str, Any], content: bytes) -> None:
        """Take back a series. Raises ValueError, TypeError, KeyError where it is not one."""
        task, name = facts["task"], facts["name"]
        if not isinstance(task, str) or not isinstance(name, str):
            raise ValueError("a series has a task and a name")
        points = Points.read(facts, content)
        points.silence = _silence(name)
        if points.cells and self._begin(task, name) is not None:
            points.shrink(self._room_of(task))
            self._tasks[task][name] = points
            if name in RATES and not points.interrupted:
                self._counts[task, name] = points.last, points.value


@attrs.define(slots=True, eq=False, repr=False)
class Points:
    """The points of one series. Each has four numbers in `cells`: the time of its first sample, mean, highest, and count.

    A negative count: nothing was measured for a while before this point. One array takes less than four do: there may be 32,000 series.
    """

    cells: array[float] = attrs.field(factory=lambda: array("d"))
    width: float = 0.0  # s of a point; 0: each sample is one
    last: float = 0.0  # time of the newest sample
    value: float = 0.0  # the newest sample
    interrupted: bool = False  # whether a gap precedes the next sample
    silence: float = math.inf  # s without a sample that are a gap

    def __len__(self) -> int:
        return len(self.cells) // 4

    def add(self, at: float, value: float) -> bool:
        """Add a sample; a clock that went back stands still meanwhile. Return True where that made a point."""
        at = at if at > self.last else self.last
        cells = self.cells
        has_gap = (self.interrupted or at - self.last > self.silence) and bool(cells)
        self.last, self.value, self.interrupted = at, value, False
        if cells and not has_gap and at < cells[-4] + self.width:
            self._merge(value, value, 1.0)
            return False
        cells.extend((at, value, value, -1.0 if has_gap else 1.0))
        return True

    def is_fresh(self, at: float) -> bool:
        return not self.interrupted and at - self.last <= self.silence

    def shrink(self, room: int) -> None:
        """Merge neighbours until a quarter of the room is free, where there are more than `room` points."""
        if len(self) <= room:
            return
        while len(self) > room * 3 // 4:
            self.width = self.width * 2 or 1.0
            old, self.cells = self.cells, array("d")
            for n in range(0, len(old), 4):
                if self.cells and old[n] < self.cells[-4] + self.width:
                    self._merge(old[n + 1], old[n + 2], abs(old[n + 3]))
                else:
                    self.cells.extend(old[n : n + 4])

    def _merge(self, mean: float, highest: float, count: float) -> None:
        """Merge samples into the last point."""
        cells, before = self.cells, self.cells[-1]
        share = count / (abs(before) + count)
        cells[-3] = cells[-3] * (1.0 - share) + mean * share
        cells[-2] = max(cells[-2], highest) if not math.isnan(cells[-2]) else highest  # nothing is above a nan
        cells[-1] = before + math.copysign(count, before)

    def series(self, task: str, name: str, since: float) -> Series:
        first = 4 * max(0, bisect_right(self.cells[::4], since) - 1)
        times = self.cells[first::4].tolist()
        values: list[float | None] = [*self.cells[first + 1 :: 4]]
        highest: list[float | None] = [*self.cells[first + 2 :: 4]]
        nans = [time for time, value in zip(times, values, strict=True) if value != value]
        values, highest = ([None if value != value else value for value in row] for row in (values, highest))
        gaps = [n for n, count in enumerate(self.cells[first + 3 :: 4]) if count < 0 and n]
        for n in reversed(gaps):
            times.insert(n, (min(times[n - 1] + self.width, times[n]) + times[n]) / 2)
            values.insert(n, None)
            highest.insert(n, None)
        return Series(task, name, times, values, highest, nans)

    def facts(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("width", "last", "value", "interrupted")}
        return {"points": len(self), **facts}

    def content(self) -> bytes:
        """Return the points: four numbers of 8 bytes each, little endian as all machines are that we run on."""
        return self.cells.tobytes()

    @classmethod
    def read(cls, facts: Mapping[str, Any], content: bytes) -> Points:
        """Return the points that `facts` and `content` described. Raises ValueError, TypeError, KeyError."""
        points = cls(array("d", content))
        points.width, points.last, points.value = (float(facts[name]) for name in ("width", "last", "value"))
        points.interrupted = bool(facts["interrupted"])
        if len(points.cells) != 4 * facts["points"]:
            raise ValueError("a series is cut short")
        times, counts = points.cells[::4], points.cells[3::4]
        samples = (*points.cells[1::4], *points.cells[2::4], points.value)
        if not all(_is_figure(value) or math.isnan(value) for value in samples):
            raise ValueError("a series has samples that are not numbers")
        if not all(map(_is_figure, (*times, *counts, points.width, points.last))) or points.width < 0:
            raise ValueError("a series has times, counts or a width that are not numbers")
        if any(map(gt, times, times[1:])) or not all(counts):
            raise ValueError("the times of a series fall, or a point has no samples")
        return points


def readings(sample: Mapping[str, Any]) -> dict[str, float]:
    """Return name -> value of an agent's sample."""
    values = {name: sample.get(name) for name in (*USAGE, "progress", "step")}
    for gpu in sample.get("gpus") or ():
        values[f"gpu.{int(gpu['index'])}.util"] = gpu["util"] * 100.0
        values[f"gpu.{int(gpu['index'])}.memory"] = gpu["memory"]
    return figures(values)


def reported(report: Mapping[str, Any]) -> dict[str, float]:
    """Return name -> value of a program's report: its progress, its step and its metrics."""
    values = {"progress": report.get("value"), "step": report.get("step")}
    for name, value in [*(report.get("metrics") or {}).items()][:METRICS]:
        values[PREFIX + str(name)[:METRICS]] = value
    return figures(values)


def not_a_number(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first metric of a program's report that is nan or infinite, with its value and the step; {} where all are numbers."""
    for name, value in (report.get("metrics") or {}).items():
        if _is_not_a_number(value):
            return {"metric": str(name)[:METRICS], "value": str(value), "step": report.get("step")}
    return {}


def requested(job: Job, task: str) -> dict[str, float]:
    """Return name -> the cores and the bytes that the job asks for a task. A program may use that much memory, and no more."""
    resources = job.roles[task.rpartition(":")[0]].resources
    return {"cpu": resources.cores} | ({} if resources.memory is None else {"memory": float(resources.memory)})


def _silence(name: str) -> float:
    return SILENCE if name in SAMPLED or name.startswith("gpu.") else math.inf


_NONE: Mapping[str, Points] = {}


def figures(values: Mapping[str, Any]) -> dict[str, float]:
    """Return those of the values that can be kept: numbers, and nan for a program's metric that is not a number."""
    return {
        name: float(value) if _is_figure(value) else math.nan
        for name, value in values.items()
        if _is_figure(value) or (name.startswith(PREFIX) and _is_not_a_number(value))
    }


def _is_figure(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MOST  # neither is true of nan


def _is_not_a_number(value: Any) -> bool:
    """Tell whether a value is nan or infinite. Programs report it as text, for JSON has neither."""
    return value in ("nan", "inf", "-inf") or (type(value) is float and not math.isfinite(value))
