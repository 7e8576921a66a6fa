"""Live rows under the output, drawn with rich: loaded only when there is something to move."""

from __future__ import annotations

import time
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trainmaster.client.text import clean
from trainmaster.client.view import REDRAW, ROWS, Watching, task_cells

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red")


class Rows:
    """Output scrolls above; the rows below are redrawn a few times a second at most, by whoever hands in what is new."""

    def __init__(self, out: TextIO) -> None:
        self._console = Console(file=out, highlight=False, emoji=False, markup=False)
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()
        self._drawn = 0.0

    def lines(self, lines: list[tuple[str, str]]) -> None:
        """Print lines, many at once: one redraw of the rows for all."""
        if lines:
            text = Text("\n", no_wrap=False).join(
                Text.assemble((task, colour(task)), " ", Text.from_ansi(clean(line))) for task, line in lines
            )
            self._console.print(text, soft_wrap=True)

    def draw(self, seen: Watching) -> None:
        now = time.monotonic()
        if seen.status and now - self._drawn >= REDRAW:
            self._drawn = now
            self._live.update(rows(seen, time.time()), refresh=True)

    def close(self) -> None:
        """Take the rows away; what scrolled stays."""
        self._live.stop()


def colour(task: str) -> str:
    return _COLOURS[sum(task.encode()) % len(_COLOURS)]


def rows(seen: Watching, now: float) -> Group:
    """One line about the job and, once tasks are there, one a task."""
    status = seen.status
    head = Text.assemble((status["job"], "bold"), " ", seen.headline)
    if status.get("restarts"):
        head.append(f", {status['restarts']} restarts")
    table = Table.grid(padding=(0, 2))
    tasks = sorted(status["tasks"], key=lambda task: task["state"] in ("succeeded", "killed"))
    for task in tasks[:ROWS]:
        name, *cells = task_cells(seen, task, now)
        table.add_row(Text(name, style=colour(name)), *(Text(cell) for cell in cells))
    rest = len(tasks) - ROWS
    return Group(head, table, *([Text(f"and {rest} more")] if rest > 0 else []))
