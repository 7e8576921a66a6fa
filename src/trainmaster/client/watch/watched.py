"""A job as it was seen so far, and one row of figures a task, for the drawings on a terminal."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from trainmaster.client.jobs.past import Facts
from trainmaster.client.watch.lines import Lines, without_reports
from trainmaster.core.spec.quantities import format_bytes, format_seconds
from trainmaster.core.states import PENDING, RUNNING, STAGING, state_word
from trainmaster.words import colours
from trainmaster.words.restarts import Restarts
from trainmaster.words.text import ended_lines, left_out_lines, output_sizes, progress

LOST = 3.0  # s without a master that are worth a word; a busy machine takes its time to start one
HISTORY = 8  # samples in a sparkline
HEAD = ("TASK", "STATE", "PROGRESS", "CORES", "MEMORY", "GPU")
COLOURS = {"cyan": 36, "magenta": 35, "yellow": 33, "green": 32, "blue": 34}  # of tasks; red is for failures
_BARS = "▁▂▃▄▅▆▇█"
_SAMPLED = ("cpu", "memory", "gpus", "progress", "step", "doing", "at")  # from samples; a new master has none yet


class Watching:
    """A job as it was seen so far, for whoever draws it."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.status: Facts = {}
        self.lost = 0.0  # s since a master answered
        self.why = ""  # what the engine says of that
        self.lines = Lines()
        self.left_out = Counter[str]()  # task -> bytes of its output that were gone when they were to be read
        self.commits: list[Facts] = []
        self.cpu: dict[str, deque[float]] = {}
        self.columns: set[int] = set()  # columns of the rows that ever had something to show: they stay
        self.news: list[str] = []  # lines about failures
        self._restarts = Restarts()
        self._last: dict[str, Facts] = {}  # task -> its last sample

    def take(self, item: Facts) -> list[tuple[str, str]]:
        """Remember `item`; returns the lines of output that it completes, in blocks."""
        if "told" not in item:
            self.lost, self.why = item.get("lost", 0.0), item.get("why", "")
        if (piece := item.get("log")) is not None:
            return list(without_reports(self.lines.add(piece)))
        if text := item.get("told"):
            self.news.append(text)
        if (event := item.get("event")) is not None:
            known = len(self.status["tasks"]) if self.status else 2  # events of the past come before the first status
            self.news += self._restarts.take(event, known)
            if event["type"] in ("output-committed", "part-committed"):
                self.commits.append(event)
        status = item.get("status") or item.get("end")
        if status is not None:
            self.status = status
            for task in status["tasks"]:
                self._note_sample(task)
        return list(without_reports(self.lines.close())) if "end" in item else []

    def _note_sample(self, task: Facts) -> None:
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
        """Say what the job waits for, with figures; "" while it waits for nothing."""
        if self.lost > LOST and self.why:
            return self.why
        if self.lost > LOST:
            return f"no master answers since {format_seconds(round(self.lost))}; it is taken up again"
        return str(self.status.get("waiting") or "")

    @property
    def headline(self) -> str:
        """Say what the job does as a whole, with figures, or for whom a program of it waits."""
        waits = (f"{task['task']} {task['waits']}" for task in self.status.get("tasks", ()) if task.get("waits"))
        return self.waiting or next(waits, "") or str(self.status.get("phase") or PENDING)

    def summary(self) -> list[str]:
        return [*ended_lines(self.status, output_sizes(self.commits)), *left_out_lines(self.left_out)]


def colour(task: str) -> str:
    return list(COLOURS)[sum(task.encode()) % len(COLOURS)]


def lead_colour(task: str) -> int:
    """Return the colour of terminals of what leads a task's lines; 0: none."""
    return COLOURS[colour(task)] if colours.allowed() else 0


def spark(values: Iterable[float], most: float | None = None) -> str:
    """Return values as bars, the highest as high as it gets."""
    known = list(values)
    top = max([most or 0.0, *known], default=0.0)
    return "".join(
        _BARS[min(len(_BARS) - 1, int(value / top * (len(_BARS) - 1) + 0.5))] if top else _BARS[0] for value in known
    )


def task_cells(seen: Watching, task: Facts, now: float) -> tuple[str, ...]:
    """Return one live row, as in HEAD. The use of a task is of interest while its program runs."""
    name, word = task["task"], state_word(task)
    if task["state"] != RUNNING:
        return (name, _attempt(task, task["phase"] if task["state"] in (PENDING, STAGING) else word))
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
