"""The agent's channel against a master of this test: reports sent again, stale epochs refused, garbage survived, the lease of the grace."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from waiting import until_async
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.exceptions import ConnectionClosed

from trainmaster.agent.input.leasing import Leasing
from trainmaster.agent.link import channel
from trainmaster.agent.link.channel import Channel, Link
from trainmaster.agent.link.outbox import Outbox
from trainmaster.core.frames import Joiner, split


class Owner:
    """An agent that only remembers."""

    def __init__(self) -> None:
        self.messages: list[Mapping[str, Any]] = []
        self.ended = ""
        self.welcomes: list[Mapping[str, Any]] = []
        self.pieces: list[dict[str, Any]] = []

    def hello(self) -> dict[str, Any]:
        return {"task": "worker:0", "serial": 1, "holds": {"ä" * 40_000: []}}

    def receive(self, message: Mapping[str, Any]) -> None:
        self.messages.append(message)

    def log_piece(self) -> dict[str, Any] | None:
        return self.pieces.pop(0) if self.pieces else None

    def connected(self, welcome: Mapping[str, Any]) -> None:
        self.welcomes.append(welcome)

    def disconnected(self) -> None:
        self.pieces.clear()

    def over(self, why: str) -> None:
        self.ended = why


class Master:
    """A master that welcomes with `epoch` and says what it is told to."""

    def __init__(self, path: str) -> None:
        self.path, self.epoch, self.acked, self.ack = path, 1, 0, True
        self.refuse: dict[str, Any] | None = None
        self.hellos: list[dict[str, Any]] = []
        self.received: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.connection: ServerConnection | None = None
        self.before_welcome: str | None = None

    async def serve(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.tokens.append(connection.request.headers.get("Authorization"))
        joiner = Joiner()
        with contextlib.suppress(ConnectionClosed):
            async for frame in connection:
                assert len(frame) <= 64 * 1024
                message = joiner.add(frame)
                if message is None:
                    continue
                if message["type"] == "hello":
                    self.hellos.append(message)
                    if self.before_welcome is not None:
                        await connection.send(self.before_welcome)
                    answer = self.refuse or {"type": "welcome", "epoch": self.epoch, "acked": self.acked}
                    await self.say(answer, connection)
                    self.connection = connection
                else:
                    self.received.append(message)
                    if message["type"] == "report" and self.ack:
                        self.acked = max(self.acked, message["n"])
                        await self.say({"type": "ack", "n": message["n"]}, connection)

    async def say(self, message: dict[str, Any], connection: ServerConnection | None = None) -> None:
        connection = connection or self.connection
        assert connection is not None
        for frame in split(message):
            await connection.send(frame)

    async def cut(self) -> None:
        assert self.connection is not None
        self.connection.transport.abort()
        await self.connection.wait_closed()

    def numbers(self) -> list[int]:
        return [message["n"] for message in self.received if message["type"] == "report"]


@contextlib.asynccontextmanager
async def talking(place: Path, grace: float = 30.0) -> AsyncIterator[tuple[Master, Channel, Owner]]:
    """A master and an agent's channel to it."""
    master, owner = Master(str(place / "master.sock")), Owner()
    link = Channel(Link("secret", grace, master.path), owner)
    async with unix_serve(master.serve, master.path, compression=None):
        running = [asyncio.create_task(act) for act in (link.run(), link.watch_grace())]
        try:
            yield master, link, owner
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def converse(tmp_path: Path, act: Callable[[Master, Channel, Owner], Awaitable[None]], grace: float = 30.0) -> None:
    async def run() -> None:
        async with talking(tmp_path, grace) as (master, link, owner):
            await act(master, link, owner)

    asyncio.run(run())


def test_a_hello_larger_than_a_frame_comes_whole_with_the_token(tmp_path: Path) -> None:
    async def act(master: Master, link: Channel, owner: Owner) -> None:
        await until_async(lambda: link.connected)
        assert master.hellos[0]["holds"] == {"ä" * 40_000: []}
        assert (master.hellos[0]["v"], master.hellos[0]["epoch"]) == ("1.0", 0)
        assert master.tokens == ["Bearer secret"]

    converse(tmp_path, act)


def test_reports_come_once_in_order_over_cut_connections(tmp_path: Path) -> None:
    async def act(master: Master, link: Channel, owner: Owner) -> None:
        for n in range(1, 201):
            link.report("saved", 1, save=str(n))
            if n % 40 == 0:
                await until_async(lambda: link.connected and len(master.hellos) >= 1)
                await master.cut()
        await until_async(lambda: link.outbox.empty)
        assert list(dict.fromkeys(master.numbers())) == list(range(1, 201))
        first = {m["n"]: m["save"] for m in reversed(master.received)}
        assert first == {n: str(n) for n in range(1, 201)}

    converse(tmp_path, act)


def test_a_link_that_is_cut_on_purpose_is_silent_and_then_all_is_sent(tmp_path: Path) -> None:
    async def act(master: Master, link: Channel, owner: Owner) -> None:
        await until_async(lambda: link.connected)
        assert master.connection is not None
        await master.say({"type": "cut", "seconds": 1.5})
        await until_async(lambda: not link.connected)
        link.report("saved", 1, save="1")
        pong = await master.connection.ping()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(pong), 0.5)
        assert (master.numbers(), len(master.hellos), owner.ended) == ([], 1, "")
        await until_async(lambda: link.connected and link.outbox.empty)
        assert (master.numbers(), len(master.hellos)) == ([1], 2)
        with pytest.raises(ConnectionClosed):
            await pong

    converse(tmp_path, act)


def test_the_grace_runs_out_in_a_longer_cut(tmp_path: Path) -> None:
    async def act(master: Master, link: Channel, owner: Owner) -> None:
        await until_async(lambda: link.connected)
        await master.say({"type": "cut", "seconds": 1000.0})
        await until_async(lambda: owner.ended)
        assert owner.ended == "grace"
        assert len(master.hellos) == 1

    converse(tmp_path, act, grace=1.0)


def test_what_was_not_acknowledged_is_sent_again(tmp_path: Path) -> None:
    async def act(master: Master, link: Channel, owner: Owner) -> None:
        master.ack = False
        link.report("ready", 1, address="a")
        link.report("started", 1, pid=2)
        await until_async(lambda: master.numbers() == [1, 2])
        master.acked, master.ack = 1, True
        await master.cut()
        await until_async(lambda: link.outbox.empty)
        assert master.numbers() == [1, 2, 2]

    converse(tmp_path, act)


def test_progress_is_reported_at_most_once_a_second_and_the_newest_wins(tmp_path: Path) -> None:
    async def act(master: Master, link: Channel, owner: Owner) -> None:
        await until_async(lambda: link.connected)
        for n in range(1000):
            link.report("progress", 1, value=n / 1000)
        link.report("ended", 1, reason="exit")
        await until_async(lambda: link.outbox.empty)
        told = [(m["kind"], m.get("value")) for m in master.received]
        assert told == [("progress", 0.999), ("ended", None)]

    converse(tmp_path, act)


def test_a_storage_that_does_not_answer_keeps_no_agent_from_its_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "LOOK_UP", 0.01)
    asked, answer = threading.Event(), threading.Event()

    def find(epoch: int) -> None:
        asked.set()
        answer.wait()

    async def act(master: Master, link: Channel, owner: Owner) -> None:
        link.find = find
        await until_async(lambda: link.connected)
        await master.cut()
        await until_async(asked.is_set)
        try:
            await until_async(lambda: len(master.hellos) >= 2 and link.connected)
            link.find = None
        finally:
            answer.set()

    converse(tmp_path, act)


def test_orders_of_a_lower_epoch_are_refused(tmp_path: Path) -> None:
    async def act(master: Master, link: Channel, owner: Owner) -> None:
        master.epoch = 5
        await until_async(lambda: link.connected)
        for epoch in (4, 5, None, "6", True, 7, 6):
            await master.say({"type": "order", "verb": "save", "id": str(epoch), "attempt": 1, "epoch": epoch})
        await master.say({"type": "follow", "id": 1, "attempt": 1, "offset": 0})
        await until_async(lambda: owner.messages and owner.messages[-1]["type"] == "follow")
        assert [m["id"] for m in owner.messages] == ["5", "7", 1]
        assert link.epoch == 7

    converse(tmp_path, act)


def test_a_master_of_a_lower_epoch_is_not_followed(tmp_path: Path) -> None:
    async def act(master: Master, link: Channel, owner: Owner) -> None:
        master.epoch = 5
        await until_async(lambda: link.connected)
        master.epoch = 4
        await master.cut()
        await until_async(lambda: len(master.hellos) >= 3)
        assert not link.connected
        assert master.hellos[-1]["epoch"] == 5
        master.epoch = 6
        await until_async(lambda: link.connected)
        assert owner.ended == ""

    converse(tmp_path, act)


def test_a_stale_master_ends_nobody_and_a_refusal_ends_the_agent(tmp_path: Path) -> None:
    async def act(master: Master, link: Channel, owner: Owner) -> None:
        master.refuse = {"type": "refused", "reason": "stale-epoch", "detail": "a later master exists"}
        await until_async(lambda: len(master.hellos) >= 2)
        assert owner.ended == ""
        master.refuse = {"type": "refused", "reason": "written-off", "detail": "container 1 is not the present one"}
        await until_async(lambda: owner.ended)
        assert owner.ended == "written-off"

    converse(tmp_path, act)


@pytest.mark.parametrize(
    "garbage", ["", "[]", "{", '{"part": [1, 2], "data": "x"}', '{"type": "welcome"}', "x" * 100_000, "[" * 60_000]
)
def test_garbage_costs_a_connection_and_no_more(tmp_path: Path, garbage: str) -> None:
    async def act(master: Master, link: Channel, owner: Owner) -> None:
        link.report("ready", 1)
        master.before_welcome = garbage
        await until_async(lambda: len(master.hellos) >= 2)
        master.before_welcome = None
        await until_async(lambda: link.outbox.empty)
        assert owner.ended == ""

    converse(tmp_path, act)


def test_garbage_after_the_welcome_costs_a_connection_and_no_more(tmp_path: Path) -> None:
    async def act(master: Master, link: Channel, owner: Owner) -> None:
        await until_async(lambda: link.connected)
        await master.say({"type": "ack", "n": "1"})
        await master.say({"type": "new-in-a-later-version"})
        assert master.connection is not None
        await master.connection.send("no frame")
        await until_async(lambda: len(master.hellos) == 2 and link.connected)
        assert [m["type"] for m in owner.messages] == ["ack", "new-in-a-later-version"]

    converse(tmp_path, act)


def test_the_grace_runs_from_the_last_answered_ping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = [1000.0], [0]

    def boottime() -> float:
        looks[0] += 1
        return clock[0]

    monkeypatch.setattr(channel, "boottime", boottime)
    monkeypatch.setattr(channel, "PING_EVERY", 0.01)
    monkeypatch.setattr(channel, "LOOK", 0.01)

    async def act(master: Master, link: Channel, owner: Owner) -> None:
        await until_async(lambda: link.connected)
        clock[0] += 25
        await until_async(lambda: link.remaining == 30)  # a ping sent now was answered
        master.refuse = {"type": "refused", "reason": "stale-epoch"}
        await master.cut()
        await until_async(lambda: not link.connected)
        clock[0] += 29
        seen = looks[0]
        await until_async(lambda: looks[0] >= seen + 20)  # by the watch, and by each try to connect
        assert owner.ended == ""
        clock[0] += 2
        await until_async(lambda: owner.ended)
        assert owner.ended == "grace"

    converse(tmp_path, act)


def test_who_was_begun_before_its_master_waits_longer_for_it_and_has_the_grace_from_its_hello_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(channel, "boottime", lambda: clock[0])
    monkeypatch.setattr(channel, "LOOK", 0.01)

    async def run() -> None:
        master, owner = Master(str(tmp_path / "master.sock")), Owner()
        link = Channel(Link("secret", 30.0, master.path, unmet=600.0), owner)
        running = [asyncio.create_task(act) for act in (link.run(), link.watch_grace())]
        clock[0] += 500
        assert link.remaining == 100
        async with unix_serve(master.serve, master.path, compression=None):
            await until_async(lambda: link.connected)
            assert link.remaining == 30
            master.refuse = {"type": "refused", "reason": "stale-epoch"}
            await master.cut()
            clock[0] += 31
            await until_async(lambda: owner.ended)
            assert owner.ended == "grace"
        await asyncio.gather(*running)

    asyncio.run(run())


def test_a_successor_that_cannot_be_started_costs_neither_the_connection_nor_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, tried = [1000.0], [0]
    monkeypatch.setattr(channel, "boottime", lambda: clock[0])

    async def unreachable() -> None:
        tried[0] += 1
        raise OSError("no process can be started")

    async def act(master: Master, link: Channel, owner: Owner) -> None:
        link.unreachable = unreachable
        await until_async(lambda: link.connected)
        await master.cut()
        await until_async(lambda: len(master.hellos) == 2 and link.connected)
        master.refuse = {"type": "refused", "reason": "stale-epoch"}
        await master.cut()
        await until_async(lambda: tried[0] >= 3)
        clock[0] += 31
        await until_async(lambda: owner.ended)
        assert owner.ended == "grace"

    converse(tmp_path, act)


def test_a_master_that_does_not_answer_pings_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "SILENT", 0.3)

    async def act(link_path: str, owner: Owner) -> int:
        """A server that accepts and welcomes, then is deaf."""
        connections = 0

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            from websockets.server import ServerProtocol

            protocol = ServerProtocol()
            connections += 1
            while (data := await reader.read(65536)) and not protocol.handshake_exc:
                protocol.receive_data(data)
                for event in protocol.events_received():
                    if hasattr(event, "headers"):
                        protocol.send_response(protocol.accept(event))
                        text = json.dumps({"type": "welcome", "epoch": 1, "acked": 0}).encode()
                        protocol.send_text(text)
                        writer.write(b"".join(protocol.data_to_send()))
            writer.close()

        server = await asyncio.start_unix_server(deaf, link_path)
        link = Channel(Link("secret", 30.0, link_path), owner)
        running = asyncio.create_task(link.run())
        await until_async(lambda: connections >= 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        server.close()
        return connections

    assert asyncio.run(act(str(tmp_path / "deaf.sock"), Owner())) >= 2


def test_reports_go_before_logs_and_samples(tmp_path: Path) -> None:
    async def act(master: Master, link: Channel, owner: Owner) -> None:
        await until_async(lambda: link.connected)
        owner.pieces = [{"type": "log", "id": 1, "data": "x" * 10_000, "n": n} for n in range(100)]
        link.sample({"type": "sample", "cpu": 1})
        link.sample({"type": "sample", "cpu": 2})
        link.report("ready", 1)
        await until_async(lambda: len(master.received) == 102)
        assert [m["type"] for m in master.received] == ["report", *["log"] * 100, "sample"]
        assert master.received[-1]["cpu"] == 2

    converse(tmp_path, act)


def test_an_outbox_numbers_in_the_order_of_happening() -> None:
    box = Outbox()
    box.add("progress", 1, {"value": 0.1})
    first = box.next(0.0)
    assert first is not None
    box.add("progress", 1, {"value": 0.2})
    assert box.next(0.5) is None
    assert box.due(0.5) == 0.5
    box.add("progress", 2, {"value": 0.0})
    box.add("ended", 1, {})
    told = [report for _ in range(4) if (report := box.next(0.5))]
    assert [(r["n"], r["kind"], r["attempt"]) for r in told] == [
        (2, "progress", 1),
        (3, "ended", 1),
        (4, "progress", 2),
    ]
    box.acknowledge(4)
    assert box.empty


def test_an_outbox_stays_small_whatever_is_said_while_the_master_is_away() -> None:
    box = Outbox()
    box.add("started", 1, {})
    for n in range(10_000):
        box.add("progress", 1, {"step": n})
        box.add("warned", 1, {"what": "checkpoint", "detail": f"try {n}"})
        box.add("warned", 1, {"what": "log", "bytes": n})
    box.add("ended", 1, {"reason": "exit"})
    told = [report for _ in range(10_000) if (report := box.next(100.0))]
    assert [(r["kind"], r.get("step"), r.get("detail"), r.get("bytes")) for r in told] == [
        ("started", None, None, None),
        ("progress", 9999, None, None),
        ("warned", None, "try 9999", None),
        ("warned", None, None, 9999),
        ("ended", None, None, None),
    ]


def test_done_shards_are_durable_before_more_are_asked_for(tmp_path: Path) -> None:
    async def act(master: Master, link: Channel, owner: Owner) -> None:
        leasing = Leasing(link)
        leasing.attempt = 2
        await until_async(lambda: link.connected)
        asking = asyncio.ensure_future(leasing.lease("train", 2, {"ranges": [[1, 2]], "records": [7]}, [[9, 10]]))
        await until_async(lambda: len(master.received) == 2)
        done, asked = master.received
        assert (done["kind"], done["input"], done["ranges"], done["records"]) == ("shards-done", "train", [[1, 2]], [7])
        assert (asked["attempt"], asked["input"], asked["want"], asked["back"]) == (2, "train", 2, [[9, 10]])
        await master.say({"type": "lease", "id": asked["id"], "shards": [[4, 0, 0, 9]], "files": [["f", "lines"]]})
        await until_async(lambda: bool(owner.messages))
        leasing.answered(owner.messages.pop())
        assert (await asking)["shards"] == [[4, 0, 0, 9]]
        asking = asyncio.ensure_future(leasing.lease("train", 2, {}, []))
        await until_async(lambda: len(master.received) == 3)
        leasing.disconnected()
        with pytest.raises(ConnectionError):
            await asking

    converse(tmp_path, act)


def test_shards_leased_to_an_agent_that_slept_meanwhile_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(channel, "boottime", lambda: clock[0])
    monkeypatch.setattr(channel, "PING_EVERY", 1000.0)

    async def act(master: Master, link: Channel, owner: Owner) -> None:
        clock[0] += 1
        await until_async(lambda: link.remaining == 30)  # no ping is on its way
        loop, slept = asyncio.get_running_loop(), 0.0
        awake = loop.time
        monkeypatch.setattr(loop, "time", lambda: awake() + slept)
        leasing = Leasing(link)
        asking = asyncio.ensure_future(leasing.lease("train", 1, {}, []))
        await until_async(lambda: master.received)
        slept = 20.0
        await master.say(
            {"type": "lease", "id": master.received[0]["id"], "shards": [[4, 0, 0, 9]], "files": [["f", "lines"]]}
        )
        await until_async(lambda: bool(owner.messages))
        leasing.answered(owner.messages.pop())
        assert (await asking)["shards"] == [[4, 0, 0, 9]]

    converse(tmp_path, act)


def test_every_welcome_is_handed_on(tmp_path: Path) -> None:
    async def act(master: Master, link: Channel, owner: Owner) -> None:
        await until_async(lambda: link.connected)
        await master.cut()
        await until_async(lambda: len(owner.welcomes) == 2)
        assert [welcome["epoch"] for welcome in owner.welcomes] == [1, 1]

    converse(tmp_path, act)
