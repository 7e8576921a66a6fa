"""How fast programs work, in simulated hours: slow ones are named and replaced, and roles find the size at which members still help."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from trainmaster.core.decide.stragglers import APART
from trainmaster.core.machine.report import status
from trainmaster.core.machine.stimuli import ScaleRequested
from trainmaster.simulation.agent import Habits
from trainmaster.simulation.play import Play, Scene
from trainmaster.simulation.steps import Steps
from trainmaster.simulation.world import BEGINNING

HOUR = 3600.0


def played(
    steps: Steps, replicas: Any, *, hours: float = 1.0, scope: str = "task", role: dict[str, Any] | None = None, wishes: Any = (),
    **keys: Any,
) -> Play:  # fmt: skip
    """Return a job of so many hours, whose programs make these steps, once it has ended well."""
    worker = {"command": "true", "replicas": replicas, "restart": {"scope": scope, "limit": 0}, **(role or {})}
    job = {"name": "paced", "roles": {"worker": worker}, "gang": scope == "group", **keys}
    # Each attempt works for all of the hours: what began last ends last.
    habits = Habits(
        runs=(hours * HOUR, hours * HOUR),
        progresses=False,
        steps=steps,
        saves_every=20.0 if "checkpoint" in keys else 0.0,
    )
    play = Play(Scene(job, habits, nodes=64, wishes=wishes), 1)
    assert play.run().state == "succeeded"
    return play


def told(play: Play, kind: str) -> list[tuple[float, dict[str, Any]]]:
    return [(event.at - BEGINNING, dict(event.data)) for event in play.master.log if event.type == kind]


def node_of(task: str, **job: Any) -> str:
    """The node that a task of such a job is on at first: the same each time."""
    play = played(Steps(), 6, hours=0.01, **job)
    return next(data["node"] for _, data in told(play, "granted") if data["task"] == task)


# -- stragglers --


def test_a_slow_host_is_found_and_named_until_it_is_as_fast_as_the_others() -> None:
    play = played(Steps(slow=2.0, node=node_of("worker:2"), until=1800.0, noise=0.1), 6)
    (named,), (over,) = told(play, "straggling"), told(play, "straggling-over")
    at, data = named
    assert data["task"] == over[1]["task"] == "worker:2"
    assert 120 < at < 240, "a minute for its warm-up, one for its measurement"
    assert (data["seconds"], data["median"]) == (pytest.approx(2.0, rel=0.1), pytest.approx(1.0, rel=0.1))
    assert 1800 < over[0] < 1900
    assert not told(play, "incident")


def test_one_that_is_named_is_shown_with_its_figures() -> None:
    scene = Scene(
        {"name": "paced", "roles": {"worker": {"command": "true", "replicas": 6, "restart": {"scope": "task"}}}, "gang": False},
        Habits(runs=(HOUR, HOUR), progresses=False, steps=Steps(slow=2.0, node=node_of("worker:2"))), nodes=64, until=600.0,
    )  # fmt: skip
    play = Play(scene, 1)
    play.run()
    shown = {
        row["task"]: row["straggling"]["words"] for row in status(play.master.state)["tasks"] if "straggling" in row
    }
    assert shown.keys() == {"worker:2"}
    assert "a step, their median is" in shown["worker:2"]


@pytest.mark.parametrize("scope", ["task", "group"])
def test_a_straggler_is_replaced_at_no_cost_where_that_is_asked_for(scope: str) -> None:
    slow = node_of("worker:2")
    play = played(Steps(slow=3.0, node=slow), 6, scope=scope, role={"stragglers": "replace"})
    replaced = [(at, data) for at, data in told(play, "attempt-written-off") if data["reason"] == "straggling"]
    assert replaced[0][1]["figures"]["node"] == slow
    assert all(later - earlier >= APART for (earlier, _), (later, _) in itertools.pairwise(replaced))
    assert len(replaced) < 3, "another container is on another node, most likely"
    assert {data["costs"] for _, data in told(play, "incident")} == {False}


def test_a_straggler_of_a_group_is_replaced_when_a_checkpoint_was_just_stored() -> None:
    job: Any = {
        "scope": "group",
        "role": {"stragglers": "replace"},
        "checkpoint": {"path": "ckpt", "url": "memory://ckpt"},
    }
    play = played(Steps(slow=3.0, node=node_of("worker:2", **job)), 6, **job)
    at = next(at for at, data in told(play, "attempt-written-off") if data["reason"] == "straggling")
    assert min(at - stored for stored, _ in told(play, "checkpoint-saved") if stored <= at) < 5.0


@pytest.mark.parametrize(
    ("steps", "replicas"),
    [
        (Steps(noise=0.5), 6),
        (Steps(warm_up=100.0), 6),
        (Steps(pause=120.0), 6),
        (Steps(slow=3.0, node=node_of("worker:1")), 2),
        (Steps(seconds=40.0, noise=0.2), 6),
    ],
    ids=["noise", "a warm-up", "an evaluation of one", "two tasks only", "long steps"],
)
def test_nobody_is_named_wrongly(steps: Steps, replicas: int) -> None:
    assert not told(played(steps, replicas), "straggling")


def test_one_that_joins_late_is_not_named() -> None:
    wishes = [(1.0, ScaleRequested("worker", 4, "a user")), (1200.0, ScaleRequested("worker", 6, "a user"))]
    play = played(Steps(warm_up=50.0, noise=0.2), {"min": 3, "max": 6}, wishes=wishes)
    assert any(data["joined"] for at, data in told(play, "resized") if at >= 1200.0)
    assert not told(play, "straggling")


# -- autoscaling --

MANY = {"min": 1, "max": 16}


def sizes(play: Play) -> list[tuple[float, int]]:
    """The size of the role after each change of it, with the time."""
    known = [(at, data["sizes"]["worker"]) for kind in ("sized", "resized") for at, data in told(play, kind)]
    return sorted(known)


def held(play: Play, begin: float, end: float) -> int:
    """The size that the role had for the longest time between the two."""
    seconds: Counter[int] = Counter()
    for (at, size), (until, _) in itertools.pairwise([*sizes(play), (end, 0)]):
        seconds[size] += int(max(0.0, min(until, end) - max(at, begin)))
    return seconds.most_common(1)[0][0]


def scaled(steps: Steps, hours: float = 1.5, auto: str = "on", **keys: Any) -> Play:
    return played(steps, MANY, hours=hours, scale={"every": "30s", "auto": auto}, **keys)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_job_that_scales_goes_to_its_most_and_stays_there(noise: float) -> None:
    play = scaled(Steps(noise=noise))
    known = sizes(play)
    assert known[0][1] == 1
    assert known[-1][1] == 16
    assert [size for _, size in known] == sorted(size for _, size in known), "it never shrank"
    assert known[-1][0] < 600.0
    asked = [data["size"] for _, data in told(play, "scale-requested")]
    assert asked == [2, 4, 8, 16]


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_one_with_a_bottleneck_settles_there(noise: float) -> None:
    play = scaled(Steps(room=4.0, noise=noise), hours=4.0)
    known = sizes(play)
    share = sum(
        (end - begin)
        for (begin, size), (end, _) in zip(known, [*known[1:], (4 * HOUR, 0)], strict=True)
        if 4 <= size <= 5
    )
    assert share > 0.85 * 4 * HOUR, known
    asked = [data["size"] for _, data in told(play, "scale-requested")]
    assert asked[:4] in ([2, 4, 8, 4], [2, 4, 8, 5])
    tries = sum(later > earlier for earlier, later in itertools.pairwise(asked[3:]))
    assert tries <= 6, f"after 5, 10, 20, 40, 80 and 160 minutes, more or less: {asked}"


def test_one_whose_bottleneck_goes_away_grows_further() -> None:
    play = scaled(Steps(room=4.0, later=(0.75 * HOUR, 100.0), noise=0.1), hours=3.0)
    known = sizes(play)
    assert held(play, 0.25 * HOUR, 0.75 * HOUR) in (4, 5)
    assert known[-1][1] == 16, known


def test_one_whose_bottleneck_tightens_shrinks() -> None:
    play = scaled(Steps(room=8.0, later=(0.75 * HOUR, 2.0), noise=0.1), hours=3.0)
    assert held(play, 0.25 * HOUR, 0.75 * HOUR) in (8, 9, 10)
    assert held(play, HOUR, 3 * HOUR) in (2, 3), sizes(play)


def test_a_group_that_restarts_together_grows_when_a_checkpoint_was_just_stored() -> None:
    checkpoint = {"path": "ckpt", "url": "memory://ckpt"}
    play = scaled(Steps(room=4.0, warm_up=20.0), scope="group", checkpoint=checkpoint)
    known = sizes(play)
    assert known[0][1] == 1
    assert known[-1][1] in (4, 5), known
    stored = [at for at, _ in told(play, "checkpoint-saved")]
    for at, _ in known[1:]:
        assert min(at - earlier for earlier in stored if earlier <= at) < 5.0
    assert len(known) < 18


def test_a_user_beats_it_until_the_number_is_given_back() -> None:
    wishes = [(500.0, ScaleRequested("worker", 3, "a user")), (2500.0, ScaleRequested("worker", None, "a user"))]
    play = scaled(Steps(), wishes=wishes)
    assert {size for at, size in sizes(play) if 600.0 < at < 2500.0} <= {3}
    assert [size for at, size in sizes(play) if at < 2500.0][-1] == 3
    assert sizes(play)[-1][1] == 16


def test_advice_is_told_and_nothing_done() -> None:
    wishes = [(10.0, ScaleRequested("worker", 4, "a user")), (900.0, ScaleRequested("worker", None, "a user"))]
    play = scaled(Steps(room=4.0), auto="advise", wishes=wishes)
    assert sizes(play)[-1][1] == 16, "it grows onto what is free, as always"
    assert {data["by"] for _, data in told(play, "scale-requested")} == {"a user"}
    (advised,) = told(play, "scale-advised")
    assert advised[1]["members"] in (15, 16)
    assert advised[1]["size"] in (4, 5)
    assert advised[1]["figures"]["share"] == pytest.approx(0.0, abs=0.1)


def test_nothing_is_measured_where_it_is_off() -> None:
    play = scaled(Steps(room=4.0), auto="off", hours=1.0)
    assert not told(play, "throughput")
    assert sizes(play)[-1][1] == 16
