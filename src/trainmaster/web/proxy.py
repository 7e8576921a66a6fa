"""The pages that programs serve (`links:` of a job), shown to readers of ours from an origin of each page's own.

A program's page runs scripts of its own. Under the origin of our pages they could read tokens and press buttons there. So this application
listens on another port, and each page has a host name of its own below `domain`, like `tensorboard-0a1b2c3d4e.localhost:8081`; browsers
resolve every name below `localhost` to this machine (RFC 6761, 6.3). A page has the root of its origin: programs that write absolute paths
(Jupyter, Gradio) work unchanged, and their cookies, storage and service workers are theirs alone. Where there is no such domain, a page is
the path `/NAME/` of one origin. That is enough for relative links (TensorBoard), but there the pages of programs can read each other.

    enter     a page of ours hands its reader a ticket, which opens one page once: a cookie of that page's origin stands for it from then on
    forward   the request goes to the address that the job's status names at that moment, and nowhere else: this is not an open proxy
    rewrite   the program sees the host and the origin that it expects; the browser sees redirects and cookies of the page's own origin

Bodies are streamed both ways, as HTTP/1.1 has them; a connection to the program serves one request. A request of another site or origin is
refused, and our own cookies reach no program.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import html
import re
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import attrs
import h11

from trainmaster.web.tunnel import Upstream, address_of, tunnel

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Headers = list[tuple[bytes, bytes]]

ENTRY = "/.trainmaster/enter"
OURS = b"trainmaster-"  # cookies whose names begin so are ours: no program gets or sets them
CONNECT_LIMIT = 10.0  # s until the program accepts
ANSWER_LIMIT = 300.0  # s until it begins to answer: some hold a request until they have news
SILENCE_LIMIT = 3600.0  # s within an answer, which may be a stream of events
TICKET_LIFE = 60.0  # s
SESSIONS = 1000  # the oldest goes
CONNECTIONS = 256  # at once
_CHUNK = 64 * 1024
# RFC 9110, 7.6.1; `Connection` may name more.
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
     b"transfer-encoding", b"upgrade")
)  # fmt: skip
# Headers that say where the browser thinks it is, and those that our server has answered for the program.
_REPLACED = frozenset((b"host", b"origin", b"referer", b"cookie", b"expect", b"forwarded"))
# They would act on all ports of the host, or on pages of other programs (RFC 6797; Clear-Site-Data; RFC 7838; Service Workers). Our server
# has its own Date.
_KEPT_BACK = frozenset(
    (b"strict-transport-security", b"clear-site-data", b"alt-svc", b"service-worker-allowed", b"date")
)
_FORWARDED = b"x-forwarded-"


@attrs.frozen(slots=True)
class Page:
    """A page of a program: the link `label` of a job. `name` is a label of a host name (RFC 1035), and the same each time."""

    job: str
    label: str

    @property
    def name(self) -> str:
        digest = hashlib.blake2b(f"{self.job}\0{self.label}".encode(), digest_size=5).hexdigest()
        return f"{re.sub('[^a-z0-9]+', '-', self.label.lower()).strip('-')[:40] or 'page'}-{digest}"


@attrs.frozen(slots=True)
class Program:
    """The program that serves a page now: its address, as the job's status has it, and how to connect to that."""

    address: str
    connect: Callable[[], Awaitable[Streams]]


@attrs.frozen(slots=True)
class Target:
    """A page's program as one request goes there. `origin`: of the page, in the browser; `prefix`: of its paths there."""

    address: str
    origin: str
    prefix: str

    @property
    def server(self) -> str:
        """Return scheme, host and port of the program."""
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}"

    def location(self, url: str) -> str:
        """Return a redirect of the program as the browser must follow it."""
        parts = urlsplit(url)
        if parts.netloc and parts.netloc.lower() != urlsplit(self.address).netloc.lower():
            return url
        path = parts.path if parts.path.startswith("/") or not parts.netloc else f"/{parts.path}"
        rest = f"?{parts.query}" * bool(parts.query) + f"#{parts.fragment}" * bool(parts.fragment)
        return (self.prefix if path.startswith("/") else "") + path + rest

    def cookie(self, text: str) -> str | None:
        """Return a Set-Cookie of the program for the page's own origin; None for one that has a name of ours."""
        pair, *attributes = text.split(";")
        if pair.strip().lower().encode().startswith(OURS):
            return None
        kept = [pair]
        for attribute in attributes:
            name, _, value = attribute.strip().partition("=")
            if name.lower() == "path" and value.startswith("/"):
                kept.append(f" Path={self.prefix}{value}")
            elif name.lower() != "domain":
                kept.append(attribute)
        if self.prefix and not any(attribute.strip().lower().startswith("path=/") for attribute in attributes):
            kept.append(f" Path={self.prefix}/")
        return ";".join(kept)

    def request_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return the headers of a request for the program, which sees a browser that has come to its own address."""
        sent = list(headers)
        kept = [
            (name, value)
            for name, value in end_to_end(sent)
            if name not in _REPLACED and not name.startswith(_FORWARDED)
        ]
        kept.append((b"host", urlsplit(self.address).netloc.encode()))
        for name, value in sent:
            if name == b"origin" or (name == b"referer" and value.startswith(self.origin.encode())):
                path = value[len(self.origin) :].removeprefix(self.prefix.encode())
                kept.append((name, self.server.encode() + path))
        pairs = [pair.strip() for name, value in sent if name == b"cookie" for pair in value.split(b";")]
        if pairs := [pair for pair in pairs if not pair.lower().startswith(OURS)]:
            kept.append((b"cookie", b"; ".join(pairs)))
        return kept

    def answer_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return the headers of the program's answer for the browser."""
        kept: Headers = []
        for name, value in end_to_end(list(headers)):
            if name == b"location":
                kept.append((name, self.location(value.decode("latin-1")).encode("latin-1")))
            elif name == b"set-cookie":
                cookie = self.cookie(value.decode("latin-1"))
                kept += [(name, cookie.encode("latin-1"))] if cookie is not None else []
            elif name not in _KEPT_BACK:
                kept.append((name, value))
        return kept


def end_to_end(headers: Headers) -> Headers:
    """Return the headers that are not of one connection alone."""
    named = {
        word.strip().lower() for name, value in headers if name.lower() == b"connection" for word in value.split(b",")
    }
    return [(name.lower(), value) for name, value in headers if name.lower() not in _HOP_BY_HOP | named]


@attrs.define
class Programs:
    """The ASGI application. `find(job, label)` returns the program that the job's status names now, None where it names none.

    `clock`: seconds that never fall. `domain`: see above; "": there is none.
    """

    find: Callable[[str, str], Awaitable[Program | None]]
    clock: Callable[[], float]
    domain: str = "localhost"
    cookie: str = attrs.field(factory=lambda: f"{OURS.decode()}{secrets.token_hex(6)}")  # browsers send it to all ports
    _pages: dict[str, Page] = attrs.field(factory=dict)  # name -> page that somebody was let in to
    _tickets: dict[str, tuple[str, float]] = attrs.field(factory=dict)  # ticket -> name, until when
    _sessions: dict[str, str] = attrs.field(factory=dict)  # cookie -> name
    _room: asyncio.Semaphore = attrs.field(factory=lambda: asyncio.Semaphore(CONNECTIONS))

    def entry(self, job: str, label: str, host: str, port: int, scheme: str = "http") -> str:
        """Return the URL that opens a page once, within a minute. `host`: the name by which the reader came to our own pages."""
        page, ticket = Page(job, label), secrets.token_urlsafe(24)
        _put(self._pages, page.name, page)
        _put(self._tickets, ticket, (page.name, self.clock() + TICKET_LIFE))
        place = f"{page.name}.{self.domain}" if self.domain else host
        path = "" if self.domain else f"/{page.name}"
        return f"{scheme}://{place}:{port}{path}{ENTRY}?ticket={ticket}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        host = _header(scope, b"host").lower()
        name, path, prefix = self._named(host, scope)
        page = self._pages.get(name)
        scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
        origin = f"{scheme}://{host}"
        if page is not None and path == ENTRY and scope["type"] == "http":
            await self._enter(scope, send, page, prefix)
        elif page is None or self._sessions.get(self._session(scope)) != name:
            await _refuse(scope, receive, send, 403, "open this page from the page of its job: there is a link to it")
        elif _is_foreign(scope, origin):
            await _refuse(scope, receive, send, 403, "another site has sent this request")
        elif (program := await self.find(page.job, page.label)) is None:
            await _refuse(scope, receive, send, 404, f"{page.label} of {page.job} does not run now")
        elif self._room.locked():
            await _refuse(scope, receive, send, 503, f"{CONNECTIONS} requests are under way")
        else:
            async with self._room:
                await self._forward(scope, receive, send, program, Target(program.address, origin, prefix), path)

    # -- who is it --

    def _named(self, host: str, scope: Scope) -> tuple[str, str, str]:
        """Return the page's name, the path in it, and the prefix of its paths."""
        path = scope.get("raw_path", b"").decode("latin-1") or quote(scope["path"])
        path = (
            path if path.startswith("/") else "/"
        )  # a whole URL is for proxies (RFC 9112, 3.2.2), and no program of ours is one
        if self.domain:
            name, _, rest = host.partition(".")
            return (name if rest.rpartition(":")[0] == self.domain or rest == self.domain else ""), path, ""
        name, _, rest = path[1:].partition("/")
        return name, f"/{rest}", f"/{name}"

    def _session(self, scope: Scope) -> str:
        pairs = (pair.strip().partition("=") for pair in _header(scope, b"cookie").split(";"))
        return next((value for name, _, value in pairs if name == self.cookie), "")

    async def _enter(self, scope: Scope, send: Send, page: Page, prefix: str) -> None:
        """Exchange a ticket for a cookie. A link in the answer leads on: a redirect from another site would come without the cookie."""
        query = parse_qs(scope["query_string"].decode("latin-1"))
        name, until = self._tickets.pop(query.get("ticket", [""])[0], ("", 0.0))
        if name != page.name or self.clock() > until:
            await _answer(send, 403, "this link was used already, or is too old: go back to the page of the job", [])
            return
        key = secrets.token_urlsafe(32)
        _put(self._sessions, key, name)
        program = await self.find(page.job, page.label)
        address = urlsplit(program.address if program is not None else "")
        target = f"{prefix}/{address.path.lstrip('/')}" + (f"?{address.query}" if address.query else "")
        secure = "; Secure" * (scope["scheme"] == "https")
        cookie = f"{self.cookie}={key}; Path={prefix}/; HttpOnly; SameSite=Strict{secure}"
        await _answer(send, 200, page.label, [(b"set-cookie", cookie.encode())], target)

    # -- on to the program --

    async def _forward(
        self, scope: Scope, receive: Receive, send: Send, program: Program, target: Target, path: str
    ) -> None:
        try:
            async with asyncio.timeout(CONNECT_LIMIT):
                reader, writer = await program.connect()
        except (OSError, TimeoutError) as error:
            await _refuse(
                scope,
                receive,
                send,
                502,
                f"the program does not answer at {target.server}: {str(error) or 'it is silent'}",
            )
            return
        query = scope["query_string"]
        resource = path.encode("latin-1") + (b"?" + query if query else b"")
        try:
            if scope["type"] == "websocket":
                url = address_of(target.server, resource.decode("latin-1"))
                upstream = Upstream(reader, writer, url, scope.get("subprotocols", []))
                await _carry(scope, receive, send, upstream, target)
            else:
                await _exchange(scope, receive, send, (reader, writer), target, resource)
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_LIMIT):
                    await writer.wait_closed()


async def _carry(scope: Scope, receive: Receive, send: Send, upstream: Upstream, target: Target) -> None:
    """Carry a WebSocket."""
    try:
        headers = await upstream.open(target.request_headers(scope["headers"]))
    except (OSError, TimeoutError) as error:
        reason = str(error) or "it is silent"
        await _refuse(scope, receive, send, 502, f"the program at {target.server} opens no WebSocket: {reason}")
        return
    cookies = [(name, value) for name, value in target.answer_headers(headers) if name == b"set-cookie"]
    await tunnel(receive, send, upstream, cookies)


def security(address: str) -> ssl.SSLContext | None:
    """Return the TLS for an address, if it has any. The certificate of a program is not checked: nobody has vouched for it."""
    if urlsplit(address).scheme != "https":
        return None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


# -- one request --


async def _exchange(
    scope: Scope, receive: Receive, send: Send, streams: Streams, target: Target, resource: bytes
) -> None:
    reader, writer = streams
    line = h11.Connection(h11.CLIENT)
    headers = target.request_headers(scope["headers"])
    has_length = any(name == b"content-length" for name, _ in headers)
    if not has_length and _header(scope, b"transfer-encoding"):
        headers.append((b"transfer-encoding", b"chunked"))
    headers.append((b"connection", b"close"))
    pump: asyncio.Task[bool] | None = None
    has_begun = False
    try:
        writer.write(line.send(h11.Request(method=scope["method"], target=resource, headers=headers)) or b"")
        pump = asyncio.create_task(_send_body(receive, line, writer))
        async for message in _answer_of(line, reader, target):
            await send(message)
            has_begun = True
    except (OSError, TimeoutError, h11.ProtocolError) as error:
        if has_begun or (pump is not None and pump.done() and pump.result()):
            return  # an answer without its end: the server breaks off the browser's connection too
        await _answer(send, 502, f"the program at {target.server} gave no answer: {str(error) or 'it is silent'}", [])
    finally:
        if pump is not None:
            pump.cancel()
            await asyncio.wait([pump])


async def _send_body(receive: Receive, line: h11.Connection, writer: asyncio.StreamWriter) -> bool:
    """Send on what the browser sends, then wait until it leaves, and break off. Return False where the program reads no more."""
    try:
        more = True
        while (message := await receive())["type"] == "http.request":
            if more and (body := message.get("body", b"")):
                writer.write(line.send(h11.Data(data=body)) or b"")
            if more and not message.get("more_body", False):
                more = False
                writer.write(line.send(h11.EndOfMessage()) or b"")
            await writer.drain()
    except (OSError, h11.ProtocolError):  # the program has answered before it read all, or is gone: its answer tells
        return False
    writer.transport.abort()
    return True


async def _answer_of(
    line: h11.Connection, reader: asyncio.StreamReader, target: Target
) -> AsyncIterator[dict[str, Any]]:
    limit = ANSWER_LIMIT
    while True:
        event = line.next_event()
        if event is h11.NEED_DATA:
            async with asyncio.timeout(limit):
                line.receive_data(await reader.read(_CHUNK))
        elif isinstance(event, h11.Response):
            limit = SILENCE_LIMIT
            headers = target.answer_headers(event.headers)
            yield {"type": "http.response.start", "status": event.status_code, "headers": headers}
        elif isinstance(event, h11.Data):
            yield {"type": "http.response.body", "body": bytes(event.data), "more_body": True}
        elif isinstance(event, h11.EndOfMessage):
            yield {"type": "http.response.body", "body": b""}
            return
        elif not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
            raise ConnectionError("it speaks another protocol")


# -- small things --


def _is_foreign(scope: Scope, origin: str) -> bool:
    """Tell whether another site or origin sent the request. A link that leads here is followed: the cookie says who may do that."""
    sender = _header(scope, b"origin")
    if scope["type"] == "websocket" or sender:
        return sender != origin
    is_link = _header(scope, b"sec-fetch-mode") == "navigate"
    return _header(scope, b"sec-fetch-site") in ("cross-site", "same-site") and not is_link


def _header(scope: Scope, name: bytes) -> str:
    return b"; ".join(value for key, value in scope["headers"] if key == name).decode("latin-1")


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    """Put an entry last, and drop the oldest ones where there are too many."""
    table.pop(key, None)
    while len(table) >= SESSIONS:
        del table[next(iter(table))]
    table[key] = value


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send(
            {"type": "websocket.close", "code": 4000 + status, "reason": text[:100]}
        )  # before the handshake: HTTP's 403
    else:
        await _answer(send, status, text, [])


async def _answer(send: Send, status: int, text: str, headers: Headers, target: str = "") -> None:
    """Answer with a small page of ours, which leads on to `target`."""
    on = f'<meta http-equiv="refresh" content="0; url={html.escape(target)}">' if target else ""
    link = (
        f'<p><a href="{html.escape(target)}">{html.escape(text)}</a></p>' if target else f"<p>{html.escape(text)}</p>"
    )
    body = f'<!doctype html><html lang="en"><head><meta charset="utf-8">{on}<title>Trainmaster</title></head><body>{link}</body></html>'
    ours = [
        (b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer"),
        (b"content-security-policy", b"default-src 'none'"), (b"x-content-type-options", b"nosniff"),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": status, "headers": ours + headers})
    await send({"type": "http.response.body", "body": body.encode()})
