"""The number of members that follows from what each brings, over made-up measurements; and what is measured of reports."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import Script, job, role

from trainmaster.core.decide.autoscaling import share, wanted_size
from trainmaster.core.decide.stragglers import judge
from trainmaster.core.errors import BadInput
from trainmaster.core.machine.report import status
from trainmaster.core.machine.stimuli import Measured, Pace, Rate, Report, ScaleRequested
from trainmaster.core.pace import INTERVALS, MOST, OWN_TIME, SHORTEST, SPACING, WARM_UP, Paces
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.words.events import event_line


def rates(**works: float) -> dict[int, tuple[float, float]]:
    """Rates by size, as in n4=400.0, each measured at 100 s."""
    return {int(name[1:]): (work, 100.0) for name, work in works.items()}


@pytest.mark.parametrize(
    ("known", "size", "wanted"),
    [
        (rates(n1=10), 1, 2),  # what more bring is not known
        (rates(n1=10, n2=20), 2, 4),
        (rates(n1=10, n2=15), 2, 4),  # the last brought half
        (rates(n1=10, n2=14), 2, 1),
        (rates(n1=10, n2=20, n4=40, n8=41), 8, 4),
        (rates(n1=10, n2=20, n4=40, n8=50), 8, 5),
        (rates(n1=10, n2=20, n4=40, n8=60), 8, 16),
        (rates(n1=10, n2=20, n4=40, n8=80, n16=160), 16, 16),
        (rates(n1=10, n2=20, n4=40, n8=41), 4, 4),  # which brought too little a moment ago
        (rates(n1=10, n2=20, n4=40, n8=80), 4, 8),  # which did bring something
        (rates(n8=80), 8, 16),
        (rates(n16=80), 16, 16),
        (rates(n15=150, n16=155, n4=40), 16, 16),  # compared with 4: one alone tells nothing
        (rates(n1=10, n2=5), 2, 1),
        (rates(n1=0, n2=5), 2, 4),
    ],
)
def test_the_size_that_follows(known: dict[int, tuple[float, float]], size: int, wanted: int) -> None:
    assert wanted_size(known, size, 1, 16, tried=50.0) == wanted


def test_a_larger_size_is_tried_again_after_a_while() -> None:
    known = rates(n2=20, n4=40, n8=41)
    assert wanted_size(known, 4, 1, 16, tried=100.0) == 8


def test_it_never_goes_below_the_least_and_gives_back_only_what_was_measured_twice() -> None:
    known = rates(n4=40, n8=41)
    assert wanted_size(known, 8, 6, 16, tried=0.0) == 6
    assert wanted_size(known, 8, 8, 16, tried=0.0) == 16, "at the least number there is nothing to give back"
    assert wanted_size(known, 8, 1, 16, tried=0.0, is_sure=False) == 8
    assert share(known, 4, 8) == pytest.approx(0.025)


def test_the_key_is_read_as_yaml_gives_it() -> None:
    data = {"roles": {"worker": {"command": "true"}}}
    for given, auto in ((True, "on"), (False, "off"), ("advise", "advise"), ("on", "on")):
        read = job_from({**data, "scale": {"auto": given}})
        assert read.scale.auto == auto
        assert job_from(job_to(read)) == read
    with pytest.raises(BadInput, match="expected off, advise or on"):
        job_from({**data, "scale": {"auto": "always"}})


# -- a job driven by hand --


def measured(script: Script, size: int, rate: float, after: float = 60.0) -> None:
    script.take(Measured({}, [Rate("worker", size, rate, "steps")]), after=after)


def elastic(**scale: Any) -> Script:
    script = Script(job(worker=role({"min": 1, "max": 8}), scale=scale))
    script.start("worker:0")
    return script


def test_it_begins_with_the_least_and_asks_for_what_it_wants_by_the_way_that_users_do() -> None:
    script = elastic(auto="on", every="1m")
    assert [task.key for task in script.state.tasks.values() if task.hold == "asked"] == []
    measured(script, 1, 10.0)
    assert script.last("scale-requested")["size"] == 2
    script.start("worker:1")
    assert script.last("resized")["sizes"] == {"worker": 2}
    measured(script, 2, 11.0)
    assert script.count("scale-requested") == 1, "once is not enough"
    measured(script, 2, 11.0)
    assert script.last("scale-requested")["size"] == 1
    assert script.last("resized")["left"] == ["worker:1"]
    words = status(script.state)["scaling"]["worker"]["words"]
    assert words == "1 of 1 to 8; 1 made 10 steps a second, 2 made 11 steps a second"
    event = next(event for event in reversed(script.log) if event.type == "scale-requested")
    line = event_line({"n": event.n, "at": event.at, "type": event.type, **event.data})
    grounds = "2 make 11 steps a second, and each beyond 1 brings 10 % of what each of those does, so 1 would do"
    assert line.endswith(f"autoscaling asked for 1 x worker: {grounds}")


def test_a_user_beats_it_until_it_is_given_back() -> None:
    script = elastic(auto="on")
    script.take(ScaleRequested("worker", 3, "a user"))
    script.start("worker:1", "worker:2")
    measured(script, 3, 30.0)
    assert script.last("scale-requested")["size"] == 3
    assert status(script.state)["scaling"]["worker"]["words"].endswith("a user chose the number")
    script.take(ScaleRequested("worker", None, "a user"))
    measured(script, 3, 30.0)
    assert script.last("scale-requested")["size"] == 6


def test_advice_changes_nothing_and_is_taken_back() -> None:
    script = elastic(auto="advise")
    measured(script, 1, 10.0)
    script.start("worker:1", "worker:2", "worker:3")
    for _ in range(2):
        measured(script, 4, 11.0)
    assert script.last("scale-advised")["size"] == 1
    assert "worker would go from 4 to 1: 4 make 11 steps a second" in status(script.state)["scaling"]["worker"]["words"]
    for _ in range(6):
        measured(script, 4, 40.0)
    assert script.last("scale-advised")["size"] == 4
    assert "would" not in status(script.state)["scaling"]["worker"]["words"]
    assert not script.count("scale-requested")


# -- what is measured --


def test_a_pace_is_the_median_of_the_last_reports_after_the_warm_up() -> None:
    script = Script(job(worker=role(1)))
    script.start("worker:0")
    paces, seen, now, step = Paces(), None, 0.0, 0
    for _ in range(int(WARM_UP / SPACING) + INTERVALS - 1):
        seen, now, step = _heard(paces, script, now, step=step), now + SPACING, step + 10
        assert seen is None or not seen.paces
    for _ in range(4):
        now += 100.0  # pauses
        seen = _heard(paces, script, now, step=step)
        now, step = now + SPACING, step + 10
        seen = _heard(paces, script, now, step=step)
    assert seen is not None
    assert seen.paces["worker:0"].seconds == pytest.approx(SPACING / 10)
    for _ in range(INTERVALS + 1):  # what it tells itself comes first
        now, step = now + SPACING, step + 10
        seen = _heard(paces, script, now, step=step, metrics={"step_time": 0.25})
    assert seen is not None
    assert (seen.paces["worker:0"].per, seen.paces["worker:0"].seconds) == (OWN_TIME, 0.25)


def _heard(paces: Paces, script: Script, now: float, **data: Any) -> Measured | None:
    return paces.take(script.state, [Report("worker:0", 1, int(now) + 1, 1, "progress", data)], now)


def test_of_two_nobody_is_named_and_of_three_the_one_that_is_slow() -> None:
    script = Script(job(worker=role(3)))
    script.start("worker:0", "worker:1", "worker:2")
    two = {"worker:0": Pace("step", 1.0), "worker:1": Pace("step", 9.0)}
    assert judge(script.state, two) == []
    assert judge(script.state, {**two, "worker:2": Pace("shard", 1.0)}) == [], "which are measured in different ways"
    assert judge(script.state, {**two, "worker:2": Pace(OWN_TIME, 1.0)}) == [], "one tells the seconds of its own work"
    ((kind, fact),) = judge(script.state, {**two, "worker:2": Pace("step", 1.1)})
    assert (kind, fact["task"], fact["seconds"], fact["median"]) == ("straggling", "worker:1", 9.0, 1.1)


def test_throughputs_of_any_size_and_rare_steps_are_measured() -> None:
    """Figures that mean nothing are none: sums of them would be infinite."""
    script = elastic(auto="on")

    def rate(paces: Paces, *figures: float, every: float = SHORTEST) -> list[float]:
        rates: list[float] = []
        for number in range(60):
            metrics = {"throughput": figures[number % len(figures)]} if figures else {}
            seen = _heard(paces, script, every * number, step=number, metrics=metrics)
            rates += [measured.rate for measured in seen.rates] if seen is not None else []
        return rates

    assert set(rate(Paces(), 1e308)) == {0.2}, "steps are counted then"
    assert set(rate(Paces(), 5e-324)) == {0.0}
    assert set(rate(Paces(), MOST)) == {MOST}
    assert rate(Paces(), every=36000.0)[0] == pytest.approx(1 / 36000, rel=1e-4)


def test_a_slow_attempt_that_ends_as_it_is_measured_is_not_held_against_the_next() -> None:
    script = Script(job(worker=role(3, restart={"scope": "task"}, stragglers="replace"), gang=False))
    script.start("worker:0", "worker:1", "worker:2")
    script.fail("worker:2", after=300.0)
    script.take(Measured({f"worker:{n}": Pace("step", 1.0 + 8 * (n == 2)) for n in range(3)}, []))
    script.start("worker:2")
    script.tick()
    assert (script.count("straggling"), script.count("attempt-written-off")) == (0, 0)
