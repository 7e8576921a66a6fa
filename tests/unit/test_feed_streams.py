"""A ring that is fed over TLS: real sockets, whose streams break at any byte, and tokens that are good for one feed alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import until

from trainmaster.agent.input.feeds import Feeds, Outside
from trainmaster.client.submit.ahead import certificate_and_key
from trainmaster.core.input.feed_tokens import feed_token, is_of_feed, named_feed
from trainmaster.runtime.feed.channel import FeedError, FeedGone
from trainmaster.runtime.feed.feeder import Feeder
from trainmaster.runtime.feed.layout import Layout, column_of
from trainmaster.runtime.feed.reader import Reader
from trainmaster.runtime.feed.results import unpack
from trainmaster.runtime.feed.stream import Stream

JOB_TOKEN = "the job's"
TOKEN = feed_token(JOB_TOKEN, "worker", "input")
RING = ["worker:0", 3]
ROWS = 500  # of a batch


class Agent:
    """The feeds of an agent, in a thread with a loop of their own. `told`: the master's last word of the ring."""

    def __init__(self, folder: Path, owner: str = "worker") -> None:
        self.told: dict[str, Any] = {}
        self.certificate, self._key = certificate_and_key()
        self._folder, self._loop, self._owner = folder, asyncio.new_event_loop(), owner
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.feeds, self.socket = self.do(self._open())

    async def _open(self) -> tuple[Feeds, str]:
        outside = Outside(JOB_TOKEN, self.certificate, self._key)
        feeds = Feeds(str(self._folder), self._hear, lambda *args, **fields: None, "worker:0", outside)
        variables = await feeds.open(3, {"input": (64 * 1024, self._owner)}, "127.0.0.1")
        return feeds, variables["TRAINMASTER_FEED_INPUT"]

    def _hear(self, message: dict[str, Any]) -> None:
        self.told = message["feeds"]["input"]

    def do(self, act: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(act, self._loop).result(60)

    async def _answer(self, message: dict[str, Any]) -> None:
        self.feeds.answered(message)

    def end(self) -> None:
        """Let the reader hear the end, once it has all."""
        self.do(self._answer({"attempt": 3, "limits": {"input": [None, True]}}))

    async def _close(self) -> None:
        self.feeds.close()

    def close(self) -> None:
        self.do(self._close())
        until(lambda: not self.do(_others()), what="streams end with their rings")
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def stream(self, address: str = "", token: str = TOKEN, ring: list[Any] | None = None) -> Stream:
        return Stream(address or self.told["address"], self.certificate, ring or RING, "input", token)


async def _others() -> int:
    return len(asyncio.all_tasks()) - 1


@pytest.fixture
def agent(home: Any) -> Iterator[Agent]:
    made = Agent(home.runtime)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def breaking(address: str, after: int) -> Iterator[str]:
    """A way to an address whose first connection breaks once so many bytes went there."""
    host, _, port = address.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    ours = listener.getsockname()[1]

    def carry() -> None:
        left = after
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                with near, socket.create_connection((host, int(port))) as far:
                    while left > 0:
                        ready, _, _ = select.select([near, far], [], [])
                        if far in ready:
                            near.sendall(far.recv(1 << 16))
                        if near in ready:
                            content = near.recv(min(left, 1 << 16))
                            if not content:
                                break
                            far.sendall(content)
                            left -= len(content)
                left = left if left > 0 else 1 << 40

    thread = threading.Thread(target=carry, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{ours}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def columns(number: int) -> Any:
    return [column_of("x", np.full(ROWS, number, "i8"))]


def test_batches_reach_the_ring_in_order_and_its_bound_holds_the_feeder_back(agent: Agent) -> None:
    read: list[int] = []

    def feed() -> None:
        with Feeder(agent.stream()) as feeder:
            for number in range(40):  # 160 kB, in a ring of 64
                assert feeder.put((0, 0, number), columns(number))
            assert feeder.supply() == 40 * ROWS
            assert not feeder.has_stopped

    thread = threading.Thread(target=feed)
    thread.start()
    until(lambda: agent.told.get("supply", 0) >= 12 * ROWS, what="the ring is full")
    assert agent.told["supply"] <= 16 * ROWS
    with Reader(agent.socket) as reader:
        for batch in reader:
            assert (batch["x"] == batch.number[2]).all()
            read.append(batch.number[2])
            del batch
            if len(read) == 40:
                agent.end()
    thread.join(60)
    assert read == list(range(40))


@pytest.mark.parametrize("after", [700, 5_000, 12_345, 33_000])
def test_a_stream_that_breaks_anywhere_doubles_and_loses_nothing(agent: Agent, after: int) -> None:
    with breaking(agent.told["address"], after) as address:
        breaks, number, feeder = 0, 0, None
        while number < 10:
            try:
                feeder = feeder or Feeder(agent.stream(address))
                feeder.put((0, 0, number), columns(number))
                number += 1
            except FeedGone:
                breaks, feeder = breaks + 1, None
        assert breaks == 1
        assert feeder is not None
        assert feeder.supply() == 10 * ROWS
        feeder.close()
    agent.end()
    with Reader(agent.socket) as reader:
        assert [(batch.number[2], int(batch["x"][-1])) for batch in reader] == [
            (number, number) for number in range(10)
        ]


def offer(stream: Stream, number: int, wish: str = "more") -> None:
    layout = Layout(columns(number))
    stream.send({"op": "reserve", "number": [7, 0, number], "size": layout.size, "rows": layout.rows, "answers": wish})
    message, content = stream.receive_content()
    assert (message["op"], content) == ("write", None)
    stream.write(message["at"], layout)
    assert stream.receive_content()[0]["op"] == "ok"


def files_of_results() -> int:
    links = (
        os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{name}")
    )
    return sum("trainmaster-results" in link for link in links)


def test_results_go_back_one_batch_at_a_time_once_they_are_asked_for(agent: Agent) -> None:
    stream = agent.stream()
    with Reader(agent.socket) as reader:
        for number in range(2):
            offer(stream, number)
            batch = reader.read()
            assert batch is not None
            assert batch.wants_results == "more"
            reader.answer(batch, [bytes([number]) * 4000] * ROWS)  # 2 MB, more than is read of a file at once
        until(lambda: files_of_results() == 2, what="the agent keeps both")
        for number in range(2):
            stream.send({"op": "collect"})
            message, content = stream.receive_content()
            assert message["rows"] == ROWS
            assert content is not None
            assert unpack(content) == [bytes([number]) * 4000] * ROWS
        until(lambda: files_of_results() == 0, what="the agent keeps none")
        stream.close()


@pytest.mark.parametrize("asks", [False, True])
def test_results_of_a_feeder_that_is_gone_are_dropped(asks: bool, agent: Agent) -> None:
    stream = agent.stream()
    with Reader(agent.socket) as reader:
        offer(stream, 0)
        batch = reader.read()
        assert batch is not None
        if asks:
            stream.send({"op": "collect"})
        reader.answer(batch, [bytes(40_000)] * ROWS)  # 20 MB, so that a part is on its way at most
        until(lambda: files_of_results() > 0, what="the agent has them")
        stream.close()
        until(lambda: files_of_results() == 0, what="the agent has dropped them")


def test_batches_of_a_feeder_that_is_gone_want_results_as_before(agent: Agent) -> None:
    """A program that answers cannot know that nobody takes its answers any more."""
    stream = agent.stream()
    with Reader(agent.socket) as reader:
        offer(stream, 0)
        offer(stream, 1)
        first = reader.read()
        assert first is not None
        stream.close()
        reader.answer(first, [b"x"] * ROWS)
        until(lambda: files_of_results() == 0, what="the agent has dropped them")
        second = reader.read()
        assert second is not None
        assert second.wants_results == first.wants_results != ""
        reader.answer(second, [b"x"] * ROWS)
        until(lambda: files_of_results() == 0, what="the agent has dropped them")


def test_a_reader_that_dies_ends_the_streams_that_wait_for_its_results_alone(agent: Agent) -> None:
    stream = agent.stream()
    with Feeder(agent.stream()) as other:
        reader = Reader(agent.socket)
        offer(stream, 0)
        assert other.put((0, 0, 0), columns(1))
        assert reader.read() is not None
        reader.close()
        with pytest.raises(FeedGone):
            stream.receive_content()
        assert other.put((0, 0, 1), columns(1))
        stream.close()
        agent.stream().close()  # it may come again


def test_a_reader_that_stops_ends_the_feeder_at_once(agent: Agent) -> None:
    with Feeder(agent.stream()) as feeder, Reader(agent.socket) as reader:
        assert feeder.put((0, 0, 0), columns(0))
        reader.terminate()
        until(lambda: feeder.has_stopped, what="the feeder hears it")
        assert not feeder.put((0, 0, 1), columns(1))


def test_strangers_are_refused_and_other_attempts_are_gone(agent: Agent) -> None:
    for token in (JOB_TOKEN, feed_token(JOB_TOKEN, "worker", "other"), feed_token("another", "worker", "input"), ""):
        with pytest.raises(FeedError, match="the token is not that of this feed"):
            agent.stream(token=token)
    with pytest.raises(FeedGone):
        agent.stream(ring=["worker:0", 2])
    agent.certificate, before = certificate_and_key()[0], agent.certificate
    with pytest.raises(FeedGone, match="certificate"):
        agent.stream()
    agent.certificate = before
    host, _, port = agent.told["address"].rpartition(":")
    with socket.create_connection((host, int(port))) as plain:
        plain.sendall(b"no handshake\n" * 100)
        with contextlib.suppress(ConnectionResetError):
            while plain.recv(4096):
                pass
    with Feeder(agent.stream()) as feeder:
        assert feeder.put((0, 0, 0), columns(0)), "it goes on after all of that"


def test_a_ring_of_a_shared_feed_takes_the_token_of_whose_feed_it_is(home: Any) -> None:
    made = Agent(home.runtime, "chief")
    try:
        with pytest.raises(FeedError, match="the token is not that of this feed"):
            made.stream()
        with Feeder(made.stream(token=feed_token(JOB_TOKEN, "chief", "input"))) as feeder:
            assert feeder.put((0, 0, 0), columns(0))
    finally:
        made.close()


def test_a_batch_that_is_too_large_names_itself(agent: Agent) -> None:
    with Feeder(agent.stream()) as feeder, pytest.raises(FeedError, match=r"a third of the feed's ring of 65,536"):
        feeder.put((0, 0, 7), [column_of("x", np.zeros(10_000, "i8"))])


def test_a_token_is_good_for_its_feed_alone() -> None:
    assert is_of_feed(TOKEN, JOB_TOKEN)
    assert named_feed(TOKEN) == ("worker", "input")
    forged = TOKEN.replace("input", "other")
    assert named_feed(forged) == ("worker", "other")
    for text in (forged, TOKEN[:-1], "", JOB_TOKEN, "feed:worker:input:", "feed:é:input:é"):
        assert not is_of_feed(text, JOB_TOKEN)
    assert JOB_TOKEN not in TOKEN
    assert named_feed(JOB_TOKEN) is None
