"""Ranks are a permutation of the members that count, neighbours stay together, and nobody who stays is moved about."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core.machine.ranks import Member, Rank, assign, copies


def worker(index: int, host: str = "a", processes: int = 1) -> Member:
    return Member(f"worker:{index}", "worker", index, host, processes)


def order(ranks: list[Rank]) -> list[str]:
    return [rank.task for rank in ranks]


def remembered(ranks: list[Rank]) -> dict[str, int]:
    return {rank.task: rank.group_rank for rank in ranks}


HOSTS = st.sampled_from(["a", "b", "c", "d"])
ROLES = st.lists(st.sampled_from(["worker", "chief", "ps", "evaluator", "actor"]), min_size=1, max_size=4, unique=True)


@st.composite
def memberships(draw: st.DrawFn) -> list[Member]:
    """Roles in any order of declaration, each with tasks 0, 1, ..., of which some are not there."""
    members = []
    for role in draw(ROLES):
        for index in sorted(draw(st.sets(st.integers(0, 5), max_size=6))):
            host, processes = draw(HOSTS), draw(st.integers(1, 4))
            counts = role not in ("ps", "evaluator")
            members.append(Member(f"{role}:{index}", role, index, host, processes, counts))
    return members


@given(memberships(), st.none() | memberships())
def test_ranks_are_a_permutation_of_the_copies_that_count(members: list[Member], before: list[Member] | None) -> None:
    ranks = assign(members, remembered(assign(before)) if before else None)
    by_task = {member.task: member for member in members}
    assert sorted(order(ranks)) == sorted(member.task for member in members if member.counts)
    assert [rank.group_rank for rank in ranks] == list(range(len(ranks)))
    assert [rank.rank + i for rank in ranks for i in range(rank.local_world_size)] == list(
        range(sum(member.processes for member in members if member.counts))
    )
    for rank in ranks:
        member = by_task[rank.task]
        same = [other for other in ranks if by_task[other.task].role == member.role]
        assert rank.local_world_size == member.processes
        assert rank.world_size == sum(other.local_world_size for other in ranks)
        assert rank.group_world_size == len(ranks)
        assert rank.role_world_size == sum(other.local_world_size for other in same)
        assert rank.role_rank == sum(other.local_world_size for other in same[: same.index(rank)])


@given(memberships())
def test_at_first_the_containers_of_a_host_are_adjacent_and_else_in_order(members: list[Member]) -> None:
    ranks = assign(members)
    by_task = {member.task: member for member in members}
    ordered = [by_task[rank.task] for rank in ranks]
    hosts = [member.host for member in ordered]
    assert sum(here != before for here, before in zip(hosts[1:], hosts, strict=False)) == max(0, len(set(hosts)) - 1)
    for host in set(hosts):
        there = [member for member in ordered if member.host == host]
        roles = [member.role for member in members]
        expected = sorted(there, key=lambda m: (m.role != "chief", roles.index(m.role), m.index))
        assert there == expected


@given(memberships(), memberships())
def test_survivors_keep_their_relative_order(before: list[Member], after: list[Member]) -> None:
    old, new = order(assign(before)), order(assign(after, remembered(assign(before))))
    assert [task for task in new if task in old] == [task for task in old if task in new]


@given(memberships(), memberships())
def test_nobody_moves_who_need_not(before: list[Member], after: list[Member]) -> None:
    """With as many newcomers as leavers, each survivor has the very rank it had, and the newcomers those of the
    leavers."""
    old, new = order(assign(before)), order(assign(after, remembered(assign(before))))
    if len(old) == len(new):
        assert {task: new.index(task) for task in new if task in old} == {
            task: old.index(task) for task in old if task in new
        }
    if set(old) == set(new):
        assert new == old


@given(memberships(), memberships(), st.randoms(use_true_random=False))
def test_the_outcome_is_its_own_successor_whatever_the_hosts(before: list[Member], after: list[Member], chance) -> None:
    once = assign(after, remembered(assign(before)))
    moved = [Member(m.task, m.role, m.index, chance.choice("abcd"), m.processes, m.counts) for m in after]
    assert assign(moved, remembered(once)) == once


def test_the_chief_is_first_wherever_it_is_declared() -> None:
    assert order(assign([worker(0), worker(1), Member("chief:0", "chief", 0, "b")])) == [
        "chief:0",
        "worker:0",
        "worker:1",
    ]


def test_tasks_of_one_host_are_neighbours_in_order_of_the_first_of_them() -> None:
    assert order(assign([worker(0, "b"), worker(1, "a"), worker(2, "b"), worker(3, "a")])) == [
        "worker:0",
        "worker:2",
        "worker:1",
        "worker:3",
    ]


def test_copies_are_numbered_through() -> None:
    first, second = assign([worker(0, processes=2), worker(1, "b", processes=3)])
    assert (first.rank, first.local_world_size, second.rank, second.local_world_size) == (0, 2, 2, 3)
    assert first.world_size == second.world_size == 5


def test_a_newcomer_takes_the_place_of_who_left_and_places_left_over_are_closed() -> None:
    previous = {"worker:0": 0, "worker:1": 1, "worker:2": 2}
    assert order(assign([worker(0), worker(2), worker(3)], previous)) == ["worker:0", "worker:3", "worker:2"]
    assert order(assign([worker(2), worker(0)], previous)) == ["worker:0", "worker:2"]
    assert order(assign([worker(i) for i in range(5)], previous)) == [f"worker:{i}" for i in range(5)]


def test_a_task_that_comes_back_on_another_host_has_its_old_rank() -> None:
    old = assign([worker(0, "a"), worker(1, "a"), worker(2, "b")])
    assert order(assign([worker(0, "b"), worker(1, "a"), worker(2, "b")], remembered(old))) == order(old)


def test_copies_per_gpu_are_as_many_as_devices_and_at_least_one() -> None:
    assert [copies("per-gpu", 4), copies("per-gpu", 0), copies(3, 8)] == [4, 1, 3]
