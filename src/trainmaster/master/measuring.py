"""Collect the metrics of a running job: agents' samples, programs' own reports, and records that are done. `log.metrics` keeps them.

Each `EVERY` seconds what has come is taken into the series, written, and shown to readers. A sample that comes while the series of
earlier masters are read waits for them. It is imported when the first sample comes, or the first reader of metrics.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

from trainmaster.core.errors import StorageFailed
from trainmaster.core.machine.events import Event
from trainmaster.core.metrics import JOB, Series, Store, figures, readings, reported
from trainmaster.log.metrics.files import Rows, sample_line
from trainmaster.log.metrics.keeper import AGAIN, Keeper
from trainmaster.log.storage import Storage

EVERY = 1.0  # s
TOTALS = 3.0  # s between two samples of the whole job
WAITING = 20_000  # samples that wait while the series of earlier masters are read; the newest ones

log = logging.getLogger(__name__)


class Measuring:
    """The metrics of one master's job. `show` tells readers that there is something new; `progress` returns the job's own out of what each
    task has reported last.
    """

    def __init__(
        self, storage: Storage, epoch: int, clock: Callable[[], float], show: Callable[[], Awaitable[None]],
        progress: Callable[[Callable[[str], float | None]], float | None],
    ) -> None:  # fmt: skip
        self._keeper = Keeper(storage, epoch)
        self._clock, self._show, self._progress = clock, show, progress
        self._store = Store()
        self._samples: deque[tuple[float, str, dict[str, float]]] = deque(
            maxlen=WAITING
        )  # an empty one: the attempt ended
        self._records: dict[str, int] = {}  # task -> records done that are not in the series yet
        self._totaled = 0.0  # when the last sample of the whole job was taken
        self._stirred, self._ready = asyncio.Event(), asyncio.Event()
        self._work = asyncio.create_task(self._run())

    def sample(self, task: str, message: Mapping[str, Any]) -> None:
        """Take an agent's sample. Raises ValueError, TypeError or LookupError where it is malformed."""
        if values := readings(message):
            self._note(task, values)

    def report(self, task: str, data: Mapping[str, Any]) -> None:
        """Take a program's report of its progress and metrics."""
        if values := reported(data):
            self._note(task, values)

    def follow(self, events: Iterable[Event]) -> None:
        """Take in how many records are done, and which attempts have ended."""
        for event in events:
            if event.type == "shards-done":
                self._records[event.data["task"]] = self._records.get(event.data["task"], 0) + records_of(event)
                self._stirred.set()
            elif event.type in ENDS:
                self._note(event.data["task"], {})

    async def series(self, tasks: Collection[str] | None, names: Collection[str] | None, since: float) -> list[Series]:
        await self._ready.wait()
        self._take()
        return self._store.series(tasks, names, since)

    async def close(self) -> None:
        """Write what is left, once."""
        if self._work.cancelled():
            return
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        if self._ready.is_set():  # else the files are as the last master left them
            self._take(is_last=True)
            await asyncio.to_thread(self._keeper.close, self._rows)

    def _note(self, task: str, values: dict[str, float]) -> None:
        self._samples.append((self._clock(), task, values))
        self._stirred.set()

    async def _run(self) -> None:
        try:
            await self._read()
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                await asyncio.sleep(EVERY)
                self._take()
                await self._show()
        except Exception:  # the job goes on without
            log.exception("no metrics are kept any more")

    async def _read(self) -> None:
        """Read what earlier masters have left."""
        while not self._ready.is_set():
            try:
                self._store = await asyncio.to_thread(self._keeper.read)
                self._ready.set()
            except StorageFailed as error:
                log.warning("the metrics of earlier masters could not be read: %s", error.message)
                await asyncio.sleep(AGAIN)

    def _take(self, is_last: bool = False) -> None:
        """Take what has come into the series, and have it written."""
        now = self._clock()
        samples = [*self._samples]
        self._samples.clear()
        for task, count in self._records.items():
            samples.append((now, task, {"records": (self._store.last(task, "records") or 0.0) + count}))
        self._records.clear()
        for at, task, values in samples:
            if values:
                self._store.add(at, task, values)
            else:
                self._store.interrupt(task)
        if samples and (is_last or now - self._totaled >= TOTALS) and (totals := self._totals(now)):
            self._totaled = now
            self._store.add(now, JOB, totals)
            samples.append((now, JOB, totals))
        if samples:
            self._keeper.take((sample_line(*sample) for sample in samples), self._rows)

    def _totals(self, now: float) -> dict[str, float]:
        return self._store.totals(now) | figures(
            {"progress": self._progress(lambda task: self._store.last(task, "progress"))}
        )

    def _rows(self) -> Rows:
        return deque(self._store.rows())


ENDS = ("attempt-ended", "attempt-written-off")


def records_of(event: Event) -> int:
    """Return how many records an event counts as done; 0 where it does not say."""
    return sum(count for count in event.data.get("records") or () if count)
