"""The way of a server to server 0."""

from __future__ import annotations

import functools
import sys
import time

from .wire.connections import Closed, Connection, Elsewhere, check_index, first_reached
from .wire.messages import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .peers import Settings


_AGAIN = 0.1  # s until it is looked for again


class NotLetIn(RuntimeError):
    """Server 0 refused this one; the message says why. `servers`: how many there are now, where that is the reason."""

    def __init__(self, why: str, servers: int = 0) -> None:
        super().__init__(f"server 0 refused this one: {why}")
        self.servers = servers


def seek_leader(
    settings: Settings, more: Callable[[], Iterable[str]], has_ended: Callable[[], bool]
) -> Connection | int | None:
    """Look for server 0 until it lets this one in, and return the connection, which does not wait; or how many servers there are now, if
    they are not as many as this one knows; or None once `has_ended`. `more`: returns addresses beside those of the settings.
    """
    last_reason = ""
    while not has_ended():
        try:
            return _reached(settings, [*settings.leader(), *more()])
        except NotLetIn as error:
            if error.servers:
                return error.servers
            if str(error) != last_reason:
                last_reason = str(error)
                print(f"ps: {last_reason}", file=sys.stderr, flush=True)
        except (OSError, Malformed):
            pass  # it is not there yet, or comes back
        time.sleep(_AGAIN)
    return None


def _reached(settings: Settings, addresses: Iterable[str]) -> Connection:
    """Return a connection to server 0. Raises OSError, Malformed and NotLetIn."""
    try:
        return first_reached(addresses, settings.certificate, "server 0", functools.partial(_greet, settings))[0]
    except Elsewhere as error:
        raise NotLetIn(str(error)) from error


def _greet(settings: Settings, connection: Connection) -> None:
    connection.send(
        {
            "op": "hello", "role": "server", "token": settings.token, "task": f"ps:{settings.index}", "attempt": 0, "index": 0,
            "servers": settings.servers, "own": settings.index, "addresses": list(settings.addresses),
        }
    )  # fmt: skip
    answer = connection.receive()
    if answer is None:
        raise Closed("no answer")
    check_index(answer, 0)
    if "error" in answer.header:
        raise NotLetIn(str(answer.header["error"]), int(answer.header.get("servers", 0)))
    connection.socket.setblocking(False)
