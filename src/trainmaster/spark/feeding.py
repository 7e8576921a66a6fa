"""The function of a feeder, a task of Spark's that feeds one partition.

Spark sends this module's contents to the executors as they are, since nothing of ours is installed there. What it imports comes with
`SparkContext.addFile`: `trainmaster.runtime`, in an archive that is put behind all else on the path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any


class Task:
    """Feeds a partition, and yields the number of its batches. `rows`: of a batch at most, 0: by their size.

    `ragged`: columns that are not made tensors. `zoned`: those of Spark's timestamps, whose rows have moments of the local time zone.
    """

    def __init__(
        self, link: dict[str, Any], number: int, rows: int, archive: str, ragged: Collection[str], zoned: Collection[str]
    ) -> None:  # fmt: skip
        self.link, self.number, self.rows, self.archive = link, number, rows, archive
        self.ragged, self.zoned = tuple(ragged), tuple(zoned)

    def __call__(self, index: int, rows: Iterator[Any]) -> Iterator[int | None]:
        """Be the mapped function of `RDD.mapPartitionsWithIndex`."""
        partition = self._partition(index)
        from trainmaster.runtime.feed.rows import ROWS, batches

        yield partition.feed(batches(rows, self.rows or ROWS, ragged=self.ragged, zoned=self.zoned))

    def arrow(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Be the function of `DataFrame.mapInArrow`."""
        import pyarrow
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition = self._partition(context.partitionId())
        from trainmaster.runtime.feed.arrow import batches_of

        count = partition.feed(batches_of(batches, self.rows, ragged=self.ragged))
        yield pyarrow.RecordBatch.from_pydict({"batches": [count]}, pyarrow.schema([("batches", pyarrow.int64())]))

    def _partition(self, index: int) -> Any:
        from pyspark import TaskContext

        find(self.archive)
        from trainmaster.runtime.feed.partition import Partition

        context = TaskContext.get()
        assert context is not None
        return Partition(self.link, (self.number, index), context.taskAttemptId())


class Exchanger:
    """Feeds a partition, and yields the result of each row. `rows`: of a batch at most, 0: by their size."""

    def __init__(self, link: dict[str, Any], rows: int, archive: str) -> None:
        self.link, self.rows, self.archive = link, rows, archive

    def __call__(self, index: int, rows: Iterator[Any]) -> Iterator[Any]:
        """Be the mapped function of `RDD.mapPartitionsWithIndex`."""
        from pyspark import TaskContext

        find(self.archive)
        from trainmaster.runtime.feed.exchange import LATER_PATIENCE, PATIENCE, Exchange
        from trainmaster.runtime.feed.rows import ROWS, batches

        context = TaskContext.get()
        assert context is not None
        patience = LATER_PATIENCE if context.attemptNumber() else PATIENCE
        exchange = Exchange(self.link, index, context.taskAttemptId(), patience)
        yield from exchange.results(batches(rows, self.rows or ROWS))


def find(archive: str) -> None:
    """Put an archive that the driver sent behind all else on the path."""
    import sys

    from pyspark import SparkFiles

    path = SparkFiles.get(archive)
    if path not in sys.path:
        sys.path.append(path)
