"""Each row of the table of listeners is attacked over real sockets: an attacker gets nothing, harms nothing, and costs little.

`tests/attacked` has the servers, with the lies that fit each; the attacks here are the same for all.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from attacked import DEEP, Scene, Target, at_port, heard, masters, of_programs, of_spark, said, scene
from conftest import Home
from waiting import until
from websockets.exceptions import WebSocketException

from trainmaster.runtime.network import listeners as table
from trainmaster.runtime.network.listeners import BELL, ROWS, Row

SERVERS: dict[Callable[[Scene], dict[Row, Target]], str] = {
    masters.agents_here: "AGENTS_HERE",
    masters.readers_here: "READERS_HERE",
    masters.master: "MASTER PAGE",
    masters.bell: "BELL",
    masters.ui: "PAGES PAGES_OF_PROGRAMS",
    of_programs.programs: "PROGRAMS",
    of_programs.feed: "FEED_HERE FEED",
    of_programs.parameters: "PARAMETERS_HERE PARAMETERS_OF_HOST PARAMETERS",
    of_programs.ring: "RING",
    of_programs.queues: "QUEUES",
    of_spark.secrets_of_containers: "TICKETS",
    of_spark.application: "BRIDGE",
    of_spark.callbacks: "CALLBACKS",
    of_spark.submitter: "SUBMITTER",
    of_spark.reservations: "RESERVATIONS",
}
CHUNK = b"x" * 65536
ENDLESS = 64 << 20  # bytes: far more than sockets hold
MOST = 4 << 20  # bytes of memory for a stranger
GARBAGE = (
    random.Random(1).randbytes(4096) + b"\r\n\r\n",
    b"\xff\xfe\xfd\n" * 20 + b"\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: \xff\r\n\r\n" + b"\0" * 64 + b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512) + b"\r\n\r\n",  # a TLS handshake
    b"[" * DEEP + b"\r\n\r\n",
)


def test_every_row_is_attacked() -> None:
    names = {name for names in SERVERS.values() for name in names.split()}
    assert names == {name for name, row in vars(table).items() if isinstance(row, Row)}
    assert {getattr(table, name) for name in names} == set(ROWS)


@pytest.mark.parametrize("servers", SERVERS, ids=list(SERVERS.values()))
def test_an_attacker_gets_nothing_and_harms_nothing(
    servers: Callable[[Scene], dict[Row, Target]], home: Home, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with scene(home.runtime, monkeypatch) as present:
        targets = servers(present)
        assert set(targets) == {getattr(table, name) for name in SERVERS[servers].split()}
        for row, target in targets.items():
            serves(target)
            for name, attack in attacks(row, target):
                suffers(target, attack, f"{row.purpose}: {name}")
                serves(target)
    assert not present.errors
    assert not [record for record in caplog.records if record.exc_info and record.name != "websockets.client"]
    assert "Traceback" not in "".join(capfd.readouterr())


def suffers(target: Target, attack: Callable[[], bytes], name: str) -> None:
    """Attack. An attacker who was slow, and cut before it was ready, tries again."""
    before = target.state()

    def attempt() -> tuple[bytes] | None:
        try:
            return (attack(),)
        except (OSError, EOFError, WebSocketException):
            return None

    (content,) = until(attempt, what=name)
    assert not [secret for secret in target.secrets if secret.encode() in content], name
    until(lambda: target.state() == before, what=f"nothing has changed by {name}")


def serves(target: Target) -> None:
    """Wait until a good client is served: one that is slower than a stranger may be tries again."""
    reasons: list[Exception] = []

    def is_served() -> bool:
        try:
            target.good()
        except (OSError, EOFError, AssertionError) as error:
            reasons.append(error)
            return False
        return True

    until(is_served, what=lambda: repr(reasons[-1:]))


def attacks(row: Row, target: Target) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield what is tried at a row, by name."""
    if row is BELL:
        for number, content in enumerate((b"", *GARBAGE)):
            yield f"garbage {number}", partial(sends, target, content)
        return
    yield "idle", partial(lingers, target, b"")
    yield "slow", partial(lingers, target, GARBAGE[3][:7])
    for number, content in enumerate(GARBAGE):
        yield f"garbage {number}", partial(said, target.connect, content)
    for number, content in enumerate(target.floods):
        yield f"flood {number}", partial(floods, target, content, ENDLESS)
    for number, content in enumerate(target.bodies):
        yield f"body {number}", partial(floods, target, content, ENDLESS // 4)
    if target.port:
        yield "replayed", partial(replays, target)
    if target.is_secured:
        plain = at_port(target.port)
        yield "no TLS", partial(said, plain, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield "TLS that breaks off", partial(said, plain, b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03", bytes(64))
        yield "another ALPN", partial(speaks_http_2, target.port)
    yield from target.lies.items()


def sends(target: Target, content: bytes) -> bytes:
    with target.connect() as connection:
        connection.sendall(content)
    return b""


def lingers(target: Target, content: bytes) -> bytes:
    """Say this a byte at a time, and then nothing, while a good client comes."""
    connection = target.connect()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        for number in range(len(content)):
            connection.sendall(content[number : number + 1])
    if target.is_cut:
        return heard(connection)
    serves(target)
    connection.close()
    return b""


def floods(target: Target, begin: bytes, most: int) -> bytes:
    """Say so many bytes more, unless the connection is closed, which it must be before it is `ENDLESS`."""
    connection, sent = target.connect(), 0
    tracemalloc.start()
    try:
        with contextlib.suppress(ConnectionError, ssl.SSLError), connection:
            connection.sendall(begin)
            while sent < most:
                connection.sendall(CHUNK)
                sent += len(CHUNK)
        assert sent < ENDLESS
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()
    return b""


def replays(target: Target) -> bytes:
    """Say again all that a good client has said over a connection."""
    spoken = bytearray()

    def pass_on(source: socket.socket, sink: socket.socket, keep: bytearray) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                keep += piece
                sink.sendall(piece)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def relay(listener: socket.socket) -> None:
        with listener.accept()[0] as client, socket.create_connection(("127.0.0.1", target.port)) as server:
            back = threading.Thread(target=pass_on, args=(server, client, bytearray()))
            back.start()
            pass_on(client, server, spoken)
            back.join()

    def is_recorded() -> bool:
        spoken.clear()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            relaying = threading.Thread(target=relay, args=(listener,))
            relaying.start()
            try:
                target.good_at(listener.getsockname()[1])
            except (OSError, AssertionError):
                return False
            finally:
                relaying.join()
        return True

    until(is_recorded)
    return said(at_port(target.port), bytes(spoken))


def speaks_http_2(port: int) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return said(lambda: context.wrap_socket(at_port(port)()), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(64))
