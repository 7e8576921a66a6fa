"""What the master asks of YARN and what it is granted: nodes near the data, devices and counts by name, as many of a group as there is
room for, other nodes than those that fail; and what it says while it waits.

One cluster of three nodes for all of it: 1 and 2 in the default partition, the DataNode beside 1, and 3 with the label `fast`; queues of
several limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import LIMIT, Submitted, Yarn
from hadoop import own_hadoop, revived
from waiting import until

from trainmaster.clusters import pages
from trainmaster.clusters.hadoop_cluster import Cluster
from trainmaster.clusters.settings import Settings

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.full]

QUEUE = "yarn.scheduler.capacity.root."
CROWDED = Settings(
    nodes=3,
    memory=2048,
    queues={"default": 60.0, "low": 20.0, "tight": 10.0, "few": 10.0},
    labels={3: "fast"},
    resources={"yarn.io/gpu": 2, "fpga": 1},
    properties={
        f"{QUEUE}tight.maximum-capacity": "20",
        f"{QUEUE}low.user-limit-factor": "1",
        f"{QUEUE}few.maximum-am-resource-percent": "0.01",
        "yarn.nodemanager.admin-env": "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b",  # what a driver would find: none is here
    },
)
TINY = {"cores": 0.05, "memory": "64MiB"}
MASTER = {"resources": {"memory": "256MiB"}}


@pytest.fixture(scope="module")
def crowded() -> Iterator[Cluster]:
    with own_hadoop(CROWDED) as cluster:
        yield cluster


@pytest.fixture
def yarn(crowded: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Yarn]:
    for name, value in crowded.environ.items():
        monkeypatch.setenv(name, value)
    revived(crowded)
    folder = tmp_path / "place"
    folder.mkdir()
    made = Yarn(folder)
    try:
        yield made
    finally:
        made.close()


def submit(yarn: Yarn, command: str, replicas: Any = 1, queue: str = "default", **keys: Any) -> Submitted:
    """A job of workers; `resources` and `nodes` are the role's."""
    own = {name: keys.pop(name) for name in ("resources", "nodes") if name in keys}
    worker = {"command": command, "replicas": replicas, "resources": TINY, **own}
    return yarn.submit({"worker": worker}, engines={"yarn": {"queue": queue}}, **{"master": MASTER, **keys})


def held(yarn: Yarn, name: str = "go") -> str:
    return f"echo has $CUDA_VISIBLE_DEVICES; while ! test -e '{yarn.folder}/{name}'; do sleep 0.05; done; echo done"


def let_go(yarn: Yarn, name: str = "go") -> None:
    yarn.write(name, "")


def asked(crowded: Cluster, yarn: Yarn, job: Submitted) -> list[dict[str, Any]]:
    """What the ResourceManager has as the job's asks now."""
    port = crowded.place.ports["resourcemanager.http"]
    found = pages.ask(port, f"/ws/v1/cluster/apps/{yarn.application(job)}") or {}
    return list(found.get("app", {}).get("resourceRequests", []))


# -- near the data --


def test_nodes_that_hold_a_tasks_blocks_are_preferred(yarn: Yarn, crowded: Cluster) -> None:
    """Blocks are where node 1 is. While nothing is free the wish can be seen, and it is no more than that."""
    yarn.put("in/a", "1\n")
    yarn.put("in/b", "2\n")
    full = submit(yarn, held(yarn), 2, resources={"cores": 0.05, "memory": "1500MiB"})
    full.until_line("has", "worker:1")
    job = submit(
        yarn, "cat in/*", 2, resources={"cores": 0.05, "memory": "700MiB"}, inputs={"in": {"url": yarn.place("in/*")}}
    )

    def wished() -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for row in asked(crowded, yarn, job):
            if row["numContainers"]:
                found.setdefault(row["allocationRequestId"], set()).add(row["resourceName"])
        return found if len(found) == 2 else {}

    node = crowded.node_id(1).partition(":")[0]
    assert list(until(wished, LIMIT, "the asks").values()) == [{node, "/default-rack", "*"}] * 2
    let_go(yarn)
    full.succeeded()
    job.succeeded()
    assert sorted(line for index in (0, 1) for line in job.lines(f"worker:{index}")) == ["1", "2"]
