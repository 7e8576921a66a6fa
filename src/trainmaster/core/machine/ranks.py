"""The ranks of the members of a generation.

Members are containers; each runs one or more copies of the program. Containers are put in one order, and every rank
follows from it:

    container          copies    GROUP_RANK    RANK       LOCAL_RANK
    chief:0   host a     2           0          0, 1        0, 1
    worker:1  host a     2           1          2, 3        0, 1
    worker:0  host b     1           2          4           0

At the first formation the order is that of the roles (chief or master first) and of the index. The other containers of
a host follow its first one directly, so that neighbours in a ring share a machine where they can. Afterwards
ranks follow the previous ones: survivors keep their relative order, a newcomer takes the place of a member that left,
further newcomers come last, and empty places are closed up. A task that comes back, on whatever host, is a survivor.
`assign` with its own ranks as `previous` returns the same ranks.

Only members that count have ranks; those that serve or watch the others have none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs

from trainmaster.core.plain import Plain
from trainmaster.core.spec.shapes import PER_GPU

LEADING = ("chief", "master")  # roles whose task is rank 0 wherever there is one


@attrs.frozen(slots=True, eq=False, repr=False)
class Member(Plain):
    """A container of the generation to be formed. `processes`: copies of the program in it."""

    task: str
    role: str
    index: int
    host: str
    processes: int = 1
    counts: bool = True


@attrs.frozen(slots=True, eq=False, repr=False)
class Rank(Plain):
    """The numbers of one container. `rank` and `role_rank` are those of its first copy; the others follow on."""

    task: str
    group_rank: int  # of the container
    group_world_size: int  # containers
    rank: int
    world_size: int  # copies
    role_rank: int  # among the copies of the role
    role_world_size: int
    local_world_size: int  # copies in the container; their LOCAL_RANKs begin with 0


def assign(members: Sequence[Member], previous: Mapping[str, int] | None = None) -> list[Rank]:
    """Return the ranks of the members that count, in order of rank.

    `members`: roles in the order of their declaration. `previous`: the `group_rank` of each task of the last
    generation; None or empty at the first formation.
    """
    counting = _by_role([member for member in members if member.counts])
    ordered = _refilled(counting, previous) if previous else _side_by_side(counting)
    copies = sum(member.processes for member in ordered)
    of_role: Counter[str] = Counter()
    for member in ordered:
        of_role[member.role] += member.processes
    ranks: list[Rank] = []
    first, first_of_role = 0, Counter[str]()
    for place, member in enumerate(ordered):
        role_rank = first_of_role[member.role]
        ranks.append(
            Rank(member.task, place, len(ordered), first, copies, role_rank, of_role[member.role], member.processes)
        )
        first += member.processes
        first_of_role[member.role] += member.processes
    return ranks


def copies(processes: int | str, devices: int) -> int:
    """Return the number of copies of the program that a container runs; `per-gpu` is one where it has no device."""
    return max(1, devices) if processes == PER_GPU else int(processes)


def _by_role(members: Iterable[Member]) -> list[Member]:
    """Sort leading roles first, the others as declared; by index within each."""
    declared: dict[str, int] = {}
    for member in members:
        declared.setdefault(member.role, len(declared))
    return sorted(members, key=lambda member: (member.role not in LEADING, declared[member.role], member.index))


def _side_by_side(members: Sequence[Member]) -> list[Member]:
    hosts: dict[str, list[Member]] = {}
    for member in members:
        hosts.setdefault(member.host, []).append(member)
    return [member for neighbours in hosts.values() for member in neighbours]


def _refilled(members: Sequence[Member], previous: Mapping[str, int]) -> list[Member]:
    present = {member.task: member for member in members}
    fresh = iter(_side_by_side([member for member in members if member.task not in previous]))
    ordered = [present.get(task) or next(fresh, None) for task in sorted(previous, key=lambda task: previous[task])]
    return [member for member in [*ordered, *fresh] if member is not None]
