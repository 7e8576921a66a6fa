"""Accept connections in an asyncio loop, each as a stranger: it is cut after a time, and counts against its peer, until it is trusted.

A connection must be counted before its TLS handshake, so the listening socket is accepted from here, and not by asyncio's servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from .strangers import OF_A_PEER, OF_ALL, Strangers

if TYPE_CHECKING:
    from ssl import SSLContext

TRUSTED_WITHIN = 10.0  # s after which a stranger is cut, whatever it has done by then: TLS handshake, a part of a request, a refused one
SHARE = 4  # at most one descriptor in so many is a stranger's; agents, logs and readers have the others
QUIET = 60.0  # s between two lines in the log about closed connections
ACCEPT_AGAIN = 1.0  # s after which accepting is tried again where it failed, for want of descriptors say

log = logging.getLogger(__name__)


class Stranger:
    """One accepted connection, until it is trusted or cut."""

    def __init__(self, crowd: Crowd, connection: socket.socket) -> None:
        self._crowd, self._connection = crowd, connection
        self.transport: Any = None  # known once the handshake is over
        self._deadline = asyncio.get_running_loop().call_later(crowd.trusted_within, self.cut)

    @property
    def is_open(self) -> bool:
        return self._connection.fileno() >= 0  # whoever owns the transport closes the socket itself

    def trust(self) -> None:
        """Let the connection stay: something that came over it showed the token."""
        self._deadline.cancel()
        self._crowd.strangers.leave(self)

    def cut(self) -> None:
        """End the connection, in the middle of a handshake too."""
        self.trust()
        if self.transport is not None:
            with contextlib.suppress(AttributeError):  # see `trainmaster.transports.cut`
                self.transport.abort()
        elif self.is_open:
            with contextlib.suppress(OSError):  # the peer has closed it
                self._connection.shutdown(socket.SHUT_RDWR)  # the handshake reads the end, and closes the socket


class Crowd:
    """The strangers of one process, of all its listeners. `descriptors`: how many it may have."""

    def __init__(
        self, descriptors: float, *, trusted_within: float = TRUSTED_WITHIN, of_a_peer: int = OF_A_PEER, of_all: int = OF_ALL
    ) -> None:  # fmt: skip
        self.trusted_within = trusted_within
        self.strangers = Strangers[Stranger](of_a_peer, int(max(1, min(of_all, descriptors // SHARE))))
        self._quiet_until = 0.0

    def enter(self, connection: socket.socket, address: str) -> Stranger | None:
        """Take in a connection from `address`; None where there are too many, and it is to be closed."""
        if len(self.strangers) >= self.strangers.of_a_peer:
            for known in [known for known in self.strangers if not known.is_open]:
                known.trust()
        stranger = Stranger(self, connection)
        leaving = self.strangers.enter(stranger, address)
        if leaving is None:
            return stranger
        self._warn(address)
        if leaving is stranger:
            stranger.trust()  # its time no longer counts
            return None
        leaving.cut()
        return stranger

    def close(self) -> None:
        for stranger in list(self.strangers):
            stranger.cut()

    def _warn(self, address: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET
            log.warning(
                "connections are closed: %d are open that have not shown the job's token, %d of them from %s; the limits are "
                "%d and %d", len(self.strangers), self.strangers.of_peer(address), address, self.strangers.of_all, self.strangers.of_a_peer,
            )  # fmt: skip


def streamed(
    serve: Callable[[Stranger, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> Callable[[Stranger], asyncio.BaseProtocol]:
    """Return the protocol that has `serve` read and write each connection, as `asyncio.start_server` has it."""

    def protocol(stranger: Stranger) -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), lambda *ends: serve(stranger, *ends))

    return protocol


class Door:
    """Accepts the connections of a listening TCP socket until closed. `protocol` makes what reads a connection."""

    def __init__(
        self,
        listener: socket.socket,
        crowd: Crowd,
        protocol: Callable[[Stranger], asyncio.BaseProtocol],
        tls: SSLContext | None = None,
    ) -> None:
        self._crowd, self._protocol, self._tls = crowd, protocol, tls
        self._opening: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listener))

    @property
    def opening(self) -> int:
        """Tell how many connections have not been brought as far as their protocol."""
        return len(self._opening)

    def close(self) -> None:
        """Accept no more, and close the listening socket in the next turn of the loop. Open connections stay."""
        self._accepting.cancel()

    async def closed(self) -> None:
        await asyncio.wait([self._accepting])

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    connection, address = await loop.sock_accept(listener)
                except OSError as error:
                    if error.errno != errno.ECONNABORTED:
                        log.warning("no connection can be accepted now: %s", error)
                        await asyncio.sleep(ACCEPT_AGAIN)
                    continue
                if (stranger := self._crowd.enter(connection, address[0])) is None:
                    connection.close()
                else:
                    task = asyncio.create_task(self._open(connection, stranger))
                    self._opening.add(task)
                    task.add_done_callback(self._opening.discard)
                await asyncio.sleep(0)  # what was accepted before has its turn

    async def _open(self, connection: socket.socket, stranger: Stranger) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # no handshake; the transport has closed the connection
            stranger.transport, _ = await loop.connect_accepted_socket(
                lambda: self._protocol(stranger), connection, ssl=self._tls
            )
