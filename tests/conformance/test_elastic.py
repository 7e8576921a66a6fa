"""Members come and go: what users ask for, what becomes free, and what is lost."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from conformance.engines import LIMIT, Engine, Submitted, python, role

from trainmaster.core.errors import BadInput

COUNTS = "echo $GROUP_RANK of $GROUP_WORLD_SIZE"


def elastic(engine: Engine, replicas: Any, scope: str = "group", *, begin: str = COUNTS, **keys: Any) -> Submitted:
    """A job whose tasks print what `begin` says, and run until `go` is there."""
    waits = f"{begin}; while ! test -e '{engine.folder}/go'; do sleep 0.1; done; echo done"
    one = role(waits, replicas, restart={"scope": scope, "limit": 0}, **keys.pop("role", {}))
    framework = "pytorch" if scope == "group" else "generic"
    return engine.submit({"worker": one}, framework=framework, scale={"every": "1s"}, **keys)


def sizes(job: Submitted, *wanted: int, limit: float = LIMIT) -> None:
    """Wait until so many tasks run together; several sizes: any of them."""
    job.until_status(
        f"{wanted} that run", lambda status: sum(task["state"] == "running" for task in status["tasks"]) in wanted
        and all(task["state"] == "running" for task in status["tasks"]), limit,
    )  # fmt: skip


def printed(job: Submitted, size: int) -> set[str]:
    """What the newest attempts of a group of this size printed, once each has."""
    newest = {task["task"]: task["attempt"] for task in job.status()["tasks"] if task["state"] == "running"}
    assert len(newest) == size, newest
    for task, attempt in newest.items():
        job.until_status("its line", lambda _, task=task, attempt=attempt: job.lines(task, attempt))
    return {job.lines(task, attempt)[0] for task, attempt in newest.items()}


def test_a_user_has_a_group_shrink_and_grow(engine: Engine) -> None:
    job = elastic(engine, {"min": 1, "max": 3})
    sizes(job, 3)
    assert engine.tm("scale", job.id, "worker=1").returncode == 0
    sizes(job, 1)
    assert printed(job, 1) == {"0 of 1"}
    assert engine.tm("scale", job.id, "worker=2").returncode == 0
    sizes(job, 2)
    assert printed(job, 2) == {"0 of 2", "1 of 2"}
    engine.write("go", "")
    status = job.succeeded()
    assert [event["sizes"]["worker"] for event in job.told("resized")] == [1, 2]
    assert not job.told("incident")
    assert {event["reason"] for event in job.told("attempt-ended")} == {"members-changed"}
    assert status["restarts"] == 0


def test_a_user_ends_the_attempt_of_one_task(engine: Engine) -> None:
    job = elastic(engine, {"min": 2, "max": 2})
    sizes(job, 2)
    job.run.kill_task("worker:1", "it is slow")
    for task in ("worker:0", "worker:1"):
        job.attempt(2, task)
    engine.write("go", "")
    job.succeeded()
    past = job.task("worker:1")["past"]
    assert [attempt["reason"] for attempt in past] == ["killed-by-user"]
    assert "it is slow" in past[0]["words"]
    assert [attempt["reason"] for attempt in job.task("worker:0")["past"]] == ["peer-failed"]


def test_tasks_that_restart_alone_come_and_go_alone(engine: Engine) -> None:
    job = elastic(engine, {"min": 1, "max": 3}, "task")
    sizes(job, 3)
    job.run.scale("worker", 2)
    sizes(job, 2)
    assert engine.tm("scale", job.id, "worker=auto").returncode == 0
    sizes(job, 3)
    engine.write("go", "")
    job.succeeded()
    attempts = sorted(task["attempt"] for task in job.status()["tasks"])
    assert attempts == [1, 1, 2], "nobody else was stopped"


def test_a_size_that_it_cannot_have_is_refused(engine: Engine) -> None:
    job = elastic(engine, {"min": 1, "max": 2})
    sizes(job, 2)
    for wanted, words in (("worker=3", "worker has 1 to 2 members"), ("nobody=1", "there is no role nobody")):
        said = engine.tm("scale", job.id, wanted)
        assert (said.returncode, words in said.stderr) == (2, True), said.stderr
    said = engine.tm("scale", job.id, "worker:1")
    assert (said.returncode, "worker=4" in said.stderr) == (2, True), said.stderr
    said = engine.tm("kill", job.id, "worker:7")
    assert (said.returncode, "there is no task worker:7" in said.stderr) == (2, True), said.stderr
    engine.write("go", "")
    job.succeeded()
    with pytest.raises(BadInput, match=r"has ended|is ending"):
        job.run.scale("worker", 1)


def test_shards_of_tasks_that_come_and_go_are_each_counted_once(engine: Engine) -> None:
    engine.put("data/a.txt", "".join(f"record {number}\n" for number in range(2000)))
    program = (
        "python3 -c 'import time; from trainmaster import runtime\n"
        'for record in runtime.shards("train"): time.sleep(0.002)\''
    )
    inputs = {"train": {"url": engine.place("data"), "as": "shards"}}
    job = elastic(engine, {"min": 1, "max": 3}, "task", begin=program, inputs=inputs)
    sizes(job, 3)
    for size in (1, 2, 1, 3):
        with contextlib.suppress(BadInput):  # it may have come to its end
            job.run.scale("worker", size)
    engine.write("go", "")
    job.succeeded()
    audited = json.loads(engine.tm("audit", job.id, "--json").stdout)
    assert audited["ok"], audited
    assert [row["records"] for row in audited["inputs"]] == [2000], audited


# -- one machine --


@pytest.mark.full
@pytest.mark.needs("local-master")
def test_it_grows_while_that_helps_and_gives_back_what_brings_nothing(engine: Engine) -> None:
    """Each step needs the one resource that all share, for 250 ms: one task does 4 a second, and so do two or four."""
    program = python("""
        import fcntl, os, time
        from trainmaster import runtime

        shared, step = open("lock", "w"), 0
        while not os.path.exists("go"):
            fcntl.flock(shared, fcntl.LOCK_EX)
            time.sleep(0.25)
            fcntl.flock(shared, fcntl.LOCK_UN)
            time.sleep(0.001)
            step += 1
            runtime.progress(step=step)
    """)
    worker = role(program, {"min": 1, "max": 4}, restart={"scope": "task"})
    job = engine.submit({"worker": worker}, scale={"every": "5s", "auto": True})
    job.until_status("less again", lambda _: any(event["left"] for event in job.told("resized")))
    sizes(job, 1)
    shown = engine.tm("status", job.id).stdout
    assert "worker: 1 of 1 to 4; 1 made " in shown, shown
    assert "steps a second" in shown
    assert [event["size"] for event in job.told("scale-requested")][:2] == [2, 1]
    assert {event["by"] for event in job.told("scale-requested")} == {"autoscaling"}
    engine.write("go", "")
    job.succeeded()
    assert "of what each of those does" in engine.tm("events", job.id).stdout


@pytest.mark.full
@pytest.mark.needs("local-master")
def test_it_grows_onto_what_becomes_free_and_begins_from_its_checkpoint(engine: Engine) -> None:
    from trainmaster.host.machine import cores

    quarter = {"cores": cores() / 4, "memory": "64MiB"}
    rest = {"cores": cores() * 3 / 4, "memory": "64MiB"}
    other = engine.submit(
        {"worker": role(f"echo there; while ! test -e '{engine.folder}/free'; do sleep 0.05; done", resources=rest)}
    )
    other.until_line("there")
    saves = "echo step $GROUP_WORLD_SIZE > .new; mv .new ckpt; sleep 0.2"
    program = f"cat ckpt 2>/dev/null; {COUNTS}; while ! test -e '{engine.folder}/go'; do {saves}; done"
    job = engine.submit(
        {"worker": role(program, {"min": 1, "max": 4}, resources=quarter, restart="group")}, framework="pytorch",
        scale={"every": "1s"}, checkpoint={"path": "ckpt", "every": "500ms"},
    )  # fmt: skip
    sizes(job, 1)
    assert printed(job, 1) == {"0 of 1"}
    engine.write("free", "")
    other.succeeded()
    sizes(job, 4, limit=LIMIT * 2)  # three newcomers are worth it after 20 s
    assert job.lines("worker:0", 2) == ["step 1", "0 of 4"]
    engine.write("go", "")
    job.succeeded()
