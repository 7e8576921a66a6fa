"""The answers, as OpenAPI describes them. Nobody makes these classes: an endpoint answers with the data itself.

Only descriptions need this module, so it is imported nowhere else. A field with a default may be missing, and an answer may have fields
that are not here: readers pass over what they do not know. The types are read at run time.
"""

from typing import Any

import attrs

from trainmaster.core.metrics import Series
from trainmaster.core.states import JOB_STATES, LISTED_STATES, TASK_STATES
from trainmaster.core.timeline import Attempt, Epoch, Generation, Mark
from trainmaster.web.rest.requests import plain

Free = dict[str, Any]


def says(description: str) -> Any:
    return attrs.field(metadata={"description": description})


def maybe(description: str) -> Any:
    """Return a field that may be missing."""
    return attrs.field(default=None, metadata={"description": description})


@plain
class Error:
    error: str = says("what is wrong, and what to do")


# -- jobs --


@plain
class JobRow:
    id: str = says("the job's id")
    name: str = says("its name")
    state: str = says(", ".join(LISTED_STATES))
    reason: str | None = maybe("why it ended")
    user: str | None = maybe("who submitted it")
    engine: str | None = maybe("where it runs")
    submitted: float | None = maybe("seconds since 1970")
    started: float | None = maybe("seconds since 1970")
    ended: float | None = maybe("seconds since 1970")


@plain
class JobsPage:
    jobs: list[JobRow] = says("newest first")
    next: str | None = says("`after` of the next page; null on the last")
    total: int = says("jobs on all pages")


@plain
class Task:
    task: str = says("role:index")
    role: str = says("its role")
    index: int = says("its index in the role")
    state: str = says(f"{', '.join(TASK_STATES)}: the job no longer has it")
    phase: str = says("finer than the state")
    attempt: int = says("the latest attempt; 0 before the first")
    node: str = says("the host of its container; empty without one")
    container: str = says("the engine's id of its container")
    since: float | None = says("when it came into this state, seconds since 1970")
    started: float | None = says("when its program began, seconds since 1970")
    restarts: int = says("attempts after the first")
    counts: bool = says("whether the job waits for its end")
    reason: str | None = maybe("why its latest attempt ended")
    words: str | None = maybe("the same in words")
    tail: list[str] | None = maybe("its last lines")
    error: str | None = maybe(
        "the one of them that says what went wrong, as the exception of a traceback; empty where none does"
    )
    cpu: float | None = maybe("cores in use")
    memory: int | None = maybe("bytes in use")
    gpus: list[Free] | None = maybe("devices: index, util (0 to 1), memory, total (bytes)")
    progress: float | None = maybe("0 to 1, as the program reports it")
    step: float | None = maybe("the step, as the program reports it")
    doing: str | None = maybe("the phase that the program named")
    waits: str | None = maybe("for whom it waits")
    straggling: Free | None = maybe("how much slower it is than its peers")
    trouble: Any = maybe("what goes wrong at present")
    past: list[Free] | None = maybe("its earlier attempts")


@plain
class Tasks:
    tasks: list[Task] = says("in the order of roles and indexes")


@plain
class Status:
    job: str = says("the job's id")
    name: str = says("its name")
    framework: str = says("its framework")
    state: str = says(", ".join(JOB_STATES))
    submitted: float | None = says("seconds since 1970")
    at: float = says("the time of its last event")
    ended: float | None = says("seconds since 1970")
    epoch: int = says("the number of its master")
    events: int = says("the number of its last event")
    restarts: int = says("restarts so far")
    reason: Free | None = says("why it ended: reason, words, advice, task, tail, error")
    phase: str = says("its progress in one line")
    waiting: str = says("what it waits for, in words")
    tasks: list[Task] = says("its tasks")
    former: list[Task] = says("tasks that it had and no longer has, as their last attempts were")
    outputs: dict[str, str | None] = says("output -> address")
    checkpoint: Free | None = says("the newest set")
    saves: list[Free] = says("saves: save, tasks, failed, left")
    links: dict[str, str] = says("label -> address of a program's page")
    shards: dict[str, Free] = says("input -> figures of its shards")
    scaling: dict[str, Free] = says("role -> sizes and their speeds")
    losses: list[Free] = says("what was not kept")
    gave_up: list[str] = says("steps of the end that did not succeed")
    tokens: Free | None = maybe("the tokens of a secure cluster")


@plain
class Description:
    job: Free | None = maybe("the job file as understood, secrets redacted")
    sources: Free | None = maybe("key -> where its value comes from")
    engine: str | None = maybe("where it runs")
    user: str | None = maybe("who submitted it")
    application: str | None = maybe("the engine's id of the job")
    link: str | None = maybe("the engine's own page of the job")
    place: str | None = maybe("the URL of its storage")


@plain
class Attempts:
    attempts: list[Attempt] = says("oldest first")


@plain
class Course:
    n: int = says("the last event that is in it")
    at: float = says("its time, seconds since 1970")
    attempts: list[Attempt] = says("of all tasks")
    generations: list[Generation] = says("formed groups")
    epochs: list[Epoch] = says("masters")
    marks: list[Mark] = says("moments that readers look for")


@plain
class Event:
    n: int = says("its number")
    at: float = says("seconds since 1970")
    epoch: int = says("the number of the master that wrote it")
    type: str = says("see the reference of events, which has the further fields")
    v: str | None = maybe("the version of its form")


@plain
class EventsPage:
    events: list[Event] = says("in order")
    next: int = says("`after` of the next page")
    more: bool = says("whether there are more now")


@plain
class LogPiece:
    offset: int = says("bytes printed before it")
    next: int = says("bytes printed at its end")
    data: str = says("its text; a byte that is not UTF-8 is a lone surrogate (PEP 383)")
    left_out: int | None = maybe("bytes that are no longer kept, which this piece replaces")


@plain
class LogPart:
    task: str = says("the task")
    attempt: int = says("the attempt")
    offset: int = says("bytes printed before the first piece")
    next: int = says("`offset` of the next part; the same as the offset where there is nothing more")
    pieces: list[LogPiece] = says("in order")


@plain
class Measured:
    series: list[Series] = says("one for each task and name")


@plain
class Item:
    event: Event | None = maybe("an event")
    log: Free | None = maybe("a piece of output")
    status: Free | None = maybe("the job's status")
    end: Free | None = maybe("its last status")


# -- actions --


@plain
class Done:
    done: bool = says("true")


@plain
class SaveName:
    save: str = says("the name of the save")


@plain
class NewJob:
    job: str = says("the id of the new job")


@plain
class Supply:
    do: str = says("begin, put, skip, stop, again, superseded, unreachable, differs, fail, figures, done or wait")
    why: str | None = maybe("the reason, in words")


@plain
class Tokens:
    due: float | None = maybe("when newer ones are due")
    keytab: bool | None = maybe("whether the job fetches newer ones itself")
    trouble: str | None = maybe("why it has no newer ones")
