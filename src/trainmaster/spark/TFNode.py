"""TensorFlowOnSpark's TFNode: helpers for the program that runs in a Spark task. They need the standard library, DataFeed NumPy too."""

from __future__ import annotations

import getpass
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

HADOOP_SCHEMES = tuple(
    f"{name}://" for name in ("adl", "file", "hdfs", "oss", "s3", "s3a", "s3n", "swift", "viewfs", "wasb")
)


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
    logging.getLogger(__name__).warning("Unknown scheme %s with relative path: %s", ctx.defaultFS, path)
    return f"{ctx.defaultFS}/{path}"


class Source(Protocol):
    """The batches of one feed, as `trainmaster.runtime.feed.reader.Reader` gives them."""

    def read(self) -> Any: ...

    def give(self, partition: tuple[int, int], results: Sequence[Any]) -> None: ...

    def terminate(self) -> None: ...


class Feeds(Protocol):
    """The feeds of a node by name: `ctx.mgr`."""

    def source(self, name: str) -> Source: ...


class DataFeed:
    """The rows that the driver feeds to this node.

    `input_mapping`: column -> tensor; a batch is then a dictionary of the tensors, which get the row's values in the order of the columns'
    names. In inference (`train_mode=False`) no batch spans partitions, and each row needs one result, before the next batch is read.
    Results go back to where the rows came from, whatever `qname_out` is. `done_feeding`: all was read.
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
        self._source = mgr.source(qname_in)
        self._rows: list[Any] = []  # of the batch that was read last, those from `_next` on are still to be given
        self._next, self._partition, self._is_last = (
            0,
            (-1, -1),
            False,
        )  # is_last: nothing of this partition comes after them
        self._answering = self._partition  # of the rows that were given last
        self._unanswered = 0  # rows of the last batch that have no result yet
        self._results: list[Any] = []  # those that are not on their way yet

    def next_batch(self, batch_size: int) -> Any:
        """Return the next rows, at most so many; fewer at the end of the feed and, in inference, of a partition.

        A row is as it was fed: a tuple, or a value where the rows are single values; lists of numbers come as NumPy arrays. Raises
        ValueError where rows of the last batch have no result, or results are wanted and `train_mode` is true.
        """
        if self._unanswered:
            raise ValueError(
                f"{self._unanswered} rows of the last batch have no result: give one result a row, before the next batch is read"
            )
        rows: list[Any] = []
        while len(rows) < batch_size and self._has_rows(rows):
            part = self._rows[self._next : self._next + batch_size - len(rows)]
            self._next += len(part)
            rows += part
            self._answering = self._partition
        self._unanswered = 0 if self.train_mode else len(rows)
        if self.input_tensors is None:
            return rows
        columns = list(zip(*rows, strict=True)) or [()] * len(self.input_tensors)
        return {tensor: list(column) for tensor, column in zip(self.input_tensors, columns, strict=True)}

    def should_stop(self) -> bool:
        """Tell whether the feed has ended."""
        return self.done_feeding

    def batch_results(self, results: Sequence[Any]) -> None:
        """Give results of the last batch's rows, in their order. Raises ValueError for more than there are rows."""
        if len(results) > self._unanswered:
            raise ValueError(
                f"there are {len(results)} results, and {self._unanswered} rows wait for one: give one result a row"
            )
        self._unanswered -= len(results)
        self._results += results
        if self._next == len(self._rows) or self._answering != self._partition:
            self._give()

    def terminate(self) -> None:
        """Read nothing more: the driver stops feeding at once."""
        self.done_feeding, self._rows, self._next = True, [], 0
        self._source.terminate()

    def _has_rows(self, rows: Sequence[Any]) -> bool:
        """Read on where nothing is left of the last batch. False at the feed's end, and where the next rows are not for the same batch."""
        while self._next == len(self._rows) and not self.done_feeding:
            if rows and self._is_last:
                return False
            self._give()
            batch = self._source.read()
            if batch is None:
                self.done_feeding = True
                return False
            if self.train_mode and batch.wants_results:
                raise ValueError(f"results are wanted of the feed {self.qname_in!r}: read it with train_mode=False")
            previous, self._partition = self._partition, batch.number[:2]
            self._rows, self._next, self._is_last = _rows_of(batch), 0, batch.wants_results == "last"
            if rows and not self.train_mode and self._partition != previous:
                return False
        return not self.done_feeding

    def _give(self) -> None:
        """Send results, all of them of one partition."""
        if self._results:
            self._source.give(self._answering, self._results)
            self._results = []


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
