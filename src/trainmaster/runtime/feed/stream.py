"""A feeder's connection to a ring of another host: the messages of `channel` over TLS, one a line, and the bytes of batches.

The agent that owns the ring shows the certificate of the job, the feeder its feed's token. A batch's bytes follow the message `written`,
once the owner has kept room for them; it answers them, so a feeder knows what arrived whole. Where the stream breaks, the owner drops the
batch that did not; its number keeps one that did from being there twice when the feeder comes again.

    feed {v, ring, feed, token}     ring {size, largest} | refused {why} | the end of the connection: the ring is another one's by now
    written, and the bytes          ok {supply} | stopped
    collect                         answer {rows, size}, and the bytes of the results
"""

from __future__ import annotations

import functools
import json
import socket

from ..network.pinned import trusting
from .channel import MESSAGE_LIMIT, PROTOCOL, Channel, FeedGone, note_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from typing import Any

    from .channel import Message
    from .layout import Layout
    from .master import Answer, Link

_BOOT = "/proc/sys/kernel/random/boot_id"  # another on each machine
REACHED_WITHIN = 10.0  # s, for the connection, and for the greeting
IDLE, EVERY, TIMES = (
    4,
    2,
    3,
)  # s of silence before a probe, between two, and how many are lost on a connection that is given up
SILENT = IDLE + EVERY * TIMES  # s


class Stream(Channel):
    """A stream to the agent at `address` (host:port), for one feed of the attempt that `ring` names (task, attempt)."""

    _socket: ssl.SSLSocket
    _patience: float | None = REACHED_WITHIN
    is_stream = True

    def __init__(self, address: str, certificate: str, ring: list[Any], feed: str, token: str) -> None:
        self.path, self._is_forked, self._read = address, False, b""
        host, _, port = address.rpartition(":")
        try:
            plain = socket.create_connection((host.strip("[]"), int(port)), REACHED_WITHIN)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise FeedGone(self._gone(error.strerror or str(error))) from error
        try:
            self._socket = trusting(certificate).wrap_socket(plain)
            self.send({"op": "feed", "v": PROTOCOL, "ring": ring, "feed": feed, "token": token})
            greeting = self.receive()
            assert greeting is not None
            self._patience = None
            notice_silence(self._socket)
        except BaseException as error:
            plain.close()
            if isinstance(error, OSError) and not isinstance(error, FeedGone):
                raise FeedGone(self._gone(str(error))) from error
            raise
        self.size, self.largest = int(greeting["size"]), int(greeting["largest"])
        note_fork(self)

    def send(self, message: Message) -> None:
        self._send(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def receive(self, wait: bool = True) -> Message | None:
        from ssl import SSLWantReadError

        while b"\n" not in self._read:
            try:
                self._socket.settimeout(self._patience if wait else 0)
                content = self._socket.recv(MESSAGE_LIMIT)
            except SSLWantReadError:
                return None
            except OSError as error:
                raise self._lost() from error
            finally:
                self._socket.settimeout(self._patience)
            if not content:
                raise self._lost()
            self._read += content
        line, _, self._read = self._read.partition(b"\n")
        return self._decode(line)

    def write(self, at: int, layout: Layout) -> None:
        content = bytearray(layout.size)
        layout.write(memoryview(content))
        self.send({"op": "written"})
        self._send(content)

    def receive_content(self) -> tuple[Message, bytes | None]:
        message = self.receive()
        assert message is not None
        if message["op"] != "answer":
            return message, None
        content = bytearray(int(message["size"]))
        done = min(len(self._read), len(content))
        content[:done], self._read = self._read[:done], self._read[done:]
        with memoryview(content) as rest:
            while done < len(content):
                try:
                    count = self._socket.recv_into(rest[done:])
                except OSError as error:
                    raise self._lost() from error
                if not count:
                    raise self._lost()
                done += count
        return message, bytes(content)

    def _send(self, content: bytes | bytearray) -> None:
        try:
            self._socket.sendall(content)
        except OSError as error:
            raise self._lost() from error


def connect(link: Link, place: Answer) -> Channel:
    """Connect to a ring as the master names it: by its socket, or by a stream where it is on another host, or in another container of
    this one. Raises FeedGone.
    """
    try:
        if place["host"] == machine():
            return Channel(place["socket"], "feed")
    except FeedGone:
        if not place["address"]:
            raise
    return Stream(place["address"], link["certificate"], place["ring"], link["feed"], link["token"])


@functools.cache
def machine() -> str:
    """Return a name of this machine that no other has."""
    with open(_BOOT) as file:
        return file.read().strip()


def notice_silence(connection: socket.socket) -> None:
    """Have the kernel end a TCP connection whose other end has been silent for `SILENT` seconds, as one behind a cut network is."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, IDLE), (socket.TCP_KEEPINTVL, EVERY), (socket.TCP_KEEPCNT, TIMES)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT * 1000)
