"""Who gets what: the line's rule, by examples and by properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st
from local_machine import GIB, request

from trainmaster.core.containers import Request
from trainmaster.engines.local import queue
from trainmaster.engines.local.queue import Ask, Capacity, Hold, grant

TWO = Capacity(2.0, 8 * GIB, ("GPU-a", "GPU-b"))


def asks(*given: tuple[str, Request]) -> list[Ask]:
    places = {job: place for place, job in enumerate(dict.fromkeys(job for job, _ in given))}
    return [Ask(job, one, places[job], order) for order, (job, one) in enumerate(given)]


def gang(role: str, count: int, **more: object) -> list[Request]:
    return [request(f"{role}:{index}", gang="g", **more) for index in range(count)]


def tasks(granted: list[Hold]) -> list[str]:
    return [f"{hold.job}/{hold.request.task}" for hold in granted]


def test_what_fits_is_granted_in_order() -> None:
    line = asks(("a", request("w:0")), ("b", request("w:0", 0.5)), ("c", request("w:0", 0.5)), ("d", request("w:0")))
    assert tasks(grant(TWO, [], line)) == ["a/w:0", "b/w:0", "c/w:0"]


def test_the_first_that_does_not_fit_stops_the_line() -> None:
    line = asks(("a", request("w:0", 2.0)), ("b", request("w:0", 0.5)))
    held = [Hold("x", request("w:0", 0.5))]
    assert grant(TWO, held, line) == []


def test_priority_goes_before_order() -> None:
    line = asks(("a", request("w:0", 2.0)), ("b", request("w:0", 2.0, priority=1)))
    assert tasks(grant(TWO, [], line)) == ["b/w:0"]


def test_a_gang_is_granted_whole_or_not() -> None:
    line = asks(*(("a", one) for one in gang("w", 3)))
    assert grant(TWO, [], line) == []
    assert len(grant(Capacity(3.0, 8 * GIB), [], line)) == 3


def test_a_gang_with_a_least_gets_as_many_as_fit_lowest_first() -> None:
    line = asks(*(("a", one) for one in reversed(gang("w", 5, least=2))))
    assert tasks(grant(TWO, [], line)) == ["a/w:0", "a/w:1"]
    assert tasks(grant(Capacity(4.0, 8 * GIB), [], line)) == ["a/w:0", "a/w:1", "a/w:2", "a/w:3"]
    assert grant(Capacity(1.5, 8 * GIB), [], line) == []


def test_growth_waits_until_nobody_needs_anything() -> None:
    line = asks(*(("a", one) for one in gang("w", 4, least=1)), ("b", request("w:0", 4.0)))
    assert tasks(grant(Capacity(4.0, 8 * GIB), [], line)) == ["a/w:0"]


def test_what_a_gang_holds_counts_towards_its_least() -> None:
    held = [Hold("a", one) for one in gang("w", 2, least=2)]
    line = asks(("a", request("w:2", gang="g", least=2)), ("b", request("w:0")))
    assert tasks(grant(Capacity(3.0, 8 * GIB), held, line)) == ["b/w:0"]


def test_a_job_that_holds_something_is_not_made_to_wait_for_one_that_waits_for_it() -> None:
    held = [Hold("a", request("w:0"))]
    line = asks(("b", request("w:0", 2.0, priority=9)), ("a", request("w:1")))
    assert tasks(grant(TWO, held, line)) == ["a/w:1"]


def test_a_job_that_is_in_its_own_way_does_not_stop_the_line() -> None:
    held = [Hold("a", request("ps:0"))]
    line = asks(("a", request("w:0", 2.0)), ("b", request("w:0")))
    assert tasks(grant(TWO, held, line)) == ["b/w:0"]


def test_a_device_is_held_once_and_those_that_others_use_are_not_given() -> None:
    line = asks(("a", request("w:0", 0.1, gpus=1)), ("b", request("w:0", 0.1, gpus=1)), ("c", request("w:0", 0.1)))
    assert [hold.devices for hold in grant(TWO, [], line)] == [("GPU-a",), ("GPU-b",), ()]
    busy = attrs.evolve(TWO, busy=frozenset(["GPU-a"]))
    assert [hold.devices for hold in grant(busy, [], line)] == [("GPU-b",)]


def test_waiting_says_what_is_asked_and_free_and_how_many_are_ahead() -> None:
    held = [Hold("x", request("w:0", 1.5))]
    line = asks(("a", request("w:0", 2.0)), ("b", request("w:0", 0.5)))
    first, second = queue.waiting(TWO, held, line, "a"), queue.waiting(TWO, held, line, "b")
    assert first is not None
    assert second is not None
    assert (first.resource, first.asked, first.free, first.position) == ("cores", "2", "0.5", 1)
    assert first.detail == "w:0 waits for 2 cores: 0.5 of 2 free, held by x"
    assert (second.position, second.detail) == (2, "w:0 waits for 0.5 cores: 0.5 of 2 free, behind job a")
    assert queue.waiting(TWO, held, line, "nobody") is None


def test_what_can_never_be_granted_is_refused_with_both_figures() -> None:
    assert queue.refusal(TWO, gang("w", 2)) == ""
    assert (
        queue.refusal(TWO, gang("w", 3)) == "3 containers that start together need 3 cores, this machine has 2 for jobs"
    )
    assert queue.refusal(TWO, [request("w:0", memory=12 * GIB)]).startswith("w:0 needs 12 GiB of memory, this")


# -- properties --

JOBS = st.sampled_from("abc")


@st.composite
def lines(draw: st.DrawFn) -> tuple[Capacity, list[Hold], list[Ask]]:
    """A machine, what is held (within it) and a line, in which gangs, least, priorities and devices occur."""
    capacity = Capacity(
        draw(st.integers(1, 6)) / 2, draw(st.integers(1, 6)) * GIB, ("0", "1", "2")[: draw(st.integers(0, 3))]
    )
    given: list[tuple[str, Request]] = []
    for job in "abc":
        least = {role: draw(st.integers(0, 2)) for role in ("w", "p")}
        for number in range(draw(st.integers(0, 5))):
            role = draw(st.sampled_from(("w", "p")))
            name, gpus = draw(st.sampled_from(("", "g"))), draw(st.integers(0, 1))
            given.append(
                (
                    job,
                    Request(
                        f"{role}:{number}", 1, role, number, draw(st.integers(0, 3)) * GIB // 2, draw(st.integers(0, 3)) / 2,
                        gpus, draw(st.integers(0, 1)), name, least[role] if name else 0,
                    ),
                )
            )  # fmt: skip
    line = asks(*draw(st.permutations(given)))
    held_before = grant(capacity, [], [ask for ask in line if draw(st.booleans())])
    held = {(hold.job, hold.request.task) for hold in held_before}
    return capacity, held_before, [ask for ask in line if (ask.job, ask.request.task) not in held]


@given(lines())
def test_never_more_than_there_is_and_each_device_once(world: tuple[Capacity, list[Hold], list[Ask]]) -> None:
    capacity, held, line = world
    every = held + grant(capacity, held, line)
    assert not queue.amount(hold.request for hold in every).lacking(queue.total(capacity))
    devices = Counter(device for hold in every for device in hold.devices)
    assert set(devices) <= set(capacity.devices)
    assert all(count == 1 for count in devices.values())
    assert all(len(hold.devices) == hold.request.gpus for hold in every)


@given(lines())
def test_needs_are_met_whole_and_in_order_and_growth_only_when_all_are(
    world: tuple[Capacity, list[Hold], list[Ask]],
) -> None:
    capacity, held, line = world
    granted = grant(capacity, held, line)
    got = {(hold.job, hold.request.task) for hold in granted}
    stopped, grown = False, False
    for unit in queue.line(held, line):
        met = {(ask.job, ask.request.task) in got for ask in unit.need}
        assert len(met) <= 1, "a need was met in part"
        grown |= any((ask.job, ask.request.task) in got for ask in unit.growth)
        if met == {True}:
            assert not stopped, "one behind was served before one ahead"
        elif met == {False}:
            own = queue.amount(hold.request for hold in held if hold.job == unit.job)
            stopped |= not (unit.amount + own).lacking(queue.total(capacity))
    assert not (stopped and grown)


@given(lines())
def test_growth_has_no_gaps_and_begins_with_the_lowest(world: tuple[Capacity, list[Hold], list[Ask]]) -> None:
    capacity, held, line = world
    got = {(hold.job, hold.request.task) for hold in grant(capacity, held, line)}
    for unit in queue.line(held, line):
        for role in {ask.request.role for ask in unit.growth}:
            members = [ask for ask in unit.growth if ask.request.role == role]
            members.sort(key=lambda ask: (-ask.request.priority, ask.request.index))
            given_ones = [(ask.job, ask.request.task) in got for ask in members]
            assert given_ones == sorted(given_ones, reverse=True)


@given(lines())
def test_granting_again_gives_nothing_and_what_the_head_needs_is_given_if_it_fits(
    world: tuple[Capacity, list[Hold], list[Ask]],
) -> None:
    capacity, held, line = world
    granted = grant(capacity, held, line)
    got = {(hold.job, hold.request.task) for hold in granted}
    left = [ask for ask in line if (ask.job, ask.request.task) not in got]
    units = [unit for unit in queue.line(held, line) if unit.need]
    if units and not units[0].amount.lacking(queue.free(capacity, held)):
        assert {(ask.job, ask.request.task) for ask in units[0].need} <= got
    if not left:
        assert grant(capacity, held + granted, left) == []


# -- growth, and giving way --


def held(job: str, count: int, **more: object) -> list[Hold]:
    return [Hold(job, request(f"w:{index}", **more)) for index in range(count)]


def test_growth_is_granted_after_all_that_is_needed_and_stops_nobody() -> None:
    line = asks(("a", request("w:2", growth=True)), ("b", request("w:0")), ("c", request("w:0", 2.0)))
    assert tasks(grant(TWO, [], line)) == ["b/w:0"]
    assert tasks(grant(TWO, [], line[:2])) == ["b/w:0", "a/w:2"]
    assert queue.waiting(TWO, [], line[:1], "a") is None


def test_the_higher_job_goes_before_one_that_holds_something() -> None:
    line = asks(("low", request("w:1", 2.0)), ("high", request("w:0", 2.0, job_priority=1)))
    assert tasks(grant(TWO, held("low", 0), line)) == ["high/w:0"]


def test_an_elastic_job_gives_way_down_to_its_least_highest_indexes_first() -> None:
    four = Capacity(4.0, 8 * GIB)
    holds = held("low", 4, minimum=1)
    line = asks(("high", request("w:0", job_priority=1)), ("high", request("w:1", job_priority=1)))
    assert [(hold.request.task, by) for hold, by in queue.reclaim(four, holds, line[:1])] == [("w:3", "high")]
    assert [
        hold.request.task for hold, _ in queue.reclaim(four, holds, asks(("high", request("w:0", 3.0, job_priority=1))))
    ] == ["w:3", "w:2", "w:1"]


def test_what_gives_way_already_is_waited_for() -> None:
    four = Capacity(4.0, 8 * GIB)
    holds = held("low", 3, minimum=1)
    holds.append(Hold("low", request("w:3", minimum=1), yields_to="high"))
    assert queue.reclaim(four, holds, asks(("high", request("w:0", job_priority=1)))) == []
    assert (
        "; low gives way" in queue.waiting(four, holds, asks(("high", request("w:0", job_priority=1))), "high").detail
    )


def test_whole_jobs_give_way_where_elastic_ones_do_not_do_the_lowest_and_newest_first() -> None:
    four = Capacity(4.0, 8 * GIB)
    holds = [*held("older", 1), *held("newer", 1), *held("higher", 1, job_priority=1), *held("elastic", 1, minimum=1)]
    line = asks(("high", request("w:0", 2.0, job_priority=2)))
    assert [hold.job for hold, _ in queue.reclaim(four, holds, line)] == ["elastic", "newer"]


def reclaimed(capacity: Capacity, holds: list[Hold], *needs: Request) -> list[str]:
    return tasks([hold for hold, _ in queue.reclaim(capacity, holds, asks(*(("high", need) for need in needs)))])


GPU = Capacity(4.0, 8 * GIB, ("GPU-a",))
NEEDS_GPU = request("w:0", gpus=1, job_priority=3)


def test_a_job_whose_end_would_not_help_goes_on() -> None:
    holds = [*held("cpu", 1), Hold("gpu", request("w:0", gpus=1, job_priority=1), ("GPU-a",))]
    assert reclaimed(GPU, holds, NEEDS_GPU) == ["gpu/w:0"]


def test_members_that_would_not_help_stay() -> None:
    holds = [*held("elastic", 2, minimum=1), Hold("gpu", request("w:0", gpus=1), ("GPU-a",))]
    assert reclaimed(GPU, holds, NEEDS_GPU) == ["gpu/w:0"]


def test_a_job_that_ends_keeps_none_of_its_members() -> None:
    holds = held("elastic", 4, minimum=2)
    assert len(reclaimed(GPU, holds, request("w:0", 3.0, job_priority=1))) == 4


def test_members_give_way_alone_where_another_job_ends_for_what_their_own_lacks() -> None:
    holds = [*held("elastic", 3, minimum=1), Hold("gpu", request("w:0", gpus=1, job_priority=1), ("GPU-a",))]
    assert reclaimed(GPU, holds, request("w:0", 2.0, gpus=1, job_priority=3)) == ["elastic/w:2", "gpu/w:0"]


def test_of_what_is_too_much_the_highest_priority_stays() -> None:
    sizes = {"lowest": (2.0, 0), "middle": (1.0, 1), "highest": (3.0, 2)}
    holds = [Hold(job, request("w:0", cores, job_priority=priority)) for job, (cores, priority) in sizes.items()]
    six = Capacity(6.0, 8 * GIB)
    assert reclaimed(six, holds, request("w:0", 4.0, job_priority=3)) == ["lowest/w:0", "highest/w:0"]


@given(lines(), st.permutations("abc"), st.sampled_from((0, 1, 2)))
def test_what_gives_way_is_enough_and_no_whole_job_goes_for_nothing(
    world: tuple[Capacity, list[Hold], list[Ask]], order: list[str], minimum: int
) -> None:
    capacity, known, line = world
    priorities = {job: priority for priority, job in enumerate(order)}

    def ranked(rows: Sequence[Any]) -> list[Any]:
        return [
            attrs.evolve(row, request=attrs.evolve(row.request, job_priority=priorities[row.job], minimum=minimum))
            for row in rows
        ]

    holds, waits = ranked(known), ranked(line)
    going = queue.reclaim(capacity, holds, waits)
    if not going:
        return
    unit = next(
        unit for unit in queue.line(holds, waits) if unit.need and not queue._is_hopeless(capacity, holds, unit)
    )
    gone = {(hold.job, hold.request.task): hold for hold, _ in going}
    assert {by for _, by in going} == {unit.job}
    assert all(priorities[job] < priorities[unit.job] for job, _ in gone)

    def lacking(jobs: set[str]) -> str:
        """Return what would lack if only the holds of these jobs went."""
        left = [hold for hold in holds if (hold.job, hold.request.task) not in gone or hold.job not in jobs]
        return unit.amount.lacking(queue.free(capacity, left))

    jobs = {job for job, _ in gone}
    assert not lacking(jobs)
    assert all(lacking(jobs - {job}) for job in jobs)
    for job in jobs:
        roles = Counter(hold.request.role for hold in holds if hold.job == job)
        left = roles - Counter(hold.request.role for hold in gone.values() if hold.job == job)
        assert not left or all(left[role] in (count, *range(minimum, count)) for role, count in roles.items())


def test_nothing_is_taken_where_that_would_not_do_or_from_equals() -> None:
    four = Capacity(4.0, 8 * GIB)
    holds = [*held("equal", 3, job_priority=1), *held("low", 1)]
    assert queue.reclaim(four, holds, asks(("high", request("w:0", 2.0, job_priority=1)))) == []
    assert queue.reclaim(four, holds, asks(("high", request("w:0", 8.0, job_priority=1)))) == []
