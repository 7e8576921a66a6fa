"""The line of a Spark application's jobs, what it can never grant, and the reasons for ends in Spark's words."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core.containers import Request
from trainmaster.core.errors import BadInput
from trainmaster.core.machine.stimuli import ContainerExited, ContainerLost
from trainmaster.engines.contract import Free
from trainmaster.engines.spark.bridge import bridge
from trainmaster.engines.spark.bridge.bridge import first_line
from trainmaster.engines.spark.bridge.executors import share
from trainmaster.engines.spark.bridge.line import Ask, Claim, Executor, choose, free_of, wait
from trainmaster.engines.spark.limits import check, memory_limit
from trainmaster.engines.spark.master.ends import end_of, loss_of

TWO = [Executor("0", "a", {"cores": 2}), Executor("1", "b", {"cores": 2})]


def gang(job: str, size: int, cores: int = 1, **more: Any) -> list[Ask]:
    return [
        Ask(job, f"worker:{index}", 1, {"cores": cores}, "group-0", rank=(0, 0, index), **more) for index in range(size)
    ]


def singles(job: str, size: int, first: int = 0) -> list[Ask]:
    return [Ask(job, f"worker:{index}", 1, {"cores": 1}, rank=(0, 0, first + index)) for index in range(size)]


def test_a_gang_is_asked_for_whole_or_not_at_all() -> None:
    assert choose(TWO, [], gang("a", 4), grows=False) == gang("a", 4)
    assert choose(TWO, [], gang("a", 5), grows=False) == []


def test_two_gangs_larger_than_half_come_one_after_the_other() -> None:
    first, second = gang("a", 3), gang("b", 3)
    assert choose(TWO, [], [*first, *second], grows=False) == first
    begun = [Claim(first[0], "0"), Claim(first[1], "1"), Claim(first[2])]
    assert choose(TWO, begun, second, grows=False) == []
    assert choose(TWO, [], second, grows=False) == second


def test_a_gang_fits_into_executors_not_into_their_sum() -> None:
    three = [Executor(str(number), "a", {"cores": 3}) for number in range(2)]
    assert choose(three, [], gang("a", 3, cores=2), grows=False) == []
    assert choose(three, [], gang("a", 2, cores=2), grows=False) == gang("a", 2, cores=2)


def test_the_first_that_does_not_fit_stops_the_line_unless_it_never_would() -> None:
    held = [Claim(ask, "0") for ask in singles("z", 2)]
    assert choose(TWO, held, [*gang("a", 3), *singles("b", 1, first=9)], grows=False) == []
    assert choose(TWO, held, [*gang("a", 5), *singles("b", 1, first=9)], grows=False) == singles("b", 1, first=9)


def test_a_job_that_holds_something_comes_first() -> None:
    held = [Claim(ask, "0") for ask in gang("a", 2)]
    again = Ask("a", "worker:2", 2, {"cores": 1}, rank=(0, 0, 99))
    assert choose(TWO, held, [*gang("b", 2), again], grows=False)[0] == again


def test_growth_gets_what_is_left_once_nothing_else_waits() -> None:
    asks = [
        *gang("a", 2),
        *(Ask("a", f"worker:{index}", 1, {"cores": 1}, "group-0", True, (0, 0, index)) for index in range(2, 6)),
    ]
    assert choose(TWO, [], asks, grows=False) == asks[:4]
    assert choose(TWO, [], [*asks, *gang("b", 3)], grows=False) == asks[:2]


def test_where_executors_come_as_they_are_asked_for_one_gang_is_filled_at_a_time() -> None:
    first, second = gang("a", 3), gang("b", 3)
    assert choose([], [], [*first, *second, *singles("c", 1)], grows=True) == [*first, *singles("c", 1)]
    assert choose(TWO, [Claim(ask) for ask in first], second, grows=True) == []
    assert choose(TWO, [Claim(ask, "0") for ask in first], second, grows=True) == second


def test_growth_brings_executors_once_nothing_else_waits() -> None:
    more = [Ask("a", "worker:2", 2, {"cores": 1}, is_growth=True)]
    assert choose([], [], [*gang("a", 2), *more], grows=True) == gang("a", 2)
    assert choose([], [Claim(gang("a", 1)[0])], more, grows=True) == []
    full = [Executor("0", "a", {"cores": 1})]
    assert choose(full, [Claim(gang("a", 1)[0], "0")], more, grows=True) == more
    assert choose(full, [Claim(gang("a", 1)[0], "0")], more, grows=False) == []
    assert choose(full, [Claim(more[0])], gang("b", 2), grows=True) == gang("b", 2), "growth on its way stops no gang"


def test_a_task_takes_at_least_what_all_of_sparks_do() -> None:
    conf = {"spark.task.cpus": "2", "spark.task.resource.gpu.amount": "0.1"}
    assert share(conf, {"cores": 1}) == {"cores": 2, "gpu": 0.1}
    assert share(conf, {"cores": 3}) == {"cores": 3}
    assert share({}, {"cores": 1, "gpu": 1}) == {"cores": 1, "gpu": 1}
    ten = [Ask("a", f"worker:{index}", 1, share(conf, {"cores": 1}), "group-0") for index in range(10)]
    assert choose([Executor("0", "a", {"cores": 20, "gpu": 1})], [], ten, grows=False) == ten


def test_an_excluded_executor_is_none() -> None:
    executors = [TWO[0], Executor("1", "b", {"cores": 2}, is_excluded=True)]
    assert choose(executors, [], gang("a", 3), grows=False) == []
    words = wait(executors, [], gang("a", 3), [])
    assert words is not None
    assert words.is_lacking
    assert words.detail == (
        "worker: 3 x 1 core: 1 executor of the application has 2 cores (1 more get no tasks: Spark excludes or decommissions them) in all, "
        "2 cores free"
    )


def test_a_wait_says_asked_and_free() -> None:
    held = [Claim(ask, "0") for ask in singles("z", 2)]
    words = wait(TWO, held, gang("a", 3), [])
    assert words is not None
    assert not words.is_lacking
    assert (words.need, words.free) == ("worker: 3 x 1 core", "2 cores")
    assert words.detail.endswith(
        "2 executors of the application have 4 cores, and 2 cores are not taken by our tasks; held by z"
    )
    lacking = wait(TWO, [], gang("a", 5), [])
    assert lacking is not None
    assert lacking.is_lacking
    assert wait([], [], gang("a", 1), []).detail == "worker:0: 1 core: the application has no executor"  # type: ignore[union-attr]
    assert wait(TWO, held, [], []) is None


def test_other_work_of_the_application_counts_as_busy_not_as_ours() -> None:
    busy = Executor("0", "a", {"cores": 4, "gpu": 2}, busy=3)
    assert free_of(busy, [Claim(Ask("a", "worker:0", 1, {"cores": 1, "gpu": 1}), "0")]) == {"cores": 1, "gpu": 1}
    assert choose([busy], [], gang("a", 4), grows=False) == gang("a", 4)


@given(
    cores=st.lists(st.integers(1, 4), max_size=4),
    asks=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.sampled_from(["", "group-0"]), st.booleans()),
        max_size=9,
    ),
)
def test_what_is_chosen_fits_and_gangs_are_whole(cores: list[int], asks: list[tuple[str, int, str, bool]]) -> None:
    executors = [Executor(str(number), "h", {"cores": count}) for number, count in enumerate(cores)]
    requests = [
        Ask(job, f"worker:{number}", 1, {"cores": size}, of_gang, bool(of_gang) and growth, (0, 0, number))
        for number, (job, size, of_gang, growth) in enumerate(asks)
    ]
    chosen = choose(executors, [], requests, grows=False)
    assert sum(ask.amounts["cores"] for ask in chosen) <= sum(cores)
    for job in "abc":
        need = [ask for ask in requests if (ask.job, ask.gang) == (job, "group-0") and not ask.is_growth]
        assert all(ask in chosen for ask in need) or not any(ask in chosen for ask in need)


def request(**more: Any) -> Request:
    return Request(
        **{"task": "worker:0", "serial": 1, "role": "worker", "index": 0, "memory": 2**30, "cores": 1.0, **more}
    )


EXECUTOR = Free("a (executor 0)", 2.0, 0, 1, 2.0, 0, 1)


@pytest.mark.parametrize(
    ("more", "words", "place"),
    [
        ({"cores": 3.0}, "worker needs 3 cores, and no executor has more than 2", "roles.worker.resources.cores"),
        ({"gpus": 2}, "worker needs 2 gpus, and no executor has more than 1", "roles.worker.resources.gpus"),
        (
            {"extended": {"fpga": 1}},
            "worker needs 1 fpga, and no executor has more than 0",
            "roles.worker.resources.fpga",
        ),
        (
            {"nodes": {"labels": "big"}},
            "worker chooses its nodes, and Spark places tasks by itself",
            "roles.worker.nodes",
        ),
        (
            {"memory": 2**30},
            "worker needs 1 GiB beside Spark's heap, and executors have 512 MiB there",
            "roles.worker.resources.memory",
        ),
    ],
)
def test_what_no_executor_is_large_enough_for_is_refused(more: dict[str, Any], words: str, place: str) -> None:
    conf = {"spark.master": "yarn", "spark.executor.memoryOverhead": "512"}
    with pytest.raises(BadInput) as refusal:
        check([request(**more)], [EXECUTOR], conf)
    assert (refusal.value.message, refusal.value.place) == (words, place)
    check([request()], [EXECUTOR], {"spark.master": "spark://a:7077"})
    if "nodes" not in more:
        check([request(**more)], [EXECUTOR], {**conf, "spark.dynamicAllocation.enabled": "true"})


@pytest.mark.parametrize(
    ("conf", "mebibytes"),
    [
        ({"spark.executor.memory": "8g"}, 819),
        ({}, 384),
        ({"spark.executor.memoryOverhead": "2g", "spark.executor.pyspark.memory": "512m"}, 2560),
        ({"spark.executor.memoryOverhead": "700"}, 700),
    ],
)
def test_memory_beside_the_heap(conf: dict[str, str], mebibytes: int) -> None:
    assert memory_limit({"spark.master": "k8s://x", **conf}) // 2**20 == mebibytes  # type: ignore[operator]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("Command exited with code 52", "out-of-memory"),
        (
            "Container killed by YARN for exceeding physical memory limits. 2.1 GB of 2 GB physical memory used.",
            "out-of-memory",
        ),
        (
            "The executor with id 1 exited with exit code 137(SIGKILL, possible container OOM). ... termination reason: OOMKilled",
            "out-of-memory",
        ),
        ("Executor decommission.", "preempted"),
        ("worker lost", "node-lost"),
        ("Executor heartbeat timed out after 130000 ms", "node-lost"),
        ("Command exited with code 137", "killed-by-engine"),
        ("Remote RPC client disassociated.", "killed-by-engine"),
    ],
)
def test_the_loss_of_an_executor_has_one_of_our_reasons(words: str, reason: str) -> None:
    key, figures = loss_of("3", "node-1", words)
    assert key == reason
    assert f"executor 3 on node-1 was lost: {words}" in figures["detail"]


# Of Spark 3.5.9 on YARN, as they were seen.
@pytest.mark.parametrize(
    ("words", "reason", "detail"),
    [
        (
            (
                "Container from a bad node: container_1_0001_01_000003 on host: node-1. Exit status: 137. Diagnostics: "
                "[2026-11-26 22:51:54.022]Container killed on request. Exit code is 137\n[2026-11-26 22:51:54.024]Killed by external\n."
            ),
            "killed-by-engine",
            "Exit status: 137. Diagnostics: Container killed on request. Exit code is 137 Killed by external . (SIGKILL: by the kernel",
        ),
        (
            "Container container_1_0001_02_000003 on host: node-1 was preempted.",
            "preempted",
            "Container container_1_0001_02_000003",
        ),
        ("Executor Process Lost", "killed-by-engine", "Executor Process Lost"),
        (
            "Container marked as failed: c on host: node-1. Exit status: -100. Diagnostics: Container released on a *lost* node.",
            "node-lost",
            "Container marked as failed",
        ),
    ],
)
def test_losses_on_yarn_are_one_line(words: str, reason: str, detail: str) -> None:
    key, figures = loss_of("3", "node-1", words)
    assert key == reason
    assert f"executor 3 on node-1 was lost: {detail}" in figures["detail"]


def test_an_error_of_the_jvm_is_its_own_line() -> None:
    error = Exception(
        "An error occurred while calling o5.collect.\n: org.apache.spark.SparkException: Job 4 cancelled\n\tat a.b.c\n"
    )
    assert first_line(error) == "org.apache.spark.SparkException: Job 4 cancelled"
    assert first_line(ValueError("bad\nmore")) == "bad"
    assert first_line(ValueError()) == "ValueError"


def test_ends_in_sparks_words() -> None:
    info = {"Host": "node-1"}
    killed = {"Task End Reason": {"Reason": "TaskKilled", "Kill Reason": "Stage cancelled"}, "Task Info": info}
    end = end_of("worker:0", 1, {"event": killed}, False)
    assert isinstance(end, ContainerLost)
    assert (end.reason, end.figures["detail"]) == ("killed-by-engine", "Spark's task was killed: Stage cancelled")
    cancelled = "org.apache.spark.SparkException: Job 4 cancelled because Stage 4 was cancelled"
    end = end_of("worker:0", 1, {"error": cancelled}, False)
    assert (end.reason, end.figures["detail"]) == ("killed-by-engine", cancelled)
    end = end_of("worker:0", 1, {"error": "java.lang.ClassNotFoundException: x"}, False)
    assert end.reason == "localization-failed"
    trace = 'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n    raise Mismatch(\nMismatch: 3.9\nSet it.\n'
    failed = {"Task End Reason": {"Reason": "ExceptionFailure", "Description": trace}, "Task Info": info}
    end = end_of("worker:0", 1, {"event": failed}, False)
    assert (end.reason, end.figures["detail"]) == ("localization-failed", "Mismatch: 3.9 Set it.")
    died = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    end = end_of(
        "worker:0",
        1,
        {"event": {"Task End Reason": {"Reason": "ExceptionFailure", "Description": died}, "Task Info": info}},
        False,
    )
    assert isinstance(end, ContainerLost)
    assert end.figures["detail"].startswith(f"{died}, on node-1 (SIGKILL: ")
    closed = {"Reason": "ExceptionFailure", "Class Name": "java.net.SocketException", "Description": "Socket closed"}
    end = end_of("worker:0", 1, {"event": {"Task End Reason": closed, "Task Info": info}}, False)
    assert isinstance(end, ContainerLost), "a worker that was of a task which had been cancelled"
    assert end.figures["detail"] == "Spark ended the task's Python worker, on node-1: Socket closed"
    without_event = {"error": "org.apache.spark.SparkException: Job aborted: java.net.SocketException: Socket closed"}
    assert isinstance(end_of("worker:0", 1, without_event, False), ContainerLost)
    broken = {"Reason": "ExceptionFailure", "Class Name": "java.net.SocketException", "Description": "Broken pipe"}
    end = end_of("worker:0", 1, {"event": {"Task End Reason": broken, "Task Info": info}}, False)
    assert end.reason == "localization-failed", "the worker ended by itself"
    released = end_of("worker:0", 1, {"event": killed}, True)
    assert isinstance(released, ContainerExited)
    assert released.reason == "not-needed"


def test_a_bridge_removes_its_socket_before_another_of_its_application_may_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, states = tmp_path / "app.sock", []
    place.touch()

    class Opening:
        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None:
            states.append(place.exists())

    monkeypatch.setattr(bridge, "_opening", Opening())
    ending = bridge.Bridge.__new__(bridge.Bridge)
    server = SimpleNamespace(shutdown=lambda: None, server_close=lambda: None)
    ending.__dict__.update(
        application="app", _lock=threading.RLock(), _wake=threading.Event(), _is_over=False, _socket=place, _jobs={}, _server=server,
        _shipped=tmp_path / "shipped",
    )  # fmt: skip
    ending.application_ended()
    assert states == [False]
