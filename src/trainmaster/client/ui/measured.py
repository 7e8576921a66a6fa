"""The metrics of a job in `tm ui`: from its master while that answers, else from its storage.

An object store, or a ConfigMap, is written each 10 to 60 s; a master has the newest samples. Pages ask again and again, many of them for
the same: an answer serves all of them for a second, and longer where it took long, so that readers never cost a master much.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from trainmaster.client.ui.threads import in_thread
from trainmaster.log.metrics.files import read_metrics

if TYPE_CHECKING:
    from trainmaster.client.ui.sources import Source
    from trainmaster.core.metrics import Series, Store

EVERY = 1.0  # s that an answer serves at least
SHARE = 5  # and so many times as long as it took
CHOICES = 20  # answers of a master that are kept: one for each view of the job that is open

T = TypeVar("T")


class Measured:
    """The metrics of one job, as they were last read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._reading = asyncio.Lock()
        self._store: Store | None = None
        self._is_whole = False  # the store has all of a job that is over
        self._store_until, self._silent_until = 0.0, 0.0
        self._answers: dict[tuple[Any, ...], tuple[float, Sequence[Series]]] = {}  # choice -> until when, series

    async def series(
        self, over: bool, tasks: Collection[str] | None, names: Collection[str] | None, since: float
    ) -> Sequence[Series]:
        """Return what `web.contract.Facts.metrics` promises. `over`: the job has ended. Raises StorageFailed."""
        async with self._reading:
            if not over and (series := await self._ask_master(tasks, names, since)) is not None:
                return series
            if self._store is None or (time.monotonic() > self._store_until and not self._is_whole):
                newest, self._store_until = await _timed(read_metrics, self._source.past.storage)
                self._store, self._is_whole = newest, over
            return self._store.series(tasks, names, since)

    async def _ask_master(
        self, tasks: Collection[str] | None, names: Collection[str] | None, since: float
    ) -> Sequence[Series] | None:
        """Return what the master has measured; None where it does not answer, or needs not be asked."""
        choice = (tasks and tuple(tasks), names and tuple(names), since)
        until, series = self._answers.get(choice, (0.0, None))
        if series is not None and time.monotonic() <= until:
            return series
        if time.monotonic() <= self._silent_until:
            return None
        series, until = await _timed(self._source.master_metrics, tasks, names, since)
        self._answers.pop(choice, None)
        if series is None:
            self._silent_until = until
        else:
            self._answers[choice] = until, series
            if len(self._answers) > CHOICES:
                del self._answers[next(iter(self._answers))]
        return series


async def _timed(read: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    """Return what `read` returns, and until when it serves."""
    began = time.monotonic()
    result = await in_thread(read, *arguments)
    ended = time.monotonic()
    return result, ended + max(EVERY, (ended - began) * SHARE)
