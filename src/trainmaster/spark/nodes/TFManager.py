"""TensorFlowOnSpark's TFManager: queues by name, to call a function with rows by hand, as in a test of it.

    mgr = TFManager.start(b"key", ["input", "output"])
    for row in [*rows, None]:  # None ends the feed
        mgr.get_queue("input").put(row)
    main_fun(args, TFNodeContext(mgr=mgr))

The queues live in a child process, whose Unix socket asks for the key. The nodes of a cluster use shared memory instead (`readers`).
"""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Iterable, Sequence
from multiprocessing.managers import BaseManager
from typing import Any


class EndPartition:
    """Marks the end of a partition among the rows of a queue."""


class TFManager(BaseManager):
    """The queues of one node, and values by key."""

    def source(self, name: str, results: str = "output") -> QueueSource:
        """Return the rows of the queue `name` as DataFeed reads them; results go to the queue `results`."""
        return QueueSource(self.get_queue(name), self.get_queue(results))  # type: ignore[attr-defined]


def start(authkey: bytes, queues: Iterable[str], mode: str = "local") -> TFManager:
    """Start a manager with these queues: `get_queue(name)`, `get(key)`, `set(key, value)`. Raises ValueError for the mode "remote"."""
    if mode == "remote":
        raise ValueError(
            "mode is 'remote': it does not exist here, since whoever reaches a remote manager can run code"
        )
    known, values = {name: queue.Queue[Any]() for name in queues}, dict[Any, Any]()
    TFManager.register("get_queue", callable=known.get)
    TFManager.register("get", callable=values.__getitem__)
    TFManager.register("set", callable=values.__setitem__)
    manager = TFManager(authkey=authkey, ctx=multiprocessing.get_context("fork"))  # queues cannot be pickled
    manager.start()
    return manager


def connect(address: str, authkey: bytes) -> TFManager:
    """Return a started manager, from its `address`."""
    for name in ("get_queue", "get", "set"):
        TFManager.register(name)
    manager = TFManager(address, authkey=authkey)
    manager.connect()
    return manager


class QueueBatch:
    """One row of a queue, in the form of `trainmaster.runtime.feed.reader.Batch`."""

    columns = ("value",)
    wants_results = "more"

    def __init__(self, partition: int, row: Any) -> None:
        self.number, self._row = (0, partition, 0), row

    def __getitem__(self, name: str) -> list[Any]:
        return [self._row]


class QueueSource:
    """A queue as the feed of a node: rows, EndPartition, and None at the end."""

    def __init__(self, rows: Any, results: Any) -> None:
        self._rows, self._results, self._partition = rows, results, 0
        self._has_ended = False

    def read(self) -> QueueBatch | None:
        """Wait for the next row; None at the end."""
        while not self._has_ended:
            row = self._rows.get()
            self._rows.task_done()
            self._has_ended = row is None
            if isinstance(row, EndPartition):
                self._partition += 1
            elif row is not None:
                return QueueBatch(self._partition, row)
        return None

    def give(self, partition: tuple[int, int], results: Sequence[Any]) -> None:
        """Put results into their queue."""
        for result in results:
            self._results.put(result)

    def terminate(self) -> None:
        """Read nothing more."""
        self._has_ended = True
