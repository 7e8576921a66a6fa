"""Limit the connections whose owner has not shown yet that it belongs to the job.

Anyone who reaches a listener can open connections, and each costs a descriptor and, under TLS, some 40 KiB. So a connection is a *stranger*
until something that came over it is trusted, as a request with the job's token is. One peer, and all peers together, may have only so many
strangers at once. A connection beyond that takes the place of the oldest of the peer that has the most, if its own peer has fewer; else it
is closed at once, and who meets this tries again. So no peer keeps the members of another out, and in a rush of members nobody is cut in
the middle of a handshake for one who has only begun.

A peer is an IPv4 address or, since one machine may have all addresses of it, an IPv6 network of 64 bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
OF_A_PEER = 256  # strangers; the agents of one machine may all connect at once
OF_ALL = 512


class Strangers(Generic[T]):
    """The connections of strangers, by the peers that they came from; the older first."""

    def __init__(self, of_a_peer: int = OF_A_PEER, of_all: int = OF_ALL) -> None:
        self.of_all, self.of_a_peer = of_all, min(of_a_peer, of_all)
        self._peers: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[T]:
        return iter(self._peers)

    def enter(self, stranger: T, address: str) -> T | None:
        """Take in a connection from `address`. Return the one that is to be closed for want of room: an older one, which is out now, or
        this one, which is not in; None where there is room.
        """
        peer, leaving = peer_of(address), None
        if len(self._peers) >= self.of_a_peer:  # counted only then: with fewer, no limit is reached
            counts = Counter(self._peers.values())
            if counts[peer] >= self.of_a_peer or len(self._peers) >= self.of_all:
                largest, most = counts.most_common(1)[0]
                if counts[peer] + 1 >= most:
                    return stranger
                leaving = next(other for other, its_peer in self._peers.items() if its_peer == largest)
                self.leave(leaving)
        self._peers[stranger] = peer
        return leaving

    def leave(self, stranger: T) -> None:
        """Forget a connection: it is trusted, or closed."""
        self._peers.pop(stranger, None)

    def of_peer(self, address: str) -> int:
        """Return how many strangers have come from the peer with this address."""
        return [*self._peers.values()].count(peer_of(address))


def peer_of(address: str) -> str:
    """Return the address, or the first 64 bits of an IPv6 address, under which strangers are counted."""
    ip = ip_address(address.partition("%")[0])
    if not isinstance(ip, IPv6Address):
        return str(ip)
    return str(ip.ipv4_mapped or f"{IPv6Address(int(ip) >> 64 << 64)}/64")
