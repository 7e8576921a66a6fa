"""No shard is lost and none counted twice, whatever comes late, doubled, or from the dead."""

import json
import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from leasing import Shards

from trainmaster.core.input.audit import audit
from trainmaster.core.input.ranges import RangeSet
from trainmaster.core.input.shards import LINES, ROWS, WHOLE, Options, ShardTable

FILES = [("a.csv", 25), ("b.csv.gz", 7), ("empty", 0), ("c.parquet", 900, 3), ("d.csv", 10)]
A, B = ("worker:0", 1), ("worker:1", 1)


@dataclass
class Logged:
    n: int
    type: str
    data: dict[str, Any] = field(default_factory=dict)


def small(**options: Any) -> ShardTable:
    return ShardTable.make(FILES, Options(size=10, **options), name="train")


def plain(count: int, epochs: int = 1) -> ShardTable:
    return ShardTable.make([("f", count * 10)], Options(size=10, epochs=epochs), name="train")


def numbers(shards: Any) -> list[int]:
    return [shard.number for shard in shards]


# -- cutting --


def test_files_are_cut_by_bytes_row_groups_or_not_at_all() -> None:
    table = small()
    assert [table.shard(n)[1:] for n in range(table.total)] == [
        ("a.csv", LINES, 0, 10),
        ("a.csv", LINES, 10, 20),
        ("a.csv", LINES, 20, 25),
        ("b.csv.gz", WHOLE, 0, 1),
        ("c.parquet", ROWS, 0, 1),
        ("c.parquet", ROWS, 1, 2),
        ("c.parquet", ROWS, 2, 3),
        ("d.csv", LINES, 0, 10),
    ]


@given(st.lists(st.integers(0, 10**13), max_size=20))
def test_the_size_chosen_cuts_any_input_completely_into_a_bearable_number(sizes: list[int]) -> None:
    table = ShardTable.make([(f"f{i}", size) for i, size in enumerate(sizes)])
    assert table.total <= sum(sizes) / 16384 + len(sizes)
    for at, size in enumerate(sizes):
        first, behind = table._firsts[at], table._firsts[at + 1]
        assert (first == behind) == (size == 0)
        if size:
            assert table.shard(first).start == 0
            assert table.shard(behind - 1).end == size


@given(st.integers(1, 60), st.integers(0, 5))
def test_each_epoch_is_the_whole_input_in_an_order_of_its_own(count: int, seed: int) -> None:
    options = Options(size=10, epochs=3, shuffle=True, seed=seed)
    one, two = (ShardTable.make([("f", count * 10)], options) for _ in range(2))
    orders = [[one.index(n) for n in range(epoch * count, (epoch + 1) * count)] for epoch in range(3)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert [two.index(n) for n in reversed(range(one.total))] == [
        i for order in reversed(orders) for i in reversed(order)
    ]
    if count > 20:
        assert orders[0] != orders[1] != orders[2]


def test_a_shuffled_order_is_the_same_on_every_python() -> None:
    table = ShardTable.make([("f", 80)], Options(size=10, epochs=2, shuffle=True, seed=7))
    assert [table.index(n) for n in range(16)] == [3, 2, 1, 7, 6, 0, 4, 5, 7, 4, 3, 5, 2, 6, 1, 0]


# -- leasing and counting --


def test_done_is_counted_once_and_only_for_the_holder() -> None:
    table = Shards(plain(8))
    assert numbers(table.lease(A, 4)) == [0, 1, 2, 3]
    assert table.report(B, [[0, 4]]) is None
    payload = table.report(A, [[0, 2]], [5, 6])
    assert payload == {
        "input": "train",
        "ranges": [[0, 2]],
        "task": "worker:0",
        "attempt": 1,
        "records": [5, 6],
        "mark": 1,
    }
    assert table.report(A, [[0, 2]], [5, 6]) is None
    again = table.report(A, [[0, 3]], [5, 6, 7])
    assert again is not None
    assert again["ranges"] == [[2, 3]]
    assert again["records"] == [7]
    assert table.figures == {"done": 3, "held": 1, "free": 4, "total": 8, "aside": 0}


def test_what_a_written_off_attempt_held_goes_to_others_and_its_late_report_counts_nothing() -> None:
    table = Shards(plain(8))
    table.lease(A, 4)
    table.write_off(A)
    assert table.figures["free"] == 8
    assert numbers(table.lease(B, 4)) == [0, 1, 2, 3]
    assert table.report(A, [[0, 4]]) is None
    assert table.lease(A, 1) == []
    assert table.hold(A, [[0, 1]]) == [[0, 1]]
    assert numbers(table.lease(("worker:0", 2), 1)) == [4]


def test_a_newer_attempt_of_a_task_ends_the_leases_of_the_older() -> None:
    table = Shards(plain(8))
    table.lease(A, 4)
    table.write_off(A)
    assert numbers(table.lease(("worker:0", 2), 2)) == [0, 1]
    assert table.report(A, [[0, 1]]) is None
    assert table.lease(A, 1) == []


def test_near_the_end_leases_shrink_so_that_nobody_takes_all_that_is_left() -> None:
    table = Shards(plain(64))
    table.lease(B, 1)
    table.give_back(B, [[0, 1]])
    taken = []
    while shards := table.lease(A, 10):
        taken.append(len(shards))
    assert taken == [10, 10, 10, 8, 6, 5, 3, 3, 2, 1, 1, 1, 1, 1, 1, 1]


def test_a_restarted_master_leases_nothing_that_an_agent_may_still_hold() -> None:
    table = Shards(plain(16))
    table.lease(A, 4)
    table.lease(B, 4)
    event = table.report(A, [[0, 1]], [3])
    assert event is not None
    after = Shards(plain(16), [A[0], B[0]])
    after.apply("shards-done", event)
    assert after.lease(A, 1) == []
    assert after.hold(A, [[0, 4]]) == [[0, 1]]  # its report had been counted
    assert after.lease(A, 1) == []
    assert after.report(B, [[4, 5]], [9]) is None  # it has not said what it holds
    assert after.hold(B, [[4, 8]]) == []
    assert after.report(B, [[4, 5]], [9]) is not None
    assert numbers(after.lease(A, 2)) == [8, 9]


def test_no_master_says_that_all_shards_are_taken_before_it_has_heard_of_every_task() -> None:
    shards = Shards(plain(4), expected=("worker:0", "worker:1"))
    assert not shards.answer(shards.lease(("worker:0", 1), 1))["taken"]
    shards.hold(("worker:0", 1), [])
    shards.hold(("worker:1", 1), [])
    while leased := shards.lease(("worker:0", 1), 100):
        assert "taken" not in shards.answer(leased)
    assert shards.answer([])["taken"]
    shards.write_off(("worker:0", 1))
    assert not shards.answer([])["taken"]


def test_a_restarted_master_waits_for_no_attempt_that_an_agent_never_heard_of() -> None:
    """The first attempt ended and the second was ordered; the master died before its agent was told."""
    table = Shards(plain(16), [A[0], B[0]])
    table.barred[A[0]] = A[1]
    assert table.hold(A, []) == []
    assert table.hold(B, []) == []
    assert numbers(table.lease(B, 1)) == [0]
    assert numbers(table.lease(("worker:0", 2), 1)) == [1]


def test_an_answer_lost_on_the_way_is_leased_again_once_the_agent_says_what_it_has() -> None:
    table = Shards(plain(16))
    table.lease(A, 4)
    table.lease(A, 4)
    assert table.hold(A, [[0, 4]]) == []
    assert numbers(table.lease(B, 3)) == [4, 5, 6]


def test_records_are_fixed_by_the_first_report_and_a_difference_is_named() -> None:
    table = Shards(plain(4, epochs=2))
    table.lease(A, 2)
    table.report(A, [[0, 2]], [10, None])
    for _ in range(8):
        table.lease(A, 4)
    payload = table.report(A, [[4, 6]], [11, 12])
    assert payload is not None
    assert payload["differing"] == [[4, 10, 11]]


def test_a_restore_takes_back_what_was_done_since_the_set() -> None:
    table = Shards(plain(16))
    table.lease(A, 8)
    table.report(A, [[0, 2]])
    at = table.table.mark
    table.report(A, [[2, 3]])
    table.report(A, [[4, 5]])
    assert table.table.marks(at) == [[0, 2]]
    payload = table.table.restore(table.table.marks(at), "7")
    table.apply("shards-returned", payload)
    assert payload == {"input": "train", "ranges": [[2, 3], [4, 5]], "set": "7", "mark": 5}
    assert table.table.marks() == [[0, 2]]
    assert table.table.marks(3) == [[0, 3], [4, 5]]
    assert numbers(table.lease(B, 2)) == [2, 4]


def test_what_the_table_said_of_a_moment_it_has_forgotten_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster.core.input.shards._JOURNAL", 8)
    table, moments = Shards(plain(40)), {}
    for _ in range(20):
        table.lease(A, 2)
    while held := list(table.leases._input("train").leased["worker:0"]):
        table.report(A, [[held[0], held[0] + 1]])
        moments[table.table.mark] = table.table.marks()
    for at, then in moments.items():
        assert table.table.marks(at) in (then, [])
    assert table.table.marks(table.table.mark - 3) == moments[table.table.mark - 3]


def test_events_are_applied_once_and_a_missing_one_is_noticed() -> None:
    table = Shards(plain(8))
    table.lease(A, 4)
    one, two = table.report(A, [[0, 1]]), table.report(A, [[1, 2]])
    assert one is not None
    assert two is not None
    table.apply("shards-done", one)
    assert table.figures["done"] == 2
    other = plain(8)
    with pytest.raises(ValueError, match="missing"):
        other.apply("shards-done", two)
    other.apply("shards-done", {**one, "input": "another"})
    other.apply("unheard-of", {})
    assert other.mark == 0


@pytest.mark.parametrize(
    ("ranges", "records"),
    [("x", None), ([[3, 1]], None), ([[0, 2]], [1]), ([[0, 1]], ["1"]), ([[0, 2], [0, 2]], [1, 1])],
)
def test_a_garbled_report_is_refused_and_changes_nothing(ranges: Any, records: Any) -> None:
    table = Shards(plain(8))
    table.lease(A, 4)
    with pytest.raises(ValueError, match=r"range|count"):
        table.report(A, ranges, records)
    assert table.figures["done"] == 0


def test_an_input_of_nothing_is_finished() -> None:
    table = Shards(ShardTable.make([("empty", 0)], name="train"))
    assert table.table.finished
    assert table.lease(A, 3) == []
    assert table.answer([])["end"] is True


def test_the_answer_names_each_path_once() -> None:
    table = small()
    answer = table.answer([table.shard(n) for n in (0, 1, 3)])
    assert answer["files"] == [["a.csv", "lines"], ["b.csv.gz", "whole"]]
    assert answer["shards"] == [[0, 0, 0, 10], [1, 0, 10, 20], [3, 1, 0, 1]]
    assert json.loads(json.dumps(answer)) == answer


@pytest.mark.full
def test_a_million_shards_take_less_than_50_mib() -> None:
    tracemalloc.start()
    try:
        files = [(f"hdfs:///data/part-{i:05}", 1000 * 2**20) for i in range(1000)]
        table = Shards(ShardTable.make(files, Options(size=2**20, shuffle=True)))
        for held in (A, B):
            table.lease(held, 20_000)
        for number in range(0, 40_000, 2):  # as scattered as can be
            table.report(A if number < 20_000 else B, [[number, number + 1]], [7])
        assert table.table.total == 1_000_000
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()


# -- the audit --


def test_the_audit_finds_what_was_counted_twice_skipped_or_barred() -> None:
    def done(n: int, ranges: Any, attempt: int = 1, records: Any = None) -> Logged:
        who = {"task": "w:0", "attempt": attempt}
        return Logged(n, "shards-done", {"input": "train", "ranges": ranges, "records": records, "mark": n, **who})

    def saved(n: int, ranges: Any) -> Logged:
        return Logged(n, "checkpoint-saved", {"set": 1, "marks": {"train": ranges}})

    def returned(n: int, ranges: Any, which: int = 1) -> Logged:
        return Logged(n, "shards-returned", {"input": "train", "ranges": ranges, "set": which})

    def faults(*events: Logged) -> list[str]:
        return [fault for found in audit(events, {"train": plain(4)}).inputs for fault in found.faults]

    whole = audit([done(1, [[0, 4]], records=[1, 2, 3, 4])], {"train": plain(4)})
    assert whole.ok
    assert whole.complete
    assert whole.inputs[0].records == 10
    assert "4 of 4 shards counted exactly once, 10 records" in whole.lines()[0]
    assert not audit([done(1, [[0, 3]])], {"train": plain(4)}).complete
    assert "counted a second time" in faults(done(1, [[0, 2]]), done(2, [[1, 3]]))[0]
    assert "not one of the 4" in faults(done(1, [[3, 5]]))[0]
    off = Logged(2, "attempt-written-off", {"task": "w:0", "attempt": 1})
    assert "written off" in faults(done(1, [[0, 2]]), off, done(3, [[2, 3]]))[0]
    assert not faults(done(1, [[0, 2]]), off, done(3, [[2, 3]], attempt=2))
    assert not faults(
        done(1, [[0, 1]]), saved(2, [[0, 1]]), done(3, [[1, 3]]), returned(4, [[1, 3]]), done(5, [[1, 4]])
    )
    assert "had not seen" in faults(done(1, [[0, 1]]), saved(2, [[0, 1]]), done(3, [[1, 3]]), returned(4, [[1, 2]]))[0]
    assert "had not been counted" in faults(saved(1, []), returned(2, [[1, 2]]))[0]
    assert "never recorded" in faults(done(1, [[0, 1]]), returned(2, [[0, 1]], which=9))[0]
    changed = audit([done(1, [[0, 1], [4, 5]], records=[8, 9])], {"train": plain(4, epochs=2)})
    assert "8 records at first and 9 now" in changed.inputs[0].faults[0]


# -- any order of faults --

COUNT, EPOCHS = 12, 2


@dataclass
class Agent:
    """An attempt's agent, as the world knows it: what it holds, what it has not had acknowledged, what it ever reported."""

    holder: tuple[str, int]
    has: set[int] = field(default_factory=set)
    unacked: set[int] = field(default_factory=set)
    sent: list[list[list[int]]] = field(default_factory=list)
    barred: bool = False


class AnyOrder(RuleBasedStateMachine):
    """The world counts for itself: `line` is what counts along the restored sets, with how often each shard was counted on it."""

    @initialize(shuffle=st.booleans())
    def begin(self, shuffle: bool) -> None:
        self.options = Options(size=10, epochs=EPOCHS, shuffle=shuffle, seed=3)
        self.shards = Shards(self.fresh())
        self.log: list[Logged] = []
        self.agents = [Agent((f"worker:{i}", 1)) for i in range(3)]
        self.gone: list[Agent] = []
        self.counted: dict[int, int] = {}
        self.sets: list[tuple[str, list[list[int]]]] = []
        self.moments: dict[int, set[int]] = {0: set()}  # mark -> what was done then

    @property
    def table(self) -> ShardTable:
        return self.shards.table

    def fresh(self) -> ShardTable:
        return ShardTable.make([("f", COUNT * 10)], self.options, name="train")

    def append(self, kind: str, data: dict[str, Any]) -> None:
        self.log.append(Logged(len(self.log) + 1, kind, json.loads(json.dumps(data))))

    def report(self, agent: Agent, ranges: list[list[int]]) -> None:
        records = [self.table.index(n) for a, b in ranges for n in range(a, b)]
        payload = self.shards.report(agent.holder, ranges, records)
        if payload is None:
            return
        assert not agent.barred, "a barred attempt counted"
        assert payload["records"] == [self.table.index(n) for n in RangeSet.from_json(payload["ranges"])]
        self.append("shards-done", payload)
        for n in RangeSet.from_json(payload["ranges"]):
            self.counted[n] = self.counted.get(n, 0) + 1

    @rule(which=st.integers(0, 2), want=st.integers(1, 9), lost=st.booleans())
    def lease(self, which: int, want: int, lost: bool) -> None:
        agent = self.agents[which]
        leased = {shard.number for shard in self.shards.lease(agent.holder, want)}
        others = set().union(*(other.has | other.unacked for other in self.agents if other is not agent))
        assert not leased & others, "leased to two living agents"
        assert not leased & set(self.counted), "leased again what is done"
        if lost:  # the connection broke; on the next one the agent says what it has
            self.reconnect(agent)
        else:
            agent.has |= leased

    def reconnect(self, agent: Agent) -> None:
        dropped = set(
            RangeSet.from_json(self.shards.hold(agent.holder, RangeSet.of(agent.has | agent.unacked).to_json()))
        )
        agent.has -= dropped
        agent.unacked -= dropped

    @rule(which=st.integers(0, 2), pick=st.integers(1, 6), acked=st.booleans())
    def read(self, which: int, pick: int, acked: bool) -> None:
        agent = self.agents[which]
        agent.unacked |= set(sorted(agent.has)[:pick])
        agent.has -= agent.unacked
        ranges = RangeSet.of(sorted(agent.unacked)).to_json()
        if ranges:
            agent.sent.append(ranges)
            self.report(agent, ranges)
            agent.unacked = set() if acked else agent.unacked

    @rule(which=st.integers(0, 2), data=st.data())
    def report_again(self, which: int, data: st.DataObject) -> None:
        agent = self.agents[which]
        if agent.sent:
            ranges = data.draw(st.sampled_from(agent.sent))
            if not set(RangeSet.from_json(ranges)) & agent.has:  # a restore may have leased it to this agent anew
                self.report(agent, ranges)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def late_report_of_the_dead(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(self.gone))
        ranges = RangeSet.of(sorted(agent.has | agent.unacked)).to_json()
        before = dict(self.counted)
        for told in [*agent.sent, ranges]:
            self.report(agent, told)
        assert self.counted == before

    @rule(which=st.integers(0, 2))
    def write_off(self, which: int) -> None:
        agent = self.agents[which]
        task, attempt = agent.holder
        self.append("attempt-written-off", {"task": task, "attempt": attempt})
        self.shards.write_off(agent.holder)
        agent.barred = True
        self.gone.append(agent)
        self.agents[which] = Agent((task, attempt + 1))

    @rule(which=st.integers(0, 2))
    def give_back(self, which: int) -> None:
        agent = self.agents[which]
        self.shards.give_back(agent.holder, RangeSet.of(sorted(agent.has)).to_json())
        agent.has.clear()

    @rule(from_snapshot=st.booleans(), order=st.permutations([0, 1, 2]), known=st.integers(0, 3))
    def master_restarts(self, from_snapshot: bool, order: list[int], known: int) -> None:
        old = self.table
        table = ShardTable.from_snapshot(json.loads(json.dumps(old.snapshot()))) if from_snapshot else self.fresh()
        for event in self.log:
            table.apply(event.type, event.data)
        assert table.snapshot() == old.snapshot()
        barred = self.shards.barred
        self.shards = Shards(table, [agent.holder[0] for agent in self.agents])
        self.shards.barred = barred
        for which in order[:known]:  # the others come back later, or never
            self.reconnect(self.agents[which])

    @rule(which=st.integers(0, 2))
    def reconnects(self, which: int) -> None:
        self.reconnect(self.agents[which])

    @rule(age=st.integers(0, 5))
    def save(self, age: int) -> None:
        at = sorted(self.moments)[max(0, len(self.moments) - 1 - age)]
        name, marks = str(len(self.sets)), self.table.marks(at)
        assert set(RangeSet.from_json(marks)) == self.moments[at]
        self.sets.append((name, marks))
        self.append("checkpoint-saved", {"set": name, "marks": {"train": marks}})

    @precondition(lambda self: self.sets)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        name, marks = data.draw(st.sampled_from(self.sets))
        for which in range(3):
            self.write_off(which)
        payload = self.table.restore(marks, name)
        self.shards.apply("shards-returned", payload)
        self.append("shards-returned", payload)
        for n in RangeSet.from_json(payload["ranges"]):
            self.counted[n] -= 1
            assert self.counted.pop(n) == 0
        assert set(self.counted) <= set(RangeSet.from_json(marks))

    @invariant()
    def each_shard_is_in_one_place_and_counted_once(self) -> None:
        if not hasattr(self, "shards"):
            return
        assert all(times == 1 for times in self.counted.values())
        done = set(RangeSet.from_json(self.table.marks()))
        assert done == set(self.counted)
        free, held = self.shards.leases._input("train")
        places = [done, set(free), *map(set, held.values())]
        assert sum(map(len, places)) == COUNT * EPOCHS
        assert set().union(*places) == set(range(COUNT * EPOCHS))
        self.moments[self.table.mark] = done

    def teardown(self) -> None:
        if not hasattr(self, "shards"):
            return
        for which in (1, 2):
            self.write_off(which)
        last = self.agents[0]
        self.reconnect(last)
        for _ in range(1000):  # once faults cease, one reader finishes
            if self.table.finished:
                break
            last.has |= {shard.number for shard in self.shards.lease(last.holder, 9)}
            self.report(last, RangeSet.of(sorted(last.has | last.unacked)).to_json())
            last.has, last.unacked = set(), set()
        verdict = audit(self.log, {"train": self.fresh()})
        assert verdict.complete, verdict.lines()
        assert verdict.inputs[0].epochs == (sum(range(COUNT)),) * EPOCHS


AnyOrder.TestCase.settings = settings(stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase


def test_the_audit_knows_the_set_that_an_earlier_job_left() -> None:
    """This job's workers begin from it, and go back to it where they fail before a set of their own."""
    events = [
        Logged(1, "inputs-listed", {"listings": {}, "checkpoint": {"set": 7, "marks": {}}}),
        Logged(2, "shards-done", {"input": "train", "ranges": [[0, 2]], "task": "w:0", "attempt": 1, "mark": 1}),
        Logged(3, "shards-returned", {"input": "train", "ranges": [[0, 2]], "set": 7, "mark": 2}),
        Logged(4, "shards-done", {"input": "train", "ranges": [[0, 4]], "task": "w:0", "attempt": 2, "mark": 3}),
    ]
    found = audit(events, {"train": plain(4)})
    assert found.complete, found.lines()
    assert found.inputs[0].restored == ("7",)


def test_the_audit_knows_what_was_lost_with_members() -> None:
    """The state began anew: all that only members had is returned, or it is a fault; what a checkpoint set had seen stays."""
    done = {"input": "train", "task": "w:0", "attempt": 1}
    events = [
        Logged(1, "shards-done", {**done, "ranges": [[0, 2]], "mark": 1, "kept_by": "members"}),
        Logged(2, "checkpoint-saved", {"set": 7, "marks": {"train": [[0, 2]]}}),
        Logged(3, "shards-done", {**done, "ranges": [[2, 4]], "mark": 2, "kept_by": "members"}),
    ]
    table = plain(4)
    for event in events[::2]:
        table.apply("shards-done", event.data)
    lost = table.lose_members("", [[0, 2]], 7)
    assert lost["ranges"] == [[2, 4]]
    table.apply("shards-returned", lost)
    assert table.remaining().to_json() == [[2, 4]]
    assert table.lose_members("", [], None)["ranges"] == [[0, 2]]
    found = audit([*events, Logged(4, "shards-returned", lost)], {"train": plain(4)})
    assert not found.inputs[0].faults
    assert found.inputs[0].taken_back == 2
    too_few = audit([*events, Logged(4, "shards-returned", {**lost, "ranges": [[2, 3]]})], {"train": plain(4)})
    assert "set 7 had not seen shards [[3, 4]], and they still count" in too_few.inputs[0].faults[0]


def test_the_audit_knows_what_a_training_went_on_without() -> None:
    """A round began with the state of a step before the newest: what that step had read is returned, or it is a fault."""

    def done(number: int, mark: int) -> dict[str, Any]:
        row = {"input": "train", "task": "w:0", "attempt": 1, "mark": mark, "kept_by": "members"}
        return {**row, "ranges": [[number, number + 1]], "states": [["w/elastic", 1, mark, [[number, number + 1]]]]}

    begun = {"training": "w/elastic", "round": 2, "step": 1, "lost": False, "set": None}
    events = [
        Logged(1, "shards-done", done(0, 1)),
        Logged(2, "shards-done", done(1, 2)),
        Logged(3, "state-begun", begun),
    ]
    table = plain(2)
    for event in events[:2]:
        table.apply("shards-done", event.data)
    table = ShardTable.from_snapshot(table.snapshot())
    lacking = table.go_back("w/elastic", 1)
    assert lacking["ranges"] == [[1, 2]]
    again = Logged(5, "shards-done", done(1, 4))
    found = audit([*events, Logged(4, "shards-returned", lacking), again], {"train": plain(2)})
    assert found.complete, found.lines()
    assert "1 shards were taken back" in "\n".join(found.lines())
    forgotten = audit(events, {"train": plain(2)})
    assert "shards [[1, 2]] count, and a training went on without them" in forgotten.inputs[0].faults[0]
