"""The listeners of agents and of programs."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import secrets
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
from waiting import until

from trainmaster.agent.input.feeds import Feeds, Outside
from trainmaster.agent.link.programs import PROTOCOL, Programs
from trainmaster.client.submit.ahead import certificate_and_key
from trainmaster.core.input.feed_tokens import feed_token
from trainmaster.ps import loop
from trainmaster.ps.peers import Settings
from trainmaster.ps.server import Server
from trainmaster.ps.wire import connections as ps
from trainmaster.ps.wire.messages import HEADER_LIMIT, PREFIX, STRANGER_LIMIT, head_of
from trainmaster.runtime.elastic.all_reduce import _HELLO, Aborted, Listener, Ring
from trainmaster.runtime.feed import channel
from trainmaster.runtime.feed.stream import Stream
from trainmaster.runtime.network import listeners as table
from trainmaster.runtime.network.pinned import serving
from trainmaster.spark.nodes import TFManager

from . import (
    FEED_TOKENS,
    FOREIGN,
    PATIENCE,
    TOKEN,
    Scene,
    Target,
    at_path,
    at_port,
    descriptors,
    heard,
    line,
    nested,
    peers_answer,
    said,
)  # fmt: skip


def programs(at: Scene) -> dict[table.Row, Target]:
    async def lease(*arguments: Any) -> dict[str, Any]:
        return {}

    server = Programs(str(at.folder / "a.sock"), lease)
    server.credentials = server.credentials._replace(token=TOKEN, key="the key")
    at.do(server.start())
    at.call(server.begin, 1)
    at.at_end(lambda: at.do(server.close()))
    connect, hello = at_path(server.path), line(op="hello", v=PROTOCOL, attempt=1)

    def good() -> None:
        assert b'"welcome"' in peers_answer(connect(), hello)

    lies = {
        "another attempt": lambda: said(connect, line(op="hello", v=PROTOCOL, attempt=2)),
        "another version": lambda: said(connect, line(op="hello", v="9", attempt=1)),
        "credentials before a hello": lambda: said(connect, line(op="credentials", id=1)),
        "nested": lambda: said(connect, hello, nested() + b"\n"),
        "an endless step": lambda: said(connect, hello, b'{"op":"progress","value":1e999}\n'),
        "shards of another input": lambda: said(connect, hello, line(op="done", input="x", done=[[{}, []]])),
    }
    return {table.PROGRAMS: Target(connect, good, lies, (b"", hello), state=lambda: (server.attempt, server._pools))}


def feed(at: Scene) -> dict[table.Row, Target]:
    certificate, key = certificate_and_key()
    words: list[Any] = []

    async def opened() -> tuple[Feeds, str]:
        outside = Outside(TOKEN, certificate, key)
        feeds = Feeds(str(at.folder), words.append, lambda *args, **fields: None, "worker:0", outside)
        return feeds, (await feeds.open(1, {"input": (1 << 16, "worker")}, "127.0.0.1"))["TRAINMASTER_FEED_INPUT"]

    feeds, path = at.do(opened())
    at.at_end(lambda: at.call(feeds.close))
    port, owner = int(feeds._address.rpartition(":")[2]), feeds._owners["input"]
    here, far = at_path(path, socket.SOCK_SEQPACKET), at_port(port, certificate)
    hello, reserve = line(op="feed", v=channel.PROTOCOL), b'{"op":"reserve","number":[0,0,0],"rows":1,"size":1e999}\n'

    def greeting(token: str = FEED_TOKENS["input"], ring: Any = ("worker:0", 1)) -> bytes:
        return line(op="feed", v=channel.PROTOCOL, ring=list(ring), feed="input", token=token)

    def good_at(port: int) -> None:
        Stream(f"127.0.0.1:{port}", certificate, ["worker:0", 1], "input", FEED_TOKENS["input"]).close()

    def bring_files() -> bytes:
        before = descriptors()
        for content in (b"garbage", b"\xff", b'{"op":"feed"}', nested(1500)) * 3:
            with here() as connection, open(os.devnull) as file:
                socket.send_fds(connection, [content], [file.fileno()])
                heard(connection)
        until(lambda: descriptors() <= before, what="the descriptors of strangers are closed")
        return b""

    of_here = {
        "files": bring_files,
        "nested": lambda: said(here, nested(1900)),
        "an endless size": lambda: said(here, hello, reserve),
        "a batch that no room was kept for": lambda: said(here, hello, line(op="written")),
        "no number": lambda: said(here, hello, line(op="reserve", number=None, rows=1, size=1)),
    }
    of_far = {
        "another feed's token": lambda: said(far, greeting(FEED_TOKENS["other"])),
        "another job's token": lambda: said(far, greeting(feed_token(FOREIGN, "worker", "input"))),
        "the job's token": lambda: said(far, greeting(TOKEN)),
        "another attempt's ring": lambda: said(far, greeting(ring=("worker:0", 2))),
        "nested": lambda: said(far, greeting(), nested(20_000) + b"\n"),
        "an endless size": lambda: said(far, greeting(), reserve),
        "not UTF-8": lambda: said(far, greeting(), b"\xff\xfe\n"),
    }
    state = lambda: (owner.ring.supply, owner.ring.fed)  # noqa: E731
    good_here = lambda: b'"ring"' in peers_answer(here(), hello) or 1 / 0  # noqa: E731
    return {
        table.FEED_HERE: Target(here, good_here, of_here, (b"", hello), state=state),
        table.FEED: Target(
            far, partial(good_at, port), of_far, (b"", greeting()), state=state, secrets=(TOKEN, key, *FEED_TOKENS.values()),
            is_cut=True, port=port, good_at=good_at, is_secured=True,
        ),
    }  # fmt: skip


def parameters(at: Scene) -> dict[table.Row, Target]:
    certificate, key = certificate_and_key()
    at.patch.setattr(loop, "PATIENCE", PATIENCE)
    name = f"@trainmaster-ps-{secrets.token_hex(8)}"
    bound = ps.listen_at([f"unix:{at.folder}/ps-0", f"unix:{name}", "127.0.0.1:0"])
    server = Server(Settings(0, 1, TOKEN), serving(certificate, key))
    thread = at.in_thread(lambda: server.run(bound))
    for listener in bound:
        at.at_end(listener.close)
    at.at_end(thread.join)
    at.at_end(server.end)
    port = bound[2].getsockname()[1]
    hello = {"op": "hello", "task": "worker:0", "attempt": 1, "role": "worker", "index": 0, "servers": 1}

    def target(address: str, connect: Callable[[], Any], **more: Any) -> Target:
        first = head_of({**hello, "token": TOKEN}, 0)

        def good_at(address: str) -> None:
            connection = ps.connect(address, certificate)
            try:
                connection.send({**hello, "token": TOKEN})
                connection.send({"op": "status"})
                for _ in range(2):
                    answer = connection.receive()
                    assert answer is not None
                    assert "version" in answer.header
            finally:
                connection.close()

        def prefix(header: int, payload: int = 0) -> bytes:
            return PREFIX.pack(b"TMPS", 1, 0, 0, header, payload)

        deep = b'{"arrays":' + b"[" * 1000 + b"]" * 1000 + b"}"
        lies = {
            "another job's token": lambda: said(connect, head_of({**hello, "token": FOREIGN}, 0)),
            "the ring's key": lambda: said(connect, head_of({**hello, "token": "0" * 64}, 0)),
            "no hello": lambda: said(connect, head_of({"op": "status", "token": TOKEN}, 0)),
            "a region": lambda: said(connect, head_of({"op": "region", "direction": "to-server", "size": 1}, 0)),
            "a header over the limit": lambda: said(connect, prefix(STRANGER_LIMIT + 1)),
            "a payload": lambda: said(connect, prefix(10, 1)),
            "nested": lambda: said(connect, prefix(len(deep)) + deep),
            "nested with the token": lambda: said(connect, first, prefix(len(nested())) + nested()),
            "a header over the limit with the token": lambda: said(connect, first, prefix(HEADER_LIMIT + 1)),
            "an odd array": lambda: said(connect, first, head_of({"op": "seed", "arrays": [["x", [1], [2]]]}, 0)),
        }
        floods = (b"", prefix(STRANGER_LIMIT), prefix(0, 1 << 32))
        return Target(
            connect, partial(good_at, address), lies, floods, state=lambda: (server.shard.version, server.shard.attempts),
            secrets=(TOKEN, key), is_cut=True, good_at=lambda port: good_at(f"127.0.0.1:{port}"), **more,
        )  # fmt: skip

    return {
        table.PARAMETERS_HERE: target(f"unix:{at.folder}/ps-0", at_path(at.folder / "ps-0")),
        table.PARAMETERS_OF_HOST: target(f"unix:{name}", at_path(f"\0{name[1:]}")),
        table.PARAMETERS: target(f"127.0.0.1:{port}", at_port(port, certificate), port=port, is_secured=True),
    }


def ring(at: Scene) -> dict[table.Row, Target]:
    """Member 1 waits for its neighbours; a good client is member 0, with whom it adds up, and then waits again."""
    ports = [Listener(), Listener()]
    for each in ports:
        at.at_end(each.close)
    present: dict[str, Any] = {"round": 0}

    def of(rank: int, key: str = "the job's", number: int | None = None) -> Ring:
        members = [("127.0.0.1", each.port) for each in ports]
        return Ring(ports[rank], key, "job", present["round"] if number is None else number, rank, members)

    def wait() -> None:
        present["round"] += 1
        waiting = present["ring"] = of(1)

        def play() -> None:
            with contextlib.suppress(Aborted):
                waiting.connect()
                waiting.all_reduce(numpy.ones(8))

        present["thread"] = at.in_thread(play)

    def end() -> None:
        present["ring"].abort()
        present["thread"].join()
        present["ring"].close()

    def good() -> None:
        with contextlib.closing(of(0)) as mine:
            mine.connect()
            array = numpy.ones(8)
            mine.all_reduce(array)
            assert array.tolist() == [2.0] * 8
        end()
        wait()

    def introduced(rank: int = 0, before: Callable[[bytes], bytes] = lambda proof: proof, **of_ring: Any) -> bytes:
        with contextlib.closing(of(0, **of_ring)) as liar, contextlib.closing(connect()) as connection:
            drawn = connection.recv(16, socket.MSG_WAITALL)
            proof = before(liar._proof("connects", rank, drawn, bytes(16)))
            connection.sendall(_HELLO.pack(bytes(16), rank, proof))
            return heard(connection)

    def replayed() -> bytes:
        """A proof is of the number that was drawn for its own connection."""
        with contextlib.closing(of(0)) as liar, contextlib.closing(connect()) as first:
            proof = liar._proof("connects", 0, first.recv(16, socket.MSG_WAITALL), bytes(16))
        return introduced(before=lambda other: proof)

    connect = at_port(ports[1].port)
    wait()
    at.at_end(end)
    lies = {
        "another job's key": lambda: introduced(key="another"),
        "an earlier round": lambda: introduced(number=0),
        "another rank": lambda: introduced(rank=1),
        "a flipped bit": lambda: introduced(before=lambda proof: bytes([proof[0] ^ 1]) + proof[1:]),
        "replayed": replayed,
    }
    state = lambda: (present["ring"]._left, present["ring"]._right)  # noqa: E731
    return {table.RING: Target(connect, good, lies, state=state, secrets=("the job's",))}


def queues(at: Scene) -> dict[table.Row, Target]:
    manager = TFManager.start(b"the key", ["input"])
    at.at_end(manager.shutdown)
    manager.get_queue("input").put("row")  # type: ignore[attr-defined]
    connect = at_path(manager.address)

    class Recorded:
        """Answers a challenge, and keeps the answer."""

        def __init__(self) -> None:
            self.sent, self.connection = b"", multiprocessing.connection.Client(manager.address)

        def recv_bytes(self, most: int) -> bytes:
            return self.connection.recv_bytes(most)

        def send_bytes(self, content: bytes) -> None:
            self.sent = content
            self.connection.send_bytes(content)

    def good() -> None:
        assert TFManager.connect(manager.address, b"the key").get_queue("input").qsize() == 1  # type: ignore[attr-defined]

    def of_key(key: bytes) -> bytes:
        with contextlib.suppress(multiprocessing.AuthenticationError):
            multiprocessing.connection.Client(manager.address, authkey=key)
            raise AssertionError("another key opens it")
        return b""

    def replayed() -> bytes:
        first = Recorded()
        multiprocessing.connection.answer_challenge(first, b"the key")
        with multiprocessing.connection.Client(manager.address) as second:
            second.recv_bytes()
            second.send_bytes(first.sent)
            assert second.recv_bytes() == b"#FAILURE#"
        first.connection.close()
        return b""

    lies = {"another key": lambda: of_key(b"wrong"), "an empty key": lambda: of_key(b""), "replayed": replayed}
    return {table.QUEUES: Target(connect, good, lies, secrets=("the key",))}
