"""The next number of servers; pure."""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass
class Move:
    """A move that server 0 leads. `number`: the sequence of the entry that began it."""

    number: int
    servers: int
    caught_up: set[int] = field(default_factory=set)  # owners of the next placement

    @property
    def is_ready(self) -> bool:
        return len(self.caught_up) == self.servers


def next_servers(servers: int, newcomers: Collection[int], leaving: Collection[int]) -> int:
    """Return how many servers there shall be: all newcomers that follow each other come in, and of those that leave the last ones go.

    A server that leaves and is not among the last keeps its place, for the rows of the others would have to be numbered anew: it comes back
    from its log. Server 0 stays.
    """
    following = servers
    while following in newcomers:
        following += 1
    if following > servers:
        return following
    while following > 1 and following - 1 in leaving:
        following -= 1
    return following
