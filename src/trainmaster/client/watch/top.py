"""The pages' facts live in a terminal: one job, or all that run. The terminal's screen is given back as it was."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trainmaster.client.jobs.past import Facts
from trainmaster.client.watch.rows import rows
from trainmaster.client.watch.watched import Watching
from trainmaster.core.errors import TrainmasterError
from trainmaster.core.machine.report import job_progress
from trainmaster.core.spec.quantities import format_bytes
from trainmaster.log.index import Headline
from trainmaster.words import colours
from trainmaster.words.events import clock, event_text
from trainmaster.words.text import ago, clean, ended_lines, progress

EVERY = 2.0  # s between two looks at all jobs
REDRAW = 0.25  # s between two drawings of one job at least
EVENTS = 8  # the newest, of one job
RECENT = 10  # jobs that ended, in the list
_COLOURS = {"failed": "red", "lost": "red", "succeeded": "green", "running": "cyan", "killed": "dim"}
_NOT_SHOWN = {"ordered", "asked", "throughput"}  # events that repeat what the rows show


def top_job(job: str, items: Iterable[Facts]) -> Facts:
    """Draw one job until it ends; return its final status."""
    seen, events = Watching(job), deque[Facts](maxlen=EVENTS)
    drawn = 0.0
    with _screen() as live:
        for item in items:
            seen.take(item)
            if (event := item.get("event")) is not None and event["type"] not in _NOT_SHOWN:
                events.append(event)
            if seen.status and ("end" in item or time.monotonic() - drawn >= REDRAW):
                drawn = time.monotonic()
                live.update(job_screen(seen, events, time.time(), live.console.height), refresh=True)
    return seen.status


def job_screen(seen: Watching, events: Iterable[Facts], now: float, height: int) -> Group:
    """Return the screen of one job: how it does, its tasks, its newest events."""
    status = seen.status
    parts: list[RenderableType] = []
    if status.get("reason") and status["state"] != "succeeded":
        why = "\n".join(clean(text, colours=False) for text in ended_lines(status))
        parts.append(Panel(Text(why), border_style="red", title="why", title_align="left"))
        height -= why.count("\n") + 3
    lines = [
        Text(f"{clock(event['at'])[11:23]}  {clean(event_text(event), colours=False)}", "dim", no_wrap=True)
        for event in events
    ]
    links = [Text(f"{label}: {address}", "dim") for label, address in status.get("links", {}).items()]
    other_lines = len(lines) + len(links) + 2
    return Group(rows(seen, now, 2 * max(6, height - other_lines)), *parts, Text(""), *links, *lines)


def top_jobs(jobs: Callable[[], list[Headline]], status: Callable[[str], Facts]) -> None:
    """Draw all jobs that run, and those that ended lately, until interrupted."""
    with _screen() as live:
        while True:
            live.update(jobs_screen(jobs(), status, time.time()), refresh=True)
            threading.Event().wait(EVERY)


def jobs_screen(headlines: list[Headline], status: Callable[[str], Facts], now: float) -> Group:
    """Return the screen of all jobs; each that runs is asked how it does."""
    running = [job for job in headlines if job.ended is None]
    table = Table(
        "JOB",
        "STATE",
        "SUBMITTED",
        "PROGRESS",
        "CORES",
        "MEMORY",
        "",
        box=None,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
    for job in running:
        table.add_row(*(Text(cell, no_wrap=True) for cell in _running_cells(job, status, now)))
    for job in [job for job in headlines if job.ended is not None][:RECENT]:
        cells = (job.id, job.word, ago(job.submitted, now), "", "", "", job.reason if job.reason != job.state else "")
        table.add_row(
            *(
                Text(cell, _COLOURS.get(job.state, "") if column == 1 else "dim", no_wrap=True)
                for column, cell in enumerate(cells)
            )
        )
    return Group(
        Text(f"{len(running)} running", "bold"), table if headlines else Text("no jobs yet; start one: tm run --help")
    )


def _running_cells(job: Headline, status: Callable[[str], Facts], now: float) -> tuple[str, ...]:
    try:
        facts = status(job.id)
    except TrainmasterError as error:
        return (job.id, job.word, ago(job.submitted, now), "", "", "", error.message)
    tasks = facts["tasks"]
    step = max((task["step"] for task in tasks if task.get("step") is not None), default=None)
    cores, memory = (sum(task.get(name) or 0 for task in tasks) for name in ("cpu", "memory"))
    doing = facts["waiting"] or facts["phase"]
    return (
        job.id, facts["state"], ago(facts["submitted"], now), progress({"progress": job_progress(facts), "step": step}).strip("-"),
        f"{cores:.1f}" if cores else "", format_bytes(memory) if memory else "", doing if doing != facts["state"] else "",
    )  # fmt: skip


def _screen() -> Live:
    return Live(
        console=Console(highlight=False, emoji=False, markup=False, color_system="auto" if colours.allowed() else None),
        screen=True,
        auto_refresh=False,
        vertical_overflow="crop",
    )
