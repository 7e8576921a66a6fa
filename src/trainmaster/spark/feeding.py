"""The functions of feeders, tasks of Spark's that feed one partition each.

Spark sends this module's contents to the executors as they are, since our packages are not installed there. Its import
`trainmaster.runtime` comes with `SparkContext.addFile`, in an archive that is put last on the path.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

from trainmaster.host.java import commands_above


class Task:
    """Feeds a partition, and yields the number of its batches. `rows`: of a batch at most, 0: by their size.

    `ragged`: columns that are not made tensors. `zoned`: those of Spark's timestamps, whose rows have moments of the local time zone.
    `speculates`: Spark may run a second try beside the first.
    """

    def __init__(
        self, link: dict[str, Any], number: int, rows: int, archive: str, ragged: Collection[str], zoned: Collection[str],
        speculates: bool = False,
    ) -> None:  # fmt: skip
        self.link, self.number, self.rows, self.archive, self.speculates = link, number, rows, archive, speculates
        self.ragged, self.zoned = tuple(ragged), tuple(zoned)

    def __call__(self, index: int, rows: Iterator[Any]) -> Iterator[int | None]:
        """Be the mapped function of `RDD.mapPartitionsWithIndex`."""
        partition = self.partition(index)
        from trainmaster.runtime.feed.rows import ROWS, batches

        columns = batches(rows, self.rows or ROWS, self.link["batch"], ragged=self.ragged, zoned=self.zoned)
        yield self.feed(partition, columns)

    def partition(self, index: int) -> Any:
        """Return the feeding of a partition, a `runtime.feed.partition.Partition`."""
        from pyspark import TaskContext

        find(self.archive)
        from trainmaster.runtime.feed.partition import Partition

        context = TaskContext.get()
        assert context is not None
        return Partition(self.link, (self.number, index), context.taskAttemptId())

    def feed(self, partition: Any, batches: Iterator[Any]) -> int | None:
        """Feed batches, and return their number. A try that a copy of Spark's has overtaken waits: Spark kills it once that has ended, and
        would count its failure.
        """
        from trainmaster.runtime.feed.partition import Superseded

        try:
            count: int | None = partition.feed(batches)
        except Superseded:
            if self.speculates:
                threading.Event().wait()
            raise
        return count


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
            yield from exchange.results(batches(rows, self.rows or ROWS, self.link["batch"]))
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

        size = self.task.link["batch"]
        count = self.task.feed(partition, batches_of(batches, self.task.rows, size, ragged=self.task.ragged))
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

        yield self.task.feed(
            partition,
            batches_of(
                packed.batches(rows, self.schema, self.task.rows),
                self.task.rows,
                self.task.link["batch"],
                ragged=self.task.ragged,
            ),
        )


class Storages:
    """Opens files that are not of the executor's own host, by the clients that agents have.

    `archive`: what executors have these from. `settings`: of Hadoop, for executors that have none of their own.
    """

    def __init__(self, archive: str, settings: dict[str, str]) -> None:
        self.archive, self.settings = archive, settings

    def __call__(self, uri: str) -> Any:
        """Return the file at a URL, open for reading."""
        self._find()
        from trainmaster.data.store.ranges import open_range_file

        return open_range_file(uri)

    def _find(self) -> None:
        import os
        import sys

        from pyspark import SparkFiles

        import trainmaster

        library = os.path.join(SparkFiles.get(self.archive), "lib")
        if library in sys.path:
            return
        sys.path.append(library)
        trainmaster.__path__.append(os.path.join(library, "trainmaster"))  # which is a namespace, of the runtime alone
        if "SPARK_USER" in os.environ:  # as whom executors act where nobody asks who they are
            os.environ.setdefault("HADOOP_USER_NAME", os.environ["SPARK_USER"])
        if not any(os.environ.get(name) for name in ("HADOOP_CONF_DIR", "HADOOP_HOME")):
            os.environ["HADOOP_CONF_DIR"] = self._write_settings()

    def _write_settings(self) -> str:
        """Write the driver's settings as a configuration of Hadoop, and return its folder, which Spark removes with its files."""
        import os
        import tempfile
        from xml.sax.saxutils import escape

        from pyspark import SparkFiles

        folder = tempfile.mkdtemp(prefix="hadoop-", dir=SparkFiles.getRootDirectory())
        properties = (
            f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
            for name, value in self.settings.items()
        )
        with open(os.path.join(folder, "core-site.xml"), "w") as file:
            file.write("<configuration>\n" + "".join(properties) + "</configuration>\n")
        return folder


class Files:
    """Feeds the rows of splits of files, which are the elements of a partition. `scan`: see `runtime.feed.parquet`.

    `storages` opens those that are not of the executor's own host.
    """

    def __init__(self, task: Task, scan: dict[str, Any], storages: Storages | None) -> None:
        self.task, self.scan, self.storages = task, scan, storages

    def __call__(self, index: int, parts: Iterator[list[dict[str, Any]]]) -> Iterator[int | None]:
        """Be the mapped function of `RDD.mapPartitionsWithIndex`."""
        partition = self.task.partition(index)
        from trainmaster.runtime.feed.arrow import batches_of
        from trainmaster.runtime.feed.parquet import read

        splits = [split for part in parts for split in part]
        batches = read(self.scan, splits, self.storages)
        size = self.task.link["batch"]
        yield self.task.feed(partition, batches_of(batches, self.task.rows, size, ragged=self.task.ragged))


class Check:
    """Yields why a feeder must not read splits of files with Arrow, where there is a reason."""

    def __init__(self, scan: dict[str, Any], archive: str, storages: Storages | None) -> None:
        self.scan, self.archive, self.storages = scan, archive, storages

    def __call__(self, index: int, parts: Iterator[list[dict[str, Any]]]) -> Iterator[str]:
        """Be the mapped function of `RDD.mapPartitionsWithIndex`."""
        find(self.archive)
        from trainmaster.runtime.feed.parquet import difference

        if reason := difference(self.scan, [split for part in parts for split in part], self.storages):
            yield reason


def lacks_arrow(rows: Iterator[Any]) -> Iterator[str]:
    """Yield why this executor cannot read batches of Arrow, "" where it can."""
    import importlib.util
    import sys

    has_arrow = importlib.util.find_spec("pyarrow") is not None
    yield "" if has_arrow else f"{executor()} has no pyarrow: install it for its Python, {sys.executable}"


def executor() -> str:
    """Name the executor of this process, by the arguments of its JVM."""
    import socket

    for arguments in commands_above():
        if {"--executor-id", "--hostname"} <= {*arguments}:
            number, host = (arguments[arguments.index(name) + 1] for name in ("--executor-id", "--hostname"))
            return f"executor {number} on {host}"
    return f"the driver's machine {socket.gethostname()}"


def find(archive: str) -> None:
    """Put an archive that the driver sent behind all else on the path."""
    import sys

    from pyspark import SparkFiles

    path = SparkFiles.get(archive)
    if path not in sys.path:
        sys.path.append(path)
