"""Read in a thread, so that a member that waits for the last shards of others does not keep them waiting for itself."""

from __future__ import annotations

import queue
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

PATIENCE = 1.0  # s that a member waits for its loader before it takes part without a batch
IDLE = 0.01  # s between two looks whether anybody has a batch
NOTHING_YET = object()
_END = object()


class Reader:
    """The batches of a loader. One is read ahead of nobody: it is read when it is asked for. `begin` is called in the thread first."""

    def __init__(self, loader: Iterable[Any], begin: Callable[[], None] = lambda: None) -> None:
        self.has_ended = False
        self._asks: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: to end
        self._batches: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._is_asked, self._patience = False, PATIENCE
        thread = threading.Thread(target=self._read, args=(loader, begin), name="trainmaster-batches", daemon=True)
        thread.start()

    def next(self) -> Any:
        """Return the next batch, or NOTHING_YET: there is none yet, or the loader has ended. Raises what the loader raises."""
        if self.has_ended:
            return NOTHING_YET
        if not self._is_asked:
            self._asks.put(True)
            self._is_asked = True
        try:
            batch, error = self._batches.get(timeout=self._patience) if self._patience else self._batches.get_nowait()
        except queue.Empty:
            self._patience = 0.0  # until the next batch comes
            return NOTHING_YET
        self._is_asked, self._patience = False, PATIENCE
        if error is not None:
            raise error
        self.has_ended = batch is _END
        return NOTHING_YET if self.has_ended else batch

    def close(self) -> None:
        """End the thread, once it does not read any more."""
        self._asks.put(False)

    def _read(self, loader: Iterable[Any], begin: Callable[[], None]) -> None:
        batches: Iterator[Any] | None = None
        while self._asks.get():
            try:
                if batches is None:
                    begin()
                    batches = iter(loader)
                self._batches.put((next(batches, _END), None))
            except BaseException as error:  # noqa: BLE001  it is raised where the batch was asked for
                self._batches.put((_END, error))
        getattr(batches, "close", lambda: None)()


class PatientSource:
    """A source of shards that takes part in the others' steps while a thread waits for one to lease. `take_part` returns whether it did."""

    def __init__(self, source: Any, take_part: Callable[[], bool]) -> None:
        self._source, self._take_part = source, take_part
        self._reader = Reader(iter(source.next, None))

    def next(self, wait: bool | None) -> Any:
        if wait is False:
            return self._source.next(False)
        while (shard := self._reader.next()) is NOTHING_YET and not self._reader.has_ended:
            if not self._take_part():
                time.sleep(IDLE)
        return None if self._reader.has_ended else shard

    def close(self) -> None:
        self._reader.close()
        self._source.close()
