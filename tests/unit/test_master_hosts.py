"""A master where it sits: its descriptors and its strangers, what goes with its job, and what makes it stop."""

from __future__ import annotations

import asyncio
import json
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import Script, job, role
from waiting import until_async
from websockets.asyncio.client import unix_connect

from trainmaster.client.submit.ahead import certificate_and_key
from trainmaster.engines.local import launch
from trainmaster.master import hosts, main
from trainmaster.master.connections.agents import PATH
from trainmaster.master.connections.serve import AgentSocket
from trainmaster.master.hosts import ContainerHost, LocalHost
from trainmaster.master.shell import Shell


def test_a_master_may_open_as_many_descriptors_as_its_hard_limit_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    class Life:
        def __init__(self, *_: object) -> None: ...

        async def live(self) -> int:
            return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    monkeypatch.setattr(main, "_Life", Life)
    host: Any = None
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        assert main.run("", {}, host) == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_is_kept_to_resume_a_job_goes_when_its_master_leaves(tmp_path: Path) -> None:
    launch.keep(tmp_path, {"GREETING": "hello"}, {})
    (kept,) = tmp_path.iterdir()
    host = LocalHost(str(tmp_path), {}, None)
    asyncio.run(host.close())
    assert kept.exists(), "a master that another one follows leaves it"
    host.leave()
    assert not kept.exists()


def test_the_listeners_of_agents_and_of_the_page_share_the_room_for_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the descriptors is for strangers: not a quarter for each listener."""
    monkeypatch.setattr(hosts, "descriptor_limit", lambda: 8)
    certificate, key = certificate_and_key()

    async def scene() -> None:
        nothing: Any = SimpleNamespace(trusts=lambda scope: False)
        parts: Any = SimpleNamespace(address="127.0.0.1", port=0, proxies=("127.0.0.1",), tokens=None)
        host = ContainerHost(parts, "job-x", certificate, key)
        host.bind()
        agents, page = (bound.getsockname()[1] for bound in host._sockets)
        await host.serve(nothing, nothing)
        connections = []
        try:
            for port in (agents, agents, page):
                connections.append(await asyncio.open_connection("127.0.0.1", port))
            first, _, third = (reader for reader, _ in connections)
            async with asyncio.timeout(30):
                assert await third.read() == b""
            assert not first.at_eof(), "the third is closed at once, not when its time is over"
        finally:
            for _, writer in connections:
                writer.close()
            await host.close()

    asyncio.run(scene())


def test_an_epoch_that_an_agent_names_makes_a_master_look_and_go_on(tmp_path: Path) -> None:
    """Whoever has the job's token can name any epoch: what stands in the storage alone stops a master."""
    path = str(tmp_path / "agents.sock")
    looks: list[bool] = []

    async def at_once(*_: object, **__: object) -> None:
        return

    async def scene() -> None:
        script = Script(job(worker=role()))
        script.start("worker:0")
        record: Any = SimpleNamespace(
            append=at_once, durable=at_once, look=lambda: looks.append(True), synced=0, overdue=lambda limit: ""
        )
        engine: Any = SimpleNamespace(ask=at_once, release=at_once)
        unused: Any = None
        orders: Any = SimpleNamespace(unlocated=lambda state: False)
        shell = Shell(script.drive, 1, record, engine, unused, orders, unused, lambda: script.now, unused)
        agents = AgentSocket(path, "secret")
        await agents.serve(shell.agents)
        headers = {"Authorization": "Bearer secret"}
        hello = {"type": "hello", "v": "1.0", "task": "worker:0", "serial": script.task("worker:0").serial}
        async with unix_connect(path, f"ws://localhost{PATH}", additional_headers=headers) as connection:
            await connection.send(json.dumps({**hello, "epoch": 2**52}))
            assert json.loads(await connection.recv())["reason"] == "stale-epoch"
        async with unix_connect(path, f"ws://localhost{PATH}", additional_headers=headers) as connection:
            await connection.send(json.dumps({**hello, "epoch": 1}))
            assert json.loads(await connection.recv())["type"] == "welcome"
            await until_async(lambda: shell.turns.inbox)
            await shell.turn()  # raises Superseded where it stops
        await agents.close()

    asyncio.run(scene())
    assert looks == [True]
