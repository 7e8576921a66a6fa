"""Nodes that report to the driver: those with the key, and strangers of every kind."""

from __future__ import annotations

import json
import logging
import pickle
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from waiting import until

from trainmaster.host.places import runtime_dir
from trainmaster.spark import reservation
from trainmaster.spark.reservation import Address, Client, Reservations, Server

NODES = [
    {"executor_id": number, "host": "10.0.0.7", "port": 2222 + number, "job_name": "worker"} for number in range(3)
]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (reservation.TFOS_SERVER_PORT, reservation.TFOS_SERVER_KEY):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(reservation.TFOS_SERVER_HOST, "127.0.0.1")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(len(NODES))
    yield server
    server.stop()


def is_refused(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=5).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it stops at this moment
        return False
    return False


def test_reservations_count_down() -> None:
    reservations = Reservations(2)
    assert (reservations.done(), reservations.remaining(), reservations.get()) == (False, 2, [])
    for node in NODES[:2]:
        reservations.add(node)
    assert (reservations.done(), reservations.remaining(), reservations.get()) == (True, 0, NODES[:2])


def test_nodes_report_and_learn_of_each_other(server: Server) -> None:
    address = server.start()
    clients = [Client(address) for _ in NODES]
    assert clients[0].get_reservations() == []
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(client.await_reservations) for client in clients]
        for client, node in zip(clients, NODES, strict=True):
            assert client.register(node) == "OK"
        assert [nodes.result(60) for nodes in waiting] == [NODES] * 3
    assert server.await_reservations(None) == NODES
    assert not server.done
    assert clients[0].request_stop() == "OK"
    until(lambda: server.done and is_refused(address), what="the server has stopped")
    assert server.reservations.get() == NODES
    for client in clients:
        client.close()


def test_an_address_is_handed_on_with_its_key_but_not_printed(server: Server) -> None:
    host, port = address = server.start()
    copy = pickle.loads(pickle.dumps(address))  # noqa: S301 - as Spark hands it on
    assert copy == (host, port) == ("127.0.0.1", address[1])
    assert copy.key == address.key
    assert str(copy) == f"('127.0.0.1', {port})"
    assert Client(copy).register(NODES[0]) == "OK"
    assert Client((host, port), key=address.key).get_reservations() == NODES[:1]


def test_a_command_from_outside_stops_the_server_with_the_key_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(reservation.TFOS_SERVER_KEY, "0123456789abcdef")
    server = Server(1)
    host, port = server.start()
    assert Client((host, port)).request_stop() == "OK"
    until(lambda: server.done, what="the server has stopped")
    monkeypatch.setenv(reservation.TFOS_SERVER_KEY, "short")
    with pytest.raises(ValueError, match="TFOS_SERVER_KEY has 5 characters"):
        Server(1)


@pytest.mark.parametrize("key", [b"another key of 32 bytes, or so...", b"x"])
def test_a_wrong_key_is_refused_and_changes_nothing(server: Server, key: bytes) -> None:
    host, port = server.start()
    for request in (lambda client: client.register(NODES[0]), Client.request_stop, Client.get_reservations):
        with pytest.raises(
            PermissionError, match=f"reservation server {host}:{port} closed the connection: it has another key"
        ):
            request(Client((host, port), key=key))
    assert server.reservations.get() == []
    assert not server.done


def test_a_command_of_the_same_user_on_the_same_machine_needs_no_key(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = server.start()
    [file] = runtime_dir().glob("reservation-*")
    assert file.stat().st_mode & 0o777 == 0o600
    assert Client((host, port)).request_stop() == "OK"
    until(lambda: server.done and not file.exists(), what="the server has stopped, and its key is gone")
    with pytest.raises(
        ValueError, match=r"the key .* is missing: run this as the driver's user on its machine, hand on"
    ):
        Client((host, port))
    monkeypatch.setitem(sys.modules, "trainmaster.host.places", None)
    with pytest.raises(ValueError, match=r"the key .* is missing"):
        Client((host, port))  # in a task, where nothing else of ours is


def test_the_server_of_a_cluster_notes_a_stop_and_goes_on() -> None:
    ended = threading.Event()
    server = Server(1, lambda seconds: "it has failed: no such digit" if ended.wait(seconds) else "")
    client = Client(server.start())
    try:
        assert client.request_stop() == "OK"
        until(lambda: server.done, what="the wish to stop")
        assert client.end(waits=False) == ""
        threading.Timer(0.1, ended.set).start()
        assert client.end() == "it has failed: no such digit"
    finally:
        server.stop()


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["pickle", "text", "long", "frame", "nothing"])
def test_strangers_are_cut_off_and_nobody_is_disturbed(
    server: Server, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reservation, "PATIENCE", 5.0)
    body = json.dumps({"type": "STOP"}).encode()
    bomb = pickle.dumps({"type": "REG", "data": Bomb(tmp_path / "ran")})
    content = {
        "pickle": len(bomb).to_bytes(4, "big") + bomb,  # as TensorFlowOnSpark's own client
        "text": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 9,
        "long": bytes(32) + b"\xff\xff\xff\xff" + bytes(32),
        "frame": bytes(32) + len(body).to_bytes(4, "big") + bytes(32) + body,
        "nothing": b"",
    }[name]
    address = server.start()
    with caplog.at_level(logging.WARNING), socket.create_connection(address, timeout=60) as stranger:
        stranger.sendall(content)
        assert Client(address).register(NODES[0]) == "OK"
        received = b""
        try:
            while piece := stranger.recv(100):
                received += piece
        except ConnectionResetError:
            pass
        assert len(received) in (0, 32), "a nonce at most"
        until(lambda: "a connection from 127.0.0.1 was closed" in caplog.text, what="the server says so")
    assert server.reservations.get() == NODES[:1]
    assert not server.done
    assert not (tmp_path / "ran").exists()


def test_a_recorded_exchange_cannot_be_sent_again(server: Server) -> None:
    address = server.start()
    with socket.create_server(("127.0.0.1", 0)) as between:
        sent: list[bytes] = []

        def relay() -> None:
            near, _ = between.accept()
            with near, socket.create_connection(address) as far:
                near.sendall(far.recv(32))
                while len(b"".join(sent)) < 68 or not b"".join(sent).endswith(b"}"):
                    sent.append(near.recv(4096))
                    far.sendall(sent[-1])
                near.sendall(far.recv(4096))

        thread = threading.Thread(target=relay)
        thread.start()
        assert Client(("127.0.0.1", between.getsockname()[1]), key=address.key).register(NODES[0]) == "OK"
        thread.join(60)
    with socket.create_connection(address, timeout=60) as stranger:
        stranger.sendall(b"".join(sent))
        assert len(stranger.recv(100)) == 32
        assert stranger.recv(100) == b""
    assert server.reservations.get() == NODES[:1]


def test_a_server_without_the_key_is_not_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        body = json.dumps({"answer": True}).encode()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(bytes(32) + len(body).to_bytes(4, "big") + bytes(32) + body)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(PermissionError, match="has another key"):
            Client(("127.0.0.1", listener.getsockname()[1]), key=b"k" * 32).get_reservations()
        thread.join(60)


def test_waits_end_with_words(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    address = server.start()
    Client(address).register(NODES[0])
    with pytest.raises(
        TimeoutError, match=r"Timed out waiting for reservations to complete: 2 of 3 nodes .* in 0\.1 s"
    ):
        server.await_reservations(None, timeout=0.1)
    status: dict[str, str] = {}
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(server.await_reservations, None, status)
        status["error"] = "worker:1 raised ValueError"
        with pytest.raises(RuntimeError, match="a node failed before all had reported: worker:1 raised ValueError"):
            waiting.result(60)
        waiting = pool.submit(server.await_reservations, None)
        server.stop()
        with pytest.raises(RuntimeError, match="the server was stopped while 2 of 3 nodes"):
            waiting.result(60)
    until(lambda: is_refused(address), what="the server has stopped")
    with pytest.raises(ConnectionError, match=f"reservation server 127.0.0.1:{address[1]} cannot be reached"):
        Client(address).get_reservations()
    with pytest.raises(ValueError, match="greater than zero; it is 0"):
        Server(0)


def test_a_silent_server_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(TimeoutError, match=f"127.0.0.1:{port} has not answered within 0.2 s"):
            Client(("127.0.0.1", port), key=b"k" * 32).get_reservations()


def test_ports_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv(reservation.TFOS_SERVER_PORT, str(port))
        with pytest.raises(OSError, match=f"TFOS_SERVER_PORT: no port of {port}-{port} is free"):
            Server(1).start()
        monkeypatch.setenv(reservation.TFOS_SERVER_PORT, f"{port}-{min(port + 50, 65535)}")
        server = Server(1)
        address = server.start()
        assert port < address[1] <= port + 50
        server.stop()
    monkeypatch.setenv(reservation.TFOS_SERVER_PORT, "9997-9999")
    assert Server(1).get_server_ports() == [9997, 9998, 9999]
    monkeypatch.delenv(reservation.TFOS_SERVER_PORT)
    assert Server(1).get_server_ports() == [0]
    assert Server(1).get_server_ip() == "127.0.0.1"
    monkeypatch.delenv(reservation.TFOS_SERVER_HOST)
    assert Server(1).get_server_ip() == reservation.ip_address()
    with Server(1).start_listening_socket() as listener:
        assert listener.getsockname()[1] > 0
    for text in ("x", "9-8", "70000"):
        monkeypatch.setenv(reservation.TFOS_SERVER_PORT, text)
        with pytest.raises(ValueError, match=f"TFOS_SERVER_PORT is '{text}'"):
            Server(1).start()
