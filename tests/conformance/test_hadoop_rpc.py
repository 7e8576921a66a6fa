"""Our RPC against a real ResourceManager: many calls at once, one that hangs, one that dies, and the other of two."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest
from hadoop import own_hadoop
from waiting import until, until_async

from trainmaster.clusters.hadoop import Cluster, Daemon, Settings
from trainmaster.hadoop.conf import load, resource_managers
from trainmaster.hadoop.errors import AuthenticationFailed, RemoteError, Unreachable
from trainmaster.hadoop.handshake import Peer
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.rpc import Client, Connection, Retry
from trainmaster.hadoop.security.auth import PROTECTION, Simple

pytestmark = pytest.mark.xdist_group("hadoop")

PROTOCOL = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB"
USER = Simple("tester")


async def nodes(way: Connection | Client, timeout: float = 60.0) -> int:
    asked, answer = y.GetClusterMetricsRequestProto(), y.GetClusterMetricsResponseProto
    return (await way.call("getClusterMetrics", asked, answer, timeout=timeout)).cluster_metrics.num_node_managers


async def refused(way: Connection | Client, number: int) -> str:
    """What a report of an application that never was ends in."""
    asked = y.GetApplicationReportRequestProto(application_id=y.ApplicationIdProto(id=number, cluster_timestamp=7))
    with pytest.raises(RemoteError) as caught:
        await way.call("getApplicationReport", asked, y.GetApplicationReportResponseProto)
    return str(caught.value)


async def connected(cluster: Cluster) -> Connection:
    (address,) = resource_managers(load(cluster.conf_dir))
    return await Connection.open(Peer(*address), PROTOCOL, USER)


def hang(daemon: Daemon) -> None:
    """Stop all of its threads; they have stopped on return."""
    daemon.signal(signal.SIGSTOP)
    stats = list(Path(f"/proc/{daemon.started.pid}/task").glob("*/stat"))
    until(lambda: all(stat.read_text().rpartition(")")[2].split()[0] in "TX" for stat in stats if stat.exists()))


def test_a_thousand_calls_at_once_each_get_their_own_answer(hadoop: Cluster) -> None:
    async def run() -> None:
        async with await connected(hadoop) as connection:
            calls = [nodes(connection) if number % 2 else refused(connection, number) for number in range(1000)]
            for number, answer in enumerate(await asyncio.gather(*calls)):
                if number % 2:
                    assert answer == 2
                else:
                    name = f"application_7_{number:04}"
                    assert answer == (
                        f"ApplicationNotFoundException: Application with id '{name}' doesn't exist in RM. Please check "
                        "that the job submission was successful."
                    )

    asyncio.run(run())


def test_the_port_of_masters_takes_no_name(hadoop: Cluster) -> None:
    (address,) = resource_managers(load(hadoop.conf_dir), "scheduler.address")

    async def run() -> None:
        async with Client([address], PROTOCOL, USER, protection=PROTECTION) as client:
            await nodes(client)

    with pytest.raises(
        AuthenticationFailed, match=r"refuses us: SIMPLE authentication is not enabled.  Available:\[TOKEN\]"
    ):
        asyncio.run(run())


def test_one_that_hangs_is_waited_for_as_long_as_was_asked(hadoop: Cluster) -> None:
    daemon = hadoop.daemon("resourcemanager")

    async def run() -> None:
        async with await connected(hadoop) as connection:
            assert await nodes(connection) == 2
            hang(daemon)
            try:
                with pytest.raises(Unreachable, match=r"has not answered getClusterMetrics within 0.2 s") as caught:
                    await nodes(connection, timeout=0.2)
                assert caught.value.sent
                waiting = asyncio.create_task(nodes(connection))
            finally:
                daemon.signal(signal.SIGCONT)
            assert await waiting == 2, "its late answers go where they belong"

    asyncio.run(run())


@pytest.mark.full
def test_one_that_dies_fails_what_waits_at_once_and_is_found_again(hadoop: Cluster) -> None:
    daemon = hadoop.daemon("resourcemanager")
    (address,) = resource_managers(load(hadoop.conf_dir))

    async def refused() -> bool:
        with pytest.raises(Unreachable) as error:
            await Client([address], PROTOCOL, USER, protection=PROTECTION, retry=Retry(tries=1)).call(
                "getClusterMetrics", y.GetClusterMetricsRequestProto(), y.GetClusterMetricsResponseProto
            )
        return error.value.message == f"localhost:{address[1]} refuses the connection: is it running?"

    async def run() -> None:
        async with (
            await connected(hadoop) as connection,
            Client([address], PROTOCOL, USER, protection=PROTECTION) as client,
        ):
            assert await nodes(client) == 2
            hang(daemon)
            calls = [asyncio.create_task(nodes(connection)) for _ in range(20)]
            again = asyncio.create_task(nodes(client, timeout=120))
            await asyncio.wait([again], timeout=0.1)
            killed = time.monotonic()
            await asyncio.to_thread(daemon.kill)
            for error in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(error, Unreachable)
                assert error.sent
            assert time.monotonic() - killed < 30  # of 60 that a call may take
            await until_async(refused, what="a port that nobody listens on")  # the kernel takes a moment to close it
            await asyncio.to_thread(daemon.start)
            assert await again >= 0, "a call that only reads goes on where the server comes back"

    try:
        asyncio.run(run())
    finally:
        daemon.start()
        hadoop.wait_ready()


@pytest.mark.full
def test_the_other_of_two_is_found_when_the_active_one_dies_and_when_it_hangs() -> None:
    """A standby ResourceManager has no port open at all; one that hangs takes connections and says nothing."""
    with own_hadoop(Settings(nodes=1, high_availability=True)) as cluster:
        addresses = resource_managers(load(cluster.conf_dir))
        assert len(addresses) == 2

        async def run() -> None:
            async with Client(addresses, PROTOCOL, USER, protection=PROTECTION, retry=Retry(patience=2.0)) as client:
                assert await nodes(client) == 1
                first = cluster.active
                cluster.daemon(first).kill()
                assert await nodes(client, timeout=120) >= 0
                second = until(lambda: cluster.active)
                assert second != first
                cluster.daemon(first).start()
                await until_async(lambda: nodes(client), what="its node")
                hang(cluster.daemon(second))
                try:
                    assert await nodes(client, timeout=120) >= 0
                finally:
                    cluster.daemon(second).signal(signal.SIGCONT)

        asyncio.run(run())
