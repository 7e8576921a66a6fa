"""Whom a server speaks with, and how it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .wire.connections import Connection, Message


@dataclass(frozen=True)
class Settings:
    """How a server runs. `addresses`: where it serves. `leader`: returns the addresses of server 0. `directory`: of checkpoints and logs;
    "": it keeps none, and what it has ends with it. `initial`: a directory of a former job's checkpoints, the newest of which is the state
    of a server that has none.
    """

    index: int
    servers: int
    token: str
    certificate: str = ""
    leader: Callable[[], Sequence[str]] = tuple
    directory: str = ""
    initial: str = ""
    addresses: Sequence[str] = ()


@dataclass(eq=False)
class Peer:
    """A connection, and who is at its other end.

    `role`: "" as long as it is a stranger; worker; server, and follower once server 0 tells it the order; newcomer, a server that is in no
    placement yet; heir, the next owner of rows; leader, server 0.
    """

    connection: Connection
    since: float
    role: str = ""
    task: str = ""
    attempt: int = 0
    index: int = -1  # of a server
    addresses: list[str] = field(default_factory=list)  # of a server
    is_leaving: bool = False
    waiting: list[Message] = field(default_factory=list)  # at most one message, for a step of the order
    is_watched_for_room: bool = False
