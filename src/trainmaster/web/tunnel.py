"""A WebSocket of a browser, carried on to a program: messages, subprotocol and end go both ways, for as long as both sides are there.

The two connections have handshakes, pings and masks of their own, so messages are carried, not bytes. The size of the program's messages is
bounded, as our server bounds that of the browser's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

HANDSHAKE_LIMIT = 30.0  # s
LARGEST = 16 * 2**20  # bytes of a message, as uvicorn's default
_CHUNK = 64 * 1024
_NORMAL, _LEAVING, _NO_STATUS, _ABNORMAL, _FAILED = 1000, 1001, 1005, 1006, 1011  # RFC 6455, 7.4.1


class Upstream:
    """The connection to the program."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: str, subprotocols: list[Any]
    ) -> None:
        self._reader, self._writer = reader, writer
        self._early: list[Any] = []  # frames that came with the answer to the handshake
        self.protocol = ClientProtocol(parse_uri(url), subprotocols=subprotocols or None, max_size=LARGEST)

    async def open(self, headers: Headers) -> Headers:
        """Shake hands, and return the headers of the program's answer. Raises OSError where it opens no WebSocket."""
        request = self.protocol.connect()
        del request.headers["Host"]
        for name, value in headers:
            if not name.startswith(b"sec-websocket-"):
                request.headers[name.decode("latin-1")] = value.decode("latin-1")
        self.protocol.send_request(request)
        async with asyncio.timeout(HANDSHAKE_LIMIT):
            await self.flush()
            while self.protocol.state is State.CONNECTING and self.protocol.handshake_exc is None:
                await self._read()
        if self.protocol.handshake_exc is not None:
            raise ConnectionError(str(self.protocol.handshake_exc))
        answer, *self._early = self.protocol.events_received()
        assert isinstance(answer, Response)
        return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.raw_items()]

    async def messages(self) -> AsyncIterator[str | bytes]:
        """Yield the program's messages until its end."""
        parts: list[bytes] = []
        is_text = False
        events = self._early
        while True:
            for frame in events:
                if not isinstance(frame, Frame) or frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                    continue
                if frame.opcode is not Opcode.CONT:
                    is_text = frame.opcode is Opcode.TEXT
                parts.append(bytes(frame.data))
                if frame.fin:
                    whole, parts = b"".join(parts), []
                    yield whole.decode("utf-8", "replace") if is_text else whole
            if self.protocol.state is not State.OPEN:
                return
            await self._read()
            events = self.protocol.events_received()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        text = message.get("text")
        if self.protocol.state is State.OPEN and text is not None:
            self.protocol.send_text(text.encode())
        elif self.protocol.state is State.OPEN:
            self.protocol.send_binary(message.get("bytes") or b"")
        await self.flush()

    async def close(self, code: int) -> None:
        if self.protocol.state is State.OPEN:
            self.protocol.send_close(
                _LEAVING if code in (_NO_STATUS, _ABNORMAL) else code
            )  # those two never go over the wire
        await self.flush()

    @property
    def end(self) -> tuple[int, str]:
        """Return the code and the reason with which the program ended it, for the browser."""
        if (close := self.protocol.close_rcvd) is None:
            return _FAILED, "the program broke off"
        return (_NORMAL if close.code == _NO_STATUS else close.code), close.reason

    async def flush(self) -> None:
        for data in self.protocol.data_to_send():
            if data:
                self._writer.write(data)
            elif self._writer.can_write_eof():
                self._writer.write_eof()
        await self._writer.drain()

    async def _read(self) -> None:
        try:
            data = await self._reader.read(_CHUNK)
        except ConnectionError:
            data = b""
        if data:
            self.protocol.receive_data(data)
        else:
            self.protocol.receive_eof()
        await self.flush()  # pongs, and the answer to a close


async def tunnel(receive: Receive, send: Send, upstream: Upstream, headers: Headers) -> None:
    """Accept the browser's WebSocket, with `headers`, and carry it until one side ends it. `upstream` is open."""
    await receive()  # its wish to connect
    await send({"type": "websocket.accept", "subprotocol": upstream.protocol.subprotocol, "headers": headers})

    async def to_program() -> None:
        with contextlib.suppress(OSError):  # the program is gone, which its messages tell by their end
            while (message := await receive())["type"] == "websocket.receive":
                await upstream.send(message)
            await upstream.close(int(message.get("code", _LEAVING)))

    leaving = asyncio.create_task(to_program())
    try:
        async for content in upstream.messages():
            await send({"type": "websocket.send", "text" if isinstance(content, str) else "bytes": content})
        if not leaving.done():
            code, reason = upstream.end
            await send({"type": "websocket.close", "code": code, "reason": reason})
    finally:
        leaving.cancel()
        await asyncio.wait([leaving])


def address_of(base: str, resource: str) -> str:
    """Return the URL of a WebSocket of the program at `base`, scheme://host:port."""
    parts = urlsplit(base)
    return f"{'wss' if parts.scheme == 'https' else 'ws'}://{parts.netloc}{resource}"
