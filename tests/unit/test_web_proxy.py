"""The pages of programs behind the proxy: real HTTP and WebSockets, each page from an origin of its own, and nothing else is reached."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import attrs
import pytest
from serving import serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from trainmaster.web import proxy
from trainmaster.web.proxy import ENTRY, Page, Program, Programs, Target

LIMIT = 180.0  # s
PAGE = Page("digits-1", "My Board")


# -- a program --


async def echo(request: Request) -> Response:
    body = [chunk async for chunk in request.stream() if chunk]
    return JSONResponse(
        {"method": request.method, "path": request.scope["raw_path"].decode(), "query": request.url.query, "body": b"".join(body).decode(),
         "headers": request.headers.items()},
        headers={"X-Program": "yes", "Keep-Alive": "timeout=5", "Strict-Transport-Security": "max-age=9"},
    )  # fmt: skip


async def cookies(request: Request) -> Response:
    answer = Response("set")
    answer.set_cookie("plain", "1")
    answer.set_cookie("deep", "2", path="/deep", domain="program.example", samesite=None)
    answer.set_cookie("trainmaster-aaaaaaaaaaaa", "stolen")
    return answer


async def redirect(request: Request) -> Response:
    return RedirectResponse(request.query_params["to"].replace("HOST", request.headers["host"]), 302)


async def ticks(request: Request) -> Response:
    async def lines() -> AsyncIterator[bytes]:
        yield b"first\n"
        await request.app.state.go.wait()
        yield b"last\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


async def talk(socket_: WebSocket) -> None:
    await socket_.accept("chat", headers=[(b"set-cookie", b"spoken=1; Domain=x")])
    await socket_.send_json(
        {name: value for name, value in socket_.headers.items() if name in ("host", "origin", "cookie")}
    )
    async for text in socket_.iter_text():
        if text == "end":
            await socket_.close(4001, "enough")
            return
        await socket_.send_text(text.upper())
        await socket_.send_bytes(text.encode() * 2)


def program() -> Starlette:
    every = ["GET", "POST", "PUT", "HEAD"]
    return Starlette(routes=[
        Route("/cookies", cookies), Route("/redirect", redirect), Route("/ticks", ticks), WebSocketRoute("/talk", talk),
        Route("/{path:path}", echo, methods=every),
    ])  # fmt: skip


# -- what a browser does --


@attrs.define
class Scene:
    """A program, the proxy before it, and a browser that was let in."""

    programs: Programs
    app: Starlette
    port: int
    upstream: int
    host: str = ""
    prefix: str = ""
    cookie: str = ""

    @property
    def origin(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> http.client.HTTPResponse:
        """One request as a browser sends it; the answer has `content`."""
        return await asyncio.to_thread(
            self._ask, path, method, body, {name.replace("_", "-"): text for name, text in headers.items()}
        )

    def _ask(self, path: str, method: str, body: Any, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            sent = {"Host": f"{self.host}:{self.port}", "Cookie": self.cookie, **headers}
            line.request(
                method,
                path,
                body=body,
                headers={name: text for name, text in sent.items() if text},
                encode_chunked=False,
            )
            answer = line.getresponse()
            answer.content = answer.read()  # type: ignore[attr-defined]
            return answer
        finally:
            line.close()

    async def enter(self) -> None:
        """Follow the link of the job's page."""
        url = self.programs.entry(PAGE.job, PAGE.label, "127.0.0.1", self.port)
        place, _, path = url.removeprefix("http://").partition("/")
        self.host = place.rpartition(":")[0]
        answer = await self.ask(f"/{path}")
        assert answer.status == 200
        assert f'url={self.prefix}/board?x=1"' in answer.content.decode()  # type: ignore[attr-defined]
        set_cookie = answer.getheader("Set-Cookie") or ""
        assert set_cookie.endswith(f"; Path={self.prefix}/; HttpOnly; SameSite=Strict")
        self.cookie = set_cookie.partition(";")[0]
        assert (await self.ask(f"/{path}", Cookie="")).status == 403, "a ticket is good once"


def at_port(port: int, path: str = "/") -> Program:
    return Program(f"http://127.0.0.1:{port}{path}", lambda: asyncio.open_connection("127.0.0.1", port))


def play(act: Callable[[Scene], Awaitable[None]], domain: str = "localhost", port_of_program: int = 0) -> None:
    async def scene() -> None:
        app = program()
        app.state.go = asyncio.Event()
        async with serving(app) as upstream:

            async def find(job: str, label: str) -> Program | None:
                serves = (job, label) == (PAGE.job, PAGE.label)
                return at_port(port_of_program or upstream, "/board?x=1") if serves else None

            programs = Programs(find, asyncio.get_running_loop().time, domain)
            async with serving(programs) as port:
                at = Scene(programs, app, port, upstream, prefix="" if domain else f"/{PAGE.name}")
                await at.enter()
                async with asyncio.timeout(LIMIT):
                    await act(at)

    asyncio.run(scene())


BOTH = pytest.mark.parametrize("domain", ["localhost", ""])


@BOTH
def test_a_request_reaches_the_program_as_it_expects_it(domain: str) -> None:
    async def act(at: Scene) -> None:
        answer = await at.ask(
            f"{at.prefix}/a%2Fb/c?q=1&r=%20", "POST", b"content" * 10_000, Origin=at.origin, Referer=f"{at.origin}{at.prefix}/page",
            Cookie=f"{at.cookie}; theirs=1; trainmaster-0123456789ab=other", X_Forwarded_Host="evil", Connection="X-Gone, keep-alive",
            X_Gone="1", Authorization="token theirs",
        )  # fmt: skip
        echoed = json.loads(answer.content)  # type: ignore[attr-defined]
        assert (answer.status, echoed["method"], echoed["path"], echoed["query"]) == (
            200,
            "POST",
            "/a%2Fb/c",
            "q=1&r=%20",
        )
        assert echoed["body"] == "content" * 10_000
        sent, own = dict(echoed["headers"]), f"127.0.0.1:{at.upstream}"
        assert (sent["host"], sent["origin"], sent["referer"]) == (own, f"http://{own}", f"http://{own}/page")
        assert (sent["cookie"], sent["authorization"], sent["connection"]) == ("theirs=1", "token theirs", "close")
        assert not {"x-forwarded-host", "x-gone"} & sent.keys()
        assert answer.getheader("X-Program") == "yes"
        assert answer.getheader("Strict-Transport-Security") is None
        assert len(answer.headers.get_all("Date") or ()) == 1
        head = await at.ask(f"{at.prefix}/x", "HEAD")
        assert (head.status, head.content) == (200, b"")  # type: ignore[attr-defined]
        chunked = await at.ask(
            f"{at.prefix}/x", "PUT", iter([b"4\r\nsome\r\n", b"0\r\n\r\n"]), Transfer_Encoding="chunked"
        )
        assert json.loads(chunked.content)["body"] == "some"  # type: ignore[attr-defined]

    play(act, domain)


@BOTH
def test_redirects_and_cookies_are_of_the_pages_own_origin(domain: str) -> None:
    async def act(at: Scene) -> None:
        for to, location in {
            "/login?next=%2F": f"{at.prefix}/login?next=%2F",
            "http://HOST/x": f"{at.prefix}/x",
            "//HOST": f"{at.prefix}/",
            "../up": "../up",
            "https://accounts.example/x": "https://accounts.example/x",
        }.items():
            from urllib.parse import quote

            answer = await at.ask(f"{at.prefix}/redirect?to={quote(to, safe='')}")
            assert (answer.status, answer.getheader("Location")) == (302, location)
        answer = await at.ask(f"{at.prefix}/cookies")
        assert answer.headers.get_all("Set-Cookie") == [
            f"plain=1; Path={at.prefix}/; SameSite=lax",
            f"deep=2; Path={at.prefix}/deep",
        ]

    play(act, domain)


def test_an_answer_is_streamed_as_it_comes() -> None:
    async def act(at: Scene) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        try:
            writer.write(f"GET /ticks HTTP/1.1\r\nHost: {at.host}:{at.port}\r\nCookie: {at.cookie}\r\n\r\n".encode())
            await reader.readuntil(b"first\n")
            at.app.state.go.set()
            await reader.readuntil(b"last\n")
        finally:
            writer.close()

    play(act)


@BOTH
def test_a_websocket_goes_through(domain: str) -> None:
    async def act(at: Scene) -> None:
        url, cookie = f"ws://{at.host}:{at.port}{at.prefix}/talk?x=1", {"Cookie": f"{at.cookie}; theirs=1"}
        async with connect(
            url, host="127.0.0.1", port=at.port, origin=at.origin, additional_headers=cookie, subprotocols=["chat", "other"]  # type: ignore[list-item, arg-type]
        ) as line:  # fmt: skip
            assert line.subprotocol == "chat"
            assert line.response is not None
            assert line.response.headers["Set-Cookie"] == "spoken=1" + (f"; Path={at.prefix}/" if at.prefix else "")
            own = f"127.0.0.1:{at.upstream}"
            assert json.loads(await line.recv()) == {"host": own, "origin": f"http://{own}", "cookie": "theirs=1"}
            await line.send("hello" * 30_000)
            assert await line.recv() == "HELLO" * 30_000
            assert await line.recv() == b"hello" * 60_000
            await line.send("end")
            with pytest.raises(ConnectionClosed) as end:
                await line.recv()
            assert end.value.rcvd is not None
            assert (end.value.rcvd.code, end.value.rcvd.reason) == (4001, "enough")
        for headers, origin in ((cookie, "http://elsewhere"), ({}, at.origin)):
            with pytest.raises(InvalidStatus) as refusal:
                async with connect(url, host="127.0.0.1", port=at.port, origin=origin, additional_headers=headers):  # type: ignore[arg-type]
                    pass
            assert refusal.value.response.status_code == 403
        with pytest.raises(InvalidStatus):  # the program opens none there
            async with connect(
                url.replace("talk", "nothing"),
                host="127.0.0.1",
                port=at.port,
                origin=at.origin,
                additional_headers=cookie,
            ):  # type: ignore[arg-type]
                pass

    play(act, domain)


def test_nobody_else_gets_in_and_nothing_else_is_reached() -> None:
    async def act(at: Scene) -> None:
        assert (await at.ask("/x", Cookie="")).status == 403
        assert (await at.ask("/x", Cookie=at.cookie[:-1] + "-")).status == 403
        assert (await at.ask("/x", Host=f"other-0123456789.localhost:{at.port}")).status == 403
        assert (await at.ask("/x", Host=f"127.0.0.1:{at.port}")).status == 403
        assert (await at.ask("/x", Host=f"{PAGE.name}.evil.example:{at.port}")).status == 403
        assert (await at.ask("/x", Origin="http://evil.example")).status == 403
        assert (await at.ask("/x", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")).status == 403
        assert (await at.ask("/x", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")).status == 200
        whole = await at.ask(f"http://127.0.0.1:{at.port}/secret")  # as a proxy is asked
        assert json.loads(whole.content)["path"] in ("/", "/secret")  # type: ignore[attr-defined]
        # A ticket opens the page that it is for, and no other.
        other = Page("digits-1", "other")
        at.programs.entry(other.job, other.label, "", at.port)
        assert (await at.ask("/x", Host=f"{other.name}.localhost:{at.port}")).status == 403
        ticket = at.programs.entry(PAGE.job, PAGE.label, "", at.port).rpartition("=")[2]
        assert (await at.ask(f"{ENTRY}?ticket={ticket}", Host=f"{other.name}.localhost:{at.port}")).status == 403

    play(act)


def test_a_page_whose_program_does_not_run_or_does_not_answer_says_so() -> None:
    async def gone(at: Scene) -> None:
        answer = await at.ask("/x")
        assert answer.status == 502
        assert b"does not answer at http://127.0.0.1:" in answer.content  # type: ignore[attr-defined]

    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as bound:
        port = bound.getsockname()[1]
    play(gone, port_of_program=port)

    async def over(at: Scene) -> None:
        async def nothing(job: str, label: str) -> None:
            return None

        at.programs.find = nothing
        answer = await at.ask("/x")
        assert (answer.status, b"does not run now" in answer.content) == (404, True)  # type: ignore[attr-defined]

    play(over)


def test_a_program_that_speaks_no_http_or_breaks_off_costs_its_page_alone() -> None:
    async def act(at: Scene) -> None:
        async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = await reader.readline()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf" if b"half" in line else b"SSH-2.0-OpenSSH_9\r\n"
            )
            writer.close()

        server = await asyncio.start_server(rude, "127.0.0.1", 0)

        async def find(job: str, label: str) -> Program:
            return at_port(server.sockets[0].getsockname()[1])

        at.programs.find = find
        assert (await at.ask("/x")).status == 502
        with pytest.raises(http.client.IncompleteRead):
            await at.ask("/half")
        server.close()

    play(act)


def test_names_are_labels_of_hosts_and_tell_pages_apart() -> None:
    assert Page("a", "TensorBoard").name == Page("a", "TensorBoard").name
    assert len({Page(job, label).name for job in "ab" for label in ("x", "X", "x ")}) == 6
    for label in ("TensorBoard", "größe <b>", "..", "x" * 300):
        name = Page("job", label).name
        assert len(name) <= 63
        assert name.strip("-") == name
        assert name.replace("-", "").isalnum()
        assert name.isascii()


def test_targets_rewrite_what_programs_write() -> None:
    target = Target("http://[::1]:80/", "http://x", "/p")
    assert target.server == "http://[::1]:80"
    assert target.cookie("a=b; path=relative; DOMAIN=.x; Secure") == "a=b; path=relative; Secure; Path=/p/"
    assert target.cookie("Trainmaster-x=1") is None
    assert target.location("http://[::1]:80/a#b") == "/p/a#b"
    assert proxy.end_to_end([(b"Connection", b"close, X-A"), (b"x-a", b"1"), (b"B", b"2")]) == [(b"b", b"2")]
