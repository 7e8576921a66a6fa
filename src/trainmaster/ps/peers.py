"""How a server runs, whom it speaks with, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from .shard import Entry, Shard
    from .storage.checkpoints import Plain
    from .wire.connections import Connection, Message

    class Host(Protocol):
        """A server, as its moves, its checkpoints and its views need it."""

        settings: Settings
        shard: Shard

        @property
        def leader(self) -> Peer | None: ...

        def peers(self, role: str) -> list[Peer]: ...

        def add(self, entry: Entry) -> None: ...

        def tell(self, peer: Peer, header: Plain) -> None: ...

        def answer(self, peer: Peer, message: Message) -> None: ...

        def wake(self) -> None: ...


@dataclass(frozen=True)
class Settings:
    """How a server runs. `addresses`: where it serves. `leader`: returns the addresses of server 0. `directory`: of checkpoints and logs;
    "": it keeps none, and what it has ends with it. `initial`: a directory of a former job's checkpoints, the newest of which is the state
    of a server that has none. `told_servers`: how many there are by the server's command, which is of the job's beginning.
    """

    index: int
    servers: int
    token: str
    certificate: str = ""
    leader: Callable[[], Sequence[str]] = tuple
    directory: str = ""
    initial: str = ""
    addresses: Sequence[str] = ()
    told_servers: int = 0


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
    leaving_since: float | None = None  # of a server that must end
    waiting: list[Message] = field(default_factory=list)  # at most one message, for a step of the order
    is_watched_for_room: bool = False


class Fatal(RuntimeError):
    """The server cannot go on; the message says why."""


class Renumbered(Exception):
    """There are `servers` servers now, and not as many as the server began with. `shard`: its share, where it came by a move."""

    def __init__(self, servers: int, shard: Shard | None = None) -> None:
        super().__init__(f"there are {servers} servers now")
        self.servers, self.shard = servers, shard
