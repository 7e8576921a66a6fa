"""Jobs in a Spark application: what its own faults do to them, and how a driver starts them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import listening
import pytest
from another_user import as_another_user
from conformance.engines import Submitted, python, workers
from conformance.spark_engine import Spark
from spark import VERSIONS, Driver, own_driver, own_spark
from waiting import until

from trainmaster.host import linux
from trainmaster.runtime.network.listeners import BRIDGE, CALLBACKS

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.full]
WAITS = """
    import os, time
    print("ready", flush=True)
    while not os.path.exists({go!r}):
        time.sleep(0.02)
    print("goes on as attempt", os.environ["TRAINMASTER_ATTEMPT"])
"""


@pytest.fixture
def application(on_spark: Driver, tmp_path: Path) -> Iterator[Spark]:
    folder = tmp_path / "place"
    folder.mkdir()
    row = Spark(folder, on_spark)
    try:
        yield row
    finally:
        row.close()


def waiting_job(engine: Spark) -> Submitted:
    """Return a job whose two tasks wait for the file `go`."""
    program = python(WAITS.format(go=str(engine.folder / "go")))
    job = engine.submit(workers(program, 2, restart={"scope": "task", "limit": 2}))
    for index in range(2):
        job.until_line("ready", f"worker:{index}")
    return job


def executor_of(pid: int) -> int:
    """Return the JVM that is an ancestor of a process."""
    process = linux.look(pid)
    while process is not None and process.name != "java":
        process = linux.look(process.parent)
    assert process is not None
    return process.pid


def test_a_killed_task_restarts(application: Spark) -> None:
    job = waiting_job(application)
    job.run.kill_task("worker:1")
    job.attempt(2, "worker:1")
    application.write("go", "")
    job.succeeded()
    assert job.lines("worker:0")[-1] == "goes on as attempt 1"
    assert job.lines("worker:1")[-1] == "goes on as attempt 2"


def test_a_lost_executor_is_replaced(application: Spark) -> None:
    job = waiting_job(application)
    os.kill(executor_of(application.process(job)), signal.SIGKILL)
    job.attempt(2)
    lost = next(event for event in job.told("attempt-written-off") if event["task"] == "worker:0")
    assert "Command exited with code 137" in lost["figures"]["detail"]
    application.write("go", "")
    job.succeeded()


def test_the_masters_death_ends_the_job(application: Spark) -> None:
    job = waiting_job(application)
    application.kill_master(job)
    reason = job.end()["reason"]
    assert reason["reason"] == "killed-by-engine"
    assert (
        reason["words"] == "was killed by the engine: its master, beside the driver, is gone: its tasks were cancelled"
    )
    until(lambda: not application.command_lines(job), what=lambda: application.command_lines(job))


@pytest.mark.parametrize("version", VERSIONS)
def test_another_user_and_a_page_of_the_web_call_nothing_in_the_driver(version: str, tmp_path: Path) -> None:
    """Its Python listens for Spark's events, and for accumulators, which Spark protects by a token."""
    folder = tmp_path / "place"
    folder.mkdir()
    with (
        tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as runtime,
        own_spark(version) as cluster,
        own_driver(cluster, Path(runtime)) as driver,
    ):
        engine = Spark(folder, driver)
        try:
            job = waiting_job(engine)
            ports = listening.ports(driver.process.pid)
            assert len(ports) == 2
            assert set(listening.rows_of({driver.process.pid: "Spark's driver"})) == {BRIDGE, CALLBACKS}
            answers = as_another_user(lambda: [answer_to_calls(port, head) for port in ports for head in ("", WEB)])
            assert any("Object ID unknown" in answer for answer in answers), answers
            engine.write("go", "")
            job.succeeded()
        finally:
            engine.close()


WEB = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://evil.example\r\nContent-Length: 1000\r\n\r\nx\n"


def answer_to_calls(port: int, head: str) -> str:
    """Return the answer of py4j to calls of objects as it names them by itself, after other words."""
    calls = "".join(f"c\np{number}\nonApplicationEnd\nn\ne\n" for number in range(8))
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.sendall(f"{head}{calls}\n\n".encode())
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while piece := connection.recv(65536):
                answer += piece
        except ConnectionError:
            pass
    return answer.decode()


def test_the_drivers_death_ends_the_job(on_spark: Driver, tmp_path: Path) -> None:
    folder = tmp_path / "place"
    folder.mkdir()
    with (
        tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as runtime,
        own_driver(on_spark.cluster, Path(runtime)) as driver,
    ):
        engine = Spark(folder, driver)
        try:
            job = waiting_job(engine)
            driver.process.kill()
            status = job.end()
            assert status["state"] == "killed", job.story(status)
            assert status["reason"]["reason"] == "killed-by-engine"
            assert f"its application {driver.application} has ended" in status["reason"]["words"]
        finally:
            engine.close()


# A driver that runs a job beside its own work, and another an hour later, when a command of its user has cleared away what the dead left.
# Its Python has Trainmaster, and pyspark from the directory in its argument.
PROGRAM = """
import json, os, subprocess, sys, time
sys.path.append(sys.argv[1])
from pyspark.sql import SparkSession
import trainmaster, trainmaster.spark
builder = SparkSession.builder.config("spark.executor.cores", "2").config("spark.executor.memory", "512m")
session = builder.config("spark.driver.memory", "512m").getOrCreate()
resources = {"cores": 0.05, "memory": "64MiB"}
role = {"command": "echo out of $TRAINMASTER_INDEX", "replicas": 2, "resources": resources}
job = trainmaster.Job(name="t", roles={"worker": role})
run = trainmaster.spark.run(session, job)
total = session.sparkContext.parallelize(range(100), 4).sum()
state = run.wait(200, check=False)["state"]
from trainmaster.host.places import runtime_dir
for place in [runtime_dir(), *runtime_dir().rglob("*")]:
    os.utime(place, (time.time() - 3600,) * 2, follow_symlinks=False)
subprocess.run([os.path.join(os.path.dirname(sys.executable), "tm"), "list"], check=True, stdout=sys.stderr)
later = trainmaster.spark.run(session, job).wait(200, check=False)["state"]
print(json.dumps({"state": state, "later": later, "lines": sorted(run.logs()), "total": total}))
session.stop()
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_a_driver_runs_a_job_beside_its_own_work(version: str, tmp_path: Path) -> None:
    with own_spark(version) as cluster:
        done = subprocess.run(
            [sys.executable, "-I", "-c", PROGRAM, str(cluster.home.folder.parent)], capture_output=True, text=True, check=False,
            env={**os.environ, **cluster.environ, "PYSPARK_DRIVER_PYTHON": sys.executable}, cwd=tmp_path, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
        output = json.loads(done.stdout.splitlines()[-1])
    lines = ["worker:0 out of 0", "worker:1 out of 1"]
    assert output == {"state": "succeeded", "later": "succeeded", "lines": lines, "total": 4950}
