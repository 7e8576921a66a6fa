"""Our RPC against Hadoop's own server classes, with what no cluster does on demand: delays, exceptions, ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest
from hadoop_server import PROTOCOL, Responses, Servers, asked, hadoop_servers
from waiting import until_async

from trainmaster.hadoop import rpc
from trainmaster.hadoop.errors import AuthenticationFailed, Garbled, HadoopError, RemoteError, Unreachable
from trainmaster.hadoop.handshake import Peer
from trainmaster.hadoop.rpc import Client, Connection, Retry
from trainmaster.hadoop.security.auth import PROTECTION, Auth, ByToken, Simple
from trainmaster.hadoop.security.credentials import Token

pytestmark = pytest.mark.xdist_group("hadoop-server")

ALICE = Simple("alice")
STANDBY = "org.apache.hadoop.ipc.StandbyException"
RETRIABLE = "org.apache.hadoop.ipc.RetriableException"
NEVER = "nobody ever releases this"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with hadoop_servers(tmp_path_factory.mktemp("servers") / "log") as started:
        yield started


@pytest.fixture(scope="module")
def port(servers: Servers) -> int:
    return servers.start("plain")


def on(port: int, act: Callable[[Connection], Awaitable[object]], auth: Auth = ALICE) -> None:
    async def run() -> None:
        async with await Connection.open(Peer("localhost", port), PROTOCOL, auth) as connection:
            await act(connection)

    asyncio.run(run())


def by(client: Client, act: Callable[[Client], Awaitable[object]]) -> None:
    async def run() -> None:
        async with client:
            await act(client)

    asyncio.run(run())


async def say(way: Connection | Client, verb: str, *words: str, timeout: float = 60.0) -> str:
    (answer,) = (await way.call("refresh", asked(verb, *words), Responses, timeout=timeout)).responses
    return answer.userMessage


# -- calls --


def test_replies_come_in_any_order(port: int) -> None:
    async def act(connection: Connection) -> None:
        slow = [asyncio.create_task(say(connection, "wait", f"order-{number}")) for number in range(3)]
        assert await say(connection, "echo", "overtakes") == "overtakes"
        for number in (2, 0, 1):
            assert not slow[number].done()
            await say(connection, "release", f"order-{number}")
            assert await slow[number] == f"order-{number}"

    on(port, act)


def test_a_thousand_calls_on_one_connection_get_each_its_own_answer(port: int) -> None:
    async def act(connection: Connection) -> None:
        said = await asyncio.gather(*[say(connection, "echo", str(number)) for number in range(1000)])
        assert said == [str(number) for number in range(1000)]

    on(port, act)


def test_an_answer_given_up_disturbs_nobody(port: int) -> None:
    async def act(connection: Connection) -> None:
        given_up = asyncio.create_task(say(connection, "wait", "late"))
        assert await say(connection, "echo", "a") == "a"
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        with pytest.raises(Unreachable, match=r"localhost:\d+ has not answered refresh within 0.05 s") as caught:
            await say(connection, "wait", "late", timeout=0.05)
        assert caught.value.sent
        await say(connection, "release", "late")
        assert await say(connection, "echo", "b") == "b"

    on(port, act)


def test_an_exception_is_one_line_and_the_connection_goes_on(port: int) -> None:
    async def act(connection: Connection) -> None:
        with pytest.raises(RemoteError) as caught:
            await say(connection, "throw", "java.io.IOException", "no such thing\nsecond line")
        assert str(caught.value) == "IOException: no such thing"
        assert caught.value.class_name == "java.io.IOException"
        assert not caught.value.fatal
        with pytest.raises(RemoteError, match="Unknown method nonesuch"):
            await connection.call("nonesuch", asked("echo"), Responses)
        assert await say(connection, "echo", "still here") == "still here"

    on(port, act)


@pytest.mark.parametrize("size", [1, 60_000, 70_000, 3_000_000])
@pytest.mark.parametrize("protection", ["authentication", "integrity", "privacy"])
def test_large_messages_go_both_ways_under_every_protection(servers: Servers, protection: str, size: int) -> None:
    size = min(size, 300_000) if protection == "privacy" else size  # RC4 in Python: some MB/s
    port = servers.start(protection, "token", protection)

    async def act(connection: Connection) -> None:
        text = "0123456789" * (size // 10 + 1)
        assert await say(connection, "echo", text) == text
        said = await asyncio.gather(*[say(connection, "repeat", str(n), "1000") for n in range(10)])
        assert said == [str(n) * 1000 for n in range(10)]
        # what flows is protected as it was agreed
        mechanism = connection._handshake.mechanism
        assert mechanism is not None
        assert mechanism.wraps == (protection != "authentication")

    on(port, act, ByToken(servers.token("bob")))
    servers.stop(protection)


def test_a_frame_beyond_the_limit_ends_the_connection_and_says_so(port: int) -> None:
    async def act(connection: Connection) -> None:
        with pytest.raises(Garbled, match="is more than the 64 MiB"):
            await say(connection, "echo", "x" * (65 << 20))
        assert await say(connection, "echo", "nothing of it was sent") == "nothing of it was sent"
        with pytest.raises(Garbled, match=r"localhost:\d+ sends a frame of 70 MiB, more than the 64 MiB"):
            await say(connection, "repeat", "x", str(70 << 20))

    on(port, act)


# -- who we are --


def test_the_server_knows_us_by_name_or_by_token(servers: Servers, port: int) -> None:
    async def sender(connection: Connection) -> str:
        return (await connection.call("refresh", asked("echo"), Responses)).responses[0].senderName

    async def alice(connection: Connection) -> None:
        assert await sender(connection) == "alice"

    async def bob(connection: Connection) -> None:
        assert await sender(connection) == "bob"

    on(port, alice)
    on(port, bob, ByToken(servers.token("bob")))


@pytest.mark.parametrize(
    ("auth", "words"),
    [
        (
            ByToken(Token(b"\x03bob", b"guessed", "TEST", "")),
            "refuses us: DIGEST-MD5: digest response format violation. Mismatched response",
        ),
        (ByToken(Token(b"\x07expired", b"password of expired", "TEST", "")), "refuses us: token of expired is expired"),
        (Simple("alice"), r"refuses us: SIMPLE authentication is not enabled.  Available:\[TOKEN\]"),
    ],
    ids=["wrong password", "expired", "no token"],
)
def test_who_is_not_believed_is_told_why(servers: Servers, auth: Auth, words: str) -> None:
    port = servers.start("strict", "token")
    try:
        for _ in range(20):  # the refusal races with our own write
            with pytest.raises(AuthenticationFailed, match=rf"localhost:{port} {words}"):
                by(
                    Client([("localhost", port)], PROTOCOL, auth, protection=PROTECTION),
                    lambda client: say(client, "echo", "x" * 200_000),
                )
    finally:
        servers.stop("strict")


def test_less_protection_than_we_want_is_refused(servers: Servers) -> None:
    port = servers.start("open", "token", "authentication")
    with pytest.raises(AuthenticationFailed, match="offers protection auth, we take auth-conf"):
        on(port, lambda connection: say(connection, "echo"), ByToken(servers.token("bob"), ("privacy",)))
    servers.stop("open")


def test_a_server_that_takes_no_tokens_is_not_told_a_name_instead(servers: Servers, port: int) -> None:
    """Nobody who came with a token goes on as somebody whose name is believed."""
    with pytest.raises(AuthenticationFailed, match=r"does not know the token's password|refuses us"):
        on(port, lambda connection: say(connection, "echo"), ByToken(Token(b"\x03bob", b"guessed", "TEST", "")))


# -- ends --


def test_all_calls_that_wait_fail_at_once_when_the_server_ends(servers: Servers) -> None:
    port = servers.start("ending")

    async def act(connection: Connection) -> None:
        calls = [asyncio.create_task(say(connection, "wait", NEVER)) for _ in range(5)]
        assert await say(connection, "echo", "all have arrived") == "all have arrived"
        await asyncio.to_thread(servers.stop, "ending")
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, Unreachable)
            assert error.sent
            assert "closed the connection" in str(error) or "reset" in str(error)
        with pytest.raises(Unreachable) as caught:
            await say(connection, "echo")
        assert not caught.value.sent

    on(port, act)
    with pytest.raises(Unreachable, match=rf"localhost:{port} refuses the connection: is it running\?"):
        on(port, lambda connection: say(connection, "echo"))


def test_close_fails_what_waits_and_closes_the_socket(port: int) -> None:
    async def act(connection: Connection) -> None:
        waiting = asyncio.create_task(say(connection, "wait", NEVER))
        assert await say(connection, "echo", "arrived") == "arrived"
        await connection.close()
        with pytest.raises(Unreachable, match="was closed here"):
            await waiting

    on(port, act)


def test_a_ping_keeps_a_connection_on_which_calls_wait(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hadoop's server answers no ping: the only reply to come is that of the call."""
    monkeypatch.setattr(rpc, "PING", 0.01)
    sent: list[bytes] = []
    write = Connection._write
    monkeypatch.setattr(Connection, "_write", lambda self, data: (sent.append(data), write(self, data))[1])

    async def act(connection: Connection) -> None:
        waiting = asyncio.create_task(say(connection, "wait", "pinged"))
        await until_async(lambda: len(sent) > 20, what="twenty pings")
        assert len(set(sent[-10:])) == 1
        await say(connection, "release", "pinged")
        assert await waiting == "pinged"

    on(port, act)


# -- several servers --


def test_the_next_address_is_tried_where_one_does_not_answer(servers: Servers, port: int) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and listens not
        client = Client([nobody.getsockname(), ("localhost", port)], PROTOCOL, ALICE, protection=PROTECTION)

        async def act(client: Client) -> None:
            said = await asyncio.gather(*[say(client, "echo", str(number)) for number in range(50)])
            assert said == [str(number) for number in range(50)]

        by(client, act)


def test_a_client_goes_on_when_the_server_has_come_back(servers: Servers) -> None:
    port = servers.start("back")
    client = Client(
        [("localhost", port)],
        PROTOCOL,
        ALICE,
        protection=PROTECTION,
        retry=Retry(first=0.02, longest=0.1, safe=lambda _: True),
    )

    async def act(client: Client) -> None:
        assert await say(client, "echo", "1") == "1"
        waiting = asyncio.create_task(say(client, "wait", "comeback"))
        assert await say(client, "echo", "2") == "2"
        await asyncio.to_thread(servers.stop, "back")
        await asyncio.to_thread(servers.start, "back", port=port)
        assert await say(client, "echo", "3") == "3"
        await say(client, "release", "comeback")
        assert await waiting == "comeback"

    by(client, act)
    servers.stop("back")


def test_a_call_that_may_have_been_carried_out_is_not_sent_again(servers: Servers) -> None:
    port = servers.start("once")

    async def act(client: Client) -> None:
        waiting = asyncio.create_task(say(client, "wait", NEVER))
        assert await say(client, "echo", "1") == "1"
        await asyncio.to_thread(servers.stop, "once")
        await asyncio.to_thread(servers.start, "once", port=port)
        with pytest.raises(Unreachable) as caught:
            await waiting
        assert caught.value.sent

    by(Client([("localhost", port)], PROTOCOL, ALICE, protection=PROTECTION), act)
    servers.stop("once")


@pytest.mark.parametrize("error", [STANDBY, RETRIABLE])
def test_a_server_that_is_not_ready_is_asked_again(servers: Servers, port: int, error: str) -> None:
    async def act(client: Client) -> None:
        await say(client, "once", error, f"key-{error}")
        assert await say(client, "count", f"key-{error}") == "2"

    by(Client([("localhost", port)], PROTOCOL, ALICE, protection=PROTECTION, retry=Retry(first=0.01)), act)


def test_where_all_are_standby_the_client_says_so(servers: Servers, port: int) -> None:
    other = servers.start("other")
    client = Client(
        [("localhost", port), ("localhost", other)],
        PROTOCOL,
        ALICE,
        protection=PROTECTION,
        retry=Retry(first=0.01, tries=4),
    )
    with pytest.raises(Unreachable, match=rf"none of localhost:{port}, localhost:{other} is active: Operation READ"):
        by(client, lambda client: say(client, "throw", STANDBY, "Operation READ is not supported in state standby"))
    servers.stop("other")


def test_other_errors_are_not_tried_again(servers: Servers, port: int) -> None:
    async def act(client: Client) -> None:
        with pytest.raises(RemoteError):
            await say(client, "once", "java.io.IOException", "not again")
        assert await say(client, "count", "not again") == "1"

    by(Client([("localhost", port)], PROTOCOL, ALICE, protection=PROTECTION), act)


def test_cancelling_the_call_that_opens_leaves_the_others(servers: Servers, port: int) -> None:
    async def act(client: Client) -> None:
        calls = [asyncio.create_task(say(client, "echo", str(number))) for number in range(10)]
        await asyncio.sleep(0)  # noqa: TID251 - they have begun to open
        calls[0].cancel()
        assert await asyncio.gather(*calls[1:]) == [str(number) for number in range(1, 10)]

    by(Client([("localhost", port)], PROTOCOL, ALICE, protection=PROTECTION), act)


def test_calls_cancelled_at_any_moment_disturb_nobody(servers: Servers) -> None:
    """Under privacy, where one frame too few or half a frame would spoil all that follow."""
    port = servers.start("private", "token", "privacy")

    async def act(connection: Connection) -> None:
        for turn in range(200):
            call = asyncio.create_task(say(connection, "echo", "x" * (turn * 50)))
            for _ in range(turn % 7):
                await asyncio.sleep(0)  # noqa: TID251 - one step of the loop
            call.cancel()
            await asyncio.wait([call])
        assert await say(connection, "echo", "whole") == "whole"

    on(port, act, ByToken(servers.token("bob")))
    servers.stop("private")


def test_a_call_that_is_given_up_leaves_the_others_of_its_client(servers: Servers, port: int) -> None:
    async def act(client: Client) -> None:
        assert await say(client, "echo", "open") == "open"
        waiting = asyncio.create_task(say(client, "wait", "patient"))
        with pytest.raises(Unreachable, match=r"has not answered refresh within \S+ s"):
            await say(client, "wait", "patient", timeout=0.05)
        assert not waiting.done()
        await say(client, "release", "patient")
        assert await waiting == "patient"

    by(Client([("localhost", port)], PROTOCOL, ALICE, protection=PROTECTION, retry=Retry(safe=lambda _: True)), act)


def test_a_client_that_is_closed_stays_closed(servers: Servers, port: int) -> None:
    """Also where its calls may be sent again: nothing opens behind it."""

    async def run() -> None:
        client = Client([("localhost", port)], PROTOCOL, ALICE, protection=PROTECTION, retry=Retry(safe=lambda _: True))
        waiting = asyncio.create_task(say(client, "wait", NEVER))
        assert await say(client, "echo", "open") == "open"
        await client.close()
        for call in (waiting, say(client, "echo")):
            with pytest.raises(Unreachable, match="was closed here"):
                await call
        opening = Client([("localhost", port)], PROTOCOL, ALICE, protection=PROTECTION)
        calls = [asyncio.create_task(say(opening, "echo")) for _ in range(3)]
        await asyncio.sleep(0)  # noqa: TID251 - they have begun to open
        await opening.close()
        for call in calls:
            with pytest.raises(Unreachable, match="was closed here"):
                await call

    asyncio.run(run())


def test_a_name_that_nobody_knows() -> None:
    client = Client([("no-such-host.invalid", 1)], PROTOCOL, ALICE, protection=PROTECTION, retry=Retry(tries=1))
    with pytest.raises(HadoopError, match=r"no-such-host\.invalid:1 is a host that nobody knows"):
        by(client, lambda client: say(client, "echo"))
