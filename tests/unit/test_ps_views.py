"""Pulls that all servers answer at one entry: whoever goes and comes meanwhile, each is answered, or asked again."""

from __future__ import annotations

import contextlib
import itertools
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trainmaster.ps.client import Identity, Servers
from trainmaster.ps.views import Views
from trainmaster.ps.wire.connections import Closed, Connection, Message, accept
from trainmaster.ps.wire.messages import AGAIN

LIMIT = 180.0  # s


class Host(SimpleNamespace):
    """A server as its views see it. `told`: what it sent to whom; `added`: the entries that it made, as server 0."""

    def __init__(self, index: int, servers: int) -> None:
        super().__init__(settings=SimpleNamespace(index=index, servers=servers), leader="server 0" if index else None)
        self.told: list[tuple[Any, dict[str, Any]]] = []
        self.added: list[dict[str, Any]] = []

    def tell(self, peer: Any, header: dict[str, Any]) -> None:
        self.told.append((peer, header))

    def add(self, entry: dict[str, Any]) -> None:
        self.added.append(entry)


def pull(view: Any) -> Message:
    return Message({"op": "pull", "view": view}, {}, 0)


def peer(role: str, index: int = -1) -> Any:
    return SimpleNamespace(role=role, index=index)


def test_the_view_of_a_worker_that_has_gone_is_forgotten() -> None:
    views, follower, worker = Views(Host(0, 3)), Host(1, 3), peer("worker")  # type: ignore[arg-type]
    others = Views(follower)  # type: ignore[arg-type]
    for each in (views, others):
        assert each.holds(worker, pull("v"))
    views.lose(worker)
    assert not views._holders
    others.lose(worker)
    for _, header in follower.told:  # that the follower holds it comes late
        views.take_hold(1, header["view"], header.get("is_lost", False))
    assert not views._holders


def test_what_others_hold_stands_though_a_server_goes_before_server_0_is_asked() -> None:
    host, worker = Host(0, 4), peer("worker")
    views = Views(host)  # type: ignore[arg-type]
    for index in (1, 2, 3):
        views.take_hold(index, "v")
    views.lose(peer("follower", 3))
    assert views.holds(worker, pull("v"))
    assert not host.added, "server 3 holds nothing any more"
    views.take_hold(3, "v")
    assert host.added == [{"view": "v"}]


def test_a_view_of_any_type_is_given_up_with_its_worker() -> None:
    host, worker = Host(0, 2), peer("worker")
    views = Views(host)  # type: ignore[arg-type]
    for view in (["v"], {"v": 1}, 7):
        assert views.holds(worker, pull(view))
    views.give_up()
    assert [(who, header["kind"]) for who, header in host.told] == [(worker, AGAIN)] * 3
    assert not views._holders


def test_a_worker_hears_the_server_that_gives_up_though_another_says_nothing(tmp_path: Path) -> None:
    """Server 0 cannot answer what the other one does not hold any more, so both are asked again, for another view."""
    addresses, asked = [f"unix:{tmp_path}/{index}" for index in range(2)], list[tuple[int, str]]()
    listeners, turns = [socket.socket(socket.AF_UNIX) for _ in addresses], itertools.count()

    def serve(index: int) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                pool.submit(answer, index, accept(listeners[index], None)[0])

    def answer(index: int, connection: Connection) -> None:
        connection.socket.settimeout(LIMIT)
        with contextlib.suppress(Closed):
            while (message := connection.receive()) is not None:
                if message.op == "hello":
                    connection.open_limits()
                    connection.send({"op": "answer", "version": 0, "is_defined": True, "servers": 2})
                elif message.op == "region":
                    connection.take_region(message.header)
                else:
                    asked.append((index, message.header["view"]))
                    if message.header["view"] != "0":
                        connection.send({"op": "answer", "version": index})
                    elif index:
                        connection.send({"op": "answer", "error": "another server is away", "kind": AGAIN})
        connection.close()

    def requests(count: int) -> list[Any]:
        return [({"op": "pull", "view": str(next(turns))}, {})] * count

    with ThreadPoolExecutor(16) as pool:
        try:
            for index, listener in enumerate(listeners):
                listener.bind(addresses[index].removeprefix("unix:"))
                listener.listen()
                pool.submit(serve, index)
            workers = Servers(lambda: addresses, Identity("token"), LIMIT)
            with contextlib.closing(workers):
                answers = workers.ask(requests, is_together=True)
            assert [each.header["version"] for each in answers] == [0, 1]
        finally:
            for listener in listeners:
                listener.shutdown(socket.SHUT_RDWR)
                listener.close()
    assert sorted(asked) == [(0, "0"), (0, "1"), (1, "0"), (1, "1")]
