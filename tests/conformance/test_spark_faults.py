"""What Spark itself may do to a job's tasks: each gives one of our reasons, in words, at once, and leaves nothing on the executors.

The tests share an application on a cluster of two workers, with every habit of Spark's that could begin a second copy: speculation, and no
second attempt of a task (the default of four is that of `test_spark_application`).
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import LIMIT, Submitted, container_process, python, workers
from conformance.spark_engine import Spark
from conformance.test_spark_application import WAITS, executor_of, waiting_job
from spark import VERSIONS, Driver, older_python, own_driver, own_spark
from waiting import until

from trainmaster.host import linux

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.full]
PROPERTIES = {
    "spark.task.maxFailures": "1", "spark.speculation": "true", "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms", "spark.speculation.task.duration.threshold": "1s", "spark.decommission.enabled": "true",
}  # fmt: skip
ACTIVE = "context.statusTracker().getActiveStageIds()"
VALUE = "a-value-that-nobody-else-has"
READ = "__import__('trainmaster.engines.spark.bridge.executors', fromlist=['read']).read(context)"
COUNT, BUSY = f"len({READ})", f"sum(executor.busy for executor in {READ})"


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with (
        tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as runtime,
        own_spark(VERSIONS[0]) as cluster,
        own_driver(cluster, Path(runtime), PROPERTIES) as made,
    ):
        yield made


@pytest.fixture
def spark(driver: Driver, tmp_path: Path) -> Iterator[Spark]:
    folder = tmp_path / "place"
    folder.mkdir()
    row = Spark(folder, driver)
    try:
        yield row
    finally:
        row.close()


def one_waiting(spark: Spark) -> Submitted:
    """Return a job whose one task waits for the file `go`."""
    job = spark.submit(
        workers(python(WAITS.format(go=str(spark.folder / "go"))), 1, restart={"scope": "task", "limit": 2})
    )
    job.until_line("ready")
    return job


def written_off(job: Submitted, attempt: int = 1) -> dict[str, Any]:
    """Return the event of an attempt's end by the engine's word."""
    job.attempt(attempt + 1)
    return next(event for event in job.told("attempt-written-off") if event["attempt"] == attempt)


def directories(driver: Driver) -> list[str]:
    """Return our directories on the executors."""
    return [str(path) for path in driver.cluster.folder.glob("worker-*/*/*/trainmaster-*")]


def gang(spark: Spark, size: int, program: str, **keys: Any) -> Submitted:
    return spark.submit(workers(python(program), size, restart={"scope": "group", "limit": 0}), gang=True, **keys)


def test_a_wait_for_executors_says_asked_and_free_and_ends_by_its_time_out(spark: Spark) -> None:
    until(lambda: spark.driver.eval(COUNT) == 2, LIMIT, what="both executors are there")
    job = gang(spark, 6, "print('never')", timeouts={"start": "8s"})
    reason = job.failed("refused")
    [waiting] = [event for event in job.told("waiting") if event["resource"] == "slots"][-1:]
    assert (waiting["asked"], waiting["free"]) == ("worker: 6 x 1 core", "4 cores")
    assert "worker: 6 x 1 core: 2 executors of the application have 4 cores in all" in reason["words"]
    assert "it waited for executors for 8 s, timeouts.start" in reason["words"]


def test_two_gangs_larger_than_half_both_end(spark: Spark) -> None:
    program = "import os, time\nprint('in', flush=True)\nwhile not os.path.exists({!r}): time.sleep(0.02)"
    jobs = [gang(spark, 3, program.format(str(spark.folder / f"go-{number}"))) for number in range(2)]
    first = until(lambda: next((job for job in jobs if job.status()["state"] == "running"), None), LIMIT)
    second = next(job for job in jobs if job is not first)
    for index in range(3):
        first.until_line("in", f"worker:{index}")
    waiting = second.until_status("it says what it waits for", lambda status: status["waiting"])["waiting"]
    assert "worker: 3 x 1 core" in str(waiting), waiting
    assert second.told("granted") == []
    for number in range(2):
        spark.write(f"go-{number}", "")
    for job in jobs:
        job.succeeded()


def test_secrets_are_not_in_what_spark_sends_and_pages_are_linked(spark: Spark) -> None:
    job = spark.submit(
        workers(f"echo ${{#API_KEY}}; until [ -e {spark.folder}/go ]; do sleep 0.1; done", env={"API_KEY": VALUE})
    )
    job.until_line(str(len(VALUE)))
    bridge = "__import__('trainmaster.engines.spark.bridge.bridge', fromlist=['bridge_of']).bridge_of(context)"
    orders = spark.driver.eval(f"[task.order for job in {bridge}._jobs.values() for task in job.tasks.values()]")
    assert job.id in str(orders)
    assert VALUE not in str(orders)
    spark.write("go", "")
    job.succeeded()
    kept = f"[len(job.tasks) for job in {bridge}._jobs.values() if job.id == {job.id!r}]"
    until(lambda: spark.driver.eval(kept) == [0], LIMIT, what="the bridge forgets it")
    assert f"{spark.driver.eval('context.uiWebUrl')}/jobs/" in spark.tm("status", job.id).stdout
    log = (spark.driver.sockets.parents[1].parent / "driver.log").read_text()
    assert f"trainmaster: job {job.id}: tm status {job.id}, tm ui; its tasks: http://" in log


def test_speculation_starts_no_second_copy(spark: Spark) -> None:
    job = one_waiting(spark)
    until(lambda: spark.driver.eval(BUSY) >= 2, LIMIT, what="Spark begins a second attempt")
    spark.write("go", "")
    job.succeeded()
    assert job.lines() == ["ready", "goes on as attempt 1"]
    until(lambda: spark.driver.eval(BUSY) == 0, LIMIT, what="the second attempt is cancelled")


def test_a_stage_that_is_killed_on_sparks_page(spark: Spark) -> None:
    job = one_waiting(spark)
    spark.driver.eval(f"[context._jsc.sc().cancelStage(stage) for stage in {ACTIVE}]")
    event = written_off(job)
    assert event["reason"] == "killed-by-engine"
    assert "cancel" in event["figures"]["detail"].lower()
    spark.write("go", "")
    job.succeeded()


def test_a_killed_worker_of_python_leaves_nothing(spark: Spark) -> None:
    job = one_waiting(spark)
    agent = linux.look(container_process(f"trainmaster-{job.id}-", "", "agent"))
    assert agent is not None
    before = directories(spark.driver)
    os.kill(agent.parent, signal.SIGKILL)
    job.attempt(2)
    until(lambda: not set(before) & set(directories(spark.driver)), LIMIT, what=lambda: directories(spark.driver))
    spark.write("go", "")
    job.succeeded()
    until(lambda: not directories(spark.driver), LIMIT, what=lambda: directories(spark.driver))


def test_a_killed_executor_with_one_attempt_a_task(spark: Spark) -> None:
    job = one_waiting(spark)
    os.kill(executor_of(spark.process(job)), signal.SIGKILL)
    event = written_off(job)
    assert "Command exited with code 137 (SIGKILL: by the kernel where memory runs out" in event["figures"]["detail"]
    spark.write("go", "")
    job.succeeded()


def test_a_decommissioned_executor_warns(spark: Spark) -> None:
    job = one_waiting(spark)
    os.kill(executor_of(spark.process(job)), signal.SIGPWR)
    [warned] = until(lambda: job.told("warned"), LIMIT, what="the warning")
    assert warned["reason"] == "preempted"
    assert "Spark, which decommissions executor" in warned["figures"]["by"]
    spark.write("go", "")
    job.succeeded()


def test_a_killed_worker_node(spark: Spark) -> None:
    job = one_waiting(spark)
    node = job.task("worker:0")["node"]
    assert node in ("127.0.0.2", "127.0.0.3"), "Spark's name of the host"
    name = f"worker-{int(node.rpartition('.')[2]) - 1}"
    spark.driver.cluster.daemon(name).kill()
    event = written_off(job)
    assert event["reason"] in ("node-lost", "killed-by-engine")
    assert f"on {node} was lost" in event["figures"]["detail"]
    spark.driver.cluster.revive()
    spark.write("go", "")
    job.succeeded()


@contextmanager
def own_application(driver: Driver, folder: Path, properties: dict[str, str], **environ: str) -> Iterator[Spark]:
    """Another application on the cluster."""
    folder.mkdir()
    with (
        tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as runtime,
        own_driver(driver.cluster, Path(runtime), properties, **environ) as other,
    ):
        spark = Spark(folder, other)
        try:
            yield spark
        finally:
            spark.close()


def test_executors_that_spark_excludes_are_waited_for(driver: Driver, tmp_path: Path) -> None:
    names = {
        "enabled": "true",
        "timeout": "60s",
        "application.maxFailedTasksPerExecutor": "1",
        "stage.maxFailedTasksPerExecutor": "9",
    }
    properties = {f"spark.excludeOnFailure.{name}": value for name, value in names.items()}
    with own_application(driver, tmp_path / "place", properties) as spark:
        until(lambda: spark.driver.eval(COUNT) == 2, LIMIT, what="both executors are there")
        # Other work of the application, of which each task fails once: on both executors.
        attempt = "__import__('pyspark').TaskContext.get().attemptNumber()"
        assert (
            spark.driver.eval(f"context.parallelize(range(4), 4).map(lambda _: 1 / {attempt}).collect()") == [1.0] * 4
        )
        job = spark.submit(workers("echo here"))
        words = "the application has no executor (2 more get no tasks: Spark excludes or decommissions them)"
        job.until_status("it says what it waits for", lambda status: words in str(status["waiting"]))
        job.succeeded()
        assert job.lines() == ["here"]


def test_another_python_at_the_executors_ends_the_job_with_sparks_words(driver: Driver, tmp_path: Path) -> None:
    python = older_python(tmp_path / "other")
    with own_application(driver, tmp_path / "place", {}, PYSPARK_PYTHON=str(python)) as spark:
        reason = spark.submit(workers("true", restart={"scope": "task", "limit": 1})).failed("localization-failed")
    assert "Python in worker has different version (3, 9) than that in driver 3.11" in reason["words"]
    assert "Traceback" not in reason["words"]


def test_an_executor_that_is_killed_in_a_collective(spark: Spark) -> None:
    program = python(
        f"""
        import os
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        print("begins", flush=True)
        is_over = torch.zeros(1)
        while not is_over:
            is_over[0] = os.path.exists({str(spark.folder / "go")!r})
            dist.all_reduce(is_over)
        print("sum", int(is_over), "of", dist.get_world_size())
        """
    )
    roles = {"worker": {"command": program, "replicas": 2, "resources": {"cores": 1, "memory": "512MiB"}}}
    job = spark.submit(roles, framework="pytorch", gang=True)
    for index in range(2):
        job.until_line("begins", f"worker:{index}")
    os.kill(executor_of(spark.process(job, task="worker:1")), signal.SIGKILL)
    for index in range(2):
        job.attempt(2, f"worker:{index}")
    spark.write("go", "")
    job.succeeded()
    assert {job.lines(f"worker:{index}")[-1] for index in range(2)} <= {"sum 1 of 2", "sum 2 of 2"}


def test_the_death_of_the_drivers_jvm_ends_the_job(driver: Driver, tmp_path: Path) -> None:
    with own_application(driver, tmp_path / "place", {}) as spark:
        job = waiting_job(spark)
        pid = spark.driver.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        [jvm] = [int(child) for child in children if (process := linux.look(int(child))) and process.name == "java"]
        os.kill(jvm, signal.SIGKILL)
        status = job.end()
        assert status["state"] == "killed", job.story(status)
        assert "the JVM of its driver died" in status["reason"]["words"]


def test_a_context_that_is_stopped_ends_the_job(spark: Spark) -> None:
    job = waiting_job(spark)
    spark.driver.eval("context.stop()")
    status = job.end()
    assert status["state"] == "killed", job.story(status)
    assert "its SparkContext was stopped" in status["reason"]["words"]
    until(lambda: not spark.command_lines(job), LIMIT, what=lambda: spark.command_lines(job))
