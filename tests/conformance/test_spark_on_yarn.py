"""Spark applications of a job's own on a real YARN: the driver is on this machine, or on a node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import spark
from conformance.engines import Engine, Submitted, in_containers, python, workers
from hadoop import Cluster
from waiting import until

from trainmaster.core.errors import BadInput

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.soak]  # never run to their end yet
LONG = 600  # s; two JVMs start one after the other
WAITS = """
    import os, time
    print("ready", flush=True)
    while not os.path.exists({go!r}):
        time.sleep(0.02)
    print("done")
"""


class SparkOnYarn(Engine):
    """Applications that YARN runs, of one job each. Nodes find Spark's jars where this machine has them, so that none are sent."""

    name = "spark"

    def __init__(self, folder: Path, deploy: str, jars: Path) -> None:
        super().__init__(folder)
        conf = {"spark.yarn.jars": f"local:{jars}/*", "spark.ui.enabled": "false"}
        conf |= {"spark.driver.memory": "512m", "spark.yarn.am.memory": "512m"}
        self.section: dict[str, Any] = {"master": "yarn", "deploy": deploy, "conf": conf}

    def own(self) -> dict[str, Any]:
        return {"engines": {"spark": self.section}, "storage": (self.folder / "store").as_uri()}

    def application(self, made: Submitted) -> str:
        """Return the name that YARN gives to the job's application, and its containers' directories have."""
        named = str(json.loads((made.storage / "site.json").read_bytes())["application"])
        return named.partition("/")[0].partition("@")[0]

    def waiting_job(self) -> Submitted:
        """Return a job whose two tasks wait for the file `go`."""
        job = self.submit(workers(python(WAITS.format(go=str(self.folder / "go"))), 2))
        until(lambda: all("ready" in "".join(job.lines(f"worker:{index}")) for index in range(2)), LONG, what=job.said)
        return job


@pytest.fixture(params=["client", "cluster"])
def spark_on_yarn(
    request: pytest.FixtureRequest, on_hadoop: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SparkOnYarn:
    home = spark.home_of(spark.VERSIONS[0])
    for name, value in {"SPARK_HOME": str(home.folder), "PYSPARK_PYTHON": home.python}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "place" / "store").mkdir(parents=True)
    return SparkOnYarn(tmp_path / "place", str(request.param), home.folder / "jars")


def test_a_job_runs_and_its_application_ends(spark_on_yarn: SparkOnYarn) -> None:
    job = spark_on_yarn.waiting_job()
    spark_on_yarn.write("go", "")
    job.succeeded(LONG)
    assert job.lines("worker:1")[-1] == "done"
    application = spark_on_yarn.application(job)
    until(lambda: not in_containers(application), LONG, what=lambda: in_containers(application))


def test_a_job_is_killed_from_here(spark_on_yarn: SparkOnYarn) -> None:
    job = spark_on_yarn.waiting_job()
    assert spark_on_yarn.tm("kill", job.id).returncode == 0
    assert job.end(LONG)["state"] == "killed"
    application = spark_on_yarn.application(job)
    until(lambda: not in_containers(application), LONG, what=lambda: in_containers(application))


def test_a_job_whose_driver_is_on_a_node_needs_a_storage(spark_on_yarn: SparkOnYarn) -> None:
    spark_on_yarn.section["deploy"] = "cluster"
    with pytest.raises(BadInput, match="the job has no storage that both it and we reach"):
        spark_on_yarn.submit(workers("true"), storage="")
