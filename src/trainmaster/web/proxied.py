"""The pages behind a cluster's own link to a job: read-only, and polling.

The cluster shows them through a proxy of its own (YARN's web proxy), which has authenticated the reader and names the reader in a cookie.
It allows GET and PUT only, hands on nine headers and no cookie of ours, and holds back what is streamed. So the pages are served over plain
HTTP, as proxies speak it, to the addresses of proxies alone, and to readers who may see the job. They are served under the host name that
they were given alone: a request for another site whose name resolves to here is refused. All links are relative, for the proxy puts the
pages below a path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote_plus

from starlette.requests import Request
from starlette.responses import PlainTextResponse

from trainmaster.runtime.network.listeners import plain_address
from trainmaster.web.contract import Facts, Gate, Reader
from trainmaster.web.headers import sending
from trainmaster.web.pages.app import job_pages
from trainmaster.web.redacted import redacted

_USER = "proxy-user"  # the cookie of YARN's WebAppProxyServlet, URL-encoded

App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]


def proxied(facts: Facts, gate: Gate, name: str) -> App:
    """Return the ASGI application. `name`: host and port by which the proxies know the pages."""
    pages = job_pages(redacted(facts), lambda request: Reader(_user(request), may_act=False, live=False))

    async def application(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        if refusal := _refusal(request, gate, name):
            await PlainTextResponse(refusal[1] + "\n", refusal[0])(scope, receive, sending(send))
        else:
            await pages(scope, receive, sending(send))

    return application


def _user(request: Request) -> str:
    return unquote_plus(request.cookies.get(_USER, ""))


def _refusal(request: Request, gate: Gate, name: str) -> tuple[int, str] | None:
    """Return status and words where the request is not answered."""
    peer = plain_address(request.client.host) if request.client else ""
    if peer not in gate.proxies:
        return 403, "this page is shown by the cluster's proxy alone"
    if request.headers.get("host", "").lower() != name.lower():
        return 421, "this page has another name"
    if request.method != "GET":
        return 405, "this page only shows"
    user = _user(request)
    if not gate.may_view(user):
        return 403, f"{user or 'a user without a name'} may not see this job: the cluster's VIEW list leaves them out"
    return None
