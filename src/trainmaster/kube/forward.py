"""Bytes to and from a port of a pod, through the API server and the kubelet.

Port-forward over a WebSocket with the subprotocol v4.channel.k8s.io: each message begins with the number of a channel, 0 for data and 1 for
an error in words; the first message of each channel is the port's number, little endian (kubelet, pkg/kubelet/cri/streaming/portforward).
API servers of every supported version hand it to the kubelet. The protocol knows no half-closed streams: either side's close ends both
directions.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

from trainmaster.kube.errors import ApiError, Unreachable, of_answer
from trainmaster.kube.wire import Connection, broken

if TYPE_CHECKING:
    from websockets.client import ClientProtocol
    from websockets.http11 import Response

    from trainmaster.kube.client import Client

_SUBPROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_PIECE = 32 * 1024
_OPENING = 30.0  # s
_relays: set[asyncio.Task[None]] = set()  # a loop holds its tasks weakly


class Forwarded:
    """A stream. `read` gives b"" at its end and raises Unreachable where the port cannot be reached."""

    def __init__(self, connection: Connection, protocol: ClientProtocol, place: str) -> None:
        self._connection, self._protocol, self._place = connection, protocol, place
        self._skip = {_DATA: 2, _ERROR: 2}
        self._message = bytearray()
        self._ready = bytearray()
        self._ended = False

    async def read(self) -> bytes:
        """Return the next bytes, as soon as some have come."""
        from websockets.frames import Frame, Opcode

        while True:
            for event in self._protocol.events_received():
                assert isinstance(event, Frame)
                if event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
                    self._message += event.data
                    if event.fin:
                        self._read_message(bytes(self._message))
                        self._message.clear()
            if self._ready:
                data = bytes(self._ready)
                self._ready.clear()
                return data
            if self._ended:
                return b""
            with broken(self._place, sent=True):
                data = await self._connection.reader.read(_PIECE * 2)
                if data:
                    self._protocol.receive_data(data)
                else:
                    self._protocol.receive_eof()
                await self._flush()
            self._ended = not data or self._protocol.close_expected()

    def _read_message(self, message: bytes) -> None:
        channel, data = message[0], message[1:]
        if skip := min(self._skip.get(channel, 0), len(data)):
            self._skip[channel] -= skip
            data = data[skip:]
        if channel == _DATA:
            self._ready += data
        elif data:
            error_text = data.decode("utf-8", "replace").strip()
            why = (
                "connection refused" if "connection refused" in error_text else error_text.rsplit(": ", 1)[-1][:200]
            )  # the rest names five layers
            raise Unreachable(f"{self._place}: {why}", sent=True)

    async def write(self, data: bytes) -> None:
        with broken(self._place, sent=True):
            for at in range(0, len(data), _PIECE):
                if self._ended:
                    raise ConnectionResetError("closed")
                self._protocol.send_binary(bytes([_DATA]) + data[at : at + _PIECE])
                await self._flush()

    async def close(self) -> None:
        self._ended = True
        from websockets.exceptions import WebSocketException

        with contextlib.suppress(Unreachable, WebSocketException):
            self._protocol.send_close(1000)
            with broken(self._place, sent=True):
                await self._flush()
        self._connection.abort()

    async def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._connection.writer.write(data)
        await self._connection.writer.drain()


async def forwarded(client: Client, path: str, port: int) -> Forwarded:
    """Open a stream to `port` of the pod whose part "portforward" has the path. Raises KubeError."""
    from websockets.client import ClientProtocol
    from websockets.typing import Subprotocol
    from websockets.uri import parse_uri

    presented = await client.presented()
    door = client.door
    uri = parse_uri(f"ws://{door.authority}{door.prefix}{path}?ports={port}")
    protocol = ClientProtocol(uri, subprotocols=[Subprotocol(_SUBPROTOCOL)], max_size=None)
    request = protocol.connect()
    for name, value in presented.headers:
        request.headers[name] = value
    protocol.send_request(request)
    connection = await door.open(presented)
    stream = Forwarded(connection, protocol, f"port {port} of {path.split('/')[-2]}")
    try:
        async with asyncio.timeout(_OPENING):
            await _finish_handshake(stream, connection, protocol, door.place)
    except TimeoutError:
        connection.abort()
        raise Unreachable(f"{door.place} does not answer within {_OPENING:g} s") from None
    except BaseException:
        connection.abort()
        raise
    return stream


async def _finish_handshake(stream: Forwarded, connection: Connection, protocol: ClientProtocol, place: str) -> None:
    from websockets.protocol import State

    with broken(place, sent=True):
        await stream._flush()
        answer: Response | None = None
        while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
            data = await connection.reader.read(_PIECE)
            if not data:
                raise ConnectionResetError("it closed the connection")
            protocol.receive_data(data)
    if protocol.handshake_exc is not None:
        from websockets.exceptions import InvalidStatus

        if isinstance(protocol.handshake_exc, InvalidStatus):
            answer = protocol.handshake_exc.response
            raise of_answer(answer.status_code, bytes(answer.body or b""), answer.headers.get("Retry-After", ""))
        raise ApiError(500, "", f"{place} forwards no ports: {protocol.handshake_exc}")
    events = protocol.events_received()  # the server's answer, and perhaps frames that followed at once
    protocol.events = events[1:]


async def piped(stream: Forwarded) -> socket.socket:
    """Return a socket whose bytes go to and come from a stream."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    task = asyncio.create_task(_relay(stream, reader, writer))
    _relays.add(task)
    task.add_done_callback(_relays.discard)
    return theirs


async def _relay(stream: Forwarded, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def send() -> None:
        while data := await reader.read(_PIECE):
            await stream.write(data)

    async def receive() -> None:
        while data := await stream.read():
            writer.write(data)
            await writer.drain()

    tasks = [asyncio.create_task(send()), asyncio.create_task(receive())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await stream.close()
        writer.close()
