"""The way of a server to server 0."""

from __future__ import annotations

import functools

from .wire.connections import Closed, Connection, first_reached

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .peers import Settings
    from .storage.checkpoints import Plain

_PATIENCE = 10.0  # s for an answer


class NotLetIn(RuntimeError):
    """Server 0 refused this one; the message says why. `servers`: how many there are now, where that is the reason."""

    def __init__(self, why: str, servers: int = 0) -> None:
        super().__init__(f"server 0 refused this one: {why}")
        self.servers = servers


def reach_leader(settings: Settings, addresses: Iterable[str]) -> tuple[Connection, Plain]:
    """Return a connection to server 0, which does not wait, and its welcome. Raises OSError, Malformed and NotLetIn."""
    return first_reached(addresses, settings.certificate, "server 0", functools.partial(_greet, settings))


def _greet(settings: Settings, connection: Connection) -> Plain:
    connection.socket.settimeout(_PATIENCE)
    connection.send(
        {
            "op": "hello", "role": "server", "token": settings.token, "task": f"ps:{settings.index}", "attempt": 0, "index": 0,
            "servers": settings.servers, "own": settings.index, "addresses": list(settings.addresses),
        }
    )  # fmt: skip
    answer = connection.receive()
    if answer is None:
        raise Closed("no answer")
    if "error" in answer.header:
        raise NotLetIn(str(answer.header["error"]), int(answer.header.get("servers", 0)))
    connection.socket.setblocking(False)
    return answer.header
