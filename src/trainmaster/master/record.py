"""Write events onto the log, in a thread of their own, so that a slow disk never delays a ping.

Barriers are synced before `append` returns; notes are synced within a second. A failed append is tried again until it succeeds or the
limit passes; the log itself sees to it that nothing is doubled or torn. After each append and sync the same thread confirms the epoch
(`log.epochs`), which is a look at the storage too: where a later one was taken, what was written may never be read, and its master must
not act on it. A master with nothing to write looks now and then (`lost`), for agents stay with it until it goes.

The log holds some room for the events of the job's end. While the disk has none but that, events go there and the trouble is shown; once it
has lasted for the limit, the job ends while its end can still be recorded.
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
        self._flushing: asyncio.Task[None] | None = None
        self.appended = 0  # number of the last event written
        self.synced = 0  # number of the last event on stable storage, and then confirmed
        self.superseded = False
        self._trouble_began: float | None = None  # by the loop's clock
        self._detail = ""  # of the trouble
        self._failing = 0  # appends and syncs that are tried again just now
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

    def overdue(self, limit: float | None) -> str:
        """Return the detail of a trouble that has lasted for `limit` seconds while the log can be written; "" where there is none."""
        began = self._trouble_began
        if began is None or limit is None or asyncio.get_running_loop().time() - began < limit:
            return ""
        return self._detail

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
                look = asyncio.get_running_loop().run_in_executor
                mine = await look(self._thread, self._confirm)
                if self._trouble_began is not None and not self._failing:
                    self._see_shortage(await look(self._thread, self._shortage))
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
        failed = False

        def confirmed() -> tuple[bool, StorageFailed | None]:
            act()
            return self._confirm(), self._shortage()

        try:
            while True:
                try:
                    mine, shortage = await loop.run_in_executor(self._thread, confirmed)
                    break
                except StorageFailed as error:
                    if self.superseded:
                        return
                    self._failing += not failed
                    failed = True
                    began = self._begin_trouble(error)
                    if limit is not None and loop.time() - began >= limit:
                        raise
                    await asyncio.sleep(_RETRY)
        finally:
            self._failing -= failed
        self.superseded = self.superseded or not mine
        self._see_shortage(shortage)

    def _shortage(self) -> StorageFailed | None:
        """Hold room for the job's end; return why there is none."""
        try:
            self._writer.hold_room()
        except StorageFailed as error:
            return error
        return None

    def _see_shortage(self, shortage: StorageFailed | None) -> None:
        """End the trouble, now that the log was written, where the room for the job's end is held too."""
        if shortage is not None:
            self._begin_trouble(shortage)
        elif self._trouble_began is not None and not self._failing:
            self._trouble_began = None
            self._trouble("")

    def _begin_trouble(self, error: StorageFailed) -> float:
        """Show the trouble; return when it began."""
        if self._trouble_began is None:
            log.warning("waits for its storage: %s", " ".join(str(error).split()))
            self._trouble_began = asyncio.get_running_loop().time()
        self._detail = str(error)
        self._trouble(self._detail)
        return self._trouble_began
