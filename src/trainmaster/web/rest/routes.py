"""The table of the interface: one row for each endpoint. It says how requests are read; OpenAPI and the reference are made from it.

`answer` is the name of a class in `answers`, which are needed for descriptions alone; "" stands for a text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
from starlette.responses import Response

from trainmaster.web.rest import actions, logs, prometheus, reads, requests
from trainmaster.web.rest.call import Call
from trainmaster.web.rest.encoding import JSON, LINES, SERVER_EVENTS

PREFIX = "/api/v1"
JOB = f"{PREFIX}/jobs/{{job}}"
ACT = f"{JOB}/actions"
OPENAPI = f"{PREFIX}/openapi.json"
SUPPLY = "/actions/supply"  # the end of the path of the one thing that feeders may do


@attrs.frozen(slots=True, eq=False, repr=False)
class Route:
    """An endpoint. `media`: the types of content that it answers with, the default one first. `body`: of a POST; `dict`: any map."""

    method: str
    path: str
    act: Callable[[Call], Awaitable[Response]]
    text: str
    answer: str
    query: type[Any] = requests.Nothing
    body: type[Any] | None = None
    media: tuple[str, ...] = (JSON,)
    headers: tuple[tuple[str, str, str], ...] = ()  # those that it reads: name, meaning, pattern

    @property
    def errors(self) -> list[int]:
        """Return the statuses of its errors."""
        of_job = [404, 503] if "{job}" in self.path else []
        of_body = [] if self.body is None else [409, 413, 415]
        return sorted({400, 401, 403, *of_job, *of_body, *([416] if "text/plain" in self.media[1:] else [])})


async def openapi(call: Call) -> Response:
    from trainmaster.web.rest.openapi import described

    return Response(described(ROUTES), media_type=JSON)


async def scraped(call: Call) -> Response:
    return Response(await prometheus.text(call.jobs), media_type=prometheus.MEDIA)


def _get(path: str, act: Callable[[Call], Awaitable[Response]], text: str, answer: str, **options: Any) -> Route:
    return Route("GET", path, act, text, answer, **options)


def _post(act: Callable[[Call], Awaitable[Response]], text: str, body: type[Any], answer: str = "Done") -> Route:
    return Route("POST", f"{ACT}/{act.__name__}", act, text, answer, body=body)


_LIVE = (("Last-Event-ID", "the event after which a stream goes on; counts more than `after`", reads.EVENT_ID),)
_RANGE = (
    (
        "Range",
        "bytes printed, like `bytes=0-1023` or `bytes=-1000`; an answer may hold fewer: see Content-Range",
        ".*",
    ),
)

ROUTES = (
    _get(f"{PREFIX}/jobs", reads.jobs, "List jobs, newest first.", "JobsPage", query=requests.JobsPage),
    _get(JOB, reads.status, "Return a job's status, with its tasks.", "Status"),
    _get(f"{JOB}/description", reads.description, "Return the job file as understood, and where values come from.", "Description"),
    _get(f"{JOB}/tasks", reads.tasks, "List the tasks.", "Tasks"),
    _get(f"{JOB}/tasks/{{task}}", reads.task, "Return one task.", "Task"),
    _get(f"{JOB}/tasks/{{task}}/attempts", reads.attempts, "List a task's attempts, oldest first.", "Attempts"),
    _get(f"{JOB}/timeline", reads.timeline, "Return attempts, generations, masters and marks.", "Course"),
    _get(
        f"{JOB}/events", reads.events, "List events; or follow them as server-sent events until the job has ended.", "EventsPage",
        query=requests.EventsPage, media=(JSON, SERVER_EVENTS), headers=_LIVE,
    ),
    _get(
        f"{JOB}/logs/{{task}}", logs.log, "Return a task's output: in pieces, as lines of JSON, or as it is. `master` is a task too.",
        "LogPart", query=requests.LogPart, media=(JSON, LINES, logs.TEXT), headers=_RANGE,
    ),
    _get(f"{JOB}/metrics", reads.metrics, "Return what was measured.", "Measured", query=requests.Measured),
    _get(
        f"{JOB}/stream", reads.stream, "Follow events, output and status, each a line {event}, {log} or {status}; {end} is the last.",
        "Item", query=requests.Everything, media=(LINES,),
    ),
    _post(actions.kill, "End the job, or the present attempt of a task.", requests.Kill),
    _post(actions.scale, "Have a role grow or shrink.", requests.Scale),
    _post(actions.save, "Begin a save.", requests.Save, "SaveName"),
    _post(actions.renew, "Hand over newer tokens of a secure cluster.", dict, "Tokens"),
    _post(actions.supply, "Answer a feeder of Spark's, or its driver.", dict, "Supply"),
    _post(actions.dump, "Write the stacks of a task's programs into its log.", requests.Dump),
    _post(actions.signal, "Send a signal to a task's program.", requests.Signal),
    _post(actions.retry, "Submit the job again, as a new one.", requests.Retry, "NewJob"),
    _post(actions.cut, "Cut the link between the master and a task's agent, to see that the job survives.", requests.Cut),
    _get(OPENAPI, openapi, "Return the OpenAPI description.", "Free"),
    _get("/metrics", scraped, "Return the running jobs' figures for Prometheus.", "", media=(prometheus.MEDIA,)),
)  # fmt: skip
