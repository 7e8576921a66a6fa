"""A whole master in a container's seat, with an engine of ours."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from parts import need_root
from scripted import Script, job, role
from waiting import until_async
from websockets.asyncio.client import connect

from trainmaster.client.submit.ahead import certificate_and_key
from trainmaster.core.containers import RUNNING, Habits, Request, Seen
from trainmaster.core.decide import limits
from trainmaster.core.errors import BadInput
from trainmaster.core.machine.events import decode, encode
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.log.reader import Reader, replay
from trainmaster.log.storage import LocalStorage
from trainmaster.master.connections.agents import PATH
from trainmaster.master.hosts import ContainerHost
from trainmaster.master.main import _Life
from trainmaster.runtime.network.pinned import trusting

TOKEN = "sesame"


class Slow:
    """An engine that is not open before it is `well`, and has had worker:0 all the time."""

    def __init__(self) -> None:
        self.opening, self.well = asyncio.Event(), asyncio.Event()
        self.asked: list[object] = []

    habits = Habits()

    async def open(self, epoch: int, containers: object) -> list[Seen]:
        self.opening.set()
        await self.well.wait()
        return [Seen(("worker:0", 1), RUNNING, "c/0", "here")]

    def create(self, requests: object) -> None:
        self.asked.append(requests)

    def delete(self, deletions: object) -> None: ...


def test_an_agent_that_is_quicker_than_a_new_master_leaves_the_log_whole(tmp_path: Path) -> None:
    """The first line of an epoch says up to where its master has read; without it, all that was before would count as missing."""
    described = job(worker=role())
    script = Script(described)
    script.start("worker:0")
    storage = LocalStorage(tmp_path)
    storage.replace("events/1-1.jsonl", b"".join(map(encode, script.log)))
    storage.create("epochs/1", b"")
    (tmp_path / "job.json").write_text(json.dumps(job_to(job_from(described))))
    (tmp_path / "site.json").write_text("{}")
    (tmp_path / "logs" / "master").mkdir(parents=True)
    certificate, key = certificate_and_key()

    async def call(address: str) -> str:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with connect(
            f"wss://{address}{PATH}", ssl=trusting(certificate), additional_headers=headers
        ) as connection:
            hello = {"type": "hello", "v": "1.0", "task": "worker:0", "serial": 1, "epoch": 1}
            await connection.send(json.dumps(hello))
            return str(json.loads(await connection.recv())["type"])

    async def scene() -> None:
        engine: Any = Slow()
        parts: Any = SimpleNamespace(
            engine=lambda job, spec, page: engine, address="127.0.0.1", port=0, agents={}, proxies=(), tokens=None
        )
        host = ContainerHost(parts, "job-x", certificate, key)
        living = asyncio.create_task(_Life(str(tmp_path), {"token": TOKEN, "secrets": {}}, host).live())
        await engine.opening.wait()
        calling = asyncio.create_task(call(host.place))
        await asyncio.wait([calling], timeout=0.5)  # as long as an agent would need to be heard
        engine.well.set()
        assert await calling == "welcome"
        await until_async(lambda: storage.entries("events")[-1].name.startswith("2-"))
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)

    asyncio.run(scene())
    events = list(replay(Reader(storage), decode))
    assert [event.n for event in events] == list(range(1, len(events) + 1))
    assert events[len(script.log)].type == "master-started"


def test_agents_are_served_while_the_engine_is_away(tmp_path: Path) -> None:
    """Programs end where no master answers their agents for half a minute; an API server may be away for longer."""
    described = job(worker=role())
    script = Script(described)
    script.start("worker:0")
    storage = LocalStorage(tmp_path)
    storage.replace("events/1-1.jsonl", b"".join(map(encode, script.log)))
    storage.create("epochs/1", b"")
    (tmp_path / "job.json").write_text(json.dumps(job_to(job_from(described))))
    (tmp_path / "site.json").write_text("{}")
    (tmp_path / "logs" / "master").mkdir(parents=True)
    certificate, key = certificate_and_key()

    async def scene() -> None:
        engine: Any = Slow()
        parts: Any = SimpleNamespace(
            engine=lambda job, spec, page: engine, address="127.0.0.1", port=0, agents={}, proxies=(), tokens=None
        )
        host = ContainerHost(parts, "job-x", certificate, key)
        life = _Life(str(tmp_path), {"token": TOKEN, "secrets": {}}, host)
        living = asyncio.create_task(life.live())
        await engine.opening.wait()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with connect(
            f"wss://{host.place}{PATH}", ssl=trusting(certificate), additional_headers=headers
        ) as connection:
            hello = {"type": "hello", "v": "1.0", "task": "worker:0", "serial": 1, "epoch": 1}
            await connection.send(json.dumps(hello))
            assert json.loads(await connection.recv())["type"] == "welcome"
            assert not engine.well.is_set()
            assert not engine.asked
            engine.well.set()
            await until_async(lambda: life.engine._is_open)
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)

    asyncio.run(scene())


class Refusing:
    """An engine that holds nothing and fails where it is asked for containers."""

    habits = Habits()

    async def open(self, epoch: int, containers: object) -> list[Seen]:
        return []

    def create(self, requests: object) -> None:
        raise RuntimeError("the queue is gone")

    def delete(self, deletions: object) -> None: ...

    async def close(self, state: str) -> None:
        return


def test_masters_that_fail_tell_the_next_one_and_some_in_a_row_end_the_job(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(job_to(job_from(job(worker=role())))))
    (tmp_path / "site.json").write_text("{}")
    (tmp_path / "logs" / "master").mkdir(parents=True)
    storage = LocalStorage(tmp_path)
    certificate, key = certificate_and_key()

    async def live() -> None:
        parts: Any = SimpleNamespace(
            engine=lambda job, spec, page: Refusing(), leave=lambda: None,
            address="127.0.0.1", port=0, agents={}, proxies=(), tokens=None,
        )  # fmt: skip
        host = ContainerHost(parts, "job-x", certificate, key)
        await _Life(str(tmp_path), {"token": TOKEN, "secrets": {}}, host).live()

    for epoch in range(1, limits.TAKEOVERS + 1):
        with pytest.raises(RuntimeError, match="the queue is gone"):
            asyncio.run(live())
        words = json.loads(storage.read("master-failed") or b"{}")
        assert words == {"epoch": epoch, "words": "RuntimeError: the queue is gone"}
    asyncio.run(live())
    (ending,) = (event for event in replay(Reader(storage), decode) if event.type == "ending")
    assert (ending.data["state"], ending.data["reason"]) == ("failed", "master-failed")
    assert ending.data["figures"] == {"masters": limits.TAKEOVERS, "detail": "RuntimeError: the queue is gone"}


class Closing(Slow):
    """An engine that holds nothing, and notes how it was closed."""

    async def open(self, epoch: int, containers: object) -> list[Seen]:
        return []

    async def close(self, state: str) -> None:
        self.asked.append(state)


@pytest.mark.parametrize("content", [b"", b'["file:///data/", [["a.csv", 3'])
def test_a_master_that_finds_a_damaged_listing_ends_the_job_and_needs_no_next_one(
    tmp_path: Path, content: bytes
) -> None:
    """As on a cluster, which starts a master that failed again."""
    described = job(worker=role(), inputs={"data": {"url": "/data/*.csv", "as": "list"}})
    script = Script(described)
    script.start("worker:0")
    storage = LocalStorage(tmp_path)
    storage.replace("events/1-1.jsonl", b"".join(map(encode, script.log)))
    storage.create("epochs/1", b"")
    storage.replace("inputs/data.json", content)
    (tmp_path / "job.json").write_text(json.dumps(job_to(job_from(described))))
    (tmp_path / "site.json").write_text("{}")
    (tmp_path / "logs" / "master").mkdir(parents=True)
    certificate, key = certificate_and_key()
    engine: Any = Closing()
    parts: Any = SimpleNamespace(
        engine=lambda job, spec, page: engine,
        leave=lambda: None,
        address="127.0.0.1",
        port=0,
        agents={},
        proxies=(),
        tokens=None,
    )

    async def live() -> int:
        host = ContainerHost(parts, "job-x", certificate, key)
        return await _Life(str(tmp_path), {"token": TOKEN, "secrets": {}}, host).live()

    assert asyncio.run(live()) == 0, "its cluster must not take it for one that failed"
    events = list(replay(Reader(storage), decode))
    (ending,) = (event for event in events if event.type == "ending")
    assert (ending.data["state"], ending.data["reason"]) == ("failed", "state-damaged")
    assert ending.data["figures"] == {"path": f"{storage.url}/inputs/data.json"}
    assert [event.type for event in events].count("ended") == 1
    assert engine.asked[-1] == "failed", "a cluster is told that it is over"
    assert storage.read("master-failed") is None


def test_an_agent_gets_the_secrets_of_its_own_role_alone(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(job_to(job_from(job(worker=role(), ps=role())))))
    (tmp_path / "site.json").write_text("{}")
    secrets = {"": {"DB": "shared"}, "worker": {"HF_TOKEN": "of-worker"}, "ps": {"S3_TOKEN": "of-ps"}}
    environ = {
        "HF_TOKEN": "of-worker",
        "S3_TOKEN": "of-ps",
        "DB": "shared",
        "GREETING": "hello",
    }  # as the submitter's shell exports them
    host: Any = SimpleNamespace(agent=lambda: {"environ": environ})
    life = _Life(str(tmp_path), {"token": TOKEN, "secrets": secrets}, host)
    spec = life._agent_spec(Request("worker:0", 1, "worker", 0, 2**30, 1.0), ())
    assert spec["secrets"] == {"": {"DB": "shared"}, "worker": {"HF_TOKEN": "of-worker"}}
    assert spec["environ"] == {"HF_TOKEN": "of-worker", "DB": "shared", "GREETING": "hello"}
    assert "of-ps" not in json.dumps(spec)


@pytest.mark.parametrize(
    ("mode", "owner", "why"), [(0o702, 0, "others may write there"), (0o700, 65534, "it belongs to user 65534")]
)
def test_a_job_whose_storage_others_may_write_is_not_taken_up(tmp_path: Path, mode: int, owner: int, why: str) -> None:
    """Its log and listings say which files its tasks read, and where they send what they know."""
    need_root()
    storage = tmp_path / "job"
    storage.mkdir()
    (storage / "job.json").write_text(json.dumps(job_to(job_from(job(worker=role())))))
    (storage / "site.json").write_text("{}")
    (storage / "logs" / "master").mkdir(parents=True)
    os.chown(storage, owner, owner)
    storage.chmod(mode)
    certificate, key = certificate_and_key()
    parts: Any = SimpleNamespace(address="127.0.0.1", port=0, agents={}, proxies=(), tokens=None)
    life = _Life(str(storage), {"token": TOKEN, "secrets": {}}, ContainerHost(parts, "job-x", certificate, key))
    with pytest.raises(BadInput, match=why) as caught:
        asyncio.run(life.live())
    assert caught.value.anchor == "foreign-job"
