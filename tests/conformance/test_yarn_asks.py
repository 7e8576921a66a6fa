"""What the master asks of YARN and what it is granted: nodes near the data, devices and counts by name, as many of a group as there is
room for, other nodes than those that fail; and what it says while it waits.

One cluster of three nodes for all of it: 1 and 2 in the default partition, the DataNode beside 1, and 3 with the label `fast`; queues of
several limits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import LIMIT, Submitted, Yarn, yarn_on
from hadoop import own_hadoop, revived
from waiting import until

from trainmaster.clusters.hadoop import pages
from trainmaster.clusters.hadoop.cluster import Cluster
from trainmaster.clusters.hadoop.settings import Settings
from trainmaster.core.errors import BadInput
from trainmaster.engines.yarn.master.nodes import FAILURES

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
        "yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill": "15000",
        "yarn.nodemanager.admin-env.CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",  # what a driver would find: none is here
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
    with yarn_on(crowded, tmp_path, monkeypatch) as made:
        yield made


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


# -- counts by name --


@pytest.mark.soak
def test_a_resource_that_the_cluster_counts_is_asked_for_by_its_name(yarn: Yarn, crowded: Cluster) -> None:
    """Nodes have one each: two tasks are on two nodes, and a third waits for one."""
    fpga = {**TINY, "extended": {"fpga": 1}}
    full = submit(yarn, held(yarn), 2, resources=fpga)
    full.until_line("has", "worker:1")
    assert len({task["node"] for task in full.status()["tasks"]}) == 2
    shown = yarn.tm("cluster", "show", "--engine", "yarn").stdout
    assert shown.count("0 of 1 fpga") == 2, shown
    third = submit(yarn, "echo mine", resources=fpga)
    told = third.until_status("its waiting", lambda status: "has that much free" in (status["waiting"] or ""))[
        "waiting"
    ]
    assert re.match(
        r"worker:0: 128 MiB, 0.05 cores, 1 fpga: no node of 2 has that much free; the most is .*, 0 fpga on ", told
    ), told
    let_go(yarn)
    full.succeeded()
    third.succeeded()


@pytest.mark.parametrize(
    ("extended", "said", "place"),
    [
        ({"tpu": 1}, "the cluster has no resource tpu; it counts fpga", "roles.worker.resources.extended.tpu"),
        ({"fpga": 2}, "1 fpga to one container", "roles.worker.resources.extended.fpga"),
        ({"yarn.io/gpu": 1}, "yarn.io/gpu has a key of its own", "roles.worker.resources.extended.yarn.io/gpu"),
    ],
)
def test_a_resource_that_is_never_granted_is_refused_at_submit(
    yarn: Yarn, extended: dict[str, int], said: str, place: str
) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        submit(yarn, "true", resources={**TINY, "extended": extended})
    assert refused.value.place.startswith(place)


def test_devices_that_yarn_only_counts_are_chosen_by_agents(yarn: Yarn) -> None:
    """Each container sees as many as it asked for, those of one host differ, and who asked for none sees none."""
    one = {**TINY, "gpus": 1}
    jobs = [submit(yarn, held(yarn), resources=one, name=name) for name in ("one", "two")]
    for job in jobs:
        job.until_line("has")
    none = submit(yarn, "echo has ${CUDA_VISIBLE_DEVICES-all}.")
    none.succeeded()
    assert none.lines() == ["has ."]
    assert {job.lines()[0] for job in jobs} == {"has GPU-a", "has GPU-b"}
    let_go(yarn)
    for job in jobs:
        job.succeeded()
    both = submit(yarn, "echo has $CUDA_VISIBLE_DEVICES", resources={**TINY, "gpus": 2})
    both.succeeded()
    assert both.lines() == ["has GPU-a,GPU-b"], "those of containers that have ended are free again"


# -- as many of a group as there is room for --


def test_an_elastic_group_begins_with_what_there_is_room_for(yarn: Yarn) -> None:
    """Nodes of 2 GiB hold one task of 1.2 GiB each: of three that it would like, and two that it needs, it begins with two."""
    job = submit(
        yarn, "echo $RANK of $WORLD_SIZE", {"min": 2, "max": 3}, framework="pytorch",
        resources={"cores": 0.05, "memory": "1200MiB"}, checkpoint={"path": "ckpt"},
    )  # fmt: skip
    status = job.succeeded()
    assert [task["task"] for task in status["tasks"]] == ["worker:0", "worker:1"]
    assert sorted(job.run.logs()) == ["worker:0 0 of 2", "worker:1 1 of 2"]


def test_an_elastic_group_is_as_large_as_it_would_like_where_there_is_room(yarn: Yarn) -> None:
    job = submit(
        yarn, "echo $RANK of $WORLD_SIZE", {"min": 1, "max": 4}, framework="pytorch", checkpoint={"path": "ckpt"}
    )
    job.succeeded()
    assert sorted(line.split(" ", 1)[1] for line in job.run.logs()) == [f"{rank} of 4" for rank in range(4)]


# -- why it waits --


def waits(job: Submitted, words: str) -> str:
    """What it says it waits for, once that has these words in it."""
    return str(job.until_status(words, lambda status: words in (status["waiting"] or ""))["waiting"])


def test_a_full_queue_is_told_with_its_figures(yarn: Yarn) -> None:
    """Queue tight may have a fifth of 4 GiB; its master has some of it."""
    first = submit(yarn, held(yarn), queue="tight", resources={"cores": 0.05, "memory": "400MiB"})
    first.until_line("has")
    second = submit(yarn, "echo mine", resources={"cores": 0.05, "memory": "400MiB"}, queue="tight")
    told = waits(second, "tight")
    assert "queue tight" in told
    let_go(yarn)
    first.succeeded()
    second.succeeded()


def test_a_queue_that_can_never_hold_a_task_is_told(yarn: Yarn) -> None:
    """A node has room, the queue never has: the job says so until somebody ends it."""
    job = submit(yarn, "true", queue="tight", resources={"cores": 0.05, "memory": "700MiB"})
    told = waits(job, "is full")
    of = "worker:0: 764 MiB, 0.05 cores"
    most, used, free = "819 MiB, 3 cores", "256 MiB, 1 cores", "563 MiB, 2 cores"
    assert told == f"{of}: queue tight is full; it has {used} of at most {most}, {free} are free"
    assert "is full" in yarn.tm("status", job.id).stdout
    job.run.kill("enough")
    assert job.end()["state"] == "killed"


def test_a_users_limit_is_told_with_its_figures(yarn: Yarn) -> None:
    """In queue low one user may have the queue's share, a fifth of 4 GiB, though the queue may grow to all of it; YARN looks at that before
    each container, so one may be beyond."""
    job = submit(yarn, held(yarn), 2, queue="low", resources={"cores": 0.05, "memory": "1000MiB"})
    told = waits(job, "limit of one user")
    assert re.match(
        r"worker:1: 1.04 GiB, 0.05 cores: the limit of one user in queue low is reached; 0 B.* are left of yours, the queue has .* in use",
        told,
    ), told
    job.run.kill("enough")
    assert job.end()["state"] == "killed"


def test_the_share_for_masters_is_told_with_its_figures(yarn: Yarn) -> None:
    """Queue few has room for one master."""
    first = submit(yarn, held(yarn), queue="few")
    first.until_line("has")
    second = submit(yarn, "echo mine", queue="few")
    told = waits(second, "share of queue few for masters is reached")
    assert re.search(r"asked 256 MiB, 1 cores; used 256 MiB, 1 cores of ", told), told
    shown = yarn.tm("cluster", "show", "--engine", "yarn").stdout
    assert re.search(r"^few .* 1 % ", shown, re.MULTILINE) or re.search(r"^few .* 1% ", shown, re.MULTILINE), shown
    let_go(yarn)
    first.succeeded()
    second.succeeded()


@pytest.mark.soak
def test_a_label_is_where_the_task_is_and_one_without_a_node_is_waited_for(yarn: Yarn, crowded: Cluster) -> None:
    fast = {"labels": {"label": "fast"}}
    job = submit(yarn, "true", nodes=fast)
    assert job.succeeded()["tasks"][0]["node"] == crowded.node_id(3)
    assert "fast" in yarn.tm("cluster", "show", "--engine", "yarn").stdout
    with pytest.raises(BadInput, match="the cluster has no node label slow; it has fast") as refused:
        submit(yarn, "true", nodes={"labels": {"label": "slow"}})
    assert refused.value.place == "roles.worker.nodes.labels.label: slow"
    crowded.daemon("nodemanager-3").kill()
    until(lambda: yarn.tm("cluster", "show", "--engine", "yarn").stdout.count(":") == 2, LIMIT, "the node is given up")
    waiting = submit(yarn, "echo mine", nodes=fast)
    assert waits(waiting, "label") == "worker:0: 128 MiB, 0.05 cores: no node has the label fast"
    revived(crowded)
    assert waiting.succeeded()["tasks"][0]["node"] == crowded.node_id(3)


# -- nodes that fail, and containers that are taken back --


def test_a_node_on_which_containers_fail_is_avoided(yarn: Yarn, crowded: Cluster) -> None:
    """What YARN has brought to node 2 is broken: after some containers there the task is elsewhere, once that has room."""

    def failed_on_2(job: Submitted) -> list[dict[str, Any]]:
        return [event for event in job.told("granted") if event["node"] == crowded.node_id(2)]

    big = {"cores": 0.05, "memory": "1200MiB"}
    away = {**MASTER, "nodes": {"labels": {"label": "fast"}}}
    submit(yarn, "true", 2, resources=big, master=away).succeeded()  # the archive of our code is on both nodes by now
    broken = [path for path in (crowded.folder / "node-2").glob("local/**/filecache/**/start") if path.is_file()]
    assert broken
    for path in broken:
        path.rename(path.with_name("broken"))
    try:
        job = submit(yarn, held(yarn), 2, resources=big, master=away)
        until(lambda: len(failed_on_2(job)) == FAILURES, LIMIT, what=lambda: job.events())
        let_go(yarn)
        status = job.succeeded()
    finally:
        for path in broken:
            path.with_name("broken").rename(path)
    assert {task["node"] for task in status["tasks"]} == {crowded.node_id(1)}, job.story(status)
    assert len(failed_on_2(job)) == FAILURES


def test_a_container_that_is_about_to_be_taken_back_is_warned(yarn: Yarn) -> None:
    """Queue few has more than its share until another wants its own: its program is warned, ended, and goes on when there is room."""
    big = {"cores": 0.05, "memory": "1200MiB"}
    warned = f"trap 'echo warned' USR1; echo has; while ! test -e '{yarn.folder}/go'; do sleep 0.05; done; echo done"
    hog = yarn.submit(
        {"worker": {"command": warned, "replicas": 2, "resources": big, "stop": {"warn": "SIGUSR1"}}},
        engines={"yarn": {"queue": "few"}}, master=MASTER,
    )  # fmt: skip
    for index in (0, 1):
        hog.until_line("has", f"worker:{index}")
    owner = submit(yarn, held(yarn, "enough"), resources=big)
    owner.until_line("has")
    taken = until(lambda: hog.told("attempt-written-off"), LIMIT, "the end of what was taken back")[0]
    told = next(event for event in hog.told("warned") if event["task"] == taken["task"])
    assert (told["reason"], told["seconds"], taken["reason"]) == ("preempted", 15.0, "preempted")
    assert "warned" in hog.lines(taken["task"], 1)
    let_go(yarn, "enough")
    owner.succeeded()
    let_go(yarn)
    status = hog.succeeded()
    assert {event["reason"] for event in hog.told("attempt-written-off")} == {"preempted"}, "it may be more than once"
    attempt = next(task["attempt"] for task in status["tasks"] if task["task"] == taken["task"])
    assert hog.lines(taken["task"], attempt) == ["has", "done"]
