"""The endpoints that read a job, except its output."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from trainmaster.core.machine.report import all_tasks
from trainmaster.web.contract import Unknown
from trainmaster.web.rest.call import Call
from trainmaster.web.rest.encoding import JSON, SERVER_EVENTS, first_and_rest, json_answer, lines, server_events
from trainmaster.web.rest.words import Refusal, is_whole_match

EVENT_ID = "[0-9]{1,12}"


async def jobs(call: Call) -> Response:
    page = call.query
    return json_answer(await call.jobs.listing(page.search, page.state, page.user, page.after, page.limit))


async def status(call: Call) -> Response:
    return Response(call.encoded.status(call.facts.shown_status()), media_type=JSON)


async def tasks(call: Call) -> Response:
    return json_answer({"tasks": call.facts.shown_status()["tasks"]})


async def task(call: Call) -> Response:
    return json_answer(_task(call))


def _task(call: Call) -> Mapping[str, Any]:
    for row in all_tasks(call.facts.shown_status()):
        if row["task"] == call.path["task"]:
            return row
    raise Unknown(f"the job has no task {call.path['task']}")


async def attempts(call: Call) -> Response:
    timeline = await call.facts.timeline()
    rows = [attempt for (name, _), attempt in timeline.attempts.items() if name == call.path["task"]]
    if not rows:
        _task(call)
    return json_answer({"attempts": rows})


async def timeline(call: Call) -> Response:
    course = await call.facts.timeline()
    return json_answer(
        {"n": course.n, "at": course.at, "attempts": list(course.attempts.values()), "generations": course.generations,
         "epochs": course.epochs, "marks": course.marks}
    )  # fmt: skip


async def description(call: Call) -> Response:
    return json_answer(call.facts.description())


async def metrics(call: Call) -> Response:
    chosen = call.query
    return json_answer({"series": await call.facts.metrics(chosen.task or None, chosen.name or None, chosen.since)})


async def events(call: Call) -> Response:
    last = call.headers.get("last-event-id")
    if last is not None and not is_whole_match(EVENT_ID, last):
        raise Refusal(HTTPStatus.BAD_REQUEST, f"Last-Event-ID must be the number of an event: {last[:40]!r}")
    after = call.query.after if last is None else int(last)
    if call.accepts(SERVER_EVENTS):
        return await _live_events(call, after, is_again=last is not None)
    rows: list[Mapping[str, Any]] = []
    async with aclosing(call.facts.events(after, False)) as records:
        async for record in records:
            rows.append(record)
            if len(rows) > call.query.limit:
                break
    page = rows[: call.query.limit]
    return json_answer({"events": page, "next": page[-1]["n"] if page else after, "more": len(rows) > len(page)})


async def _live_events(call: Call, after: int, is_again: bool) -> Response:
    """Return the events as they come. A browser that comes again after the last one gets an answer that has it stop."""
    records = call.facts.events(after, True)
    if call.facts.shown_status()["ended"] is not None:
        first = await anext(records, None)
        if first is None and is_again:
            return Response(status_code=HTTPStatus.NO_CONTENT)
        records = first_and_rest(first, records)
    return server_events(records, call.facts.shown_status)


async def stream(call: Call) -> Response:
    everything = call.query
    records = call.facts.stream(everything.after, everything.logs, everything.tail, everything.bare)
    return lines(records, call.encoded.item)
