"""Live rows under the output, drawn with rich: loaded only when there is something to move."""

from __future__ import annotations

import time
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from trainmaster.client.watch.printing import Choice
from trainmaster.client.watch.watched import HEAD, HISTORY, Watching, colour, lead_colour, task_cells
from trainmaster.core.spec.quantities import format_count
from trainmaster.core.states import FAILED, KILLED, LOST, PENDING, SUCCEEDED
from trainmaster.words import colours
from trainmaster.words.text import clean

REDRAW = 0.1  # s between two drawings at least
ROWS = 20  # tasks shown at most
_HALF = 2  # rows take at most this part of the terminal, output has the rest


class Rows:
    """Output scrolls above; the rows below are redrawn a few times a second at most, by whoever hands in what is new."""

    def __init__(self, out: TextIO, choice: Choice) -> None:
        self._choice = choice
        self._console = Console(
            file=out, highlight=False, emoji=False, markup=False, color_system="auto" if colours.allowed() else None
        )
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()
        self._drawn = 0.0

    def lines(self, blocks: list[tuple[str, str]]) -> None:
        """Print lines, many at once: one redraw of the rows for all. They are the terminal's as they are: rich takes 0.1 ms for a line."""
        for task, block in blocks:
            text = self._choice.led(task, block, clean, lead_colour(task))
            self._console.print(Segments([Segment(text)]), soft_wrap=True)

    def news(self, seen: Watching) -> None:
        for line in seen.news:
            self._console.print(Text(line, "bold"), soft_wrap=True)
        seen.news.clear()

    def draw(self, seen: Watching) -> None:
        now = time.monotonic()
        if seen.status and now - self._drawn >= REDRAW:
            self._drawn = now
            self._live.update(rows(seen, time.time(), self._console.height), refresh=True)

    def close(self) -> None:
        """Take the rows away; what scrolled stays."""
        self._live.stop()


def rows(seen: Watching, now: float, height: int = 2 * ROWS) -> Group:
    """One line about the job and one a task, those that run first; at most half of a terminal of `height` lines."""
    status = seen.status
    head = Text.assemble((status["job"], "bold"), " ", seen.headline)
    if status.get("restarts"):
        head.append(f", {format_count(status['restarts'], 'restart')}")
    for name, shards in status.get("shards", {}).items():
        head.append(f", {name} {100 * (shards['done'] + shards.get('aside', 0)) / max(1, shards['total']):.0f} % done")
    tasks = sorted(status["tasks"], key=lambda task: _ORDER.get(task["state"], 0))
    most = max(1, min(ROWS, height // _HALF - 3))
    lines = [task_cells(seen, task, now) for task in tasks[:most]]
    seen.columns.update(i for cells in lines for i, cell in enumerate(cells) if cell)
    shown = sorted(seen.columns)
    table = Table(*(HEAD[i] for i in shown), box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for i, column in zip(shown, table.columns, strict=True):
        column.no_wrap = True
        column.min_width = _WIDTHS.get(HEAD[i], 0)
    for cells in lines:
        style = colour(cells[0])
        texts = [Text(cells[i] if i < len(cells) else "") for i in shown]
        texts[0].stylize(style)
        table.add_row(*texts)
    rest = len(tasks) - len(lines)
    return Group(head, *([table] if lines else []), *([Text(f"and {rest} more", "dim")] if rest else []))


_ORDER = {FAILED: 1, LOST: 1, PENDING: 2, SUCCEEDED: 3, KILLED: 3}
_WIDTHS = {"STATE": 14, "PROGRESS": 12, "CORES": HISTORY + 5, "MEMORY": 8}  # so that figures that grow move nothing
