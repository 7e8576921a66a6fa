"""Connections of strangers: those that come first and stay silent keep nobody of another machine out, at each listener of ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.client.submit.ahead import certificate_and_key
from trainmaster.data.feed.streams import Streams
from trainmaster.engines.spark.container.entry import secrets_for
from trainmaster.engines.spark.master.tickets import Tickets
from trainmaster.ps.loop import Loop
from trainmaster.ps.wire.connections import connect, listen
from trainmaster.runtime.feed.channel import FeedError
from trainmaster.runtime.feed.stream import Stream
from trainmaster.runtime.network.pinned import serving
from trainmaster.runtime.network.strangers import Strangers
from trainmaster.spark import reservation

SILENT = """
import contextlib, socket, sys
held = []
for peer in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
    for _ in range(300):
        with contextlib.suppress(OSError):
            held.append(socket.create_connection((sys.argv[1], int(sys.argv[2])), source_address=(peer, 0)))
print("here", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def silent_strangers(host: str, port: int) -> Iterator[None]:
    """Three peers with 300 connections each, which say nothing."""
    command = [sys.executable, "-c", SILENT, host, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            yield
        finally:
            process.communicate()


@contextlib.contextmanager
def looping() -> Iterator[Callable[[Any], Any]]:
    """A loop in a thread of its own; yields what has it do a coroutine."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda act: asyncio.run_coroutine_threadsafe(act, loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_feeders_reach_an_agent_among_silent_strangers() -> None:
    certificate, key = certificate_and_key()
    with looping() as do:
        streams = Streams(("worker:0", 1), {}, lambda token, name: False)
        address = do(streams.open("127.0.0.1", serving(certificate, key)))
        with (
            silent_strangers("127.0.0.1", int(address.rpartition(":")[2])),
            pytest.raises(FeedError, match="the token is not"),
        ):
            Stream(address, certificate, ["worker:0", 1], "input", "another")
        do(_close(streams))


async def _close(streams: Streams) -> None:
    streams.close()


def test_containers_fetch_their_secrets_among_silent_strangers() -> None:
    certificate, key = certificate_and_key()
    with looping() as do:
        tickets = Tickets("127.0.0.1", certificate, key)
        do(tickets.open())
        ticket = json.loads(json.dumps(tickets.ticket(("worker:0", 1), {"token": "of the job"})))
        with silent_strangers("127.0.0.1", ticket["address"][1]):
            assert secrets_for(ticket, certificate) == {"token": "of the job"}
        do(tickets.close())


def test_workers_reach_a_parameter_server_among_silent_strangers() -> None:
    certificate, key = certificate_and_key()
    heard, is_over = threading.Event(), threading.Event()
    loop = Loop(lambda peer, message: heard.set(), lambda peer: None, serving(certificate, key))
    listener = listen("127.0.0.1:0")
    loop.listen(listener)

    def serve() -> None:
        while not is_over.is_set():
            loop.wait(0.1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        port = listener.getsockname()[1]
        with silent_strangers("127.0.0.1", port):
            connection = connect(f"127.0.0.1:{port}", certificate)
            connection.send({"op": "hello"})
            assert heard.wait(60)
            connection.close()
    finally:
        is_over.set()
        thread.join()
        loop.close()
        listener.close()


def test_nodes_report_to_the_driver_among_silent_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(reservation.TFOS_SERVER_HOST, "127.0.0.1")
    server = reservation.Server(1)
    address = server.start()
    try:
        with silent_strangers(*address):
            reservation.Client(address).register(
                {"executor_id": 0, "host": "10.0.0.7", "port": 1, "job_name": "worker"}
            )
            assert server.reservations.done()
    finally:
        server.stop()


@given(
    st.lists(
        st.tuples(st.sampled_from(["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2"]), st.booleans()), max_size=60
    )
)
def test_no_peer_takes_the_room_of_another(arrivals: list[tuple[str, bool]]) -> None:
    """The model of the rule: never more than the limits, and who goes is of a peer with more than the newcomer's."""
    strangers, present = Strangers[int](4, 6), dict[int, str]()
    for number, (address, is_trusted) in enumerate(arrivals):
        peer = "2001:db8::/64" if ":" in address else address
        before = [*present.values()].count(peer)
        leaving = strangers.enter(number, address)
        if leaving != number:
            present[number] = peer
        elif before < 4:
            assert len(present) == 6
            assert before + 1 >= max([*present.values()].count(other) for other in present.values())
        if leaving is not None and leaving != number:
            assert [*present.values()].count(present.pop(leaving)) > before
        if is_trusted and number in present:
            strangers.leave(number)
            del present[number]
        assert [*strangers] == [*present]
        assert len(strangers) <= 6
        assert all([*present.values()].count(other) <= 4 for other in present.values())
