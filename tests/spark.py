"""Real Spark clusters for tests, of each version that we support.

    pytestmark = pytest.mark.xdist_group("spark")        # one worker of a run has the clusters

    @pytest.mark.parametrize("version", VERSIONS)
    def test_something(version: str) -> None:
        with own_spark(version) as cluster: ...          # a master and two workers of 4 cores and 2 GiB

Each version is an environment of its own below `.venv`, made by `make spark`, with pyspark and nothing else. Where it or Java is
missing, the tests that want a cluster have not run (see `parts`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import watchdog
from leftovers import MARK
from waiting import until

from trainmaster.clusters import spark as spark_clusters
from trainmaster.clusters.spark import Cluster, Home, Settings
from trainmaster.core.errors import BadInput

VERSIONS = ("3.5", "4")
SMALL = Settings(nodes=2, memory=2048, cores=4)
# Of the whole run's application: a task of ours takes a core at least, and slots cost nothing. As many are left for others.
LARGE = Settings(nodes=2, memory=2048, cores=16)
SLOTS = {"spark.executor.cores": "8", "spark.cores.max": "16"}
_LONGEST = 600.0  # s that a driver may take


def home_of(version: str) -> Home:
    """Return the Spark of a version. Raises BadInput where its environment is not there."""
    environment = Path(sys.prefix) / f"spark-{version}"
    package = next(environment.glob("lib/python3*/site-packages/pyspark"), None)
    if package is None or not (environment / ".installed").exists():
        raise BadInput(f"there is no Spark {version} in {environment}", mend="make spark", anchor="no-spark")
    return spark_clusters.find_home(package)


@contextmanager
def own_spark(version: str, settings: Settings = SMALL) -> Iterator[Cluster]:
    """A cluster of a test's own, ended and removed at the end."""
    watchdog.sweep("spark")
    folder = watchdog.CLUSTERS["spark"] / watchdog.run_id()
    folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="c", dir=folder)) / "spark"
    try:
        yield spark_clusters.up(settings, folder=place, home=home_of(version).folder)
    finally:
        spark_clusters.down(folder=place)
        shutil.rmtree(place.parent, ignore_errors=True)


# A driver that takes jobs until its stdin ends, and evaluates what it reads there: each line is an expression in `context`, and its value
# is a line of JSON. Its Python has Trainmaster; its arguments are the directory of pyspark, and Spark's properties as JSON.
DRIVER = """
import json, sys
sys.path.append(sys.argv[1])
from pyspark import SparkConf, SparkContext
import trainmaster.spark
conf = SparkConf().set("spark.executor.cores", "2").set("spark.cores.max", "4")
conf.set("spark.executor.memory", "512m").set("spark.driver.memory", "512m")
conf.set("spark.standalone.executorRemoveDelayOnDisconnection", "60s")  # its end is told by the master, however slow the machine is
for name, value in json.loads(sys.argv[2]).items():
    conf.set(name, value)
context = SparkContext(conf=conf)
print(trainmaster.spark.open_to_jobs(context), flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
context.stop()
"""


@attrs.define
class Driver:
    """An application that takes jobs. It has two executors, one on each worker, by default of two cores. `sockets`: of its bridge."""

    cluster: Cluster
    process: subprocess.Popen[str]
    application: str
    sockets: Path

    def eval(self, expression: str) -> Any:
        """Evaluate an expression in the driver, where `context` is its SparkContext; its value must be plain data."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def own_driver(
    cluster: Cluster, runtime: Path, properties: Mapping[str, str] | None = None, **environ: str
) -> Iterator[Driver]:
    """An application of a test's own, with these of Spark's properties. `runtime`: its runtime directory, whose path must be short."""
    folders = {"TRAINMASTER_STATE_DIR": str(runtime / "state"), "TRAINMASTER_RUNTIME_DIR": str(runtime / "run")}
    environ = {
        **os.environ,
        **cluster.environ,
        **folders,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        MARK: watchdog.run_id(),
        **environ,
    }
    log = (runtime / "driver.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", DRIVER, str(cluster.home.folder.parent), json.dumps(dict(properties or {}))],
        env=environ, cwd=runtime, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
    )  # fmt: skip
    try:
        with process, log:
            assert process.stdin is not None
            assert process.stdout is not None
            application = process.stdout.readline().strip()
            assert application, (runtime / "driver.log").read_text()[-4000:]
            [socket] = (runtime / "run").glob(f"*/*/{application}.sock")
            try:
                yield Driver(cluster, process, application, socket.parent)
            finally:
                process.stdin.close()
                until(lambda: process.poll() is not None, what="the driver's end")
    finally:
        process.kill()


@pytest.fixture(scope="session")
def on_spark() -> Iterator[Driver]:
    """An application of the whole run, on a cluster of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as runtime,
        own_spark(VERSIONS[0], LARGE) as cluster,
        own_driver(cluster, Path(runtime), SLOTS) as driver,
    ):
        yield driver


def older_python(folder: Path) -> Path:
    """Return a Python for executors that takes itself for 3.9."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import collections, sys\nnames = 'major minor micro releaselevel serial'\n"
        "sys.version_info = collections.namedtuple('V', names)(3, 9, 0, 'final', 0)\n"
    )
    python = folder / "python"
    python.write_text(f"""#!/bin/sh\nPYTHONPATH={folder}:$PYTHONPATH exec {sys.executable} "$@"\n""")
    python.chmod(0o755)
    return python


def run(cluster: Cluster, program: str, *arguments: str) -> str:
    """Run a driver, on the Python of the cluster's Spark, and return its output."""
    done = subprocess.run(
        [cluster.home.python, "-I", "-c", program, *arguments], env={**os.environ, **cluster.environ}, capture_output=True, text=True,
        timeout=_LONGEST, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout
