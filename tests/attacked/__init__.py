"""The real server behind each row of the table of listeners, in this process, and the lies that are tried at it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from waiting import until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as open_websocket

from trainmaster.core.input.feed_tokens import feed_token
from trainmaster.runtime.network import door
from trainmaster.runtime.network.pinned import trusting

TOKEN, FOREIGN = "the-token-of-the-job", "the-token-of-another-job"
PATIENCE = 1.0  # s that a stranger has here; a good client that is slower tries again
FEED_TOKENS = {name: feed_token(TOKEN, "worker", name) for name in ("input", "other")}
DEEP = 100_000  # brackets
JSON = {"Content-Type": "application/json"}


@attrs.define
class Target:
    """A server that serves. `connect`: as its clients do, before their first word; `good`: raises unless a good client is served.

    `lies`: what else is tried there, each with all that came back. `floods`: the beginnings of messages without an end, at which the server
    closes the connection; at those of `bodies` it reads on, and keeps nothing. `state`: what no stranger changes.
    """

    connect: Callable[[], Any]
    good: Callable[[], object]
    lies: Mapping[str, Callable[[], bytes]] = attrs.field(factory=dict)
    floods: Sequence[bytes] = (b"",)
    bodies: Sequence[bytes] = ()
    state: Callable[[], object] = lambda: None
    secrets: Sequence[str] = (TOKEN,)
    is_cut: bool = False  # who says nothing is cut
    port: int = 0  # where what a good client said cannot be said again
    good_at: Callable[[int], object] = lambda port: None  # a good client that comes by another port
    is_secured: bool = False  # by TLS


@attrs.define
class Scene:
    """Where servers run: a loop in a thread, a folder whose paths are short, and what to undo at the end."""

    folder: Path
    patch: pytest.MonkeyPatch
    stack: contextlib.ExitStack
    errors: list[Mapping[str, Any]] = attrs.field(factory=list)  # that reached the loop's handler
    _loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.new_event_loop)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def call(self, act: Callable[..., Any], *arguments: Any) -> Any:
        async def work() -> Any:
            return act(*arguments)

        return self.do(work())

    def at_end(self, act: Callable[..., Any], *arguments: Any) -> None:
        self.stack.callback(act, *arguments)

    def in_thread(self, act: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=act)
        thread.start()
        return thread


@contextlib.contextmanager
def scene(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Scene]:
    patch.setitem(door.Crowd.__init__.__kwdefaults__, "trusted_within", PATIENCE)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        present = Scene(folder, patch, stack)
        present.loop.set_exception_handler(lambda loop, context: present.errors.append(context))
        thread = present.in_thread(present.loop.run_forever)

        def stop() -> None:
            until(lambda: present.call(lambda: len(asyncio.all_tasks())) == 1, what="the end of all connections")
            present.loop.call_soon_threadsafe(present.loop.stop)
            thread.join()
            present.loop.close()

        present.at_end(stop)
        yield present


# -- what clients do --


def heard(connection: Any) -> bytes:
    """Return all that comes until the other end closes the connection."""
    content = b""
    connection.settimeout(180)
    with contextlib.suppress(ConnectionError, ssl.SSLError), connection:
        while piece := connection.recv(65536):
            content += piece
    return content


def said(connect: Callable[[], Any], *contents: bytes) -> bytes:
    """Say this, and return all that comes back until the end."""
    connection = connect()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        for content in contents:
            connection.sendall(content)
    return heard(connection)


def at_path(path: object, kind: int = socket.SOCK_STREAM) -> Callable[[], socket.socket]:
    def connect() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, kind)
        connection.connect(str(path))
        return connection

    return connect


def at_port(port: int, certificate: str = "", host: str = "127.0.0.1", source: str = "127.0.0.1") -> Callable[[], Any]:
    def connect() -> Any:
        plain = socket.create_connection((host, port), 180, (source, 0))
        return trusting(certificate).wrap_socket(plain) if certificate else plain

    return connect


def line(**message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


def request(path: str, method: str = "GET", body: bytes = b"", **headers: str) -> bytes:
    """Return a request as bytes, after whose answer the connection ends."""
    sent = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in sent.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def endless(path: str, **headers: str) -> bytes:
    """Return the beginning of a request whose body has no end."""
    head = request(path, "POST", Transfer_Encoding="chunked", **headers).replace(b"Content-Length: 0\r\n", b"")
    return head + b"fffffffff\r\n"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def nested(depth: int = DEEP) -> bytes:
    return b'{"op":' + b"[" * depth + b"]" * depth + b"}"


def websocket(connect: Callable[[], Any], path: str, *frames: str | bytes, token: str = TOKEN) -> bytes:
    """Say frames, and return all that comes back until the end."""
    headers, content = bearer(token), b""
    try:
        channel = open_websocket(
            f"ws://localhost{path}", sock=connect(), additional_headers=headers, compression=None, open_timeout=180
        )
    except InvalidStatus as refused:
        if refused.response.status_code != 403:
            raise
        return refused.response.body or b""
    with channel, contextlib.suppress(ConnectionClosed):
        for frame in frames:
            channel.send(frame)
        while True:
            answer = channel.recv()
            content += answer.encode() if isinstance(answer, str) else answer
    return content


def assert_answers(connect: Callable[[], Any], content: bytes, expected: bytes) -> None:
    assert expected in (answer := said(connect, content)), answer


def peers_answer(connection: socket.socket, content: bytes) -> bytes:
    """Return the first answer of a server that keeps the connection open."""
    with connection:
        connection.settimeout(180)
        connection.sendall(content)
        return connection.recv(65536)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def fetched(port: int, path: str, **headers: str) -> http.client.HTTPResponse:
    """Return a page that a browser asks for; its content is read."""
    browser = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    try:
        browser.request("GET", path, headers=headers)
        answer = browser.getresponse()
        answer.content = answer.read()  # type: ignore[attr-defined]
        return answer
    finally:
        browser.close()
