"""The nodes of a cluster report to the driver and learn of each other, with TensorFlowOnSpark's names.

    server = reservation.Server(2)                  # on the driver
    address = server.start()                        # (host, port), and the key as its attribute: hand it on with the task
    client = reservation.Client(address)            # in a task
    client.register({"executor_id": 1, "host": "10.0.0.7", "port": 2222})
    nodes = client.await_reservations()

**Protocol.** A connection is for one request. Each side sends a nonce of 32 random bytes. The session's key is HMAC-SHA256(key, both
nonces). Then each side sends one frame: the length (4 bytes), an HMAC-SHA256 by the session's key of the direction and the body, and the
body, which is JSON. So only a peer with the key is obeyed, no frame can be sent a second time, and the answer is the server's. Nothing is
unpickled. Frames are not encrypted: they hold addresses, no secrets.

**Key.** 32 random bytes, made by the server; it travels with the address, never in its text. A command that stops a stream from outside
has the host and the port alone. If it runs as the same user on the driver's machine, it finds the key in a private file. Elsewhere it
reads TFOS_SERVER_KEY (at least 16 characters), which the driver must have too.

A stranger's connection ends after `PATIENCE` at the latest, and costs a thread until then. `runtime.network.strangers` bounds their number.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trainmaster.runtime.network.listeners import RESERVATIONS, plain_address
from trainmaster.runtime.network.strangers import Strangers

TFOS_SERVER_HOST = "TFOS_SERVER_HOST"
TFOS_SERVER_PORT = "TFOS_SERVER_PORT"
TFOS_SERVER_KEY = "TFOS_SERVER_KEY"
MAX_RETRIES = 3  # of a client that cannot connect
PATIENCE = 10.0  # s for a whole exchange
LONGEST_WAIT = 5.0  # s of it that the server waits for an answer
LARGEST = {b"request": 1 << 20, b"answer": 64 << 20}  # bytes of a body; a node's facts are some 300
POLL = 0.2  # s between two looks
_LOG = logging.getLogger(__name__)


class Address(tuple[str, int]):
    """(host, port) of a server, with its key as an attribute, which pickles with it and is not printed."""

    key: bytes

    def __new__(cls, host: str, port: int, key: bytes) -> Address:
        address = super().__new__(cls, (host, port))
        address.key = key
        return address

    def __getnewargs__(self) -> tuple[str, int, bytes]:
        return (*self, self.key)


class Reservations:
    """The nodes that have reported, of those that are required. Threads share it."""

    def __init__(self, required: int) -> None:
        self.required = required
        self._lock = threading.Lock()
        self._reservations: list[Any] = []

    def add(self, meta: Any) -> None:
        """Add a node: a dictionary of facts about it."""
        with self._lock:
            self._reservations.append(meta)

    def done(self) -> bool:
        """Say whether all required nodes have reported."""
        return self.remaining() <= 0

    def get(self) -> list[Any]:
        """Return the nodes, in the order in which they reported."""
        with self._lock:
            return list(self._reservations)

    def remaining(self) -> int:
        """Return how many nodes are missing."""
        with self._lock:
            return self.required - len(self._reservations)


class Server:
    """The driver's side: `count` nodes are expected.

    `end` tells how a cluster has ended, see `Client.end`; a server that has it goes on after a client's `request_stop`, which ends others.
    """

    def __init__(self, count: int, end: Callable[[float], str] | None = None) -> None:
        if count <= 0:
            raise ValueError(f"Expected count should be greater than zero; it is {count}")
        self.reservations = Reservations(count)
        self._end = end
        self._stopped, self._is_closed = threading.Event(), False
        self._listener: socket.socket | None = None
        self._strangers, self._lock = Strangers[socket.socket](), threading.Lock()
        self._key = _key_of_environment() or secrets.token_bytes(32)

    @property
    def done(self) -> bool:
        """Say whether the server was stopped, by `stop` or by a client's `request_stop`."""
        return self._stopped.is_set()

    def start(self) -> Address:
        """Listen, and return the address for clients: TFOS_SERVER_HOST or this host's, and a port.

        The port is of TFOS_SERVER_PORT ("8000" or "8000-8010"), or any that is free.
        """
        self._listener = self.start_listening_socket()
        address = Address(self.get_server_ip(), self._listener.getsockname()[1], self._key)
        self._key_file = _key_file(address[1])
        _write_private(self._key_file, self._key)
        threading.Thread(target=self._accept, args=(self._listener,), name="reservations", daemon=True).start()
        _LOG.info("listening for reservations at %s", address)
        return address

    def get_server_ip(self) -> str:
        """Return the host of the address: TFOS_SERVER_HOST, or this host's own address."""
        return os.environ.get(TFOS_SERVER_HOST) or ip_address()

    def get_server_ports(self) -> list[int]:
        """Return the ports of TFOS_SERVER_PORT; without it [0], any free port."""
        return list(_ports(os.environ.get(TFOS_SERVER_PORT, "0")))

    def start_listening_socket(self) -> socket.socket:
        """Return a socket that listens at the first free port. Raises OSError where no port is free."""
        return _listen(self.get_server_ports())

    def await_reservations(self, sc: Any, status: Mapping[str, Any] | None = None, timeout: float = 600) -> list[Any]:
        """Return the nodes when all have reported. Raises TimeoutError, or RuntimeError once `status` has an "error".

        TensorFlowOnSpark then stops the context `sc` and ends the driver's process; here the caller decides, and `sc` is not touched.
        """
        end = time.monotonic() + timeout
        while not self.reservations.done():
            if status and "error" in status:
                raise RuntimeError(f"a node failed before all had reported: {status['error']}")
            remaining, required = self.reservations.remaining(), self.reservations.required
            if time.monotonic() > end:
                raise TimeoutError(
                    f"Timed out waiting for reservations to complete: {remaining} of {required} nodes have not reported in {timeout:g} s; "
                    "are there as many executors?"
                )
            self._stopped.wait(POLL)
            if self.done:
                raise RuntimeError(f"the server was stopped while {remaining} of {required} nodes had not reported")
        return self.reservations.get()

    def stop(self) -> None:
        """Stop listening. Reservations that have come in stay readable."""
        self._is_closed = True
        self._stopped.set()
        listener, self._listener = self._listener, None
        if listener:
            _shut(listener)
            self._key_file.unlink(missing_ok=True)

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while not self._is_closed:
                try:
                    connection, peer = listener.accept()
                except OSError:  # stopped, or the peer has gone, or there are too many open files
                    self._stopped.wait(POLL)
                    continue
                with self._lock:
                    leaving = self._strangers.enter(connection, peer[0])
                    if leaving is not None:
                        _shut(leaving)  # its thread closes it
                if leaving is connection:
                    connection.close()
                else:
                    threading.Thread(
                        target=self._serve, args=(connection, peer), name="reservation", daemon=True
                    ).start()

    def _serve(self, connection: socket.socket, peer: Any) -> None:
        try:
            with connection:
                channel = _Channel(connection, self._key, is_server=True)
                request = channel.receive()
                self._let_in(connection)
                channel.send({"answer": self._answer(request)})
                if request.get("type") == "STOP":
                    self._stopped.set() if self._end else self.stop()
        except (OSError, ValueError, EOFError) as error:
            _LOG.warning("a connection from %s was closed: %s", plain_address(peer[0]), error)
        finally:
            self._let_in(connection)

    def _let_in(self, connection: socket.socket) -> None:
        """Count a connection as a stranger's no longer: it has the key, or has ended."""
        with self._lock:
            self._strangers.leave(connection)

    def _answer(self, request: Mapping[str, Any]) -> Any:
        answers: dict[str, Callable[[], Any]] = {
            "REG": lambda: self._register(request.get("data")),
            "QUERY": self.reservations.done,
            "QINFO": self.reservations.get,
            "STOP": lambda: "OK",
            "END": lambda: self._end(LONGEST_WAIT if request.get("data") else 0.0) if self._end else "",
        }
        return answers.get(str(request.get("type")), lambda: "ERR")()

    def _register(self, meta: Any) -> str:
        self.reservations.add(meta)
        return "OK"


class Client:
    """A node's side. `server_addr` is what `Server.start` returned, or (host, port) where `key` or TFOS_SERVER_KEY has the key."""

    def __init__(self, server_addr: tuple[str, int], key: bytes | None = None) -> None:
        self.server_addr = server_addr
        self._key = (
            key or getattr(server_addr, "key", None) or _key_of_environment() or _key_of_user(server_addr[1]) or b""
        )
        if not self._key:
            raise ValueError(
                f"the key of the reservation server {_text(server_addr)} is missing: run this as the driver's user on its machine, hand on "
                f"the address that Server.start() returned, or set {TFOS_SERVER_KEY} here and for the driver"
            )

    def register(self, reservation: Any) -> Any:
        """Report this node: a dictionary of facts that JSON can carry."""
        return self._request("REG", reservation)

    def get_reservations(self) -> list[Any]:
        """Return the nodes that have reported so far."""
        return self._request("QINFO")  # type: ignore[no-any-return]

    def await_reservations(self) -> list[Any]:
        """Return all nodes, when all have reported. Raises OSError where the server has gone."""
        while not self._request("QUERY"):
            time.sleep(POLL)
        return self.get_reservations()

    def request_stop(self) -> Any:
        """Stop the server."""
        return self._request("STOP")

    def end(self, waits: bool = True) -> str:
        """Return how the server's cluster has ended, "" while it runs. `waits`: for some seconds, since its end is near."""
        return str(self._request("END", waits))

    def close(self) -> None:
        """Do nothing: each request has a connection of its own."""

    def _request(self, kind: str, data: Any = None) -> Any:
        server = f"the reservation server {_text(self.server_addr)}"
        with self._connect() as connection:
            try:
                channel = _Channel(connection, self._key, is_server=False)
                channel.send({"type": kind, "data": data})
                return channel.receive()["answer"]
            except TimeoutError as error:
                raise TimeoutError(f"{server} has not answered within {PATIENCE:g} s") from error
            except (EOFError, ConnectionError) as error:
                raise PermissionError(f"{server} closed the connection: it has another key, or has stopped") from error
            except _WrongKey as error:
                raise PermissionError(f"{server} has another key") from error

    @contextmanager
    def _connect(self) -> Iterator[socket.socket]:
        for attempt in range(1, MAX_RETRIES + 1):
            try:
                connection = socket.create_connection(self.server_addr[:2], timeout=PATIENCE)
                break
            except OSError as error:
                if attempt == MAX_RETRIES:
                    message = f"the reservation server {_text(self.server_addr)} cannot be reached: {error}"
                    raise ConnectionError(message) from error
                time.sleep(POLL)
        with connection:
            yield connection


class _WrongKey(ValueError):
    """A frame was not written with the key."""


class _Channel:
    """One exchange, after that of the nonces. Raises EOFError where the peer closes, ValueError for a frame that is not the peer's."""

    def __init__(self, connection: socket.socket, key: bytes, *, is_server: bool) -> None:
        self._connection, self._end = connection, time.monotonic() + PATIENCE
        nonce = secrets.token_bytes(32)
        connection.settimeout(PATIENCE)
        connection.sendall(nonce)
        peer = self._read(32)
        nonces = nonce + peer if is_server else peer + nonce
        self._session = hmac.digest(key, b"trainmaster reservation 1" + nonces, "sha256")
        self._own, self._peer = (b"answer", b"request") if is_server else (b"request", b"answer")

    def send(self, body: Mapping[str, Any]) -> None:
        content = json.dumps(body).encode()
        if len(content) > LARGEST[self._own]:
            raise ValueError(f"a message of {len(content)} bytes is longer than {LARGEST[self._own]}")
        self._connection.sendall(len(content).to_bytes(4, "big") + self._code(self._own, content) + content)

    def receive(self) -> dict[str, Any]:
        length = int.from_bytes(self._read(4), "big")
        if length > LARGEST[self._peer]:
            raise _WrongKey(f"a message of {length} bytes is longer than {LARGEST[self._peer]}")
        code = self._read(32)
        content = self._read(length)
        if not hmac.compare_digest(code, self._code(self._peer, content)):
            raise _WrongKey("a message has the wrong key")
        try:
            body = json.loads(content)
        except RecursionError:
            raise ValueError("a message is nested too deeply") from None
        if not isinstance(body, dict):
            raise ValueError("a message is not a JSON object")
        return body

    def _code(self, direction: bytes, content: bytes) -> bytes:
        return hmac.digest(self._session, direction + hashlib.sha256(content).digest(), "sha256")

    def _read(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            self._connection.settimeout(max(self._end - time.monotonic(), 0.001))
            piece = self._connection.recv(min(size - len(content), 1 << 16))
            if not piece:
                raise EOFError("the peer closed the connection")
            content += piece
        return bytes(content)


def _key_of_environment() -> bytes:
    key = os.environ.get(TFOS_SERVER_KEY, "")
    if key and len(key) < 16:
        raise ValueError(f"{TFOS_SERVER_KEY} has {len(key)} characters: use at least 16 random ones")
    return key.encode()


def _key_file(port: int) -> Path:
    """Return the file with the key of this user's server at a port of this machine. Raises ImportError in a task: only we are there."""
    from trainmaster.host.places import runtime_dir

    return runtime_dir() / f"reservation-{port}.key"  # of this boot, and of nobody else


def _key_of_user(port: int) -> bytes:
    with suppress(ImportError, FileNotFoundError):
        return _key_file(port).read_bytes()
    return b""


def _write_private(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # of a driver that was killed
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _ports(text: str) -> range:
    first, _, last = text.partition("-")
    try:
        ports = range(int(first), int(last or first) + 1)
    except ValueError as error:
        raise ValueError(f"{TFOS_SERVER_PORT} is {text!r}: use a port, as 8000, or a range, as 8000-8010") from error
    if not ports or not 0 <= ports[0] <= ports[-1] <= 65535:
        raise ValueError(f"{TFOS_SERVER_PORT} is {text!r}: ports are from 1 to 65535, the lower first")
    return ports


def _listen(ports: Sequence[int]) -> socket.socket:
    for port in ports:
        try:
            return RESERVATIONS.at_address(port=port)
        except OSError as error:
            reason = str(error)  # the error itself would keep the frames of all callers, and sockets in them
    raise OSError(f"{TFOS_SERVER_PORT}: no port of {ports[0]}-{ports[-1]} is free: {reason}")


def ip_address() -> str:
    """The address by which this host reaches others. Nothing is sent; without a network it is the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _shut(listener: socket.socket) -> None:
    try:
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
    except OSError:  # it is closed
        return


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
