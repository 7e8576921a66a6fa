"""Jobs with parameter servers: workers find them, and a server that is killed comes back with what it had."""

from __future__ import annotations

import fcntl
import os
import signal
import sys

import pytest
from conformance.engines import Engine, Submitted, python, role

WORKER = python("""
    import itertools, os, time
    import numpy
    from trainmaster import runtime
    from trainmaster.ps.client import TableSpec, Updates
    from trainmaster.ps.job import from_job

    TIMES, pause = {times}, {pause}
    with from_job(servers={servers}) as client:
        optimizer = {{"name": "SGD", "learning_rate": 1.0}}
        client.define({{"steps": numpy.zeros(1)}}, {{"seen": TableSpec(4, seed=1)}}, optimizer, Updates(tolerance=None))
        ids = numpy.arange(20)
        first = client.pull(rows={{"seen": ids}}).rows["seen"] if runtime.task().index == 0 else None
        for step in itertools.count():
            if step >= TIMES and os.path.exists({until!r}):
                break
            client.push(client.version, {{"steps": -numpy.ones(1)}}, {{"seen": (ids, -numpy.ones((20, 4)))}})
            print("pushed", step, flush=True)
            time.sleep(pause)
        runtime.barrier("pushed")
        pulled = client.pull(rows={{"seen": ids}})
        print("steps", pulled.dense["steps"][0], pulled.version)
        if first is not None:
            print("rows", numpy.abs(pulled.rows["seen"] - numpy.round(pulled.rows["seen"] - first) - first).max() < 1e-3)
        runtime.barrier("pulled")
""")


def program(times: int, pause: float, servers: int = 2, until: str = "/") -> list[str]:
    """A worker that pushes so often, and on until there is a file."""
    *command, text = WORKER
    return [*command, text.format(times=times, pause=pause, servers=servers, until=until)]


def serving(servers: int, scope: str) -> dict[str, object]:
    command = [sys.executable, "-m", "trainmaster.ps", "--servers", str(servers)]
    return role(command, servers, ports=["ps"], restart={"scope": scope})


@pytest.mark.needs("numpy")
def test_workers_train_on_parameter_servers(engine: Engine) -> None:
    """Servers that begin together, and before the workers, are in each other's file of peers, and in the workers'."""
    roles = {"ps": serving(2, "group"), "worker": role(program(3, 0.0), 2, after={"ps": "running"})}
    job = engine.submit(roles)
    job.succeeded()
    assert {job.lines(f"worker:{index}")[3] for index in range(2)} == {"steps 6.0 6"}


@pytest.mark.needs("local-master")
def test_a_parameter_server_that_is_killed_comes_back_with_what_it_had(engine: Engine) -> None:
    go = engine.folder / "go"
    worker = role(program(15, 0.1, until=str(go)), 1, restart={"scope": "task"})
    servers = {**serving(2, "task"), "env": {"TRAINMASTER_PS_DIRECTORY": "{work}/../servers"}}
    job = engine.submit({"ps": servers, "worker": worker})
    job.until_line("pushed 2")
    for index in range(2):
        os.kill(engine.process(job, 1, f"ps:{index}"), signal.SIGKILL)
    for index in range(2):
        job.attempt(2, f"ps:{index}")
    go.touch()
    job.succeeded()
    *pushed, steps, rows = job.lines()
    assert len(pushed) >= 15
    assert (steps, rows) == (f"steps {len(pushed)}.0 {len(pushed)}", "rows True")
    assert job.task("ps:0")["attempt"] == 2
    assert job.task("worker:0")["attempt"] == 1


@pytest.mark.full
@pytest.mark.needs("local-master")
def test_the_status_says_for_whom_a_server_waits(engine: Engine) -> None:
    """The test is the former process of a server, which has not ended: of server 0, and in a second job of one that is added."""
    waiting = "waiting for its former process to end"
    job = until_waiting(engine, 2, 0, {"ps:0": waiting, "ps:1": "waiting for server 0"})
    job.succeeded()
    assert not any(job.task(task).get("doing") for task in ("ps:0", "ps:1"))
    others = dict.fromkeys(["ps:0", "ps:1"], "waiting for the first checkpoint of all servers")
    until_waiting(engine, 3, 2, {**others, "ps:2": waiting}).succeeded()


def until_waiting(engine: Engine, servers: int, held: int, waits: dict[str, str]) -> Submitted:
    """A job of servers in one directory, and a worker, once the status has shown what they wait for. The lock of one is free then."""
    folder = engine.folder / "servers"
    journal = folder / "journal" / f"{held}-of-{servers}"
    journal.mkdir(parents=True)
    with (journal / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        role_of_servers = {**serving(servers, "task"), "env": {"TRAINMASTER_PS_DIRECTORY": str(folder)}}
        job = engine.submit({"ps": role_of_servers, "worker": role(program(3, 0.0, servers), 1)})
        job.until_status(
            "servers wait",
            lambda status: {task["task"]: task.get("doing") for task in status["tasks"]}.items() >= waits.items(),
        )
        shown = engine.tm("status", job.id).stdout
    assert all(f"running ({text})" in shown for text in waits.values()), shown
    return job
