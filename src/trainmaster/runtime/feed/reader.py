"""Read batches out of the ring of this host, without a copy.

    for batch in Reader(path):
        loss = step(batch["pixels"], batch["label"])

The memory of a batch is the program's own, to be written to as well, for as long as anything refers to it: the batch, an array of a column,
a tensor that was made of it without a copy. When the last of them is gone the memory goes back to the ring, and the batch counts as read. A
batch of which this is not so when the reader dies goes to the next reader. So a program that keeps batches copies them: a ring that is full
of kept ones gets no new ones, which is logged.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import logging
import threading
import weakref

from . import layout
from .channel import Channel, FeedError, FeedGone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Any

    from .channel import Message
    from .layout import Column

DECIMAL = "|V16"
_AHEAD = 2  # batches that the owner may send before they are asked for, so that a program does not wait for its request's way

log = logging.getLogger(__name__)


class Batch:
    """A batch: its `number` (stage, partition, batch), its `rows`, and its `columns` by name.

    `wants_results`: "" for nobody does, "more", or "last" where it is the last batch of its partition; see `Reader.answer`.
    """

    def __init__(self, number: tuple[int, int, int], columns: list[Column], wants_results: str = "") -> None:
        self.number, self.columns, self.wants_results = (
            number,
            {column.name: column for column in columns},
            wants_results,
        )
        self.rows = columns[0].rows

    def __getitem__(self, name: str) -> Any:
        """Return a fixed column as a NumPy array, one of another kind as a list of its rows: arrays, bytes, str, or None for a null.

        A row of lists within lists is a list of those. Decimals are `decimal.Decimal`s in an array of objects; a moment with a time zone is
        that of UTC.
        """
        column = self.columns[name]
        valid = self.valid(name)
        if column.kind == "fixed":
            return _array(column) if column.dtype != DECIMAL else _decimals(column, valid)
        *outer, innermost = column.levels
        values = column.values if column.kind in ("bytes", "text") else _array(column)
        rows = [values[first:end] for first, end in itertools.pairwise(innermost)]
        if column.kind in ("bytes", "text"):
            rows = [bytes(row) if column.kind == "bytes" else str(row, "utf-8") for row in rows]
        for level in reversed(outer):
            rows = [rows[first:end] for first, end in itertools.pairwise(level)]
        return rows if valid is None else [row if is_valid else None for row, is_valid in zip(rows, valid, strict=True)]

    def valid(self, name: str) -> Any:
        """Return for each row of a column whether it has a value, as a NumPy array; None where all have."""
        import numpy

        column = self.columns[name]
        if column.validity is None:
            return None
        bits = numpy.unpackbits(numpy.frombuffer(column.validity, "u1"), count=column.rows, bitorder="little")
        return bits.view(bool)

    def arrow(self) -> Any:
        """Return the batch as a `pyarrow.RecordBatch` of the same memory; of booleans and dates alone a copy."""
        from .arrow import record_batch

        return record_batch(self.columns.values())


class Reader:
    """The one reader of a ring. Its threads may share it. Raises FeedGone where the owner has ended."""

    def __init__(self, path: str) -> None:
        self._channel = Channel(path, "read")
        self._lock = threading.Lock()
        self._has_ended = self._is_closed = self._has_warned = False
        self._finalizers: list[weakref.finalize[Any, Any]] = []  # of the batches that the program holds
        for _ in range(_AHEAD - 1):
            self._channel.send({"op": "next"})

    def read(self) -> Batch | None:
        """Wait for the next batch and return it; None at the end of the feed, and where it was stopped or closed."""
        with self._lock:
            try:
                if not self._has_ended:
                    self._channel.send({"op": "next"})
                while not self._has_ended:
                    message = self._channel.receive() or {}
                    if message["op"] == "batch":
                        return self._batch(message)
                    if message["op"] == "starved":
                        self._starved(message)
                    self._has_ended = message["op"] == "end"
                for finalizer in self._finalizers:
                    finalizer.atexit = True
            except FeedGone:
                if not self._is_closed:
                    raise
            return None

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.read()) is not None:
            yield batch
            del batch  # its memory may go while the next one is waited for

    def answer(self, batch: Batch, results: Sequence[Any]) -> None:
        """Give the results of a batch's rows, one a row, in their order, to whoever feeds it (`Feed.map`); else they are dropped.

        Raises ValueError where there are more or fewer than rows, and TypeError for a result of a kind that `results` does not have.
        """
        if len(results) != batch.rows:
            raise ValueError(f"there are {len(results)} results for {batch.rows} rows: give one result a row")
        self.give(batch.number[:2], results)

    def give(self, partition: tuple[int, int], results: Sequence[Any]) -> None:
        """Give the next results of a partition, (stage, partition). Raises TypeError as `answer`."""
        from .results import send

        send(self._channel, partition, results)

    def terminate(self) -> None:
        """Read nothing more: feeders stop at once, and what they wrote is dropped."""
        self._channel.send({"op": "stop"})

    def close(self) -> None:
        """End the connection. Batches that are still referred to go to the next reader, and their memory is used again after that."""
        self._is_closed = self._has_ended = True
        self._channel.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _batch(self, message: Message) -> Batch:
        at, size = message["at"], message["size"]
        memory = (ctypes.c_char * size).from_buffer(self._channel.memory, at)
        finalizer = weakref.finalize(memory, _release, self._channel, at)
        finalizer.atexit = False
        self._finalizers = [*(other for other in self._finalizers if other.alive), finalizer]
        stage, partition, batch = message["number"]
        columns = layout.read(memoryview(memory).cast("B"))
        first, end = message["first"], message["end"]
        if (first, end) != (0, columns[0].rows):
            columns = [column.cut(first, end) for column in columns]
        return Batch((stage, partition, batch), columns, wants_results=message.get("answers", ""))

    def _starved(self, message: Message) -> None:
        states = [finalizer.peek() for finalizer in self._finalizers]
        kept = sum(
            ctypes.sizeof(state[0]) for state in states if state
        )  # by now: the owner wrote before batches were released
        if kept <= self._channel.largest:
            return
        gc.collect()  # batches in circles of references go only so
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "the program keeps %s bytes of the feed's ring of %s and waits for a batch for which there is no room: copy what is kept, "
                "or make the ring larger", f"{kept:,}", f"{message['size']:,}",
            )  # fmt: skip


def _release(channel: Channel, at: int) -> None:
    with contextlib.suppress(FeedError):  # the owner is gone, or this is a forked child: the memory is the parent's
        channel.send({"op": "release", "at": at})


def _array(column: Column) -> Any:
    import numpy

    if column.dtype == DECIMAL:
        return _decimals(column, None)
    return numpy.frombuffer(column.values, column.dtype).reshape(-1, *column.shape)


def _decimals(column: Column, valid: Any) -> Any:
    """Return decimals as an array of objects, None where there is a null."""
    from decimal import Context, Decimal

    import numpy

    scale, exact = -int(column.detail.partition(",")[2]), Context(prec=76)
    parts = (bytes(column.values[at : at + 16]) for at in range(0, len(column.values), 16))
    numbers = [Decimal(int.from_bytes(part, "little", signed=True)).scaleb(scale, exact) for part in parts]
    array = numpy.array(numbers, object).reshape(-1, *column.shape)
    if valid is not None:
        array[~valid] = None
    return array
