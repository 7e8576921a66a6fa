"""The application of `tm ui`: the list of jobs, and below `/jobs/ID/` the pages of each job that somebody has open."""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import FileResponse, HTMLResponse
from starlette.routing import Mount, Route

from trainmaster.client.jobs.places import LONGEST_ID
from trainmaster.client.ui.facts import Watched
from trainmaster.client.ui.links import Links, LinksOf
from trainmaster.client.ui.sources import secret_values
from trainmaster.client.ui.threads import in_thread
from trainmaster.core.errors import NotFound, TrainmasterError
from trainmaster.web.contract import Reader
from trainmaster.web.pages.app import job_pages
from trainmaster.web.pages.jobs import error_page, jobs_page
from trainmaster.web.pages.render import STATIC, Static
from trainmaster.web.redacted import redacted

if TYPE_CHECKING:
    from trainmaster.client.ui.board import Board
    from trainmaster.client.ui.sources import Source
    from trainmaster.web.contract import Acts, Facts

KEPT_OPEN = 50  # jobs whose pages are kept; beyond, those that nobody has looked at for longest go
KEPT_FOR = 120.0  # s that they are kept after the last look: of a job of 1,000 tasks they are some 10 MB
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HOME = "../../"  # from a job's root to the list of jobs

App = Callable[[MutableMapping[str, Any], Any, Any], Any]


class Place(Protocol):
    """The jobs that a `tm ui` shows."""

    words: str  # where they are

    def board(self) -> Board:
        """Return the list of them."""
        ...

    def source(self, job: str) -> Source:
        """Return one of them; may block. Raises NotFound where there is no such job."""
        ...

    def acts(self, job: str) -> Acts | None:
        """Return the actions on a job; None where nothing can be done to it from here."""
        ...


@attrs.define
class _Open:
    """A job with its pages."""

    facts: Watched
    shown: Facts  # what readers see of them
    pages: App
    used: float = 0.0


class Site:
    """The ASGI application. Every request has `state.reader`."""

    def __init__(self, place: Place, programs: int | None = None) -> None:
        """`programs`: the port at which `links` is served; None: the pages of programs are not opened from here."""
        self._place = place
        self.board = place.board()
        self.links = Links(programs, self._status) if programs else None
        self._open: dict[str, asyncio.Future[_Open]] = {}
        static = Static()
        self._app = Starlette(
            routes=[
                Route("/favicon.ico", _icon), Mount("/jobs/{job}/static", static), Mount("/jobs/{job}", self._job),
                Mount("/", jobs_page(self.board, reader_of, place.words)),
            ],
        )  # fmt: skip

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        is_rest = scope["type"] == "http" and (scope["path"].startswith("/api/") or scope["path"] == "/metrics")
        await (self._rest if is_rest else self._app)(scope, receive, send)

    async def close(self) -> None:
        """End what was started, and write what a later process need not read again."""
        if self.links is not None:
            await self.links.close()
        await in_thread(self.board.close)

    async def _status(self, job: str) -> Mapping[str, Any]:
        opened = await self._opened(job)
        await opened.facts.open()
        return opened.facts.shown_status()

    @functools.cached_property
    def _rest(self) -> App:
        from trainmaster.client.ui.rest import PlaceJobs, rest_of

        async def open_facts(job: str) -> Facts:
            opened = await self._opened(job)
            await opened.facts.open()
            return opened.shown

        return rest_of(PlaceJobs(self.board, open_facts, self._place.acts))

    async def _job(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a request for a page of a job."""
        job = scope["path_params"]["job"]
        try:
            opened = await self._opened(job)
            await opened.facts.open()
        except TrainmasterError as error:
            status = 404 if isinstance(error, NotFound) else 503
            depth = scope["path"].removeprefix(scope["root_path"]).count("/") - 1
            page = error_page("../" * depth + _HOME, error.message, error.mend)
            await HTMLResponse(page, status)(scope, receive, send)
            return
        await opened.pages(scope, receive, send)

    async def _opened(self, job: str) -> _Open:
        """Return a job with its pages. If several requests come at once, one opens it."""
        self._close_unused()
        opening = self._open.get(job)
        if opening is None:
            opening = self._open[job] = asyncio.ensure_future(self._begin(job))
        opened = await asyncio.shield(opening)
        opened.used = time.monotonic()
        return opened

    async def _begin(self, job: str) -> _Open:
        try:
            return await self._read(job)
        except BaseException:
            del self._open[job]  # before it is done: those that are done have opened
            raise

    async def _read(self, job: str) -> _Open:
        if not _ID.fullmatch(job) or len(job) > LONGEST_ID * 2:
            raise NotFound(f"there is no job {job[:LONGEST_ID]}", mend="see them all: tm list", anchor="no-such-job")
        source = await in_thread(self._place.source, job)
        facts = Watched(source, await in_thread(source.description))
        await facts.open()
        links, acts = LinksOf(job, self.links) if self.links is not None else None, self._place.acts(job)
        shown = facts if acts is not None else redacted(facts, await in_thread(secret_values, source))
        return _Open(facts, shown, job_pages(shown, reader_of, acts, _HOME, links=links))

    def _close_unused(self) -> None:
        done = {job: opening.result() for job, opening in self._open.items() if opening.done()}
        unused = sorted((opened.used, job) for job, opened in done.items() if opened.facts.idle)
        too_many, now = max(0, len(self._open) - KEPT_OPEN), time.monotonic()
        for place, (used, job) in enumerate(unused):
            if place < too_many or used < now - KEPT_FOR:
                del self._open[job]


async def _icon(request: Request) -> FileResponse:
    """Return the icon that browsers ask for by themselves, beside pages that name none."""
    return FileResponse(STATIC / "icon.svg")


def reader_of(connection: HTTPConnection | Request) -> Reader:
    """Return who reads, as access found out."""
    reader: Reader = connection.state.reader
    return reader
