"""Feed readers: the job's status, its events and the tasks' output, as they are and as they come."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trainmaster.core.errors import StorageFailed
from trainmaster.core.machine.events import Event, encode
from trainmaster.core.machine.report import is_placed, is_shown, job_progress, job_state, status
from trainmaster.core.machine.state import State
from trainmaster.core.spec.description import shown_event
from trainmaster.core.states import FINAL
from trainmaster.log.documents.jobs import known_site, read_job
from trainmaster.log.output import MASTER, Printed, attempts
from trainmaster.log.reader import Reader
from trainmaster.log.storage import LocalStorage, Storage
from trainmaster.master.connections.agents import Agents, Connection
from trainmaster.master.turn import Turns
from trainmaster.web.contract import Records, Unknown

if TYPE_CHECKING:
    from trainmaster.core.metrics import Series
    from trainmaster.core.timeline import Timeline
    from trainmaster.master.measuring import Measuring

RECENT = 10_000  # events kept for readers; older ones are read from the log
AGAIN = 1.0  # s until a storage that could not be read, or has not got everything yet, is read again
AHEAD = 64  # pieces waiting for one reader
STATUS_EVERY = 1.0  # s
# A status is shown this many times as long as making it took: it may take a tenth of the loop's time.
STATUS_SHARE = 10
THREADS = (
    4  # for reads on behalf of readers; a hung storage blocks only these, not the threads of the master's own work
)

T = TypeVar("T")

log = logging.getLogger(__name__)


class Host(Protocol):
    turns: Turns
    agents: Agents
    storage: Storage
    samples: dict[str, dict[str, Any]]
    storage_trouble: str  # why the log cannot be written now, or ""

    @property
    def state(self) -> State: ...

    @property
    def measuring(self) -> Measuring:
        """Return the job's metrics."""

    @property
    def directory(self) -> str:
        """Return the job's directory on this machine; it has the master's own log."""

    @property
    def over(self) -> bool:
        """Tell whether the job is closed: no more events will follow."""


class Feed:
    """The `Facts` of a live job."""

    def __init__(self, host: Host, clock: Callable[[], float] = time.monotonic) -> None:
        self._host, self._clock = host, clock
        self._recent: deque[tuple[int, Event]] = deque(maxlen=RECENT)
        self._shown: dict[str, Any] | None = None  # the status that readers share
        self._shown_until = 0.0
        self._timeline: Timeline | None = None  # None until somebody asks for it
        self._catching_up = asyncio.Lock()
        self._description: dict[str, Any] | None = None
        self._news = asyncio.Condition()
        self._version = 1  # of the facts
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="readers")
        self._ids = itertools.count(1)
        self._relays: dict[int, tuple[Connection, asyncio.Queue[Mapping[str, Any] | None]]] = {}
        self.further_facts: Callable[[], dict[str, Any]] = dict  # further fields of the status
        self.agents_store = True  # agents put their output into the storage; else they alone have it while they live
        self.readers = 0  # streams that are open
        self.idle = asyncio.Event()  # set while no stream is open
        self.idle.set()

    # -- what the master hands in --

    async def publish(self, events: list[Event]) -> None:
        """Show readers events that are on the log (notes: written)."""
        self._recent.extend((event.n, event) for event in events)
        await self.wake()

    async def wake(self) -> None:
        """Show readers that something is new."""
        self._version += 1
        async with self._news:
            self._news.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for events after which `condition` holds."""
        async with self._news:
            await self._news.wait_for(condition)

    def piece(self, message: Mapping[str, Any]) -> None:
        """Hand on a piece of output that an agent sent for one of our follows."""
        relay = self._relays.get(message.get("id", -1))
        if relay is not None:
            relay[1].put_nowait(message)

    def lost(self, connection: Connection) -> None:
        """Note that an agent's connection closed: readers that follow its output read on elsewhere."""
        for followed, relay in self._relays.values():
            if followed is connection:
                relay.put_nowait(None)

    # -- facts --

    async def changed(self, version: int, within: float) -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.until(lambda: self._version != version)
        return self._version

    async def metrics(
        self, tasks: Collection[str] | None = None, names: Collection[str] | None = None, since: float = 0.0
    ) -> Sequence[Series]:
        return await self._host.measuring.series(tasks, names, since)

    def status(self) -> dict[str, Any]:
        facts = status(self._host.state, time.time()) | self.further_facts()
        if self._host.storage_trouble:
            facts["waiting"] = f"waits for its storage: {self._host.storage_trouble}"
        for name, figures in facts["shards"].items():
            figures |= self._host.turns.leases.figures(name)
        waits = self._host.turns.coordination.waits(self._host.state)
        for task in facts["tasks"]:
            sample = self._host.samples.get(task["task"], {}) if task["node"] else {}
            task |= {name: value for name, value in sample.items() if name not in ("type", "task", "phase")}
            is_over = task["state"] in FINAL
            task["doing"] = "" if is_over else sample.get("phase", "")  # the phase that the program named
            if text := waits.get(task["task"]):
                task["waits"] = text
        return facts

    def progress(self, reported: Callable[[str], float | None]) -> float | None:
        """Return how much of the job is done, as the status says it, without the rest of a status. `reported(task)` is used where no sample
        has come since a task reported its progress.
        """
        state, samples = self._host.state, self._host.samples
        tasks = [
            {
                "state": task.state, "counts": task.counts,
                "progress": samples.get(task.key, {}).get("progress", reported(task.key)) if is_placed(task) else None,
            }
            for task in state.tasks.values()
            if is_shown(task)
        ]  # fmt: skip
        shards = {name: table.figures for name, table in state.shards.items()}
        return job_progress({"state": job_state(state), "shards": shards, "tasks": tasks})

    def shown_status(self) -> dict[str, Any]:
        """Return the status for a reader: of a large job one up to `STATUS_EVERY` old, since many may ask each second."""
        began = self._clock()
        if self._shown is None or began >= self._shown_until:
            self._shown = self.status()
            now = self._clock()
            self._shown_until = now + min(STATUS_EVERY, (now - began) * STATUS_SHARE)
        return self._shown

    async def events(self, after: int, follow: bool) -> Records:
        while True:
            over = self._host.over
            while after + 1 < (first := self._first_recent):
                reader = Reader(self._host.storage, after)
                async for record in self._past(reader, first):
                    after = record["n"]
                    yield shown_event(record)
                # Events are nowhere where the log could not be written, or where snapshots cover them and they were dropped.
                if after + 1 < first and (self._host.over or reader.last >= first):
                    after = first - 1
                elif after + 1 < first:  # the events are on their way to the storage
                    await asyncio.sleep(AGAIN)
            # A slow reader may find, when it comes back, that events which it has not read are in the log alone.
            for n, event in list(itertools.islice(self._recent, max(0, after + 1 - first), None)):
                after = n
                yield shown_event(json.loads(encode(event)))
            if not follow or over:
                return
            async with self._news:
                if not (self._recent and self._recent[-1][0] > after) and not self._host.over:
                    await self._news.wait()

    async def _read(self, act: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, act, *arguments)

    async def _past(self, reader: Reader, before: int) -> AsyncIterator[dict[str, Any]]:
        while (batch := await self._read(reader.poll)) is not None:
            for line in batch.lines:
                record = json.loads(line)
                if record["n"] >= before:
                    return
                yield record

    def description(self) -> dict[str, Any]:
        """Return what is known of the job from its beginning."""
        if self._description is None:
            from trainmaster.core.spec.description import description

            directory = self._host.directory
            self._description = description(read_job(directory), known_site(directory), self._host.storage.url)
        return self._description

    async def timeline(self) -> Timeline:
        """Return the course of the job so far. The first call reads the log; a later one takes the events that were published since."""
        from trainmaster.core.timeline import Timeline
        from trainmaster.log.history.course import poll

        async with self._catching_up:
            timeline = self._timeline = self._timeline or Timeline()
            reader = Reader(self._host.storage, timeline.n)
            while timeline.n + 1 < self._first_recent and (new := await self._read(poll, reader)) is not None:
                for event in new[1]:
                    timeline.take(event)
            # Events that are in neither were dropped with a snapshot, or could not be written.
            for _, event in itertools.islice(self._recent, max(0, timeline.n + 1 - self._first_recent), None):
                timeline.take(event)
            return timeline

    @property
    def _first_recent(self) -> int:
        """Return the number of the first event that is kept for readers, or of the next one."""
        return self._recent[0][0] if self._recent else self._host.state.n + 1

    async def log(self, task: str, attempt: int | None, offset: int, follow: bool) -> Records:
        self._check(task, attempt)
        if task == MASTER:
            async for piece in self._masters(attempt or self._host.state.epoch, offset, follow):
                yield piece
            return
        present = self._host.state.tasks[task]
        number = attempt or (present.attempt if follow else await self._latest(task))
        while True:
            async for piece in self._attempt(task, number, offset, follow):
                yield piece
                offset = piece["next"]
            if not follow or attempt is not None or self._host.over:
                return
            async with self._news:
                if present.attempt == number and not (present.final or self._host.over):
                    await self._news.wait()
            if present.attempt > number:
                number, offset = number + 1, 0
            elif present.final:
                return

    async def stored(self, task: str, attempt: int | None = None) -> tuple[int, int]:
        self._check(task, attempt)
        number = attempt or (self._host.state.epoch if task == MASTER else await self._latest(task))
        return number, await self._size(task, number)

    async def stream(self, after: int, logs: bool, tail: int | None, bare: bool = False) -> Records:
        """Yield pieces, and {"end"} last. Raises the error that keeps it from sending all, which must not look like the end."""
        self.readers += 1
        self.idle.clear()
        pieces: asyncio.Queue[Mapping[str, Any] | BaseException | None] = asyncio.Queue(AHEAD)
        begun: set[tuple[str, int]] = set()
        present = self._host.state.n

        async def relay(task: str, attempt: int, earlier: bool) -> None:
            offset = max(0, await self._size(task, attempt) - tail) if earlier and tail is not None else 0
            async for piece in self._insisting(task, attempt, offset, bare):
                await pieces.put({"log": piece})

        async def narrate(relays: asyncio.TaskGroup) -> None:
            async for record in self.events(after, True):
                key = (record.get("task", ""), record.get("attempt", 0))
                if logs and record["type"] in ("ready", "attempt-ended") and key not in begun:
                    begun.add(key)
                    relays.create_task(relay(*key, record["n"] <= present))
                await pieces.put({"event": record})

        async def tell() -> None:
            failure: BaseException | None = None
            try:
                async with asyncio.TaskGroup() as relays:
                    await narrate(relays)
            except* Exception as failures:  # noqa: BLE001  whatever it is, the stream raises it
                failure = failures.exceptions[0]
            await pieces.put(failure)

        async def report() -> None:
            while True:
                await pieces.put({"status": self.shown_status()})
                await asyncio.sleep(STATUS_EVERY)

        work = [asyncio.create_task(tell()), asyncio.create_task(report())]
        try:
            while (item := await pieces.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
            yield {"end": self.status()}
        finally:
            self.readers -= 1
            if not self.readers:
                self.idle.set()
            for unfinished in work:
                unfinished.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    # -- output --

    async def _insisting(self, task: str, attempt: int, offset: int, bare: bool) -> AsyncIterator[Mapping[str, Any]]:
        """Follow `_attempt` over failures of the storage: while the job goes on, output that cannot be read now is read later."""
        while True:
            try:
                async for piece in self._attempt(task, attempt, offset, True, bare):
                    yield piece
                    offset = piece["next"]
            except StorageFailed as error:
                if self._host.over:
                    raise
                log.warning("the output of %s could not be read: %s", task, error)
                await asyncio.sleep(AGAIN)
            else:
                return

    async def _attempt(
        self, task: str, attempt: int, offset: int, follow: bool, bare: bool = False
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Yield one attempt's output from `offset` on: the stored part, then the rest from its agent."""
        while True:
            present = self._host.state.tasks[task]
            current = attempt >= present.attempt
            settled = not follow or not current or bool(present.final) or self._host.over
            is_here = self.agents_store and self._host.storage.local
            stored = present.left or (is_here and not (follow and current))
            stored_pieces = self._stored_end if bare else self._stored
            async for piece in stored_pieces(task, attempt, offset, growing=not settled):
                yield piece
                offset = piece["next"]
            connection = self._host.agents.of(task)
            if connection is not None and not stored:
                async for part in self._relayed(connection, task, attempt, offset, not follow, bare):
                    if part["next"] > offset or "bare" in part:
                        yield {name: value for name, value in part.items() if name != "end"}
                    if part["end"]:
                        return
                    offset = part["next"]
            elif settled:
                return
            else:
                async with self._news:
                    if not (attempt < present.attempt or present.final or self._host.over):
                        await self._news.wait()

    async def _masters(self, epoch: int, offset: int, follow: bool) -> AsyncIterator[Mapping[str, Any]]:
        """Yield a master's log. Nothing tells when this process has written a line, so who follows it looks again and again."""
        while True:
            growing = follow and epoch == self._host.state.epoch and not self._host.over
            async for piece in self._stored(MASTER, epoch, offset, growing):
                yield piece
                offset = piece["next"]
            if not growing:
                return
            await asyncio.sleep(AGAIN)

    def _check(self, task: str, attempt: int | None) -> None:
        if task != MASTER and task not in self._host.state.tasks:
            raise Unknown(f"the job has no task {task}")
        latest = self._host.state.epoch if task == MASTER else self._host.state.tasks[task].attempt
        if attempt is not None and attempt > latest:
            raise Unknown(f"{task} has no attempt {attempt}; its latest is {latest}")

    async def _latest(self, task: str) -> int:
        """Return the latest attempt with output: for a task that waits to begin again, an earlier one."""
        present = self._host.state.tasks[task]
        if present.started is None:
            return await self._read(self._last_stored, task, present.attempt)
        return present.attempt

    async def _size(self, task: str, attempt: int) -> int:
        """Return the stored bytes of an attempt's output."""
        return await self._read(lambda: self._printed(task, attempt).size)

    def _last_stored(self, task: str, number: int) -> int:
        """Return the last attempt with any output."""
        return max(attempts(self._host.storage, LocalStorage(self._host.directory), task), default=number)

    def _printed(self, task: str, attempt: int) -> Printed:
        directory = LocalStorage(self._host.directory)
        return Printed(self._host.storage, directory, task, attempt, self._host.state.known_job.logs)

    async def _relayed(
        self, connection: Connection, task: str, attempt: int, offset: int, once: bool, bare: bool
    ) -> AsyncIterator[dict[str, Any]]:
        number = next(self._ids)
        pieces: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        self._relays[number] = connection, pieces
        try:
            follow = {"type": "follow", "id": number, "attempt": attempt, "offset": offset, "once": once, "bare": bare}
            if not connection.send(follow):
                return
            while connection.open and (message := await pieces.get()) is not None:
                part = {"task": task, "attempt": attempt, "data": str(message.get("data", "")), "end": bool(message.get("end")),
                        "offset": int(message.get("offset", offset)), "next": int(message.get("next", offset))}  # fmt: skip
                if "left_out" in message:
                    part["left_out"] = int(message["left_out"])
                if bare:
                    part |= {"bare": True, "growing": bool(message.get("growing"))}
                yield part
                if message.get("end"):
                    return
                connection.send({"type": "window", "id": number, "frames": 1})
        finally:
            del self._relays[number]
            if connection.open:
                connection.send({"type": "unfollow", "id": number})

    async def _stored(self, task: str, attempt: int, offset: int, growing: bool) -> AsyncIterator[Mapping[str, Any]]:
        pieces = self._printed(task, attempt).pieces(offset, growing)
        while (piece := await self._read(next, pieces, None)) is not None:
            yield {"task": task, "attempt": attempt, **piece}

    async def _stored_end(
        self, task: str, attempt: int, offset: int, growing: bool
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Yield one bare piece for all that is stored after `offset`; where it grows no more, even for a character cut off at its end."""
        size = await self._size(task, attempt)
        if size > offset or not growing:
            place = {"offset": offset, "next": max(offset, size), "data": "", "bare": True, "growing": growing}
            yield {"task": task, "attempt": attempt, **place}
