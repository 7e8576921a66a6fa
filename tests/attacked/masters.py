"""The listeners of masters and of `tm ui`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from rest_server import JOB, Acts, Facts
from waiting import until

from trainmaster.client.submit.ahead import certificate_and_key
from trainmaster.client.ui import links, serving, site
from trainmaster.client.ui.places import ThisMachine
from trainmaster.core.decide.drive import Drive
from trainmaster.core.machine.state import State, populate
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.local.engine import LocalMaster, wake
from trainmaster.host import places
from trainmaster.master.connections.agents import PATH, Agents
from trainmaster.master.connections.feeders import Feeders
from trainmaster.master.connections.serve import FRAME, AgentSocket, Application, Listener
from trainmaster.master.hosts import ContainerHost
from trainmaster.master.turn import Turns
from trainmaster.runtime.network import listeners as table
from trainmaster.web.proxy import Program
from trainmaster.web.rest import rest

from . import (
    FEED_TOKENS,
    FOREIGN,
    JSON,
    PATIENCE,
    TOKEN,
    Scene,
    Target,
    assert_answers,
    at_path,
    at_port,
    bearer,
    endless,
    fetched,
    request,
    said,
    websocket,
)  # fmt: skip

HELLO = {"type": "hello", "v": "1.0", "task": "worker:0", "serial": 1, "epoch": 0}
STATUS, KILL = f"/api/v1/jobs/{JOB}/tasks", f"/api/v1/jobs/{JOB}/actions/kill"


class Host:
    """The master, as far as its connections need it."""

    epoch = 1

    def __init__(self) -> None:
        self.turns = Turns(Drive(State(id="t-aaaaaa")))
        populate(self.turns.state, job_from({"name": "t", "roles": {"worker": {"command": "true", "replicas": 2}}}))

    def tell(self, *stimuli: object) -> None: ...

    def doubt(self, epoch: int) -> None: ...

    def lost(self, connection: object) -> None: ...

    async def waited_for(self, connection: object) -> bool:
        return False

    async def receive(self, connection: Any, message: Any) -> None:
        """Take in the words of feeds, as the master does."""
        if message.get("type") == "feeds":
            Feeders(SimpleNamespace(state=self.turns.state)).heard(connection, message)  # type: ignore[arg-type]


def only_ours(agents: Agents) -> bool:
    return agents.connections.keys() <= {("worker:0", 1)}


def channel_lies(connect: Callable[[], Any]) -> dict[str, Callable[[], bytes]]:
    """Return what a liar says over the agents' channel, the last with the job's token: a broken agent harms itself alone."""
    said_so, hello, bad = partial(websocket, connect, PATH), json.dumps(HELLO), '{"type":"report"}'
    deep = json.dumps({"type": "sample", "odd": "\ud800", "more": None}).replace("null", "[" * 700 + "]" * 700)
    return {
        "another job's token": lambda: said_so(hello, token=FOREIGN),
        "a feed's token": lambda: said_so(hello, token=FEED_TOKENS["input"]),
        "another path": lambda: websocket(connect, "/other", hello),
        "no hello": lambda: said_so(bad),
        "not UTF-8": lambda: said_so(b"\xff\xfe{}"),
        "nested": lambda: said_so("[" * (FRAME - 1)),
        "a nested message": lambda: said_so(hello, "[" * (FRAME - 1)),
        "nested halves of pairs": lambda: said_so(hello, deep, bad),
        "a part of a part": lambda: said_so(hello, json.dumps({"part": [1, 2], "data": ""})),
        "an endless number": lambda: said_so(hello, '{"type":"lease","want":1,"back":[],"shards":1e999,"n":9e999}'),
        "a list of feeds": lambda: said_so(hello, '{"type":"feeds","attempt":1,"feeds":[]}', bad),
        "a frame over the limit": lambda: said_so(hello, "x" * (FRAME * 8)),
        "a hello over the limit": lambda: said_so(
            *(json.dumps({"part": [i, 80], "data": "x" * (FRAME - 100)}) for i in range(80))
        ),
    }


def agents_here(at: Scene) -> dict[table.Row, Target]:
    path, agents = str(at.folder / "agents.sock"), Agents(Host())  # type: ignore[arg-type]
    listener = AgentSocket(path, TOKEN)
    at.do(listener.serve(agents))
    at.at_end(lambda: at.do(listener.close()))
    connect = at_path(path)

    def good() -> None:
        assert b'"welcome"' in websocket(connect, PATH, json.dumps(HELLO), '{"type":"report"}')

    return {
        table.AGENTS_HERE: Target(connect, good, channel_lies(connect), (), (b"",), state=lambda: only_ours(agents)),
    }


def rest_lies(connect: Callable[[], Any]) -> dict[str, Callable[[], bytes]]:
    def ask(path: str, token: str = TOKEN, body: bytes = b"", method: str = "POST", **headers: str) -> bytes:
        answer = said(connect, request(path, method, body, **{**JSON, **bearer(token), **headers}))
        assert b" 2" not in answer.partition(b"\r\n")[0], answer
        return answer

    return {
        "no token": lambda: ask(KILL, "", b"{}"),
        "another job's token": lambda: ask(KILL, FOREIGN, b"{}"),
        "a feed's token": lambda: ask(KILL, FEED_TOKENS["input"], b"{}"),
        "a feed's token for the status": lambda: ask(STATUS, FEED_TOKENS["input"], method="GET"),
        "a token that is not UTF-8": lambda: ask(KILL, "\u00ff\udcff".encode("utf-8", "replace").decode("latin-1")),
        "nested": lambda: ask(KILL, body=b"[" * 60_000),
        "not UTF-8": lambda: ask(KILL, body=b"\xff\xfe\xfd"),
        "a huge body": lambda: ask(KILL, body=b'"' + b"x" * (8 * 64 * 1024) + b'"'),
        "another method": lambda: ask(KILL, method="DELETE"),
        "HTTP/2": lambda: said(connect, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    }


def readers_here(at: Scene) -> dict[table.Row, Target]:
    path, agents, acts = str(at.folder / "master.sock"), Agents(Host()), Acts()  # type: ignore[arg-type]
    listener = Listener(Application(agents, TOKEN, lambda: rest(Facts(), acts, TOKEN)))  # type: ignore[arg-type]
    at.do(listener.on_socket(path))
    at.at_end(lambda: at.do(listener.close()))
    connect = at_path(path)
    lies = {**rest_lies(connect), **{f"channel: {name}": lie for name, lie in channel_lies(connect).items()}}
    good = partial(assert_answers, connect, request(STATUS, **bearer(TOKEN)), b" 200 OK")
    bodies = (endless(KILL, **JSON, **bearer(TOKEN)),)
    state = lambda: (only_ours(agents), acts.done)  # noqa: E731
    return {table.READERS_HERE: Target(connect, good, lies, bodies=bodies, state=state)}


def master(at: Scene) -> dict[table.Row, Target]:
    """Attackers of the page come from another address than the proxy's."""
    certificate, key = certificate_and_key()
    agents, acts, facts = Agents(Host()), Acts(), Facts()  # type: ignore[arg-type]
    container = SimpleNamespace(
        address="127.0.0.1", port=0, proxies=("127.0.0.1",), tokens=None, agents={}, may_view=bool
    )
    host = ContainerHost(container, JOB, certificate, key)  # type: ignore[arg-type]
    host.bind()
    at.do(host.serve(Application(agents, TOKEN, lambda: rest(facts, acts, TOKEN)), facts))  # type: ignore[arg-type]
    at.at_end(lambda: at.do(host.close()))
    port, page = (int(name.rpartition(":")[2]) for name in (host.place, host._page_name))

    def good(port: int) -> None:
        assert_answers(at_port(port, certificate), request(STATUS, **bearer(TOKEN)), b" 200 OK")

    connect, stranger = at_port(port, certificate), at_port(page, source="127.0.0.2")
    lies = {**rest_lies(connect), **{f"channel: {name}": lie for name, lie in channel_lies(connect).items()}}
    named = {"Host": host._page_name, "Cookie": "proxy-user=ann"}

    def see(connect: Callable[[], Any], status: int, method: str = "GET", **headers: str) -> bytes:
        answer = until(lambda: said(connect, request("/static/style.css", method, **{**named, **headers})))
        assert f" {status} ".encode() in answer.partition(b"\r\n")[0], answer
        return answer

    of_page = {
        "another address": lambda: see(stranger, 403),
        "another address behind a header": lambda: see(stranger, 403, X_Forwarded_For="127.0.0.1"),
        "another name": lambda: see(at_port(page), 421, Host="evil.example"),
        "another method": lambda: see(at_port(page), 405, "POST"),
        "nobody": lambda: see(at_port(page), 403, Cookie=""),
    }
    return {
        table.MASTER: Target(
            connect, partial(good, port), lies, (b"", request("/").rstrip() + b"\r\nX: "), (endless(KILL, **JSON, **bearer(TOKEN)),),
            lambda: (only_ours(agents), acts.done), (TOKEN, key), is_cut=True, port=port, good_at=good, is_secured=True,
        ),
        table.PAGE: Target(
            stranger, lambda: see(at_port(page), 200), of_page, (b"", request("/").rstrip() + b"\r\nX: "), (endless("/", **named),),
            secrets=(TOKEN, key), is_cut=True,
        ),
    }  # fmt: skip


def bell(at: Scene) -> dict[table.Row, Target]:
    """Whatever is said there, the engine looks at the line."""
    rung: list[int] = []
    engine = LocalMaster.__new__(LocalMaster)
    engine.__dict__.update(_job="j-aaaaaa", _loop=at.loop, _take_turn=lambda: rung.append(1))
    at.call(engine._bind)
    at.at_end(engine._bell.close)
    at.at_end(lambda: at.call(at.loop.remove_reader, engine._bell))
    path = places.socket_path("j-aaaaaa", "wake")

    def good() -> None:
        before = len(rung)
        wake({"j-aaaaaa"})
        until(lambda: len(rung) > before)

    return {table.BELL: Target(at_path(path, socket.SOCK_DGRAM), good)}


def run_ui(at: Scene) -> tuple[int, int, site.Site, list[str]]:
    """Run `tm ui` in a thread, without its signals. Return its two ports, its site, and the addresses that it announces."""
    began, sites, addresses = list[uvicorn.Server](), list[site.Site](), list[str]()
    start, site_of = uvicorn.Server.startup, site.Site
    ready, signals = threading.Event(), serving.signal

    async def startup(server: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        began.append(server)
        await start(server, sockets)
        if len(began) == 2:
            ready.set()

    def made(*arguments: Any) -> site.Site:
        sites.append(site_of(*arguments))
        return sites[0]

    at.patch.setattr(uvicorn.Server, "startup", startup)
    at.patch.setattr(site, "Site", made)
    at.patch.setattr(
        serving, "signal", SimpleNamespace(**{**vars(signals), "getsignal": lambda number: signals.SIG_IGN})
    )
    at.patch.setattr("trainmaster.client.ui.connections.prepare_room", lambda: (100, 100))
    at.patch.setattr("trainmaster.client.ui.connections.IDLE", PATIENCE)
    at.patch.setattr("trainmaster.web.access._FORM_WITHIN", PATIENCE)
    bound = [serving.bound(row, 0, 0) for row in (table.PAGES, table.PAGES_OF_PROGRAMS)]
    place = ThisMachine(acts=True)

    def run() -> None:
        with contextlib.suppress(BaseException):  # its end is that by a signal
            serving.serve_user(place, *bound, "/", lambda address, again: addresses.append(address), None)

    def end() -> None:
        for server in began:
            server.should_exit = server.force_exit = True
        thread.join()
        for listener in bound:
            listener.close()

    thread = at.in_thread(run)
    at.at_end(end)
    assert ready.wait(180)
    until(lambda: addresses)
    first, second = (listener.getsockname()[1] for listener in bound)
    return first, second, sites[0], addresses


def ui(at: Scene) -> dict[table.Row, Target]:
    port, port_of_programs, its_site, addresses = run_ui(at)
    connect, own = at_port(port), {"Host": f"localhost:{port}", "Accept": "text/html"}
    cookie = ""

    def opened(address: str, expected: int) -> str:
        answer = fetched(port, address[address.index("/?") :], **own)
        assert answer.status == expected
        return (answer.getheader("Set-Cookie") or "").partition(";")[0]

    def good() -> None:
        nonlocal cookie
        cookie = cookie or opened(addresses[-1], 303)
        assert fetched(port, "/", **own, Cookie=cookie).status == 200

    def refused(expected: int, path: str = "/", method: str = "GET", body: bytes = b"", **headers: str) -> bytes:
        answer = until(lambda: said(connect, request(path, method, body, **{**own, **headers})))
        assert f" {expected} ".encode() in answer.partition(b"\r\n")[0], answer
        return answer

    def again() -> bytes:
        good()
        assert not opened(addresses[0], 401), "a code is good once"
        return b""

    form = {"Content-Type": "application/x-www-form-urlencoded"}
    lies = {
        "no session": lambda: refused(401),
        "a code that was used": again,
        "a code that is not UTF-8": lambda: refused(401, "/?code=%ff%fe"),
        "a huge form": lambda: refused(401, "/sign-in", "POST", b"secret=" + b"x" * (8 * 16 * 1024), **form),
        "a form that is not UTF-8": lambda: refused(401, "/sign-in", "POST", b"secret=\xff&next=\xfe", **form),
        "another name": lambda: refused(421, Host="evil.example"),
        "another site": lambda: refused(403, "/sign-in", "POST", Origin="http://evil.example"),
        "a change without a session": lambda: refused(401, "/jobs/x/kill", "POST", b"{}"),
        "two lengths": lambda: refused(400, "/sign-in", "POST", b"x", Transfer_Encoding="chunked"),
        "another cookie": lambda: refused(401, Cookie="trainmaster-000000000000=x"),
    }
    floods = (b"", request("/").rstrip() + b"\r\nX: ")
    state = lambda: its_site._open  # noqa: E731
    return {
        table.PAGES: Target(
            connect, good, lies, floods, (endless("/sign-in", **own, **form),), state, is_cut=True,
            secrets=("Log out", "/api/v1/"),
        ),
        table.PAGES_OF_PROGRAMS: page_of_program(at, port_of_programs, its_site),
    }  # fmt: skip


def page_of_program(at: Scene, port: int, its_site: site.Site) -> Target:
    async def answer(reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nthe program")
        writer.close()

    async def find(of_links: links.Links, job: str, label: str) -> Program:
        return Program("http://127.0.0.1:1/", lambda: asyncio.open_connection("127.0.0.1", inner))

    inner = (program := at.do(asyncio.start_server(answer, "127.0.0.1", 0))).sockets[0].getsockname()[1]
    at.at_end(lambda: at.call(program.close))
    at.patch.setattr(links.Links, "_find", find)
    assert its_site.links is not None
    programs, used = its_site.links._programs, list[str]()

    def name_and_path(job: str = "job") -> tuple[str, str]:
        parts = urlsplit(programs.entry(job, "page", "127.0.0.1", port))
        return parts.netloc, f"{parts.path}?{parts.query}"

    def enter(name: str, path: str) -> str:
        return (fetched(port, path, Host=name).getheader("Set-Cookie") or "").partition(";")[0]

    def good() -> None:
        name, path = name_and_path()
        used.append(enter(name, path))
        assert b"the program" in said(at_port(port), request("/", Host=name, Cookie=used[-1]))

    def refused(name: str, path: str = "/", **headers: str) -> bytes:
        answer = until(lambda: said(at_port(port), request(path, Host=name, **headers)))
        assert b" 403 " in answer.partition(b"\r\n")[0], answer
        return answer

    def again() -> bytes:
        name, path = name_and_path()
        assert enter(name, path)
        return refused(name, path)

    lies = {
        "no cookie": lambda: refused(name_and_path()[0]),
        "a ticket that was used": again,
        "another page's ticket": lambda: refused(name_and_path()[0], name_and_path("other")[1]),
        "another page's cookie": lambda: refused(name_and_path("other")[0], Cookie=used[-1]),
        "another name": lambda: refused("evil.example", Cookie=used[-1]),
        "another site": lambda: refused(name_and_path()[0], Cookie=used[-1], Origin="http://evil.example"),
        "no UTF-8": lambda: refused("\u00ff.localhost", "/%ff"),
    }
    floods = (b"", request("/").rstrip() + b"\r\nX: ")
    return Target(at_port(port), good, lies, floods, is_cut=True, secrets=("the program",))
