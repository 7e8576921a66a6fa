"""YARN's three protocols against real daemons: what a client, a master and a node's caller see. No JVM is ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from unmanaged import USER, Master, its_token, killed, register, report, submitted, unmanaged
from waiting import until_async

from trainmaster.clusters.hadoop import Cluster
from trainmaster.hadoop import yarn
from trainmaster.hadoop.conf import Configuration, load
from trainmaster.hadoop.errors import RemoteError
from trainmaster.hadoop.proto import security_pb2 as s
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.security.auth import ByToken
from trainmaster.hadoop.yarn import ApplicationState, ExitStatus, FinalStatus

pytestmark = pytest.mark.xdist_group("hadoop")

API = "org.apache.hadoop.yarn.exceptions"
MasterTest = Callable[[Master], Awaitable[object]]


@pytest.fixture
def conf(hadoop: Cluster) -> Configuration:
    return load(hadoop.conf_dir)


def with_master(conf: Configuration, test: MasterTest, **fields: object) -> None:
    async def run() -> None:
        async with unmanaged(conf, **fields) as master:
            await test(master)

    asyncio.run(run())


def with_manager(conf: Configuration, test: Callable[[yarn.ResourceManager], Awaitable[object]]) -> None:
    async def run() -> None:
        async with yarn.ResourceManager.of(conf, USER) as manager:
            await test(manager)

    asyncio.run(run())


# -- a master --


def test_two_containers_from_ask_to_end(conf: Configuration, tmp_path: Path) -> None:
    """Grants are told apart by allocation request id, run what they are given where they are given it, and their ends are told."""

    async def test(master: Master) -> None:
        master.ask(1)
        master.ask(2, memory=200)
        await master.until(lambda: master.granted.keys() == {1, 2})
        assert master.granted[2].resource.memory == 256, "rounded up to what the cluster gives"
        command = f"echo $NAME $CONTAINER_ID > {tmp_path}/$NAME; exit $STATUS"
        for number, status in ((1, 0), (2, 7)):
            environment = [
                y.StringStringMapProto(key="NAME", value=f"n{number}"),
                y.StringStringMapProto(key="STATUS", value=str(status)),
            ]
            started = await master.start(number, command, environment=environment)
            assert started.succeeded_requests == [master.granted[number].id]
        await master.until(lambda: master.ended.keys() == {1, 2})
        assert {number: status.exit_status for number, status in master.ended.items()} == {1: 0, 2: 7}
        for number in (1, 2):
            told = yarn.container_id_text(master.granted[number].id)
            assert (tmp_path / f"n{number}").read_text() == f"n{number} {told}\n"
        await master.finish(FinalStatus.SUCCEEDED, "all well")
        found = await over(master.manager, master.application)
        assert found.yarn_application_state == ApplicationState.FINISHED
        assert found.final_application_status == FinalStatus.SUCCEEDED
        assert (found.diagnostics, found.originalTrackingUrl) == ("all well", "http://example.test/")

    with_master(conf, test)


async def over(manager: yarn.ResourceManager, application: y.ApplicationIdProto) -> y.ApplicationReportProto:
    async def ended() -> y.ApplicationReportProto | None:
        found = await report(manager, application)
        return found if ApplicationState(found.yarn_application_state).ended else None

    return await until_async(ended)


async def refused(call: Awaitable[object], name: str) -> RemoteError:
    with pytest.raises(RemoteError) as told:
        await call
    assert told.value.class_name.rpartition(".")[2] == name, told.value
    assert "\n" not in told.value.message
    return told.value


async def running(master: Master, number: int, command: str = "exec sleep 600") -> None:
    """The container is granted, started, and its program runs."""
    master.ask(number)
    await master.until(lambda: number in master.granted)
    await master.start(number, command)

    async def runs() -> bool:
        return (await master.status(number)).container_sub_state == y.CSS_RUNNING

    await until_async(runs)


def test_a_container_is_stopped_by_its_node(conf: Configuration) -> None:
    async def test(master: Master) -> None:
        await running(master, 1)
        container = master.granted[1].id
        stopped = await master.node(1).stop_containers(y.StopContainersRequestProto(container_id=[container]))
        assert stopped.succeeded_requests == [container]
        await master.until(lambda: master.ended)
        assert master.ended[1].exit_status == ExitStatus.KILLED_BY_APPMASTER

    with_master(conf, test)


def test_a_container_is_released(conf: Configuration) -> None:
    async def test(master: Master) -> None:
        await running(master, 1)
        master.releases.append(master.granted[1].id)
        await master.until(lambda: master.ended)
        assert master.ended[1].exit_status == ExitStatus.ABORTED
        assert "released" in master.ended[1].diagnostics

    with_master(conf, test)


def test_a_container_takes_a_signal(conf: Configuration, tmp_path: Path) -> None:
    """GRACEFUL_SHUTDOWN is TERM to the container, by its node or by the ResourceManager."""

    async def test(master: Master) -> None:
        for number, by in ((1, master.node), (2, lambda _: master.manager)):
            here = tmp_path / str(number)
            command = f"trap 'echo TERM > {here}.told; exit 0' TERM; touch {here}; while :; do sleep 0.05; done"
            await running(master, number, command)
            await until_async(here.exists)
            request = y.SignalContainerRequestProto(container_id=master.granted[number].id, command=y.GRACEFUL_SHUTDOWN)
            await by(number).signal_to_container(request)
            await until_async(here.with_suffix(".told").exists)

    with_master(conf, test)


def test_a_second_start_of_a_container_is_refused(conf: Configuration) -> None:
    async def test(master: Master) -> None:
        await running(master, 1)
        again = await master.start(1, "true")
        assert again.failed_requests[0].container_id == master.granted[1].id
        assert yarn.why(again.failed_requests[0].exception) == (
            "Unauthorized request to start container. Attempt to relaunch the same container with id "
            f"{yarn.container_id_text(master.granted[1].id)}."
        )

    with_master(conf, test)


def test_an_answer_is_given_again(conf: Configuration) -> None:
    """A lost answer is asked for again by the same response id: nothing granted is lost, nothing is granted twice."""

    async def test(master: Master) -> None:
        await running(master, 1)
        granting = next(answer for answer in master.answers if answer.allocated_containers)
        request = y.AllocateRequestProto(response_id=master.response_id)
        first = await master.scheduler.allocate(request)
        second = await master.scheduler.allocate(request)
        assert first.response_id == second.response_id == master.response_id + 1
        other = y.AllocateRequestProto(response_id=granting.response_id - 1)
        await refused(master.scheduler.allocate(other), "InvalidApplicationMasterRequestException")

    with_master(conf, test)


def test_asks_are_absolute(conf: Configuration) -> None:
    """The same ask again asks for no more; none asked withdraws what was not granted."""

    async def test(master: Master) -> None:
        everything = 100  # of 512 MiB, which the cluster has not
        master.ask(1, count=everything, memory=512)
        await master.beat()
        master.ask(1, count=0, memory=512)
        await master.beat()
        granted = sum(len(answer.allocated_containers) for answer in master.answers)
        for _ in range(10):
            granted += len((await master.beat()).allocated_containers)
        assert granted < everything

    with_master(conf, test)


def test_an_ask_beyond_the_largest_container_is_refused(conf: Configuration) -> None:
    async def test(master: Master) -> None:
        largest = master.registered.maximumCapability.memory
        master.ask(1, memory=largest + 1)
        error = await refused(master.beat(), "InvalidResourceRequestException")
        assert not error.fatal
        master.asks.clear()
        await master.beat()

    with_master(conf, test)


def test_a_node_is_preferred_demanded_and_excluded(conf: Configuration, hadoop: Cluster) -> None:
    async def test(master: Master) -> None:
        nodes = (await master.manager.get_cluster_nodes()).nodeReports
        for number, node in enumerate(nodes):
            for name in (node.nodeId.host, node.rackName, "*"):
                master.ask(number, name=name, relax_locality=name == node.nodeId.host)
            await master.until(lambda number=number: number in master.granted)
            assert master.granted[number].nodeId == node.nodeId
        excluded = nodes[0].nodeId
        master.blacklist.blacklist_additions.append(excluded.host)
        for number in range(10, 16):
            master.ask(number)
        await master.until(lambda: set(range(10, 16)) <= master.granted.keys())
        assert {master.granted[number].nodeId.host for number in range(10, 16)} == {nodes[1].nodeId.host}
        master.blacklist.blacklist_removals.append(excluded.host)
        await master.beat()

    with_master(conf, test)


def test_countable_resources_are_granted(conf: Configuration) -> None:
    async def test(master: Master) -> None:
        master.ask(1)
        master.asks[0].capability.resource_value_map.add(key="yarn.io/gpu", value=2)
        await master.until(lambda: 1 in master.granted)
        granted = {one.key: one.value for one in master.granted[1].resource.resource_value_map}
        assert granted == {"memory-mb": 128, "vcores": 1, "yarn.io/gpu": 2}
        assert {one.name for one in master.registered.resource_types} >= {"yarn.io/gpu"}

    with_master(conf, test)


def test_a_master_registers_once_and_is_unknown_after_its_end(conf: Configuration) -> None:
    async def test(master: Master) -> None:
        await refused(register(master.scheduler), "InvalidApplicationMasterRequestException")
        await master.finish(FinalStatus.FAILED, "as it should")
        assert (await over(master.manager, master.application)).final_application_status == FinalStatus.FAILED
        await refused(master.beat(), "ApplicationAttemptNotFoundException")

    with_master(conf, test)


def test_an_application_is_killed(conf: Configuration, tmp_path: Path) -> None:
    """Its containers end, its report says who killed it, its master is told by an exception."""

    async def test(master: Master) -> None:
        await running(master, 1, f"echo $$ > {tmp_path}/pid; exec sleep 600")
        pid = int(await until_async(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
        await killed(master.manager, master.application)
        found = await over(master.manager, master.application)
        assert found.yarn_application_state == ApplicationState.KILLED
        assert "by a test" in found.diagnostics
        await refused(master.beat(), "ApplicationAttemptNotFoundException")
        await until_async(lambda: not Path(f"/proc/{pid}").exists())

    with_master(conf, test)


# -- a client --


def test_what_was_submitted_is_told_and_found(conf: Configuration) -> None:
    async def test(manager: yarn.ResourceManager) -> None:
        application = await submitted(manager, applicationTags=["a-tag"], priority=y.PriorityProto(priority=3))
        try:
            found = await report(manager, application)
            assert (found.name, found.queue, found.user, found.applicationType) == (
                "a test",
                "root.default",
                "tester",
                "TEST",
            )
            assert list(found.applicationTags) == ["a-tag"]
            tagged = await manager.get_applications(y.GetApplicationsRequestProto(applicationTags=["a-tag"]))
            assert application in [one.applicationId for one in tagged.applications]
            await its_token(manager, application)
            attempts = await manager.get_application_attempts(
                y.GetApplicationAttemptsRequestProto(application_id=application)
            )
            assert [one.application_attempt_id.attemptId for one in attempts.application_attempts] == [1]
        finally:
            await killed(manager, application)

    with_manager(conf, test)


def test_an_application_changes_queue_and_priority(conf: Configuration) -> None:
    async def test(master: Master) -> None:
        move = y.MoveApplicationAcrossQueuesRequestProto(application_id=master.application, target_queue="low")
        await master.manager.move_application_across_queues(move)
        assert (await report(master.manager, master.application)).queue == "root.low"
        change = y.UpdateApplicationPriorityRequestProto(
            applicationId=master.application, applicationPriority=y.PriorityProto(priority=0)
        )
        assert (await master.manager.update_application_priority(change)).applicationPriority.priority == 0

    with_master(conf, test)


def test_an_application_submitted_twice_is_one(conf: Configuration) -> None:
    """So a submission whose answer was lost may be sent again."""

    async def test(manager: yarn.ResourceManager) -> None:
        application = await submitted(manager)
        try:
            assert await submitted_again(manager, application) == y.SubmitApplicationResponseProto()
        finally:
            await killed(manager, application)

    with_manager(conf, test)


async def submitted_again(
    manager: yarn.ResourceManager, application: y.ApplicationIdProto
) -> y.SubmitApplicationResponseProto:
    context = y.ApplicationSubmissionContextProto(
        application_id=application,
        unmanaged_am=True,
        resource=y.ResourceProto(memory=64, virtual_cores=1),
        am_container_spec=y.ContainerLaunchContextProto(),
    )
    return await manager.submit_application(y.SubmitApplicationRequestProto(application_submission_context=context))


def test_a_master_larger_than_any_container_is_refused(conf: Configuration) -> None:
    async def test(manager: yarn.ResourceManager) -> None:
        huge = y.ResourceProto(memory=1 << 20, virtual_cores=1)
        error = await refused(submitted(manager, unmanaged_am=False, resource=huge), "InvalidResourceRequestException")
        assert "memory" in error.message

    with_manager(conf, test)


def test_a_queue_that_is_none_fails_the_application_later(conf: Configuration) -> None:
    """The submission itself is taken: whoever wants to be told at once asks for the queue before."""

    async def test(manager: yarn.ResourceManager) -> None:
        application = await submitted(manager, queue="gone")
        found = await over(manager, application)
        assert found.yarn_application_state == ApplicationState.FAILED
        assert "unknown queue: gone" in found.diagnostics
        asked = await manager.get_queue_info(y.GetQueueInfoRequestProto(queueName="gone"))
        assert not asked.HasField("queueInfo")

    with_manager(conf, test)


def test_an_unknown_application_is_told(conf: Configuration) -> None:
    async def test(manager: yarn.ResourceManager) -> None:
        await refused(report(manager, yarn.application_id("application_1_0001")), "ApplicationNotFoundException")

    with_manager(conf, test)


def test_the_cluster_is_described(conf: Configuration, hadoop: Cluster) -> None:
    async def test(manager: yarn.ResourceManager) -> None:
        metrics = (await manager.get_cluster_metrics()).cluster_metrics
        assert metrics.num_active_nms == metrics.num_node_managers == 2
        nodes = (await manager.get_cluster_nodes(y.GetClusterNodesRequestProto(nodeStates=[y.NS_RUNNING]))).nodeReports
        assert {yarn.node_text(node.nodeId) for node in nodes} == {hadoop.node_id(1), hadoop.node_id(2)}
        assert {(node.capability.memory, node.capability.virtual_cores) for node in nodes} == {(4096, 8)}
        root = (
            await manager.get_queue_info(y.GetQueueInfoRequestProto(queueName="root", includeChildQueues=True))
        ).queueInfo
        assert {queue.queueName: round(queue.capacity, 2) for queue in root.childQueues} == {"default": 0.7, "low": 0.3}
        types = await manager.get_resource_type_info()
        assert {one.name for one in types.resource_type_info} == {"memory-mb", "vcores", "yarn.io/gpu"}
        mine = await manager.get_queue_user_acls()
        assert y.QACL_SUBMIT_APPLICATIONS in next(
            queue.userAcls for queue in mine.queueUserAcls if queue.queueName.endswith("default")
        )

    with_manager(conf, test)


def test_a_delegation_token_stands_for_its_owner(conf: Configuration) -> None:
    async def test(manager: yarn.ResourceManager) -> None:
        given = await manager.get_delegation_token(s.GetDelegationTokenRequestProto(renewer="tester"))
        token = yarn.token_of(given.token)
        assert (token.kind, token.service) == ("RM_DELEGATION_TOKEN", "")
        async with yarn.ResourceManager.of(conf, ByToken(token)) as other:
            assert (await other.get_cluster_metrics()).cluster_metrics.num_active_nms == 2
        renewed = await manager.renew_delegation_token(s.RenewDelegationTokenRequestProto(token=given.token))
        assert renewed.newExpiryTime > 0
        await manager.cancel_delegation_token(s.CancelDelegationTokenRequestProto(token=given.token))
        await refused(
            manager.renew_delegation_token(s.RenewDelegationTokenRequestProto(token=given.token)), "YarnException"
        )

    with_manager(conf, test)
