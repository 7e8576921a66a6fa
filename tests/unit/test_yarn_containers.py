"""Containers of several attempts of one application: the numbers in their ids are equal, and each is taken for itself alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
from waiting import until_async

from trainmaster.core.containers import Request
from trainmaster.core.machine.stimuli import ContainerExited, Granted
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.containers import Containers
from trainmaster.engines.yarn.master.asks import Numbers
from trainmaster.engines.yarn.master.engine import YarnMaster
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.security.auth import PROTECTION
from trainmaster.hadoop.security.credentials import Token
from trainmaster.hadoop.yarn import container_id, container_id_text

JOB = job_from({"roles": {"worker": {"command": "true", "replicas": 4}}})
A, B, C = "container_17_0001_01_000002", "container_17_0001_02_000002", "container_17_0001_01_000003"
ZERO, ONE = ("worker:0", 1), ("worker:1", 1)


def container(name: str, task: str, serial: int = 1) -> y.ContainerProto:
    number = Numbers(JOB).of(task, serial)
    return y.ContainerProto(
        id=container_id(name), nodeId=y.NodeIdProto(host="n1", port=1), allocation_request_id=number
    )


def ended(name: str, status: int) -> y.AllocateResponseProto:
    return y.AllocateResponseProto(
        completed_container_statuses=[y.ContainerStatusProto(container_id=container_id(name), exit_status=status)]
    )


@attrs.define
class ResourceManager:
    """Answers beats with the responses it is given, in turn, and then with empty ones."""

    earlier: Sequence[y.ContainerProto] = ()
    responses: list[y.AllocateResponseProto] = attrs.field(factory=list)
    released: list[str] = attrs.field(factory=list)

    async def register_application_master(self, _: object) -> y.RegisterApplicationMasterResponseProto:
        return y.RegisterApplicationMasterResponseProto(containers_from_previous_attempts=self.earlier)

    async def allocate(self, request: y.AllocateRequestProto) -> y.AllocateResponseProto:
        self.released += map(container_id_text, request.release)
        return self.responses.pop(0) if self.responses else y.AllocateResponseProto()

    async def finish_application_master(self, _: object) -> y.FinishApplicationMasterResponseProto:
        return y.FinishApplicationMasterResponseProto(isUnregistered=True)

    async def close(self) -> None: ...


class NodeManagers:
    """Nodes that start all, and on which all runs but what `dead` names."""

    def __init__(self, dead: Sequence[str] = ()) -> None:
        self.started: list[str] = []
        self.dead = dead

    def take(self, tokens: object) -> None: ...

    async def start(self, containers: Sequence[tuple[y.ContainerProto, Any]]) -> dict[str, str]:
        self.started += [container_id_text(started.id) for started, _ in containers]
        return {}

    async def running(self, containers: Sequence[y.ContainerProto]) -> set[str]:
        return {container_id_text(each.id) for each in containers} - set(self.dead)

    async def close(self) -> None: ...


@attrs.define
class World:
    """A master's engine between a ResourceManager and nodes that do as they are told, and its changes."""

    manager: ResourceManager
    nodes: NodeManagers
    containers: Containers
    changes: list[Any] = attrs.field(factory=list)

    async def ask(self, *keys: tuple[str, int]) -> None:
        self.containers.ask([Request(task, serial, "worker", int(task[-1]), 2**30, 1.0) for task, serial in keys])

    async def until(self, change: type, *key: object) -> Any:
        def heard() -> Any:
            return next(
                (each for each in self.changes if type(each) is change and (each.task, each.serial) == key), None
            )

        return await until_async(heard, what=lambda: self.changes)

    def of(self, change: type) -> list[tuple[str, int]]:
        return [(each.task, each.serial) for each in self.changes if type(each) is change]


def play(manager: ResourceManager, scene: Callable[[World], Awaitable[None]], dead: Sequence[str] = ()) -> None:
    async def run() -> None:
        token: Any = Token(b"", b"", "", "")
        engine = YarnMaster(
            JOB, lambda request, devices: {}, lambda spec: None, lambda _: manager, token, manager, PROTECTION
        )  # type: ignore[arg-type,return-value]
        nodes = NodeManagers(dead)
        engine._nodes = nodes  # type: ignore[assignment]
        containers = Containers(engine, lambda: [ZERO] if manager.earlier else [])
        world = World(manager, nodes, containers)
        containers.begin(2)

        async def listen() -> None:
            async for change in containers.changes():
                world.changes.append(change)

        listening = asyncio.create_task(listen())
        try:
            await scene(world)
            await containers.close("succeeded")
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    asyncio.run(run())


def test_a_container_with_the_number_of_one_of_the_attempt_before_is_another_container() -> None:
    """Number 2 of attempt 1 runs worker:0, number 2 of attempt 2 worker:1: each end, and each release, is of its own."""

    async def scene(world: World) -> None:
        assert (await world.until(Granted, *ZERO)).container == A
        world.manager.responses.append(y.AllocateResponseProto(allocated_containers=[container(B, "worker:1")]))
        await world.ask(ONE)
        assert (await world.until(Granted, *ONE)).container == B
        world.manager.responses.append(ended(B, 7))
        assert (await world.until(ContainerExited, *ONE)).status == 7
        assert world.of(ContainerExited) == [ONE], "the healthy task of the first attempt goes on"
        world.containers.release(*ZERO)
        await until_async(lambda: world.manager.released, what="the release")
        assert world.manager.released == [A]
        world.manager.responses.append(ended(A, -100))
        await world.until(ContainerExited, *ZERO)

    play(ResourceManager([container(A, "worker:0")]), scene)


def test_two_containers_of_one_number_are_given_back_in_one_beat() -> None:
    async def scene(world: World) -> None:
        world.manager.responses.append(y.AllocateResponseProto(allocated_containers=[container(B, "worker:1")]))
        await world.ask(ONE)
        await world.until(Granted, *ONE)
        world.containers.release(*ZERO)
        world.containers.release(*ONE)
        await until_async(lambda: len(world.manager.released) == 2, what=lambda: world.manager.released)
        assert sorted(world.manager.released) == [A, B]

    play(ResourceManager([container(A, "worker:0")]), scene)


def test_containers_of_an_earlier_attempt_that_are_listed_late_are_adopted_or_given_back() -> None:
    """After a restart of the ResourceManager: one still asked for runs already, so no second is started; the other is of no use."""

    async def scene(world: World) -> None:
        await world.ask(ZERO)
        world.manager.responses.append(
            y.AllocateResponseProto(
                containers_from_previous_attempts=[container(A, "worker:0"), container(C, "worker:3")]
            )
        )
        assert (await world.until(Granted, *ZERO)).container == A
        await until_async(lambda: world.manager.released, what="the release")
        assert (world.manager.released, world.nodes.started) == ([C], [])
        world.manager.responses.append(ended(A, 3))
        assert (await world.until(ContainerExited, *ZERO)).status == 3

    play(ResourceManager(), scene)


def test_of_two_containers_of_one_ask_the_one_that_runs_is_kept() -> None:
    async def scene(world: World) -> None:
        assert (await world.until(Granted, *ZERO)).container == C
        await until_async(lambda: world.manager.released, what="the release")
        assert world.manager.released == [A]

    play(ResourceManager([container(A, "worker:0"), container(C, "worker:0")]), scene, dead=[A])
