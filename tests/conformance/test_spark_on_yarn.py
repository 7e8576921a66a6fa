"""Spark applications of a job's own on a real YARN: the driver is on this machine, or on a node.

An application's JVMs take half a minute to start, so each test tries all that one application can show.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import spark
from conformance.engines import SMALL, Engine, Submitted, Yarn, in_containers, python, workers
from conformance.kubernetes_engine import masters_here
from conformance.test_spark_application import executor_of
from hadoop import Cluster, revived
from waiting import until

from trainmaster.core.errors import BadInput

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.full]
LONG = 600  # s; JVMs start one after the other
WAITS = """
    import os, time
    print("ready", flush=True)
    kept = []
    while not os.path.exists({go!r}):
        if os.path.exists({eat!r} + os.environ["TRAINMASTER_ATTEMPT"]):
            kept.append(b"x" * 2**24)
        time.sleep(0.02)
    print("done as attempt", os.environ["TRAINMASTER_ATTEMPT"])
"""


class SparkOnYarn(Engine):
    """Applications that YARN runs, of one job each. Nodes find Spark's jars where this machine has them, so that none are sent. The job's
    storage names no NameNode: all of its parts find the cluster by the submitter's configuration.
    """

    name = "spark"

    def __init__(self, folder: Path, jars: Path) -> None:
        super().__init__(folder)
        conf = {"spark.yarn.jars": f"local:{jars}/*", "spark.ui.enabled": "false", "spark.yarn.queue": "low"}
        conf |= {"spark.driver.memory": "512m", "spark.yarn.am.memory": "512m"}
        self.section: dict[str, Any] = {"master": "yarn", "conf": conf}
        self._store = f"hdfs:///tmp/spark-{uuid.uuid4().hex}"

    def own(self) -> dict[str, Any]:
        return {"engines": {"spark": self.section}, "storage": self._store}

    def application(self, made: Submitted) -> str:
        """Return the name that YARN gives to the job's application, and its containers' directories have."""
        named = str(json.loads((made.storage / "site.json").read_bytes())["application"])
        return named.partition("/")[0].partition("@")[0]

    def driver(self, made: Submitted, program: str) -> int:
        """Return a process of the application's own container: `java`, or the `python` of a driver on a node."""
        lines = in_containers(self.application(made)).items()
        names = (
            ("deploy.yarn.ApplicationMaster", "deploy.yarn.ExecutorLauncher") if program == "java" else ("script.py",)
        )
        is_java = program == "java"
        return next(pid for pid, line in lines if any(name in line for name in names) and ("/java " in line) == is_java)

    def waiting_job(self, **keys: Any) -> Submitted:
        """Return a job whose two tasks wait for the file `go`."""
        program = python(WAITS.format(go=str(self.folder / "go"), eat=str(self.folder / "eat-")))
        job = self.submit(workers(program, 2, restart={"scope": "task", "limit": 9}, **keys))
        for index in range(2):
            until(lambda index=index: "ready" in "".join(job.lines(f"worker:{index}")), LONG, what=job.said)
        return job

    def close(self) -> None:
        for made in self.jobs:
            if made.run.status()["state"] in ("pending", "running"):  # a failed test has left it
                self.tm("kill", "--force", made.id)
            self.gone(made)

    def gone(self, made: Submitted) -> None:
        """Wait until nothing of the application is left."""
        application = self.application(made)
        until(lambda: not in_containers(application), LONG, what=lambda: in_containers(application))
        until(lambda: not masters_here(made.id), LONG, what=lambda: masters_here(made.id))
        until(lambda: not in_containers(f"/{made.id}/driver"), LONG, what=lambda: in_containers(f"/{made.id}/driver"))


@pytest.fixture
def spark_on_yarn(on_hadoop: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkOnYarn]:
    home = spark.home_of(spark.VERSIONS[0])
    for name, value in {"SPARK_HOME": str(home.folder), "PYSPARK_PYTHON": home.python}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "place").mkdir()
    engine = SparkOnYarn(tmp_path / "place", home.folder / "jars")
    yield engine
    engine.close()


@pytest.fixture
def other_queue(on_hadoop: Cluster, tmp_path: Path) -> Iterator[Yarn]:
    """The engine `yarn`, whose jobs have the larger queue."""
    (tmp_path / "other").mkdir()
    engine = Yarn(tmp_path / "other", on_hadoop)
    yield engine
    engine.close()


def lost(job: Submitted, attempt: int, task: str = "worker:0") -> tuple[str, Mapping[str, Any]]:
    """Return the reason and the figures of an attempt's end, once the next attempt runs."""
    job.attempt(attempt + 1, task)
    ends = [
        event
        for event in job.events()
        if event.get("reason") and event["type"] in ("attempt-ended", "attempt-written-off")
    ]
    event = next(event for event in ends if (event["task"], event["attempt"]) == (task, attempt))
    return event["reason"], event["figures"]


def on_node(job: Submitted, node: str) -> list[str]:
    """Return the tasks on a node, by its name with a port, once all tasks run."""

    def placed() -> list[str] | None:
        nodes = {row["task"]: row["node"] for row in job.run.status()["tasks"] if row["state"] == "running"}
        return [f"{nodes[task]}:" for task in nodes] if len(nodes) == 2 else None

    return [address for address in until(placed, LONG, what=job.said) or [] if node.startswith(address)]


def written_off(job: Submitted, reason: str) -> list[dict[str, Any]]:
    return [event for event in job.told("attempt-written-off") if event["reason"] == reason]


def test_losses_have_our_reasons_and_the_job_goes_on(
    spark_on_yarn: SparkOnYarn, other_queue: Yarn, on_hadoop: Cluster
) -> None:
    job = spark_on_yarn.waiting_job()
    for attempt, number in enumerate([signal.SIGKILL, signal.SIGTERM], 1):
        os.kill(executor_of(spark_on_yarn.process(job, attempt)), number)
        reason, figures = lost(job, attempt)
        assert reason == "killed-by-engine", figures
        assert f"{128 + number}" in figures["detail"]

    spark_on_yarn.write("eat-3", "")
    reason, figures = lost(job, 3)
    assert reason == "out-of-memory", figures
    (spark_on_yarn.folder / "eat-3").unlink()  # else another task's third attempt eats too

    os.kill(spark_on_yarn.driver(job, "java"), signal.SIGKILL)  # a second attempt of it gets executors of its own
    assert lost(job, 4)[0] == "killed-by-engine"

    owner = other_queue.submit(
        {"worker": {"command": "sleep 600", "replicas": 2, "resources": {**SMALL, "memory": "2500MiB"}}}, master={"resources": SMALL}
    )  # fmt: skip
    taken = until(lambda: written_off(job, "preempted"), LONG, what=job.said)[0]
    assert "was preempted" in taken["figures"]["by"]
    other_queue.tm("kill", owner.id)

    number = (
        2 if "/node-1/" in os.readlink(f"/proc/{spark_on_yarn.driver(job, 'java')}/cwd") else 1
    )  # it has no third attempt
    while not on_node(job, on_hadoop.node_id(number)):
        row = job.task("worker:1")
        os.kill(executor_of(spark_on_yarn.process(job, row["attempt"], "worker:1")), signal.SIGKILL)
        job.attempt(row["attempt"] + 1, "worker:1")
    on_hadoop.daemon(f"nodemanager-{number}").kill()
    event = until(lambda: written_off(job, "node-lost"), LONG, what=job.said)[0]
    assert "Container released on a *lost* node" in event["figures"]["detail"]
    revived(on_hadoop)
    spark_on_yarn.write("go", "")
    job.succeeded(LONG)
    spark_on_yarn.gone(job)


def test_a_job_whose_driver_is_on_a_node_runs_and_its_application_ends(spark_on_yarn: SparkOnYarn) -> None:
    spark_on_yarn.section["deploy"] = "cluster"
    job = spark_on_yarn.waiting_job()
    spark_on_yarn.write("go", "")
    job.succeeded(LONG)
    assert job.lines("worker:1")[-1] == "done as attempt 1"
    spark_on_yarn.gone(job)


@pytest.mark.parametrize("part", ["java", "python"])
def test_the_death_of_a_driver_on_a_node_ends_the_job(spark_on_yarn: SparkOnYarn, part: str) -> None:
    spark_on_yarn.section["deploy"] = "cluster"
    job = spark_on_yarn.waiting_job()
    os.kill(spark_on_yarn.driver(job, part), signal.SIGKILL)
    status = job.end(LONG)
    assert status["state"] == "killed", job.story(status)
    spark_on_yarn.gone(job)


@pytest.mark.parametrize("deploy", ["client", "cluster"])
def test_a_job_is_killed_from_here(spark_on_yarn: SparkOnYarn, deploy: str) -> None:
    spark_on_yarn.section["deploy"] = deploy
    job = spark_on_yarn.waiting_job()
    assert spark_on_yarn.tm("kill", job.id).returncode == 0
    assert job.end(LONG)["state"] == "killed"
    spark_on_yarn.gone(job)


def test_a_job_whose_driver_is_on_a_node_needs_a_storage(spark_on_yarn: SparkOnYarn) -> None:
    spark_on_yarn.section["deploy"] = "cluster"
    with pytest.raises(BadInput, match="the job has no storage that both it and we reach"):
        spark_on_yarn.submit(workers("true"), storage="")
