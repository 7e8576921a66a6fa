"""Serve `tm ui` until it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from trainmaster.client.ui.threads import in_thread
from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.host.machine import user_name
from trainmaster.interrupts import interrupt
from trainmaster.runtime.network.listeners import BACKLOG, PAGES, Row

if TYPE_CHECKING:
    from trainmaster.client.ui.site import Place
    from trainmaster.client.ui.team import Listening

LOOPBACK, PORT = "127.0.0.1", 8470
PROGRAMS_PORT = 8570  # of the pages of programs
TRIES = 50  # ports after the first
GRACE = 1  # s that requests under way have at the end


def bound(row: Row, port: int, further: int, host: str = LOOPBACK) -> socket.socket:
    """Return a socket bound to a port, or to the next free one of the `further` after it."""
    last = min(port + further, 65535)
    for number in range(port, last + 1):
        try:
            return row.at_address(host, number)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or number == last:
                raise _unusable(host, number, error) from error
    raise AssertionError("a range has a last number")


def serve_user(
    place: Place, listener: socket.socket, programs: socket.socket | None, path: str, announce: Callable[[str, bool], object],
    opened: Callable[[str], object] | None,
) -> None:  # fmt: skip
    """Serve the user of this machine. `programs`: the listener of the pages of programs; None: these are not opened. `announce(address,
    again)`: an address with a code, and whether an earlier code was used. `opened`: called, once that answers, with the address of a file
    that sends a browser there: a browser's command line is public, so it must not have the code.
    """
    from trainmaster.host.places import state_dir
    from trainmaster.log.storage import LocalStorage
    from trainmaster.web.access import Access, Codes

    number = listener.getsockname()[1]
    storage, redirect = LocalStorage(state_dir()), f"ui/{number}.html"

    addresses: list[str] = []

    def tell(code: str) -> None:
        addresses.append(f"http://{LOOPBACK}:{number}{path}?code={code}")
        if len(addresses) > 1:
            forget()
        announce(addresses[-1], len(addresses) > 1)

    def forget() -> None:
        with contextlib.suppress(TrainmasterError):  # its code has no effect any more
            storage.remove(redirect)

    def open_browser() -> None:
        if opened is None:
            return
        with contextlib.suppress(TrainmasterError):  # the address is printed, too
            storage.replace(redirect, _redirect(addresses[0]).encode())
            opened((state_dir() / redirect).as_uri())

    codes = Codes(user_name(), tell)
    hosts = [f"{name}:{number}" for name in (LOOPBACK, "localhost")]
    hint = "Open the address that tm ui printed in its terminal, or enter the code at the end of that address."

    def access(app: Any) -> Access:
        return Access(app, _sign_in(hint), credentials=codes, hosts=hosts, may_act=True)

    try:
        _run(place, listener, access, open_browser, programs)
    finally:
        forget()


def serve_team(place: Place, team: Listening, announce: Callable[[str], object]) -> None:
    """Serve a team: its users read, and change nothing."""
    from trainmaster.web.access import Access

    with bound(PAGES, team.port, 0, team.host) as listener:
        hint = "Put in your token; whoever runs this tm ui has given it to you."

        def access(app: Any) -> Access:
            return Access(app, _sign_in(hint), team.tokens, team.header, secure=bool(team.certificate))

        tls = {"ssl_certfile": team.certificate, "ssl_keyfile": team.key} if team.certificate else {}
        _run(place, listener, access, lambda: announce(team.address), None, **tls)


def _redirect(address: str) -> str:
    return (
        '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>Trainmaster</title>'
        f'<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">Open the jobs</a>\n'
    )


def _sign_in(hint: str) -> Callable[[str, str], str]:
    def page(target: str, problem: str) -> str:
        from trainmaster.web.pages.jobs import sign_in_page

        return sign_in_page(target, problem, hint)

    return page


def _run(
    place: Place, listener: socket.socket, access: Callable[[Any], Any], ready: Callable[[], object], programs: socket.socket | None,
    **tls: Any,
) -> None:  # fmt: skip
    """Serve until a signal asks for the end. Raises Interrupted then."""
    import uvicorn

    from trainmaster.client.ui.connections import Connection, Scarcity, prepare_room
    from trainmaster.client.ui.site import Site

    logging.getLogger("uvicorn").setLevel(logging.ERROR)

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # else it would end us by the signal itself, before the index is written

    class Pages(Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            await in_thread(ready)

    def config(app: Any, room: int, **options: Any) -> uvicorn.Config:
        return uvicorn.Config(
            app, interface="asgi3", lifespan="off", log_config=None, access_log=False, proxy_headers=False, server_header=False,
            timeout_graceful_shutdown=GRACE, ws="websockets-sansio", http=Connection, limit_concurrency=room, backlog=BACKLOG, **options,
        )  # fmt: skip

    async def run() -> int:
        room, programs_room = prepare_room()
        site = Site(place, programs.getsockname()[1] if programs else None)
        servers: list[tuple[Server, socket.socket]] = [
            (Pages(config(access(site), room, date_header=False, **tls)), listener)
        ]
        if programs and site.links:
            servers.append((Server(config(site.links, programs_room)), programs))
        scarcity = Scarcity([server.server_state.connections for server, _ in servers])
        asyncio.get_running_loop().set_exception_handler(scarcity)
        signals = list[int]()

        def end(number: int) -> None:
            for server, _ in servers:
                server.should_exit, server.force_exit = True, bool(signals)
            signals.append(number)
            for name in (
                "uvicorn",
                "asyncio",
            ):  # they tell of each stream that breaks off, and of each socket that is closed
                logging.getLogger(name).setLevel(logging.CRITICAL)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, end, number)
        look = asyncio.create_task(site.board.present())
        await asyncio.gather(*(server.serve(sockets=[at]) for server, at in servers))
        look.cancel()
        await site.close()
        return signals[0] if signals else signal.SIGTERM

    interrupt(asyncio.run(run()))


def _unusable(host: str, port: int, error: OSError) -> BadInput:
    return BadInput(
        f"nothing can be served at {host}:{port}: {error.strerror}",
        mend="choose another port: tm ui --port, or --listen HOST:PORT with an address of this machine",
        anchor="ui-port",
    )
