"""Batches for TensorFlow: what a model file's `feed` makes of a `tf.data.Dataset` of records. Importing this module imports tensorflow.

The feed is called once. Its dataset is iterated anew for each window of records, so whatever it reads ahead ends with the window. A dataset
that repeats or caches its records gives others than those of the window: that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ..errors import BadModel

_PIECE = 256  # records that cross from Python to TensorFlow at once


class TensorFlowFeed:
    """A model file's feed of datasets. A chunk is a batch of tensors.

    `record`: the first record, which tells the types of all, or None. `types`: those that a custom reader tells, or None. `buffer`: the
    records among which it shuffles.
    """

    def __init__(
        self, feed: Callable[..., Any], mode: str, metadata: Any, size: int, record: Any, types: Any = None
    ) -> None:
        self._window: Any = None
        self._is_begun = False
        self._error: BaseException | None = None
        signature = _signature(record, types)
        several = tf.nest.map_structure(lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), signature)
        pieces = tf.data.Dataset.from_generator(self._pieces, output_signature=several)
        self._signature = signature
        dataset = feed(pieces.unbatch(), mode, metadata)
        if not isinstance(dataset, tf.data.Dataset):
            raise BadModel(
                f"the feed returns a {type(dataset).__name__}, and a tf.data.Dataset is due",
                mend="return what dataset.map(...) gives",
            )
        self.buffer = _shuffled(dataset)
        settings = tf.data.Options()
        settings.experimental_optimization.inject_prefetch = False
        # It takes the time at every record, which takes a third of the feed's own time.
        settings.autotune.enabled = False
        self._batched = dataset.batch(size).with_options(settings)

    def chunks(self, window: Any) -> Iterator[Any]:
        """Yield what the feed makes of a window, in chunks of the size of a batch; the last one may be smaller."""
        self._window, self._is_begun, self._error = window, False, None
        try:
            for chunk in self._batched:
                if not self._is_begun:
                    raise _other_records("caches")
                yield chunk
        except (tf.errors.OpError, StopIteration):
            if self._error is not None:
                raise self._error from None
            raise

    @staticmethod
    def length(chunk: Any) -> int:
        return int(_rows(tf.nest.flatten(chunk)[0]))

    @staticmethod
    def joined(chunk: Any, other: Any) -> Any:
        return tf.nest.map_structure(_concatenated, chunk, other)

    @staticmethod
    def split(chunk: Any, size: int) -> tuple[Any, Any]:
        tensors = tf.nest.flatten(chunk)
        if all(isinstance(tensor, tf.Tensor) for tensor in tensors):  # one operation each, not two slices
            rest = int(tensors[0].shape[0]) - size
            parts = [tf.split(tensor, [size, rest]) for tensor in tensors]
            first, other = zip(*parts, strict=True)
            return tf.nest.pack_sequence_as(chunk, first), tf.nest.pack_sequence_as(chunk, other)
        first = tf.nest.map_structure(lambda tensor: _part(tensor, 0, size), chunk)
        return first, tf.nest.map_structure(lambda tensor: _part(tensor, size, _rows(tensor)), chunk)

    @staticmethod
    def stacked(chunk: Any) -> Any:
        return chunk

    def _pieces(self) -> Iterator[Any]:
        """Yield the records of the window, some at once. It runs in a thread of tf.data."""
        if self._is_begun:
            self._error = _other_records("repeats")
            raise self._error
        self._is_begun = True
        try:
            piece: list[Any] = []
            for record in self._window.records():
                piece.append(record)
                if len(piece) == _PIECE:
                    yield _columns(piece, self._signature)
                    piece = []
            if piece:
                yield _columns(piece, self._signature)
        except BaseException as error:
            self._error = error
            raise


def _other_records(verb: str) -> BadModel:
    return BadModel(f"the feed {verb} its records", mend="leave that out: --num_epochs says how often data are read")


def _shuffled(dataset: Any) -> int:
    """Return the largest buffer in which a dataset, or what it is made of, is shuffled."""
    own = int(getattr(dataset, "_buffer_size", 0)) if "Shuffle" in type(dataset).__name__ else 0
    return max([own, *map(_shuffled, dataset._inputs())])


# -- records --


def _signature(record: Any, types: Any) -> Any:
    """Return the form of a record as `tf.TensorSpec`s."""
    if types is not None:
        return _spec_of(types, record)
    if isinstance(record, dict):
        return {key: _signature(value, None) for key, value in record.items()}
    if isinstance(record, tuple):
        return tuple(_signature(value, None) for value in record)
    if record is None or isinstance(record, str | bytes):
        return tf.TensorSpec([], tf.string)
    if isinstance(record, list):
        first = record[0] if record else ""
        kind = tf.string if isinstance(first, str | bytes) else tf.as_dtype(_kind(first))
        return tf.TensorSpec([None], kind)
    if isinstance(record, bool | int | float):
        return tf.TensorSpec([], _kind(record))
    tensor = tf.convert_to_tensor(record)
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _spec_of(kind: Any, record: Any) -> Any:
    """Return the form of a custom reader's records of a type: of any shape with as many dimensions as the first record."""
    import numpy

    if isinstance(kind, dict):
        return {key: _spec_of(part, record[key]) for key, part in kind.items()}
    if isinstance(kind, tuple | list):
        return tuple(_spec_of(part, value) for part, value in zip(kind, record, strict=True))
    return tf.TensorSpec([None] * numpy.ndim(record), kind)


def _kind(value: Any) -> Any:
    return tf.bool if isinstance(value, bool) else tf.int64 if isinstance(value, int) else tf.float32


def _columns(records: list[Any], signature: Any) -> Any:
    """Return records as arrays with a row for each."""
    if isinstance(signature, dict):
        return {key: _columns([record.get(key) for record in records], spec) for key, spec in signature.items()}
    if isinstance(signature, tuple):
        return tuple(
            _columns(list(column), spec) for column, spec in zip(zip(*records, strict=True), signature, strict=True)
        )
    import numpy

    if signature.dtype == tf.string:
        values = [_bytes(record) for record in records]
        try:
            return numpy.array(values, dtype=object).reshape([len(values), *([-1] if signature.shape.rank else [])])
        except ValueError:
            raise BadModel("records differ in their number of texts", mend="give all the same columns") from None
    values = [_missing(signature.dtype) if record is None else record for record in records]
    array = numpy.asarray(values)
    if array.dtype.kind == "f" and signature.dtype.is_integer:
        odd = next(value for value in records if isinstance(value, float))
        raise BadModel(f"a column began with whole numbers, and has {odd}", mend="write them all with a point, as 1.0")
    return array.astype(signature.dtype.as_numpy_dtype)


def _missing(kind: Any) -> Any:
    if kind.is_floating:
        return float("nan")
    raise BadModel("a value is missing in a column of whole numbers", mend="give each record a value for each column")


def _bytes(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, list | tuple):
        return [_bytes(part) for part in value]
    return b"" if value is None else value


# -- chunks --


def _rows(tensor: Any) -> int:
    if isinstance(tensor, tf.Tensor):
        return int(tensor.shape[0])
    if isinstance(tensor, tf.RaggedTensor):
        return int(tensor.nrows())
    return int(tensor.dense_shape[0])


def _concatenated(tensor: Any, other: Any) -> Any:
    if isinstance(tensor, tf.SparseTensor):
        return tf.sparse.concat(0, [tensor, other], expand_nonconcat_dims=True)
    return tf.concat([tensor, other], 0)


def _part(tensor: Any, first: int, end: int) -> Any:
    if isinstance(tensor, tf.SparseTensor):
        shape = tf.concat([[end - first], tensor.dense_shape[1:]], 0)
        return tf.sparse.slice(tensor, tf.concat([[first], tf.zeros_like(tensor.dense_shape[1:])], 0), shape)
    return tensor[first:end]
