"""Serve the master's listeners: one for the agents of this machine, one for readers and for agents elsewhere.

Agents of this machine come over a Unix socket that websockets serves by itself: nothing else must be imported before the first program
starts, and even that is imported while the first agents begin, which wait in the socket's backlog. All others meet one ASGI application, on
a socket or under TLS; uvicorn and the REST interface are imported for it while programs start. uvicorn's protocols run in our own loop: its
`Server` would bring its own signals and its own wait of a tenth of a second at each end. A TCP listener accepts by itself, since a
connection must be counted before its TLS handshake (`runtime.network.door`).
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from hmac import compare_digest
from typing import TYPE_CHECKING, Any

from trainmaster.core.input.feed_tokens import is_of_feed
from trainmaster.host.linux import descriptor_limit
from trainmaster.master.connections.agents import PATH, Agents
from trainmaster.runtime.network.listeners import AGENTS_HERE, BACKLOG, READERS_HERE
from trainmaster.transports import cut

if TYPE_CHECKING:
    from websockets.asyncio.server import Server, ServerConnection

    from trainmaster.runtime.network.door import Crowd, Door, Stranger

App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]
FRAME = 64 * 1024  # bytes of the largest frame taken
PING = 2.0  # s
KEPT = 5  # s that a connection without a request is kept; as long uvicorn holds what a reader who vanished has sent
TLS_BUFFER = 16 * 1024  # bytes; a TLS record holds no more


def warm() -> None:
    """Import what readers need, in a thread beside the loop, which is let in often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        import uvicorn.protocols.http.h11_impl
        import uvicorn.protocols.websockets.websockets_sansio_impl  # noqa: F401

        import trainmaster.web.rest  # noqa: F401
    finally:
        sys.setswitchinterval(before)


class AgentSocket:
    """A Unix socket for the agents of this machine, at `path`, in the place of an earlier one; clients that connect wait for `serve`."""

    def __init__(self, path: str, token: str) -> None:
        self._token = f"Bearer {token}".encode()
        self._server: Server | None = None
        self._socket = AGENTS_HERE.at_path(path)

    async def serve(self, agents: Agents) -> None:
        """Answer them, from now on until closed."""
        from websockets.asyncio.server import unix_serve

        self._agents = agents
        self._server = await unix_serve(
            self._serve, sock=self._socket, process_request=self._refuse, compression=None, max_size=FRAME, ping_interval=PING,
            ping_timeout=PING * 3, server_header=None, backlog=BACKLOG,
        )  # fmt: skip

    def _refuse(self, connection: ServerConnection, request: Any) -> Any:
        authorization = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if request.path != PATH or not compare_digest(authorization, self._token):
            return connection.respond(403, "")
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        """Hold the same conversation as the application, in ASGI messages."""
        from websockets.exceptions import ConnectionClosed

        opened = False

        async def receive() -> MutableMapping[str, Any]:
            nonlocal opened
            if not opened:
                opened = True
                return {"type": "websocket.connect"}
            try:
                content = await connection.recv()
            except ConnectionClosed:
                return {"type": "websocket.disconnect"}
            return {"type": "websocket.receive", "text" if isinstance(content, str) else "bytes": content}

        async def send(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "websocket.close":
                await connection.close(event["code"])
            elif event["type"] == "websocket.send":
                try:
                    await connection.send(event["text"])
                except ConnectionClosed:  # `receive` reports it
                    return

        await self._agents.serve(receive, send)

    async def close(self, within: float = 1.0) -> None:
        """Take no more connections; those that are open are closed."""
        if self._server is None:
            self._socket.close()
        else:
            self._server.close()
            try:
                async with asyncio.timeout(within):
                    await self._server.wait_closed()
            except TimeoutError:  # an agent that does not answer the close
                return


class Late:
    """An ASGI application that is made when it is first asked for."""

    def __init__(self, make: Callable[[], App]) -> None:
        self._make = make
        self._application: App | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        self._application = self._application or self._make()
        await self._application(scope, receive, send)


class Application:
    """The ASGI application of agents and readers. `rest` makes the readers' part."""

    def __init__(self, agents: Agents, token: str, rest: Callable[[], App]) -> None:
        self.agents, self._token, self._rest = agents, token, Late(rest)

    def trusts(self, scope: MutableMapping[str, Any]) -> bool:
        """Tell whether a request carries the job's token, or that of one of its feeds."""
        header = dict(scope["headers"]).get(b"authorization", b"")
        is_feeder = scope["type"] == "http" and is_of_feed(
            header.decode("latin-1").removeprefix("Bearer "), self._token
        )
        return is_feeder or compare_digest(header, f"Bearer {self._token}".encode())

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "http":
            await self._rest(scope, receive, send)

    async def _websocket(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["path"] != PATH or not self.trusts(scope):
            await receive()
            await send({"type": "websocket.close", "code": 4401})  # before the acceptance: a 403
            return
        await self.agents.serve(receive, send)


class Listener:
    """Serves an application on a Unix socket or a TCP address until closed.

    `trusts(scope)` tells whether a request shows that its connection may stay; without it, any whole request does.
    """

    def __init__(
        self, app: App, trusts: Callable[[MutableMapping[str, Any]], bool] = lambda scope: True, crowd: Crowd | None = None
    ) -> None:  # fmt: skip
        import uvicorn
        from uvicorn.server import ServerState

        from trainmaster.runtime.network.door import Crowd

        self._app, self._trusts = app, trusts
        self._config = uvicorn.Config(
            self._answer, interface="asgi3", lifespan="off", log_config=None, access_log=False,
            http="h11",  # httptools, which uvicorn prefers where it is installed, does not bound headers
            ws="websockets-sansio", ws_max_size=FRAME, ws_ping_interval=PING, ws_ping_timeout=PING * 3, ws_per_message_deflate=False,
            timeout_keep_alive=KEPT, server_header=False, date_header=False,
            proxy_headers=False,  # else whoever sends X-Forwarded-For chooses the address that we take for the peer's
        )  # fmt: skip
        self._config.load()
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._crowd = crowd or Crowd(descriptor_limit())
        self._door: Door | None = None

    async def _answer(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        stranger: Stranger | None = scope["state"].get("stranger")
        if stranger is not None and self._trusts(scope):
            stranger.trust()
        await self._app(scope, receive, send)

    def _protocol(self, stranger: Stranger | None = None) -> asyncio.Protocol:
        make: Any = self._config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self._config, server_state=self._state, app_state={"stranger": stranger}
        )
        return protocol

    async def on_socket(self, path: str) -> None:
        """Listen at `path`, in the place of an earlier listener."""
        listener = READERS_HERE.at_path(path)
        self._server = await asyncio.get_running_loop().create_unix_server(
            self._protocol, sock=listener, backlog=BACKLOG
        )

    async def on_tcp(self, bound: socket.socket, ssl: Any = None) -> None:
        """Listen at a socket that is bound."""
        from trainmaster.runtime.network.door import Door

        if ssl is not None:
            from asyncio.sslproto import SSLProtocol

            SSLProtocol.max_size = TLS_BUFFER  # of each connection, for as long as it lives; else 256 KiB
        self._door = Door(bound, self._crowd, self._protocol, ssl)

    async def close(self, within: float = 1.0) -> None:
        """Take no more connections, and let those that are open end."""
        if self._server is not None:
            self._server.close()
        if self._door is not None:
            self._door.close()
            await self._door.closed()
        for connection in list(self._state.connections):
            connection.shutdown()
        # Requests under way are answered: until Python 3.12 the server's own wait does not cover connections.
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=within)
        self._crowd.close()
        await asyncio.sleep(0)  # connections that were being accepted meanwhile are open now
        for connection in list(self._state.connections):  # the readers left read on in the storage, as after a death
            if (transport := getattr(connection, "transport", None)) is not None:
                cut(transport)
