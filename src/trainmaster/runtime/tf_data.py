"""Read shards into TensorFlow. Importing this module imports tensorflow.

    from trainmaster.runtime import tf_data

    model.fit(tf_data.dataset("train", 32, parse, signature))

tf.data asks its source for the next batch when it wants to, and that is when the one before counts as used. A dataset as it is returned
here reads nothing ahead. A `prefetch` or a parallel `map` that the program adds does, and then records count before they were trained on. A
program that adds these, and must be exact, iterates over `runtime.shards(NAME).batches(...)` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from . import shards as shards_of


def dataset(
    name: str,
    batch: int,
    parse: Callable[[list[Any]], Any] | None = None,
    signature: Any = None,
    *,
    shuffle: int = 0,
    seed: int = 0,
    drop_last: bool = False,
    **options: Any,
) -> tf.data.Dataset:
    """Return a `tf.data.Dataset` of batches of the input `name`, over all epochs.

    `parse` makes of a list of records what an element is, of the form `signature` (`tf.TensorSpec`s); without it elements are vectors of
    strings. `shuffle`: records in the buffer from which the next one is drawn, by `seed`; whole shards are shuffled by the job file.
    `options`: those of `runtime.shards`, as `default`, `epochs`, `encoding`.
    """
    if parse is not None and signature is None:
        raise ValueError("the signature of what parse returns is due: tf.TensorSpecs")
    shards = shards_of(name, **options)

    def elements() -> Iterator[Any]:
        for records in shards.batches(batch, shuffle=shuffle, seed=seed, drop_last=drop_last):
            yield _strings(records) if parse is None else parse(records)

    source = tf.data.Dataset.from_generator(
        elements, output_signature=tf.TensorSpec([None], tf.string) if signature is None else signature
    )
    settings = tf.data.Options()
    settings.experimental_optimization.inject_prefetch = False
    return source.with_options(settings)


def _strings(records: list[Any]) -> list[bytes]:
    return [record.encode("utf-8", "surrogateescape") if isinstance(record, str) else record for record in records]
