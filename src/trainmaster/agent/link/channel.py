"""The agent's end of its channel to the master: one WebSocket, which the agent opens, and opens again whenever it is lost.

The agent sends numbered reports (kept by `outbox`), requests for shards, pieces of log for followers, and samples, in this order of
urgency; orders come back. An order or a welcome of an epoch below the highest seen is refused: another master has followed its master.

The right to run a program is a lease. It lasts `grace` seconds of CLOCK_BOOTTIME from the *sending* of the last ping that was answered (the
first is the hello). So anybody who waits longer than that without hearing of us knows that nothing of ours runs. An agent that was never
welcomed runs nothing, and may wait longer where it was begun before its master. An agent whose program has ended runs nothing either. It
looks for a master for `Link.stay`: if the agent ended, the end of the program would be lost with it, and the next master would run the
program again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from trainmaster.agent.link.outbox import Outbox
from trainmaster.core.frames import FrameError, Joiner, split
from trainmaster.host.allowance import boottime
from trainmaster.host.linux import Process, look
from trainmaster.transports import cut

PATH = "/api/v1/agent"
VERSION = "1.0"
FRAME = 64 * 1024
PING_EVERY = 2.0  # s; four times within the grace at least
SILENT = 8.0  # s without an answer to a ping, then the connection is given up
OPEN_WITHIN = 10.0  # s
REACHED_WITHIN = 2.0  # s for TCP alone: the Service of a lost pod leads nowhere, and soon to the next pod
LOOK_UP = 1.0  # s that a try to connect waits for the lookup of the master
BACKOFF_FIRST, BACKOFF_LAST = 0.05, 1.0  # s
BACKOFF_UNMET = 0.2  # s, while the agent waits for a master begun at the same time
LOOK = 0.5  # s between two looks at the clock of the grace
STAY = 600.0  # s without a master, where the end of the program would be lost
ASKS = 1024  # requests waiting to be sent

log = logging.getLogger(__name__)


@attrs.frozen(slots=True, eq=False, repr=False)
class Link:
    """The way to the master: a Unix socket, or addresses `host:port` under TLS with only the job's certificate (PEM)."""

    token: str
    grace: float = 30.0
    socket: str = ""
    addresses: Sequence[str] = ()
    certificate: str = ""
    unmet: float = 0.0  # s to wait for a first welcome, where that is more than the grace
    stay: float = STAY  # s to wait for a master, to report the program's end; 0: no other comes


class Owner(Protocol):
    """The agent, as its channel needs it."""

    def hello(self) -> dict[str, Any]:
        """Return the agent's whole present state, without the channel's own fields."""

    def receive(self, message: Mapping[str, Any]) -> None:
        """Handle an order, a follow, a lease: any message that the channel does not handle itself."""

    def log_piece(self) -> dict[str, Any] | None:
        """Return the next piece for a follower."""

    def connected(self, welcome: Mapping[str, Any]) -> None:
        """Note that a master has welcomed us; requests from now on reach it."""

    def disconnected(self) -> None:
        """Note that the connection closed."""

    def over(self, why: str) -> None:
        """Stop the program and end: the master refuses us, or the grace has run out."""


class Channel:
    """One agent's channel.

    `find(epoch)` reads the record of a later master: (epoch, addresses). `unreachable` is called at each failure to connect.
    `holds_end()` tells whether no program runs, and a master must still learn how the last one ended or settle its outputs.
    """

    def __init__(
        self, link: Link, owner: Owner, find: Callable[[int], tuple[int, Sequence[str]] | None] | None = None,
        unreachable: Callable[[], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        self._link, self._owner, self.find, self.unreachable = link, owner, find, unreachable
        self.holds_end: Callable[[], bool] = lambda: False
        self._addresses = list(link.addresses)
        self.outbox = Outbox()
        self.epoch = 0  # the highest seen
        self.connected = False
        self.address = ""  # ours, from which the connection goes out
        self.master: Process | None = None  # the process at the other end of a Unix socket
        self._wake = asyncio.Event()
        self._asks: deque[dict[str, Any]] = deque(maxlen=ASKS)
        self._sample: dict[str, Any] | None = None
        self._acked_at = boottime()
        self._met = False  # whether we were welcomed once
        self._closing = False
        self._cut_until = -math.inf  # until when the link is cut on purpose
        self._lookup: asyncio.Task[tuple[int, Sequence[str]] | None] | None = None

    # -- messages to the master --

    def report(self, kind: str, attempt: int, **fields: Any) -> None:
        """Send the master a report on an attempt. It is kept until it is acknowledged."""
        self.outbox.add(kind, attempt, fields)
        self._wake.set()

    def ask(self, message: dict[str, Any]) -> None:
        """Send a message that needs no acknowledgement, when connected. The caller repeats it if it has no answer."""
        self._asks.append(message)
        self._wake.set()

    def sample(self, message: dict[str, Any]) -> None:
        """Send a sample, unless a newer one comes first."""
        if self.connected:
            self._sample = message
            self._wake.set()

    def wake(self) -> None:
        """Look for something to send: a log has grown."""
        self._wake.set()

    @property
    def remaining(self) -> float:
        """Return the seconds that remain of the right to run a program."""
        lasts = self._link.grace if self._met else max(self._link.grace, self._link.unmet)
        return self._acked_at + lasts - boottime()

    async def flushed(self, within: float) -> bool:
        """Wait until every report was acknowledged. Return False after `within` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.outbox.emptied()
        return self.outbox.empty

    # -- the connection --

    async def run(self) -> None:
        """Keep a connection until cancelled, or until the master or the grace ends it."""
        failures = 0
        while not self._is_closing():
            welcomed = await self._hold_connection()
            failures = 0 if welcomed else failures + 1
            if self._is_closing():
                return
            await self._call_for_help()
            last = BACKOFF_LAST if self._met or not self._link.unmet else BACKOFF_UNMET
            longest = min(last, BACKOFF_FIRST * 2 ** min(failures, 10))
            await asyncio.sleep(longest * random.uniform(0.5, 1.0))
            await self._look_up()

    async def watch_grace(self) -> None:
        """End the agent once its right to run a program has run out, or, where it holds the end of one, its time to stay.

        This is a task of its own: it goes on whatever happens to the connection.
        """
        extra = max(0.0, self._link.stay - self._link.grace)
        stays = False
        while (remaining := self.remaining) > 0 or (self.holds_end() and remaining + extra > 0):
            if remaining <= 0 and not stays:
                log.warning("the grace has run out; no program runs, and its end is kept for the next master")
            stays = remaining <= 0
            # No timer of the loop counts the time of a suspended machine.
            await asyncio.sleep(min(LOOK, remaining + extra if stays else remaining))
        self._end("grace")

    async def _call_for_help(self) -> None:
        if self.unreachable is None:
            return
        try:
            await self.unreachable()
        except Exception:  # whatever the cause, the start of a successor is tried again
            log.exception("nothing could be done about the master that cannot be reached")

    async def _look_up(self) -> None:
        """Read the record of the master again, where it may have moved.

        A storage that does not answer does not keep the agent from trying the known addresses.
        """
        if self.find is None:
            return
        if self._lookup is None:
            self._lookup = asyncio.create_task(asyncio.to_thread(self.find, self.epoch))
        if not (await asyncio.wait([self._lookup], timeout=LOOK_UP))[0]:
            return
        lookup, self._lookup = self._lookup, None
        try:
            record = lookup.result()
        except Exception as error:  # noqa: BLE001  any error of a storage: the lookup is repeated
            log.warning("the master's record could not be read: %s", error)
            return
        if record is not None and record[0] >= self.epoch:
            self._addresses = list(record[1]) or self._addresses

    async def _hold_connection(self) -> bool:
        """Hold one connection from its opening to its end. Tell whether it was welcomed."""
        from websockets.exceptions import WebSocketException

        welcomed = False
        try:
            async with asyncio.timeout(OPEN_WITHIN):
                connection = await self._open()
        except (OSError, TimeoutError, WebSocketException, ValueError) as error:
            log.info("no connection to the master: %r", error)
            return False
        try:
            joiner, sent = Joiner(), boottime()
            for frame in split({**self._owner.hello(), "type": "hello", "v": VERSION, "epoch": self.epoch}):
                await connection.send(frame)
            async with asyncio.timeout(OPEN_WITHIN):
                greeting = await _receive(connection, joiner)
            welcomed = self._welcomed(greeting)
            if welcomed:
                self._met, self._acked_at = True, max(self._acked_at, sent)
                await self._converse(connection, joiner)
                await self._sit_out_cut(connection)
        except (OSError, TimeoutError, WebSocketException, FrameError) as error:
            log.info("the connection to the master ended: %r", error)
        finally:
            self.connected = False
            self._owner.disconnected()
            cut(connection.transport)
        return welcomed

    async def _open(self) -> Any:
        from websockets.asyncio.client import connect, unix_connect

        options: dict[str, Any] = {
            "additional_headers": {"Authorization": f"Bearer {self._link.token}"}, "compression": None, "max_size": FRAME,
            "ping_interval": None, "open_timeout": None, "close_timeout": 1, "user_agent_header": None,
        }  # fmt: skip
        if self._link.socket:
            connection = await unix_connect(
                sock=_connect_unix(self._link.socket), uri=f"ws://localhost{PATH}", **options
            )
            peer = connection.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            self.master = look(struct.unpack("3i", peer)[0])
            return connection
        from trainmaster.runtime.network.pinned import trusting  # a job of one machine has no TLS

        address = self._addresses.pop(0)
        self._addresses.append(address)  # the next one is tried next
        connection = await connect(
            f"wss://{address}{PATH}",
            ssl=trusting(self._link.certificate),
            proxy=None,
            sock=await _connect_tcp(address),
            **options,
        )
        local_socket = connection.transport.get_extra_info("socket")
        local_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENT * 1000))
        self.address = local_socket.getsockname()[0]
        return connection

    def _welcomed(self, greeting: Mapping[str, Any]) -> bool:
        if greeting.get("type") == "refused":
            log.warning("refused by the master: %s %s", greeting.get("reason"), greeting.get("detail"))
            if greeting.get("reason") != "stale-epoch":  # else it is the master that is stale
                self._end(str(greeting.get("reason")))
            return False
        epoch, acked = greeting.get("epoch"), greeting.get("acked", 0)
        if greeting.get("type") != "welcome" or type(epoch) is not int or type(acked) is not int or epoch < self.epoch:
            log.warning("no welcome of a master that may be followed: %s of epoch %s", greeting.get("type"), epoch)
            return False
        self.epoch = epoch
        self.outbox.connected(acked)
        self._asks.clear()
        self.connected = True
        self._owner.connected(greeting)
        return True

    async def _converse(self, connection: Any, joiner: Joiner) -> None:
        work = [
            asyncio.create_task(act)
            for act in (self._pump(connection), self._ping(connection), self._listen(connection, joiner))
        ]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _sit_out_cut(self, connection: Any) -> None:
        """Neither read nor write until the end of a cut that the master ordered (`tm chaos`). As behind a network that is cut, no socket
        closes, and the master's pings stay unanswered.
        """
        if self._cut_until <= boottime():
            return
        self.connected = False
        self._owner.disconnected()
        connection.transport.pause_reading()
        while (seconds := self._cut_until - boottime()) > 0 and not self._is_closing():  # noqa: ASYNC110  as in `watch_grace`
            await asyncio.sleep(min(LOOK, seconds))

    async def _pump(self, connection: Any) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message = self._next_message(loop.time())
            if message is None:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.outbox.due(loop.time())):
                        await self._wake.wait()
                continue
            for frame in split(message):
                await connection.send(frame)

    def _next_message(self, now: float) -> dict[str, Any] | None:
        if (report := self.outbox.next(now)) is not None:
            return report
        if self._asks:
            return self._asks.popleft()
        if (piece := self._owner.log_piece()) is not None:
            return piece
        sample, self._sample = self._sample, None
        return sample

    async def _ping(self, connection: Any) -> None:
        while True:
            sent = boottime()
            async with asyncio.timeout(SILENT):
                pong = await connection.ping()
                await pong
            self._acked_at = max(self._acked_at, sent)
            await asyncio.sleep(min(PING_EVERY, self._link.grace / 4))

    async def _listen(self, connection: Any, joiner: Joiner) -> None:
        while True:
            message = await _receive(connection, joiner)
            if message.get("type") == "ack" and type(message.get("n")) is int:
                self.outbox.acknowledge(message["n"])
            elif message.get("type") == "refused":
                self._end(str(message.get("reason")))
                return
            elif message.get("type") == "cut" and type(message.get("seconds")) in (int, float):
                log.warning("the link is cut on purpose for %g s", message["seconds"])
                self._cut_until = boottime() + message["seconds"]
                return
            elif self._is_current(message):
                self._owner.receive(message)

    def _is_current(self, message: Mapping[str, Any]) -> bool:
        """Tell whether the message's epoch, where it has one, is the highest seen. A higher one becomes the highest."""
        epoch = message.get("epoch")
        if epoch is None:
            return message.get("type") != "order"
        if type(epoch) is not int or epoch < self.epoch:
            log.warning(
                "refused: %s of epoch %s, after epoch %s", message.get("verb", message.get("type")), epoch, self.epoch
            )
            return False
        self.epoch = epoch
        return True

    def _is_closing(self) -> bool:
        return self._closing

    def _end(self, why: str) -> None:
        self._closing = True
        self._owner.over(why)


def _connect_unix(path: str) -> socket.socket:
    """Return a connection to a Unix socket. It never waits: the connection exists at once, or the backlog is full.

    Raise OSError. The loop's own method imports `ssl`, to check whether the socket is one of TLS.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


async def _connect_tcp(address: str) -> socket.socket:
    """Return a connection to `host:port`. Raises OSError, TimeoutError."""
    host, _, port = address.rpartition(":")
    loop, failure = asyncio.get_running_loop(), OSError(f"{host} has no address")
    for family, kind, protocol, _, endpoint in await loop.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM
    ):
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        try:
            async with asyncio.timeout(REACHED_WITHIN):
                await loop.sock_connect(connection, endpoint)
            return connection
        except OSError as error:  # TimeoutError is one
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
    raise failure


async def _receive(connection: Any, joiner: Joiner) -> dict[str, Any]:
    while (message := joiner.add(await connection.recv())) is None:
        pass
    return message
