"""The one page behind a cluster's link to a job: state, reason, tasks, and the end of each task's output. Read-only, and bare.

The cluster shows the page through a proxy of its own (YARN's web proxy), which has authenticated the reader and names the reader in a
cookie. So the page is served over plain HTTP, as proxies speak it, to the addresses of proxies alone, under the host name that they were
given (a request for another site whose name resolves to here is refused), and to readers who may see the job. All its links are relative,
for the proxy puts it below a path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any
from urllib.parse import unquote_plus

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from trainmaster.log.output import exact
from trainmaster.web.contract import Facts, Gate, Unknown

_USER = "proxy-user"  # the cookie of YARN's WebAppProxyServlet, URL-encoded
TAIL = 64 * 1024  # bytes of a task's output that are shown
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
}  # fmt: skip
_STYLE = """
:root { color-scheme: light dark; } body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884; }
.wide { overflow-x: auto; } pre { white-space: pre-wrap; overflow-wrap: anywhere; } .bad { color: #c33; }
"""


def bare(facts: Facts, gate: Gate, name: str) -> Starlette:
    """Return the ASGI application. `name`: host and port by which the proxies know the page."""

    def guarded(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def checked(request: Request) -> Response:
            peer = request.client.host.removeprefix("::ffff:") if request.client else ""
            if peer not in gate.proxies:
                return PlainTextResponse("this page is shown by the cluster's proxy alone\n", 403, _HEADERS)
            if request.headers.get("host", "").lower() != name.lower():
                return PlainTextResponse("this page has another name\n", 421, _HEADERS)
            user = unquote_plus(request.cookies.get(_USER, ""))
            if not gate.may_view(user):
                text = (
                    f"{user or 'a user without a name'} may not see this job: the cluster's VIEW list leaves them out\n"
                )
                return PlainTextResponse(text, 403, _HEADERS)
            try:
                return await endpoint(request)
            except Unknown as error:
                return PlainTextResponse(f"{error}\n", 404, _HEADERS)

        return checked

    async def job(request: Request) -> Response:
        return HTMLResponse(page(facts.status()), headers=_HEADERS)

    async def log(request: Request) -> Response:
        return PlainTextResponse(await _tail(facts, request.path_params["task"]), headers=_HEADERS)

    return Starlette(
        routes=[Route("/", guarded(job), methods=["GET"]), Route("/logs/{task}", guarded(log), methods=["GET"])]
    )


async def _tail(facts: Facts, task: str) -> bytes:
    attempt, stored = await facts.stored(task)
    pieces: deque[bytes] = deque()
    size = 0
    async for piece in facts.log(task, attempt, max(0, stored - TAIL), False):
        pieces.append(exact(str(piece["data"])))
        size += len(pieces[-1])
        while size - len(pieces[0]) > TAIL:
            size -= len(pieces.popleft())
    return b"".join(pieces)[-TAIL:]


def page(status: Mapping[str, Any]) -> str:
    """Return the whole page."""
    reason = status.get("reason") or {}
    paragraphs = [
        f"<p class=bad>{escape(str(reason.get('words', '')))} {escape(str(reason.get('advice', '')))}</p>"
        if reason
        else "",
        f"<p>{escape(str(status.get('waiting') or status.get('phase') or ''))}</p>",
    ]
    rows = "".join(_row(task) for task in status["tasks"])
    begun = (
        datetime.fromtimestamp(status["submitted"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        if status["submitted"]
        else ""
    )
    return (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escape(status['job'])}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(status['job'])}</h1><p><b>{escape(status['state'])}</b>, submitted {begun}</p>{''.join(paragraphs)}"
        f"<div class=wide><table><tr><th>task<th>state<th>attempt<th>node<th>output</tr>{rows}</table></div></body></html>"
    )


def _row(task: Mapping[str, Any]) -> str:
    words = f": {task['words']}" if task.get("words") else ""
    key = escape(task["task"])
    return (
        f"<tr><td>{key}<td>{escape(task['state'] + words)}<td>{task['attempt']}<td>{escape(str(task.get('node') or ''))}"
        f"<td><a href='logs/{key}'>its end</a></tr>"
    )
