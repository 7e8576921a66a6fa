"""What a master does while its log cannot be written, and how it ends: when it hears nothing of its engine any more, and on a full disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import Script, job, role
from waiting import until_async
from websockets.asyncio.client import ClientConnection, unix_connect

from trainmaster.core.decide.drive import Drive
from trainmaster.core.errors import StorageFailed
from trainmaster.core.machine.state import State
from trainmaster.core.machine.stimuli import Change, Disconnected, Granted
from trainmaster.host import places
from trainmaster.master import shell as shells
from trainmaster.master.connections.agents import PATH
from trainmaster.master.connections.serve import AgentSocket
from trainmaster.master.hosts import LocalHost
from trainmaster.master.main import _Life
from trainmaster.master.pulse import Pulse
from trainmaster.master.shell import Shell


class Broken:
    """An engine that fails as soon as it is listened to."""

    async def changes(self) -> AsyncIterator[Change]:
        raise OSError("the engine is gone")
        yield


class Silent:
    """An engine that tells nothing."""

    async def changes(self) -> AsyncIterator[Change]:
        await never()
        yield


async def never() -> None:
    await asyncio.Event().wait()


def test_a_master_ends_when_nobody_can_reach_it() -> None:
    nothing: Any = None

    async def broken() -> None:
        raise OSError("no port is left")

    async def scene() -> None:
        engine: Any = Silent()
        shell = Shell(Drive(State()), 1, nothing, engine, nothing, nothing, nothing, lambda: 0.0, nothing)
        await asyncio.wait_for(shell.run(asyncio.create_task(broken())), 60)

    with pytest.raises(OSError, match="no port is left"):
        asyncio.run(scene())


def test_a_master_ends_when_its_engine_fails() -> None:
    nothing: Any = None

    async def scene() -> None:
        engine: Any = Broken()
        shell = Shell(Drive(State()), 1, nothing, engine, nothing, nothing, nothing, lambda: 0.0, nothing)
        serving = asyncio.create_task(never())
        await asyncio.wait_for(shell.run(serving), 60)

    with pytest.raises(OSError, match="the engine is gone"):
        asyncio.run(scene())


class Stuck:
    """A log that takes nothing until it is `well` again."""

    def __init__(self) -> None:
        self.well = asyncio.Event()

    async def append(self, events: object, **how: object) -> None:
        await self.well.wait()

    async def durable(self, n: int) -> None:
        await self.well.wait()

    def overdue(self, limit: float | None) -> str:
        return ""


def test_a_report_that_the_log_has_not_got_is_acknowledged_to_nobody_not_even_who_connects_again(
    tmp_path: Path,
) -> None:
    """Else the agent would drop it, and a master that died then would never have heard of it."""
    path = str(tmp_path / "agents.sock")

    async def greet(connection: ClientConnection) -> int:
        await connection.send(json.dumps({"type": "hello", "v": "1.0", "task": "worker:0", "serial": 1, "epoch": 0}))
        return int(json.loads(await connection.recv())["acked"])

    async def scene() -> None:
        script = Script(job(worker=role()))
        script.start("worker:0")
        n = script.task("worker:0").reported + 1
        log: Any = Stuck()
        engine: Any = SimpleNamespace(release=lambda *key: None)
        unused: Any = None
        shell = Shell(script.drive, 1, log, engine, unused, unused, unused, lambda: 0.0, unused)
        agents = AgentSocket(path, "secret")
        await agents.serve(shell.agents)

        def connect() -> Any:
            return unix_connect(path, f"ws://localhost{PATH}", additional_headers={"Authorization": "Bearer secret"})

        async with connect() as first:
            assert await greet(first) == n - 1
            trouble = {"type": "report", "n": n, "attempt": 1, "kind": "warned", "what": "log", "detail": "it is full"}
            await first.send(json.dumps(trouble))
            await until_async(lambda: len(shell.turns.inbox) == 2)  # that it connected, and what it reports
        turning = asyncio.create_task(shell.turn())
        await until_async(lambda: script.task("worker:0").reported == n)  # by a turn that waits for the log
        async with connect() as second:
            assert await greet(second) == n - 1
            log.well.set()
            assert json.loads(await second.recv()) == {"type": "ack", "n": n}
        async with connect() as third:
            assert await greet(third) == n
        turning.cancel()
        await agents.close()

    asyncio.run(scene())


def test_an_agent_that_is_quicker_than_its_engine_does_not_make_its_gang_smaller(tmp_path: Path) -> None:
    """Between min and max a group begins with what is granted at once; of that an agent that calls tells its own container alone."""
    path = str(tmp_path / "agents.sock")

    async def at_once(*told: object) -> None:
        return

    async def scene() -> None:
        script = Script(job(worker=role({"min": 1, "max": 3}, scope="group")))
        script.ask()
        log: Any = Stuck()
        log.well.set()
        engine: Any = SimpleNamespace(ask=at_once, release=at_once)
        unused: Any = None
        orders: Any = SimpleNamespace(unlocated=lambda state: False)
        shell = Shell(script.drive, 1, log, engine, unused, orders, unused, lambda: script.now, unused)
        agents = AgentSocket(path, "secret")
        await agents.serve(shell.agents)
        headers = {"Authorization": "Bearer secret"}
        async with unix_connect(path, f"ws://localhost{PATH}", additional_headers=headers) as connection:
            hello = {"type": "hello", "v": "1.0", "task": "worker:0", "serial": 1, "epoch": 0}
            await connection.send(json.dumps(hello))
            await until_async(lambda: shell.feed._news._waiters)
            shell.tell(Granted("worker:0", 1, "c/0", "here"), Granted("worker:1", 1, "c/1", "here"))
            await shell.turn()
            assert json.loads(await connection.recv())["type"] == "welcome"
            assert script.state.groups[0].sizes == {"worker": 2}
        await agents.close()

    asyncio.run(scene())


@pytest.mark.parametrize("held_up", [True, False])
def test_a_master_that_was_held_up_hears_who_called_meanwhile_before_an_agents_silence_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_up: bool
) -> None:
    """A program had ended well while its master was stopped, and ran again as a whole."""
    path, clock = str(tmp_path / "agents.sock"), [0.0]
    monkeypatch.setattr(shells, "HEARD_WITHIN", 1.0)

    async def at_once(*told: object) -> None:
        return

    async def scene() -> None:
        script = Script(job(worker=role()))
        script.start("worker:0")
        log: Any = Stuck()
        log.well.set()
        engine: Any = SimpleNamespace(ask=at_once, release=at_once)
        unused: Any = None
        orders: Any = SimpleNamespace(
            unlocated=lambda state: False, request=lambda *told: None, payload=lambda *told: {}, ahead=lambda payload: ()
        )  # fmt: skip
        shell = Shell(script.drive, 1, log, engine, unused, orders, unused, lambda: script.now + clock[0], unused)
        shell._pulse = Pulse(lambda: clock[0])
        agents = AgentSocket(path, "secret")
        await agents.serve(shell.agents)
        script.take(Disconnected("worker:0", script.task("worker:0").serial))
        shell._pulse.since_held_up()
        clock[0] += 100
        if not held_up:
            shell._pulse = Pulse(lambda: clock[0])
        turning = asyncio.create_task(shell.turn())
        headers = {"Authorization": "Bearer secret"}
        async with unix_connect(path, f"ws://localhost{PATH}", additional_headers=headers) as connection:
            task = script.task("worker:0")
            hello = {"type": "hello", "v": "1.0", "task": task.key, "serial": task.serial, "epoch": 0}
            ended = {
                "type": "report",
                "n": task.reported + 1,
                "attempt": 1,
                "kind": "ended",
                "reason": "exit",
                "status": 0,
            }
            await connection.send(json.dumps(hello))
            await connection.send(json.dumps(ended))
            await turning
            assert task.final == ("succeeded" if held_up else "")
            assert task.attempt == (1 if held_up else 2), "it was written off"
        await agents.close()

    asyncio.run(scene())


@pytest.mark.parametrize("over", [True, False])
def test_the_sockets_of_a_job_that_is_over_go_though_its_log_cannot_be_closed(over: bool) -> None:
    async def close() -> None:
        raise StorageFailed("no space left on device")

    life = object.__new__(_Life)
    life.job_id, life.shell = "t-aaaaaa", SimpleNamespace(over=over)
    life.record = SimpleNamespace(close=close)
    life.host = LocalHost(life.job_id, {}, None)
    folder = places.job_dir(life.job_id)
    with pytest.raises(StorageFailed):
        asyncio.run(life._close())
    assert folder.exists() is not over


def test_two_saves_in_one_turn_have_two_names() -> None:
    nothing: Any = None
    script = Script(job(worker=role()))
    script.start("worker:0")
    shell = Shell(script.drive, 1, nothing, nothing, nothing, nothing, nothing, lambda: script.now, nothing)
    names = [asyncio.run(shell.save()) for _ in range(3)]
    assert len(set(names)) == 3
    shell.turns.take(script.now)
    assert [save["save"] for save in script.state.saves] == names


def test_of_a_task_that_restarts_for_ever_no_more_is_kept_than_of_its_newest_container() -> None:
    nothing: Any = None
    shell = Shell(Drive(State()), 1, nothing, nothing, nothing, nothing, nothing, lambda: 0.0, nothing)
    for serial in range(1, 1000):
        shell.agents.acknowledge("worker:0", serial, 7)
    shell.agents.acknowledge("worker:0", 3, 9)
    assert shell.agents._acked == {"worker:0": (999, 7)}
