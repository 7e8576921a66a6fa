"""Where the batches of a feed go: what holds in any order of feeders, readers, losses and ends."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trainmaster.core.input.feeding import AHEAD, MOST_AHEAD, SHARE_AHEAD, Claim, Feed

TASKS = ("worker:0", "worker:1", "worker:2")
HOSTS = {"worker:0": "h", "worker:1": "h", "worker:2": "another"}
BATCHES = (4, 1, 0, 7)  # of each partition
ROWS = 5  # of a batch
ROOM = 6  # batches that a ring holds


class Ring:
    """A ring as its agent has it: batches in the order of their coming, of which the first were read."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        self.read = 0
        self.limit = 0


class FeedMachine(RuleBasedStateMachine):
    """Feeders that die and come again, rings that are lost, and words of agents that come late."""

    agreed = True

    def __init__(self) -> None:
        super().__init__()
        self.feed = Feed(self.agreed)
        self.round = self.feed.begin(len(BATCHES))
        self.attempts = dict.fromkeys(TASKS, 0)
        self.rings: dict[Any, Ring] = {}
        self.feeders: dict[int, tuple[int, int, Any]] = {}  # partition -> try, next batch, wish
        self.tries = 0
        self.read: Counter[tuple[int, int]] = Counter()
        self.fed: set[int] = set()  # partitions that Spark believes to be fed

    def word(self, key: Any) -> None:
        ring = self.rings[key]
        delivered = ring.read * ROWS
        self.feed.heard(
            key,
            {
                "host": HOSTS[key[0]], "socket": "s", "address": "h:1",
                "supply": len(ring.batches) * ROWS, "delivered": delivered, "stopped": False,
                "room": ROOM - (len(ring.batches) - ring.read), "largest": 2,
            },
        )  # fmt: skip

    def settle(self) -> None:
        self.feed.advance(TASKS)
        for key, (limit, _) in self.feed.limits().items():
            self.rings[key].limit = len(self.rings[key].batches) * ROWS if limit is None else limit

    @rule(task=st.sampled_from(TASKS))
    def open_or_lose(self, task: str) -> None:
        key = (task, self.attempts[task])
        if key in self.rings:
            del self.rings[key]
            self.feed.lose(key, "it was lost")
        else:
            self.attempts[task] += 1
            key = (task, self.attempts[task])
            self.rings[key] = Ring()
            self.word(key)
        self.settle()

    @rule(task=st.sampled_from(TASKS))
    def tell(self, task: str) -> None:
        key = (task, self.attempts[task])
        if key in self.rings:
            self.word(key)
            self.settle()

    @rule(task=st.sampled_from(TASKS))
    def read_one(self, task: str) -> None:
        ring = self.rings.get((task, self.attempts[task]))
        if ring is not None and ring.read < len(ring.batches) and (ring.read + 1) * ROWS <= ring.limit:
            partition, batch = ring.batches[ring.read]
            ring.read += 1
            self.read[partition, batch] += 1
            self.feed.has_read([[self.round, partition, batch, batch + 1]])

    @rule(partition=st.integers(0, len(BATCHES) - 1))
    def start_feeder(self, partition: int) -> None:
        """Begin a try, whether or not an older one still runs."""
        if partition not in self.fed or partition in self.feed.figures(self.round)["lost"]:
            self.tries += 1
            self.feeders[partition] = self.tries, 0, {}

    @precondition(lambda self: self.feeders)
    @rule(data=st.data(), waited=st.booleans())
    def step(self, data: st.DataObject, waited: bool) -> None:
        partition = data.draw(st.sampled_from(sorted(self.feeders)))
        try_, batch, wish = self.feeders[partition]
        if batch == BATCHES[partition]:
            answer: Any = self.feed.settle(self.round, partition, try_, batch, {})
            assert answer["do"] in ("done", "again")
            if answer["do"] == "done":
                self.fed.add(partition)
            del self.feeders[partition]
            self.settle()
            return
        answer = self.feed.claim(Claim(self.round, partition, batch, try_, 1, ROWS, "h", has_waited=waited, **wish))
        if answer is None:
            return
        if answer["do"] == "again":
            del self.feeders[partition]
        elif answer["do"] == "skip":
            assert answer["until"] > batch
            self.feeders[partition] = try_, answer["until"], {}
        else:
            assert answer["do"] == "put"
            self.put(partition, try_, batch, answer)

    def put(self, partition: int, try_: int, batch: int, answer: Any) -> None:
        ring = self.rings[tuple(answer["ring"])]
        if answer["limit"] is not None:
            ring.limit = max(ring.limit, answer["limit"])
        is_there = (partition, batch) in ring.batches
        if not is_there and len(ring.batches) - ring.read >= ROOM:
            self.feeders[partition] = try_, batch, {"full": "room"}
        elif (
            not is_there and self.agreed and len(ring.batches) * ROWS - ring.limit >= max(answer["ahead"], AHEAD * ROWS)
        ):
            self.feeders[partition] = try_, batch, {"full": "starved" if ring.read * ROWS >= ring.limit else "ahead"}
        else:
            if not is_there:
                ring.batches.append((partition, batch))
            self.feeders[partition] = try_, batch + 1, {}

    @invariant()
    def nothing_is_in_two_places(self) -> None:
        assert not self.read or max(self.read.values()) == 1
        waiting = [batch for ring in self.rings.values() for batch in ring.batches[ring.read :]]
        assert not {batch for batch, count in self.read.items() if count} & set(waiting)
        assert len(set(waiting)) == len(waiting)

    @invariant()
    def nothing_is_lost(self) -> None:
        """What Spark believes to be fed was read, is in a ring, or is known as lost."""
        waiting = {batch for ring in self.rings.values() for batch in ring.batches[ring.read :]}
        for partition in self.fed - set(self.feed.figures(self.round)["lost"]) - self.feeders.keys():
            for batch in range(BATCHES[partition]):
                assert self.read[partition, batch] or (partition, batch) in waiting

    def teardown(self) -> None:
        """With three readers that live, all goes on until each row was read or lies beyond the permit."""
        for task in TASKS:
            if (task, self.attempts[task]) not in self.rings:
                self.open_or_lose(task)
        for _ in range(80):
            for partition in range(len(BATCHES)):
                if partition not in self.feeders:
                    self.start_feeder(partition)
                if partition in self.feeders:
                    self.step(Fixed(partition), True)
            for task in TASKS:
                self.tell(task)
                self.read_one(task)
        assert self.feed.figures(self.round)["lost"] == []
        assert not self.feeders, "a feeder waits for ever"
        rest = [ring for ring in self.rings.values() if ring.read < len(ring.batches)]
        assert self.agreed or not rest
        assert all((ring.read + 1) * ROWS > ring.limit for ring in rest), "a reader waits for ever"
        assert len(rest) < len(TASKS), "all readers wait"


class Fixed:
    """A choice that is made already, in the place of hypothesis' own."""

    def __init__(self, value: int) -> None:
        self.value = value

    def draw(self, strategy: Any) -> int:
        return self.value


class FirstComeMachine(FeedMachine):
    agreed = False


TestAgreed = FeedMachine.TestCase
TestFirstCome = FirstComeMachine.TestCase


def opened(agreed: bool = True, tasks: tuple[str, ...] = TASKS[:2], readers: tuple[str, ...] = TASKS[:2]) -> Feed:
    feed = Feed(agreed)
    for task in tasks:
        tell(feed, task, 0, readers=readers)
    feed.begin(2)
    return feed


def tell(
    feed: Feed,
    task: str,
    supply: int,
    *,
    stopped: bool = False,
    room: int = 100,
    host: str = "h",
    address: str = "",
    delivered: int = 0,
    readers: tuple[str, ...] = TASKS[:2],
) -> None:
    word = {
        "host": host,
        "socket": "s",
        "address": address,
        "supply": supply,
        "delivered": delivered,
        "room": room,
        "largest": 50,
        "stopped": stopped,
    }
    feed.heard((task, 1), word)
    feed.advance(readers)


def ask(partition: int, batch: int, feeder: int = 1, **fields: Any) -> Claim:
    return Claim(0, partition, batch, feeder, **{"size": 10, "rows": 10, "host": "h", **fields})


def test_the_permit_is_what_the_rank_with_the_fewest_rows_has() -> None:
    feed = opened()
    tell(feed, "worker:0", 70)
    assert feed.permit == 0
    tell(feed, "worker:1", 30)
    assert feed.limits() == {("worker:0", 1): (30, False), ("worker:1", 1): (30, False)}
    assert feed.fix() == 30
    tell(feed, "worker:1", 50)
    feed.end()
    assert feed.limits()["worker:1", 1] == (30, True)


def test_a_rank_that_restarts_alone_counts_from_the_permit_on() -> None:
    feed = opened()
    tell(feed, "worker:0", 70)
    tell(feed, "worker:1", 50)
    feed.lose(("worker:1", 1), "it failed")
    assert feed.permit == 50
    word = {
        "host": "h",
        "socket": "s",
        "address": "",
        "supply": 5,
        "delivered": 0,
        "room": 9,
        "largest": 9,
        "stopped": False,
    }
    feed.heard(("worker:1", 2), word)
    feed.advance(TASKS[:2])
    assert (feed.permit, feed.limits()["worker:1", 2]) == (55, (5, False))


def test_an_older_feeder_is_refused_and_a_lost_reader_means_again() -> None:
    feed = opened()
    first = feed.claim(ask(0, 0))
    assert first is not None
    assert feed.claim(ask(0, 0, feeder=2)) == first, "a newer try goes to the same ring"
    assert feed.claim(ask(0, 1)) == {"do": "superseded"}
    task = first["ring"][0]
    feed.lose((task, 1), "worker died")
    assert feed.claim(ask(0, 1, feeder=2)) == {"do": "again", "why": "worker died"}
    assert feed.claim(ask(0, 0, feeder=3)) is None, "nothing goes to one rank before the other is back"
    word = {
        "host": "h",
        "socket": "s",
        "address": "",
        "supply": 0,
        "delivered": 0,
        "room": 100,
        "largest": 100,
        "stopped": False,
    }
    feed.heard((task, 2), word)
    assert feed.claim(ask(0, 0, feeder=4)) is not None


def test_partitions_that_begin_at_once_go_to_several_ranks() -> None:
    feed = opened()
    rings = [feed.claim(ask(partition, 0, feeder=partition, rows=0)) for partition in range(2)]
    tell(feed, "worker:0", 0)  # a word that was on its way
    assert sorted(ring["ring"] for ring in rings if ring) == [["worker:0", 1], ["worker:1", 1]]


def test_of_readers_that_are_as_fast_each_gets_a_part() -> None:
    """A feeder feeds one partition after the other, and has read whole before the next begins."""
    feed = opened(agreed=False)
    rings = []
    for partition in range(2):
        answer = feed.claim(ask(partition, 0, feeder=partition))
        assert answer is not None
        rings.append(answer["ring"][0])
        tell(feed, rings[-1], 10, delivered=10)
    assert sorted(rings) == ["worker:0", "worker:1"]


def test_nothing_goes_to_ranks_in_step_before_all_are_there() -> None:
    feed = opened(tasks=TASKS[:1])
    feed.advance(TASKS[:2])
    assert feed.claim(ask(0, 0)) is None
    tell(feed, "worker:1", 0)
    assert feed.claim(ask(0, 0)) is not None


@pytest.mark.parametrize("agreed", [True, False])
def test_a_round_is_forgotten_once_it_was_read_whole(agreed: bool) -> None:
    feed = opened(agreed)
    assert feed.rounds() == {"open": [0], "lost": [[0, [0, 1]]]}, "not fed yet"
    later = feed.begin(1)
    assert feed.claim(ask(0, 0)) is not None
    for partition, count in enumerate((3, 0)):
        feed.settle(0, partition, 1, count, {})
    assert 0 in feed.rounds()["open"]
    feed.has_read([[0, 0, 0, 2]])
    assert 0 in feed.rounds()["open"]
    feed.has_read([[0, 0, 2, 3]])
    assert feed.rounds()["open"] == [later]
    feed.has_read([[0, 0, 0, 3]])  # an agent that tells it again
    assert feed.figures(0) == {"partitions": 0, "read": 0, "lost": [], "why": ""}
    assert feed.claim(ask(0, 0, feeder=7)) == {"do": "stop"}, "Spark runs a task of it again"
    assert feed.settle(0, 0, 7, 3, {}) == {"do": "done"}
    assert feed.begin(0) == later + 1
    assert feed.rounds()["open"] == [later], "a round without partitions has nothing to be read"
    for number in (later + 2, -1):
        with pytest.raises(LookupError):
            feed.figures(number)


def test_empty_partitions_keep_no_other_waiting() -> None:
    feed = opened()
    for number in range(1, 6):
        feed.begin(1)
        assert feed.claim(Claim(number, 0, 0, number, 0, 0, "h")) is not None, "no row of the ones before is under way"
        assert feed.settle(number, 0, number, 0, {}) == {"do": "done"}


def test_a_feed_that_answers_has_no_rounds() -> None:
    feed = Feed(agreed=True)
    assert feed.exchange(ask(0, 0)) is None, "nobody reads yet"
    for task in TASKS[:2]:
        tell(feed, task, 0)
    answers = [feed.exchange(ask(0, 0, feeder=number)) for number in range(2)]
    assert sorted(answer["ring"] for answer in answers if answer) == [["worker:0", 1], ["worker:1", 1]]
    assert {answer["round"] for answer in answers if answer} == {1, 2}
    tell(feed, "worker:0", 10), tell(feed, "worker:1", 10)
    third, fourth = feed.exchange(ask(0, 0, feeder=3)), feed.exchange(ask(0, 0, feeder=4))
    assert third is not None
    assert fourth is not None
    assert third["ring"] != fourth["ring"], "they take turns where both have room"
    assert set(feed.limits().values()) == {(None, False)}, "ranks read in no step"
    away = feed.exchange(ask(0, 0, feeder=5, host="b"))
    assert away is not None
    assert away["do"] == "unreachable", "no agent serves other hosts"
    tell(feed, "worker:1", 20, host="b", address="b:1")
    for host, feeders in (("h", (6, 7)), ("b", (8, 9))):
        answers = [feed.exchange(ask(0, 0, feeder=feeder, host=host)) for feeder in feeders]
        assert {answer["host"] for answer in answers if answer} == {host}, "its own"
    answer = feed.exchange(ask(0, 0, feeder=10, host="c"))
    assert answer is not None
    assert (answer["ring"], answer["address"]) == (["worker:1", 1], "b:1")
    answer = feed.exchange(ask(0, 0, feeder=10, host="c", unreachable=["worker:1"]))
    assert answer is not None
    assert answer["do"] == "unreachable"
    with pytest.raises(ValueError, match="gives results"):
        feed.begin(1)
    with pytest.raises(ValueError, match="trains"):
        opened().exchange(ask(0, 0))
    feed.advance([])
    answer = feed.exchange(ask(0, 0))
    assert answer is not None
    assert answer["do"] == "fail"


@pytest.mark.parametrize("agreed", [True, False])
def test_a_stop_of_one_ends_the_feed_of_ranks_in_step_alone(agreed: bool) -> None:
    feed = opened(agreed)
    tell(feed, "worker:0", 10, stopped=True)
    answer = feed.claim(ask(0, 0))
    assert answer is not None
    assert answer["do"] == ("stop" if agreed else "put")
    tell(feed, "worker:1", 10, stopped=True)
    assert feed.claim(ask(0, 1)) == {"do": "stop"}


def test_a_question_that_comes_again_begins_no_second_round_and_one_that_is_given_up_is_not_lost() -> None:
    feed = opened(True)
    number = feed.begin(2, "a")
    assert feed.begin(2, "a") == number
    assert feed.begin(1, "b") == number + 1
    assert [lost for lost, _ in feed.rounds()["lost"]] == [0, number, number + 1]
    feed.drop(number)
    assert [lost for lost, _ in feed.rounds()["lost"]] == [0, number + 1]
    answer = feed.claim(attrs.evolve(ask(0, 0), round=number))
    assert answer is not None
    assert answer["do"] == "stop", "a feeder of it that still runs"
    feed.has_read([[number, 0, 0, 1]])


def test_a_ring_whose_permit_is_slow_gets_further_ahead_unless_others_have_fewer_rows() -> None:
    feed = opened(True)
    tell(feed, "worker:0", 0), tell(feed, "worker:1", 0)
    assert [place["ahead"] for place in (feed.claim(ask(0, 0)), feed.claim(ask(1, 0))) if place] == [0, 0]
    many = 10 * SHARE_AHEAD * MOST_AHEAD
    tell(feed, "worker:0", many), tell(feed, "worker:1", many)

    def claimed(full: str) -> int:
        answer = feed.claim(ask(0, 1, full=full))
        assert answer is not None
        return int(answer["ahead"])

    assert claimed("ahead") == 0, "its reader has rows to read"
    assert [claimed("starved") for _ in range(9)] == [40, 80, 160, *[10 * MOST_AHEAD] * 6]
    assert feed.claim(ask(1, 1, full="starved")) is not None, "the other ring has its own"
    feed = opened(True)
    assert feed.claim(ask(0, 0)) is not None
    tell(feed, "worker:0", many + 1), tell(feed, "worker:1", many)
    assert claimed("starved") == 0, "it waits for the other rank's rows"
    feed = opened(True)
    assert feed.claim(ask(0, 0)) is not None
    tell(feed, "worker:0", 10 * SHARE_AHEAD * 4 - 1), tell(feed, "worker:1", many)
    assert [claimed("starved") for _ in range(3)] == [39, 39, 39], "of little data little may be left over"
    small = feed.claim(ask(0, 2, rows=1, full="starved"))
    assert small is not None
    assert small["ahead"] == 39, "the last batch of a partition may be small"


@pytest.mark.parametrize("agreed", [True, False])
def test_a_ring_of_another_host_gets_a_little_while_its_reader_starves(agreed: bool) -> None:
    feed = opened(agreed)
    tell(feed, "worker:1", 0, host="another", address="another:1")
    first = feed.claim(ask(0, 0))
    assert first is not None
    assert (first["ring"], first["until"]) == (["worker:0", 1], None)
    tell(feed, "worker:0", 20, room=0)
    there = feed.claim(ask(0, 2, full="ahead" if agreed else "room"))
    assert there is not None
    assert (there["ring"], there["address"], there["until"]) == (["worker:1", 1], "another:1", 2 + AHEAD)
    tell(feed, "worker:1", 20, host="another", address="another:1")
    if agreed:
        tell(feed, "worker:0", 20)
    else:
        assert feed.claim(ask(0, 4)) is None, "its reader has enough, and the host of the feeder has a ring"
        tell(feed, "worker:1", 20, host="another", address="another:1", delivered=10)
    back = feed.claim(ask(0, 4))
    assert back is not None
    assert back["ring"] == (["worker:0", 1] if agreed else ["worker:1", 1])
    assert feed.settle(0, 0, 1, 5, {}) == {"do": "done"}
    assert feed.figures(0)["lost"] == [1], "the other partition alone"


@pytest.mark.parametrize("agreed", [True, False])
def test_a_feeder_that_waited_for_the_only_ring_gets_it_once_it_has_room(agreed: bool) -> None:
    feed = opened(agreed, TASKS[:1], TASKS[:1])
    assert feed.claim(ask(0, 0)) is not None
    tell(feed, "worker:0", 10, room=100, readers=TASKS[:1])
    assert feed.claim(ask(0, 1, full="room")) is None, "the ring knows better than the word before"
    tell(feed, "worker:0", 10, room=100, delivered=10, readers=TASKS[:1])
    answer = feed.claim(ask(0, 1, full="room", has_waited=True))
    assert answer is not None
    assert answer["do"] == "put"


def test_a_ring_that_no_stream_reaches_is_named_with_its_address() -> None:
    feed = opened(tasks=())
    for task in TASKS[:2]:
        tell(feed, task, 0, host="another", address=f"{task}:1")
    answer = feed.claim(ask(0, 0))
    assert answer is not None
    assert answer["do"] == "put"
    assert answer["until"] is None, "the feeder's host has no ring, so it fills those of others"
    refusal = feed.claim(ask(0, 0, unreachable=TASKS[:2]))
    assert refusal is not None
    assert refusal["do"] == "unreachable"
    assert "at worker:" in refusal["why"]


def test_a_ring_of_another_machine_is_named_once_all_are_known() -> None:
    feed = opened(tasks=("worker:0",))
    elsewhere = Claim(0, 0, 0, 1, 10, 10, "another")
    feed.advance(TASKS[:2])
    assert feed.claim(elsewhere) is None
    tell(feed, "worker:1", 0)
    answer = feed.claim(elsewhere)
    assert answer is not None
    assert answer["do"] == "unreachable"


def test_a_partition_that_gives_other_batches_is_refused() -> None:
    feed = opened()
    assert feed.settle(0, 1, 1, 0, {}) == {"do": "done"}
    assert feed.settle(0, 1, 2, 3, {})["do"] == "differs"
