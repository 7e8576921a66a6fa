"""The page of one task, and the time line of all tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.core.machine.report import all_tasks
from trainmaster.core.states import state_word
from trainmaster.web.contract import Facts, Unknown
from trainmaster.web.pages.blocks import Blocks
from trainmaster.web.pages.drawing import Range, bars, nice_end
from trainmaster.web.pages.job import attempts_by_task, spans, time_line
from trainmaster.web.pages.render import render


class TaskPage:
    """The page of one task."""

    def __init__(self, facts: Facts, task: str) -> None:
        self._facts, self._task = facts, task

    async def blocks(self) -> Blocks:
        """Return every part that may change, by id. Raises Unknown where the job has no such task."""
        status, timeline = self._facts.shown_status(), await self._facts.timeline()
        task = next((task for task in all_tasks(status) if task["task"] == self._task), None)
        if task is None:
            raise Unknown(f"the job has no task {self._task[:80]}")
        job = self._facts.description().get("job") or {}
        attempts = attempts_by_task(timeline).get(self._task, [])
        begin = status["submitted"]
        shown = Range(begin, status["ended"] or nice_end(begin, max(status["at"], timeline.at)))
        marks = [mark for mark in timeline.marks if mark.task == self._task]
        return {
            "task-head": render("parts/task_head.html", task=task, word=state_word(task)),
            "task-actions": render("parts/task_actions.html", task=task, may_cut=job.get("chaos", True)),
            "attempts": render(
                "parts/attempts.html", attempts=list(reversed(attempts)), bars=bars(spans(attempts, shown, "../"), shown), marks=marks[::-1]
            ),
        }  # fmt: skip


async def time_line_page(facts: Facts, values: Mapping[str, Any]) -> str:
    """Return the page with a row for every task."""
    status, timeline = facts.shown_status(), await facts.timeline()
    whole = time_line(status, timeline, max(status["at"], timeline.at), rows=len(all_tasks(status)))
    return render("timeline.html", **values, **whole)
