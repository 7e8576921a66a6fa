"""One connection to the owner of a feed's ring, and the ring's memory.

The socket keeps the bounds of messages (SOCK_SEQPACKET, unix(7)); each message is one JSON object. The first answer carries the descriptor
of the memory, which has no name (memfd_create(2)) and so ends with the last process that uses it. To wait is to read the socket, which uses
no core and ends when the owner does, however it ends. From feeder and reader, with the answers:

    feed    {v}             ring {size, largest}, with the descriptor | refused {why}
    read    {v}             the same
    reserve {number, size}  write {at} | had | refused {why} | stopped; with {rows, waits: false, try, limit, ahead} also full {why}, and
                            superseded
    written                 no answer
    flush                   ok {supply} | stopped
    next                    batch {at, size, number, first, end} | end
    release {at}            no answer
    stop                    no answer
    answer {number, rows}   no answer; with the descriptor of a file that has the results (see `results`)
    collect                 answer {rows}, with the descriptor, once there are results of what this feeder put, one at a time

`stopped` may come at any time, and is then the last message to a feeder. `starved {held, size}` comes to a reader that asks for more while
it holds so much that nothing more can be written. A process that gets a message sees what the sender wrote before: the messages are system
calls of both.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import weakref

from .. import forks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .layout import Layout

    Message = dict[str, Any]

PROTOCOL = "1.0"
MESSAGE_LIMIT = 4096  # bytes


class FeedError(RuntimeError):
    """The feed cannot be used in this way."""


class FeedGone(FeedError, ConnectionError):
    """The owner of the feed has ended."""


class Channel:
    """A connection, to the owner a `role`: "feed" or "read".

    `memory` is the ring, of `size` bytes, `largest` the bytes that a batch may have.
    """

    is_stream = False  # to another host

    def __init__(self, path: str, role: str) -> None:
        self.path, self._is_forked = path, False
        self._socket: socket.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.connect(path)
            self.send({"op": role, "v": PROTOCOL})
            content, descriptors, _, _ = socket.recv_fds(self._socket, MESSAGE_LIMIT, 1)
            greeting = self._decode(content)
            self.memory = mmap.mmap(descriptors[0], greeting["size"])
            self.size, self.largest = int(greeting["size"]), int(greeting["largest"])
            os.close(descriptors[0])
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and not isinstance(error, FeedGone):
                raise FeedGone(self._gone(error.strerror or str(error))) from error
            raise
        note_fork(self)

    def send(self, message: Message) -> None:
        try:
            self._socket.sendall(_encoded(message))
        except OSError as error:
            raise self._lost() from error

    def send_file(self, message: Message, descriptor: int) -> None:
        """Send a message, and a descriptor with it."""
        try:
            socket.send_fds(self._socket, [_encoded(message)], [descriptor])
        except OSError as error:
            raise self._lost() from error

    def receive(self, wait: bool = True) -> Message | None:
        """Return the next message; None where there is none now and `wait` is false."""
        try:
            content = self._socket.recv(MESSAGE_LIMIT, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._lost() from error
        return self._decode(content)

    def write(self, at: int, layout: Layout) -> None:
        """Write a batch where the owner lets it be written. A stream's owner answers, `ok` or `stopped`."""
        layout.write(memoryview(self.memory)[at : at + layout.size])
        self.send({"op": "written"})

    def receive_content(self) -> tuple[Message, bytes | None]:
        """Wait for the next message; return it, and the content of the file that came with it, else None."""
        try:
            content, descriptors, _, _ = socket.recv_fds(self._socket, MESSAGE_LIMIT, 1)
        except OSError as error:
            raise self._lost() from error
        if not descriptors:
            return self._decode(content), None
        with open(descriptors[0], "rb") as file:
            file.seek(0)
            return self._decode(content), file.read()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it is not connected any more
            self._socket.shutdown(socket.SHUT_RDWR)  # a thread that reads wakes up; after a close alone it would not
        self._socket.close()

    def _decode(self, content: bytes) -> Message:
        if not content:
            raise self._lost()
        message: Message = json.loads(content)
        if message["op"] == "refused":
            raise FeedError(message["why"])
        return message

    def _lost(self) -> FeedError:
        return FeedError(forks.FORKED) if self._is_forked else FeedGone(self._gone("the connection was closed"))

    def _gone(self, reason: str) -> str:
        return f"the feed at {self.path} is gone, its agent has ended ({reason}): the job's events say why"

    def _in_child(self) -> None:
        self._is_forked = True
        self._socket.close()  # the owner shall notice the parent's death


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _encoded(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def note_fork(channel: Channel) -> None:
    """Have forked children close the channel."""
    _channels.add(channel)


def _after_fork() -> None:
    for channel in list(_channels):
        channel._in_child()


os.register_at_fork(after_in_child=_after_fork)
