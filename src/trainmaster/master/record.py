"""Write events onto the log, in a thread of their own, so that a slow disk never delays a ping.

Barriers are synced before `append` returns; notes are synced within a second. A failed append is tried again until it succeeds or the
limit passes; the log itself sees to it that nothing is doubled or torn. A storage that hangs instead of failing is the same trouble: the
call goes on in its thread, and may still end well within the limit. After each append and sync the same thread confirms the epoch
(`log.epochs`), which is a look at the storage too: where a later one was taken, what was written may never be read, and its master must
not act on it. A master with nothing to write looks now and then (`lost`), for agents stay with it until it goes.

The log holds some room for the events of the job's end. While the disk has none but that, events go there and the trouble is shown; once it
has lasted for the limit, the job ends while its end can still be recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trainmaster.core.errors import StorageFailed
from trainmaster.core.machine.events import Event, encode
from trainmaster.log.storage import SILENT, silent
from trainmaster.log.writer import Writer

NOTES = 0.5  # s until notes are synced; a note is durable within 1 s
LOOK = 5.0  # s between two looks whether the epoch is still ours
HURRIED = 10.0  # s that a job which a user ends waits for a log that cannot be written
CLOSED_WITHIN = 60.0  # s to close the log
_RETRY = 1.0  # s between tries of a failed append

T = TypeVar("T")
log = logging.getLogger(__name__)


class Superseded(Exception):
    """A master with a higher epoch exists; this one stops acting at once."""


class Record:
    """The record appends events in order. `confirm` tells whether the epoch is still ours.

    `trouble` is called with a text when the log cannot be written, and with "" when it can again. `place`: of the log, for that text.
    """

    def __init__(
        self, writer: Writer, confirm: Callable[[], bool], trouble: Callable[[str], None], place: str = ""
    ) -> None:
        self._writer, self._place = writer, place
        self._confirm = confirm
        self._trouble = trouble
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log")
        self._flushing: asyncio.Task[None] | None = None
        self.appended = 0  # number of the last event written
        self._left: list[Event] = []
        self.synced = 0  # number of the last event on stable storage, and then confirmed
        self.superseded = False
        self._trouble_began: float | None = None  # by the loop's clock
        self._detail = ""  # of the trouble
        self._failing = 0  # appends and syncs that are tried again just now
        self._hurried_at = math.inf  # by the loop's clock: when somebody asked not to wait long for the log
        self._doubt = asyncio.Event()  # somebody says that the epoch is ours no more
        self._waiters: list[asyncio.Future[None]] = []

    async def append(self, events: Sequence[Event], *, sync: bool, limit: float | None) -> None:
        """Write `events`; with `sync` they are durable when this returns.

        Raises StorageFailed after `limit` seconds of failing, Superseded where the epoch is no longer ours.
        """
        assert self.appended or events[0].type == "master-started", "an epoch's first line says what it has read"
        lines = [encode(event) for event in events]
        try:
            await self._insist(lambda: self._writer.append(lines, sync), lambda began: self._is_over(began, limit))
        except StorageFailed:
            self.leave(events)
            raise
        if self.superseded:
            raise Superseded
        self.appended = events[-1].n
        if sync:
            self._mark_synced(self.appended)
        elif self._flushing is None:
            self._flushing = asyncio.create_task(self._flush_soon())

    def leave(self, events: Sequence[Event]) -> None:
        """Have `events`, which nobody waits for any more, written where the storage is back by the time that the log is closed.

        A call that hung may land after all, and a log without its end would contradict what was said of the job.
        """
        self._left += events

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

    def hurry(self) -> None:
        """Have appends give up soon: a user ends the job, and must not wait as long as the job itself may wait for its storage."""
        self._hurried_at = min(self._hurried_at, asyncio.get_running_loop().time())

    def _is_over(self, began: float, limit: float | None) -> bool:
        """Tell whether a trouble that began then has lasted long enough for an append to give up."""
        now = asyncio.get_running_loop().time()
        return (limit is not None and now - began >= limit) or now - max(began, self._hurried_at) >= HURRIED

    def look(self) -> None:
        """Have `lost` look now."""
        self._doubt.set()

    async def close(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._flushing
        closing = asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        try:
            if not (await asyncio.wait([closing], timeout=CLOSED_WITHIN))[0]:
                raise silent(self._place, CLOSED_WITHIN)
            closing.result()
        except StorageFailed:
            if not self.superseded:  # else nobody reads it
                raise
        if not self.superseded:
            self._mark_synced(self.appended)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        landed = self._writer.last  # with what hung, and landed meanwhile
        left = [encode(event) for event in self._left if event.n > landed]
        if left and self._confirm():
            self._writer.append(left, sync=True)
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
        await self._insist(self._writer.flush, lambda began: False)
        if not self.superseded:
            self._mark_synced(last)

    async def _insist(self, act: Callable[[], None], is_over: Callable[[float], bool]) -> None:
        """Call `act` and confirm the epoch, again and again while the storage fails. Raises StorageFailed where `is_over` says of a
        trouble that began then that it has lasted too long.
        """
        loop = asyncio.get_running_loop()
        failed = False

        def confirmed() -> tuple[bool, StorageFailed | None]:
            act()
            return self._confirm(), self._shortage()

        try:
            while True:
                try:
                    mine, shortage = await self._answer(loop.run_in_executor(self._thread, confirmed), is_over)
                    break
                except StorageFailed as error:
                    if self.superseded:
                        return
                    self._failing += not failed
                    failed = True
                    if is_over(self._begin_trouble(error)):
                        raise
                    await asyncio.sleep(_RETRY)
        finally:
            self._failing -= failed
        self.superseded = self.superseded or not mine
        self._see_shortage(shortage)

    async def _answer(self, call: asyncio.Future[T], is_over: Callable[[float], bool]) -> T:
        """Wait for the thread's answer. Show a storage that does not answer as a trouble; raise StorageFailed once `is_over`."""
        clock = asyncio.get_running_loop().time
        began = clock()
        wait = SILENT
        while not (await asyncio.wait([call], timeout=wait))[0]:
            error = silent(self._place, clock() - began)
            if is_over(self._begin_trouble(error, began)):
                raise error
            wait = _RETRY
        return call.result()

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

    def _begin_trouble(self, error: StorageFailed, began: float | None = None) -> float:
        """Show the trouble, which began now or then; return when it began."""
        if self._trouble_began is None:
            log.warning("waits for its storage: %s", " ".join(str(error).split()))
            self._trouble_began = asyncio.get_running_loop().time() if began is None else began
        self._detail = str(error)
        self._trouble(self._detail)
        return self._trouble_began
