"""The facts of a job in `tm ui`: what its storage tells, and while somebody looks, what comes new.

A *watch* is one thread, which follows the job as `tm attach` does and hands what comes into the loop. It ends some seconds after the last
reader has left. The log is read once, and then as it grows. A storage that goes away, or a log that cannot be read further, is one line
in the job's status (`waiting`); reading is tried again for as long as somebody looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.client.ui.measured import Measured
from trainmaster.client.ui.threads import fault_words, hand_over, in_thread, streamed
from trainmaster.core.errors import TrainmasterError
from trainmaster.core.machine.events import Event, decode
from trainmaster.core.machine.report import all_tasks
from trainmaster.core.spec.description import shown_event
from trainmaster.core.states import OVER
from trainmaster.core.timeline import Timeline
from trainmaster.log.history.course import events_of
from trainmaster.log.output import MASTER
from trainmaster.log.reader import Batch, Reader
from trainmaster.web.contract import Records, Unknown

if TYPE_CHECKING:
    from trainmaster.client.ui.sources import Source
    from trainmaster.core.metrics import Series

LINGER = 5.0  # s that a watch goes on without readers
RECENT = 10_000  # events kept; older ones are read from the log again
STATUS_REST = 0.05  # s between two questions for the status at least
STATUS_SHARE = 5  # and so many times as long as the answer took
STALE_LOOKS = 10  # questions after one event: a status may be some time old
LOG_REST = 0.25  # s between two looks at output that grows
LOG_LOOKS = 100  # such looks a second at most: each is a thread
SILENCE = 2.0  # s without a master that need no word
AGAIN = 3.0  # s until a job that could not be read is read again
LATE = 60.0  # s after its end in which a job may still be at work
_AT_ONCE = 500  # events read by one thread


class Watched:
    """The `Facts` of one job."""

    def __init__(self, source: Source, description: Mapping[str, Any]) -> None:
        self._source, self._description = source, description
        self._loop = asyncio.get_running_loop()
        self._status: dict[str, Any] = {}
        self._trouble = ""
        self._version = 1
        self._news = asyncio.Event()
        self._readers, self._last_reader = 0, 0.0
        self._watch: threading.Thread | None = None
        self._over = False
        self._asking: asyncio.Task[None] | None = None
        self._event_at = 0.0  # of the last event that the watch brought
        self._stale = 0  # how often the status may still be asked for
        self._lines: deque[tuple[int, int, bytes]] = deque(maxlen=RECENT)  # of the newest events: number, epoch, line
        self._timeline = Timeline()
        self._reader: Reader | None = None
        self._complete = False  # the whole log of a job that is over was read
        self._reading = asyncio.Lock()
        self._measured = Measured(source)

    @property
    def _last(self) -> int:
        """Return the number of the last event that is known. The watch asks too: the loop may empty the lines meanwhile."""
        try:
            return self._lines[-1][0]
        except IndexError:
            return 0

    @property
    def idle(self) -> bool:
        """Tell whether nobody looks."""
        return self._readers == 0 and time.monotonic() - self._last_reader > LINGER

    async def open(self) -> None:
        """Have a present status. Raises TrainmasterError where the job cannot be read, or is not there any more."""
        self._last_reader = time.monotonic()
        if self._over:
            await in_thread(self._source.check)
        elif self._watch is None or not self._status:
            self._note_status(await in_thread(self._source.status))
            ended = self._status["ended"]
            self._over = ended is not None and time.time() - ended > LATE
            self._begin_watch()

    # -- facts --

    async def changed(self, version: int, within: float) -> int:
        with self._reading_on():
            if self._version == version:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(within):
                        await self._news.wait()
            return self._version

    def description(self) -> Mapping[str, Any]:
        return self._description

    def status(self) -> dict[str, Any]:
        return {**self._status, "waiting": self._trouble} if self._trouble else dict(self._status)

    def shown_status(self) -> dict[str, Any]:
        return self.status() if self._trouble else self._status

    async def timeline(self) -> Timeline:
        await self._catch_up()
        return self._timeline

    async def metrics(
        self, tasks: Collection[str] | None = None, names: Collection[str] | None = None, since: float = 0.0
    ) -> Sequence[Series]:
        return await self._measured.series(self._over, tasks, names, since)

    async def events(self, after: int, follow: bool) -> Records:
        while True:
            version, over = self._version, self._over
            await self._catch_up()
            first = self._lines[0][0] if self._lines else 0
            if after + 1 < first:
                async for record in streamed(_AT_ONCE, self._source.past.events, after):
                    if record["n"] >= first:
                        break
                    after = record["n"]
                    yield record
            newest = list(itertools.islice(reversed(self._lines), max(0, self._last - after)))
            for n, _, line in reversed(newest):
                if n > after:
                    after = n
                    yield shown_event(json.loads(line))
            if not follow or over:
                return
            await self.changed(version, LINGER)

    async def log(self, task: str, attempt: int | None, offset: int, follow: bool) -> Records:
        number = attempt or (await self._latest(task))
        with self._reading_on():
            while True:
                has_ended = self._has_ended(task, number)
                async for piece in streamed(1, self._source.pieces, task, number, offset, not has_ended):
                    offset = piece["next"]
                    yield piece
                if not follow or (has_ended and (attempt is not None or task == MASTER)):
                    return
                row = self._row(task)
                if has_ended and row["attempt"] > number:
                    number, offset = number + 1, 0
                elif has_ended:
                    return
                else:
                    await asyncio.sleep(max(LOG_REST, self._readers / LOG_LOOKS))

    async def stored(self, task: str, attempt: int | None = None) -> tuple[int, int]:
        number = attempt or await self._latest(task)
        return number, await in_thread(self._source.past.size, task, number)

    async def stream(self, after: int, logs: bool, tail: int | None, bare: bool = False) -> Records:
        """Yield as the master's own stream does; of the output all is sent, never that it has come alone."""
        pieces: asyncio.Queue[Mapping[str, Any] | BaseException] = asyncio.Queue(64)

        async def tell() -> None:
            async for record in self.events(after, True):
                await pieces.put({"event": record})
            relay_all()
            await asyncio.gather(*relays.values())  # what was printed comes before the end
            await pieces.put({"end": self.status()})

        async def report() -> None:
            version = 0
            while True:
                version = await self.changed(version, 1.0)
                await pieces.put({"status": self.shown_status()})
                relay_all()
                await asyncio.sleep(1.0)

        def relay_all() -> None:
            for task in [row["task"] for row in self._status["tasks"]] if logs else ():
                if task not in relays:
                    relays[task] = asyncio.create_task(telling(relay(task)))

        async def relay(task: str) -> None:
            _, size = await self.stored(task)
            async for piece in self.log(task, None, max(0, size - tail) if tail is not None else 0, True):
                await pieces.put({"log": piece})

        async def telling(work: Awaitable[None]) -> None:
            try:
                await work
            except Exception as failure:  # noqa: BLE001  the stream raises it
                await pieces.put(failure)

        relays: dict[str, asyncio.Task[None]] = {}
        relay_all()
        work = [asyncio.create_task(telling(tell())), asyncio.create_task(telling(report()))]
        try:
            while True:
                item = await pieces.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
                if "end" in item:
                    return
        finally:
            work += relays.values()
            for unfinished in work:
                unfinished.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    # -- inside: the watch --

    def _begin_watch(self) -> None:
        if self._watch is None and not self._over:
            self._watch = threading.Thread(target=self._follow, daemon=True, name=f"tm ui: {self._source.past.job}")
            self._watch.start()

    def _follow(self) -> None:
        """Hand over what comes until the job has ended, or nobody looks (in a thread)."""
        while not self.idle:
            try:
                if self._relay():
                    break
            except Exception as error:  # noqa: BLE001  the page says it, and it may pass
                hand_over(self._loop, self._note_trouble, self._words(error))
                time.sleep(AGAIN)
        hand_over(self._loop, self._end_watch)

    def _relay(self) -> bool:
        """Hand over one stream of items; return True where there is no need for another one."""
        for item in self._source.items(self._last):
            hand_over(self._loop, self._take, item)
            if "end" in item:
                return True
            if self.idle:
                break
        return False

    def _words(self, error: Exception) -> str:
        try:
            self._source.check()
        except TrainmasterError as failure:
            return failure.message
        return error.message if isinstance(error, TrainmasterError) else fault_words(error)

    def _end_watch(self) -> None:
        self._watch = None
        if not self.idle:  # a reader came in the last moment
            self._begin_watch()

    def _take(self, item: Mapping[str, Any]) -> None:
        if (record := item.get("event")) is not None:
            self._take_event(record)
            self._event_at = max(self._event_at, record["at"])
            self._ask()
        elif (status := item.get("status") or item.get("end")) is not None:
            self._over = "end" in item
            self._trouble = ""
            self._note_status(status)
        elif item.get("lost", 0.0) > SILENCE:
            self._note_trouble(item.get("why") or "no master answers; it is taken up again by itself")

    def _take_event(self, record: Mapping[str, Any]) -> None:
        """Take in an event that follows those that are known; others are read from the log."""
        if self._reader is not None and not self._reading.locked() and record["n"] == self._last + 1:
            line = json.dumps(record).encode()
            self._timeline.take(decode(line))
            self._lines.append((record["n"], record["epoch"], line))
        self._changed()

    def _note_status(self, status: dict[str, Any]) -> None:
        self._status = status
        self._changed()

    def _note_trouble(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            self._changed()

    def _changed(self) -> None:
        self._version += 1
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _ask(self) -> None:
        """Have the status soon: an event says that it is another one now."""
        self._stale = STALE_LOOKS
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_status())

    async def _ask_status(self) -> None:
        while self._stale:
            self._stale -= 1
            began = time.monotonic()
            try:
                status = await in_thread(self._source.status)
            except TrainmasterError:  # the watch says what is wrong
                return
            if status["at"] >= self._status["at"]:
                self._note_status(status)
            if status["at"] >= self._event_at:
                self._stale = 0
            await asyncio.sleep(max(STATUS_REST, (time.monotonic() - began) * STATUS_SHARE))

    # -- inside: the log --

    async def _catch_up(self) -> None:
        """Read what the log has now. Threads read and decode; the loop folds, for readers use the timeline in it."""
        async with self._reading:
            if self._over and self._complete:
                return
            over = self._over
            self._reader = self._reader or Reader(self._source.past.storage)
            last = self._reader.last
            while (read := await in_thread(_next_events, self._reader)) is not None:
                batch, events = read
                if batch.first <= last or self._contradicts(batch):  # a later master has not read what we have
                    self._timeline, self._reader, last = Timeline(), Reader(self._source.past.storage), 0
                    self._lines.clear()
                    continue
                last, known = batch.last, self._last
                for event in events:
                    if event.n > known:
                        self._timeline.take(event)
                lines = enumerate(batch.lines, batch.first)
                self._lines.extend((n, batch.epoch, line) for n, line in lines if n > known)
            self._complete = over

    def _contradicts(self, batch: Batch) -> bool:
        """Tell whether the log has other events where the watch brought some earlier."""
        return batch.first <= self._last and any(
            n >= batch.first and epoch != batch.epoch for n, epoch, _ in self._lines
        )

    # -- inside: output --

    def _row(self, task: str) -> Mapping[str, Any]:
        for row in all_tasks(self._status):
            if row["task"] == task:
                return row
        raise Unknown(f"the job has no task {task[:100]}")

    async def _latest(self, task: str) -> int:
        if task != MASTER:
            self._row(task)
        return max(await in_thread(self._source.past.attempts, task), default=1)

    def _has_ended(self, task: str, number: int) -> bool:
        if self._over or task == MASTER:
            return self._over
        row = self._row(task)
        return row["attempt"] > number or row["state"] in OVER

    @contextlib.contextmanager
    def _reading_on(self) -> Iterator[None]:
        self._readers += 1
        self._begin_watch()
        try:
            yield
        finally:
            self._readers -= 1
            self._last_reader = time.monotonic()


def _next_events(reader: Reader) -> tuple[Batch, list[Event]] | None:
    """Return the next lines, and their events that a timeline takes."""
    batch = reader.poll()
    return None if batch is None else (batch, events_of(reader, batch))
