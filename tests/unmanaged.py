"""An unmanaged master: it runs in the test, not in a container, with the token that the application's report holds. The cheapest way to
ask a real ResourceManager and real NodeManagers for whatever a test wants to see.

    async with unmanaged(conf) as master:
        master.ask(number=1, memory=128)
        await master.until(lambda: 1 in master.granted)
        await master.start(1, "exit 7")
        await master.until(lambda: master.ended)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
from waiting import LIMIT, until_async

from trainmaster.hadoop import yarn
from trainmaster.hadoop.conf import Configuration, rpc_protection
from trainmaster.hadoop.errors import HadoopError
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.security.auth import Auth, Simple
from trainmaster.hadoop.security.credentials import Token

USER = Simple("tester")


async def submitted(manager: yarn.ResourceManager, **fields: object) -> y.ApplicationIdProto:
    """A new application without a master of its own; `fields` of its submission context besides."""
    new = await manager.get_new_application()
    context = y.ApplicationSubmissionContextProto(
        application_id=new.application_id,
        application_name="a test",
        queue="default",
        unmanaged_am=True,
        maxAppAttempts=1,
        resource=y.ResourceProto(memory=64, virtual_cores=1),
        am_container_spec=y.ContainerLaunchContextProto(),
        applicationType="TEST",
    )
    context.MergeFrom(y.ApplicationSubmissionContextProto(**fields))
    await manager.submit_application(y.SubmitApplicationRequestProto(application_submission_context=context))
    return new.application_id


async def report(manager: yarn.ResourceManager, application: y.ApplicationIdProto) -> y.ApplicationReportProto:
    request = y.GetApplicationReportRequestProto(application_id=application)
    return (await manager.get_application_report(request)).application_report


async def its_token(manager: yarn.ResourceManager, application: y.ApplicationIdProto) -> Token:
    """The token of the application's master, there as soon as its attempt waits to be registered."""

    async def there() -> Token | None:
        found = await report(manager, application)
        assert not yarn.ApplicationState(found.yarn_application_state).ended, found.diagnostics
        return yarn.token_of(found.am_rm_token) if found.HasField("am_rm_token") else None

    return await until_async(there, what="the master's token")


@attrs.define
class Master:
    conf: Configuration
    manager: yarn.ResourceManager
    application: y.ApplicationIdProto
    token: Token
    scheduler: yarn.Scheduler
    registered: y.RegisterApplicationMasterResponseProto
    response_id: int = 0
    asks: list[y.ResourceRequestProto] = attrs.field(factory=list)
    releases: list[y.ContainerIdProto] = attrs.field(factory=list)
    blacklist: y.ResourceBlacklistRequestProto = attrs.field(factory=y.ResourceBlacklistRequestProto)
    granted: dict[int, y.ContainerProto] = attrs.field(factory=dict)  # by allocation request id
    ended: dict[int, y.ContainerStatusProto] = attrs.field(factory=dict)  # the same
    answers: list[y.AllocateResponseProto] = attrs.field(factory=list)
    nm_tokens: dict[str, Token] = attrs.field(factory=dict)
    nodes: dict[str, yarn.NodeManager] = attrs.field(factory=dict)

    def ask(self, number: int, count: int = 1, memory: int = 128, name: str = "*", **fields: object) -> None:
        """For `count` containers in all under this allocation request id."""
        self.asks.append(
            y.ResourceRequestProto(
                priority=y.PriorityProto(priority=1),
                resource_name=name,
                capability=y.ResourceProto(memory=memory, virtual_cores=1),
                num_containers=count,
                allocation_request_id=number,
                **fields,
            )
        )

    async def beat(self) -> y.AllocateResponseProto:
        """One allocate with all that has been asked since the last."""
        request = y.AllocateRequestProto(
            ask=self.asks,
            release=self.releases,
            blacklist_request=self.blacklist,
            response_id=self.response_id,
            progress=0.5,
        )
        answer = await self.scheduler.allocate(request)
        self.asks, self.releases, self.blacklist = [], [], y.ResourceBlacklistRequestProto()
        self.take(answer)
        return answer

    def take(self, answer: y.AllocateResponseProto) -> None:
        self.answers.append(answer)
        self.response_id = answer.response_id
        for one in answer.allocated_containers:
            self.granted[one.allocation_request_id] = one
        for one in answer.nm_tokens:
            self.nm_tokens[yarn.node_text(one.nodeId)] = yarn.token_of(one.token)
        numbers = {container.id.id: number for number, container in self.granted.items()}
        for status in answer.completed_container_statuses:
            self.ended[numbers[status.container_id.id]] = status

    async def until(self, condition: Callable[[], object], limit: float = LIMIT) -> None:
        async def beaten() -> object:
            if met := condition():
                return met
            await self.beat()
            return condition()

        await until_async(beaten, limit, what=lambda: f"{self.answers[-3:]}")

    def node(self, number: int) -> yarn.NodeManager:
        """The node of a granted container."""
        where = yarn.node_text(self.granted[number].nodeId)
        if where not in self.nodes:
            self.nodes[where] = yarn.NodeManager.of(where, self.nm_tokens[where], rpc_protection(self.conf))
        return self.nodes[where]

    async def start(self, number: int, command: str, **fields: object) -> y.StartContainersResponseProto:
        context = y.ContainerLaunchContextProto(command=[command], **fields)
        token = self.granted[number].container_token
        one = y.StartContainerRequestProto(container_launch_context=context, container_token=token)
        return await self.node(number).start_containers(y.StartContainersRequestProto(start_container_request=[one]))

    async def status(self, number: int) -> y.ContainerStatusProto:
        request = y.GetContainerStatusesRequestProto(container_id=[self.granted[number].id])
        return (await self.node(number).get_container_statuses(request)).status[0]

    async def finish(self, status: yarn.FinalStatus, diagnostics: str = "") -> None:
        request = y.FinishApplicationMasterRequestProto(
            final_application_status=status.value, diagnostics=diagnostics, tracking_url="http://example.test/"
        )

        async def unregistered() -> bool:
            return (await self.scheduler.finish_application_master(request)).isUnregistered

        await until_async(unregistered)

    async def close(self) -> None:
        await asyncio.gather(self.scheduler.close(), *(node.close() for node in self.nodes.values()))


async def register(scheduler: yarn.Scheduler) -> y.RegisterApplicationMasterResponseProto:
    request = y.RegisterApplicationMasterRequestProto(host="localhost", rpc_port=0, tracking_url="http://example.test/")
    return await scheduler.register_application_master(request)


async def killed(manager: yarn.ResourceManager, application: y.ApplicationIdProto) -> None:
    async def gone() -> bool:
        request = y.KillApplicationRequestProto(application_id=application, diagnostics="by a test")
        return (await manager.force_kill_application(request)).is_kill_completed

    await until_async(gone)


@asynccontextmanager
async def unmanaged(conf: Configuration, auth: Auth = USER, **fields: object) -> AsyncIterator[Master]:
    """A registered master; whatever it leaves is killed at the end."""
    async with yarn.ResourceManager.of(conf, auth) as manager:
        application = await submitted(manager, **fields)
        try:
            token = await its_token(manager, application)
            scheduler = yarn.Scheduler.of(conf, token)
            master = Master(conf, manager, application, token, scheduler, await register(scheduler))
            try:
                yield master
            finally:
                await master.close()
        finally:
            with contextlib.suppress(HadoopError):
                await killed(manager, application)
