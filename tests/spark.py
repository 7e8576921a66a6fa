"""Real Spark clusters for tests, of each version that we support.

    pytestmark = pytest.mark.xdist_group("spark")        # one worker of a run has the clusters

    @pytest.mark.parametrize("version", VERSIONS)
    def test_something(version: str) -> None:
        with own_spark(version) as cluster: ...          # a master and two workers of 4 cores and 2 GiB

Each version is an environment of its own below `.venv`, made by `make spark`, with pyspark and nothing else. Where it or Java is
missing, the tests that want a cluster have not run (see `parts`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import watchdog

from trainmaster.clusters import spark as spark_clusters
from trainmaster.clusters.spark import Cluster, Home, Settings
from trainmaster.core.errors import BadInput

VERSIONS = ("3.5", "4")
SMALL = Settings(nodes=2, memory=2048, cores=4)
_LONGEST = 240.0  # s that a program on a cluster may take


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


def run(cluster: Cluster, program: str, *arguments: str) -> str:
    """Run a driver, on the Python of the cluster's Spark, and return its output."""
    done = subprocess.run(
        [cluster.home.python, "-I", "-c", program, *arguments], env={**os.environ, **cluster.environ}, capture_output=True, text=True,
        timeout=_LONGEST, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout
