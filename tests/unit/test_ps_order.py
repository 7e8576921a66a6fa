"""One order of pushes: whatever arrives where, twice or never, all servers apply what was accepted, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainmaster.ps.optimizers import SGD
from trainmaster.ps.order import LATE, STALE, UNKNOWN, decide
from trainmaster.ps.shard import BadPush, Draft, LostDraft, Shard
from trainmaster.ps.specification import BadDefinition, Definition, TableSpec, Updates, definition_of, optimizer_of

SERVERS, TASKS = 3, ("a", "b")
NOBODY: dict[str, Any] = {}


def shards(updates: Updates) -> list[Shard]:
    definition = Definition({}, {"table": TableSpec(1)}, SGD(1.0), updates)
    group = [Shard(index, SERVERS) for index in range(SERVERS)]
    for shard in group:
        shard.define(definition, {})
    return group


class World:
    """Servers, of which all but server 0 handle its entries later, and workers, whose pushes stop at any point."""

    def __init__(self, updates: Updates) -> None:
        self.updates, self.shards = updates, shards(updates)
        self.entries: list[dict[str, Any]] = []
        self.steps, self.attempts = dict.fromkeys(TASKS, 0), dict.fromkeys(TASKS, 1)
        self.open: dict[str, Draft] = {}  # that all servers have
        self.accepted: list[Draft] = []

    def draft(self, task: str, behind: int, reaches: int) -> None:
        """Send a draft to the first so many servers, in any case to none in part of its own row."""
        self.steps[task] += 1
        name = (task, self.attempts[task], self.steps[task])
        base = max(0, self.shards[0].version - behind)
        draft = Draft(name, base, {})
        self.open.pop(task, None)
        for shard in self.shards[:reaches]:
            shard.hold(Draft(name, base, arrays_of(name, shard.index)))
        if reaches == SERVERS:
            self.open[task] = draft

    def commit(self, task: str) -> None:
        if task not in self.open:
            return
        draft = self.open[task]
        decision = decide(self.shards[0], draft.name)
        stale = self.updates.tolerance is not None and self.shards[0].version - draft.base > self.updates.tolerance
        is_again = any(draft.name == known.name for known in self.accepted)
        if not is_again:
            assert decision.why == (STALE if stale else "")
            if not stale:
                self.accepted.append(draft)
        else:
            assert decision.why == ""
        self.add(*decision.entries)
        if stale and not is_again:
            del self.open[task]

    def push(self, task: str) -> None:
        self.draft(task, 0, SERVERS)
        self.commit(task)

    def restart(self, task: str) -> None:
        """Begin a new attempt, and let the former one push once more."""
        former = self.open.pop(task, None)
        self.attempts[task] += 1
        self.add({"attempt": [task, self.attempts[task]]})
        late = Draft((task, self.attempts[task] - 1, 10**6), self.shards[0].version, arrays_of(("x", 0, 0), 0))
        self.shards[0].hold(late)
        assert decide(self.shards[0], late.name).why == LATE
        if former is not None and all(former.name != known.name for known in self.accepted):
            assert decide(self.shards[0], former.name).why == LATE

    def job(self) -> None:
        """Begin another job, whose attempts begin anew. A server has come to that entry before it takes its drafts."""
        self.attempts, self.open = dict.fromkeys(TASKS, 1), {}
        self.add({"job": f"job {len(self.entries)}"})
        for index in range(1, SERVERS):
            self.follow(index, len(self.entries))

    def add(self, *entries: dict[str, Any]) -> None:
        for entry in entries:
            entry = {"sequence": self.shards[0].sequence + 1, "time": 0, **entry}
            self.entries.append(entry)
            self.shards[0].handle(entry)

    def follow(self, index: int, count: int) -> None:
        shard = self.shards[index]
        for entry in self.entries[shard.sequence : shard.sequence + count]:
            shard.handle(entry)


def arrays_of(name: tuple[str, int, int], index: int) -> dict[str, Any]:
    """A gradient of -1 for one row that this push alone has on this server."""
    row = numpy.array([SERVERS * (hash_of(name)) + index], numpy.int64)
    return {"ids:table": row, "rows:table": numpy.full((1, 1), -1.0, numpy.float32)}


def hash_of(name: tuple[str, int, int]) -> int:
    return (TASKS.index(name[0]) if name[0] in TASKS else 7) * 10**4 + name[1] * 10**2 + name[2]


STEPS = st.one_of(
    st.tuples(st.just("draft"), st.sampled_from(TASKS), st.integers(0, 3), st.integers(0, SERVERS)),
    st.tuples(st.just("draft"), st.sampled_from(TASKS), st.just(0), st.just(SERVERS)),
    st.tuples(st.just("commit"), st.sampled_from(TASKS)),
    st.tuples(st.just("push"), st.sampled_from(TASKS)),
    st.tuples(st.just("restart"), st.sampled_from(TASKS)),
    st.tuples(st.just("job")),
    st.tuples(st.just("follow"), st.integers(1, SERVERS - 1), st.integers(1, 4)),
)


@settings(max_examples=100, deadline=None)
@example(steps=[("restart", "a"), ("push", "a"), ("job",), ("push", "a")], waits=2, tolerance=None)
@example(steps=[("restart", "a"), ("push", "a"), ("job",), ("push", "b"), ("push", "a")], waits=2, tolerance=None)
@given(steps=st.lists(STEPS, max_size=40), waits=st.integers(1, 3), tolerance=st.none() | st.integers(0, 2))
def test_all_servers_apply_the_accepted_pushes_and_no_other(
    steps: list[Any], waits: int, tolerance: int | None
) -> None:
    world = World(Updates(grads_to_wait=waits, tolerance=tolerance))
    for name, *arguments in steps:
        getattr(world, name)(*arguments)
    for index in range(1, SERVERS):
        world.follow(index, len(world.entries))
    versions = len(world.accepted) // waits
    applied = world.accepted[: versions * waits]
    for shard in world.shards:
        assert (shard.version, shard.applied, shard.sequence) == (versions, len(applied), len(world.entries))
        rows = shard.tables["table"]
        assert len(rows) == len(applied)
        for draft in applied:
            (row,) = arrays_of(draft.name, shard.index)["ids:table"]
            before = shard_row(shard.index, row)
            assert rows.pull([row])[0, 0] == pytest.approx(before + 1 / waits, abs=1e-5)
        held = [arrays_of(draft.name, shard.index)["ids:table"] for draft in world.accepted[versions * waits :]]
        assert sorted(draft.arrays["ids:table"] for draft in shard.waiting()) == sorted(held)
        assert len(shard.drafts) <= len(held) + 20


def shard_row(index: int, row: int) -> float:
    fresh = Definition({}, {"table": TableSpec(1)}, SGD(1.0), Updates()).make_table("table")
    return float(fresh.pull([row])[0, 0])


def test_a_push_that_no_server_has_is_unknown_and_its_entry_is_an_error() -> None:
    shard = shards(Updates())[1]
    assert decide(shard, ("a", 1, 1)).why == UNKNOWN
    with pytest.raises(LostDraft, match="server 1 of 3 does not have push 1 of a, attempt 1"):
        shard.handle({"sequence": 1, "time": 0, "version": 1, "of": [["a", 1, 1]], "staleness": 0})
    with pytest.raises(AssertionError, match="entry 5 came after entry 0"):
        shard.handle({"sequence": 5, "time": 0, "drop": ["a", 1, 1]})


def test_a_push_of_a_later_version_than_there_is_is_refused() -> None:
    shard = shards(Updates())[0]
    with pytest.raises(BadPush, match="a push of version 3, where the newest is 0"):
        shard.hold(Draft(("a", 1, 1), 3, {}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": {"name": "Adamm"}}, "no optimizer: {'name': 'Adamm'}; the names are SGD, Adam, Adagrad, FTRL"),
        ({"optimizer": {"name": "Adam", "rate": 1}}, "optimizer Adam has no rate; it has learning_rate, beta_1"),
        ({"optimizer": {"name": "Adam", "beta_1": 2}}, "beta_1 of Adam must be at least 0 and below 1, and is 2"),
        ({"updates": {"grads_to_wait": 0}}, "grads_to_wait must be at least 1, and is 0"),
        ({"updates": {"tolerance": -1}}, "the tolerance must not be negative, and is -1"),
        ({"updates": {"keep_checkpoints": 1.5}}, "keep_checkpoints must be a whole number, and is 1.5"),
        ({"optimizer": {"name": "SGD", "learning_rate": 10**400}}, "learning_rate of optimizer SGD must be a number"),
        (
            {"tables": {"t": {"dimension": 2.5, "initializer": {"name": "Uniform"}}}},
            "dimension must be a whole number, and is 2.5",
        ),
        (
            {"tables": {"t": {"dimension": 2, "initializer": {"name": "Constant", "value": "x"}}}},
            "value of initializer Constant must be a number, and is 'x'",
        ),
        ({"updates": {"waits": 1}}, "no definition of tables and parameters"),
        ({"dense": {"w": "shape"}}, "no definition of tables and parameters"),
        (
            {"tables": {"t": {"dimension": 0, "initializer": {"name": "Uniform"}}}},
            "a row of table 't' needs at least 1",
        ),
    ],
)
def test_a_bad_definition_is_refused(changes: dict[str, Any], message: str) -> None:
    plain = Definition({"w": (2,)}, {"t": TableSpec(4)}, SGD(), Updates()).to_plain()
    assert definition_of(plain).to_plain() == plain
    with pytest.raises(BadDefinition) as raised:
        definition_of({**plain, **changes})
    assert message in str(raised.value)


def test_an_optimizer_is_one_already_or_made_by_name() -> None:
    assert optimizer_of(SGD(0.5)) == SGD(0.5)
    assert optimizer_of({"name": "SGD", "momentum": 0.9}) == SGD(momentum=0.9)
