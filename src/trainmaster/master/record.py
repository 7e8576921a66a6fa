"""Write events onto the log, in a thread of their own, so that a slow disk never delays a ping.

Barriers are synced before `append` returns; notes are synced within a second. A failed append is tried again until it succeeds or the
limit passes; the log itself sees to it that nothing is doubled or torn. After each append and sync the same thread confirms the epoch
(`log.epochs`), which is a look at the storage too: where a later one was taken, what was written may never be read, and its master must
not act on it. A master with nothing to write looks now and then (`lost`), for agents stay with it until it goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from trainmaster.core.errors import StorageFailed
from trainmaster.core.machine.events import Event, encode
from trainmaster.log.writer import Writer

NOTES = 0.5  # s until notes are synced; a note is durable within 1 s
LOOK = 5.0  # s between two looks whether the epoch is still ours
_RETRY = 1.0  # s between tries of a failed append

log = logging.getLogger(__name__)


class Superseded(Exception):
    """A master with a higher epoch exists; this one stops acting at once."""


class Record:
    """The record appends events in order. `confirm` tells whether the epoch is still ours.

    `trouble` is called with a text when the log cannot be written, and with "" when it can again.
    """

    def __init__(self, writer: Writer, confirm: Callable[[], bool], trouble: Callable[[str], None]) -> None:
        self._writer = writer
        self._confirm = confirm
        self._trouble = trouble
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log")
        self._durable = asyncio.Event()
        self._flushing: asyncio.Task[None] | None = None
        self.appended = 0  # number of the last event written
        self.synced = 0  # number of the last event on stable storage, and then confirmed
        self.superseded = False
        self._doubt = asyncio.Event()  # somebody says that the epoch is ours no more
        self._waiters: list[asyncio.Future[None]] = []

    async def append(self, events: Sequence[Event], *, sync: bool, limit: float | None) -> None:
        """Write `events`; with `sync` they are durable when this returns.

        Raises StorageFailed after `limit` seconds of failing, Superseded where the epoch is no longer ours.
        """
        assert self.appended or events[0].type == "master-started", "an epoch's first line says what it has read"
        lines = [encode(event) for event in events]
        await self._insist(lambda: self._writer.append(lines, sync), limit)
        if self.superseded:
            raise Superseded
        self.appended = events[-1].n
        if sync:
            self._mark_synced(self.appended)
        elif self._flushing is None:
            self._flushing = asyncio.create_task(self._flush_soon())

    async def durable(self, n: int) -> None:
        """Wait until event `n` is on stable storage and the epoch was still ours then; where it was not, wait for ever."""
        while self.synced < n:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def lost(self) -> None:
        """Return once the epoch is no longer ours; errors of looking are passed over."""
        while not self.superseded:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._doubt.wait(), LOOK)
            self._doubt.clear()
            try:
                mine = await asyncio.get_running_loop().run_in_executor(self._thread, self._confirm)
            except Exception as error:  # noqa: BLE001  it is looked again
                log.info("the epoch could not be confirmed: %r", error)
            else:
                self.superseded = self.superseded or not mine

    def look(self) -> None:
        """Have `lost` look now."""
        self._doubt.set()

    async def close(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._flushing
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        except StorageFailed:
            if not self.superseded:  # else nobody reads it
                raise
        if not self.superseded:
            self._mark_synced(self.appended)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        self._writer.flush()
        self._writer.close()

    def _mark_synced(self, n: int) -> None:
        self.synced = max(self.synced, n)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _flush_soon(self) -> None:
        """Sync the notes, however long that takes: the next event that cannot be appended ends the job. Notes that nobody tried to sync
        again would be acknowledged to nobody, and the trouble be shown although it has passed.
        """
        await asyncio.sleep(NOTES)
        self._flushing = None
        last = self.appended
        await self._insist(self._writer.flush, None)
        if not self.superseded:
            self._mark_synced(last)

    async def _insist(self, act: Callable[[], None], limit: float | None) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        failed = False

        def confirmed() -> bool:
            act()
            return self._confirm()

        while True:
            try:
                self.superseded = not await loop.run_in_executor(self._thread, confirmed) or self.superseded
            except StorageFailed as error:
                if self.superseded:
                    return
                if not failed:
                    log.warning("waits for its storage: %s", " ".join(str(error).split()))
                failed = True
                self._trouble(str(error))
                if limit is not None and loop.time() - since >= limit:
                    raise
                await asyncio.sleep(_RETRY)
            else:
                if failed:
                    self._trouble("")
                return
