"""A real standalone Spark on this machine: it comes up with what was asked for, survives the loss of daemons, and leaves nothing."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path

import pytest
import spark
from spark import VERSIONS, own_spark
from waiting import until

from trainmaster.clusters import daemons
from trainmaster.clusters import spark as spark_clusters
from trainmaster.clusters.spark import Cluster, Settings
from trainmaster.core.errors import BadInput, EngineFailed

pytestmark = pytest.mark.xdist_group("spark")
BRIEF_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # a JVM that lives for seconds need not compile well
SETTINGS = Settings(
    nodes=2, memory=2048, cores=4, resources={"gpu": 2},
    properties={
        "spark.ui.enabled": "false", "spark.driver.extraJavaOptions": BRIEF_JAVA, "spark.executor.extraJavaOptions": BRIEF_JAVA,
    },
)  # fmt: skip
# Two tasks, one in each executor, tell what they have. Their executors cannot hold both, since each has one GPU.
PROGRAM = """
import http.client, json, sys
from pyspark import SparkConf, SparkContext, BarrierTaskContext

def place(rows):
    import importlib.util, os, sys
    context = BarrierTaskContext.get()
    context.barrier()
    yield {
        "python": sys.executable,
        "gpus": context.resources()["gpu"].addresses, "ours": importlib.util.find_spec("trainmaster") is not None,
    }

conf = SparkConf().set("spark.executor.cores", "2").set("spark.cores.max", "4").set("spark.executor.memory", "512m")
conf.set("spark.executor.resource.gpu.amount", "1").set("spark.task.resource.gpu.amount", "1").set("spark.driver.memory", "512m")
context = SparkContext(conf=conf)
tasks = context.parallelize([0, 1], 2).barrier().mapPartitions(place).collect()
def post(path, headers):  # as another user of the machine would, and a page of the web
    connection = http.client.HTTPConnection(sys.argv[1])
    connection.request("POST", path.replace("APP", context.applicationId), headers=headers)
    connection.getresponse()

for headers in ({}, {"Host": "evil.example", "Origin": "http://evil.example"}):
    for path in ("/app/kill/?id=APP&terminate=true", "/workers/kill/?host=127.0.0.2&host=127.0.0.3"):
        post(path, headers)
executors = context._jsc.sc().statusTracker().getExecutorInfos()  # the driver is among them
print(json.dumps({"version": context.version, "tasks": tasks, "hosts": sorted(info.host() for info in executors)}))
context.stop()
"""


def tm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainmaster.cli", "cluster", *words], capture_output=True, text=True, check=False
    )


def asked(page: str, method: str, path: str, headers: dict[str, str]) -> int:
    """Return the status of a request to a web page."""
    connection = http.client.HTTPConnection(page.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def workers(cluster: Cluster) -> list[str]:
    """Return the addresses of the workers that the master has."""
    report = cluster.report()
    return sorted(worker["host"] for worker in report["workers"] if worker["state"] == "ALIVE") if report else []


@pytest.mark.parametrize("version", [pytest.param(VERSIONS[0], marks=pytest.mark.full), *VERSIONS[1:]])
def test_an_application_runs_on_both_workers_and_nothing_is_left(version: str) -> None:
    with own_spark(version, SETTINGS) as cluster:
        output = json.loads(
            spark.run(cluster, PROGRAM, cluster.pages["master"].removeprefix("http://")).splitlines()[-1]
        )
        assert output["version"].startswith(f"{version}.")
        assert {"127.0.0.2", "127.0.0.3"} <= {*output["hosts"]}
        for task in output["tasks"]:
            assert task["python"] == cluster.home.python, "executors run on the Python of the cluster's Spark"
            assert len(task["gpus"]) == 1
            assert set(task["gpus"]) <= {"0", "1"}
            assert not task["ours"], "nothing of ours is in the environment of a test's Spark"
        report = cluster.report()
        assert report
        assert [application["state"] for application in report["completedapps"]] == ["FINISHED"]
        assert workers(cluster) == ["127.0.0.2", "127.0.0.3"]

        for name in cluster.names:
            for address in listening(cluster.daemon(name).started.pid):
                assert address.startswith("127."), f"the {name} listens on {address}"
    assert not cluster.folder.exists()
    assert not daemons.marked(cluster.folder)


@pytest.mark.full
@pytest.mark.parametrize("headers", [{}, {"Host": "evil.example", "Origin": "http://evil.example"}])
def test_no_page_ends_an_application_or_a_part_of_it(on_spark: spark.Driver, headers: dict[str, str]) -> None:
    """Neither as another user of the machine asks, nor as a page of the web does. PROGRAM tries it on other versions."""
    driver, master = on_spark.eval("context.uiWebUrl"), on_spark.cluster.pages["master"]
    sleeping = "context.parallelize([0], 1).foreach, args=[lambda row: __import__('time').sleep(15)]"
    on_spark.eval(f"globals().update(thread=__import__('threading').Thread(target={sleeping}))")
    on_spark.eval("thread.start()")
    until(lambda: on_spark.eval("len(context.statusTracker().getActiveStageIds())") == 1, what="a stage that runs")
    [[job], [stage]] = on_spark.eval(
        "[list(context.statusTracker().getActiveJobsIds()), list(context.statusTracker().getActiveStageIds())]"
    )
    for page, path in (
        (master, f"/app/kill/?id={on_spark.application}&terminate=true"), (master, "/workers/kill/?host=127.0.0.2"),
        (driver, f"/jobs/job/kill/?id={job}"), (driver, f"/stages/stage/kill/?id={stage}&terminate=true"),
    ):  # fmt: skip
        for method in ("GET", "POST"):
            assert asked(page, method, path, headers) in (302, 405), path
    on_spark.eval("thread.join()")
    assert on_spark.eval(f"context.statusTracker().getJobInfo({job}).status") == "SUCCEEDED"
    assert workers(on_spark.cluster) == ["127.0.0.2", "127.0.0.3"]
    for page in (*on_spark.cluster.pages.values(), driver):
        assert asked(page, "GET", "/jobs/" if page == driver else "/", headers) == 200


@pytest.mark.full
def test_daemons_that_die_come_back() -> None:
    with own_spark(VERSIONS[0]) as cluster:
        cluster.daemon("worker-2").kill()
        until(lambda: workers(cluster) == ["127.0.0.2"], limit=60, what="the loss of the worker")
        assert cluster.state == "broken"
        assert spark_clusters.up(spark.SMALL, folder=cluster.folder).state == "running"
        until(lambda: workers(cluster) == ["127.0.0.2", "127.0.0.3"], what="the worker's return")
        first = cluster.daemon("worker-1").started

        cluster.daemon("master").kill()
        again = spark_clusters.up(spark.SMALL, folder=cluster.folder)
        assert again.daemon("worker-1").started == first, "a master that comes back finds its workers"
        assert workers(again) == ["127.0.0.2", "127.0.0.3"]


def listening(pid: int) -> list[str]:
    """Return the addresses on which a process listens."""
    import psutil

    return [
        connection.laddr.ip.removeprefix("::ffff:")
        for connection in psutil.Process(pid).net_connections()
        if connection.status == "LISTEN"
    ]


@pytest.mark.full
def test_the_command_line_starts_shows_and_ends_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark.home_of(VERSIONS[-1]).folder))
    try:
        up = tm("up", "spark", "--nodes", "1", "--cores", "2", "--memory", "1GiB")
        assert up.returncode == 0, up.stderr
        assert up.stdout.startswith("the cluster spark is ready: http://localhost:")
        assert tm("up", "spark", "--nodes", "1", "--cores", "2", "--memory", "1GiB").stdout.startswith(
            "the cluster spark runs already"
        )
        other = tm("up", "spark", "--nodes", "2")
        assert other.returncode == 2
        assert "is there with other settings" in other.stderr
        (report,) = json.loads(tm("status", "spark", "--json").stdout)
        assert report["state"] == "running"
        assert [daemon["name"] for daemon in report["daemons"]] == ["master", "worker-1"]
        assert all(len(daemon["ports"]) == 2 for daemon in report["daemons"])
        environ = json.loads(tm("env", "spark", "--json").stdout)
        defaults = (Path(environ["SPARK_CONF_DIR"]) / "spark-defaults.conf").read_text()
        assert "spark.master spark://localhost:" in defaults
    finally:
        down = tm("down", "spark")
    assert down.stdout == "the cluster spark is down\n"
    assert not daemons.marked(Path(report["folder"]))
    assert tm("down", "spark").stdout == "there is no cluster spark\n"


def test_a_daemon_that_ends_is_named_with_its_last_words_and_nothing_is_left(tmp_path: Path) -> None:
    folder, home = tmp_path / "spark", spark.home_of(VERSIONS[0]).folder
    with pytest.raises(EngineFailed, match=r"the (master|worker-1|master and worker-1) ended") as failed:
        spark_clusters.up(Settings(nodes=1, heap=1), folder=folder, home=home)
    assert "heap" in str(failed.value), "the words of a Java with 1 MiB"
    assert (folder / "logs" / "master.log").exists()
    assert not daemons.marked(folder)


def test_a_cluster_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"version": 1, "kind": "hadoop"}')
    with pytest.raises(BadInput, match="is of kind hadoop, not spark"):
        spark_clusters.up(Settings(), folder=tmp_path)
