"""The book of containers: what an engine is to do, and what a master is told, whatever is seen and in whatever order."""

from __future__ import annotations

import random
from typing import Any

import pytest
from conftest import Seeds

from trainmaster.core.containers import (
    GOING,
    GONE,
    PENDING,
    PLACED,
    RUNNING,
    Book,
    Deletion,
    Habits,
    Request,
    Seen,
    Work,
)
from trainmaster.core.machine.stimuli import (
    Change,
    ContainerExited,
    ContainerLost,
    GangGranted,
    GangOverdue,
    Granted,
    Refused,
)

SLOW = Habits(settled=2.0, gang_timeout=60.0, write_off=20.0)  # as on a cluster
AT_ONCE = Habits()  # as on one machine


def request(task: str, serial: int = 1, **more: Any) -> Request:
    role, _, index = task.partition(":")
    return Request(task, serial, role, int(index), 2**30, 1.0, **more)


def gang(*tasks: str, least: int = 0) -> list[Request]:
    return [request(task, gang="g", least=least) for task in tasks]


def seen(task: str, phase: str = RUNNING, serial: int = 1, id: str = "", **more: Any) -> Seen:  # noqa: A002
    return Seen((task, serial), phase, id or f"c/{task}/{serial}", "n1" if phase != PENDING else "", **more)


def granted(task: str, serial: int = 1) -> Granted:
    return Granted(task, serial, f"c/{task}/{serial}", "n1")


def asked(habits: Habits, *requests: Request) -> Book:
    book = Book(habits)
    book.open([], [], 0.0)
    assert book.ask(requests, 0.0).create == list(requests)
    return book


def names(work: Work) -> list[str]:
    return [deletion.id for deletion in work.delete]


def test_an_ask_is_created_once_and_told_when_it_runs() -> None:
    book = asked(SLOW, request("w:0"), request("w:1"))
    assert book.ask([request("w:0"), request("w:1")], 1.0) == Work()
    assert book.see([seen("w:0", PENDING)], 1.0) == Work()
    assert book.see([seen("w:0"), seen("w:0")], 2.0).changes == [granted("w:0")]
    assert book.see([seen("w:0", PENDING)], 2.0) == Work()  # it comes late
    assert [each.task for each in book.asked()] == ["w:1"]
    assert book.ask([request("w:0"), request("w:1")], 3.0).changes == [granted("w:0")]  # its fate, told again


def test_what_has_a_place_is_started_and_told_when_it_runs() -> None:
    book = asked(SLOW, request("w:0"))
    work = book.see([seen("w:0", PLACED)], 1.0)
    assert (work.start, work.changes) == ([request("w:0")], [])
    assert book.see([seen("w:0", PLACED)], 1.0) == Work()
    assert book.see([seen("w:0")], 2.0).changes == [granted("w:0")]


def test_an_ask_that_is_left_out_is_withdrawn_wherever_it_is() -> None:
    book = asked(SLOW, *map(request, ("w:0", "w:1", "w:2")))
    book.see([seen("w:0", PENDING), seen("w:1", PLACED)], 1.0)
    work = book.ask([], 2.0)
    assert work.delete == [Deletion(("w:0", 1), "c/w:0/1"), Deletion(("w:1", 1), "c/w:1/1"), Deletion(("w:2", 1))]
    assert names(book.see([seen("w:2", PENDING)], 3.0)) == ["c/w:2/1"]  # it was being made meanwhile
    assert book.see([seen("w:0", RUNNING)], 3.0).changes == []
    assert not book.is_empty
    book.see([seen(task, GONE) for task in ("w:0", "w:1", "w:2")], 4.0)
    assert book.is_empty


def test_a_release_is_answered_by_one_end_whatever_there_is() -> None:
    book = asked(SLOW, request("w:0"), request("w:1"))
    gone = ContainerExited("w:9", 1, None, "not-needed")
    assert book.release(("w:9", 1)).changes == [gone]
    book.see([seen("w:0")], 1.0)
    assert names(book.release(("w:0", 1))) == ["c/w:0/1"]
    assert book.release(("w:0", 1)) == Work()
    end = ContainerExited("w:0", 1, 9)
    assert book.see([seen("w:0", GONE, end=end)], 2.0).changes == [end]
    assert book.see([seen("w:0", GONE, end=end)], 2.0) == Work()  # told twice
    assert book.release(("w:0", 1)).changes == [end]
    assert book.release(("w:1", 1)).delete == [Deletion(("w:1", 1))]
    assert book.see([Seen(("w:1", 1), GONE, "")], 3.0).changes == [ContainerExited("w:1", 1, None, "not-needed")]


def test_of_two_containers_with_one_key_the_first_is_kept() -> None:
    book = asked(SLOW, request("w:0"))
    work = book.see([seen("w:0", PLACED), seen("w:0", PLACED, id="other")], 1.0)
    assert names(work) == ["other"]
    assert book.see([seen("w:0", GONE, id="other")], 2.0).changes == []
    assert book.see([seen("w:0")], 2.0).changes == [granted("w:0")]


def test_what_nobody_asks_for_is_deleted_as_often_as_it_is_seen() -> None:
    book = asked(SLOW)
    for _ in range(2):
        assert names(book.see([seen("w:7")], 1.0)) == ["c/w:7/1"]


# -- a master that follows --


def test_a_new_master_is_reported_what_it_has_and_what_has_ended() -> None:
    book, end = Book(SLOW), ContainerExited("w:1", 1, 137, "out-of-memory")
    there = [seen("w:0"), seen("w:1", GONE, end=end), seen("w:3"), seen("w:4", PENDING), seen("w:5", PLACED)]
    work = book.open(there, [("w:0", 1), ("w:1", 1), ("w:2", 1)], 0.0)
    assert work.changes == [granted("w:0"), end, ContainerExited("w:2", 1, None, "agent-lost")]
    assert names(work) == ["c/w:5/1"]  # only the master that it was placed for could start it
    work = book.ask([request("w:3")], 1.0)
    assert work.changes == [granted("w:3")]  # the master before had asked for it and died before it heard
    assert (work.create, names(work)) == ([], ["c/w:4/1"])


def test_of_two_containers_that_a_new_master_finds_the_one_that_runs_is_kept() -> None:
    book = Book(SLOW)
    work = book.open([seen("w:0", PLACED, id="b"), seen("w:0", id="a")], [("w:0", 1)], 0.0)
    assert (names(work), work.changes) == (["b"], [Granted("w:0", 1, "a", "n1")])


# -- gangs --


def test_an_elastic_gang_begins_with_all_that_was_asked_for() -> None:
    book = asked(SLOW, *gang("w:0", "w:1", least=1))
    assert book.see([seen("w:0")], 1.0) == Work()
    assert book.see([seen("w:1")], 2.0).changes == [GangGranted((granted("w:0"), granted("w:1")))]


def test_an_elastic_gang_begins_without_its_growth_once_no_more_comes() -> None:
    book = asked(SLOW, *gang("w:0", "w:1", "w:2", least=1))
    book.see([seen("w:0")], 1.0)
    book.see([seen("w:1")], 2.5)
    assert book.tick(4.0) == Work()
    assert book.next() == 4.5
    assert book.tick(4.5).changes == [GangGranted((granted("w:0"), granted("w:1")))]
    assert book.see([seen("w:2")], 5.0).changes == [GangGranted((granted("w:2"),))]


def test_a_gang_does_not_begin_while_something_that_it_needs_is_not_there() -> None:
    book = asked(SLOW, *gang("w:0", "w:1", "w:2", least=2))
    book.see([seen("w:0"), seen("w:2")], 1.0)
    assert book.tick(50.0) == Work()
    assert book.see([seen("w:1")], 51.0).changes == [GangGranted((granted("w:0"), granted("w:2"), granted("w:1")))]


def test_all_of_a_gang_is_reported_at_once_when_all_of_it_has_started() -> None:
    book = asked(AT_ONCE, *gang("w:0", "w:1", "w:2", least=1))
    work = book.see([seen("w:0", PLACED), seen("w:1", PLACED)], 1.0)
    assert work.start == gang("w:0", "w:1", least=1)
    assert book.see([seen("w:1")], 2.0) == Work()
    assert book.see([seen("w:0")], 3.0).changes == [GangGranted((granted("w:0"), granted("w:1")))]


def test_a_member_that_could_not_be_started_holds_up_no_gang() -> None:
    book = asked(AT_ONCE, *gang("w:0", "w:1"))
    book.see([seen("w:0", PLACED), seen("w:1", PLACED)], 1.0)
    book.see([seen("w:0")], 2.0)
    end = ContainerExited("w:1", 1, None, "localization-failed")
    assert book.see([seen("w:1", GONE, end=end)], 3.0).changes == [end, GangGranted((granted("w:0"),))]


def test_a_part_of_a_gang_that_is_kept_too_long_is_reported() -> None:
    book = asked(SLOW, *gang("w:0", "w:1"))
    assert book.see([seen("w:0")], 1.0).changes == [granted("w:0")]  # it can prepare meanwhile
    assert book.next() == 61.0
    assert book.tick(61.0).changes == [GangOverdue("g", 60.0)]
    assert book.tick(200.0) == Work()  # once


# -- what fails for now, and for ever --


def test_a_create_that_is_denied_is_tried_again_after_longer_and_longer_with_its_role() -> None:
    book = asked(SLOW, request("w:0"), request("w:1"), request("ps:0"))
    book.deny(("w:0", 1), 0.0)
    assert book.is_denied("w", 0.5)
    assert not book.is_denied("ps", 0.5)
    book.deny(("w:1", 1), 0.5)
    assert book.delayed() == [request("w:0"), request("w:1")]
    assert book.tick(1.0).create == [request("w:0"), request("w:1")]
    book.deny(("w:0", 1), 1.0)
    assert book.next() == 3.0
    book.see([seen("w:1", PENDING)], 2.0)  # one was made after all: the next is tried soon again
    assert book.tick(3.0).create == [request("w:0")]
    book.deny(("w:0", 1), 3.0)
    assert book.next() == 4.0


def test_an_answer_that_was_lost_makes_no_second_container() -> None:
    book = asked(SLOW, request("w:0"))
    book.deny(("w:0", 1), 0.0)
    assert book.see([seen("w:0")], 0.5).changes == [granted("w:0")]
    assert book.tick(100.0) == Work()


def test_what_was_given_back_while_it_was_denied_is_over() -> None:
    book = asked(SLOW, request("w:0"), request("w:1"))
    book.deny(("w:0", 1), 0.0)
    assert book.release(("w:0", 1)).changes == [ContainerExited("w:0", 1, None, "not-needed")]
    book.release(("w:1", 1))
    assert book.deny(("w:1", 1), 1.0).changes == [ContainerExited("w:1", 1, None, "not-needed")]
    assert book.is_empty


def test_a_refusal_is_reported_once_and_again_to_who_asks_again() -> None:
    book = asked(SLOW, request("w:0"))
    refusal = Refused("w:0", 1, "too large")
    assert book.refuse(("w:0", 1), "too large").changes == [refusal]
    assert book.refuse(("w:0", 1), "too large") == Work()
    assert book.ask([request("w:0")], 1.0) == Work(changes=[refusal])


def test_whoever_deletes_a_tasks_containers_before_they_have_a_place_is_not_fed_without_end() -> None:
    book = asked(SLOW, request("w:0"))
    for serial, delay in ((1, 0.5), (2, 1.0), (3, 2.0)):
        book.see([seen("w:0", PENDING, serial), seen("w:0", GONE, serial)], 10.0)
        assert book.ask([request("w:0", serial + 1)], 10.0).create == []
        assert book.next() == 10.0 + delay
        assert book.tick(10.0 + delay).create == [request("w:0", serial + 1)]


# -- what is not seen --


def test_a_container_whose_end_is_not_seen_is_written_off_and_deleted_when_it_is_seen_again() -> None:
    book = asked(SLOW, request("w:0"))
    book.see([seen("w:0")], 1.0)
    book.release(("w:0", 1))
    book.see([seen("w:0", GOING, within=5.0)], 2.0)
    assert book.tick(26.9) == Work()
    work = book.tick(27.0)
    assert work.changes == [ContainerLost("w:0", 1, "node-lost", {"node": "n1"})]
    assert work.delete == [Deletion(("w:0", 1), "c/w:0/1", by_force=True)]
    assert names(book.see([seen("w:0")], 30.0)) == ["c/w:0/1"]


def test_nothing_is_written_off_while_the_engine_sees_nothing() -> None:
    book = asked(SLOW, request("w:0"))
    book.see([seen("w:0")], 1.0)
    book.release(("w:0", 1))
    book.see([seen("w:0", GOING)], 2.0)
    book.set_blind(True, 3.0)
    assert book.tick(1000.0) == Work()
    book.set_blind(False, 1000.0)
    assert book.tick(1019.0) == Work()
    assert book.tick(1020.0).changes


def test_an_engine_that_forgot_is_reported_all_again() -> None:
    book = asked(SLOW, *map(request, ("w:0", "w:1", "w:2", "w:3")))
    book.see([seen("w:0"), seen("w:1"), seen("w:2", PLACED)], 1.0)
    book.release(("w:1", 1))
    work = book.forget(2.0)
    assert work.create == [request("w:3")]
    assert names(work) == ["c/w:1/1"]
    assert work.changes == [ContainerExited("w:2", 1)]  # nobody knows of it any more


@pytest.mark.parametrize("habits", [SLOW, AT_ONCE], ids=["cluster", "machine"])
def test_in_any_order_each_key_is_reported_once_and_nothing_is_left(habits: Habits, seeds: Seeds) -> None:
    for seed in seeds(200):
        _play(random.Random(seed), habits)


def _play(rng: random.Random, habits: Habits) -> None:
    tasks = [f"w:{index}" for index in range(rng.randint(1, 6))]
    book = asked(habits, *gang(*tasks, least=rng.randint(0, 2)))
    sights = [
        seen(task, phase, id=f"{task}{twin}") for task in tasks for phase in (PENDING, PLACED, RUNNING) for twin in "ab"
    ]
    changes, doomed, now = list[Change](), set[str](), 0.0

    def take(work: Work) -> None:
        changes.extend(work.changes)
        doomed.update(deletion.id for deletion in work.delete)

    for sight in [*rng.choices(sights, k=40), *sights]:
        now += rng.random()
        take(book.see([sight], now))
        take(book.tick(now))
    take(book.tick(now + 10.0))
    told = [grant for change in changes for grant in (change.grants if isinstance(change, GangGranted) else [change])]
    assert sorted(grant.task for grant in told if isinstance(grant, Granted)) == tasks
    assert len(doomed) == len(tasks), "of two with one key, one goes"
    take(book.close())
    assert len(doomed) == 2 * len(tasks)
    for sight in sights:
        take(book.see([seen(sight.key[0], GONE, id=sight.id)], now))
    assert book.is_empty
    assert book.next() is None
