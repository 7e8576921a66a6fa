"""Keep room for readers. Anybody who reaches the port can open connections, and each costs a descriptor.

A connection is *idle* while no request on it waits for its answer: it has sent nothing, a part of a request, or has its answer. An idle one
is closed after some seconds, and before that where there is no room for a newcomer: the oldest first. If no connection is idle, the
newcomer's request is answered by 503.
"""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Collection
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from trainmaster.host.linux import descriptor_limit, raise_descriptor_limit

IDLE = 10.0  # s that a connection may be idle
HANDSHAKE = 10.0  # s that a TLS handshake may take
MOST = 8192  # descriptors for them
PAGES, PROGRAMS = 0.6, 0.2  # of the descriptors: for pages, and for programs' pages; storages and logs have the others
FULL = 0.75  # of the limit of connections: above it, idle ones give way
FRESH = 0.5  # s that a connection has to send its request, where others want its room
EASE = 0.9  # s after a complaint until idle connections give way
QUIET = 60.0  # s between two lines about descriptors


def prepare_room() -> tuple[int, int]:
    """Let this process have as many descriptors as it may; return how many connections may be open to pages, and to programs' pages."""
    raise_descriptor_limit()
    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = HANDSHAKE  # type: ignore[attr-defined]  # uvicorn hands on no timeout
    descriptors = min(MOST, descriptor_limit())
    return int(descriptors * PAGES), int(descriptors * PROGRAMS)


class Connection(H11Protocol):
    """One connection. uvicorn's option `limit_concurrency` says how many there may be."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._last_cycle: Any = None
        self.since = self.loop.time()
        self._look_again()
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency * FULL:
            self._take_room()

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _take_room(self) -> None:
        """Close the connection that has been idle for longest."""
        others = (other for other in self.connections if isinstance(other, Connection))
        min((other for other in others if other.is_idle), key=lambda other: other.since).give_way()

    def give_way(self) -> None:
        """Close the connection, unless it waits for an answer or had no time to send its request."""
        if self.is_idle and self.since < self.loop.time() - FRESH:
            self.connections.discard(self)
            self.transport.close()

    def _look_again(self) -> None:
        self.loop.call_later(IDLE, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self not in self.connections:  # closed, or a WebSocket now
            return
        if self.is_idle and self.cycle is self._last_cycle:
            self.transport.close()
        else:
            self._last_cycle = self.cycle
            self._look_again()


class Scarcity:
    """Take the loop's complaints that a connection finds no descriptor. asyncio makes a thousand of them, with tracebacks, and tries again
    after a second: by then idle connections have given way.
    """

    def __init__(self, connections: Collection[Collection[Any]]) -> None:
        self._connections, self._next, self._quiet_until = connections, 0.0, 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
            loop.default_exception_handler(context)
        elif loop.time() >= self._next:
            self._next = loop.time() + EASE
            loop.call_later(EASE, self._ease)
            if loop.time() >= self._quiet_until:
                self._quiet_until = loop.time() + QUIET
                limit = f"{descriptor_limit():.0f} are allowed: ulimit -n"
                print(f"no connection is accepted for a moment: {error.strerror}; {limit}", file=sys.stderr)

    def _ease(self) -> None:
        for connection in [connection for connections in self._connections for connection in connections]:
            if isinstance(connection, Connection):
                connection.give_way()
