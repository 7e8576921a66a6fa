"""Limit the connections whose owner has not shown yet that it belongs to the job.

Anyone who reaches the master's port can open connections, and each costs a descriptor and, under TLS, some 40 KiB. So a connection is a
*stranger* until a request on it is trusted: one with the job's token. A stranger is cut `TRUSTED_WITHIN` after it was accepted, whatever it
has done by then (TLS handshake, a part of a request, a refused request). One peer, and all peers together, may have only so many strangers
at once. A connection beyond that takes the place of the oldest of the peer that has the most, if its own peer has fewer; else it is closed
at once, and an agent that meets this tries again. So no peer keeps the agents of another out, and in a rush of agents nobody is cut in the
middle of a handshake for one who has only begun.

A peer is an IPv4 address or, since one machine may have all addresses of it, an IPv6 network of 64 bits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import Any

from trainmaster.transports import cut

TRUSTED_WITHIN = 10.0  # s
OF_A_PEER = 256  # strangers; the agents of one machine may all connect at once
OF_ALL = 512
SHARE = 4  # at most one descriptor in so many is a stranger's; agents, logs and readers have the others
QUIET = 60.0  # s between two lines in the log about closed connections

log = logging.getLogger(__name__)


class Stranger:
    """One accepted connection, until it is trusted or cut."""

    def __init__(self, crowd: Crowd, connection: socket.socket, peer: str) -> None:
        self._crowd, self._connection, self.peer = crowd, connection, peer
        self.transport: Any = None  # known once the handshake is over
        self._deadline = asyncio.get_running_loop().call_later(crowd.trusted_within, self.cut)

    @property
    def is_open(self) -> bool:
        return self._connection.fileno() >= 0  # whoever owns the transport closes the socket itself

    def trust(self) -> None:
        """Let the connection stay: a request on it showed the token."""
        self._deadline.cancel()
        self._crowd.strangers.pop(self, None)

    def cut(self) -> None:
        """End the connection, in the middle of a handshake too."""
        self.trust()
        if self.transport is not None:
            cut(self.transport)
        elif self.is_open:
            with contextlib.suppress(OSError):  # the peer has closed it
                self._connection.shutdown(socket.SHUT_RDWR)  # the handshake reads the end, and closes the socket


class Crowd:
    """The strangers of one process, of all its listeners. `descriptors`: how many it may have."""

    def __init__(
        self, descriptors: float, *, trusted_within: float = TRUSTED_WITHIN, of_a_peer: int = OF_A_PEER, of_all: int = OF_ALL
    ) -> None:  # fmt: skip
        self.trusted_within = trusted_within
        self.strangers: dict[Stranger, None] = {}
        self._of_all = int(max(1, min(of_all, descriptors // SHARE)))
        self._of_a_peer = min(of_a_peer, self._of_all)
        self._quiet_until = 0.0

    def enter(self, connection: socket.socket, address: str) -> Stranger | None:
        """Take in a connection from `address`; None where there are too many, and it is to be closed."""
        peer = peer_of(address)
        if len(self.strangers) >= self._of_a_peer:  # counted only then: with fewer, no limit is reached
            for stranger in [stranger for stranger in self.strangers if not stranger.is_open]:
                stranger.trust()
            counts = Counter(stranger.peer for stranger in self.strangers)
            if counts[peer] >= self._of_a_peer or len(self.strangers) >= self._of_all:
                self._warn(peer, counts[peer])
                largest, most = counts.most_common(1)[0]
                if counts[peer] + 1 >= most:
                    return None
                next(stranger for stranger in self.strangers if stranger.peer == largest).cut()
        stranger = Stranger(self, connection, peer)
        self.strangers[stranger] = None
        return stranger

    def close(self) -> None:
        for stranger in list(self.strangers):
            stranger.cut()

    def _warn(self, peer: str, of_peer: int) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET
            log.warning(
                "connections are closed: %d are open that have not shown the job's token, %d of them from %s; the limits are "
                "%d and %d", len(self.strangers), of_peer, peer, self._of_all, self._of_a_peer,
            )  # fmt: skip


def peer_of(address: str) -> str:
    """Return the address, or the first 64 bits of an IPv6 address, under which strangers are counted."""
    ip = ip_address(address.partition("%")[0])
    if not isinstance(ip, IPv6Address):
        return str(ip)
    return str(ip.ipv4_mapped or f"{IPv6Address(int(ip) >> 64 << 64)}/64")
