"""A formed generation, as frameworks see it: the tasks that take part, their addresses and their ranks.

It is made from the state when programs are to be started; plain data, the same for every member. Tasks of other groups (a
role that ran before, one that watches) are listed too, so that programs can find them, but have no rank here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import attrs

from trainmaster.core.machine.ranks import Member, Rank, assign, copies
from trainmaster.core.machine.state import Group, State, Task
from trainmaster.core.plain import Plain


@attrs.frozen(slots=True, eq=False, repr=False)
class Peer(Plain):
    """A task that takes part. `address`: an IP address or a host name, without brackets."""

    task: str
    role: str
    index: int
    address: str
    ports: Mapping[str, int] = attrs.field(factory=dict)
    rank: Rank | None = None  # None: it does not count, or belongs to another group
    copies: int = 1
    attempt: int = 1
    limit: int = 0  # restarts that its role may cost
    # Its number among the members of its role, without gaps: its index, until members have left.
    place: int = attrs.field(default=attrs.Factory(lambda peer: peer.index, takes_self=True))

    def at(self, port: str) -> str:
        """Return the address of its port `port`, as in a URL."""
        return f"{bracketed(self.address)}:{self.ports[port]}"


@attrs.frozen(slots=False, eq=False)  # with slots, attrs would load `inspect` for the cached properties
class Formation:
    """One generation of one group. `peers` are in order of role and index."""

    job: str
    generation: int
    peers: tuple[Peer, ...]
    restarts: int = 0  # of the job so far

    @cached_property
    def by_task(self) -> dict[str, Peer]:
        return {peer.task: peer for peer in self.peers}

    @cached_property
    def roles(self) -> dict[str, list[Peer]]:
        """Return the peers of each role, by index."""
        roles: dict[str, list[Peer]] = {}
        for peer in sorted(self.peers, key=lambda peer: peer.index):
            roles.setdefault(peer.role, []).append(peer)
        return roles

    @cached_property
    def ranked(self) -> list[Peer]:
        """Return the peers that have ranks, in order of rank."""
        ranks_and_peers = [(peer.rank.rank, peer) for peer in self.peers if peer.rank is not None]
        return [peer for _, peer in sorted(ranks_and_peers, key=lambda pair: pair[0])]

    @property
    def first(self) -> Peer:
        """Return the peer with rank 0."""
        return self.ranked[0]


def formation(state: State, group: Group) -> Formation:
    """Return the present generation of `group`, with all tasks of the job that were ever reached."""
    tasks = [task for task in state.tasks.values() if task.address and not task.is_spare]
    members = [
        Member(task.key, task.role, task.index, task.node, _copies(state, task), task.counts)
        for task in tasks
        if task.group == group.number and task.key in group.ranks
    ]
    ranks = {rank.task: rank for rank in assign(members, group.ranks)}
    places: dict[str, int] = {}
    for other in state.groups:
        for role in other.roles if other.changes else ():
            places |= places_in(state, role)
    peers = tuple(
        Peer(
            task.key, task.role, task.index, task.address, task.ports, ranks.get(task.key), _copies(state, task),
            task.attempt, state.role(task).restart.limit, place=places.get(task.key, task.index),
        )
        for task in tasks
    )  # fmt: skip
    return Formation(state.id, group.generation, peers, state.restarts)


def places_in(state: State, role: str) -> dict[str, int]:
    """Return the number of each member of a role among its members, without gaps: its index, until members have left."""
    return {member.key: place for place, member in enumerate(state.members_of(role))}


def bracketed(address: str) -> str:
    """Return an address as URLs have it: IPv6 in brackets (RFC 3986, 3.2.2), its zone kept."""
    return f"[{address}]" if ":" in address else address


def _copies(state: State, task: Task) -> int:
    return copies(state.role(task).processes, task.devices)
