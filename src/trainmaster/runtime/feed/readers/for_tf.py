"""A feed as a dataset of TensorFlow. Importing this module imports tensorflow.

TensorFlow asks for a batch of the ring by `tf.numpy_function`, which takes arrays over without a copy where they begin at a multiple of 64
bytes, as those of the ring do. Such a call costs some 0.5 ms, and a batch of the ring has some 1 MiB. So TensorFlow itself cuts that
(`Dataset.rebatch`) into the batches of the program. These are the ring's memory too, except those across two batches of the ring. A batch
of the ring counts as read when the last of its tensors is gone. None is read ahead: the next one is asked for when the one before has too
few rows left for a batch.

RaggedTensors cannot be cut so: where there are lists of any length, each batch is a call.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from ..channel import FeedError
from ..layout import Column
from ..reader import Batch
from .batches import batches as of_size
from .batches import choose, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .batches import Columns

_ENDLESS = 1 << 62


def dataset(batches: Iterator[Batch], rows: int, drop_last: bool, columns: Columns) -> tf.data.Dataset:
    """Return a `tf.data.Dataset` of batches of so many rows; see `feed.tf`. Waits for the ring's first batch, which tells the types."""
    first = next(batches, None)
    if first is None:
        return tf.data.Dataset.from_tensors(0).take(0)
    forms = choose(first, columns, lambda batch, name: _Form(batch, name))
    flat = tf.nest.flatten(forms)
    empty = [np.zeros(0, dtype.as_numpy_dtype) for form in flat for dtype in form.dtypes]
    source: Iterator[Batch] = itertools.chain([first], batches)
    has_lists = any(form.splits > 0 for form in flat)
    if has_lists:
        source = of_size(source, rows, drop_last)
    del first

    def read(_: Any) -> list[Any]:
        batch = next(source, None)
        if batch is None:
            return [np.False_, *empty]
        return [np.True_, *(part for form in flat for part in form.parts(batch))]

    dtypes = [tf.bool, *(dtype for form in flat for dtype in form.dtypes)]

    def assemble(_: Any, *parts: Any) -> Any:
        rest = iter(parts)
        return tf.nest.pack_sequence_as(forms, [form.assemble(rest) for form in flat])

    elements = tf.data.Dataset.range(_ENDLESS).map(lambda number: tf.numpy_function(read, [number], dtypes))
    settings = tf.data.Options()  # a program that wants to read ahead says so
    settings.experimental_optimization.inject_prefetch = False
    elements = elements.take_while(lambda more, *_: tf.reshape(more, [])).map(assemble)
    if rows and not has_lists:
        elements = elements.rebatch(rows, drop_remainder=drop_last)
    return elements.with_options(settings)


class _Form:
    """The parts of a column as arrays, and the tensor of them: for lists and texts their offsets come first."""

    def __init__(self, batch: Batch, name: str) -> None:
        column = batch.columns[name]
        self.name, self.type, self.shape = name, _type_of(column), column.shape
        self.splits = len(column.levels) - (column.kind in ("bytes", "text"))
        values = tf.string if column.kind in ("bytes", "text") else tf.as_dtype(_values(batch, name).dtype)
        self.dtypes = [tf.int64] * max(self.splits, 0) + [values]

    def parts(self, batch: Batch) -> list[Any]:
        column = batch.columns.get(self.name)
        if column is None or (_type_of(column), column.shape) != (self.type, self.shape):
            present = "no such column" if column is None else f"{_type_of(column)} of shape {column.shape}"
            raise FeedError(
                f"batch {batch.number}, column {self.name!r}: expected {self.type} of shape {self.shape}, found {present}"
            )
        if column.kind == "fixed":
            return [numbers(batch, self.name)]
        valid = batch.valid(self.name)
        if valid is not None and not valid.all():
            raise FeedError(
                f"batch {batch.number}, row {int(np.argmin(valid))}, column {self.name!r}: a null, and {column.kind} has no value for it; "
                "fill it in Spark, or read it by `feed.open`, whose batches have `valid`"
            )  # fmt: skip
        levels = [np.array(level) for level in column.levels]
        for index, level in enumerate(levels[1:], 1):  # of a part of a batch
            levels[index] = level[levels[index - 1][0] : levels[index - 1][-1] + 1]
        splits = [(level - level[0]).astype("i8") for level in levels]
        first, end = int(levels[-1][0]), int(levels[-1][-1])
        if column.kind in ("bytes", "text"):
            content, bounds = bytes(column.values[first:end]), splits.pop()
            texts = np.empty(len(bounds) - 1, object)
            texts[:] = [content[begin:end] for begin, end in itertools.pairwise(bounds)]
            return [*splits, texts]
        return [*splits, _values(batch, self.name)[first:end]]

    def assemble(self, parts: Iterator[Any]) -> Any:
        """Return the tensor of the next parts."""
        splits = [next(parts) for _ in range(max(self.splits, 0))]
        for split in splits:
            split.set_shape([None])
        values = next(parts)
        values.set_shape([None, *self.shape])
        return tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False) if splits else values


def _values(batch: Batch, name: str) -> Any:
    """Return the values of a column of numbers; those in lists too."""
    column = batch.columns[name]
    if column.kind != "fixed":
        flat = Column(name, column.dtype, column.values, shape=column.shape, detail=column.detail)
        return numbers(Batch(batch.number, [flat]), name)
    return numbers(batch, name)


def _type_of(column: Column) -> str:
    return column.dtype if column.kind == "fixed" else f"{len(column.levels)} levels of {column.kind}"
