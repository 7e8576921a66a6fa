"""The master's listeners: both let in agents with the token alone, and large messages arrive whole."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from waiting import until_async
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from trainmaster.core.decide.drive import Drive
from trainmaster.core.frames import split
from trainmaster.core.input.shards import ShardTable
from trainmaster.core.machine.state import State, populate
from trainmaster.core.spec.reading import job_from
from trainmaster.master.connections import agents as agents_of_master
from trainmaster.master.connections.agents import PATH, Agents
from trainmaster.master.connections.serve import FRAME, TLS_BUFFER, AgentSocket, Application, Listener
from trainmaster.master.turn import Turns
from trainmaster.runtime.network.door import Crowd
from trainmaster.runtime.network.listeners import MASTER
from trainmaster.runtime.network.strangers import peer_of
from trainmaster.transports import cut

TOKEN = "secret"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Host:
    epoch = 1

    def __init__(self) -> None:
        self.turns = Turns(Drive(State(id="t-aaaaaa")))
        populate(self.turns.state, job_from({"name": "t", "roles": {"worker": {"command": "true", "replicas": 2}}}))
        self.told: list[object] = []
        self.gone: list[object] = []
        self.job_warnings: list[int] = []
        self.said: asyncio.Queue[object] = asyncio.Queue()

    def tell(self, *stimuli: object) -> None:
        self.told += stimuli

    def doubt(self, epoch: int) -> None:
        self.job_warnings.append(epoch)

    async def waited_for(self, connection: object) -> bool:
        return False

    def lost(self, connection: object) -> None:
        self.gone.append(connection)

    async def receive(self, connection: object, message: object) -> None:
        self.said.put_nowait(message)


async def _conversation(agents: Agents, host: Host, connection: ClientConnection) -> None:
    """Hello and welcome, then a message of many frames each way."""
    await connection.send(json.dumps({"type": "hello", "v": "1.0", "task": "worker:0", "serial": 1, "epoch": 0}))
    assert json.loads(await connection.recv())["type"] == "welcome"
    large = {"type": "sample", "text": "x" * (4 * TLS_BUFFER * 10)}
    for frame in split(large):
        await connection.send(frame)
    assert await asyncio.wait_for(host.said.get(), 30) == large
    assert agents.connections["worker:0", 1].send(large)
    got = [await connection.recv() for _ in split(large)]
    assert "".join(json.loads(frame)["data"] for frame in got) == json.dumps(large, separators=(",", ":"))


def test_agents_of_this_machine(tmp_path: Path) -> None:
    async def scene() -> None:
        host = Host()
        agents = Agents(host)  # type: ignore[arg-type]
        path = str(tmp_path / "agents.sock")
        listener = AgentSocket(path, TOKEN)
        await listener.serve(agents)
        for place, headers in ((PATH, {}), (PATH, {"Authorization": "Bearer wrong"}), ("/other", BEARER)):
            with pytest.raises(InvalidStatus) as refused:
                await unix_connect(path, f"ws://localhost{place}", additional_headers=headers)
            assert refused.value.response.status_code == 403
        async with unix_connect(path, f"ws://localhost{PATH}", additional_headers=BEARER, max_size=FRAME) as connection:
            await _conversation(agents, host, connection)
            await connection.send("no JSON")
            with pytest.raises(ConnectionClosed):
                await connection.recv()
        assert not agents.connections
        assert len(host.gone) == 1
        async with unix_connect(path, f"ws://localhost{PATH}", additional_headers=BEARER) as connection:
            await connection.send(
                json.dumps({"type": "hello", "v": "1.0", "task": "worker:9", "serial": 1, "epoch": 0})
            )
            assert json.loads(await connection.recv())["type"] == "refused"
        await listener.close()

    asyncio.run(scene())


def test_a_huge_epoch_out_of_a_hello_stops_no_master(tmp_path: Path) -> None:
    """A holder of the job's token could end each master with one message."""

    async def scene() -> None:
        host = Host()
        agents = Agents(host)  # type: ignore[arg-type]
        path = str(tmp_path / "agents.sock")
        listener = AgentSocket(path, TOKEN)
        await listener.serve(agents)
        hello = {"type": "hello", "v": "1.0", "task": "worker:0", "serial": 1}
        async with unix_connect(path, f"ws://localhost{PATH}", additional_headers=BEARER) as connection:
            await connection.send(json.dumps({**hello, "epoch": 2**52}))
            assert json.loads(await connection.recv())["reason"] == "stale-epoch"
        assert host.job_warnings == [
            2**52
        ]  # as the shell takes it: test_an_epoch_that_an_agent_names_makes_a_master_look_and_go_on
        async with unix_connect(path, f"ws://localhost{PATH}", additional_headers=BEARER) as connection:
            await connection.send(json.dumps({**hello, "epoch": 1}))
            assert json.loads(await connection.recv())["type"] == "welcome"
        await listener.close()

    asyncio.run(scene())


def test_an_agent_that_says_malformed_what_it_holds_is_refused_and_its_connection_stays(tmp_path: Path) -> None:
    hello = {"type": "hello", "v": "1.0", "task": "worker:0", "serial": 1, "epoch": 0, "attempt": 1}

    async def scene() -> None:
        host = Host()
        host.turns.state.shards["train"] = ShardTable.make([("f", 100)], name="train")
        agents = Agents(host)  # type: ignore[arg-type]
        path = str(tmp_path / "agents.sock")
        listener = AgentSocket(path, TOKEN)
        await listener.serve(agents)
        async with unix_connect(path, f"ws://localhost{PATH}", additional_headers=BEARER) as first:
            await first.send(json.dumps({**hello, "holds": {"train": [[5, 7]]}}))
            assert json.loads(await first.recv())["drop"] == {"train": [[5, 7]]}
            before = dict(agents.connections)
            async with unix_connect(path, f"ws://localhost{PATH}", additional_headers=BEARER) as second:
                await second.send(json.dumps({**hello, "holds": {"train": "no ranges"}}))
                refused = json.loads(await second.recv())
            assert (refused["type"], refused["reason"]) == ("refused", "malformed")
            assert agents.connections == before
            assert agents.connections["worker:0", 1].open
        await listener.close()

    asyncio.run(scene())


def test_an_agent_whose_hello_is_not_heard_in_time_may_call_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal ended it with its program, also where the master had been stopped and the hello lay unread."""
    monkeypatch.setattr(agents_of_master, "HELLO_WITHIN", 0.05)

    async def scene() -> None:
        agents = Agents(Host())  # type: ignore[arg-type]
        path = str(tmp_path / "agents.sock")
        listener = AgentSocket(path, TOKEN)
        await listener.serve(agents)
        async with unix_connect(path, f"ws://localhost{PATH}", additional_headers=BEARER) as connection:
            with pytest.raises(ConnectionClosed):
                await connection.recv()
        await listener.close()

    asyncio.run(scene())


def test_agents_under_tls(tmp_path: Path) -> None:
    async def scene() -> None:
        host = Host()
        agents = Agents(host)  # type: ignore[arg-type]
        server, client = _contexts(tmp_path)

        def rest() -> object:
            raise AssertionError

        listener = Listener(Application(agents, TOKEN, rest))  # type: ignore[arg-type]
        bound = socket.create_server(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        await listener.on_tcp(bound, server)
        url = f"wss://127.0.0.1:{port}{PATH}"
        with pytest.raises(InvalidStatus):
            await connect(url, ssl=client)
        async with connect(url, ssl=client, additional_headers=BEARER, max_size=FRAME) as connection:
            await _conversation(agents, host, connection)
        await listener.close()

    asyncio.run(scene())


def test_a_connection_that_is_closed_twice_keeps_no_listener_open(tmp_path: Path) -> None:
    """In Debian's Python 3.11.2 such a connection cannot be aborted, and raises."""

    async def scene() -> None:
        server, client = _contexts(tmp_path)

        async def nothing(scope: object, receive: object, send: object) -> None: ...

        listener = Listener(nothing)
        bound = socket.create_server(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        await listener.on_tcp(bound, server)
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        writer.transport.pause_reading()  # nor does it hear that the connection is closed
        await until_async(lambda: listener._state.connections)
        (connection,) = listener._state.connections
        for _ in range(2):
            connection.transport.close()
        await listener.close()
        cut(writer.transport)

    asyncio.run(scene())


def _contexts(place: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "trainmaster")]), datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    made = made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (place / "both.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(pem) + plain)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(place / "both.pem")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    return server, client


def test_every_address_of_the_machine_has_the_one_port_that_is_reported() -> None:
    async def run() -> None:
        async def nothing(scope: object, receive: object, send: object) -> None: ...

        listener = Listener(nothing)
        bound = MASTER.at_address()
        port = bound.getsockname()[1]
        await listener.on_tcp(bound)
        try:
            for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
        finally:
            await listener.close()

    for _ in range(5):
        asyncio.run(run())


# -- strangers: connections that have not shown the token --


class Reached:
    """A listener for agents under TLS on the loopback interface, whose strangers are limited."""

    def __init__(self, folder: Path, **limits: float) -> None:
        self.host = Host()
        self.server, self.client = _contexts(folder)
        application = Application(Agents(self.host), TOKEN, lambda: _unauthorized)  # type: ignore[arg-type]
        self.crowd = Crowd(1000, **limits)  # type: ignore[arg-type]
        self.listener = Listener(application, application.trusts, self.crowd)
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Reached:
        bound = socket.create_server(("127.0.0.1", 0))
        self.port = bound.getsockname()[1]
        await self.listener.on_tcp(bound, self.server)
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            cut(writer.transport)
        await self.listener.close()

    async def open(self, text: bytes = b"", *, tls: bool = True, peer: str = "127.0.0.1") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.client if tls else None, local_addr=(peer, 0)
        )
        self._writers.append(writer)
        writer.write(text)
        return reader

    def agent(self, peer: str) -> connect:
        url = f"wss://127.0.0.1:{self.port}{PATH}"
        return connect(url, ssl=self.client, additional_headers=BEARER, local_addr=(peer, 0))


async def _unauthorized(scope: object, receive: object, send: object) -> None:
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]


async def _ended(reader: asyncio.StreamReader) -> bool:
    """Read until the other end has closed the connection."""
    try:
        async with asyncio.timeout(30):
            while await reader.read(4096):
                pass
    except ConnectionError:  # it was reset
        return True
    return True


def test_connections_that_never_show_the_token_are_cut_whatever_they_have_done(tmp_path: Path) -> None:
    hello = {"type": "hello", "v": "1.0", "task": "worker:0", "serial": 1, "epoch": 0}

    async def scene() -> None:
        async with Reached(tmp_path, trusted_within=1.0) as reached, reached.agent("127.0.0.1") as agent:
            await agent.send(json.dumps(hello))
            assert json.loads(await agent.recv())["type"] == "welcome"
            strangers = [
                await reached.open(tls=False),  # no handshake
                await reached.open(b"\x16\x03\x01\x02\x00", tls=False),  # a handshake that stops
                await reached.open(),  # a handshake, and no request
                await reached.open(b"GET / HTTP/1.1\r\nHost:"),  # a request that stops
                await reached.open(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n"),  # without the token
                await reached.open(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"),
            ]
            await until_async(lambda: len(reached.crowd.strangers) >= 4)
            assert all(await asyncio.gather(*map(_ended, strangers)))
            await until_async(lambda: not reached.listener._door.opening)
            assert not reached.crowd.strangers
            await (await agent.ping())  # the agent's connection is older than any of them

    asyncio.run(scene())


def test_a_peer_with_many_silent_connections_keeps_no_agent_of_another_out(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Reached(tmp_path, of_a_peer=8, of_all=12) as reached:
            flood = [await reached.open(tls=False) for _ in range(20)]
            closed = [asyncio.create_task(_ended(reader)) for reader in flood[8:]]
            assert all(await asyncio.gather(*closed)), "what is beyond the limit of a peer is closed at once"
            assert len(reached.crowd.strangers) == 8
            for _ in range(2):  # who showed the token is counted no longer
                async with reached.agent("127.0.0.2") as agent:
                    await (await agent.ping())
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await reached.agent("127.0.0.1")
            for n in range(3, 8):
                await reached.open(tls=False, peer=f"127.0.0.{n}")
            assert await _ended(flood[0]), "beyond the limit of all peers the oldest of the largest peer goes"
            assert len(reached.crowd.strangers) == 12
            reached._writers[1].close()  # one that goes by itself makes room
            await until_async(lambda: not all(stranger.is_open for stranger in reached.crowd.strangers))
            async with reached.agent("127.0.0.2") as agent:
                await (await agent.ping())

    asyncio.run(scene())


def test_two_peers_with_all_the_room_there_is_keep_no_agent_of_a_third_out(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Reached(tmp_path, of_a_peer=4, of_all=8) as reached:
            for n in (2, 3):
                for _ in range(4):
                    await reached.open(tls=False, peer=f"127.0.0.{n}")
            await until_async(lambda: len(reached.crowd.strangers) == 8)
            async with reached.agent("127.0.0.4") as agent:
                await (await agent.ping())

    asyncio.run(scene())


def test_a_rush_of_peers_with_one_connection_each_cuts_nobody_in_the_middle() -> None:
    async def scene() -> None:
        crowd, (ours, theirs) = Crowd(32), socket.socketpair()
        first = [crowd.enter(ours, f"10.0.0.{n}") for n in range(8)]
        assert [crowd.enter(ours, f"10.0.1.{n}") for n in range(8)] == [None] * 8
        assert list(crowd.strangers) == first
        crowd.close()
        ours.close()
        theirs.close()

    asyncio.run(scene())


def test_descriptors_are_kept_for_agents() -> None:
    async def scene() -> None:
        crowd, (ours, theirs) = Crowd(32), socket.socketpair()
        entered = [crowd.enter(ours, f"10.0.0.{n}") for n in range(20)]
        assert sum(stranger is not None for stranger in entered) == 8
        crowd.close()
        ours.close()
        theirs.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("address", "peer"),
    [("10.0.0.7", "10.0.0.7"), ("::ffff:10.0.0.7", "10.0.0.7"), ("2001:db8:1:2:3::9", "2001:db8:1:2::/64"), ("fe80::1%eth0", "fe80::/64")],
)  # fmt: skip
def test_strangers_are_counted_by_machine(address: str, peer: str) -> None:
    assert peer_of(address) == peer
