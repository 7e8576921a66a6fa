"""Make the parts of a job's page out of its facts. Plain data in, HTML out: a part changes only when a reader would see something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from trainmaster.core.fold.saving import save_folder
from trainmaster.core.hints import hints
from trainmaster.core.machine.report import all_tasks, job_progress
from trainmaster.core.metrics import JOB, Series
from trainmaster.core.spec.job import BOARD_LABEL
from trainmaster.core.states import FAILED, KILLED, LOST, PENDING, RUNNING, STAGING, SUCCEEDED, state_word
from trainmaster.core.timeline import Attempt, Mark, Timeline
from trainmaster.web.contract import Facts, Links
from trainmaster.web.pages.actions import buttons
from trainmaster.web.pages.blocks import Blocks
from trainmaster.web.pages.charts import nan_words, title
from trainmaster.web.pages.drawing import Range, Span, bars, nice_end, spark, ticks
from trainmaster.web.pages.patience import Patience
from trainmaster.web.pages.render import dom_id, render
from trainmaster.words.events import event_text
from trainmaster.words.text import loss_lines, shard_figures

PAGE = 100  # tasks on one page
ROWS = 40  # tasks with a row of their own in the time line of the job's page
EVENTS = 12  # the newest, on the job's page
MARKS = 30  # the newest, under the time line
FIRST = (FAILED, LOST, RUNNING, STAGING, PENDING, KILLED, SUCCEEDED)  # states, those that matter first
_SPARKS = ("cpu", "memory")  # names
_DEVICES = 16  # of a host, whose use a task's row draws
_SAMPLED = (*_SPARKS, "progress", "step")

Figures = Mapping[str, Any]
NO_EVENTS: list[Figures] = []
NO_SERIES: Sequence[Series] = ()


@attrs.frozen
class Choice:
    """The tasks that a reader wants to see: those whose key, node or state has all words of `text`; `page` counts from 1."""

    text: str = ""
    page: int = 1

    def takes(self, task: Figures) -> bool:
        row = f"{task['task']} {task['state']} {task.get('node') or ''} {task.get('reason', '')}".lower()
        return all(word in row for word in self.text.lower().split())


class JobPage:
    """The page of one job, as one choice of tasks shows it."""

    def __init__(self, facts: Facts, choice: Choice, patience: Patience, links: Links | None = None) -> None:
        self._facts, self._choice, self._read, self._links = facts, choice, patience.read, links
        self._order: list[str] = []  # the tasks that the table shows: they keep their places while the page is open
        self._known = 0  # of how many tasks they were chosen

    async def blocks(self) -> Blocks:
        """Return every part that may change, by id."""
        status, description = self._facts.shown_status(), self._facts.description()
        job, shown = description.get("job") or {}, self._shown(status["tasks"])
        timeline, trouble = await self._read("events", self._facts.timeline, Timeline())
        newest, _ = await self._read("newest events", lambda: self._newest_events(status["events"]), NO_EVENTS)
        names = ["", *(task["task"] for task in shown)]
        series, unread = await self._read(
            "samples", lambda: self._facts.metrics(tasks=names), NO_SERIES, of=f"the tasks of {self._choice}"
        )
        trouble, shown = trouble or unread, with_samples(shown, series)
        now = status["at"] if status["ended"] is not None else max(status["at"], timeline.at, latest(series))
        blocks: dict[str, str | tuple[str, str]] = {
            "head": render("parts/head.html", **head(status, description, shown, series)),
            "actions": render(
                "parts/actions.html", buttons=buttons(status, job), board=await self._board(status)
            ),
            "alert": render("parts/alert.html", status=status, reason=status["reason"], losses=losses(status), trouble=trouble),
            "hints": render("parts/hints.html", hints=hints(status, job, series)),
            "timeline": render("parts/timeline.html", **time_line(status, timeline, now)),
            "data": render("parts/data.html", **data(status, description), opens_links=self._links is not None),
            "recent": render("parts/recent.html", events=[(event, event_text(event)) for event in reversed(newest)]),
            "masters": render("parts/masters.html", epochs=timeline.epochs),
        }  # fmt: skip
        return blocks | self._table(status["tasks"], shown, timeline, series)

    def _table(
        self, tasks: Sequence[Figures], shown: Sequence[Figures], timeline: Timeline, series: Sequence[Series]
    ) -> dict[str, str | tuple[str, str]]:
        """Return the table of tasks, and each of its rows: the table itself changes only where other rows are shown, or their counts."""
        attempts, samples = attempts_by_task(timeline), {(sampled.task, sampled.name): sampled for sampled in series}
        rows = {
            f"task-{dom_id(task['task'])}": render("parts/task.html", **row(task, attempts.get(task["task"], []), samples))
            for task in shown
        }  # fmt: skip
        counts, number = Counter(map(state_word, tasks)), sum(map(self._choice.takes, tasks))
        table = render(
            "parts/tasks.html", rows=rows.values(), counts=counts, choice=self._choice, number=number, total=len(tasks),
            pages=-(-number // PAGE),
        )  # fmt: skip
        return {**rows, "tasks": (f"{list(rows)} {number} {counts}", table)}

    async def _board(self, status: Figures) -> str:
        """Return the label of the link that opens TensorBoard; "" where it does not run, and a job that has ended left no event files."""
        if self._links is None or (BOARD_LABEL not in status["links"] and status["ended"] is None):
            return ""
        if BOARD_LABEL in status["links"]:
            return BOARD_LABEL
        has_files, _ = await self._read("event files", self._links.has_event_files, False)
        return BOARD_LABEL if has_files else ""

    async def _newest_events(self, last: int) -> list[Figures]:
        return [event async for event in self._facts.events(max(0, last - EVENTS), False)]

    def _shown(self, tasks: Sequence[Figures]) -> list[Figures]:
        """Return the tasks of the table, those that matter first; an open page keeps its order while no task comes or goes."""
        by_key = {task["task"]: task for task in tasks}
        if self._known != len(tasks) or any(key not in by_key for key in self._order):
            chosen = sorted((task for task in tasks if self._choice.takes(task)), key=importance)
            self._order = [task["task"] for task in chosen[(self._choice.page - 1) * PAGE : self._choice.page * PAGE]]
            self._known = len(tasks)
        return [by_key[key] for key in self._order]


def importance(task: Figures) -> tuple[int, ...]:
    """Return a key that sorts tasks as a reader wants them: failures, then troubles, then the others."""
    state = FIRST.index(task["state"]) if task["state"] in FIRST else len(FIRST)
    return (state > 1, not (task.get("straggling") or task.get("trouble") or task["attempt"] > 1), state)


def latest(series: Iterable[Series]) -> float:
    return max((row.times[-1] for row in series if row.times), default=0.0)


def with_samples(tasks: Sequence[Figures], series: Sequence[Series]) -> list[Figures]:
    """Return tasks with their newest samples where they run and have none: the status of a storage place's job is that of its log."""
    newest = {(row.task, row.name): row.values[-1] for row in series if row.values}
    return [
        {**{name: newest.get((task["task"], name)) for name in _SAMPLED}, **task} if task["state"] == RUNNING else task
        for task in tasks
    ]


def head(status: Figures, description: Figures, shown: Sequence[Figures], series: Sequence[Series]) -> dict[str, Any]:
    """Return the facts of the first lines: they say how the job is doing."""
    progress = job_progress(status)
    if progress is None and status["state"] == RUNNING:
        progress = next((row.values[-1] for row in series if (row.task, row.name) == (JOB, "progress")), None)
    steps = [task["step"] for task in [*status["tasks"], *shown] if task.get("step") is not None]
    return {
        "job": status, "description": description, "progress": progress, "word": job_word(status), "steps": max(steps, default=None),
        "nans": nan_lines(series),
    }  # fmt: skip


def nan_lines(series: Sequence[Series]) -> list[str]:
    """Say which figures of programs are nan now."""
    rows: dict[str, list[Series]] = {}
    for row in series:
        if row.is_nan:
            rows.setdefault(row.name, []).append(row)
    return [f"{title(name)} is {nan_words(of_name)}" for name, of_name in rows.items()]


def job_word(status: Figures) -> str:
    """Return the job's state as the stylesheet colours it: a live job that waits for something has the colour of a pending one."""
    return PENDING if status["waiting"] and status["state"] == RUNNING else str(status["state"])


def losses(status: Figures) -> list[str]:
    return [text.strip() for text in loss_lines(status)] + [
        f"given up at the end: {text}" for text in status["gave_up"]
    ]


def attempts_by_task(timeline: Timeline) -> dict[str, list[Attempt]]:
    """Return the attempts of each task, in order."""
    attempts: dict[str, list[Attempt]] = {}
    for attempt in timeline.attempts.values():
        attempts.setdefault(attempt.task, []).append(attempt)
    return attempts


def row(task: Figures, attempts: Sequence[Attempt], series: Mapping[tuple[str, str], Series]) -> dict[str, Any]:
    """Return the facts of one task's row."""
    present = next((attempt for attempt in reversed(attempts) if attempt.attempt == task["attempt"]), None)
    sparks = {name: spark(series.get((task["task"], name)), name) for name in _SPARKS}
    uses = {device: series.get((task["task"], f"gpu.{device}.util")) for device in range(_DEVICES)}
    devices = [spark(use, f"use of GPU {device}") for device, use in uses.items() if use is not None]
    return {
        "devices": devices, "task": task, "word": state_word(task), "present": present, "sparks": sparks,
        "earlier": [attempt for attempt in reversed(attempts) if attempt is not present],
    }  # fmt: skip


def time_line(status: Figures, timeline: Timeline, now: float, rows: int = ROWS) -> dict[str, Any]:
    """Return the rows and marks of the time line, those of the tasks that matter first, and the share of tasks that ran at each time."""
    begin = status["submitted"]
    shown = Range(begin, status["ended"] or nice_end(begin, now))
    attempts = attempts_by_task(timeline)
    tasks = sorted(all_tasks(status), key=importance)
    lines = [(task["task"], bars(spans(attempts.get(task["task"], []), shown), shown)) for task in tasks[:rows]]
    marks = sorted(timeline.marks, key=lambda mark: mark.at)
    crowd = bars(crowd_spans(timeline, shown, len(tasks)), shown) if len(tasks) > rows else None
    return {
        "lines": lines, "total": len(tasks), "crowd": crowd, "begin": begin, "end": shown.end, "has_ended": status["ended"] is not None,
        "ticks": ticks([(mark.at, mark.kind, mark.text) for mark in marks], shown), "marks": newest(marks),
        "number": len(marks), "generations": timeline.generations[-1:],
    }  # fmt: skip


def newest(marks: Sequence[Mark]) -> list[Mark]:
    return list(reversed(marks[-MARKS:]))


def spans(attempts: Sequence[Attempt], shown: Range, root: str = "") -> list[Span]:
    """Return the bars of one task: of each attempt its time without a container, that before its program, and its program's."""
    row_spans = []
    for attempt in attempts:
        end = attempt.ended if attempt.ended is not None else shown.end
        link = f"{root}logs/{attempt.task}?attempt={attempt.attempt}"
        title = f"{attempt.task}, attempt {attempt.attempt}" + (f" on {attempt.node}" if attempt.node else "")
        started = attempt.started or end
        placed = min(
            attempt.granted or attempt.staging or started, started
        )  # that it was asked to prepare says that it has one, too
        if attempt.began is not None and placed > attempt.began:
            row_spans.append(Span(attempt.began, placed, PENDING, f"{title}: {PENDING}, without a container", link))
        if attempt.began is not None and started > placed:
            row_spans.append(Span(placed, started, STAGING, f"{title}: {STAGING}", link))
        if attempt.started is not None:
            word = f"{attempt.state}: {attempt.words}" if attempt.reason else attempt.state
            row_spans.append(Span(attempt.started, end, attempt.state, f"{title}: {word}", link))
    return row_spans


def crowd_spans(timeline: Timeline, shown: Range, total: int, steps: int = 200) -> list[Span]:
    """Return bars that say how many of many tasks ran, in ten shades: a row for each would be too much."""
    width = (shown.end - shown.begin) / steps
    changes = [0] * (steps + 2)
    for attempt in timeline.attempts.values():
        if attempt.started is not None:
            first = int((attempt.started - shown.begin) / width) if width else 0
            last = int(((attempt.ended or shown.end) - shown.begin) / width) if width else 0
            changes[max(0, min(steps, first))] += 1
            changes[max(0, min(steps, last)) + 1] -= 1
    bars_, running = [], 0
    for step in range(steps):
        running += changes[step]
        if running:
            begin = shown.begin + step * width
            bars_.append(
                Span(
                    begin,
                    begin + width,
                    f"share-{max(1, min(10, round(10 * running / max(1, total))))}",
                    f"{running} ran",
                )
            )
    return bars_


def save_row(save: Figures, outputs: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts of one save: who has saved, how much, and where it lies."""
    saved, sizes = len(save["tasks"]), [figures.get("bytes", 0) for figures in save["tasks"].values()]
    return {
        "save": save["save"], "at": save["at"], "saved": saved, "all": saved + len(save["left"]) + len(save["failed"]),
        "left": len(save["left"]), "failed": len(save["failed"]), "bytes": sum(sizes),
        "places": [f"{url.rstrip('/')}/{save_folder(save['save'])}" for url in outputs.values()] if saved else [],
    }  # fmt: skip


def data(status: Figures, description: Figures) -> dict[str, Any]:
    """Return the facts of inputs, outputs, checkpoints and saves."""
    job = description.get("job") or {}
    return {
        "inputs": {name: (entry, status["shards"].get(name)) for name, entry in (job.get("inputs") or {}).items()},
        "words": {name: shard_figures(figures) for name, figures in status["shards"].items()},
        "outputs": status["outputs"], "saves": [save_row(save, status["outputs"]) for save in reversed(status["saves"])],
        "checkpoint": status["checkpoint"],
        "asks_checkpoint": job.get("checkpoint"), "links": status["links"], "scaling": status["scaling"],
    }  # fmt: skip
