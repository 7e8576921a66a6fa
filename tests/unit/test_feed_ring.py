"""The state of a feed's ring: what holds under any order of calls, and that it always goes on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trainmaster.core.input.feeding import AHEAD
from trainmaster.data.feed.ring import ALIGNMENT, READER, Ring

SIZE = 64 * 16
NUMBERS = st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 9))
SIZES = st.integers(1, SIZE // 3 // 64 * 64)


class RingMachine(RuleBasedStateMachine):
    """Feeders and a reader that do whatever they may, and a book of who has which bytes, kept by the answers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(SIZE)
        self.feeders: dict[int, tuple[Any, int] | None] = {}  # its request, where it waits for an answer
        self.writing: dict[int, tuple[Any, int, int]] = {}  # by feeder: number, begin, end
        self.queued: list[tuple[Any, int, int]] = []
        self.held: list[tuple[Any, int, int]] = []
        self.demand = 0
        self.handed: Counter[Any] = Counter()
        self.returned: Counter[Any] = Counter()
        self.fed: set[Any] = set()
        self.last = 0
        self.reader_ended = False

    def settle(self) -> None:
        for party, message in self.ring.settle():
            if party == READER:
                self.to_reader(message)
                continue
            request = self.feeders[party]
            assert request is not None, "an answer to nobody's request"
            self.feeders[party] = None
            number, size = request
            if message["op"] == "write":
                assert number not in self.fed
                assert number not in [part[0] for part in self.writing.values()]
                self.writing[party] = number, message["at"], message["at"] + size
            elif message["op"] == "had":
                assert number in self.fed
            else:
                assert message["op"] == "refused"
                assert self.ring.has_ended

    def to_reader(self, message: Any) -> None:
        if message["op"] == "starved":
            return
        assert self.demand
        if message["op"] == "end":
            self.demand, self.reader_ended = 0, True
            assert not self.queued
            return
        self.demand -= 1
        part = self.queued.pop(0)
        assert part[:2] == (message["number"], message["at"]), "batches come in the order of their writing"
        assert not self.ring.has_stopped
        self.held.append(part)
        self.handed[part[0]] += 1

    @rule()
    def join(self) -> None:
        self.last += 1
        self.ring.join(self.last)
        self.feeders[self.last] = None

    @rule(data=st.data(), number=NUMBERS, size=SIZES)
    def reserve(self, data: st.DataObject, number: Any, size: int) -> None:
        idle = sorted(
            feeder for feeder, request in self.feeders.items() if request is None and feeder not in self.writing
        )
        if idle and not self.ring.has_stopped:
            feeder = data.draw(st.sampled_from(idle))
            self.feeders[feeder] = number, size
            self.ring.reserve(feeder, number, size)
            self.settle()

    @precondition(lambda self: self.writing)
    @rule(data=st.data(), dies=st.booleans())
    def commit_or_die(self, data: st.DataObject, dies: bool) -> None:
        feeder = data.draw(st.sampled_from(sorted(self.writing)))
        part = self.writing.pop(feeder)
        if dies:
            del self.feeders[feeder]
            self.ring.leave(feeder)
        else:
            self.ring.commit(feeder)
            if not self.ring.has_stopped:
                self.queued.append(part)
                self.fed.add(part[0])
        self.settle()

    @precondition(lambda self: self.feeders)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        feeder = data.draw(st.sampled_from(sorted(self.feeders)))
        del self.feeders[feeder]
        self.writing.pop(feeder, None)
        self.ring.leave(feeder)
        self.settle()

    @rule()
    def ask(self) -> None:
        self.demand += 1
        self.ring.demand()
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        part = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.ring.release(part[1])
        self.settle()

    @rule()
    def lose_reader(self) -> None:
        self.returned.update(part[0] for part in self.held)
        self.queued[:0] = [] if self.ring.has_stopped else self.held
        self.held, self.demand = [], 0
        self.ring.lose_reader()
        self.settle()

    @precondition(lambda self: self.last > 3)
    @rule()
    def end(self) -> None:
        self.ring.end()
        self.settle()

    @precondition(lambda self: self.last > 4)
    @rule()
    def stop(self) -> None:
        assert sorted(party for party, _ in self.ring.stop()) == sorted(self.feeders)
        self.queued.clear()
        self.feeders = dict.fromkeys(self.feeders)
        self.settle()

    @invariant()
    def no_two_parts_overlap_and_none_is_lost(self) -> None:
        parts = sorted((begin, end) for _, begin, end in [*self.writing.values(), *self.queued, *self.held])
        ends = [0, *(end for _, end in parts)]
        assert all(begin >= end for (begin, _), end in zip(parts, ends, strict=False)), parts
        assert all(end <= SIZE for end in ends)
        taken = sum(-(-(end - begin) // 64) * 64 for begin, end in parts)
        assert self.ring.free == SIZE - taken

    @invariant()
    def a_batch_is_handed_out_once_but_for_those_of_dead_readers(self) -> None:
        assert all(count - self.returned[number] <= 1 for number, count in self.handed.items())

    @invariant()
    def the_record_is_what_happened(self) -> None:
        fed = {(*partition, batch) for partition, batches in self.ring.fed.items() for batch in batches}
        assert fed == self.fed

    def teardown(self) -> None:
        """Whatever has happened, a reader that reads and feeders that write leave nobody waiting and nothing taken."""
        for _ in range(200):
            while self.writing:
                feeder, part = self.writing.popitem()
                self.ring.commit(feeder)
                if not self.ring.has_stopped:
                    self.queued.append(part)
                    self.fed.add(part[0])
            while self.held:
                self.ring.release(self.held.pop()[1])
            self.demand += 1
            self.ring.demand()
            self.settle()
        assert not self.held
        assert not self.queued
        assert self.ring.waiting == 0
        assert self.ring.free == SIZE
        assert self.ring._free == [(0, SIZE)], "free parts that touch are one"


TestRing = RingMachine.TestCase


def test_a_number_that_is_being_written_is_waited_for() -> None:
    ring = Ring(SIZE)
    for feeder in (1, 2, 3):
        ring.join(feeder)
        ring.reserve(feeder, (1, 0, 0), 64)
    assert [party for party, _ in ring.settle()] == [1]
    ring.leave(1)  # it dies in the middle of the batch
    assert ring.settle() == [(2, {"op": "write", "at": 0})]
    ring.commit(2)
    assert ring.settle() == [(3, {"op": "had"})]
    assert ring.repeated == 1


def test_a_held_batch_leaves_room_for_the_largest_wherever_it_lies() -> None:
    for before in range(0, SIZE * 2 // 3 - 64, 64):
        ring = Ring(SIZE)
        ring.join(1)
        for number, size in enumerate([64] * (before // 64) + [ring.largest]):
            ring.reserve(1, (0, 0, number), size)
            ring.demand()
            ring.settle()
            ring.commit(1)
            (_, batch), *_ = ring.settle()
        for at in range(0, before, 64):
            ring.release(at)
        assert batch["at"] == before
        ring.reserve(1, (0, 1, 0), ring.largest)
        assert [message["op"] for _, message in ring.settle()] == ["write"]


def test_a_feeder_that_is_ahead_hears_whether_the_reader_waits_for_the_permit() -> None:
    ring = Ring(64 * ALIGNMENT)
    ring.join(1)
    ring.permit(0)
    for batch in range(AHEAD):
        ring.reserve(1, (0, 0, batch), ALIGNMENT)
        ring.settle()
        ring.commit(1)

    def answer(batch: int) -> dict[str, Any]:
        ring.reserve(1, (0, 0, batch), ALIGNMENT, waits=False)
        [(_, message)] = ring.settle()
        return message

    ring.demand()
    assert answer(AHEAD) == {"op": "full", "why": "ahead"}, "a reader asks for one batch in advance"
    ring.demand()
    assert answer(AHEAD) == {"op": "full", "why": "starved"}
    ring.permit(0, AHEAD + 1)
    assert answer(AHEAD)["op"] == "write"


def test_a_large_batch_is_not_overtaken() -> None:
    ring = Ring(SIZE)
    for feeder in (1, 2, 3):
        ring.join(feeder)
    for number in range(4):
        ring.reserve(1, (0, 0, number), 256)
        ring.settle()
        ring.commit(1)
    ring.reserve(2, (0, 1, 0), 320)
    ring.reserve(3, (0, 2, 0), 64)
    ring.demand()
    ((_, batch),) = ring.settle()
    ring.release(batch["at"])
    assert ring.settle() == [], "there is room for the small one, but it is not its turn"
    ring.demand()
    ((_, batch),) = ring.settle()
    ring.release(batch["at"])
    assert [party for party, _ in ring.settle()] == [2, 3]


@pytest.mark.parametrize(
    "call",
    [
        lambda ring: ring.commit(1),
        lambda ring: ring.release(0),
        lambda ring: ring.reserve(1, (0, 0, 0), SIZE // 3 + 1),
        lambda ring: ring.reserve(1, (0, 0, 0), 0),
        lambda ring: ring.reserve(1, (0, -1, 0), 1),
    ],
)  # fmt: skip
def test_calls_of_no_correct_party_change_nothing(call: Any) -> None:
    ring = Ring(SIZE)
    ring.join(1)
    with pytest.raises(ValueError, match=r"batch|nothing"):
        call(ring)
    assert (ring.free, ring.waiting, ring.settle()) == (SIZE, 0, [])
