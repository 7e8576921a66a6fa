"""What the master tells readers: its status, its events and the tasks' output, as they are and as they come."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from trainmaster.core.events import Event, encode
from trainmaster.core.report import status
from trainmaster.core.state import State
from trainmaster.log.pieces import whole_characters
from trainmaster.log.reader import Reader
from trainmaster.log.storage import Storage
from trainmaster.master.agents import Agents, Connection
from trainmaster.web.contract import Unknown

RECENT = 10_000  # events kept for readers; older ones are read from the log
PIECE = 48 * 1024  # bytes of output in one piece
AHEAD = 64  # pieces waiting for one reader
STATUS_EVERY = 1.0  # s


class Host(Protocol):
    agents: Agents
    storage: Storage
    samples: dict[str, dict[str, Any]]
    storage_trouble: str  # why the log cannot be written now, or ""

    @property
    def state(self) -> State: ...

    @property
    def over(self) -> bool:
        """Whether the job is closed: nothing new will be said."""


class Feed:
    """The `Facts` of a live job."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._recent: deque[tuple[int, dict[str, Any]]] = deque(maxlen=RECENT)
        self._news = asyncio.Condition()
        self._ids = itertools.count(1)
        self._relays: dict[int, tuple[Connection, asyncio.Queue[Mapping[str, Any] | None]]] = {}
        self.readers = 0  # streams that are open
        self.idle = asyncio.Event()  # set while no stream is open
        self.idle.set()

    # -- what the master hands in --

    async def publish(self, events: list[Event]) -> None:
        """Events that are on the log (notes: written) become visible."""
        self._recent.extend((event.n, json.loads(encode(event))) for event in events)
        async with self._news:
            self._news.notify_all()

    async def wake(self) -> None:
        async with self._news:
            self._news.notify_all()

    def piece(self, message: Mapping[str, Any]) -> None:
        """A piece of output that an agent sent for one of our follows."""
        relay = self._relays.get(message.get("id", -1))
        if relay is not None:
            relay[1].put_nowait(message)

    def lost(self, connection: Connection) -> None:
        """An agent's connection closed: whoever follows its output reads on elsewhere."""
        for followed, relay in self._relays.values():
            if followed is connection:
                relay.put_nowait(None)

    # -- facts --

    def status(self) -> dict[str, Any]:
        told = status(self._host.state)
        if self._host.storage_trouble:
            told["waiting"] = f"waits for its storage: {self._host.storage_trouble}"
        for task in told["tasks"]:
            sample = self._host.samples.get(task["task"], {})
            task |= {name: value for name, value in sample.items() if name not in ("type", "task", "phase")}
            task["doing"] = sample.get("phase", "")  # the phase that the program named
        return told

    async def events(self, after: int, follow: bool) -> AsyncIterator[Mapping[str, Any]]:
        first = self._recent[0][0] if self._recent else self._host.state.n + 1
        if after + 1 < first:
            async for record in self._past(after, first):
                after = record["n"]
                yield record
        while True:
            for n, record in [item for item in self._recent if item[0] > after]:
                after = n
                yield record
            if not follow or (self._host.over and (not self._recent or self._recent[-1][0] <= after)):
                return
            async with self._news:
                if not (self._recent and self._recent[-1][0] > after) and not self._host.over:
                    await self._news.wait()

    async def _past(self, after: int, before: int) -> AsyncIterator[dict[str, Any]]:
        reader = Reader(self._host.storage, after)
        while (batch := await asyncio.to_thread(reader.poll)) is not None:
            for line in batch.lines:
                record = json.loads(line)
                if record["n"] >= before:
                    return
                yield record

    async def log(self, task: str, attempt: int | None, offset: int, follow: bool) -> AsyncIterator[Mapping[str, Any]]:
        if task != "master" and task not in self._host.state.tasks:
            raise Unknown(f"the job has no task {task}")
        if task == "master":
            async for piece in self._stored(task, self._host.state.epoch, offset):
                yield piece
            return
        present = self._host.state.tasks[task]
        number = attempt or present.attempt
        while True:
            async for piece in self._attempt(task, number, offset, follow):
                yield piece
            if not follow or attempt is not None or self._host.over:
                return
            async with self._news:
                if present.attempt == number:
                    await self._news.wait()
            if present.attempt > number:
                number, offset = number + 1, 0
            elif present.final:
                return

    async def stream(self, after: int, logs: bool, tail: int | None) -> AsyncIterator[Mapping[str, Any]]:
        self.readers += 1
        self.idle.clear()
        pieces: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue(AHEAD)
        work: set[asyncio.Task[None]] = set()
        begun: set[tuple[str, int]] = set()
        present = self._host.state.n

        async def relay(task: str, attempt: int, offset: int) -> None:
            async for piece in self._attempt(task, attempt, offset, True):
                await pieces.put({"log": piece})

        async def narrate() -> None:
            async for record in self.events(after, True):
                key = (record.get("task", ""), record.get("attempt", 0))
                if logs and record["type"] in ("ready", "attempt-ended") and key not in begun:
                    begun.add(key)
                    offset = 0 if tail is None or record["n"] > present else max(0, await self._size(*key) - tail)
                    work.add(asyncio.create_task(relay(*key, offset)))
                await pieces.put({"event": record})

        async def report() -> None:
            while True:
                await pieces.put({"status": self.status()})
                await asyncio.sleep(STATUS_EVERY)

        narrator, reporter = asyncio.create_task(narrate()), asyncio.create_task(report())
        work.add(narrator)
        try:
            while work:
                getting = asyncio.create_task(pieces.get())
                done, _ = await asyncio.wait({getting, *work}, return_when=asyncio.FIRST_COMPLETED)
                work -= done
                if getting in done:
                    yield getting.result()
                else:
                    getting.cancel()
            while not pieces.empty():
                yield pieces.get_nowait()
            yield {"end": self.status()}
        finally:
            self.readers -= 1
            if not self.readers:
                self.idle.set()
            for unfinished in (*work, reporter):
                unfinished.cancel()

    # -- output --

    async def _attempt(self, task: str, attempt: int, offset: int, follow: bool) -> AsyncIterator[Mapping[str, Any]]:
        """One attempt's output from `offset` on: from its agent while that is there, else from storage."""
        while True:
            present = self._host.state.tasks[task]
            connection = self._host.agents.of(task)
            if connection is not None and follow and not (present.left or attempt < present.attempt):
                ended = False
                async for part in self._relayed(connection, task, attempt, offset):
                    if part["data"]:
                        yield {name: part[name] for name in ("task", "attempt", "offset", "next", "data")}
                    offset, ended = part["next"], part["end"]
                if ended:
                    return
            async for piece in self._stored(task, attempt, offset):
                offset = piece["next"]
                yield piece
            if not follow or attempt < present.attempt or present.final or self._host.over:
                return
            async with self._news:
                if not (attempt < present.attempt or present.final or self._host.over):
                    await self._news.wait()

    async def _size(self, task: str, attempt: int) -> int:
        """Bytes of an attempt's output that are stored."""
        entries = await asyncio.to_thread(self._host.storage.entries, f"logs/{task.replace(':', '-')}")
        return next((entry.size for entry in entries if entry.name == f"{attempt}.log"), 0)

    async def _relayed(
        self, connection: Connection, task: str, attempt: int, offset: int
    ) -> AsyncIterator[dict[str, Any]]:
        number = next(self._ids)
        pieces: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        self._relays[number] = connection, pieces
        try:
            if not connection.send({"type": "follow", "id": number, "attempt": attempt, "offset": offset}):
                return
            while connection.open and (message := await pieces.get()) is not None:
                start, data = int(message.get("offset", offset)), str(message.get("data", ""))
                yield {"task": task, "attempt": attempt, "offset": start, "data": data, "end": bool(message.get("end")),
                       "next": int(message.get("next", start + len(data.encode("utf-8", "surrogateescape"))))}  # fmt: skip
                if message.get("end"):
                    return
                connection.send({"type": "window", "id": number, "frames": 1})
        finally:
            del self._relays[number]
            if connection.open:
                connection.send({"type": "unfollow", "id": number})

    async def _stored(self, task: str, attempt: int, offset: int) -> AsyncIterator[Mapping[str, Any]]:
        path = f"logs/master/{attempt}.log" if task == "master" else f"logs/{task.replace(':', '-')}/{attempt}.log"
        while data := await asyncio.to_thread(self._host.storage.read, path, offset, PIECE):
            data = whole_characters(data)
            yield {
                "task": task,
                "attempt": attempt,
                "offset": offset,
                "next": offset + len(data),
                "data": data.decode("utf-8", "replace"),
            }
            offset += len(data)
