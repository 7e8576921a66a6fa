"""Sockets that listen for TCP connections, whose answers go out at once.

asyncio sets TCP_NODELAY only on sockets that name their protocol, and those of `socket.create_server` do not: the second write of an answer
would wait for the acknowledgement of the first, which the other end may delay by 40 ms. Connections inherit the option.
"""

from __future__ import annotations

import socket

BACKLOG = 1024  # connections


def everywhere(port: int = 0) -> socket.socket:
    """Return a socket bound to a port (0: a free one) of every address of this machine: one for IPv4 and IPv6, since two would have two
    ports.
    """
    if socket.has_dualstack_ipv6():
        return prompt(socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True))
    return prompt(socket.create_server(("", port), backlog=BACKLOG))


def listening(address: str, port: int = 0) -> socket.socket:
    """Return a socket bound to a port (0: a free one) of one address. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return prompt(socket.create_server((address, port), family=family, backlog=BACKLOG))


def prompt(listener: socket.socket) -> socket.socket:
    """Let the connections of a listener send at once what is written; return the listener."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
