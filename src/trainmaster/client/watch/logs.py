"""Read what tasks printed, as pieces {task, attempt, offset, next, data}: from the master while it lives, else from storage.

`offset` and `next` count bytes printed, and the text of a piece stands for its bytes exactly
(`log.output.exact`). A piece with `left_out` stands for so many bytes that are kept no more; its data says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping

from trainmaster.client.jobs.past import Facts, Past
from trainmaster.client.jobs.places import job_storage
from trainmaster.client.jobs.sweep import resume
from trainmaster.client.watch.connect import live, status
from trainmaster.client.watch.disconnected import Disconnected
from trainmaster.client.watch.follow import follow as follow_job
from trainmaster.client.watch.lines import Lines, without_reports
from trainmaster.core.errors import NotFound
from trainmaster.log.output import MASTER, beyond, readable
from trainmaster.words.text import names

__all__ = ["MASTER", "pieces"]

Positions = Mapping[str, tuple[int, int]]  # of tasks: their latest attempt, and the bytes that it has printed
_NOWHERE: Positions = {}


def pieces(
    job: str, task: str | None = None, attempt: int | None = None, follow: bool = False, after: Positions = _NOWHERE
) -> Iterator[Facts]:
    """Yield the output of one task, or of all; with `follow` it goes on until the job ends, and `after` says what is known.

    Raises NotFound where there is no such task or attempt. The task `master` is all that the job's masters wrote, `attempt` an epoch.
    """
    if task not in (None, MASTER):
        check_task(job, task, Past(job).tasks())
    if follow:
        stream = _masters_following(job, attempt) if task == MASTER else _following(job, task, attempt)
        return (new for piece in stream if (new := _beyond(piece, after)) is not None)
    if task == MASTER:
        return _masters(job, attempt, {})
    if task is not None:
        _check_attempt(job, task, attempt or 1)
        return _task_output(job, task, attempt)
    return _all_output(job, attempt)


def noted(stream: Iterable[Facts], seen: dict[str, tuple[int, int]]) -> Iterator[Facts]:
    """Hand the pieces on, and note in `seen` how far each task's go."""
    for piece in stream:
        seen[piece["task"]] = piece["attempt"], piece["next"]
        yield piece


def lines_of(
    present: Iterable[Facts], coming: Iterable[Facts], tail: int | None, follow: bool, progress: bool, longest: int
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Yield blocks: the last lines of the present pieces, then those of the coming ones; a line that is not whole only at the end.

    `longest`: characters of a line until it is cut.
    """
    lines = Lines(longest)
    select = (lambda blocks: blocks) if progress else without_reports
    kept: deque[tuple[str, str]] = deque(maxlen=tail)

    def keep(blocks: Iterable[tuple[str, str]]) -> None:
        for task, block in select(blocks):
            kept.extend((task, f"{line}\n") for line in block[:-1].rsplit("\n", tail or 0))

    keep(block for piece in present for block in lines.add(piece))
    if not follow:
        keep(lines.close())
    yield from kept
    yield from select(block for piece in coming for block in lines.add(piece))
    yield from select(lines.close())


def _beyond(piece: Facts, known: Positions) -> Facts | None:
    attempt, position = known.get(piece["task"], (0, 0))
    if piece["attempt"] < attempt:
        return None
    return beyond(piece, position if piece["attempt"] == attempt else 0)


def _following(job: str, task: str | None, attempt: int | None) -> Iterator[Facts]:
    for item in follow_job(job, logs=True, resume=resume):
        piece = item.get("log")
        if piece is not None and task in (None, piece["task"]) and attempt in (None, piece["attempt"]):
            yield piece


def _all_output(job: str, attempt: int | None) -> Iterator[Facts]:
    past = Past(job)
    for task in past.printed() if live(job) is None else past.tasks():
        yield from _task_output(job, task, attempt)


def _task_output(job: str, task: str, attempt: int | None) -> Iterator[Facts]:
    """Yield the present output of one task."""
    offset = 0
    master = live(job)
    if master is not None:
        try:
            for piece in master.log(task, attempt, offset):
                offset, attempt = piece["next"], piece["attempt"]
                yield piece
            return
        except Disconnected:  # the master ended meanwhile; the rest is stored
            pass
    yield from Past(job).log(task, attempt, offset)


def _masters(job: str, epoch: int | None, after: Mapping[int, int]) -> Iterator[Facts]:
    """Yield what was written before a master had a log of its own, and then each master's log."""
    if epoch is None:
        start_log = job_storage(job) / "logs" / "master" / "start.log"
        text = start_log.read_text(errors="replace") if start_log.exists() else ""
        start = {"task": MASTER, "attempt": 0, "offset": 0, "next": len(text.encode()), "data": text}
        if (piece := beyond(start, after.get(0, 0))) is not None:
            yield piece
    past = Past(job)
    for number in past.attempts(MASTER):
        if epoch in (None, number):
            yield from past.log(MASTER, number, after.get(number, 0))


def _masters_following(job: str, epoch: int | None) -> Iterator[Facts]:
    """Yield the masters' logs as they grow: read at each status of the job, and once more when its master has nothing left to do."""
    seen: dict[int, int] = {}
    for item in follow_job(job, resume=resume):
        if "event" not in item:
            for piece in _masters(job, epoch, seen):
                seen[piece["attempt"]] = piece["next"]
                yield piece


def check_task(job: str, task: str, known: Collection[str], roles_too: bool = False) -> None:
    """Raise NotFound where `task` is not among the tasks of `job` ("": of one that is not submitted yet), and suggest one that is. With
    `roles_too` a role may be suggested.
    """
    if task in known:
        return
    mend = f"see its tasks: tm status {job}" if job else f"its tasks: {names(list(known))}"
    owner = task.rpartition(".")[0]
    if owner in known:
        raise NotFound(
            f"{task} is not a task but one of the copies of the program of {owner}", mend=f"name the task: {owner}",
            anchor="no-such-task",
        )  # fmt: skip
    near = _nearest_task(task, known, roles_too)
    raise NotFound(
        f"{job or 'the job'} has no task {task}" + (f"; did you mean {near}?" if near else ""),
        mend=mend,
        anchor="no-such-task",
    )


def _nearest_task(task: str, known: Collection[str], roles_too: bool) -> str:
    """Return the task, or the role, that was most likely meant; "" where none is like it."""
    from difflib import get_close_matches

    name, _, index = task.partition(":")
    roles = dict.fromkeys(other.partition(":")[0] for other in known)
    role = next(iter(get_close_matches(name, roles, 1, 0.5)), "")
    if f"{role}:{index}" in known:
        return f"{role}:{index}"
    if not role or (index and role == name):  # the role is there, and has no such index
        return ""
    return role if roles_too else f"{role}:0"


def for_people(piece: Facts) -> Facts:
    """Return a piece whose text may be printed: bytes that are not UTF-8 are replaced."""
    return {**piece, "data": readable(piece["data"])}


def _check_attempt(job: str, task: str, attempt: int) -> None:
    if attempt == 1:  # a task that has not begun has no output yet: no fault
        return
    last = next((row["attempt"] for row in status(job)["tasks"] if row["task"] == task), 1)
    if attempt > last:
        raise NotFound(
            f"{task} had no attempt {attempt}: its last one is {last}",
            mend=f"see its tasks: tm status {job}",
            anchor="no-such-task",
        )
