"""Keras's embedding layer with a table, for the backends TensorFlow and PyTorch. Importing this module imports keras."""

from __future__ import annotations

from typing import Any

from ...ps.specification import TableSpec
from ...runtime.elastic.keras_in_use import ROWS, add_weight, drop_weight, keras
from ..errors import BadModel
from .durations import seconds_of
from .initial import of_keras
from .lookups import COMBINERS, OTHER_IDS, OwnRows, is_trained_elsewhere, lookup_in_force

Tensor = Any


@keras.saving.register_keras_serializable("trainmaster")
class Embedding(keras.layers.Layer):  # type: ignore[misc]  # of type Any, as keras has no types
    """Give the rows of ids of a table, (*ids.shape, output_dim); with a combiner, those of each example combined, (batch, output_dim).

    `input_dim`: ids are 0 to input_dim - 1; None: any that are not negative. Ids may be dense, or, with TensorFlow, ragged or sparse in
    the shape (batch, n). `combiner`: sum, mean or sqrtn (the sum / sqrt(count)); sparse ids need one. An example without ids has zeros.
    `mask_zero`: the id 0 fills up: it is masked, and left out of a combination. The table has the layer's name. `evict_unused`: a row that
    was in no batch for so long ("7d") is removed from the servers, and begins anew where it comes again.
    """

    def __init__(
        self,
        output_dim: int,
        input_dim: int | None = None,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        input_length: int | None = None,
        combiner: str | None = None,
        has_weights: bool = False,
        evict_unused: str | float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        for name, value in (("output_dim", output_dim), ("input_dim", input_dim)):
            if (value is None and name == "output_dim") or (value is not None and int(value) < 1):
                raise ValueError(f"{name} of {self.name} must be at least 1, and is {value}")
        if combiner not in (None, *COMBINERS):
            raise ValueError(f"the combiner of {self.name} must be sum, mean or sqrtn, and is {combiner!r}")
        self.output_dim = int(output_dim)
        self.input_dim = None if input_dim is None else int(input_dim)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.mask_zero, self.input_length, self.combiner = mask_zero, input_length, combiner
        self.evict_unused = seconds_of(evict_unused)
        self.supports_masking = mask_zero
        self.autocast = False
        self.embeddings: Any = None  # the weight, of a model that has left the tables
        self.takes = "dense"  # or ragged, or sparse
        self.own = OwnRows(self)
        if has_weights:
            self.take_weights(None)

    @property
    def spec(self) -> TableSpec:
        """The table. Raises BadModel for an initializer that no table has."""
        initializer, seed = of_keras(self.embeddings_initializer, self.input_dim, self.output_dim, self.name)
        return TableSpec(self.output_dim, initializer, self.input_dim, seed, self.evict_unused)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(), "output_dim": self.output_dim, "input_dim": self.input_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "mask_zero": self.mask_zero, "input_length": self.input_length, "combiner": self.combiner,
            "has_weights": self.embeddings is not None, "evict_unused": self.evict_unused,
        }  # fmt: skip

    def build(self, input_shape: Any = None) -> None:
        self.built = True

    def take_weights(self, rows: Any) -> None:
        """Have the rows in a weight from now on: those given, or zeros that are to be loaded. For a table with an input_dim."""
        assert self.input_dim is not None
        if self.embeddings is None:
            shape = (self.input_dim, self.output_dim)
            add_weight(self, "embeddings", shape=shape, initializer="zeros", name="embeddings")
            self.built = True
        if rows is not None:
            self.embeddings.assign(rows)

    def leave_weights(self) -> None:
        """Have the rows in a table again."""
        if self.embeddings is not None:
            drop_weight(self, "embeddings")

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        kind = _kind(inputs)
        self.takes = kind
        if kind == "dense":
            ids = keras.ops.cast(inputs, "int64")
            flat = keras.ops.reshape(ids, (-1,))
            rows = keras.ops.reshape(self._rows(flat, training), (*_shape(ids), self.output_dim))
            is_id = keras.ops.not_equal(ids, 0) if self.mask_zero else keras.ops.ones_like(ids)
            return rows if self.combiner is None else combined(rows, is_id, self.combiner)
        return self._call_ragged(inputs, training) if kind == "ragged" else self._call_sparse(inputs, training)

    def _rows(self, ids: Tensor, training: bool | None) -> Tensor:
        if self.embeddings is not None:
            return keras.ops.cast(keras.ops.take(self.embeddings, ids, axis=0), self.compute_dtype)
        return keras.ops.cast(look_up(self.name, self.output_dim, ids, self.own, training), self.compute_dtype)

    def _call_ragged(self, inputs: Tensor, training: bool | None) -> Tensor:
        import tensorflow as tf

        ids = tf.cast(inputs.flat_values, tf.int64)
        rows = self._rows(ids, training)
        if self.combiner is None:
            return inputs.with_flat_values(rows)
        return self._segments(ids, rows, inputs.value_rowids(), inputs.nrows())

    def _call_sparse(self, inputs: Tensor, training: bool | None) -> Tensor:
        import tensorflow as tf

        if self.combiner is None:
            mend = 'give it combiner="mean"'
            raise _whole(BadModel(f"the embedding {self.name} of sparse ids needs a combiner", mend=mend))
        ids = tf.cast(inputs.values, tf.int64)
        return self._segments(ids, self._rows(ids, training), inputs.indices[:, 0], inputs.dense_shape[0])

    def _segments(self, ids: Tensor, rows: Tensor, examples: Tensor, count: Tensor) -> Tensor:
        import tensorflow as tf

        weights = tf.cast(tf.not_equal(ids, 0) if self.mask_zero else tf.ones_like(ids), rows.dtype)[:, tf.newaxis]
        total = tf.math.unsorted_segment_sum(rows * weights, examples, count)
        total.set_shape([None, self.output_dim])
        return _scaled(total, tf.math.unsorted_segment_sum(weights, examples, count), self.combiner)

    def compute_mask(self, inputs: Tensor, mask: Any = None) -> Any:
        if not self.mask_zero or self.combiner is not None or _kind(inputs) != "dense":
            return None
        return keras.ops.not_equal(inputs, 0)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        self.takes = _kind(inputs)
        leading = inputs.shape if self.combiner is None else inputs.shape[:-1]
        options = {"ragged": True} if self.takes == "ragged" and self.combiner is None else {}
        return keras.KerasTensor((*leading, self.output_dim), self.compute_dtype, **options)


def combined(rows: Tensor, is_id: Tensor, combiner: str) -> Tensor:
    """Return the rows of each example, (batch, n, dimension), combined. `is_id`: (batch, n), which of them count."""
    weights = keras.ops.cast(is_id, rows.dtype)
    total = keras.ops.sum(rows * keras.ops.expand_dims(weights, -1), axis=-2)
    return _scaled(total, keras.ops.expand_dims(keras.ops.sum(weights, axis=-1), -1), combiner)


def _scaled(total: Tensor, counts: Tensor, combiner: str | None) -> Tensor:
    if combiner == "sum":
        return total
    counts = keras.ops.maximum(counts, 1)
    return total / (counts if combiner == "mean" else keras.ops.sqrt(counts))


def look_up(name: str, dimension: int, ids: Tensor, own: OwnRows, training: bool | None) -> Tensor:
    """Return the rows of ids, (n,), by the lookup in force. `own`: the rows that the layer has itself, where there is none."""
    lookup = lookup_in_force()
    if lookup is not None:
        return lookup.rows(name, dimension, ids)
    if training:
        raise _whole(is_trained_elsewhere(name))
    try:
        if keras.backend.backend() != "tensorflow":
            return keras.ops.convert_to_tensor(own.pull(keras.ops.convert_to_numpy(ids)))
        import tensorflow as tf

        if tf.executing_eagerly():
            return tf.constant(own.pull(ids.numpy()))
    except BadModel as error:
        raise _whole(error) from None
    rows = tf.numpy_function(own.pull, [ids], tf.float32)
    rows.set_shape([None, dimension])
    return rows


def _whole(error: BadModel) -> BadModel:
    """Have Keras pass an error on as it is, without its own text around it."""
    error._keras_call_info_injected = True  # type: ignore[attr-defined]  # Keras's own mark
    return error


def zeros(ids: Tensor, dimension: int) -> Tensor:
    return keras.ops.zeros((_shape(ids)[0], dimension), "float32")


def take(distinct: Tensor, rows: Tensor, noted: Tensor, ids: Tensor) -> Tensor:
    """Return the rows of ids, (n,), that all are among the distinct ones, which ascend.

    `noted`: the places of all ids of the batch in the order in which they were noted. Where just these are looked up, as by a table that
    one layer has, nothing is searched for.
    """
    if keras.backend.backend() != "tensorflow":
        from .torch_modules import take as take_by_torch

        return take_by_torch(distinct, rows, ids)
    import tensorflow as tf

    def are_ids_at(places: Tensor) -> Tensor:
        return tf.reduce_all(tf.equal(tf.gather(distinct, places), ids))

    def searched() -> Tensor:
        places = tf.searchsorted(distinct, ids, out_type=tf.int64)
        with tf.control_dependencies([tf.debugging.Assert(are_ids_at(places), [OTHER_IDS])]):
            return tf.identity(places)

    is_as_noted = tf.cond(tf.equal(tf.size(noted), tf.size(ids)), lambda: are_ids_at(noted), lambda: tf.constant(False))
    return tf.gather(rows, tf.cond(is_as_noted, lambda: noted, searched))


def _kind(inputs: Any) -> str:
    name = type(inputs).__name__
    if name == "RaggedTensor" or getattr(inputs, "ragged", False):
        return "ragged"
    return "sparse" if name == "SparseTensor" or getattr(inputs, "sparse", False) else "dense"


def _shape(tensor: Tensor) -> tuple[Any, ...]:
    shape: tuple[Any, ...] = keras.ops.shape(tensor)
    return shape


# -- Keras's own layer --


class Moved:
    """A layer of Keras, built, whose weight was dropped for a table. It stays the same object, so any model that has it goes on."""

    def __init__(self, layer: Any, spec: TableSpec) -> None:
        self.layer, self.spec, self.name = layer, spec, layer.name
        self.own = OwnRows(self)
        drop_weight(layer, ROWS)
        layer.call = self._call

    def _call(self, inputs: Tensor) -> Tensor:
        ids = keras.ops.cast(inputs, "int64")
        rows = look_up(self.name, self.spec.dimension, keras.ops.reshape(ids, (-1,)), self.own, None)
        return keras.ops.cast(keras.ops.reshape(rows, (*_shape(ids), self.spec.dimension)), self.layer.compute_dtype)

    def take_weights(self, rows: Any) -> None:
        """Give the layer its weight back, with these rows."""
        layer = self.layer
        if getattr(layer, ROWS) is None:
            vars(layer).pop("call", None)
            shape = (self.spec.input_dim, self.spec.dimension)
            add_weight(layer, ROWS, shape=shape, initializer="zeros", name="embeddings")
        getattr(layer, ROWS).assign(rows)
