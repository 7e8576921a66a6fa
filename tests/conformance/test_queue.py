"""Jobs that share one machine: who waits says for what, and runs when it is there."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import LIMIT, TM, Engine, Submitted

from trainmaster.core.errors import BadInput, TrainmasterError

pytestmark = pytest.mark.needs("local-master")


def cores() -> float:
    from trainmaster.host.machine import cores

    return cores()


def holding(engine: Engine, go: Path, part: float = 0.7, **more: Any) -> Submitted:
    """A job that holds a part of the machine until the file `go` is there."""
    command = f"echo started; while ! test -e '{go}'; do sleep 0.02; done; echo done"
    resources = {"cores": round(cores() * part, 2), "memory": "64MiB"}
    return engine.submit({"worker": {"command": command, "resources": resources}}, **more)


def waits(job: Submitted) -> str:
    """What it says it waits for."""
    return str(job.until_status("its waiting", lambda status: status["waiting"])["waiting"])


def test_the_second_job_says_what_it_waits_for_and_runs(engine: Engine) -> None:
    first = holding(engine, engine.folder / "go")
    first.until_line("started")
    second = holding(engine, engine.folder / "go")
    told = waits(second)
    asked, free = round(cores() * 0.7, 2), cores() - round(cores() * 0.7, 2)
    assert f"{asked:g} cores" in told
    assert f"{free:g} of {cores():g} free" in told
    assert first.id in told
    shown = engine.tm("status", second.id).stdout
    assert f"{asked:g} cores" in shown
    assert not second.told("started")
    (engine.folder / "go").touch()
    first.succeeded()
    second.succeeded()
    assert second.lines() == ["started", "done"]


def test_who_waits_for_the_end_is_told_what_that_waits_for(engine: Engine) -> None:
    first = holding(engine, engine.folder / "go")
    first.until_line("started")
    second = holding(engine, engine.folder / "go")
    waiting = subprocess.Popen([TM, "wait", second.id], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert waiting.stderr is not None
    told = waiting.stderr.readline()
    (engine.folder / "go").touch()
    assert waiting.wait(LIMIT) == 0
    assert told.startswith(f"{second.id}: worker:0"), told
    assert first.id in told
    waiting.communicate()


def test_a_group_whose_least_size_is_never_granted_says_so_and_ends_by_its_timeout(engine: Engine) -> None:
    first = holding(engine, engine.folder / "go")
    first.until_line("started")
    resources = {"cores": round(cores() * 0.25, 2), "memory": "64MiB"}
    one = {"command": "true", "replicas": {"min": 2, "max": 3}, "resources": resources}
    second = engine.submit({"worker": one}, framework="pytorch")
    words = second.until_status("its reason", lambda status: first.id in status["waiting"])["waiting"]
    assert words.startswith(f"worker:0, worker:1 wait for {2 * resources['cores']:g} core"), words
    second.run.kill()
    assert second.end()["state"] == "killed"
    third = engine.submit({"worker": one}, framework="pytorch", timeouts={"job": "1s"})
    third.failed("job-timeout")
    assert not second.told("started") + third.told("started")
    (engine.folder / "go").touch()
    first.succeeded()


def test_a_dead_job_frees_its_place_at_once(engine: Engine) -> None:
    from conformance.engines import processes_of

    from trainmaster.host import processes

    first = holding(engine, engine.folder / "never")
    first.until_line("started")
    second = holding(engine, engine.folder / "go")
    waits(second)
    (engine.folder / "go").touch()
    masters = [made for made in processes_of(first.id) if made.kind in (processes.MASTER, processes.AGENT)]
    for made in [*masters, *(made for made in processes_of(first.id) if made not in masters)]:
        processes.send(made.process, 9)
    second.succeeded()
    engine.tm("kill", first.id)
    assert first.end()["state"] == "killed"


def test_the_higher_priority_goes_first(engine: Engine) -> None:
    first = holding(engine, engine.folder / "go")
    first.until_line("started")
    low = holding(engine, engine.folder / "go", name="low")
    waits(low)
    high = holding(engine, engine.folder / "go", name="high", priority=5)
    waits(high)
    (engine.folder / "go").touch()
    for job in (first, low, high):
        job.succeeded()
    assert high.told("started")[0]["at"] <= low.told("started")[0]["at"]


def sharing(engine: Engine, name: str, replicas: Any, part: float, priority: int = 0) -> Submitted:
    """A group whose members hold a part of the machine each, until `go` is there."""
    program = f"echo $GROUP_RANK of $GROUP_WORLD_SIZE; while ! test -e '{engine.folder}/go-{name}'; do sleep 0.05; done"
    resources = {"cores": round(cores() * part, 2), "memory": "64MiB"}
    roles = {"worker": {"command": program, "replicas": replicas, "resources": resources, "stop": {"grace": "1s"}}}
    return engine.submit(roles, name=name, framework="pytorch", priority=priority, scale={"every": "1s"})


def runs(job: Submitted, size: int) -> None:
    job.until_status(
        f"{size} that run", lambda status: [task["state"] for task in status["tasks"]] == ["running"] * size, LIMIT
    )


@pytest.mark.full
def test_an_elastic_job_gives_way_to_a_higher_one_and_gets_it_back(engine: Engine) -> None:
    low = sharing(engine, "low", {"min": 1, "max": 5}, 0.18)
    runs(low, 5)
    high = sharing(engine, "high", 2, 0.36, priority=5)
    runs(high, 2)
    runs(low, 1)
    assert [event["seconds"] for event in low.told("warned")] == [5.0] * 4
    assert low.told("resized")[-1]["sizes"] == {"worker": 1}
    assert not [event for event in low.told("incident") if event["costs"]]
    (engine.folder / "go-high").touch()
    high.succeeded()
    runs(low, 5)
    (engine.folder / "go-low").touch()
    status = low.succeeded()
    reasons = {attempt["words"] for task in status["tasks"] for attempt in task.get("past", ())}
    assert f"gave way to {high.id}" in reasons


def test_a_job_that_cannot_shrink_gives_way_whole_and_begins_again(engine: Engine) -> None:
    low = sharing(engine, "low", 2, 0.4)
    runs(low, 2)
    high = sharing(engine, "high", 1, 0.9, priority=5)
    runs(high, 1)
    assert "held by" in waits(low)
    (engine.folder / "go-high").touch()
    (engine.folder / "go-low").touch()
    high.succeeded()
    status = low.succeeded()
    assert [task["attempt"] for task in status["tasks"]] == [2, 2]


def test_a_job_that_waits_can_be_killed(engine: Engine) -> None:
    first = holding(engine, engine.folder / "go")
    first.until_line("started")
    second = holding(engine, engine.folder / "go")
    waits(second)
    assert engine.tm("kill", second.id).returncode == 0
    assert second.end()["state"] == "killed"
    (engine.folder / "go").touch()
    first.succeeded()


def test_memory_is_reserved_too(engine: Engine) -> None:
    from trainmaster.host.machine import memory

    size = {"cores": 0.05, "memory": f"{int(memory() * 0.6) >> 20}MiB"}
    wait = f"echo started; while ! test -e '{engine.folder}/go'; do sleep 0.02; done"
    first = engine.submit({"worker": {"command": wait, "resources": size}})
    first.until_line("started")
    second = engine.submit({"worker": {"command": wait, "resources": size}})
    told = waits(second)
    assert "of memory" in told
    assert "GiB" in told or "MiB" in told
    (engine.folder / "go").touch()
    first.succeeded()
    second.succeeded()


def test_more_than_the_machine_has_is_refused_at_once(engine: Engine) -> None:
    with pytest.raises(BadInput, match=r"worker:0 needs 5000 cores, this machine has") as refused:
        engine.submit({"worker": {"command": "true", "resources": {"cores": 5000}}})
    assert "roles.worker.resources.cores" in str(refused.value)
    with pytest.raises(TrainmasterError, match="of memory"):
        engine.submit({"worker": {"command": "true", "resources": {"memory": "1000TiB"}}})
