"""The page that lists jobs: what runs and what lately failed first, then all; one box searches them.

A search is words: `state:failed user:ada digits` are the failed jobs of ada that have "digits" in their id, name, user, engine or reason.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route

from trainmaster.core.states import LISTED_STATES
from trainmaster.web.pages.app import ReaderOf, live_address, live_answer
from trainmaster.web.pages.blocks import Blocks, View, Views
from trainmaster.web.pages.query import whole
from trainmaster.web.pages.render import Static, render

if TYPE_CHECKING:
    from trainmaster.log.index import Headline

PAGE = 100  # jobs on one page
LATELY = 24 * 3600.0  # s; failures within are shown first
FAILED = 10  # of these at most
FIELDS = ("id", "name", "user", "state", "engine", "reason")
LONGEST = 200  # characters of a search


class Jobs(Protocol):
    """The jobs of a place."""

    trouble: str

    async def present(self) -> Sequence[Headline]:
        """Return the jobs, newest first."""
        ...

    async def changed(self, version: int, within: float) -> int:
        """Wait until the jobs are others than at `version`, at most `within` seconds; return the present version."""
        ...


@attrs.frozen
class Search:
    """The jobs that a reader wants to see. `page` counts from 1."""

    text: str = ""
    page: int = 1

    def jobs(self, jobs: Sequence[Headline]) -> Sequence[Headline]:
        """Return those that have all words of the text."""
        words = [_word(word) for word in self.text.lower().split()]
        return [job for job in jobs if all(_has(job, field, word) for field, word in words)] if words else jobs


def _word(text: str) -> tuple[str, str]:
    """Return the field and the text of one word of a search; "" for all fields."""
    field, colon, value = text.partition(":")
    return (field, value) if colon and field in FIELDS else ("", text)


def _has(job: Headline, field: str, word: str) -> bool:
    if field == "state":
        return job.word.startswith(word)
    if field:
        return word in str(getattr(job, field)).lower()
    return word in f"{job.id} {job.name} {job.user} {job.engine} {job.reason} {job.error} {job.word}".lower()


def jobs_page(jobs: Jobs, reader_of: ReaderOf, place: str) -> Starlette:
    """Return the list of jobs. `place`: where they are, in words."""
    views = Views(jobs)

    def view(search: Search) -> View:
        return views.view(str(search), lambda: _blocks(jobs, search))

    async def page(request: Request) -> Response:
        search = search_of(request)
        version, blocks = await view(search).now()
        html = render(
            "jobs.html", root="", search=search, states=LISTED_STATES, place=place, blocks=blocks, reader=reader_of(request),
            version_of_blocks=version, query=request.url.query,
            live=live_address(),
        )  # fmt: skip
        return HTMLResponse(html)

    async def live(request: Request) -> Response:
        return await live_answer(request, view(search_of(request)), reader_of(request))

    async def failed(request: Request, error: Exception) -> Response:
        return HTMLResponse(error_page("", str(error)), 400)

    async def missing(request: Request, error: Exception) -> Response:
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        return HTMLResponse(error_page("../" * (path.count("/") - 1), f"nothing has the address {path[:80]}"), 404)

    routes = [Route("/", page, methods=["GET"]), Route("/live", live, methods=["GET"])]
    return Starlette(
        routes=[*routes, Mount("/static", Static())], exception_handlers={ValueError: failed, 404: missing}
    )


def search_of(request: Request) -> Search:
    """Return what a query asks for. Raises ValueError."""
    return Search(request.query_params.get("q", "")[:LONGEST], max(1, whole(request, "page", 1)))


def error_page(root: str, text: str, mend: str = "") -> str:
    """Return the page of a job, or an address, that cannot be shown. `root`: the relative path to the list of jobs."""
    return render("error.html", root=root, text=text, mend=mend)


def sign_in_page(target: str, problem: str, hint: str) -> str:
    """Return the page for readers who have not signed in. `target`: the path that they wanted; `hint`: where to find what is asked for."""
    return render("sign_in.html", root="/", target=target, problem=problem, hint=hint)


async def _blocks(jobs: Jobs, search: Search) -> Blocks:
    rows = await jobs.present()
    now = time.time()
    chosen = search.jobs(rows)
    begin = (search.page - 1) * PAGE
    first: list[tuple[str, Sequence[Headline]]] = []
    if not search.text and search.page == 1:
        first = [("Running or waiting", running(rows)), ("Failed in the last day", failures(rows, now))]
    values: Mapping[str, Any] = {
        "first": [(title, jobs) for title, jobs in first if jobs], "rows": chosen[begin : begin + PAGE], "number": len(chosen),
        "total": len(rows), "search": search, "pages": -(-len(chosen) // PAGE), "trouble": jobs.trouble,
    }  # fmt: skip
    return {"jobs": render("parts/jobs.html", **values)}


def running(jobs: Sequence[Headline]) -> list[Headline]:
    """Return the jobs that have not ended, at most a page of them."""
    return [job for job in jobs if job.ended is None and not job.lost][:PAGE]


def failures(jobs: Sequence[Headline], now: float) -> list[Headline]:
    """Return the jobs that failed lately, newest first."""
    return [job for job in jobs if job.state == "failed" and job.ended is not None and job.ended > now - LATELY][
        :FAILED
    ]
