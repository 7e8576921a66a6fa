"""Real Hadoop clusters for tests: one that a whole run shares, one with Kerberos, and clusters of a test's own.

    pytestmark = pytest.mark.xdist_group("hadoop")  # one worker of a run has the clusters

    def test_something(hadoop: Cluster): ...            # HDFS, a ResourceManager, 2 nodes of 4 GiB, 8 cores and 2 countable GPUs
    def test_something(on_hadoop: Cluster): ...         # the same, and HADOOP_CONF_DIR leads there
    def test_something(secure_hadoop: Cluster): ...     # with Kerberos (privacy)
    with own_hadoop(Settings(nodes=1)) as cluster: ...  # to break as one likes, or with settings of one's own

A test may kill daemons of the shared cluster: what is dead at the beginning of the next one is started again. What must not end by that
(containers of other tests: there are none, for a group runs one after the other) needs no care. Where Java, Maven or
Kerberos is missing, the tests that want a cluster have not run (see `parts`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import watchdog

from trainmaster.clusters import hadoop as hadoop_clusters
from trainmaster.clusters.hadoop import Cluster, Settings

SHARED = Settings(  # a node and a master may be silent for longer than usual: this machine has more to do than theirs
    nodes=2, memory=4096, cores=8, queues={"default": 70.0, "low": 30.0}, resources={"yarn.io/gpu": 2}, node_expiry=20.0,
    master_expiry=90.0,
)  # fmt: skip
SECURE = Settings(  # what is on the wire is the caller's choice; who does not choose has the first
    nodes=2,
    kerberos="privacy",
    properties={
        "hadoop.rpc.protection": "privacy,integrity,authentication",
        "yarn.resourcemanager.delayed.delegation-token.removal-interval-ms": "1000",  # 30 s after an application's end
    },
)
_shared = ExitStack()  # what ends the shared clusters


@contextmanager
def own_hadoop(settings: Settings) -> Iterator[Cluster]:
    """A cluster of one's own, ended and removed at the end."""
    watchdog.sweep("hadoop")
    folder = watchdog.CLUSTERS["hadoop"] / watchdog.run_id()
    folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="c", dir=folder)) / "hadoop"
    try:
        yield hadoop_clusters.up(settings, folder=place)
    finally:
        hadoop_clusters.down(folder=place)
        shutil.rmtree(place.parent, ignore_errors=True)


@pytest.fixture(scope="session")
def hadoop() -> Iterator[Cluster]:
    yield _shared.enter_context(own_hadoop(SHARED))
    _shared.close()


@pytest.fixture(scope="session")
def secure_hadoop() -> Iterator[Cluster]:
    yield _shared.enter_context(own_hadoop(SECURE))
    _shared.close()


def over() -> None:
    """End the shared clusters: no test of this run wants them any more."""
    _shared.close()


@pytest.fixture
def on_hadoop(hadoop: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name, value in hadoop.environ.items():
        monkeypatch.setenv(name, value)
    return hadoop


@pytest.fixture(autouse=True)
def daemons_live(request: pytest.FixtureRequest) -> None:
    """What an earlier test killed of a shared cluster lives again."""
    for name in ("hadoop", "secure_hadoop"):
        if name in request.fixturenames:
            revived(request.getfixturevalue(name))


def revived(cluster: Cluster) -> None:
    """Start what of a cluster is dead, and return when it serves."""
    if any(not cluster.daemon(name).alive for name in cluster.names):
        cluster.revive()
