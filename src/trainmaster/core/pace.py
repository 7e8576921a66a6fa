"""Measure how fast programs work, from their agents' reports. This is soft state, as leases are: a new master begins anew.

Each LOOK seconds at most there is a stimulus `Measured` with two kinds of figures:

*The pace of a task*: the seconds that it takes for a step or a shard; the median of its last INTERVALS reports, which are at least SPACING
seconds apart. So a pause (a save, an evaluation) is one value among many, and a task that is silent is not measured: that is what stalls
are for. The first WARM_UP seconds of an attempt do not count. In synchronous training all ranks step together, so their steps look alike;
a program can report the seconds that it works itself in a step, without its waiting, as the metric `step_time`. That is taken then, and
compared only with that of others.

*The rate of a role*: the work of all its members a second, over a window of `scale.every` (at least SHORTEST) in which no member came, left
or restarted. The window begins half its length after the last such change: programs begin slowly. Where only some tasks report, as rank 0
of a group often does for all, the others count as the average of those. Work is the metric `throughput` of a program that reports it
(anything a second, its own part), else the shards of the tasks that report those done, else steps.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

import attrs

from trainmaster.core.machine.phases import RUNNING
from trainmaster.core.machine.state import State
from trainmaster.core.machine.stimuli import Measured, Pace, Rate, Report, Stimulus

LOOK = 5.0  # s between two looks
SPACING = 5.0  # s between two reports that count
INTERVALS = 12
WARM_UP = 60.0  # s of an attempt, from its first report of work on
SILENT = 60.0  # s, and three times its own pace, after which a task is not measured
SHORTEST = 5.0  # s of a window; it goes on, up to so many times as long, until there were ENOUGH steps or shards in it
ENOUGH, LONGER = 20, 10
LEAST, MOST = 1e-12, 1e18  # figures that mean something

STEP, SHARD, OWN_TIME = "step", "shard", "step of its own work"  # by which a pace is measured, the last one first
_RANKS = (STEP, SHARD, OWN_TIME)


@attrs.define(slots=True, eq=False, repr=False)
class _Course:
    """The work of one attempt, as far as it was reported."""

    attempt: int
    began: float  # when it first reported any
    at: float  # of the last report that counts for its pace
    heard: int = 0  # the number of the last report: a new connection brings some again
    by: str = STEP
    last: float = 0.0  # the count then
    seconds: array[float] = attrs.field(factory=lambda: array("d"))  # for a step or a shard, the newest last
    steps: float | None = None  # the newest step
    counted: float = 0.0  # steps that were made since the first report
    shards: float = 0.0
    throughput: float = 0.0  # the sum of its reports of it
    throughput_reports: int = 0

    def reached(self, step: float) -> None:
        self.counted += max(0.0, step - (step if self.steps is None else self.steps))
        self.steps = step

    def note(self, now: float, by: str, value: float) -> None:
        """Note `value` at `now`: a count of steps or shards, or the seconds of a step itself."""
        if _RANKS.index(by) < _RANKS.index(self.by):
            return
        if by != self.by or now < self.at or value < self.last:
            self.by, self.at, self.last, self.seconds = by, now, 0.0 if by == OWN_TIME else value, array("d")
            return
        if now - self.at < SPACING or (by != OWN_TIME and value == self.last):
            return
        if now - self.began >= WARM_UP:
            self.seconds.append(value if by == OWN_TIME else (now - self.at) / (value - self.last))
            del self.seconds[:-INTERVALS]
        self.at, self.last = now, 0.0 if by == OWN_TIME else value

    def pace(self, now: float) -> Pace | None:
        if len(self.seconds) < INTERVALS:
            return None
        median = sorted(self.seconds)[INTERVALS // 2]
        return Pace(self.by, significant(median)) if now - self.at <= max(SILENT, 3 * median) else None


@attrs.frozen(slots=True, eq=False, repr=False)
class _Window:
    """The beginning of a measurement of one role."""

    members: tuple[tuple[str, int], ...]
    begins: float
    counts: Mapping[str, tuple[float, float, float, int]] | None = None  # task -> its course's counts as it began


class Paces:
    """The measurements of one master."""

    def __init__(self) -> None:
        self._courses: dict[str, _Course] = {}
        self._windows: dict[str, _Window] = {}
        self._looked = 0.0

    def take(self, state: State, stimuli: Iterable[Stimulus], now: float) -> Measured | None:
        """Take in the reports among `stimuli`. Return what there is to be seen, where it is time for that."""
        has_report = False
        for stimulus in stimuli:
            if isinstance(stimulus, Report) and stimulus.kind in _TAKEN:
                has_report = self._hear(state, stimulus, now) or has_report
        if not has_report or 0.0 <= now - self._looked < LOOK:
            return None
        self._looked = now
        for key in [key for key, course in self._courses.items() if not _runs(state, key, course.attempt)]:
            del self._courses[key]
        paces = {key: pace for key, course in self._courses.items() if (pace := course.pace(now)) is not None}
        return Measured(paces, self._rates(state, now))

    def _hear(self, state: State, report: Report, now: float) -> bool:
        if not _runs(state, report.task, report.attempt):
            return False
        course = self._courses.get(report.task)
        if course is None or course.attempt != report.attempt:
            course = self._courses[report.task] = _Course(report.attempt, now, now)
        if report.n > course.heard:
            course.heard = report.n
            _TAKEN[report.kind](course, report.data, now)
        return True

    # -- roles --

    def _rates(self, state: State, now: float) -> list[Rate]:
        if state.known_job.scale.auto == "off":
            return []
        roles = [
            (role, group.sizes[role])
            for group in state.groups if group.sizes is not None
            for role in group.elastic if not state.known_job.roles[role].replicas.start
        ]  # fmt: skip
        return [rate for role, size in roles if (rate := self._rate(state, role, size, now)) is not None]

    def _rate(self, state: State, role: str, size: int, now: float) -> Rate | None:
        """Return the rate of a role whose window is over, and begin the next one."""
        length = max(SHORTEST, state.known_job.scale.every)
        members = tuple(
            (task.key, task.attempt) for task in state.members_of(role) if _runs(state, task.key, task.attempt)
        )
        known = {key: self._courses[key] for key, _ in members if key in self._courses}
        if len(members) < size or not known:
            self._windows.pop(role, None)
            return None
        window = self._windows.get(role)
        if window is None or window.members != members or now < window.begins - length:
            self._windows[role] = _Window(members, now + length / 2)
            return None
        counts = {
            key: (course.counted, course.shards, course.throughput, course.throughput_reports)
            for key, course in known.items()
        }
        if window.counts is None:
            if now >= window.begins:
                self._windows[role] = _Window(members, now, counts)
            return None
        if (seconds := now - window.begins) < length:
            return None
        work = _work(window.counts, known)
        if work is None or (work.unit and sum(work.amounts) < ENOUGH and seconds < LONGER * length):
            return None
        self._windows[role] = _Window(members, now, counts)
        rate = sum(work.amounts) / len(work.amounts) * size / (seconds if work.unit else 1.0)
        return Rate(role, size, significant(rate), work.unit)


@attrs.frozen(slots=True, eq=False, repr=False)
class _Work:
    """The work of each task that reports it: steps or shards in a window; without a unit, its own throughput."""

    unit: str
    amounts: list[float]


def _work(before: Mapping[str, tuple[float, float, float, int]], courses: Mapping[str, _Course]) -> _Work | None:
    throughputs, shards, steps = [], [], []
    for key, course in courses.items():
        steps_before, shards_before, sum_before, reports_before = before.get(key, (0.0, 0.0, 0.0, 0))
        shards.append(course.shards - shards_before)
        if course.steps is not None:
            steps.append(course.counted - steps_before)
        if (reports := course.throughput_reports - reports_before) > 0:
            throughputs.append((course.throughput - sum_before) / reports)
    if throughputs:
        return _Work("", throughputs)
    return _Work("shards", shards) if any(shards) else _Work("steps", steps) if any(steps) else None


def _progress(course: _Course, data: Mapping[str, Any], now: float) -> None:
    metrics = data.get("metrics") or {}
    own_time, throughput, step = metrics.get("step_time"), metrics.get("throughput"), data.get("step")
    if _is_figure(step):
        course.reached(step)
        course.note(now, STEP, step)
    if _is_figure(own_time):
        course.note(now, OWN_TIME, own_time)
    if _is_figure(throughput):
        course.throughput += throughput
        course.throughput_reports += 1


def _shards_done(course: _Course, data: Mapping[str, Any], now: float) -> None:
    try:
        course.shards += sum(end - first for first, end in data["ranges"])
    except (TypeError, ValueError, KeyError):  # not what an agent of ours says
        return
    course.note(now, SHARD, course.shards)


_TAKEN = {"progress": _progress, "shards-done": _shards_done}


def _is_figure(value: Any) -> TypeGuard[float]:
    """Tell whether a program's figure is one: sums and quotients of those stay within the bounds of numbers."""
    return type(value) in (int, float) and 0 <= value <= MOST


def significant(value: float) -> float:
    """Return a figure as it is written down: six digits of it; what is next to nothing is 0."""
    return float(f"{value:.6g}") if value > LEAST else 0.0


def _runs(state: State, key: str, attempt: int) -> bool:
    task = state.tasks.get(key)
    return (
        task is not None and task.attempt == attempt and task.phase == RUNNING and not task.doomed and not task.is_spare
    )
