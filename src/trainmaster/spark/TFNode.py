"""TensorFlowOnSpark's TFNode: helpers for the program that runs in a Spark task. They need the standard library, DataFeed NumPy too."""

from __future__ import annotations

import getpass
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

HADOOP_SCHEMES = tuple(
    f"{name}://" for name in ("adl", "file", "hdfs", "oss", "s3", "s3a", "s3n", "swift", "viewfs", "wasb")
)
_LOG = logging.getLogger(__name__)


class Place(Protocol):
    """The part of a node's context that paths depend on."""

    defaultFS: str
    working_dir: str


def hdfs_path(ctx: Place, path: str) -> str:
    """Return a path as a URL. A relative one is in the user's directory of HDFS, or in the working directory where the default is `file:`.

    | path, default file system | URL |
    |---|---|
    | with one of HADOOP_SCHEMES | as it is |
    | `/abs` | `{defaultFS}/abs` |
    | relative, hdfs or viewfs | `{defaultFS}/user/{user}/{path}` |
    | relative, file | `{defaultFS}/{working_dir without its first /}/{path}` |
    | relative, another | `{defaultFS}/{path}`, with a warning |
    """
    if path.startswith(HADOOP_SCHEMES):
        return path
    if path.startswith("/"):
        return ctx.defaultFS + path
    if ctx.defaultFS.startswith(("hdfs://", "viewfs://")):
        return f"{ctx.defaultFS}/user/{getpass.getuser()}/{path}"  # USER: YARN's containers run as another one
    if ctx.defaultFS.startswith("file://"):
        return f"{ctx.defaultFS}/{ctx.working_dir[1:]}/{path}"
    _LOG.warning("Unknown scheme %s with relative path: %s", ctx.defaultFS, path)
    return f"{ctx.defaultFS}/{path}"


class Source(Protocol):
    """The batches of one feed, as `trainmaster.runtime.feed.reader.Reader` gives them."""

    def read(self) -> Any: ...

    def give(self, partition: tuple[int, int], results: Sequence[Any]) -> None: ...

    def terminate(self) -> None: ...


class Feeds(Protocol):
    """The feeds of a node by name: `ctx.mgr`."""

    def source(self, name: str, results: str) -> Source: ...


class DataFeed:
    """The rows that the driver feeds to this node.

    `input_mapping`: column -> tensor; a batch is then a dictionary of the tensors, which get the row's values in the order of the columns'
    names. With `train_mode=False` a batch ends where a partition ends. Each row of an inference needs one result, in the order of the
    rows. Results go back to where the rows came from; `qname_out` matters for the queues of a TFManager alone. `done_feeding`: all was
    read.
    """

    def __init__(
        self,
        mgr: Feeds,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> None:
        self.mgr, self.train_mode, self.qname_in, self.qname_out = mgr, train_mode, qname_in, qname_out
        self.input_tensors = [tensor for _, tensor in sorted(input_mapping.items())] if input_mapping else None
        self.done_feeding = False
        self._rows: list[Any] = []  # of the batch that was read last; the rows from `_next` on are not yet given out
        self._next, self._partition = 0, (-1, -1)
        self._wants_results = ""  # as of `Batch`, of the batch that was read last
        self._unanswered: list[
            tuple[tuple[int, int], int]
        ] = []  # (partition, rows without a result), in the order of the rows
        self._results: dict[tuple[int, int], list[Any]] = {}  # by partition, those that are not sent yet
        self._has_warned = False

    @cached_property
    def _source(self) -> Source:
        """Open the feed when it is first used: a parameter server has none, and its function may make a DataFeed like all others."""
        return self.mgr.source(self.qname_in, self.qname_out)

    def next_batch(self, batch_size: int) -> Any:
        """Return the next rows, at most `batch_size`; fewer at the end of the feed and, with `train_mode=False`, of a partition.

        A row is as it was fed: a tuple, or a value where the rows are single values; lists of numbers come as NumPy arrays. Raises
        ValueError where an inference's partition is read to its end and rows of it have no result: its next rows would never come.
        """
        rows: list[Any] = []
        while len(rows) < batch_size and self._has_rows(rows):
            part = self._rows[self._next : self._next + batch_size - len(rows)]
            self._next += len(part)
            rows += part
            if self._wants_results:
                count = 0
                if self._unanswered and self._unanswered[-1][0] == self._partition:
                    _, count = self._unanswered.pop()
                self._unanswered.append((self._partition, count + len(part)))
        if self.input_tensors is None:
            return rows
        wholes = [row if isinstance(row, tuple | list) else (row,) for row in rows]
        columns = list(zip(*wholes, strict=True)) or [()] * len(self.input_tensors)
        if len(columns) < len(self.input_tensors):
            raise ValueError(f"a row has {len(columns)} values, and input_mapping names {len(self.input_tensors)}")
        return {tensor: list(column) for tensor, column in zip(self.input_tensors, columns, strict=False)}

    def should_stop(self) -> bool:
        """Tell whether the feed has ended."""
        return self.done_feeding

    def batch_results(self, results: Iterable[Any]) -> None:
        """Give the next rows' results, in the order of the rows. Raises ValueError for more results than there are rows without one.

        Results of rows that the driver feeds for training are dropped, with a warning: nobody asks for them.
        """
        results = list(results)
        if not self._wants_results:
            if results and not self._has_warned:
                self._has_warned = True
                _LOG.warning("results of the feed %r are dropped: the driver feeds it for training", self.qname_in)
            return
        waiting = sum(count for _, count in self._unanswered)
        if len(results) > waiting:
            raise ValueError(
                f"there are {len(results)} results, and {waiting} rows wait for one: give one result a row"
            )
        while results:
            (partition, count), *others = self._unanswered
            part, results = results[:count], results[count:]
            self._results.setdefault(partition, []).extend(part)
            self._unanswered = [(partition, count - len(part)), *others] if len(part) < count else others
        if self._next == len(self._rows) or self._partition not in self._results:
            self._give()

    def terminate(self) -> None:
        """Read nothing more: the driver stops feeding at once."""
        self.done_feeding, self._rows, self._next = True, [], 0
        self._source.terminate()

    def _has_rows(self, rows: Sequence[Any]) -> bool:
        """Read on where nothing is left of the last batch. False at the feed's end, and where the next rows are not for the same batch."""
        while self._next == len(self._rows) and not self.done_feeding:
            if self._wants_results == "last":
                if rows:
                    return False
                self._check_answered()
            self._give()
            batch = self._source.read()
            if batch is None:
                self.done_feeding = True
                return False
            previous, self._partition = self._partition, batch.number[:2]
            self._rows, self._next, self._wants_results = _rows_of(batch), 0, batch.wants_results
            if rows and not self.train_mode and self._partition != previous:
                return False
        return not self.done_feeding

    def _check_answered(self) -> None:
        missing = sum(count for partition, count in self._unanswered if partition == self._partition)
        if missing:
            raise ValueError(
                f"{missing} rows have no result, and their partition has no more rows: give one result a row before the next batch"
            )

    def _give(self) -> None:
        """Send the results."""
        for partition, results in self._results.items():
            self._source.give(partition, results)
        self._results = {}


def _rows_of(batch: Any) -> list[Any]:
    """Return a batch's rows. They are copies, so the memory of the batch is free again."""
    columns = []
    for name in batch.columns:
        values = batch[name]
        if hasattr(values, "tolist"):
            values = values.tolist() if values.ndim == 1 else list(values.copy())
            if (valid := batch.valid(name)) is not None:
                values = [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]
        columns.append(values)
    return columns[0] if list(batch.columns) == ["value"] else list(zip(*columns, strict=True))


def start_cluster_server(ctx: Any, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
    """Return the ClusterSpec and a started `tf.distribute.Server` of this node. `num_gpus` changes nothing: Spark gives a task its GPUs.

    Raises ValueError for `rdma`: TensorFlow has had no "grpc+verbs" since 2.0.
    """
    if rdma:
        raise ValueError('rdma=True needs the protocol "grpc+verbs", which TensorFlow has not had since 2.0')
    import tensorflow as tf

    cluster = tf.train.ClusterSpec(ctx.cluster_spec)
    release_port(ctx)
    return cluster, tf.distribute.Server(cluster, job_name=ctx.job_name, task_index=ctx.task_index)


def export_saved_model(sess: Any, export_dir: str, tag_set: str, signatures: Any) -> None:
    """Refuse: sessions are TensorFlow 1's. `compat.export_saved_model` exports a Keras model."""
    raise NotImplementedError(
        "there are no sessions in TensorFlow 2: use compat.export_saved_model(model, export_dir, is_chief)"
    )


def release_port(ctx: Any) -> None:
    """Free the node's port for TensorFlow, where it is still held."""
    if ctx.tmp_socket is not None:
        ctx.tmp_socket.close()
        ctx.tmp_socket = None
