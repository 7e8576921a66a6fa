"""Serve the master's end of the agents' channel: one WebSocket an agent, opened by the agent, both ways.

A connection is accepted with the job's token alone, says `hello`, and is admitted where its container is the task's present one. Reports
are handed on as stimuli and acknowledged once the events that they became are durable. Other input harms nothing: a foreign frame closes
the connection, and so does a queue that fills because an agent does not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, Protocol

from trainmaster.core.frames import FrameError, Joiner, split
from trainmaster.core.machine.events import VERSION
from trainmaster.core.machine.stimuli import Connected, Disconnected, Report, Stimulus
from trainmaster.master.connections.fields import check
from trainmaster.master.turn import Turns

PATH = "/api/v1/agent"
HELLO_WITHIN = 10.0  # s
HELLO_LIMIT = 1024 * 1024  # characters of a hello
PARAMETER_SERVERS = "ps"  # a role with a port of this name serves workers under the certificate (`trainmaster.ps.job`)
QUEUE = 4096  # frames waiting to be sent to one agent

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
log = logging.getLogger(__name__)


class Host(Protocol):
    """A host is the master, as far as its connections need it."""

    epoch: int
    turns: Turns

    def tell(self, *stimuli: Stimulus) -> None: ...

    def doubt(self, epoch: int) -> None:
        """Look into the storage, which alone decides: an agent says that there is a higher epoch than ours."""

    async def waited_for(self, connection: Connection) -> bool:
        """Wait a moment for the engine to grant the agent's container; return True where that was needed."""

    def lost(self, connection: Connection) -> None:
        """Note that a connection has closed: its pending requests are not answered any more."""

    async def receive(self, connection: Connection, message: Mapping[str, Any]) -> None:
        """Take in a message that is not a report: a sample, a piece of log, an ask for shards."""


class Connection:
    """One admitted agent."""

    def __init__(self, task: str, serial: int, hello: Mapping[str, Any]) -> None:
        self.task, self.serial, self.hello = task, serial, hello
        self.drop: dict[str, Any] = {}  # shards that it must not go on with, by input
        self.received = 0  # number of the last report taken in, which may not be durable yet
        self._frames: asyncio.Queue[str | None] = asyncio.Queue(QUEUE)
        self.open = True

    def send(self, message: dict[str, Any], ahead: Iterable[str] = ()) -> bool:
        """Queue the frames `ahead` and a message. Return False where the connection is closed, or is now, since its agent does not read."""
        if not self.open:
            return False
        try:
            for frame in (*ahead, *split(message)):
                self._frames.put_nowait(frame)
        except asyncio.QueueFull:
            log.warning("agent %s reads too slowly; its connection is closed", self.task)
            self.close()
        return self.open

    def dismiss(self) -> None:
        """End an agent that is still there although its container was given back."""
        self.send({"type": "refused", "reason": "released", "detail": "the container was given back"})
        self.close()

    def close(self) -> None:
        self.open = False
        if self._frames.full():
            self._frames.get_nowait()
        self._frames.put_nowait(None)

    async def pump(self, send: Send) -> None:
        """Send what is queued until the connection is closed."""
        while (frame := await self._frames.get()) is not None:
            await send({"type": "websocket.send", "text": frame})
        await send({"type": "websocket.close", "code": 1000})


class Agents:
    """The connections of one job, by container."""

    def __init__(self, host: Host) -> None:
        self._host = host
        # Returns the message that each agent gets after the welcome.
        self.greeting: Callable[[], dict[str, Any] | None] = lambda: None
        self.key = ""  # of the job's certificate, PEM: agents with feeds serve feeders of other hosts under it, parameter servers workers
        self.connections: dict[tuple[str, int], Connection] = {}
        self._acked: dict[
            str, tuple[int, int]
        ] = {}  # task -> its newest container that we know, the last report of it that is durable

    def get(self, task: str, serial: int) -> Connection | None:
        return self.connections.get((task, serial))

    def of(self, task: str) -> Connection | None:
        """Return the connection of the task's present container."""
        return self.connections.get((task, self._host.turns.state.tasks[task].serial))

    def acknowledge(self, task: str, serial: int, n: int) -> None:
        newest, last = self._acked.get(task, (serial, 0))
        if serial >= newest:
            self._acked[task] = (serial, max(n, last) if serial == newest else n)
        if (connection := self.get(task, serial)) is not None:
            connection.send({"type": "ack", "n": n})

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()

    async def serve(self, receive: Receive, send: Send) -> None:
        """Serve one WebSocket, from its acceptance to its end."""
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        joiner = Joiner(HELLO_LIMIT)
        try:
            async with asyncio.timeout(HELLO_WITHIN):
                hello = await _next(receive, joiner)
            connection = self._admit(hello)
            if not isinstance(connection, str) and await self._host.waited_for(connection):
                connection = self._admit(hello)
        except TimeoutError:
            # Not a refusal, which would end the agent: its hello may be unread, where this loop was held up.
            log.warning("an agent's channel was closed: no hello within %g s", HELLO_WITHIN)
            await send({"type": "websocket.close", "code": 1008})
            return
        except FrameError as error:
            log.warning("an agent's channel was refused: %r", error)
            await _refuse(send, "malformed", str(error))
            return
        except ConnectionResetError:
            return
        if isinstance(connection, str):
            log.warning("an agent of %s was refused: %s", str(hello.get("task"))[:100], connection)
            await _refuse(send, *connection.split(": ", 1))
            return
        await self._converse(connection, receive, send)

    def _admit(self, hello: Mapping[str, Any]) -> Connection | str:
        """Return the connection, or "reason: detail" where the agent is refused."""
        task, serial, epoch = hello.get("task"), hello.get("serial"), hello.get("epoch", 0)
        if (
            hello.get("type") != "hello"
            or not isinstance(task, str)
            or type(serial) is not int
            or type(epoch) is not int
        ):
            raise FrameError("the first message is not a hello")
        check(hello)
        version = str(hello.get("v", ""))
        if version.split(".")[0] != VERSION.split(".")[0]:
            return f"version: the agent speaks {version or 'nothing known'}, this master {VERSION}"
        if epoch > self._host.epoch:
            self._host.doubt(epoch)
            return f"stale-epoch: this master has epoch {self._host.epoch}, a later one {epoch}"
        if not self._host.turns.state.admits(task, serial):
            return f"written-off: container {serial} of {task} is not the present one"
        connection = Connection(task, serial, hello)
        connection.drop = _held(self._host.turns, connection)
        return connection

    async def _converse(self, connection: Connection, receive: Receive, send: Send) -> None:
        key = (connection.task, connection.serial)
        if (before := self.connections.pop(key, None)) is not None:
            before.close()
        self.connections[key] = connection
        task = self._host.turns.state.tasks[connection.task]
        connection.received = task.reported if task.serial == connection.serial else 0
        # Reports that we have taken in may not be on the log yet; those that we read in the log are.
        serial, acked = self._acked.get(connection.task, (0, 0))
        if serial != connection.serial:
            acked = connection.received
            self._acked[connection.task] = (connection.serial, acked)
        welcome: dict[str, Any] = {"type": "welcome", "epoch": self._host.epoch, "acked": acked}
        if connection.drop:
            welcome["drop"] = connection.drop
        role = self._host.turns.state.known_job.roles[task.role]
        if self.key and (role.feed or PARAMETER_SERVERS in role.ports):
            welcome["key"] = self.key
        connection.send(welcome)
        if (greeting := self.greeting()) is not None:
            connection.send(greeting)
        self._host.tell(Connected(connection.task, connection.serial, connection.hello))
        pump = asyncio.create_task(connection.pump(send))
        try:
            await self._listen(connection, receive)
        except ConnectionResetError:
            pass  # the agent's end closed
        except FrameError as error:
            log.warning("agent %s sent something that is not a frame: %s", connection.task, error)
        finally:
            connection.close()
            pump.cancel()
            self._host.lost(connection)
            if self.connections.get(key) is connection:
                del self.connections[key]
                self._host.tell(Disconnected(connection.task, connection.serial))

    async def _listen(self, connection: Connection, receive: Receive) -> None:
        joiner = Joiner()
        while connection.open:
            message = await _next(receive, joiner)
            if message.get("type") == "report":
                self._take(connection, message)
            else:
                await self._hear(connection, message)

    async def _hear(self, connection: Connection, message: dict[str, Any]) -> None:
        check({name: value for name, value in message.items() if name != "done"})
        try:
            await self._host.receive(connection, message)
        except (
            ValueError,
            TypeError,
            LookupError,
            OverflowError,
        ) as error:  # only its reader knows a message's whole form
            raise FrameError(f"a malformed {str(message.get('type'))[:20]}: {error}") from error

    def _take(self, connection: Connection, message: dict[str, Any]) -> None:
        n, attempt, kind = message.pop("n", None), message.pop("attempt", None), message.pop("kind", None)
        if type(n) is not int or type(attempt) is not int or not isinstance(kind, str):
            raise FrameError("a malformed report")
        check(message)
        if n <= connection.received:
            return  # sent again; it is acknowledged once it is durable, or was
        connection.received = n
        if attempt < (present := self._host.turns.state.tasks[connection.task].attempt) and kind != "left":
            log.warning(
                "%s: a late report (%s) of attempt %d; attempt %d is there now", connection.task, kind, attempt, present
            )
        self._host.tell(Report(connection.task, connection.serial, n, attempt, kind, message))


def _held(turns: Turns, connection: Connection) -> dict[str, Any]:
    """Take in the shards that the agent says it holds; return those that it must drop, by input."""
    holds, attempt = connection.hello.get("holds") or {}, connection.hello.get("attempt")
    if not isinstance(holds, Mapping) or type(attempt) is not int:
        return {}
    try:
        return turns.hold(connection.task, attempt, holds)
    except (ValueError, TypeError) as error:
        raise FrameError(f"what it holds is not said in ranges: {error}") from error


async def _next(receive: Receive, joiner: Joiner) -> dict[str, Any]:
    """Return the next whole message. Raises ConnectionResetError at the end of the connection, FrameError for a frame that is not ours."""
    while True:
        event = await receive()
        if event["type"] == "websocket.disconnect":
            raise ConnectionResetError
        frame = event.get("text") or event.get("bytes") or b""
        if (message := joiner.add(frame)) is not None:
            return message


async def _refuse(send: Send, reason: str, detail: str = "") -> None:
    for frame in split({"type": "refused", "reason": reason, "detail": detail}):
        await send({"type": "websocket.send", "text": frame})
    await send({"type": "websocket.close", "code": 1008})
