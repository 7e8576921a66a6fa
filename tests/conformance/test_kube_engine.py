"""The master's side of the kubernetes engine on a real cluster: pods asked for, granted, warned, ended, lost, adopted; in place of agents
they run a shell.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import attrs
import pytest
from kubernetes import own_kubernetes
from waiting import until_async

from trainmaster.clusters.kubernetes.cluster import Cluster
from trainmaster.clusters.kubernetes.settings import Settings
from trainmaster.core.containers import Request
from trainmaster.core.machine.stimuli import (
    Change,
    ContainerExited,
    ContainerLost,
    GangGranted,
    GangOverdue,
    Granted,
    Refused,
    Waiting,
    Warned,
)
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.containers import Containers
from trainmaster.engines.kubernetes.master.engine import KubernetesMaster
from trainmaster.engines.kubernetes.names import labels_of_master, name_of, selector
from trainmaster.engines.kubernetes.pods.pods import PodBootstrap, Shape, request_of, task_pod
from trainmaster.engines.kubernetes.settings import settings
from trainmaster.engines.statuses import NO_PYTHON
from trainmaster.kube.client import Client
from trainmaster.kube.config import load
from trainmaster.kube.kinds import CONFIGMAPS, PODS

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.full]

IMAGE = "localhost/trainmaster/debian:1"
STAYS = "trap 'exit 9' TERM; echo there; while :; do sleep 0.1; done"
ENDS = "exit 3"
SIMULATED = {"node_selector": {"type": "kwok"}, "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]}


@attrs.define
class Seat:
    """A master's engine, what it told, and the pods' own API beside it."""

    master: KubernetesMaster
    containers: Containers
    client: Client
    job_id: str
    requests: dict[str, Request]
    told: list[Change]

    async def ask(self, *tasks: str, serial: int = 1, **changes: Any) -> None:
        self.containers.ask([attrs.evolve(self.requests[task], serial=serial, **changes) for task in tasks])

    async def hears(self, kind: type, task: str = "", serial: int = 1, limit: float = 60.0) -> Any:
        """The first change of a kind, of a task."""

        def found() -> Any:
            rows = [one for one in self.told if isinstance(one, kind)]
            return next((one for one in rows if not task or (one.task, one.serial) == (task, serial)), None)

        return await until_async(found, limit, lambda: f"{kind.__name__} {task}; told: {self.told}")

    async def runs(self, task: str, serial: int = 1) -> dict[str, Any]:
        """The pod of a task, once its program runs."""

        async def running() -> dict[str, Any] | None:
            [*found], _ = await self.client.list(PODS, fields=f"metadata.name={name_of(self.job_id, task, serial)}")
            rows = [row for pod in found for row in pod["status"].get("containerStatuses") or ()]
            return found[0] if any(row["state"].get("running") for row in rows) else None

        return await until_async(running)

    async def none_left(self) -> None:
        async def gone() -> bool:
            return not (await self.client.list(PODS, labels=selector(self.job_id)))[0]

        await until_async(gone, what="no pod being left")


@asynccontextmanager
async def engine(
    cluster: Cluster, scripts: dict[str, str], job_id: str = "", user: str = "edit", said: dict[str, Any] | None = None,
    namespace: str = "", image: str = IMAGE, init: list[dict[str, Any]] | None = None, keep: bool = False, count: int = 1,
    change: Callable[[dict[str, Any]], None] = lambda pod: None, epoch: int = 1, held: Sequence[str] = (), **resources: Any,
) -> AsyncIterator[Seat]:  # fmt: skip
    """`scripts`: role -> what its containers run. `keep`: what it made stays, for a master after it."""
    sizes = {"cores": 0.05, "memory": "64MiB", **resources}
    roles = {
        role: {"command": "true", "replicas": count, "resources": sizes, "stop": {"grace": "3s"}} for role in scripts
    }
    job = job_from({"name": "engine", "roles": roles})
    job_id = job_id or f"engine-{uuid4().hex[:8]}"
    read = settings(said or {})
    shape = Shape(job_id, job, read, image)

    def make(request: Request) -> dict[str, Any]:
        made = task_pod(shape, request, PodBootstrap(init=init or [], command=["sh", "-c", scripts[request.role]]))
        made["spec"]["terminationGracePeriodSeconds"] = 5
        change(made)
        return made

    config = load({"KUBECONFIG": str(cluster.kubeconfig(user))}, namespace=namespace)
    beside = Client(load({"KUBECONFIG": str(cluster.kubeconfig("admin"))}, namespace=config.namespace))
    master, told = KubernetesMaster(job_id, job, Client(config), make, read), list[Change]()
    containers = Containers(master, lambda: [(task, 1) for task in held])
    containers.begin(epoch)

    async def listen() -> None:
        async for one in containers.changes():
            told.extend(one.grants if isinstance(one, GangGranted) else [one])

    listening = asyncio.create_task(listen())
    requests = {
        f"{role}:{index}": request_of(role, job.roles[role], index) for role in scripts for index in range(count)
    }
    try:
        await asyncio.shield(containers.opening)
        yield Seat(master, containers, beside, job_id, requests, told)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        if keep:
            for task in containers._tasks:
                task.cancel()
        else:
            await containers.close("succeeded")
            await beside.delete_all(PODS, selector(job_id), grace=0)
        await beside.close()


def test_what_is_asked_for_is_granted_runs_and_ends(kubernetes: Cluster) -> None:
    async def scenario() -> None:
        async with engine(kubernetes, {"worker": ENDS, "ps": STAYS}) as seat:
            await seat.ask("worker:0", "ps:0")
            granted = await seat.hears(Granted, "worker:0")
            assert granted.container == name_of(seat.job_id, "worker:0", 1)
            assert granted.node in ("node-1", "node-2")
            ended = await seat.hears(ContainerExited, "worker:0")
            assert (ended.status, ended.reason, ended.figures["node"]) == (3, None, granted.node)
            await seat.runs("ps:0")
            seat.containers.release("ps", 1)
            assert (await seat.hears(ContainerExited, "ps")).reason == "not-needed"  # there is no such task
            seat.containers.release("ps:0", 1)
            released = await seat.hears(ContainerExited, "ps:0")
            assert (released.status, released.reason) == (9, None)
            await seat.none_left()

    asyncio.run(scenario())


def test_asks_are_absolute(kubernetes: Cluster) -> None:
    async def scenario() -> None:
        async with engine(kubernetes, {"worker": STAYS}, count=3) as seat:
            await seat.ask("worker:0", "worker:1")
            await seat.hears(Granted, "worker:1")
            await seat.hears(Granted, "worker:0")
            await seat.ask("worker:0", "worker:2")  # the first one's grant may not have been heard yet
            await seat.hears(Granted, "worker:2")
            assert [one.task for one in seat.told if isinstance(one, Granted)].count("worker:0") == 2
            found, _ = await seat.client.list(PODS, labels=selector(seat.job_id))
            assert len(found) == 3
            seat.containers.release("worker:1", 1)
            assert (await seat.hears(ContainerExited, "worker:1")).reason is None
            await seat.ask("worker:1")
            await until_async(lambda: len([one for one in seat.told if isinstance(one, ContainerExited)]) == 2)

    asyncio.run(scenario())


def test_a_master_that_follows_has_what_there_is(kubernetes: Cluster) -> None:
    """Placed pods are held, an end that nobody heard is told, what is asked for is adopted, and what nobody wants goes."""

    async def scenario() -> None:
        unplaced = {"node_selector": {"no": "node"}, "roles": {"ps": {"node_selector": {"no": None}}}}
        scripts = {"worker": STAYS, "ps": STAYS}
        async with engine(kubernetes, scripts, keep=True, count=2, said=unplaced) as first:
            await first.ask("ps:0", "ps:1", "worker:0", "worker:1")
            await first.hears(Granted, "ps:0")
            await first.hears(Granted, "ps:1")
            await first.runs("ps:1")
        async with engine(
            kubernetes, scripts, first.job_id, count=2, said=unplaced, epoch=2, held=["ps:0", "ps:1"]
        ) as second:
            await second.hears(Granted, "ps:0")
            await second.hears(Granted, "ps:1")
            await second.ask("worker:0")
            found, _ = await second.client.list(PODS, labels=selector(second.job_id))
            assert len(found) >= 3

            async def fewer() -> bool:
                found, _ = await second.client.list(PODS, labels=selector(second.job_id))
                return {pod["metadata"]["annotations"]["trainmaster/task"] for pod in found} == {
                    "worker:0",
                    "ps:0",
                    "ps:1",
                }

            await until_async(fewer)
            assert not [one for one in second.told if isinstance(one, Refused)]

    asyncio.run(scenario())


def test_a_master_leaves_alone_what_another_asks_for_that_follows_it(kubernetes: Cluster) -> None:
    """It may not know yet that there is another, where it has nothing to write."""

    async def scenario() -> None:
        scripts = {"worker": STAYS}
        async with engine(kubernetes, scripts, keep=True, count=2) as first:
            await first.ask("worker:0")
            await first.hears(Granted, "worker:0")
            async with engine(kubernetes, scripts, first.job_id, count=2, epoch=2, held=["worker:0"]) as second:
                await second.hears(Granted, "worker:0")
                await second.ask("worker:1")
                await second.hears(Granted, "worker:1")
                await until_async(lambda: ("worker:1", 1) in first.master._pods)
                assert not first.master._pods["worker:1", 1].returned
                assert not (await second.runs("worker:1"))["metadata"].get("deletionTimestamp")

    asyncio.run(scenario())


def test_an_end_while_there_was_no_master_is_told_with_its_reason(kubernetes: Cluster) -> None:
    async def scenario() -> None:
        greedy = "sleep 1; exec python3 -c \"b'x' * (1 << 30)\""
        async with engine(kubernetes, {"worker": greedy}, keep=True) as first:
            await first.ask("worker:0")
            await first.hears(Granted, "worker:0")
        async with engine(kubernetes, {"worker": greedy}, first.job_id, epoch=2, held=["worker:0"]) as second:
            ended = await second.hears(ContainerExited, "worker:0")
            limit = second.requests["worker:0"].memory
            assert (ended.reason, ended.figures["used"], ended.figures["limit"]) == ("out-of-memory", limit, limit)
            await second.none_left()

    asyncio.run(scenario())


@pytest.mark.parametrize("way", ["deleted", "evicted"])
def test_a_pod_that_is_taken_away_is_warned_first(kubernetes: Cluster, way: str) -> None:
    async def scenario() -> None:
        async with engine(kubernetes, {"worker": STAYS}) as seat:
            await seat.ask("worker:0")
            pod = await seat.runs("worker:0")
            name = pod["metadata"]["name"]
            await (seat.client.delete(PODS, name) if way == "deleted" else seat.client.evict(name))
            warned = await seat.hears(Warned, "worker:0")
            assert (warned.seconds, warned.reason) == (5.0, "killed-by-engine")
            ended = await seat.hears(ContainerExited, "worker:0")
            assert (ended.status, ended.reason) == (9, "killed-by-engine")
            assert seat.told.index(warned) < seat.told.index(ended)
            assert ("evicted" if way == "evicted" else name) in ended.figures["detail"]

    asyncio.run(scenario())


def test_a_pod_that_is_deleted_by_force_may_run_on(kubernetes: Cluster) -> None:
    async def scenario() -> None:
        async with engine(kubernetes, {"worker": STAYS}) as seat:
            await seat.ask("worker:0")
            pod = await seat.runs("worker:0")
            await seat.client.delete(PODS, pod["metadata"]["name"], grace=0)
            assert (await seat.hears(ContainerLost, "worker:0")).reason == "killed-by-engine"
            await seat.ask("worker:0", serial=2)
            await seat.hears(Granted, "worker:0", 2)

    asyncio.run(scenario())


def test_a_pod_that_gives_way_is_warned_and_told_as_preempted(kubernetes: Cluster) -> None:
    """Accelerators of a node are all taken by a pod of lower priority."""

    async def scenario() -> None:
        high = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "engine-test"},
            "value": 1000,
        }
        kubernetes.kubectl("apply", "-f", "-", input=json.dumps(high))
        said = {
            "node_selector": {"kubernetes.io/hostname": "node-2"}, "roles": {"urgent": {"priority_class": "engine-test"}},
        }  # fmt: skip
        try:
            async with engine(kubernetes, {"worker": STAYS, "urgent": STAYS}, said=said, gpus=2) as seat:
                await seat.ask("worker:0")
                await seat.runs("worker:0")
                await seat.ask("urgent:0")
                assert (await seat.hears(Warned, "worker:0")).reason == "preempted"
                ended = await seat.hears(ContainerExited, "worker:0")
                assert (ended.reason, ended.figures["by"]) == ("preempted", "a pod of higher priority")
                await seat.hears(Granted, "urgent:0")
        finally:
            kubernetes.kubectl("delete", "priorityclass", "engine-test")

    asyncio.run(scenario())


@pytest.mark.parametrize("user", ["edit", "admin"])
def test_what_no_node_can_take_is_waited_for_in_words(kubernetes: Cluster, user: str) -> None:
    """Who may read the nodes is told what they have."""

    async def scenario() -> None:
        async with engine(kubernetes, {"worker": STAYS}, user=user, count=2, memory="500GiB") as seat:
            await seat.ask("worker:0", "worker:1")
            said = "the largest" if user == "admin" else "too little memory free"

            def told() -> Waiting | None:
                rows = [one for one in seat.told if isinstance(one, Waiting) and said in one.detail]
                return next((one for one in rows if one.asked.startswith("worker: 2 x 501 GiB")), None)

            found = await until_async(told, 60, lambda: seat.told)
            assert found.resource == "nodes"
            await seat.ask()
            await until_async(lambda: seat.told[-1] == Waiting("", "", ""), 60, lambda: seat.told)
            await seat.none_left()

    asyncio.run(scenario())


def test_a_full_quota_is_waited_for(kubernetes: Cluster) -> None:
    async def scenario() -> None:
        namespace = f"quota-{uuid4().hex[:6]}"
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "small"},
            "spec": {"hard": {"pods": "1"}},
        }
        kubernetes.kubectl("create", "namespace", namespace)
        try:
            kubernetes.kubectl("create", "-n", namespace, "-f", "-", input=json.dumps(quota))
            async with engine(kubernetes, {"worker": STAYS}, user="admin", namespace=namespace, count=2) as seat:
                await seat.ask("worker:0", "worker:1")
                waiting = await seat.hears(Waiting)
                assert waiting.resource == "quota small"
                assert "asked pods=1, used 1 of 1" in waiting.detail
                first = (await seat.hears(Granted)).task
                seat.containers.release(first, 1)
                await seat.hears(ContainerExited, first)
                await seat.hears(Granted, "worker:1" if first == "worker:0" else "worker:0")
        finally:
            kubernetes.kubectl("delete", "namespace", namespace, "--wait=false")

    asyncio.run(scenario())


def test_what_the_cluster_forbids_is_refused_in_its_words(kubernetes: Cluster) -> None:
    async def scenario() -> None:
        said = {"volumes": [{"host_path": "/etc", "path": "/data"}]}
        async with engine(kubernetes, {"worker": STAYS}, said=said) as seat:
            await seat.ask("worker:0")
            refused = await seat.hears(Refused, "worker:0")
            assert 'violates PodSecurity "restricted' in refused.detail
            assert "hostPath" in refused.detail

    asyncio.run(scenario())


def test_an_image_that_is_nowhere_is_refused(kubernetes: Cluster) -> None:
    async def scenario() -> None:
        said = {"pull": "never"}
        async with engine(kubernetes, {"worker": STAYS}, said=said, image="localhost/none:1") as seat:
            await seat.ask("worker:0")
            waiting = await seat.hears(Waiting)
            assert "does not have the image localhost/none:1" in waiting.detail
            assert "localhost/none:1" in (await seat.hears(Refused, "worker:0")).detail

    asyncio.run(scenario())


def test_an_image_without_python_is_refused_once_it_was_tried(kubernetes: Cluster) -> None:
    async def scenario() -> None:
        init = [{"name": "runtime", "command": ["sh", "-c", f"exit {NO_PYTHON}"]}]
        async with engine(kubernetes, {"worker": STAYS}, init=init) as seat:
            for serial in (1, 2, 3):
                await seat.ask("worker:0", serial=serial)
                ended = await seat.hears(ContainerExited, "worker:0", serial)
                assert (ended.reason, ended.figures["node"].partition(", ")[2]) == ("no-python", f"image {IMAGE}")
            assert IMAGE in (await seat.hears(Refused, "worker:0", 3)).detail

    asyncio.run(scenario())


def test_the_masters_own_pod_is_none_of_the_tasks(kubernetes: Cluster) -> None:
    async def scenario() -> None:
        async with engine(kubernetes, {"worker": STAYS}) as seat:
            about = {"name": f"{seat.job_id}-boot", "labels": labels_of_master(seat.job_id)}
            await seat.client.create(CONFIGMAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about})
            try:
                await seat.ask("worker:0")
                await seat.hears(Granted, "worker:0")
                assert not [one for one in seat.told if not isinstance(one, Granted)]
            finally:
                await seat.client.delete(CONFIGMAPS, about["name"])

    asyncio.run(scenario())


def test_a_gang_that_is_granted_in_part_for_too_long_is_told(kubernetes: Cluster) -> None:
    async def scenario() -> None:
        said = {"gang_timeout": "2s", "roles": {"nowhere": {"node_selector": {"no": "node"}}}}
        async with engine(kubernetes, {"worker": STAYS, "nowhere": STAYS}, said=said) as seat:
            await seat.ask("worker:0", "nowhere:0", gang="group-0")
            await seat.hears(Granted, "worker:0")
            assert await seat.hears(GangOverdue) == GangOverdue("group-0", 2.0)

    asyncio.run(scenario())


@pytest.mark.soak
def test_a_thousand_pods_are_asked_for_at_once(kubernetes: Cluster) -> None:
    """On simulated nodes: pods that run nothing. Where the machine is busy their nodes seem to be away, and what is there is given up."""

    async def scenario() -> None:
        clock = asyncio.get_running_loop().time
        small = {"cores": 0.001, "memory": "1MiB", "overhead": "0B"}
        async with engine(kubernetes, {"worker": STAYS}, said=SIMULATED, count=1000, **small) as seat:

            def told(*kinds: type) -> int:
                return len({one.task for one in seat.told if isinstance(one, kinds)})

            begun = clock()
            await seat.ask(*seat.requests)
            await until_async(lambda: told(Granted) == 1000, 240, lambda: seat.told[-5:])
            print(f"1000 pods granted after {clock() - begun:.1f} s")
            begun = clock()
            for task in seat.requests:
                seat.containers.release(task, 1)
            await until_async(lambda: told(ContainerExited, ContainerLost) == 1000, 240)
            print(f"and given back after {clock() - begun:.1f} s")

    asyncio.run(scenario())


@pytest.mark.soak
def test_daemons_that_die_and_nodes_that_are_lost() -> None:
    """An API server that is killed is waited for, and what happened meanwhile is told; a node's pods are lost when Kubernetes says so."""

    async def scenario(cluster: Cluster) -> None:
        said = {
            "roles": {
                name: {"node_selector": {"kubernetes.io/hostname": f"node-{name[-1]}"}} for name in ("on1", "on2")
            }
        }
        async with engine(cluster, {"on1": STAYS, "on2": STAYS}, said=said) as seat:
            await seat.ask("on1:0", "on2:0")
            await seat.runs("on1:0")
            await seat.runs("on2:0")
            cluster.daemon("kube-apiserver").kill()
            found = await seat.hears(Waiting)
            assert found.resource == "API server"
            seat.containers.release("on1:0", 1)
            cluster.daemon("kube-apiserver").start()
            assert (await seat.hears(ContainerExited, "on1:0", limit=120.0)).status == 9
            await until_async(lambda: Waiting("", "", "") in seat.told, 60, lambda: seat.told)
            cluster.kill_node(2)
            lost = await seat.hears(ContainerLost, "on2:0", limit=120.0)
            assert (lost.reason, lost.figures["node"]) == ("node-lost", "node-2")
            await seat.none_left()  # what is left of it goes by force

    with own_kubernetes(Settings(fast_expiry=True)) as cluster:
        asyncio.run(scenario(cluster))
