"""Rows that nobody uses are evicted when they are as old as is said, whatever the machine's clock is set to meanwhile."""

from __future__ import annotations

import numpy
import pytest

from trainmaster.ps.optimizers import SGD
from trainmaster.ps.shard import IDS, Shard
from trainmaster.ps.specification import Definition, TableSpec, Updates
from trainmaster.ps.tables.clock import Clock

DAY = 86400.0
UNUSED = 100.0  # s


class Machine:
    """A machine whose clock may be set; `steady` goes on whatever it is set to."""

    def __init__(self, wall: float = 1_800_000_000.0) -> None:
        self.wall, self.steady = wall, 5.0

    def run_for(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def clock(self, shard: Shard) -> Clock:
        return Clock(shard.newest_use(), lambda: self.wall, lambda: self.steady)


def shard_of_rows() -> Shard:
    shard = Shard(0, 1)
    shard.define(Definition({}, {"user": TableSpec(2, evict_unused=UNUSED)}, SGD(1.0), Updates()), {})
    return shard


def evicted(shard: Shard, now: float) -> list[int]:
    """Return the ids that are due, and remove them as a server does."""
    ids: list[int] = []
    for arrays in list(shard.due_evictions(now)):
        ids += arrays[IDS + "user"].tolist()
        shard.evict(arrays)
    return sorted(ids)


def pull(shard: Shard, ids: range, now: float) -> None:
    shard.pull([], {IDS + "user": numpy.array(ids)}, now)


@pytest.mark.parametrize("step", [-DAY, DAY])
def test_a_clock_that_is_set_while_a_server_runs_changes_nothing(step: float) -> None:
    machine, shard = Machine(), shard_of_rows()
    clock = machine.clock(shard)
    pull(shard, range(10), clock())
    assert evicted(shard, clock()) == []
    machine.wall += step
    machine.run_for(60)
    pull(shard, range(5), clock())
    machine.run_for(30)
    assert evicted(shard, clock()) == [], "not early"
    machine.run_for(12)
    assert evicted(shard, clock()) == [5, 6, 7, 8, 9], "nor late"
    machine.wall -= step
    machine.run_for(30)
    assert evicted(shard, clock()) == []
    machine.run_for(30)
    assert evicted(shard, clock()) == [0, 1, 2, 3, 4]


def test_rows_of_a_server_that_comes_back_with_an_earlier_clock_have_their_age() -> None:
    machine, former = Machine(), shard_of_rows()
    clock = machine.clock(former)
    pull(former, range(10), clock())
    machine.run_for(60)
    pull(former, range(5), clock())
    shard = shard_of_rows()
    for block in former.tables["user"].blocks():
        shard.tables["user"].load(block)
    machine.wall -= DAY
    clock = machine.clock(shard)
    machine.run_for(30)
    pull(shard, range(3), clock())
    assert evicted(shard, clock()) == []
    machine.run_for(12)
    assert evicted(shard, clock()) == [5, 6, 7, 8, 9]
    machine.run_for(60)
    assert evicted(shard, clock()) == [3, 4]


def test_a_push_by_the_earlier_clock_of_server_0_makes_no_row_older() -> None:
    machine, shard = Machine(), shard_of_rows()
    clock = machine.clock(shard)
    pull(shard, range(10), clock())
    machine.run_for(60)
    pull(shard, range(3), clock())
    shard.tables["user"].push(numpy.arange(2, 5), numpy.ones((3, 2)), 1, clock() - DAY)
    machine.run_for(42)
    assert evicted(shard, clock()) == [5, 6, 7, 8, 9]
