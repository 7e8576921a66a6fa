"""Series of metrics: however long a job lives, they stay bounded, and tell all of its life."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core import metrics
from trainmaster.core.metrics import JOB, Points, Series, Store, readings, reported, requested
from trainmaster.core.spec.reading import job_from

NUMBERS = st.floats(-1e6, 1e6)
SAMPLES = st.lists(st.tuples(st.floats(0.0, 60.0), NUMBERS, st.booleans()), min_size=1, max_size=150)
ROOM = 16


def filled(samples: list[tuple[float, float, bool]], room: int = ROOM) -> Points:
    """Points after samples (seconds since the last one, value, whether an attempt ended before it)."""
    points, at = Points(), 1e9
    for seconds, value, has_ended in samples:
        at += seconds
        points.interrupted = points.interrupted or has_ended
        if points.add(at, value):
            points.shrink(room)
    return points


@given(SAMPLES)
def test_a_series_is_bounded_and_its_sum_and_its_highest_stay(samples: list[tuple[float, float, bool]]) -> None:
    points = filled(samples)
    times, means, highest, signed = (points.cells[n::4] for n in range(4))
    counts = [abs(count) for count in signed]
    assert len(points) == len(counts) <= ROOM
    assert list(times) == sorted(times)
    assert sum(counts) == len(samples)
    total = math.fsum(value for _, value, _ in samples)
    assert math.fsum(map(lambda mean, count: mean * count, means, counts)) == pytest.approx(total, abs=1e-3)
    assert max(highest) == max(value for _, value, _ in samples)
    assert all(mean <= highest + 1e-6 for mean, highest in zip(means, highest, strict=True))
    assert times[0] == pytest.approx(1e9 + samples[0][0])
    assert points.value == samples[-1][1]


@given(SAMPLES)
def test_a_gap_stays_while_it_is_wider_than_a_point(samples: list[tuple[float, float, bool]]) -> None:
    points = filled(samples)
    series = points.series("worker:0", "cpu", 0.0)
    at = 1e9
    for n, (seconds, _, has_ended) in enumerate(samples):
        if n and has_ended and seconds > max(points.width, 1.0):
            between = [
                value for time, value in zip(series.times, series.values, strict=True) if at <= time <= at + seconds
            ]
            assert None in between
        at += seconds
    assert series.values.count(None) <= sum(has_ended for _, _, has_ended in samples[1:])
    assert [value is None for value in series.values] == [value is None for value in series.highest]


@given(SAMPLES, st.floats(0.0, 3000.0))
def test_a_reader_goes_on_where_it_was(samples: list[tuple[float, float, bool]], seconds: float) -> None:
    """It replaces the point that has grown, and appends what follows."""
    points = filled(samples)
    series, since = points.series("", "x", 0.0), 1e9 + seconds
    later = points.series("", "x", since)
    assert series.times[len(series.times) - len(later.times) :] == later.times
    assert all(time <= later.times[0] or time > since for time in series.times if time < later.times[0])


def test_a_day_of_samples_has_points_at_even_distances() -> None:
    store = Store()
    for n in range(28_800):
        store.add(1e9 + 3.0 * n, "worker:0", {"cpu": float(n % 7), "step": float(10 * n)})
    cpu, step, steps = store.series()
    assert len(cpu.times) > metrics.POINTS // 2 - 2
    assert max(cpu.highest, key=lambda value: value or 0.0) == 6.0
    assert None not in cpu.values
    assert step.highest[-1] == 10 * 28_799
    assert [round(value or 0.0, 6) for value in steps.values] == [round(10 / 3, 6)] * len(steps.values)


def test_silence_is_a_gap_of_what_agents_send_and_none_of_what_programs_report() -> None:
    store = Store()
    for at in (0.0, 3.0, 100.0):
        store.add(1e9 + at, "worker:0", {"cpu": 1.0, "metric.loss": 0.5, "gpu.0.util": 80.0})
    values = {series.name: series.values for series in store.series()}
    assert values["cpu"] == [1.0, 1.0, None, 1.0]
    assert values["gpu.0.util"] == [80.0, 80.0, None, 80.0]
    assert values["metric.loss"] == [0.5, 0.5, 0.5]
    store.interrupt("worker:0")
    store.add(1e9 + 101.0, "worker:0", {"metric.loss": 0.25})
    assert store.series(names={"metric.loss"})[0].values == [0.5, 0.5, 0.5, None, 0.25]


def test_the_whole_job_is_the_sum_of_its_tasks() -> None:
    store = Store()
    for n in range(3):
        store.add(1e9 + 3 * n, "worker:0", {"cpu": 1.0, "memory": 5.0, "progress": 0.5, "step": 6.0 * n})
        store.add(1e9 + 3 * n, "worker:1", {"cpu": 0.5, "memory": 7.0, "progress": 0.25, "records": 12.0 * n})
    expected = {"cpu": 1.5, "memory": 12.0, "steps": 2.0, "records.rate": 4.0, "records": 24.0}
    assert store.totals(1e9 + 7) == expected
    store.interrupt("worker:1")
    assert store.totals(1e9 + 8) == {"cpu": 1.0, "memory": 5.0, "steps": 2.0, "records": 24.0}
    assert store.totals(1e9 + 100) == {"records": 24.0}
    store.add(1e9 + 100, JOB, {"records": 24.0})
    store.add(1e9 + 110, JOB, {"records": 48.0})
    assert [series.name for series in store.series([JOB])] == ["records"]  # its rate is the sum of its tasks' rates


def test_the_whole_job_has_the_mean_use_of_all_its_gpus_and_the_sum_of_their_memory() -> None:
    store = Store()
    store.add(1e9, "worker:0", {"gpu.0.util": 90.0, "gpu.0.memory": 5.0, "gpu.1.util": 30.0, "gpu.1.memory": 2.0})
    store.add(1e9, "worker:1", {"gpu.0.util": 60.0, "gpu.0.memory": 1.0, "cpu": 1.0})
    assert store.totals(1e9 + 1) == {"cpu": 1.0, "gpu.all.util": 60.0, "gpu.all.memory": 8.0}
    store.interrupt("worker:0")
    assert store.totals(1e9 + 1) == {"cpu": 1.0, "gpu.all.util": 60.0, "gpu.all.memory": 1.0}


def test_steps_that_begin_again_are_no_negative_rate() -> None:
    store = Store()
    for at, step in ((0, 100), (3, 110), (6, 20), (9, 50)):
        store.add(1e9 + at, "worker:0", {"step": float(step)})
    assert store.series(names={"steps"})[0].values == [pytest.approx(10 / 3), 10.0]


def test_all_series_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "BUDGET", 64 * 16)
    monkeypatch.setattr(metrics, "POINTS", 64)
    monkeypatch.setattr(metrics, "NAMES", 20)
    monkeypatch.setattr(metrics, "SERIES", 64)
    store = Store()
    for n in range(70):
        for task in range(12):
            store.add(1e9 + n, f"worker:{task}", {"cpu": 1.0, "memory": 2.0, **{f"metric.{i}": 3.0 for i in range(30)}})
        store.add(1e9 + n, JOB, {"cpu": 12.0})
    series = store.series()
    assert (
        len({one.task for one in series if one.name == "cpu"}) == 13
    )  # usage is kept of each, other names of as many as there is room for
    assert 32 <= len(series) <= 64
    assert max(sum(one.task == f"worker:{task}" for one in series) for task in range(12)) == metrics.NAMES
    assert sum(len(one.times) for one in series if one.task) <= 64 * 16
    assert [len(one.times) for one in series if one.task == JOB] == [pytest.approx(40, abs=24)]


def a_store() -> Store:
    store = Store()
    for n in range(2000):
        store.add(1e9 + 3 * n, "worker:0", {"cpu": n * 0.1, "metric.<b>loss</b>": 1 / (n + 1)})
        if n % 700 == 0:
            store.interrupt("worker:0")
        store.add(1e9 + 3 * n, JOB, {"cpu": n * 0.1})
    return store


def test_a_snapshot_brings_all_back_and_goes_on_alike() -> None:
    store, again = a_store(), Store()
    for facts, content in store.rows():
        again.restore(facts, content)
    assert again.series() == sorted(store.series(), key=lambda series: series.task)
    for each in (store, again):
        each.add(2e9, "worker:0", {"cpu": 5.0})
    assert again.series(["worker:0"]) == store.series(["worker:0"])


DAMAGE: list[Callable[[dict[str, object], bytes], tuple[dict[str, object], bytes]]] = [
    lambda facts, content: (facts, content[:-1]),
    lambda facts, content: (facts, b"\xff" * len(content)),
    lambda facts, content: (facts, bytes(len(content))),
    lambda facts, content: ({**facts, "points": -1}, content),
    lambda facts, content: ({**facts, "points": "many"}, content),
    lambda facts, content: ({**facts, "width": -1.0}, content),
    lambda facts, content: ({**facts, "last": float("nan")}, content),
    lambda facts, content: ({**facts, "task": None}, content),
    lambda facts, content: ({name: value for name, value in facts.items() if name != "value"}, content),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_series_is_refused_whole(
    damage: Callable[[dict[str, object], bytes], tuple[dict[str, object], bytes]],
) -> None:
    for facts, content in a_store().rows():
        again = Store()
        with pytest.raises((ValueError, TypeError, KeyError)):
            again.restore(*damage(facts, content))
        assert again.series() == []


def test_numbers_alone_are_kept() -> None:
    sample = {
        "cpu": 0.5,
        "memory": 100,
        "gpus": [{"index": 1, "util": 0.25, "memory": 7, "total": 9}],
        "progress": None,
        "step": 3,
    }
    assert readings(sample) == {"cpu": 0.5, "memory": 100.0, "gpu.1.util": 25.0, "gpu.1.memory": 7.0, "step": 3.0}
    odd = {"loss": "nan", "on": True, "big": 10**400, "inf": math.inf, "ok": 2, "x" * 200: 1.0}
    kept = reported({"value": 0.5, "metrics": odd})
    assert {name: value for name, value in kept.items() if value == value} == {
        "progress": 0.5,
        "metric.ok": 2.0,
        "metric." + "x" * 64: 1.0,
    }
    assert [name for name, value in kept.items() if value != value] == ["metric.loss", "metric.inf"]
    assert reported({"value": "nan", "step": "nan"}) == {}, "only a program's own metrics may be nan"
    assert len(reported({"metrics": {str(n): n for n in range(500)}})) == metrics.METRICS
    with pytest.raises((ValueError, TypeError, LookupError)):
        readings({"gpus": [{"index": "<b>", "util": 1.0, "memory": 1}]})


def test_a_loss_that_is_nan_stays_one_however_coarse_its_series_gets() -> None:
    store = Store()
    for n in range(5000):
        loss = "nan" if n in (2000, 4999) else 1.0
        store.add(1e9 + 3 * n, "worker:0", reported({"metrics": {"loss": loss}}))
    again = Store()
    for facts, content in store.rows():
        again.restore(json.loads(json.dumps(facts)), content)
    assert again.series() == store.series()
    (row,) = store.series(names=["metric.*"])
    assert (row.is_nan, len(row.nans), len(row.times) < 1000) == (True, 2, True)
    assert [row.values[row.times.index(time)] for time in row.nans] == [None, None]
    assert {value for value in row.values if value is not None} == {1.0}
    store.add(1e9 + 20_000, "worker:0", {"metric.loss": 0.5})
    assert [row.is_nan for row in store.series()] == [False]


def test_what_was_asked_is_read_from_the_job() -> None:
    resources = {"cores": 2, "memory": "1GiB"}
    job = job_from({"name": "t", "roles": {"worker": {"command": "true", "resources": resources}}})
    assert requested(job, "worker:3") == {"cpu": 2.0, "memory": float(2**30)}


def test_nothing_was_measured() -> None:
    assert Store().series() == [] == Store().series(["worker:0"], ["cpu"], 5.0)
    assert Store().totals(1e9) == {}
    assert Points().series("a", "b", 0.0) == Series("a", "b", [], [], [], [])
