"""The pages of a job's logs.

    logs                      all tasks; with `tasks=worker:0,worker:1` their logs side by side
    logs/{task}               one attempt's log: its end, or `at=BYTE`, `at=error`, `before=BYTE`, `after=BYTE`, `find=TEXT`
    logs/{task}/part          lines before or after a position, as JSON: what a page gets as it is scrolled, or polls
    logs/{task}/raw           the whole log, to be downloaded
    logs/stream?places=...    lines as they come, as server-sent events

A line is named by the position of its first byte, which never changes. All of it works without scripts: searches answer by a redirect to
the line that they found, and earlier and later windows are links.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

import attrs
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from trainmaster.core.machine.report import all_tasks
from trainmaster.core.spec.quantities import format_bytes
from trainmaster.log.output import MASTER, exact
from trainmaster.web.contract import Facts, Reader, Unknown
from trainmaster.web.pages.ansi import folded_html
from trainmaster.web.pages.logs.stream import News, Place, attempts_of, news_now, places_from, stream, written
from trainmaster.web.pages.logs.windows import (
    Line,
    Search,
    Window,
    find_error,
    last_window,
    search_backward,
    search_forward,
    text_finder,
    window_after,
    window_around,
    window_before,
)
from trainmaster.web.pages.query import whole, without
from trainmaster.web.pages.render import dom_id, render

SIDE = 6  # logs side by side
FOLD = 2000  # characters of a line until the rest is folded
ATTEMPTS = 20  # that a page links to
_DIGITS = 12  # of a position: file systems refuse much longer ones
_LONGEST_TEXT = 200  # characters that can be searched for

Values = Callable[[Request, str], dict[str, Any]]


def log_routes(facts: Facts, reader_of: Callable[[Request], Reader], values: Values) -> list[Route]:
    """Return the routes below `logs`. `values(request, "logs")`: what each page of the job needs."""
    pages = _LogPages(facts, reader_of, values)
    gets = {
        "/logs": pages.side_by_side, "/logs/stream": pages.stream, "/logs/{task}": pages.log, "/logs/{task}/part": pages.part,
        "/logs/{task}/raw": pages.raw,
    }  # fmt: skip
    return [Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()]


@attrs.frozen
class Pane:
    """One log on a page. `lead`: begins the ids of its lines; `address`: of its own page, relative to the page that it is on."""

    task: str
    attempt: int
    window: Window
    last: int  # the task's last attempt
    is_going: bool  # it may still print
    words: str = ""  # how the attempt ended
    lead: str = "b"
    address: str = ""
    target: int | None = None  # the position of the line that was asked for
    search: re.Pattern[str] | None = None

    @property
    def rows(self) -> str:
        return rows(self.window.lines, self.attempt, self.lead, self.address, self.search, self.target)


class _LogPages:
    def __init__(self, facts: Facts, reader_of: Callable[[Request], Reader], values: Values) -> None:
        self._facts, self._reader_of, self._values = facts, reader_of, values

    # -- pages --

    async def log(self, request: Request) -> Response:
        task, query = request.path_params["task"], request.query_params
        attempt, last, is_going = await self._attempt(request)
        text = _text(query.get("find", ""))
        is_error = query.get("at") == "error"
        notice, go_on = "", None
        if is_error or (text and not query.keys() & {"at", "before", "after"}):
            search = await self._search(request, task, attempt, "" if is_error else text)
            if search.position is not None:
                window = await window_around(self._facts, task, attempt, search.position)
                line = max(
                    (line.position for line in window.lines if line.position <= search.position),
                    default=search.position,
                )
                address = _query(request, attempt=attempt, at=line)
                return RedirectResponse(f"{address}#b{attempt}-{line}", 303)
            notice, go_on = _not_found(request, attempt, text, search)
        window = await self._window(request, task, attempt)
        target = None if is_error else _whole(request, "at")
        pane = Pane(
            task, attempt, window, last, is_going, self._words(task, attempt), target=target, search=_pattern(text)
        )
        page = render(
            "logs.html", **self._values(request, "logs"), panes=[pane], single=pane, chosen=task, text=text, notice=notice, go_on=go_on,
            attempts=range(last, max(0, last - ATTEMPTS), -1), wrap=query.get("wrap") != "0", tasks=self._tasks(),
            address=lambda **changes: _query(request, attempt=attempt, **changes), places=written([_place(pane)]),
            wrap_address=_wrap_address(request),
            **_search_places(pane),
        )  # fmt: skip
        return HTMLResponse(page)

    async def side_by_side(self, request: Request) -> Response:
        tasks = [task for part in request.query_params.getlist("tasks") for task in part.replace(",", " ").split()]
        if len(tasks) > SIDE:
            raise ValueError(f"{len(tasks)} logs side by side: {SIDE} at most fit on a page")
        panes = [await self._end_pane(task) for task in dict.fromkeys(tasks)]
        page = render(
            "logs.html", **self._values(request, "logs"), panes=panes, single=None, wrap=request.query_params.get("wrap") != "0",
            tasks=self._tasks(), places=written([_place(pane) for pane in panes]), wrap_address=_wrap_address(request),
            chosen=",".join(tasks), text="", notice="", go_on=None,
        )  # fmt: skip
        return HTMLResponse(page)

    async def _end_pane(self, task: str) -> Pane:
        last, is_going = attempts_of(self._facts, task)
        attempt, _ = await self._facts.stored(task)
        window = await last_window(self._facts, task, attempt)
        words = self._words(task, attempt)
        return Pane(task, attempt, window, last, is_going, words, *_names(task, is_side=True))

    async def _attempt(self, request: Request) -> tuple[int, int, bool]:
        """Return the attempt that a request names, the task's last one, and whether the task goes on."""
        task = request.path_params["task"]
        last, is_going = attempts_of(self._facts, task)
        attempt = _whole(request, "attempt") or (await self._facts.stored(task))[0]
        if attempt > last:
            raise Unknown(f"{task} had no attempt {attempt}: its last one is {last}")
        return attempt, last, is_going

    async def _window(self, request: Request, task: str, attempt: int) -> Window:
        if (before := _whole(request, "before")) is not None:
            return await window_before(self._facts, task, attempt, before)
        if (after := _whole(request, "after")) is not None:
            return await window_after(self._facts, task, attempt, after)
        at = None if request.query_params.get("at") == "error" else _whole(request, "at")
        if at is not None and (window := await window_around(self._facts, task, attempt, at)).lines:
            return window
        return await last_window(self._facts, task, attempt)

    async def _search(self, request: Request, task: str, attempt: int, text: str) -> Search:
        """Search for text, or for an error."""
        if request.query_params.get("back"):
            end = _whole(request, "to")
            end = (await last_window(self._facts, task, attempt)).end if end is None else end
            return await search_backward(self._facts, task, attempt, end, text)
        find = text_finder(text) if text else find_error
        return await search_forward(self._facts, task, attempt, _whole(request, "from") or 0, find)

    def _words(self, task: str, attempt: int) -> str:
        """Say how an attempt ended; "" where it goes on."""
        for row in all_tasks(self._facts.shown_status()):
            if row["task"] == task:
                ends = (
                    [row]
                    if attempt == row["attempt"]
                    else [past for past in row.get("past", ()) if past["attempt"] == attempt]
                )
                return next((str(end.get("words") or "") for end in ends), "")
        return ""

    def _tasks(self) -> list[tuple[str, str]]:
        """Return each task with its state, and the masters."""
        return [*((row["task"], row["state"]) for row in all_tasks(self._facts.shown_status())), (MASTER, "")]

    # -- what open pages ask for --

    async def part(self, request: Request) -> Response:
        task, is_side = request.path_params["task"], request.query_params.get("side") == "1"
        attempt, last, is_going = await self._attempt(request)
        search = _pattern(_text(request.query_params.get("find", "")))
        if request.query_params.get("follow"):
            news = await news_now(self._facts, Place(task, attempt, _whole(request, "after") or 0))
            return JSONResponse(_drawn(news, is_side, search))
        window = await self._window(request, task, attempt)
        lead, address = _names(task, is_side)
        content = {
            "attempt": attempt, "begin": window.begin, "end": window.end, "last": window.last, "over": not is_going and attempt == last,
            "html": rows(window.lines, attempt, lead, address, search),
        }  # fmt: skip
        return JSONResponse(content)

    async def stream(self, request: Request) -> Response:
        if not self._reader_of(request).live:
            raise PermissionError("nothing can be streamed here: the page polls")
        places = places_from(request.headers.get("last-event-id") or request.query_params.get("places", ""))
        if len(places) > SIDE:
            raise ValueError(f"{len(places)} logs in one stream: {SIDE} at most")
        for place in places:
            attempts_of(self._facts, place.task)
        search = _pattern(_text(request.query_params.get("find", "")))
        is_side = request.query_params.get("side") == "1"
        events = stream(
            self._facts,
            places,
            lambda number, news: {"pane": number, **_drawn(news, is_side, search)},
        )
        return StreamingResponse(events, media_type="text/event-stream")

    async def raw(self, request: Request) -> Response:
        task = request.path_params["task"]
        attempt, _, _ = await self._attempt(request)
        job = self._facts.shown_status()["job"]
        name = re.sub(r"[^A-Za-z0-9._-]", "-", f"{job}-{task}-{attempt}.log")

        async def content() -> AsyncIterator[bytes]:
            async for piece in self._facts.log(task, attempt, 0, False):
                yield exact(piece["data"])

        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return StreamingResponse(content(), media_type="text/plain; charset=utf-8", headers=headers)


def rows(
    lines: Sequence[Line], attempt: int, lead: str, address: str, search: re.Pattern[str] | None = None, target: int | None = None
) -> str:  # fmt: skip
    """Return lines as HTML, each under its position. `target`: a position in the line that was asked for."""
    marked = max((line.position for line in lines if target is not None and line.position <= target), default=None)
    return "".join(_row(line, attempt, lead, address, search, line.position == marked) for line in lines)


def _row(line: Line, attempt: int, lead: str, address: str, search: re.Pattern[str] | None, is_here: bool) -> str:
    if line.left_out:
        return gap_row(f"{format_bytes(line.left_out)} left out here, to keep within the log's limit (logs.limit)")
    name = f"{lead}{attempt}-{line.position}"
    classes = "line" + " here" * is_here + " open" * line.open
    link = f"{escape(address)}?attempt={attempt}&amp;at={line.position}#b{attempt}-{line.position}"
    return (
        f'<div class="{classes}" id="{name}"><a href="{link}" tabindex="-1">{line.position:,}</a>'
        f'<div class="text">{folded_html(line.data, search, FOLD)}</div></div>\n'
    )


def gap_row(text: str, link: str = "", label: str = "") -> str:
    """Return a row that stands between lines."""
    more = f' <a href="{escape(link)}">{escape(label)}</a>' if link else ""
    return f'<div class="gap">{escape(text)}{more}</div>\n'


def _drawn(news: News, is_side: bool, search: re.Pattern[str] | None) -> dict[str, Any]:
    """Return news for a page. `is_side`: for one with several logs side by side."""
    place = news.place
    lead, address = _names(place.task, is_side)
    content = rows(news.lines, place.attempt, lead, address, search)
    if news.restarted:
        content = gap_row(f"attempt {place.attempt} began") + content
    if news.skipped:
        first = news.lines[0].position if news.lines else place.position
        link = f"{address}?attempt={place.attempt}&after={first - news.skipped}"
        text = f"{format_bytes(news.skipped)} skipped here, printed faster than a page can show;"
        content = gap_row(text, link, "read them") + content
    return {"attempt": place.attempt, "end": place.position, "html": content, "over": news.over, "restarted": news.restarted,
            "skipped": news.skipped}  # fmt: skip


def _names(task: str, is_side: bool) -> tuple[str, str]:
    """Return how the ids of a log's lines begin, and the address of its own page, relative to the page that it is on."""
    return (f"{dom_id(task)}b", f"logs/{quote(task, safe='')}") if is_side else ("b", "")


def _place(pane: Pane) -> Place:
    return Place(pane.task, pane.attempt, pane.window.end)


def _search_places(pane: Pane) -> dict[str, int | None]:
    """Return where a search goes on from the line that is shown, forward and backward; None: from the log's ends."""
    if pane.target is None:
        return {"search_from": None, "search_to": None}
    later = [line.position for line in pane.window.lines if line.position > pane.target]
    return {"search_from": min(later, default=pane.window.end), "search_to": pane.target}


def _not_found(request: Request, attempt: int, text: str, search: Search) -> tuple[str, tuple[str, str] | None]:
    """Return the words for a search without a match, and the link (address, words) to go on from there."""
    subject, is_back = (
        (f"“{text}”", bool(request.query_params.get("back"))) if text else ("a line that reports an error", False)
    )
    side, begun = ("to", _whole(request, "to")) if is_back else ("from", _whole(request, "from"))
    again = {"attempt": attempt, "back": "1" if is_back else None, "at": None if text else "error"}
    if not search.complete:
        words = f"{subject} was not found as far as byte {search.reached:,}"
        return words, (_query(request, **again, **{side: search.reached}), "search on")
    if begun:
        words = f"{subject} does not come again {'before' if is_back else 'after'} byte {begun:,}"
        return words, (_query(request, **again), "search from the other end")
    return f"{subject} is nowhere in this log", None


def _query(request: Request, **changes: object) -> str:
    """Return a query that keeps what a page is about, but not its position; None removes a field."""
    kept = {name: value for name, value in request.query_params.items() if name in ("tasks", "find", "wrap")}
    return "?" + urlencode({name: value for name, value in (kept | changes).items() if value is not None})


def _wrap_address(request: Request) -> str:
    """Return the query of the same page with its lines wrapped, or not."""
    wrap = "1" if request.query_params.get("wrap") == "0" else "0"
    return "?" + f"{without(request, 'wrap')}&wrap={wrap}".lstrip("&")


def _text(text: str) -> str:
    return text.partition("\n")[0].rstrip("\r")[:_LONGEST_TEXT]


def _pattern(text: str) -> re.Pattern[str] | None:
    return re.compile(re.escape(text), re.IGNORECASE) if text else None


def _whole(request: Request, name: str) -> int | None:
    """Return a whole number of the query, or None where it has none. Raises ValueError for anything else."""
    return whole(request, name, None, _DIGITS)
