"""REST for the jobs of a place: the same interface as a master's, with the list of all jobs.

A change must come from a session: with its cookie, and with its anti-forgery token in the header `X-CSRF-Token`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from starlette.applications import Starlette
from starlette.requests import Request

from trainmaster.core.errors import NotFound
from trainmaster.core.states import LIVE_JOBS
from trainmaster.web.access import SAFE, may_change
from trainmaster.web.contract import LIVE, Acts, Facts
from trainmaster.web.rest import application

if TYPE_CHECKING:
    from trainmaster.client.ui.board import Board
    from trainmaster.log.index import Headline

_SHOWN = ("id", "name", "state", "reason", "user", "engine", "submitted", "started", "ended")


@attrs.frozen
class PlaceJobs:
    """The jobs of a place. `open_facts`: opens one of them; `acts`: the actions on it."""

    board: Board
    open_facts: Callable[[str], Awaitable[Facts]]
    acts: Callable[[str], Acts | None]

    async def find(self, job: str) -> tuple[Facts, Acts | None]:
        return await self.open_facts(job), self.acts(job)

    async def listing(self, search: str, state: str, user: str, after: str, limit: int) -> Mapping[str, Any]:
        states = LIVE_JOBS if state == LIVE else {state}
        rows = [
            row
            for row in await self.board.present()
            if (search in row.id or search in row.name)
            and (not state or row.word in states)
            and (not user or row.user == user)
        ]
        begin = 0
        if after:
            begin = next((place for place, row in enumerate(rows, 1) if row.id == after), -1)
            if begin < 0:
                raise NotFound(f"there is no job {after} in this list")
        page = rows[begin : begin + limit]
        following = page[-1].id if page and begin + limit < len(rows) else None
        return {"jobs": [_row(row) for row in page], "next": following, "total": len(rows)}


def _row(headline: Headline) -> dict[str, Any]:
    return {name: getattr(headline, name) for name in _SHOWN} | {"state": headline.word}


def rest_of(jobs: PlaceJobs) -> Starlette:
    """Return the application. Every request has `state.reader`."""
    return application(jobs, _authorize)


def _authorize(request: Request) -> str:
    reader = request.state.reader
    if request.method not in SAFE and not may_change(reader, request.headers.get("x-csrf-token", "")):
        raise PermissionError("a change needs the session's anti-forgery token in the header X-CSRF-Token")
    return str(reader.user)
