"""Write the metrics of a running job into its storage, in a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from trainmaster.core.errors import TrainmasterError
from trainmaster.core.metrics import Store
from trainmaster.log.metrics.files import SAMPLES, SERIES, File, Rows, files, header, read, snapshot
from trainmaster.log.storage import Appender, Storage

TAIL = 4 * 1024 * 1024  # bytes of samples; so many again may be in the files of masters that died
TINY = 128 * 1024
QUEUE = 16 * 1024 * 1024  # bytes that wait for a slow storage; beyond them a snapshot is waited for
AGAIN = 10.0  # s after a failure
SOONEST, LATEST = 10.0, 60.0  # s between two snapshots where no file can grow
PACE = 64 * 1024  # bytes a second of those
CLOSING = (
    15.0  # s that the end of a master waits for what is not written yet: an object store that was away has a second try
)

log = logging.getLogger(__name__)


class Keeper:
    """The files of one master. `take` is called by its loop and waits for nothing; a thread writes."""

    def __init__(self, storage: Storage, epoch: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage, self._epoch, self._clock = storage, epoch, clock
        self._most = None if storage.droppable is None else TINY
        self._appends = storage.appends and self._most is None
        self._work: SimpleQueue[bytes | Rows | None] = SimpleQueue()
        self._queued, self._handled = 0, 0  # bytes; the thread counts those that it is done with
        self._thread: threading.Thread | None = None
        self._appender: Appender | None = None
        self._n = 0  # of the newest snapshot
        self._tail, self._snapshot = 0, 0  # bytes of the samples since that, and of itself
        self._due = clock() + (LATEST if self._most else SOONEST)  # when the next snapshot is, where no file can grow
        self._is_behind = False  # whether samples were left out, after a failure too: the next snapshot has them

    def read(self) -> Store:
        """Return what earlier masters have left; for a thread. Raises StorageFailed."""
        if self._epoch == 1:
            return Store()
        store, self._tail = read(self._storage)
        return store

    def take(self, lines: Iterable[bytes], rows: Callable[[], Rows]) -> None:
        """Keep further samples. `rows` returns all series as they are now, with these samples."""
        waiting = self._queued - self._handled
        if self._is_behind or not self._appends:
            if not waiting and self._clock() >= self._due:
                self._put_snapshot(rows())
        elif waiting > QUEUE:
            self._is_behind = True
        elif self._tail > max(TAIL, self._snapshot):
            self._put_snapshot(rows())
        else:
            data = b"".join(lines)
            self._tail += len(data)
            self._put(data)

    def close(self, rows: Callable[[], Rows]) -> None:
        """Write what is left, for as long as `CLOSING`; for a thread."""
        if self._is_behind or not self._appends:
            self._put_snapshot(rows())
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(CLOSING)

    def _put_snapshot(self, rows: Rows) -> None:
        self._is_behind, self._tail = False, 0
        self._due = self._clock() + LATEST  # until its size is known
        self._put(rows)

    def _put(self, work: bytes | Rows) -> None:
        self._queued += _size(work)
        self._work.put(work)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="metrics", daemon=True
            )  # a hung storage keeps nobody from ending
            self._thread.start()

    # -- in the thread --

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            size = _size(work)
            try:
                if isinstance(work, bytes):
                    self._append(work)
                else:
                    self._write_snapshot(work)
            except Exception as error:  # noqa: BLE001  whatever a storage raises: metrics end no job
                log.warning("metrics could not be written: %s", getattr(error, "message", None) or repr(error))
                self._due, self._is_behind = self._clock() + AGAIN, True
                self._close_appender()  # nobody knows what the file has
            self._handled += size
        self._close_appender()

    def _append(self, data: bytes) -> None:
        if self._is_behind:
            return
        if self._appender is None:
            self._appender = self._storage.appender(File(self._epoch, self._n, SAMPLES).path)
            self._appender.write(header())
        self._appender.write(data)
        if (
            not self._storage.local
        ):  # there bytes that are not synced are seen by nobody; here they outlive their process
            self._appender.sync()

    def _write_snapshot(self, rows: Rows) -> None:
        self._close_appender()
        is_new = self._appends or not self._n
        self._n += is_new  # where no file can grow, one snapshot of this master is replaced again and again
        file = File(self._epoch, self._n, SERIES)
        content = snapshot(rows, self._most)
        self._storage.replace(file.path, content, durable=False)
        self._snapshot = len(content)
        self._due = self._clock() + (LATEST if self._most else min(LATEST, max(SOONEST, len(content) / PACE)))
        for older in files(self._storage) if is_new else ():
            if older.place < file.place:
                self._storage.remove(older.path)

    def _close_appender(self) -> None:
        appender, self._appender = self._appender, None
        if appender is not None:
            with contextlib.suppress(TrainmasterError, OSError):
                appender.close()


def _size(work: bytes | Rows) -> int:
    return len(work) if isinstance(work, bytes) else sum(len(content) for _, content in work)
