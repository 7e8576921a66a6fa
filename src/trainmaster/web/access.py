"""Decide who may read the pages: sessions by one-time codes or tokens, checks against other sites, and the headers of every answer.

A browser on this machine is not its user: pages of other sites send requests to 127.0.0.1 too. So every request must come from a session.
A *code* is shown in the user's terminal and opens one session, once; a session is a random cookie (`HttpOnly`, `SameSite=Strict`), whose
name is random too, for browsers send cookies of one port to all others. A request for another host name is refused (DNS rebinding), and so
is a request that another site sent. A change that our own page did not send is refused too: the page's form carries the session's
anti-forgery token, which `may_change` compares.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import attrs
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from trainmaster.runtime.network.listeners import plain_address
from trainmaster.web.contract import Reader
from trainmaster.web.headers import HEADERS, sending

App = Callable[[MutableMapping[str, Any], Any, Any], Any]
Announce = Callable[[str], object]

SESSIONS = 1000  # the oldest goes
SIGN_IN = "/sign-in"
OPEN = ("/static/", "/favicon.ico")  # paths that anybody may read
SAFE = ("GET", "HEAD")
_FORM_LIMIT = 16 * 1024  # bytes
_FORM_WITHIN = 10.0  # s: a stranger who signs in keeps no connection for longer
# Browsers heed the first of these on HTTPS and on this machine alone, so pages behind a cluster's proxy go without.
_HEADERS = HEADERS | {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin"}


@attrs.define
class Sessions:
    """The browsers that have signed in, by the digest of their cookie. `cookie`: its name.

    They end with this process: whoever takes its port then gets the cookies of browsers that ask again.
    """

    cookie: str = attrs.field(factory=lambda: f"trainmaster-{secrets.token_hex(6)}")
    _users: dict[str, str] = attrs.field(factory=dict)  # digest -> the user

    def begin(self, user: str) -> str:
        """Begin a session and return its cookie."""
        key = secrets.token_urlsafe(32)
        while len(self._users) >= SESSIONS:
            del self._users[next(iter(self._users))]
        self._users[_digest(key)] = user
        return key

    def user_of(self, key: str) -> str | None:
        """Return the user of a session; None without such a session."""
        return self._users.get(_digest(key))


class Codes:
    """The one-time codes of a terminal: there is always one that nobody has used. `announce` is called with each."""

    def __init__(self, user: str, announce: Announce) -> None:
        self._user, self._announce = user, announce
        self.present = ""
        self._next()

    def user_of(self, secret: str) -> str | None:
        """Return the user whom the code stands for, and make the next code; None where it is wrong or was used."""
        if not _same(secret, self.present):
            return None
        self._next()
        return self._user

    def _next(self) -> None:
        self.present = secrets.token_urlsafe(18)
        self._announce(self.present)


class Tokens:
    """The users of a team, by token. A token may be used again."""

    def __init__(self, users: Mapping[str, str]) -> None:
        """`users`: token -> user."""
        self._users = users

    def user_of(self, secret: str) -> str | None:
        return next((user for token, user in self._users.items() if _same(secret, token)), None)


@attrs.frozen
class ProxyHeader:
    """A header in which a trusted proxy names the user whom it has authenticated. `proxies`: its addresses."""

    name: str
    proxies: Collection[str]

    def user_of(self, connection: HTTPConnection) -> str:
        """Return the user whom a trusted proxy names; "" where there is none."""
        if connection.client is None or plain_address(connection.client.host) not in self.proxies:
            return ""
        values = connection.headers.getlist(self.name)
        return values[0].strip() if len(values) == 1 else ""  # of two, a reader may have sent one


@attrs.define
class Access:
    """The ASGI application around all others: it lets a request through as `request.state.reader`, or answers it.

    `credentials`: codes or tokens; None: no session can be opened. `hosts`: names by which it is known; empty: any.
    """

    app: App
    sign_in_page: Callable[[str, str], str]  # where the reader wanted to go, and what was wrong -> HTML
    credentials: Codes | Tokens | None = None
    header: ProxyHeader | None = None
    hosts: Collection[str] = ()
    may_act: bool = False
    secure: bool = False  # served by TLS
    sessions: Sessions = attrs.field(factory=Sessions)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        is_open = scope["type"] == "http" and scope["method"] in SAFE and scope["path"].startswith(OPEN)
        send_with_headers = sending(send, _HEADERS | ({"Cache-Control": "no-cache"} if is_open else {}))
        connection = HTTPConnection(scope)
        answer = self._refusal(connection)
        if answer is None and not is_open:
            answer = await self._answer(Request(scope, receive)) if scope["type"] == "http" else None
            if answer is None and (reader := self._reader(connection)) is None:
                answer = self._stranger(connection)
            elif answer is None:
                scope.setdefault("state", {})["reader"] = reader
        if answer is None:
            await self.app(scope, receive, send_with_headers)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 4403})
        else:
            await answer(scope, receive, send_with_headers)

    # -- inside --

    def _refusal(self, connection: HTTPConnection) -> Response | None:
        """Return the answer to a request that no page of ours has sent; None to any other."""
        host = connection.headers.get("host", "").lower()
        if "transfer-encoding" in connection.headers and "content-length" in connection.headers:
            # A proxy before us may take another length than we do: what follows would be a request that it has not seen (RFC 9112, 6.1).
            return _plain(400, "the length of this request is ambiguous", connection="close")
        if self.hosts and host not in self.hosts:
            return _plain(421, f"this page is not known as {host[:100] or 'a host without a name'}")
        method = connection.scope.get("method", "CONNECT")  # a WebSocket may do anything: as strict as a change
        origin, site = connection.headers.get("origin"), connection.headers.get("sec-fetch-site", "none")
        if method not in SAFE:
            foreign = (origin is not None and urlsplit(origin).netloc.lower() != host) or site not in (
                "none",
                "same-origin",
            )
            return _plain(403, "another site has sent this request") if foreign else None
        navigates = connection.headers.get("sec-fetch-mode") == "navigate"
        if site not in ("none", "same-origin") and not navigates:
            return _plain(403, "another site has sent this request")
        return None

    async def _answer(self, request: Request) -> Response | None:
        """Answer whoever signs in; None to anybody else."""
        if request.method == "GET" and "code" in request.query_params and isinstance(self.credentials, Codes):
            rest = [(name, value) for name, value in request.query_params.multi_items() if name != "code"]
            target = _local(_path(request)) + (f"?{urlencode(rest)}" if rest else "")
            if self._reader(request) is not None:  # an old link: the browser has signed in already
                return RedirectResponse(target, 303)
            return self._sign_in(
                request.query_params["code"], target, "this code was used already, or is not one of ours"
            )
        if request.method == "POST" and request.scope["path"] == SIGN_IN:
            form = parse_qs((await _body(request)).decode("utf-8", "replace"))
            return self._sign_in(
                form.get("secret", [""])[0].strip(), _local(form.get("next", ["/"])[0]), "wrong, or used already"
            )
        if request.method not in SAFE and not self.may_act:
            return _plain(405, "these pages are read-only")
        return None

    def _sign_in(self, secret: str, target: str, problem: str) -> Response:
        user = self.credentials.user_of(secret) if self.credentials is not None else None
        if user is None:
            return HTMLResponse(self.sign_in_page(target, problem), 401)
        key = self.sessions.begin(user)
        answer = RedirectResponse(target, 303)
        answer.set_cookie(self.sessions.cookie, key, path="/", secure=self.secure, httponly=True, samesite="strict")
        return answer

    def _reader(self, connection: HTTPConnection) -> Reader | None:
        key = connection.cookies.get(self.sessions.cookie, "")
        if (known := self.sessions.user_of(key)) is not None:
            return Reader(known, self.may_act, csrf=_digest(f"anti-forgery token of {key}") if self.may_act else "")
        user = self.header.user_of(connection) if self.header is not None else ""
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if not user and scheme.lower() == "bearer" and isinstance(self.credentials, Tokens):
            user = self.credentials.user_of(token.strip()) or ""
        return Reader(user) if user else None

    def _stranger(self, connection: HTTPConnection) -> Response:
        if "text/html" not in connection.headers.get("accept", ""):
            return JSONResponse({"error": "sign in first"}, 401)
        if connection.headers.get("sec-fetch-site") == "cross-site":
            # A link on another site brought the reader: the browser sends the cookie once our own page asks for the same address.
            return HTMLResponse(
                '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0"><title>Trainmaster</title>'
            )
        path = _local(_path(connection)) + (f"?{connection.url.query}" if connection.url.query else "")
        return HTMLResponse(self.sign_in_page(path, ""), 401)


def may_change(reader: Reader, token: str) -> bool:
    """Tell whether a form came from a page of this reader's session."""
    return reader.may_act and bool(reader.csrf) and _same(token, reader.csrf)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a listener there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _body(request: Request) -> bytes:
    data = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FORM_WITHIN):
            async for chunk in request.stream():
                data += chunk
                if len(data) > _FORM_LIMIT:
                    return b""
            return data
    return b""


def _path(connection: HTTPConnection) -> str:
    """Return the path that was asked for. Starlette makes `url.path` from the Host header too."""
    return quote(connection.scope["path"])


def _local(target: str) -> str:
    """Return a path of ours: no address of another site, which two slashes at the beginning would be."""
    path = "".join(letter for letter in target if letter.isprintable()).replace("\\", "/")
    return "/" + path.lstrip("/")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _same(text: str, other: str) -> bool:
    return hmac.compare_digest(text.encode("utf-8", "replace"), other.encode())


def _plain(status: int, text: str, **headers: str) -> Response:
    return Response(text + "\n", status, headers, media_type="text/plain")
