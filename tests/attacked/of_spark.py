"""The listeners of Spark's drivers, of its executors' masters, and of their submitters."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial

from spark import VERSIONS, home_of

from trainmaster.client.submit.ahead import certificate_and_key
from trainmaster.core.errors import TrainmasterError
from trainmaster.engines.spark import wire
from trainmaster.engines.spark.application import launch
from trainmaster.engines.spark.bridge import bridge
from trainmaster.engines.spark.bridge.listener import name_unguessably
from trainmaster.engines.spark.container.entry import secrets_for
from trainmaster.engines.spark.master import tickets
from trainmaster.runtime.network import listeners as table
from trainmaster.spark import reservation

from . import (
    FOREIGN,
    PATIENCE,
    TOKEN,
    Scene,
    Target,
    assert_answers,
    at_path,
    at_port,
    heard,
    line,
    nested,
    request,
    said,
)


def secrets_of_containers(at: Scene) -> dict[table.Row, Target]:
    at.patch.setattr(tickets, "WITHIN", PATIENCE)
    certificate, key = certificate_and_key()
    server = tickets.Tickets("127.0.0.1", certificate, key)
    at.do(server.open())
    at.at_end(lambda: at.do(server.close()))
    port, values = server._address[1], {"token": TOKEN}
    connect = at_port(port, certificate)
    server.ticket(("worker:1", 1), values)

    def fetch(port: int) -> str:
        ticket = {**server.ticket(("worker:0", 1), values), "address": ["127.0.0.1", port], "within": 180.0}
        assert secrets_for(ticket, certificate) == values
        return str(ticket["number"])

    def of_another() -> bytes:
        number = server.ticket(("worker:2", 1), values)["number"]
        server.withdraw(("worker:2", 1))
        return said(connect, number.encode() + b"\n")

    lies = {
        "a ticket that was brought": lambda: said(connect, fetch(port).encode() + b"\n"),
        "a ticket that was withdrawn": of_another,
        "the job's token": lambda: said(connect, TOKEN.encode() + b"\n").replace(TOKEN.encode(), b""),
        "not UTF-8": lambda: said(connect, b"\xff\xfe\n"),
    }
    return {
        table.TICKETS: Target(
            connect, partial(fetch, port), lies, state=lambda: dict(server._secrets), secrets=(TOKEN, key), is_cut=True, port=port,
            good_at=fetch, is_secured=True,
        )
    }  # fmt: skip


def application(at: Scene) -> dict[table.Row, Target]:
    at.patch.setattr(wire, "LIMIT", 64 * 1024)
    serves = bridge.Bridge.__new__(bridge.Bridge)
    job = bridge.Job("job", TOKEN, (), "pool")
    serves.__dict__.update(application="app-1", _jobs={"job": job}, _lock=threading.RLock(), _only="")
    server = bridge.Server(str(wire.folder() / "app-1.sock"), serves)
    thread = at.in_thread(server.serve_forever)
    at.at_end(server.server_close)
    at.at_end(thread.join)
    at.at_end(server.shutdown)

    def good() -> None:
        assert wire.ask("app-1", "state", job="job") == "submitting"

    connect = at_path(wire.folder() / "app-1.sock")
    lies = {
        "another job's token": lambda: said(connect, line(verb="follow", job="job", token=FOREIGN), line(asks=[])),
        "another job": lambda: said(connect, line(verb="follow", job="other", token=TOKEN)),
        "no token": lambda: said(connect, line(verb="follow")),
        "a list": lambda: said(connect, b"[]\n"),
        "nested": lambda: said(connect, nested(20_000) + b"\n"),
        "not UTF-8": lambda: said(connect, b"\xff\xfe\n"),
    }
    return {table.BRIDGE: Target(connect, good, lies, state=lambda: (job.state, job.connection, [*serves._jobs]))}


def callbacks(at: Scene) -> dict[table.Row, Target]:
    """py4j's server for calls out of the JVM, with the pool of objects as `Listener` has it."""
    at.patch.syspath_prepend(str(home_of(VERSIONS[-1]).folder.parent))
    from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

    gateway = ClientServer(JavaParameters(), PythonParameters(port=0, daemonize=True, daemonize_connections=True))
    at.at_end(gateway.shutdown_callback_server)
    called: list[str] = []

    class Object:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *arguments: called.append(name)

    name_unguessably(gateway.gateway_property.pool)
    name_unguessably(gateway.gateway_property.pool)  # of the next context
    name = gateway.gateway_property.pool.put(Object())
    port = gateway.get_callback_server().get_listening_port()
    connect = at_port(port)

    def call(name: str, method: str = "onApplicationEnd") -> bytes:
        return f"c\n{name}\n{method}\nn\ne\n".encode()

    def good() -> None:
        assert_answers(connect, call(name, "good") + b"\n\n", b"!yn")
        called.remove("good")

    numbered = b"".join(call(f"p{number}") for number in range(8))
    lies = {
        "py4j's own names": lambda: said(connect, numbered + b"\n\n"),
        "a page of the web": lambda: said(
            connect, request("/", "POST", b"x\n" + numbered + b"\n\n", Origin="http://evil.example")
        ),
        "forgotten objects": lambda: said(connect, f"g\np0\ne\ng\n{name[:-1]}\ne\n\n\n".encode()),
        "a part of a name": lambda: said(connect, call(name[:-1]) + call("") + b"\n\n"),
    }
    return {table.CALLBACKS: Target(connect, good, lies, (), state=lambda: [*called], secrets=(name,))}


def submitter(at: Scene) -> dict[table.Row, Target]:
    """Each connection is one of a submission of its own, which a stranger spoils and does not enter."""
    at.patch.setattr(wire, "LIMIT", 64 * 1024)
    entered: list[object] = []
    wire.driver_log("job").parent.mkdir(parents=True)
    wire.driver_log("job").touch()
    driver = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    at.at_end(driver.communicate)

    def submit(within: float) -> tuple[threading.Thread, socket.socket]:
        def wait(listener: socket.socket) -> None:
            with listener, contextlib.suppress(TrainmasterError):
                entered.append(launch._wait(driver, listener, within, wire.driver_log("job")))

        with wire.awaiting_driver("job") as listener:
            thread = at.in_thread(partial(wait, listener.dup()))
            return thread, wire.connect_to_submitter("job")

    def stranger() -> socket.socket:
        thread, connection = submit(PATIENCE)
        at.at_end(thread.join)
        return connection

    def good() -> None:
        thread, connection = submit(180.0)
        with connection:
            connection.sendall(wire.line({"application": "app-1"}))
            thread.join()
            assert entered.pop() == "app-1"

    lies = {
        "nested": lambda: said(stranger, nested() + b"\n"),
        "a number": lambda: said(stranger, b"7\n"),
        "a list": lambda: said(stranger, b"[]\n"),
        "not UTF-8": lambda: said(stranger, b"\xff\xfe\n"),
    }
    return {table.SUBMITTER: Target(stranger, good, lies, state=lambda: [*entered], is_cut=True)}


def reservations(at: Scene) -> dict[table.Row, Target]:
    at.patch.setenv(reservation.TFOS_SERVER_HOST, "127.0.0.1")
    at.patch.setattr(reservation, "PATIENCE", PATIENCE)
    server = reservation.Server(1)
    address = server.start()
    at.at_end(server.stop)
    connect, most = at_port(address[1]), reservation.LARGEST[b"request"]

    def good(port: int) -> None:
        assert reservation.Client(("127.0.0.1", port), address.key).get_reservations() == []

    def framed(content: bytes, key: bytes = address.key) -> bytes:
        with connect() as connection:
            spoken = reservation._Channel(connection, key, is_server=False)
            connection.sendall(len(content).to_bytes(4, "big") + spoken._code(b"request", content) + content)
            return heard(connection)

    lies = {
        "another key": lambda: framed(b'{"type":"REG","data":1}', b"another"),
        "a request over the limit": lambda: said(connect, bytes(32) + (most + 1).to_bytes(4, "big")),
        "nested": lambda: framed(nested()),
        "not UTF-8": lambda: framed(b"\xff\xfe"),
        "a list": lambda: framed(b"[]"),
    }
    floods = (b"", bytes(32) + most.to_bytes(4, "big"))
    return {
        table.RESERVATIONS: Target(
            connect, lambda: good(address[1]), lies, floods, state=server.reservations.get, is_cut=True, port=address[1], good_at=good,
            secrets=(address.key.decode("latin-1"),),
        )
    }  # fmt: skip
