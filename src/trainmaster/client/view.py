"""Watching a job: every task's output as it comes, and above the prompt what each task does.

Not on a terminal it is plain: the programs' lines on stdout, ours on stderr, and nothing is imported for it. On a terminal it begins with
one line that is written over, for a short job is over before a drawing library is loaded; after a moment live rows appear under the
output: one line about the job, and one a task. Ours, above, are failures and what they lead to, and what a job waits for.

Watching changes nothing: whoever stops watching leaves the job running.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from trainmaster.client.connect import Facts
from trainmaster.client.lines import Lines, without_reports
from trainmaster.client.printing import Aloud, Choice, Piped, Plain, Question
from trainmaster.client.restarts import Restarts
from trainmaster.client.text import clean, ended_lines, left_out_lines, output_sizes, progress, state_word
from trainmaster.core.quantities import format_bytes, format_seconds

MOMENT = 0.3  # s until a terminal shows live rows
LOST = 3.0  # s without a master that are worth a word; a busy machine takes its time to start one
REDRAW = 0.1  # s between two drawings at least
HISTORY = 8  # samples in a sparkline
ROWS = 20  # tasks shown at most
HEAD = ("TASK", "STATE", "PROGRESS", "CORES", "MEMORY", "GPU")
COLOURS = {"cyan": 36, "magenta": 35, "yellow": 33, "green": 32, "blue": 34}  # of tasks; red is for failures
_ALL = Choice()
_BARS = "▁▂▃▄▅▆▇█"
_SAMPLED = ("cpu", "memory", "gpus", "progress", "step", "doing", "at")  # told by samples; a new master has none yet


class Watching:
    """What was seen of a job so far, for whoever draws it."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.status: Facts = {}
        self.lost = 0.0  # s since a master answered
        self.why = ""  # what the engine says of that
        self.lines = Lines()
        self.left_out = Counter[str]()  # task -> bytes of its output that were gone when they were to be read
        self.commits: list[Facts] = []
        self.cpu: dict[str, deque[float]] = {}
        self.columns: set[int] = set()  # of the rows, that ever had something to show: they stay
        self.news: list[str] = []  # what is to be said of failures
        self._restarts = Restarts()
        self._last: dict[str, Facts] = {}  # task -> its last sample

    def take(self, item: Facts) -> list[tuple[str, str]]:
        """Remember `item`; returns the lines of output that it completes, in blocks."""
        if "told" not in item:
            self.lost, self.why = item.get("lost", 0.0), item.get("why", "")
        if (piece := item.get("log")) is not None:
            return list(without_reports(self.lines.add(piece)))
        if told := item.get("told"):
            self.news.append(told)
        if (event := item.get("event")) is not None:
            self.news += self._restarts.take(event, len(self.status.get("tasks", ())))
            if event["type"] == "output-committed":
                self.commits.append(event)
        status = item.get("status") or item.get("end")
        if status is not None:
            self.status = status
            for task in status["tasks"]:
                self._sampled(task)
        return list(without_reports(self.lines.close())) if "end" in item else []

    def _sampled(self, task: Facts) -> None:
        """A status repeats the last sample until the next one is there; its time tells them apart. A new master has none at first, and
        that of an earlier attempt says nothing of the present one.
        """
        began: float = task.get("started") or 0.0
        if task["state"] != "running" or (task.get("at") or began) < began:
            for name in _SAMPLED:
                task.pop(name, None)
            return
        last = self._last.get(task["task"], {})
        if "at" not in task and last.get("attempt") == task["attempt"]:
            task |= {name: last[name] for name in _SAMPLED if name in last}
            return
        cpu = task.get("cpu")
        if isinstance(cpu, int | float) and last.get("at") != task.get("at"):
            self.cpu.setdefault(task["task"], deque(maxlen=HISTORY)).append(cpu)
        self._last[task["task"]] = task

    @property
    def waiting(self) -> str:
        """What the job waits for, with figures; "" while it waits for nothing."""
        if self.lost > LOST and self.why:
            return self.why
        if self.lost > LOST:
            return f"no master answers since {format_seconds(round(self.lost))}; it is taken up again"
        return str(self.status.get("waiting") or "")

    @property
    def headline(self) -> str:
        """What the job does as a whole, with figures."""
        return self.waiting or str(self.status.get("phase") or "starting")

    def summary(self) -> list[str]:
        return [*ended_lines(self.status, output_sizes(self.commits)), *left_out_lines(self.left_out)]


def watch(
    job: str, items: Iterable[Facts], out: TextIO | None = None, err: TextIO | None = None, choice: Choice = _ALL
) -> Facts:
    """Show the `items` of `job` until the end; returns the final status."""
    out, err = out or sys.stdout, err or sys.stderr
    lively = _lively(out, err)
    seen = Watching(job)
    piped = None if out.isatty() else Piped(out, err, choice)
    shown: Plain | Any = piped or (First(out, choice) if lively else Plain(out, err, choice))
    rich_from, question = time.monotonic() + MOMENT if lively else None, Question(choice.stdin_task)
    try:
        for item in items:
            piece = item.get("log")
            if piece is not None and not choice.shows(piece["task"]):
                continue
            if piece is not None and "left_out" in piece:
                seen.left_out[piece["task"]] += piece["left_out"]
            if piece is not None and piped is not None:
                piped.piece(piece)
                continue
            if piece is not None and isinstance(shown, Aloud):
                shown.piece(piece)
                continue
            shown.lines(seen.take(item))
            shown.news(seen)
            if question.is_asked(seen.lines, time.monotonic()) and not isinstance(shown, Aloud):
                shown.close()
                shown, rich_from = Aloud(out, err, choice), None
                shown.text("".join(block[:-1] for _, block in seen.lines.close()))
            if "end" in item:
                break
            if rich_from is not None and seen.status and time.monotonic() > rich_from:
                rich_from = None
                shown.close()
                from trainmaster.client.rows import Rows

                shown = Rows(out, choice)
            shown.draw(seen)
    finally:
        shown.close()
    say = shown.say if isinstance(shown, Plain) else lambda line: print(line, file=err)
    for line in seen.summary() if seen.status else ():
        say(line)
    return seen.status


def _lively(out: TextIO, err: TextIO) -> bool:
    import os

    return out.isatty() and err.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class First:
    """The first moment on a terminal: the lines in their colours, and under them one line that is written over."""

    def __init__(self, out: TextIO, choice: Choice) -> None:
        self._out, self._choice, self._drawn = out, choice, ""

    def lines(self, blocks: list[tuple[str, str]]) -> None:
        if blocks:
            self.close()
            self._out.write(
                "".join(self._choice.led(task, block, clean, COLOURS[colour(task)]) for task, block in blocks)
            )
            self._out.flush()

    def news(self, seen: Watching) -> None:
        if seen.news:
            self.close()
            self._out.write("".join(f"\x1b[1m{told}\x1b[0m\n" for told in seen.news))
            self._out.flush()
            seen.news.clear()

    def draw(self, seen: Watching) -> None:
        import shutil

        told = f"{seen.job} {seen.headline}"
        if told != self._drawn:
            self._out.write(f"\r\x1b[K{told[: shutil.get_terminal_size().columns - 1]}")
            self._out.flush()
            self._drawn = told

    def close(self) -> None:
        """Take the line away."""
        if self._drawn:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._drawn = ""


def colour(task: str) -> str:
    return list(COLOURS)[sum(task.encode()) % len(COLOURS)]


def spark(values: Iterable[float], most: float | None = None) -> str:
    """Values as bars, the highest as high as it gets."""
    known = list(values)
    top = max([most or 0.0, *known], default=0.0)
    return "".join(
        _BARS[min(len(_BARS) - 1, int(value / top * (len(_BARS) - 1) + 0.5))] if top else _BARS[0] for value in known
    )


def task_cells(seen: Watching, task: Facts, now: float) -> tuple[str, ...]:
    """One live row, as in HEAD. What a task used is of interest while it uses it."""
    name, word = task["task"], state_word(task)
    if task["state"] != "running":
        return (name, _attempt(task, task["phase"] if task["state"] in ("pending", "staging") else word))
    cpu = seen.cpu.get(name, ())
    began = task.get("started")
    doing = task.get("doing") or word
    return (
        name,
        _attempt(task, f"{doing} {format_seconds(max(0.0, round(now - began)))}" if began else doing),
        progress(task).strip("-"),
        f"{cpu[-1]:4.1f} {spark(cpu, 1.0)}" if cpu else "",
        format_bytes(task["memory"]) if task.get("memory") else "",
        " ".join(f"{100 * gpu.get('util', 0):.0f} %" for gpu in task.get("gpus") or ()),
    )


def _attempt(task: Facts, text: str) -> str:
    return text if task["attempt"] == 1 else f"{text}, attempt {task['attempt']}"


def detached(job: str, say: Callable[[str], object]) -> None:
    """What to do after having stopped watching."""
    say(f"{job} goes on. Watch it again: tm attach {job}   end it: tm kill {job}")
