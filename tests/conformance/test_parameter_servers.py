"""Jobs with parameter servers: workers find them, and a server that is killed comes back with what it had."""

from __future__ import annotations

import fcntl
import os
import signal
import sys

import pytest
from conformance.engines import Engine, python, role

WORKER = python("""
    import time
    import numpy
    from trainmaster import runtime
    from trainmaster.ps.client import TableSpec, Updates
    from trainmaster.ps.job import from_job

    TIMES, pause = {times}, {pause}
    with from_job(servers=2) as client:
        optimizer = {{"name": "SGD", "learning_rate": 1.0}}
        client.define({{"steps": numpy.zeros(1)}}, {{"seen": TableSpec(4, seed=1)}}, optimizer, Updates(tolerance=None))
        ids = numpy.arange(20)
        first = client.pull(rows={{"seen": ids}}).rows["seen"] if runtime.task().index == 0 else None
        for step in range(TIMES):
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


def program(times: int, pause: float) -> list[str]:
    *command, text = WORKER
    return [*command, text.format(times=times, pause=pause)]


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
    worker = role(program(15, 0.1), 1, restart={"scope": "task"})
    servers = {**serving(2, "task"), "env": {"TRAINMASTER_PS_DIRECTORY": "{work}/../servers"}}
    job = engine.submit({"ps": servers, "worker": worker})
    job.until_line("pushed 2")
    for index in range(2):
        os.kill(engine.process(job, 1, f"ps:{index}"), signal.SIGKILL)
    job.succeeded()
    assert job.lines()[15:] == ["steps 15.0 15", "rows True"]
    assert job.task("ps:0")["attempt"] == 2
    assert job.task("worker:0")["attempt"] == 1


@pytest.mark.full
@pytest.mark.needs("local-master")
def test_the_status_says_for_whom_a_server_waits(engine: Engine) -> None:
    """The test is server 0's former process, which has not ended."""
    folder = engine.folder / "servers"
    journal = folder / "journal" / "0-of-2"
    journal.mkdir(parents=True)
    servers = {**serving(2, "task"), "env": {"TRAINMASTER_PS_DIRECTORY": str(folder)}}
    with (journal / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        job = engine.submit({"ps": servers, "worker": role(program(3, 0.0), 1)})
        waits = {"ps:0": "waiting for its former process to end", "ps:1": "waiting for server 0"}
        job.until_status(
            "both wait",
            lambda status: {task["task"]: task.get("doing") for task in status["tasks"]}.items() >= waits.items(),
        )
        shown = engine.tm("status", job.id).stdout
    for text in waits.values():
        assert f"running ({text})" in shown, shown
    job.succeeded()
    assert all(job.task(task).get("doing") is None for task in waits)
