"""The functions of feeders, tasks of Spark's that feed one partition each.

Spark sends this module's contents to the executors as they are, since nothing of ours is installed there. What it imports comes with
`SparkContext.addFile`: `trainmaster.runtime`, in an archive that is put behind all else on the path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
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
        partition = self.partition(index)
        from trainmaster.runtime.feed.rows import ROWS, batches

        yield partition.feed(batches(rows, self.rows or ROWS, ragged=self.ragged, zoned=self.zoned))

    def partition(self, index: int) -> Any:
        """Return the feeding of a partition, a `runtime.feed.partition.Partition`."""
        from pyspark import TaskContext

        find(self.archive)
        from trainmaster.runtime.feed.partition import Partition

        context = TaskContext.get()
        assert context is not None
        return Partition(self.link, (self.number, index), context.taskAttemptId())


class Exchanger:
    """Feeds a partition, and yields the result of each row. `rows`: of a batch at most, 0: by their size.

    `end` tells how the job has ended, "" while it runs; it waits for that where its argument is true.
    """

    def __init__(self, link: dict[str, Any], rows: int, archive: str, end: Callable[[bool], str] | None) -> None:
        self.link, self.rows, self.archive, self.end = link, rows, archive, end

    def __call__(self, index: int, rows: Iterator[Any]) -> Iterator[Any]:
        """Be the mapped function of `RDD.mapPartitionsWithIndex`."""
        from pyspark import TaskContext

        find(self.archive)
        from trainmaster.runtime.feed.channel import FeedError
        from trainmaster.runtime.feed.exchange import LATER_PATIENCE, PATIENCE, Exchange
        from trainmaster.runtime.feed.master import Ended
        from trainmaster.runtime.feed.rows import ROWS, batches

        context = TaskContext.get()
        assert context is not None
        patience = LATER_PATIENCE if context.attemptNumber() else PATIENCE
        exchange = Exchange(self.link, index, context.taskAttemptId(), patience, lambda: self.words(waits=False) != "")
        try:
            yield from exchange.results(batches(rows, self.rows or ROWS))
        except Ended as error:  # Spark shows the error of the last try, which finds no master any more
            raise FeedError(self.words(waits=True) or str(error)) from error

    def words(self, waits: bool) -> str:
        """Say how the job has ended; "" where it runs, or nobody can tell."""
        try:
            return self.end(waits) if self.end is not None else ""
        except (OSError, ValueError):  # the driver is not reached from here
            self.end = None
            return ""


class Arrow:
    """Feeds batches of Arrow, as the function of `DataFrame.mapInArrow`."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition = self.task.partition(context.partitionId())
        from trainmaster.runtime.feed.arrow import batches_of

        count = partition.feed(batches_of(batches, self.task.rows, ragged=self.task.ragged))
        yield pyarrow.RecordBatch.from_pydict({"batches": [count]}, pyarrow.schema([("batches", pyarrow.int64())]))


class Packed:
    """Feeds rows that were packed in the JVM. `schema`: what Arrow has for their types."""

    def __init__(self, task: Task, schema: Any) -> None:
        self.task, self.schema = task, schema

    def __call__(self, index: int, rows: Iterator[bytes]) -> Iterator[int | None]:
        """Be the mapped function of `RDD.mapPartitionsWithIndex`."""
        partition = self.task.partition(index)
        from trainmaster.runtime.feed import packed
        from trainmaster.runtime.feed.arrow import batches_of

        yield partition.feed(
            batches_of(packed.batches(rows, self.schema, self.task.rows), self.task.rows, ragged=self.task.ragged)
        )


class Files:
    """Feeds the rows of splits of files, which are the elements of a partition. `scan`: see `runtime.feed.parquet`."""

    def __init__(self, task: Task, scan: dict[str, Any]) -> None:
        self.task, self.scan = task, scan

    def __call__(self, index: int, parts: Iterator[list[dict[str, Any]]]) -> Iterator[int | None]:
        """Be the mapped function of `RDD.mapPartitionsWithIndex`."""
        partition = self.task.partition(index)
        from trainmaster.runtime.feed.arrow import batches_of
        from trainmaster.runtime.feed.parquet import read

        splits = [split for part in parts for split in part]
        yield partition.feed(batches_of(read(self.scan, splits), self.task.rows, ragged=self.task.ragged))


class Check:
    """Yields why a feeder must not read splits of files with Arrow, where there is a reason."""

    def __init__(self, scan: dict[str, Any], archive: str) -> None:
        self.scan, self.archive = scan, archive

    def __call__(self, index: int, parts: Iterator[list[dict[str, Any]]]) -> Iterator[str]:
        """Be the mapped function of `RDD.mapPartitionsWithIndex`."""
        find(self.archive)
        from trainmaster.runtime.feed.parquet import difference

        if reason := difference(self.scan, [split for part in parts for split in part]):
            yield reason


def find(archive: str) -> None:
    """Put an archive that the driver sent behind all else on the path."""
    import sys

    from pyspark import SparkFiles

    path = SparkFiles.get(archive)
    if path not in sys.path:
        sys.path.append(path)
