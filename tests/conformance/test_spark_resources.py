"""Resources of roles on Spark: whole cores, GPUs by Spark's own addresses, executors that come and go (dynamic allocation)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from conformance.engines import LIMIT, Engine, python
from conformance.spark_engine import Spark
from conformance.test_spark_faults import COUNT
from spark import VERSIONS, own_driver, own_spark
from waiting import until

from trainmaster.clusters.spark import Settings
from trainmaster.core.errors import BadInput

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.full]
WITH_GPUS = Settings(nodes=2, memory=2048, cores=4, resources={"gpu": 2})
SHOWS = """
    import os, time
    print("devices", os.environ.get("CUDA_VISIBLE_DEVICES", "none"), flush=True)
    while not os.path.exists({go!r}):
        time.sleep(0.02)
"""


def devices(engine: Engine, **resources: object) -> list[tuple[str, str]]:
    """Return the node and the devices of each of two tasks that run at once."""
    program = python(SHOWS.format(go=str(engine.folder / "go")))
    job = engine.submit({"worker": {"command": program, "replicas": 2, "resources": {"memory": "64MiB", **resources}}})
    for index in range(2):
        job.until_line("devices", f"worker:{index}")
    nodes = [job.task(f"worker:{index}")["node"] for index in range(2)]
    engine.write("go", "")
    job.succeeded()
    return [(node, job.lines(f"worker:{index}")[0]) for index, node in enumerate(nodes)]


@pytest.mark.parametrize("version", VERSIONS)
def test_gpus_of_a_role_are_those_that_spark_gives(version: str, tmp_path: Path) -> None:
    properties = {
        "spark.executor.cores": "4", "spark.cores.max": "4", "spark.executor.resource.gpu.amount": "2",
        "spark.task.resource.gpu.amount": "1",
    }  # fmt: skip
    folder = tmp_path / "place"
    folder.mkdir()
    with (
        tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as runtime,
        own_spark(version, WITH_GPUS) as cluster,
        own_driver(cluster, Path(runtime), properties) as driver,
    ):
        engine = Spark(folder, driver)
        try:
            until(lambda: driver.eval(COUNT) == 1, LIMIT, what="the executor")
            [node] = engine.client().free()
            assert (node.cores, node.gpus, node.free_gpus) == (4.0, 2, 2)
            shown = devices(engine, cores=2, gpus=1)
            assert sorted(words for _, words in shown) == ["devices 0", "devices 1"]
            assert {place for place, _ in shown} == {node.node.partition(" ")[0]}, "one executor runs both"
            with pytest.raises(BadInput, match="worker needs 3 gpus, and no executor has more than 2"):
                engine.submit({"worker": {"command": "true", "resources": {"gpus": 3}}})
        finally:
            engine.close()


def test_executors_come_for_a_job_and_go_when_it_has_ended(tmp_path: Path) -> None:
    properties = {
        "spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "3s", "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        "spark.dynamicAllocation.maxExecutors": "2", "spark.executor.cores": "1",
    }  # fmt: skip
    folder = tmp_path / "place"
    folder.mkdir()
    with (
        tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as runtime,
        own_spark(VERSIONS[0], WITH_GPUS) as cluster,
        own_driver(cluster, Path(runtime), properties) as driver,
    ):
        engine = Spark(folder, driver)
        try:
            until(lambda: driver.eval(COUNT) == 0, LIMIT, what="no executor is there")
            assert [words for _, words in devices(engine, cores=1)] == ["devices none"] * 2
            until(lambda: driver.eval(COUNT) == 0, LIMIT, what="idle executors go")
            (engine.folder / "go").unlink()
            shown = devices(engine, cores=2, gpus=1)
            assert all(words.startswith("devices ") and words != "devices none" for _, words in shown), shown
            until(lambda: driver.eval(COUNT) == 0, LIMIT, what="idle executors go")
        finally:
            engine.close()
