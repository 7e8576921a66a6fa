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

from trainmaster.core.frames import split
from trainmaster.core.reading import job_from
from trainmaster.core.shards import ShardTable
from trainmaster.core.state import State, populate
from trainmaster.master.agents import PATH, Agents
from trainmaster.master.serve import FRAME, TLS_BUFFER, AgentSocket, Application, Listener, everywhere
from trainmaster.transports import cut

TOKEN = "secret"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Host:
    epoch = 1

    def __init__(self) -> None:
        self.state = State(id="t-aaaaaa")
        populate(self.state, job_from({"name": "t", "roles": {"worker": {"command": "true", "replicas": 2}}}))
        self.told: list[object] = []
        self.gone: list[object] = []
        self.said: asyncio.Queue[object] = asyncio.Queue()

    def tell(self, *stimuli: object) -> None:
        self.told += stimuli

    def superseded(self, epoch: int) -> None:
        raise AssertionError

    async def waited_for(self, connection: object) -> bool:
        return False

    def lost(self, connection: object) -> None:
        self.gone.append(connection)

    async def heard(self, connection: object, message: object) -> None:
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


def test_an_agent_that_says_malformed_what_it_holds_is_refused_and_its_connection_stays(tmp_path: Path) -> None:
    hello = {"type": "hello", "v": "1.0", "task": "worker:0", "serial": 1, "epoch": 0, "attempt": 1}

    async def scene() -> None:
        host = Host()
        host.state.shards["train"] = ShardTable.make([("f", 100)], name="train")
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


def test_every_address_of_the_machine_has_the_one_port_that_is_told() -> None:
    async def run() -> None:
        async def nothing(scope: object, receive: object, send: object) -> None: ...

        listener = Listener(nothing)
        bound = everywhere()
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
