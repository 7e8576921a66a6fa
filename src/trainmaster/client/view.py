"""Watching a job: every task's output as it comes, and above the prompt what each task does.

Not on a terminal it is plain: the programs' lines on stdout, ours on stderr, and nothing is imported for it. On a terminal it begins the
same way, for a short job is over before a drawing library is loaded; after a moment live rows appear under the output: one line about the
job while it starts, one a task once it runs.

Watching changes nothing: whoever stops watching leaves the job running.
"""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from trainmaster.client.connect import Facts
from trainmaster.client.lines import Lines
from trainmaster.client.text import clean, ended_lines, output_sizes, progress
from trainmaster.core.quantities import format_bytes, format_seconds

MOMENT = 0.5  # s until a terminal shows live rows
REDRAW = 0.1  # s between two drawings at least
AGAIN = 30.0  # s until the same words with other figures are said again, where nothing moves
HISTORY = 20  # samples in a sparkline
REPORTER = "reporter progress:"  # begins a line on stderr by which any program may tell its progress
ROWS = 20  # tasks shown at most
_BARS = "▁▂▃▄▅▆▇█"


class Watching:
    """What was seen of a job so far, for whoever draws it."""

    def __init__(self) -> None:
        self.status: Facts = {}
        self.lost = 0.0  # s since a master answered
        self.lines = Lines()
        self.commits: list[Facts] = []
        self.cpu: dict[str, deque[float]] = {}
        self._last: dict[str, Any] = {}  # task -> when its last sample was taken

    def take(self, item: Facts) -> list[tuple[str, str]]:
        """Remember `item`; returns the lines of output that it completes."""
        self.lost = item.get("lost", 0.0)
        if (piece := item.get("log")) is not None:
            return _shown(self.lines.add(piece))
        if (event := item.get("event")) is not None and event["type"] == "output-committed":
            self.commits.append(event)
        status = item.get("status") or item.get("end")
        if status is not None:
            self.status = status
            for task in status["tasks"]:
                self._sampled(task)
        return _shown(self.lines.close()) if "end" in item else []

    def _sampled(self, task: Facts) -> None:
        """A status repeats the last sample until the next one is there; its time tells them apart."""
        cpu, at = task.get("cpu"), task.get("at")
        if isinstance(cpu, int | float) and self._last.get(task["task"]) != at:
            self._last[task["task"]] = at
            self.cpu.setdefault(task["task"], deque(maxlen=HISTORY)).append(cpu)

    @property
    def headline(self) -> str:
        """What the job does as a whole, with figures."""
        if self.lost > 1:
            return f"no master answers since {format_seconds(round(self.lost))}; it is taken up again"
        return str(self.status.get("waiting") or self.status.get("phase") or "starting")

    def summary(self) -> list[str]:
        return ended_lines(self.status, output_sizes(self.commits))


def watch(items: Iterable[Facts], out: TextIO | None = None, err: TextIO | None = None) -> Facts:
    """Show `items` until the end; returns the final status."""
    out, err = out or sys.stdout, err or sys.stderr
    seen = Watching()
    plain = Plain(out, err)
    shown: Plain | Any = plain
    rich_from = time.monotonic() + MOMENT if _lively(out, err) else None
    try:
        for item in items:
            shown.lines(seen.take(item))
            if "end" in item:
                break
            if rich_from is not None and shown is plain and time.monotonic() > rich_from:
                from trainmaster.client.rows import Rows

                shown = Rows(out)
            shown.draw(seen)
    finally:
        shown.close()
    for line in seen.summary() if seen.status else ():
        print(line, file=err)
    return seen.status


def _lively(out: TextIO, err: TextIO) -> bool:
    import os

    return out.isatty() and err.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Plain:
    """Lines on stdout, each led by its task; what the job does on stderr, when it changes."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        self._colours = out.isatty()
        self._told, self._at = "", 0.0

    def lines(self, lines: list[tuple[str, str]]) -> None:
        if lines:
            self._out.write("".join(f"{task} {clean(line, self._colours)}\n" for task, line in lines))
            self._out.flush()

    def draw(self, seen: Watching) -> None:
        told = seen.headline
        if not (seen.status or seen.lost > 1) or told in ("running", self._told):
            return
        now = time.monotonic()
        if _shape(told) != _shape(self._told) or now - self._at > AGAIN:  # figures alone may change many times a second
            print(f"{seen.status.get('job', 'job')}: {told}", file=self._err, flush=True)
            self._told, self._at = told, now

    def close(self) -> None:
        """Nothing is left to take away."""


def _shown(lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without what was said to us: progress has a place of its own."""
    return [line for line in lines if not line[1].startswith(REPORTER)]


def _shape(told: str) -> str:
    """How it begins, without figures: the rest may change many times a second."""
    return re.sub(r"[\d.]+", "#", " ".join(told.split()[:3]))


def spark(values: Iterable[float], most: float | None = None) -> str:
    """Values as bars, the highest as high as it gets."""
    known = list(values)
    top = max([most or 0.0, *known], default=0.0)
    return "".join(
        _BARS[min(len(_BARS) - 1, int(value / top * (len(_BARS) - 1) + 0.5))] if top else _BARS[0] for value in known
    )


def task_cells(seen: Watching, task: Facts, now: float) -> tuple[str, ...]:
    """One live row: task, what it does, progress, cores, memory."""
    cpu = seen.cpu.get(task["task"], ())
    gpus = " ".join(f"{gpu.get('util', 0):.0f} %" for gpu in task.get("gpus") or ())
    running = task.get("started") and task["state"] == "running"
    phase = format_seconds(max(0.0, round(now - task["started"]))) if running else task["phase"]
    return (
        task["task"],
        phase if task["attempt"] == 1 else f"{phase}, attempt {task['attempt']}",
        progress(task).strip("-"),
        f"{spark(cpu, 1.0)} {cpu[-1]:.1f}" if cpu else "",
        format_bytes(task["memory"]) if task.get("memory") else "",
        gpus,
    )


def detached(job: str, say: Callable[[str], object]) -> None:
    """What to do after having stopped watching."""
    say(f"{job} goes on. Watch it again: tm attach {job}   end it: tm kill {job}")
