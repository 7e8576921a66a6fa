"""What befalls a master on a cluster of its own: its token is replaced, the ResourceManager comes back, nodes have labels."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from hadoop import own_hadoop
from unmanaged import Master, register, unmanaged
from waiting import until_async

from trainmaster.clusters.hadoop import Cluster, Settings
from trainmaster.hadoop import yarn
from trainmaster.hadoop.conf import Configuration, load
from trainmaster.hadoop.errors import AuthenticationFailed, HadoopError, RemoteError
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.security.credentials import Token
from trainmaster.hadoop.yarn import FinalStatus

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.full]

EXPIRY = 15  # s; a new key of tokens is in force after 1.5 of these
ROLLING = 50  # s between two keys; more than 3 of those are demanded
LIMIT = 240.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    rolling = {"yarn.resourcemanager.am-rm-tokens.master-key-rolling-interval-secs": str(ROLLING)}
    with own_hadoop(Settings(nodes=2, labels={1: "fast"}, master_expiry=EXPIRY, properties=rolling)) as started:
        yield started


@pytest.fixture
def conf(cluster: Cluster) -> Configuration:
    return load(cluster.conf_dir)


def with_master(conf: Configuration, test: Callable[[Master], Awaitable[object]], **fields: object) -> None:
    async def run() -> None:
        async with unmanaged(conf, **fields) as master:
            await test(master)

    asyncio.run(run())


def test_a_masters_token_is_replaced(conf: Configuration) -> None:
    """A new token comes with every answer until it is used. The connection made with the old one goes on; a new one needs the new."""

    async def test(master: Master) -> None:
        given: list[Token] = []

        async def beaten() -> bool:
            answer = await master.beat()
            if answer.HasField("am_rm_token"):
                given.append(yarn.token_of(answer.am_rm_token))
            return bool(given)

        await until_async(beaten, LIMIT)
        await beaten()
        assert given[0] == given[1] != master.token
        assert (given[0].kind, given[0].service) == (master.token.kind, master.token.service)

        async with yarn.Scheduler.of(conf, given[0]) as other:  # good already, and its answers need not bring it
            answer = await other.allocate(y.AllocateRequestProto(response_id=master.response_id))
            assert not answer.HasField("am_rm_token")
            master.take(answer)

        async def old_refused() -> bool:
            """By a connection of its own each time."""
            await master.beat()
            async with yarn.Scheduler.of(conf, master.token) as other:
                try:
                    await other.allocate(y.AllocateRequestProto(response_id=master.response_id))
                except AuthenticationFailed:
                    return True
                except RemoteError:
                    pass
            master.response_id += 1
            return False

        await until_async(old_refused, LIMIT)
        await master.beat()  # by the first connection, still
        await master.scheduler.close()
        master.scheduler = yarn.Scheduler.of(conf, given[-1])
        answer = await master.beat()
        await master.finish(FinalStatus.SUCCEEDED)
        assert not answer.HasField("am_rm_token") or yarn.token_of(answer.am_rm_token) != given[-1]

    with_master(conf, test)


def test_a_resource_manager_comes_back(conf: Configuration, cluster: Cluster, tmp_path: Path) -> None:
    """The old token is good, the master registers again, and its container has gone on."""

    async def test(master: Master) -> None:
        master.ask(1)
        await master.until(lambda: 1 in master.granted)
        await master.start(1, f"until test -e {tmp_path}/go; do sleep 0.05; done; exit 7")
        cluster.daemon("resourcemanager").kill()
        cluster.daemon("resourcemanager").start()

        async def told() -> RemoteError | None:
            """Look for a short time, so that the pauses between tries stay short too."""
            try:
                answer = await master.scheduler.allocate(
                    y.AllocateRequestProto(response_id=master.response_id), timeout=1.0
                )
            except RemoteError as error:
                return error
            except HadoopError:
                return None
            master.take(answer)
            return None

        error = await until_async(told, LIMIT)
        assert error.name == "ApplicationMasterNotRegisteredException"
        again = await register(master.scheduler)
        assert again.queue == "root.default"
        master.response_id = 0
        tmp_path.joinpath("go").touch()
        await master.until(lambda: master.ended, LIMIT)
        assert master.ended[1].exit_status == 7
        await until_async(lambda: two_nodes(master), LIMIT)
        master.ask(2)
        await master.until(lambda: 2 in master.granted, LIMIT)
        assert yarn.container_id_text(master.granted[2].id).startswith("container_e"), "the epoch has grown"
        await master.finish(FinalStatus.SUCCEEDED)

    with_master(conf, test)


async def two_nodes(master: Master) -> bool:
    await master.beat()
    return (await master.manager.get_cluster_metrics()).cluster_metrics.num_active_nms == 2


def test_nodes_with_a_label(conf: Configuration, cluster: Cluster) -> None:
    """An ask for a label is granted there alone; one without a label is granted there too only where the label is not exclusive."""

    async def test(master: Master) -> None:
        manager = master.manager
        [label] = (await manager.get_cluster_node_labels()).nodeLabels
        assert label.name == "fast"
        by_node = (await manager.get_node_to_labels()).nodeToLabels
        assert {yarn.node_text(one.nodeId): list(one.nodeLabels) for one in by_node} == {cluster.node_id(1): ["fast"]}
        by_label = (await manager.get_labels_to_nodes()).labelsToNodes
        assert {one.nodeLabels: [yarn.node_text(node) for node in one.nodeId] for one in by_label} == {
            "fast": [cluster.node_id(1)]
        }
        for number in range(1, 4):
            master.ask(number, node_label_expression="fast")
        await master.until(lambda: master.granted.keys() >= {1, 2, 3}, LIMIT)
        assert {yarn.node_text(one.nodeId) for one in master.granted.values()} == {cluster.node_id(1)}
        for number in range(4, 8):
            master.ask(number)
        await master.until(lambda: master.granted.keys() >= {4, 5, 6, 7}, LIMIT)
        elsewhere = {yarn.node_text(master.granted[number].nodeId) for number in range(4, 8)}
        assert elsewhere == {cluster.node_id(2)} if label.isExclusive else cluster.node_id(2) in elsewhere
        master.ask(9, node_label_expression="gone")
        with pytest.raises(RemoteError, match="gone") as told:
            await master.beat()
        assert told.value.name == "InvalidLabelResourceRequestException"
        master.asks.clear()
        await master.finish(FinalStatus.SUCCEEDED)

    with_master(conf, test)
