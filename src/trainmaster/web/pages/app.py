"""The application of one job's pages: reads by GET, acts by POST, and keeps open pages current by server-sent events or polling."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from trainmaster.core.errors import NotFound, TrainmasterError
from trainmaster.core.metrics import Series
from trainmaster.web.contract import Acts, Facts, Links, Reader, Unknown
from trainmaster.web.pages.actions import ACTIONS, check_token, command, perform
from trainmaster.web.pages.blocks import View, Views
from trainmaster.web.pages.charts import METRIC, charts, drawn
from trainmaster.web.pages.events import events_page
from trainmaster.web.pages.job import NO_SERIES, Choice, JobPage
from trainmaster.web.pages.logs.routes import log_routes
from trainmaster.web.pages.patience import Patience
from trainmaster.web.pages.query import whole
from trainmaster.web.pages.render import Static, render
from trainmaster.web.pages.task import TaskPage, time_line_page
from trainmaster.words.keys import leaves

FORM_LIMIT = 16 * 1024  # bytes
PIECE = 32 * 1024  # characters of a stream that a slow reader keeps in memory, beside its connection's buffer
QUIET = "event: quiet\ndata:\n\n"  # says that the server is there

# Errors that become pages; of two kinds that an error is, the first counts.
_STATUSES: Mapping[type[Exception], int] = {
    Unknown: 404,
    NotFound: 404,
    PermissionError: 403,
    ValueError: 400,
    TrainmasterError: 503,
}

ReaderOf = Callable[[Request], Reader]


def job_pages(
    facts: Facts,
    reader_of: ReaderOf,
    acts: Acts | None = None,
    home: str = "",
    *,
    links: Links | None = None,
    is_exported: bool = False,
) -> Starlette:
    """Return the pages of a job. `home`: the address of the list of jobs, relative to the job's root; "" where there is none.

    `links`: opens the pages of the job's programs; without it their addresses are shown as text. `is_exported`: the pages are read from
    files, without a server.
    """
    return _Pages(facts, reader_of, acts, home, links, is_exported).application()


class _Pages:
    def __init__(
        self, facts: Facts, reader_of: ReaderOf, acts: Acts | None, home: str, links: Links | None, is_exported: bool
    ) -> None:
        self._facts, self._reader_of, self._acts, self._home = facts, reader_of, acts, home
        self._links, self._is_exported = links, is_exported
        self._views, self._patience = Views(facts), Patience()
        self._done: dict[
            str, str
        ] = {}  # a reader's anti-forgery token -> the action of theirs that the next page says was done

    def application(self) -> Starlette:
        gets = {
            "/": self.job, "/live": self.live, "/tasks/{task}": self.task, "/tasks/{task}/live": self.live, "/timeline": self.timeline,
            "/events": self.events, "/configuration": self.configuration, "/metrics.json": self.metrics, "/actions/{action}": self.ask,
            "/links/{label:path}": self.link,
        }  # fmt: skip
        routes = [Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()]
        routes.append(Route("/actions/{action}", self.act, methods=["POST"]))
        routes += log_routes(self._facts, self._reader_of, self._values)
        return Starlette(
            routes=[*routes, Mount("/static", Static())],
            exception_handlers={404: self._missing, **dict.fromkeys(_STATUSES, self._failed)},
        )

    def _values(self, request: Request, section: str) -> dict[str, Any]:
        """Return the values that every page of the job needs."""
        description = self._facts.description()
        job = {"id": self._facts.shown_status()["job"], "name": str((description.get("job") or {}).get("name") or "")}
        depth = request.scope["path"].removeprefix(request.scope.get("root_path", "")).count("/") - 1
        reader = self._reader_of(request)
        return {
            "root": "../" * depth,
            "home": self._home,
            "job": job,
            "section": section,
            "user": reader.user,
            "reader": reader,
        }

    async def _failed(self, request: Request, error: Exception) -> Response:
        """Return the page that says what happened."""
        status = next(status for kind, status in _STATUSES.items() if isinstance(error, kind))
        text, mend = getattr(error, "message", "") or str(error), getattr(error, "mend", "")
        return HTMLResponse(render("error.html", **self._values(request, ""), text=text, mend=mend), status)

    async def _missing(self, request: Request, error: Exception) -> Response:
        return await self._failed(request, Unknown(f"the job has no page {request.scope['path'][-80:]}"))

    # -- pages --

    def _view(self, request: Request) -> View:
        """Return the view that a request shows: the job, as its query chooses tasks, or one task."""
        if task := request.path_params.get("task"):
            return self._views.view(f"task {task}", TaskPage(self._facts, task).blocks)
        choice = Choice(request.query_params.get("tasks", "")[:200], max(1, whole(request, "page", 1)))
        return self._views.view(f"job {choice}", JobPage(self._facts, choice, self._patience, self._links).blocks)

    async def job(self, request: Request) -> Response:
        version, blocks = await self._view(request).now()
        done = ACTIONS.get(self._done.pop(self._reader_of(request).csrf, ""))
        page = render(
            "job.html", **self._values(request, "job"), blocks=blocks, version_of_blocks=version, query=request.url.query,
            live=live_address(), notice=done.done if done else "", kept=await self._kept(""),
            charts=[drawn(chart) for chart in await self._charts("")],
        )  # fmt: skip
        return HTMLResponse(page)

    async def task(self, request: Request) -> Response:
        version, blocks = await self._view(request).now()
        task = request.path_params["task"]
        page = render(
            "task.html", **self._values(request, "job"), blocks=blocks, version_of_blocks=version, task=task,
            live=live_address(task), query="", kept=await self._kept(task),
            charts=[drawn(chart) for chart in await self._charts(task)],
        )  # fmt: skip
        return HTMLResponse(page)

    async def timeline(self, request: Request) -> Response:
        return HTMLResponse(await time_line_page(self._facts, self._values(request, "job")))

    async def events(self, request: Request) -> Response:
        query = request.query_params
        chosen = (query.get("text", "")[:200], whole(request, "before", 0))
        return HTMLResponse(await events_page(self._facts, self._values(request, "events"), *chosen))

    async def configuration(self, request: Request) -> Response:
        description = self._facts.description()
        rows = [
            (key, text, description.get("sources", {}).get(key, ""))
            for key, text in leaves(description.get("job") or {})
        ]
        return HTMLResponse(render("configuration.html", **self._values(request, "configuration"), rows=rows))

    async def link(self, request: Request) -> Response:
        """Lead to the page of a program."""
        if self._links is None:
            raise Unknown("pages of programs are not opened from here: the page of the job has their addresses")
        return RedirectResponse(await self._links.entry(request.path_params["label"]), 303)

    # -- what open pages ask for --

    async def live(self, request: Request) -> Response:
        return await live_answer(request, self._view(request), self._reader_of(request))

    async def _charts(self, task: str) -> list[dict[str, Any]]:
        """Return the charts of one task, or of the whole job with what its programs report."""

        async def read() -> Sequence[Series]:
            series = await self._facts.metrics([task])
            return series if task else [*series, *await self._facts.metrics(names=[f"{METRIC}*"])]

        series, _ = await self._patience.read("samples", read, NO_SERIES, of=f"charts of {task}")
        tasks, job = self._facts.shown_status()["tasks"], self._facts.description().get("job") or {}
        return await asyncio.to_thread(
            charts, series, task, tasks, job
        )  # of thousands of tasks it takes a tenth of a second

    async def _kept(self, task: str) -> str:
        """Return the charts' data for a page that is exported; "" for any other, which asks for it."""
        return json.dumps({"charts": await self._charts(task)}).replace("<", "\\u003c") if self._is_exported else ""

    async def metrics(self, request: Request) -> Response:
        """Give the data of charts: of one task (`task`), else of the whole job."""
        content = json.dumps({"charts": await self._charts(request.query_params.get("task", ""))})
        return Response(content, media_type="application/json")

    # -- actions --

    async def ask(self, request: Request, problem: str = "", status: int = 200) -> Response:
        """Show the form of an action, or its command."""
        name = _action(request)
        form = dict(request.query_params)
        values = self._values(request, "job")
        may_act = self._acts is not None and values["reader"].may_act
        page = render(
            "action.html", **values, name=name, action=ACTIONS[name], form=form, may_act=may_act, problem=problem,
            command=command(name, values["job"]["id"], form),
        )  # fmt: skip
        return HTMLResponse(page, status)

    async def act(self, request: Request) -> Response:
        name = _action(request)
        reader, form = self._reader_of(request), await _form(request)
        check_token(reader, form)
        if self._acts is None:
            raise PermissionError(f"nothing can be done to the job from here: {command(name, 'JOB', form)}")
        try:
            target = await perform(name, self._acts, form, reader, self._home)
        except (ValueError, TrainmasterError) as error:
            return await self.ask(request, getattr(error, "message", "") or str(error), 400)
        if target == "./":  # else it is another job's page
            self._done[reader.csrf] = name
        return RedirectResponse(f"../{target}", 303)


async def live_answer(request: Request, view: View, reader: Reader) -> Response:
    """Give {version, blocks} of a view, those that changed since the version in a request's query: one answer, or server-sent events."""
    version = whole(request, "v", 0)
    if reader.live and "text/event-stream" in request.headers.get("accept", ""):
        return StreamingResponse(_sent(view, version), media_type="text/event-stream")
    try:
        return JSONResponse(_news(*await view.changes(version)))
    except Exception as failure:  # noqa: BLE001  the page says so, and asks again
        text = getattr(failure, "message", "") or str(failure) or type(failure).__name__
        return JSONResponse({"error": text}, 404 if isinstance(failure, LookupError) else 503)


def _news(version: int, blocks: Sequence[str]) -> dict[str, Any]:
    return {"version": version, "blocks": blocks}


def live_address(task: str = "") -> str:
    """Return the address from which the page of a list, a job or one of its tasks gets what changed, relative to that page."""
    return f"../tasks/{quote(task)}/live" if task else "live"


async def _sent(view: View, version: int) -> AsyncIterator[str]:
    """Yield server-sent events for as long as the reader stays. Where the blocks cannot be made the stream ends: the page asks then why."""
    yield QUIET
    with contextlib.suppress(Exception):
        while True:
            version, changed = await view.since(version)
            text = f"data: {json.dumps(_news(version, changed))}\n\n" if changed else QUIET
            for begin in range(0, len(text), PIECE):
                yield text[begin : begin + PIECE]


def _action(request: Request) -> str:
    """Return the name of the action that a request is about. Raises Unknown."""
    name: str = request.path_params["action"]
    if name not in ACTIONS:
        raise Unknown(f"there is no action {name[:40]}")
    return name


async def _form(request: Request) -> dict[str, str]:
    """Read a form. Raises ValueError where it is too large, or of another type."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/x-www-form-urlencoded":
        raise ValueError("a form is expected")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > FORM_LIMIT:
            raise ValueError(f"a form of more than {FORM_LIMIT} bytes")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
