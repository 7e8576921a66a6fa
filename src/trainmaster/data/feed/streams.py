"""Serve feeders of other hosts: the messages of `runtime.feed.stream` over TLS, and bytes that go straight into a ring.

A batch that is on its way takes `CHUNK` bytes of our memory: a feeder sends it only once the ring has room for it, and TCP holds back
what is not read. A connection that breaks gives back the room of the batch that it was sending.

Results go back by the same connection, beside what comes: those of one batch at a time, once their feeder has asked, `CHUNK` bytes of them
in our memory. A feeder that has lost its connection puts the rows without a result anew, so the results that it did not get are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.core.foreign import json_in
from trainmaster.core.machine.formation import bracketed
from trainmaster.data.feed.owner import Owner
from trainmaster.host.linux import descriptor_limit
from trainmaster.runtime.feed.channel import PROTOCOL
from trainmaster.runtime.feed.stream import notice_silence
from trainmaster.runtime.network.door import Crowd, Door, Stranger, streamed
from trainmaster.runtime.network.listeners import FEED

if TYPE_CHECKING:
    import ssl

MOST = 512  # connections of feeders
CHUNK = 256 * 1024  # bytes
UNREAD = 64  # messages to one feeder; it is answered, so it has two or three of them

log = logging.getLogger(__name__)


class Streams:
    """The listener of one attempt. `ring`: its task and number. `may_feed(token, name)`: whether a token is that of the feed."""

    def __init__(
        self, ring: tuple[str, int], owners: Mapping[str, Owner], may_feed: Callable[[str, str], bool]
    ) -> None:
        self._ring, self._owners, self._may_feed = list(ring), owners, may_feed
        self._crowd = Crowd(descriptor_limit())
        self._door: Door | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self, address: str, context: ssl.SSLContext) -> str:
        """Listen at a free port of an address of this host; return both, as `host:port`. Raises OSError."""
        bound = FEED.at_address(address)
        self._door = Door(bound, self._crowd, streamed(self._serve), context)
        return f"{bracketed(address)}:{bound.getsockname()[1]}"

    def close(self) -> None:
        """End all connections."""
        if self._door is not None:
            self._door.close()
        self._crowd.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, stranger: Stranger, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            greeting = json_in(await reader.readline())
            if (owner := self._owner(greeting, writer)) is not None and len(self._writers) < MOST:
                stranger.trust()
                self._writers.add(writer)
                notice_silence(writer.get_extra_info("socket"))
                await self._converse(owner, reader, writer)
        except (OSError, asyncio.IncompleteReadError):  # the feeder comes again
            pass
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            log.warning("a feeder's stream sent a wrong message, and was closed: %s", error)
        finally:
            self._writers.discard(writer)
            with contextlib.suppress(AttributeError):  # see `transports.cut`
                writer.close()

    def _owner(self, greeting: Mapping[str, Any], writer: asyncio.StreamWriter) -> Owner | None:
        """Return the owner of the ring that a feeder names; None where it must go."""
        why, name = "", str(greeting["feed"])
        if not self._may_feed(str(greeting["token"]), name):
            why = "the token is not that of this feed"
        elif str(greeting["v"]).partition(".")[0] != PROTOCOL.partition(".")[0]:
            why = f"the feed speaks version {PROTOCOL} of its protocol, and not {greeting['v']}: use one version of Trainmaster"
        elif greeting["ring"] == self._ring:  # else an attempt before us had the port
            return self._owners.get(name)
        if why:
            _send(writer, {"op": "refused", "why": why})
        return None

    async def _converse(self, owner: Owner, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sending = _Sending(writer)
        feeder, size = owner.admit(sending.send, writer.transport.abort), 0
        try:
            while line := await reader.readline():
                message = json_in(line)
                if message["op"] == "reserve":
                    size = int(message["size"])
                elif message["op"] == "written":
                    await _take(owner, feeder, size, reader)
                    owner.receive(feeder, message)
                    message = {"op": "flush"}
                owner.receive(feeder, message)
        finally:
            owner.dismiss(feeder)
            await sending.close()


class _Sending:
    """The messages to one feeder, in order, each with the bytes of the file that belongs to it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._queue: asyncio.Queue[tuple[dict[str, Any], int | None]] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    def send(self, message: dict[str, Any], file: int | None = None) -> None:
        """Send a message, and the bytes of a file, which stays the caller's. Never waits."""
        if self._queue.qsize() >= UNREAD or self._writer.is_closing():
            self._writer.transport.abort()
            return
        self._queue.put_nowait((message, None if file is None else os.dup(file)))

    async def close(self) -> None:
        """Drop what is not sent."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        while not self._queue.empty():
            _, file = self._queue.get_nowait()
            if file is not None:
                os.close(file)

    async def _run(self) -> None:
        while True:
            message, file = await self._queue.get()
            try:
                if file is not None:
                    message = {**message, "size": os.fstat(file).st_size}
                _send(self._writer, message)
                at = 0
                while file is not None and (content := os.pread(file, CHUNK, at)):
                    at += len(content)
                    self._writer.write(content)
                    await self._writer.drain()
            except OSError:  # it has ended: whoever reads from it hears that too
                return
            finally:
                if file is not None:
                    os.close(file)


async def _take(owner: Owner, feeder: int, size: int, reader: asyncio.StreamReader) -> None:
    """Read the bytes of a batch into its ring. Raises IncompleteReadError where the stream ends before."""
    done = 0
    while done < size:
        content = await reader.read(min(CHUNK, size - done))
        if not content:
            raise asyncio.IncompleteReadError(b"", size - done)
        owner.write(feeder, done, content)
        done += len(content)


def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    if not writer.is_closing():
        writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
