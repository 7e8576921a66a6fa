"""Hadoop RPC against what real servers said once: word for word, cut, mixed up and damaged. Live ones: conformance/."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Seeds
from hadoop_frames import BOB, PLAYS, Pieces, play, playing, recordings
from hadoop_server import PROTOCOL, Responses, asked
from hypothesis import given
from hypothesis import strategies as st
from waiting import until_async

from trainmaster.hadoop import wire
from trainmaster.hadoop.conf import load
from trainmaster.hadoop.errors import (
    AuthenticationFailed,
    Garbled,
    HadoopError,
    RemoteError,
    Unreachable,
    WeakProtection,
    of_remote,
)
from trainmaster.hadoop.handshake import Handshake, Peer
from trainmaster.hadoop.rpc import Connection, Retry
from trainmaster.hadoop.security.auth import Auth, Kerberos, Simple
from trainmaster.hadoop.yarn import ResourceManager

ROOT = Path(__file__).parent.parent.parent
RECORDED = recordings()
ANSWERS = [
    "first",
    "RemoteError: IOException: on",
    "x" * 500,
    "RemoteError: IllegalArgumentException: nonesuch",
    "last",
]


def played(name: str, pieces: Pieces) -> list[str]:
    async def run() -> list[str]:
        async with playing(pieces) as port, asyncio.timeout(60):
            return await play(port, PLAYS[name])

    return asyncio.run(run())


# -- what was recorded --


@pytest.mark.parametrize("name", [name for name in PLAYS if name != "refused"])
def test_a_recorded_server_is_understood(name: str) -> None:
    assert played(name, RECORDED[name]) == ANSWERS


@pytest.mark.parametrize("name", ["simple", "privacy"])
def test_it_is_understood_byte_by_byte(name: str) -> None:
    bytewise = [(told, bytes([byte])) for told, said in RECORDED[name] for byte in said]
    assert played(name, bytewise) == ANSWERS


def test_a_refusal_is_every_callers_answer() -> None:
    said = played("refused", RECORDED["refused"])
    assert len(said) == 5
    for line in said:
        assert line.startswith("AuthenticationFailed: localhost:")
        assert line.endswith("refuses us: SIMPLE authentication is not enabled.  Available:[TOKEN]")


def test_who_came_with_a_token_does_not_go_on_by_name() -> None:
    """A server that takes names alone answers SUCCESS at once."""
    success = wire.frame(
        wire.delimited(wire.RpcResponseHeaderProto(callId=(1 << 32) + wire.SASL_CALL, status=wire.SUCCESS)),
        wire.delimited(wire.RpcSaslProto(state=wire.RpcSaslProto.SUCCESS)),
    )
    (said,) = played("token", [(1, success)])
    assert said.endswith("takes a user's name alone; we come with a token")


# -- whom we do not believe --


def offer(method: str, mechanism: str, challenge: bytes = b"") -> bytes:
    """A server's whole offer: one way to log in."""
    auth = wire.RpcSaslProto.SaslAuth(
        method=method, mechanism=mechanism, protocol="hdfs", serverId="localhost", challenge=challenge
    )
    return wire.frame(
        wire.delimited(wire.RpcResponseHeaderProto(callId=(1 << 32) + wire.SASL_CALL, status=wire.SUCCESS)),
        wire.delimited(wire.RpcSaslProto(state=wire.RpcSaslProto.NEGOTIATE, auths=[auth])),
    )


def test_an_offer_that_somebody_struck_the_better_words_from_is_refused(tmp_path: Path) -> None:
    """The offer of DIGEST-MD5 is protected by nothing: what the cluster really has is known from our configuration."""
    stripped = offer("TOKEN", "DIGEST-MD5", b'realm="default",nonce="abc",qop="auth",charset=utf-8,algorithm=md5-sess')

    async def run(secure: str) -> None:
        async with playing([(1, stripped)] * 2) as port:
            rows = {"yarn.resourcemanager.address": f"localhost:{port}", "hadoop.rpc.protection": secure}
            lines = "".join(
                f"<property><name>{name}</name><value>{value}</value></property>" for name, value in rows.items()
            )
            (tmp_path / "yarn-site.xml").write_text(f"<configuration>{lines}</configuration>")
            async with ResourceManager.of(load(tmp_path, {}), BOB) as manager:
                manager.login(BOB)  # a newer token changes nothing of it
                await manager.get_cluster_metrics(timeout=30.0)

    with pytest.raises(WeakProtection, match=r"offers protection auth, we take auth-conf .*hadoop\.rpc\.protection"):
        asyncio.run(run("privacy"))
    with pytest.raises(WeakProtection, match="offers protection auth, we take auth-conf, auth-int"):
        asyncio.run(run("privacy,integrity"))


def test_a_server_whose_principal_nobody_configured_is_not_believed() -> None:
    """A KDC knows many servers: any of them could answer for the NameNode."""
    handshake = Handshake(Peer("localhost", 8020), PROTOCOL, Kerberos(), client=bytes(16))
    handshake.begin()
    with pytest.raises(AuthenticationFailed, match=r"may be anybody: .* dfs\.namenode\.kerberos\.principal"):
        handshake.receive(offer("KERBEROS", "GSSAPI")[4:])


# -- what is damaged --


def cut(chance: random.Random, pieces: list[bytes]) -> list[bytes]:
    at = chance.randrange(len(pieces))
    return [*pieces[:at], pieces[at][: chance.randrange(len(pieces[at]))], *pieces[at + 1 :]]


def left_out(chance: random.Random, pieces: list[bytes]) -> list[bytes]:
    at = chance.randrange(len(pieces))
    return [*pieces[:at], b"", *pieces[at + 1 :]]


def flipped(chance: random.Random, pieces: list[bytes]) -> list[bytes]:
    at = chance.randrange(len(pieces))
    damaged = bytearray(pieces[at])
    for _ in range(chance.choice((1, 1, 2, 8))):
        damaged[min(int(chance.expovariate(1 / 20)), len(damaged) - 1)] ^= 1 << chance.randrange(8)
    return [*pieces[:at], bytes(damaged), *pieces[at + 1 :]]


def other_length(chance: random.Random, pieces: list[bytes]) -> list[bytes]:
    at = chance.randrange(len(pieces))
    length = chance.choice(
        (0, 1, 3, len(pieces[at]) - 5, len(pieces[at]) + 5, 1 << 20, wire.LIMIT, 1 << 31, (1 << 32) - 1)
    )
    return [*pieces[:at], length.to_bytes(4, "big") + pieces[at][4:], *pieces[at + 1 :]]


def swapped(chance: random.Random, pieces: list[bytes]) -> list[bytes]:
    one, other = chance.randrange(len(pieces)), chance.randrange(len(pieces))
    pieces[one], pieces[other] = pieces[other], pieces[one]
    return pieces


def foreign(chance: random.Random, pieces: list[bytes]) -> list[bytes]:
    theirs = RECORDED[chance.choice(list(RECORDED))]
    pieces[chance.randrange(len(pieces))] = chance.choice(theirs)[1]
    return pieces


def noise(chance: random.Random, pieces: list[bytes]) -> list[bytes]:
    at = chance.randrange(len(pieces))
    start = chance.randrange(len(pieces[at]))
    inserted = chance.randbytes(chance.choice((1, 4, 300)))
    return [*pieces[:at], pieces[at][:start] + inserted + pieces[at][start:], *pieces[at + 1 :]]


def twice(chance: random.Random, pieces: list[bytes]) -> list[bytes]:
    at = chance.randrange(len(pieces))
    return [*pieces[:at], pieces[at] * chance.choice((2, 40)), *pieces[at + 1 :]]


DAMAGES: list[Callable[[random.Random, list[bytes]], list[bytes]]]
DAMAGES = [cut, left_out, flipped, flipped, flipped, other_length, swapped, foreign, noise, twice]


async def damaged_once(seed: int) -> str:
    chance = random.Random(seed)
    name = chance.choice(list(RECORDED))
    due, said = zip(*RECORDED[name], strict=True)
    damage = chance.choice(DAMAGES)
    pieces = damage(chance, list(said))
    async with playing(list(zip(due, pieces, strict=True)), patience=0.01) as port, asyncio.timeout(60):
        await play(port, PLAYS[name])  # a HadoopError is its answer; everything else fails the test
    return damage.__name__


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.soak)])
def test_damaged_answers_end_in_a_named_error_and_hang_nothing(seeds: Seeds, count: int) -> None:
    async def run() -> None:
        done, crashes = Counter[str](), list[dict[str, Any]]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: crashes.append(context))
        for seed in seeds(count):
            done[await damaged_once(seed)] += 1
            for crash in crashes:
                raise crash.get("exception") or AssertionError(crash)
        assert seeds.only is not None or len(done) >= len({*DAMAGES}) - 1

    asyncio.run(run())


@given(st.binary(max_size=200))
def test_any_frame_is_a_reply_or_garbled(data: bytes) -> None:
    try:
        wire.read_reply(data, "here")
    except Garbled as error:
        assert error.message  # noqa: PT017 - or it is none


@given(st.lists(st.binary(max_size=50)), st.randoms(use_true_random=False))
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames: list[bytes], chance: random.Random) -> None:
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    splitter, out = wire.Splitter(), []
    while stream:
        size = chance.randint(1, 20)
        out += splitter.feed(stream[:size])
        stream = stream[size:]
    assert out == frames


# -- what is no Hadoop --


def opened(said: bytes, auth: Auth = BOB, timeout: float = 60.0) -> str:
    """What opening a connection to somebody who says this, and calling once, ends in."""

    async def run() -> str:
        async with playing([(1, said)]) as port:
            try:
                connection = await Connection.open(Peer("localhost", port), PROTOCOL, auth, timeout=timeout)
                async with connection:
                    await connection.call("refresh", asked("echo"), Responses)
            except HadoopError as error:
                return f"{type(error).__name__}: {error}".replace(str(port), "PORT")
            return "opened"

    return asyncio.run(run())


@pytest.mark.parametrize("auth", [BOB, Simple("alice")], ids=["token", "simple"])
def test_other_servers_are_named_for_what_they_are(auth: Auth) -> None:
    page = b"HTTP/1.1 404 Not Found\r\nContent-type: application/octet-stream\r\n\r\n"
    assert opened(page, auth) == (
        "Garbled: localhost:PORT answers as a web server does: this is the port of its pages, not of RPC"
    )
    assert opened(b"SSH-2.0-OpenSSH_9.2\r\n", auth) == (
        "Garbled: localhost:PORT sends something that is not Hadoop RPC: b'SSH-2.0-OpenSSH_'"
    )
    assert opened(b"", auth) == "Unreachable: localhost:PORT closed the connection"


def test_a_flood_before_the_first_word_is_no_handshake() -> None:
    assert opened(b"\0\0\0\1x" * 1000).startswith("Garbled: localhost:PORT")


def test_a_length_beyond_the_limit_is_refused_before_the_bytes_are_there() -> None:
    assert list(wire.Splitter().feed((wire.LIMIT).to_bytes(4, "big"))) == []
    with pytest.raises(Garbled, match="sends a frame of 64 MiB"):
        list(wire.Splitter().feed((wire.LIMIT + 1).to_bytes(4, "big")))


def test_one_who_is_silent_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peer = Peer(*silent.getsockname()[:2])
        with pytest.raises(Unreachable, match=r"127.0.0.1:\d+ does not answer within 0.1 s"):
            asyncio.run(Connection.open(peer, PROTOCOL, BOB, timeout=0.1))


def test_calls_wait_rather_than_pile_up_where_the_server_does_not_read() -> None:
    size, calls = 1 << 20, 100

    async def run() -> None:
        reading = asyncio.Event()

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reading.wait()
            while await reader.read(1 << 20):
                pass
            writer.close()

        async with await asyncio.start_server(slow, "127.0.0.1", 0) as server:
            peer = Peer(*server.sockets[0].getsockname()[:2])
            async with await Connection.open(peer, PROTOCOL, Simple("alice")) as connection:
                assert connection._transport is not None
                most, left = 0, calls

                async def call() -> None:
                    nonlocal left
                    with pytest.raises(Unreachable):
                        await connection.call("refresh", asked("echo", "x" * size), Responses)
                    left -= 1

                waiting = [asyncio.create_task(call()) for _ in range(calls)]
                reading.set()

                def written() -> bool:
                    nonlocal most
                    assert connection._transport is not None
                    most = max(most, connection._transport.get_write_buffer_size() + connection._outbox_size)
                    return len(connection._waiting) == calls

                await until_async(written)
                assert most < 3 * size
                await connection.close()
                await asyncio.wait(waiting)
                assert left == 0

    asyncio.run(run())


def test_a_fatal_answer_to_one_call_is_not_that_of_the_others() -> None:
    fatal = wire.RpcResponseHeaderProto(
        callId=1, status=wire.FATAL, exceptionClassName="java.io.IOException", errorMsg="no"
    )

    async def run() -> None:
        async with (
            playing([(250, wire.frame(wire.delimited(fatal)))]) as port,
            await Connection.open(Peer("localhost", port), PROTOCOL, Simple("alice")) as connection,
        ):
            calls = [connection.call("refresh", asked("echo", "x" * 100), Responses) for _ in range(3)]
            first, second, third = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(second, RemoteError)
            assert str(second) == "IOException: no"
            for other in (first, third):
                assert isinstance(other, Unreachable)
                assert other.sent
                assert "closed the connection over another call: IOException: no" in str(other)

    asyncio.run(run())


# -- errors --


def test_a_remote_exception_is_reported_without_its_stack() -> None:
    text = "java.io.IOException: no such file\n\tat org.apache.Somewhere(Some.java:12)"
    error = of_remote("java.io.IOException", text, fatal=False, place="nn:8020")
    assert isinstance(error, RemoteError)
    assert (str(error), error.message, error.name) == ("IOException: no such file", "no such file", "IOException")
    assert str(of_remote("java.lang.NullPointerException", "", fatal=False, place="nn:8020")) == "NullPointerException"


def test_a_refusal_of_the_connection_names_the_place_and_one_of_a_call_does_not() -> None:
    name = "org.apache.hadoop.security.AccessControlException"
    refused = of_remote(name, f"{name}: not you", fatal=True, place="nn:8020")
    assert isinstance(refused, AuthenticationFailed)
    assert str(refused) == "nn:8020 refuses us: not you"
    assert isinstance(of_remote(name, f"{name}: not you", fatal=False, place="nn:8020"), RemoteError)


def test_secrets_are_in_no_text_of_who_we_are() -> None:
    assert "password" not in repr(BOB)
    assert repr(Kerberos(principal="alice")).startswith("Kerberos(principal='alice'")


def test_pauses_double_to_their_longest_less_up_to_half_by_chance() -> None:
    assert [Retry(chance=lambda: 0.0).pause(round_) for round_ in (1, 2, 3, 7, 1000)] == [0.1, 0.2, 0.4, 5.0, 5.0]
    assert [Retry(chance=lambda: 1.0).pause(round_) for round_ in (1, 2, 1000)] == [0.05, 0.1, 2.5]


# -- the messages --


def test_compiled_messages_are_those_of_the_proto_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools/protos", ROOT / "src", tmp_path], check=True)
    made = sorted(tmp_path.rglob("*_pb2.py*"))
    assert len(made) >= 4
    for path in made:
        committed = ROOT / "src" / path.relative_to(tmp_path)
        assert path.read_text() == committed.read_text(), f"make {committed.name} again: tools/protos"
