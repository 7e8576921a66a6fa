"""Real Kubernetes clusters for tests: one that a whole run shares, and clusters of a test's own.

    pytestmark = pytest.mark.xdist_group("kubernetes")  # one worker of a run has the clusters

    def test_something(kubernetes: Cluster): ...             # 2 nodes of 8 cores, 4 GiB and 2 countable GPUs, 20 simulated ones apart
    def test_something(on_kubernetes: Cluster): ...          # the same, and KUBECONFIG and the image lead there
    with own_kubernetes(Settings(nodes=1)) as cluster: ...   # to break as one likes, or with settings of one's own

Nodes of the shared cluster are lost after seconds of silence. A test may kill its daemons and nodes: what is dead at the beginning of
the next one is started again. Where root, containerd or Go is missing, the tests that want a cluster have not run (see `parts`).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import watchdog

from trainmaster.clusters import kubernetes as kubernetes_clusters
from trainmaster.clusters.kubernetes import Cluster, Settings

GPU = "nvidia.com/gpu"
SHARED = Settings(nodes=2, simulated=20, resources={GPU: 2}, fast_expiry=True)
RUNNING = os.environ.get(
    "TRAINMASTER_TEST_KUBERNETES", ""
)  # the folder of a cluster to use, which a developer left running
_shared = ExitStack()  # what ends it


@contextmanager
def own_kubernetes(settings: Settings) -> Iterator[Cluster]:
    """A cluster of one's own, ended and removed at the end."""
    watchdog.sweep("kubernetes")
    folder = watchdog.CLUSTERS["kubernetes"] / watchdog.run_id()
    folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="c", dir=folder)) / "kubernetes"
    try:
        yield kubernetes_clusters.up(settings, folder=place, say=lambda line: print(line, file=sys.stderr))
    finally:
        kubernetes_clusters.down(folder=place)
        shutil.rmtree(place.parent, ignore_errors=True)


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[Cluster]:
    if RUNNING:
        found = Cluster.read(Path(RUNNING))
        assert found is not None, f"there is no cluster in {RUNNING}"
        yield found
        return
    yield _shared.enter_context(own_kubernetes(SHARED))
    _shared.close()


def over() -> None:
    """No test of this run wants the shared cluster any more, which costs a third of a core while it is there."""
    _shared.close()


@pytest.fixture
def on_kubernetes(kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name, value in kubernetes.environ.items():
        monkeypatch.setenv(name, value)
    return kubernetes


@pytest.fixture(autouse=True)
def kubernetes_lives(request: pytest.FixtureRequest) -> None:
    """What an earlier test killed of the shared cluster lives again."""
    if "kubernetes" in request.fixturenames:
        revived(request.getfixturevalue("kubernetes"))


def revived(cluster: Cluster) -> None:
    """Start what of a cluster is dead, and return when it serves."""
    if any(not cluster.daemon(name).alive for name in cluster.names):
        cluster.revive()


def host_volumes() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts, all to be read only, by which a pod of the image `host` has this machine's Python and its environment."""
    wanted = ["/usr", "/bin", "/lib", "/lib64", "/etc/ssl", sys.base_prefix, sys.prefix]
    wanted += [
        path for path in sys.path if path.endswith("site-packages")
    ]  # those of an environment that leads to another one
    paths: list[str] = []
    for path in dict.fromkeys(wanted):
        if Path(path).exists() and not any(path.startswith(f"{above}/") for above in paths):
            paths.append(path)
    volumes = [{"name": f"host-{at}", "hostPath": {"path": os.path.realpath(path)}} for at, path in enumerate(paths)]
    mounts = [{"name": f"host-{at}", "mountPath": path, "readOnly": True} for at, path in enumerate(paths)]
    return volumes, mounts
