"""Hints: each says what was seen, with figures, and which key of the job file to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from trainmaster.core.hints import Hint, hints
from trainmaster.core.metrics import Series

GIB = 2.0**30
JOB = {
    "roles": {
        "worker": {"resources": {"cores": 8.0, "memory": "16GiB", "gpus": 2}},
        "ps": {"resources": {"cores": 1.0, "memory": "1GiB", "gpus": 0}},
    },
    "timeouts": {"job": "2h"},
}


def status(**more: Any) -> dict[str, Any]:
    tasks = [{"task": f"worker:{index}", "role": "worker", "node": "n1"} for index in range(8)]
    tasks.append({"task": "ps:0", "role": "ps", "node": "n2"})
    return {"tasks": tasks, "submitted": 1_000.0, "at": 2_000.0, "ended": None, **more}


def series(task: str, name: str, values: Sequence[float | None], every: float = 10.0, highest: Any = None) -> Series:
    times = [1_000.0 + every * number for number in range(len(values))]
    return Series(task, name, times, values, highest or values)


def texts(*rows: Series, **more: Any) -> list[str]:
    return [hint.text for hint in hints(status(**more), JOB, rows)]


def test_memory_far_below_what_was_asked_names_the_figure_to_ask_for() -> None:
    rows = [series(f"worker:{index}", "memory", [GIB + index * GIB / 8] * 10) for index in range(2)]
    assert hints(status(), JOB, rows) == [
        Hint(
            "memory-unused",
            "worker:0, worker:1 used at most 1.12 GiB of the 16 GiB that each asks for:"
            " roles.worker.resources.memory: 1472MiB would do",
            ["worker:0", "worker:1"],
        )
    ]


@pytest.mark.parametrize("values", [[10 * GIB] * 10, [GIB] * 9 + [9 * GIB], [GIB] * 6])
def test_memory_that_was_used_once_or_not_seen_for_long_enough_gives_no_hint(values: list[float]) -> None:
    assert texts(series("worker:0", "memory", values)) == []


def test_a_peak_between_thinned_samples_counts() -> None:
    assert texts(series("worker:0", "memory", [GIB] * 10, highest=[GIB] * 9 + [12 * GIB])) == []


def test_memory_near_its_limit() -> None:
    (text,) = texts(series("ps:0", "memory", [0.5 * GIB] * 9 + [0.95 * GIB]))
    assert text == "ps:0 used up to 973 MiB of the 1 GiB that it may use: raise roles.ps.resources.memory"


def test_cores_far_below_what_was_asked() -> None:
    (text,) = texts(series("worker:0", "cpu", [8.0, 8.0, 8.0, *[1.2] * 10]))
    assert text == (
        "worker:0 kept at most 1.2 of the 8 cores busy that it asks for: roles.worker.resources.cores: 2 would do"
    )
    assert texts(series("worker:0", "cpu", [5.0] * 10)) == []
    assert texts(series("ps:0", "cpu", [0.1] * 10)) == []


def test_a_gpu_that_idles_beside_one_that_works() -> None:
    rows = [
        series("worker:0", "gpu.0.util", [90.0] * 10),
        series("worker:0", "gpu.1.util", [None, *[3.0] * 10]),
        series("worker:1", "gpu.0.util", [80.0] * 10),
    ]
    (hint,) = hints(status(), JOB, rows)
    assert (hint.kind, hint.tasks) == ("gpu-idle", ["worker:0"])
    assert hint.text == (
        "worker:0 kept a GPU busy for 3 % of the time: see that the program computes on all its GPUs and does not wait for data,"
        " or lower roles.worker.resources.gpus"
    )


def test_a_gpu_that_waits_for_a_program_to_start_gives_no_hint() -> None:
    assert texts(series("worker:0", "gpu.0.util", [0.0, 0.0, 0.0, *[95.0] * 7])) == []


def test_many_tasks_are_counted() -> None:
    rows = [series(f"worker:{index}", "gpu.0.util", [1.0] * 10) for index in range(8)]
    (hint,) = hints(status(), JOB, rows)
    assert hint.text.startswith("worker:0, worker:1, worker:2 and 5 more tasks kept a GPU busy for 1 %")
    assert len(hint.tasks) == 8


def test_a_slow_task() -> None:
    facts = status()
    facts["tasks"][3]["straggling"] = {"words": "2.1 s a step, their median is 1 s"}
    (hint,) = hints(facts, JOB, [])
    assert (hint.kind, hint.tasks) == ("straggler", ["worker:3"])
    assert hint.text == (
        "worker:3 is much slower than its peers: 2.1 s a step, their median is 1 s; see what else runs on n1,"
        " or have such tasks restarted elsewhere: roles.worker.stragglers: replace"
    )


def test_the_time_of_a_job_that_is_nearly_over() -> None:
    assert texts(at=1_000.0 + 6_900.0) == [
        "the job was submitted 1 h 55 m ago and is ended after 2 h: raise timeouts.job"
    ]
    assert texts(at=1_000.0 + 6_900.0, ended=7_900.0) == []
    assert texts(at=1_000.0 + 6_000.0) == []


@pytest.mark.parametrize(
    "job",
    [{}, {"roles": []}, {"roles": {"worker": None}}, {"roles": {"worker": {"resources": {"memory": "x", "cores": []}}}}, {"timeouts": 1}],
)  # fmt: skip
def test_a_job_without_figures_gives_no_hints(job: dict[str, Any]) -> None:
    rows = [
        series("worker:0", "memory", [GIB] * 10),
        series("worker:0", "cpu", [0.1] * 10),
        series("gone:0", "cpu", []),
    ]
    assert hints(status(), job, rows) == []


def test_a_hint_about_tensorboard_names_the_key_that_there_is() -> None:
    tasks = [{"task": "tensorboard:0", "role": "tensorboard", "node": "n1"}]
    job = {"roles": {"tensorboard": {"resources": {"memory": "4GiB", "cores": 4}}}}
    rows = [series("tensorboard:0", "memory", [GIB] * 10), series("tensorboard:0", "cpu", [0.1] * 10)]
    (hint,) = hints(status() | {"tasks": tasks}, job, rows)
    assert "tensorboard.memory: 1280MiB would do" in hint.text
    assert "roles." not in hint.text
