"""What tasks printed, as pieces {task, attempt, offset, next, data}: from the master while it lives, else from storage.

`offset` and `next` count bytes printed. A piece with `left_out` stands for so many bytes that are kept no more; its data says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster.client.connect import MASTER, Disconnected, Facts, Past, live
from trainmaster.client.follow import follow as follow_job
from trainmaster.client.sweep import resume
from trainmaster.core.errors import NotFound

__all__ = ["MASTER", "pieces"]


def pieces(job: str, task: str | None = None, attempt: int | None = None, follow: bool = False) -> Iterator[Facts]:
    """The output of one task, or of all; with `follow` it goes on until the job ends."""
    if follow and task != MASTER:
        return _following(job, task, attempt)
    if task is not None:
        return _one(job, task, attempt)
    return _all(job, attempt)


def _following(job: str, task: str | None, attempt: int | None) -> Iterator[Facts]:
    if task is not None:
        _known(job, task)
    for item in follow_job(job, logs=True, resume=resume):
        piece = item.get("log")
        if piece is not None and task in (None, piece["task"]) and attempt in (None, piece["attempt"]):
            yield piece


def _all(job: str, attempt: int | None) -> Iterator[Facts]:
    past = Past(job)
    for task in past.tasks():
        yield from _one(job, task, attempt)


def _one(job: str, task: str, attempt: int | None) -> Iterator[Facts]:
    """What is there now of one task."""
    offset = 0
    master = live(job)
    if master is not None:
        try:
            for piece in master.log(task, attempt, offset):
                offset, attempt = piece["next"], piece["attempt"]
                yield piece
            return
        except Disconnected:  # it ended meanwhile; the rest is stored
            pass
    if task != MASTER:
        _known(job, task)
    yield from Past(job).log(task, attempt, offset)


def _known(job: str, task: str) -> None:
    tasks = Past(job).tasks()
    if task in tasks:
        return
    from difflib import get_close_matches

    near = get_close_matches(task, tasks, 1, 0.5)
    raise NotFound(
        f"{job} has no task {task}" + (f"; did you mean {near[0]}?" if near else ""),
        mend=f"see its tasks: tm status {job}",
        anchor="no-such-task",
    )
