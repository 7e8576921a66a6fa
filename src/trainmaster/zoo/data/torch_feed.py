"""Batches for PyTorch: what a model file's `feed` makes of records, with no framework of datasets. Importing this module
imports torch.

`feed(dataset, mode, metadata)` gets `Records`, with those methods of `tf.data.Dataset` that ElasticDL's model files use, and returns
that, or any iterable, of pairs (features, labels). It is called for each window of records.

A batch stacks the values of its examples: numbers, lists and arrays become tensors (float32 for Python's floats); dictionaries and tuples
are stacked by their parts; texts and bytes stay lists.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import torch

from ..errors import BadModel


class Records:
    """An iterable of records. Its methods return another one; nothing is computed before it is iterated.

    `buffer`: the records among which the largest shuffling draws.
    """

    def __init__(self, source: Callable[[], Iterator[Any]], buffer: int = 0) -> None:
        self._source, self.buffer = source, buffer

    def __iter__(self) -> Iterator[Any]:
        return self._source()

    def map(self, function: Callable[..., Any], *_: Any, **options: Any) -> Records:
        """Return function(record) of each record; of a tuple its parts are the arguments. Options of tf.data do nothing."""
        return Records(lambda: (_call(function, record) for record in self), self.buffer)

    def flat_map(self, function: Callable[..., Iterable[Any]]) -> Records:
        """Return what is in function(record) of each record."""
        return Records(lambda: (element for record in self for element in _call(function, record)), self.buffer)

    def filter(self, predicate: Callable[..., Any]) -> Records:
        """Return the records of which predicate(record) is true."""
        return Records(lambda: (record for record in self if _call(predicate, record)), self.buffer)

    def shuffle(self, buffer_size: int, seed: int | None = None, **options: Any) -> Records:
        """Return the records in another order, drawn out of a buffer of so many."""

        def shuffled() -> Iterator[Any]:
            draw, pool = random.Random(seed), []
            for record in self:
                pool.append(record)
                if len(pool) >= buffer_size:
                    yield _drawn(pool, draw)
            while pool:
                yield _drawn(pool, draw)

        return Records(shuffled, max(self.buffer, buffer_size))

    def prefetch(self, *_: Any, **options: Any) -> Records:
        """Return the records as they are."""
        return self


def _call(function: Callable[..., Any], record: Any) -> Any:
    return function(*record) if isinstance(record, tuple) else function(record)


def _drawn(pool: list[Any], draw: random.Random) -> Any:
    place = int(draw.random() * len(pool))
    pool[place], pool[-1] = pool[-1], pool[place]
    return pool.pop()


class TorchFeed:
    """A model file's feed, whose elements are Python's. A chunk is a list of elements.

    `buffer`: the records among which it shuffles.
    """

    def __init__(self, feed: Callable[..., Any], mode: str, metadata: Any, size: int) -> None:
        self._feed, self._mode, self._metadata, self._size = feed, mode, metadata, size
        nothing = feed(Records(lambda: iter(())), mode, metadata)
        self.buffer = nothing.buffer if isinstance(nothing, Records) else 0

    def chunks(self, window: Any) -> Iterator[list[Any]]:
        """Yield what the feed makes of a window, in chunks of the size of a batch; the last one may be smaller."""
        elements = self._feed(Records(window.records), self._mode, self._metadata)
        if elements is None or not hasattr(elements, "__iter__"):
            raise BadModel(
                f"the feed returns a {type(elements).__name__}", mend="return the dataset that it makes of its argument"
            )
        chunk: list[Any] = []
        for element in elements:
            chunk.append(element)
            if len(chunk) == self._size:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    @staticmethod
    def length(chunk: list[Any]) -> int:
        return len(chunk)

    @staticmethod
    def joined(chunk: list[Any], other: list[Any]) -> list[Any]:
        return chunk + other

    @staticmethod
    def split(chunk: list[Any], size: int) -> tuple[list[Any], list[Any]]:
        return chunk[:size], chunk[size:]

    @staticmethod
    def stacked(chunk: list[Any]) -> Any:
        return _stacked(chunk)


def _stacked(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {key: _stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked(list(parts)) for parts in zip(*values, strict=True))
    if isinstance(first, torch.Tensor):
        return torch.stack(values)
    if isinstance(first, str | bytes):
        return values
    is_python = isinstance(first, float | int | list)
    array = numpy.asarray(values)
    if is_python and array.dtype == numpy.float64:
        array = array.astype("f4")
    return torch.from_numpy(array) if array.dtype.kind in "biufc" else array.tolist()
