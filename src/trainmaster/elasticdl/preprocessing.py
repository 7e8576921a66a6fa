"""ElasticDL's preprocessing layers for Keras 3 and 2. Importing this module imports keras.

    from trainmaster.elasticdl.preprocessing import Hashing, SparseEmbedding, ToSparse

    words = keras.Input((1,), dtype="string")
    rows = SparseEmbedding(1000, 16)(ToSparse()(Hashing(1000)(words)))

Constructor arguments, defaults and results are ElasticDL's. An input is a dense, a ragged or a sparse tensor, and the output has its form,
except with `ToRagged`, `ToSparse` and `SparseEmbedding`. Layers that return whole numbers return int64.

*Backends.* Keras has strings, ragged and sparse tensors with TensorFlow alone. Layers for numbers work with PyTorch too. A layer whose
input or output the backend does not support raises `NeedsTensorFlow`; in a functional model, when the layer is connected.

*Hashes* are TensorFlow's `tf.strings.to_hash_bucket_fast`, as in ElasticDL: FarmHash's Fingerprint64 of the text, or of a whole number's
decimal digits, modulo the bins. They are the same on each machine, in each run and with each backend, and equal to ElasticDL's.

*Saving.* Each layer is registered with Keras (`elasticdl>Hashing`), so `keras.saving.load_model` loads a model that contains it, in a
program that has imported this module. `model.export` writes a SavedModel, which loads without any of our code. ElasticDL could save only
some of its layers, and lost the vocabulary of `IndexLookup`.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy

from ..runtime.elastic.keras_in_use import IS_KERAS_2, dtype_name, keras, values_of
from ..zoo.embeddings.keras_layer import combined
from ..zoo.embeddings.lookups import COMBINERS
from . import fingerprints

HAS_TENSORFLOW = keras.backend.backend() == "tensorflow"
if HAS_TENSORFLOW:
    import tensorflow as tf

__all__ = [
    "ConcatenateWithOffset", "Discretization", "Hashing", "IndexLookup", "LogRound", "NeedsTensorFlow", "Normalizer", "RoundIdentity",
    "SparseEmbedding", "ToNumber", "ToRagged", "ToSparse",
]  # fmt: skip

Tensor = Any  # dense, ragged or sparse
_AS_THEY_ARE: dict[str, Any] = {"autocast": False} if IS_KERAS_2 else {}  # options of a layer that casts nothing


class NeedsTensorFlow(NotImplementedError):
    """A layer needs strings, ragged or sparse tensors, which Keras's backend has not got."""


def _require_tensorflow(layer: Any, kind: str) -> None:
    """Raise NeedsTensorFlow where Keras has another backend."""
    if not HAS_TENSORFLOW:
        raise NeedsTensorFlow(
            f"layer {layer.name} ({type(layer).__name__}) needs {kind}, which Keras has with TensorFlow alone:"
            f" this program's backend is {keras.backend.backend()}; set KERAS_BACKEND=tensorflow before keras is imported,"
            " or turn texts into numbers in the feed"
        )


class _Layer(keras.layers.Layer):  # type: ignore[misc]  # of type Any, as keras has no types
    """A layer that takes any form of tensor, and lists and arrays as they are: nothing is cast to the layer's own type before `call`.

    `_arguments`: the names of the constructor's arguments.
    """

    _arguments: tuple[str, ...] = ()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, **_AS_THEY_ARE)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor as JSON can hold them."""
        settings = {name: getattr(self, name) for name in self._arguments}
        # Keras keeps an attribute that is a list as a list of its own class.
        plain = {name: list(value) if isinstance(value, list) else value for name, value in settings.items()}
        return {**super().get_config(), **plain}


class _Map(_Layer):
    """A layer that gives a number for each value. `_value_dtype` is the type of its output."""

    _value_dtype = "int64"

    def call(self, inputs: Any) -> Tensor:
        return _mapped(self._map, _as_tensor(self, inputs))

    def compute_output_spec(self, inputs: Any) -> Any:
        self._check(inputs)
        return _symbol(inputs, inputs.shape, self._value_dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def _check(self, inputs: Any) -> None:
        """Raise what `call` would raise for inputs of this type."""
        _check_numbers(self, inputs)

    def _map(self, values: Any) -> Any:
        """Return the numbers for a dense tensor."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="elasticdl")
class Discretization(_Map):
    """Return the number of the range that each value falls into. The ranges include their lower boundary: `numpy.digitize`.

    `bins`: the boundaries, ascending. n boundaries make n + 1 ranges, 0 to n; NaN is in the highest. Boundaries are compared in the type of
    the values where that is a floating one, else as float64. (ElasticDL compared float64 values with boundaries rounded to float32.)
    Raises ValueError where the boundaries do not ascend.
    """

    _arguments = ("bins",)

    def __init__(self, bins: Iterable[float], **options: Any) -> None:
        super().__init__(**options)
        self.bins = [float(boundary) for boundary in bins]
        if any(not low <= high for low, high in zip(self.bins, self.bins[1:], strict=False)):
            raise ValueError(f"the bins of {self.name} must ascend: {self.bins}")

    def num_bins(self) -> int:
        """Return the number of ranges."""
        return len(self.bins) + 1

    def _map(self, values: Any) -> Any:
        dtype = _dtype_name(values) if _is_float(values) else "float64"
        boundaries = keras.ops.cast(keras.ops.convert_to_tensor(numpy.array(self.bins, "float64")), dtype)
        if dtype not in ("float32", "float64"):  # short floats are not searched for
            boundaries, dtype = keras.ops.cast(boundaries, "float32"), "float32"
        flat = keras.ops.reshape(keras.ops.cast(values, dtype), (-1,))
        ranges = keras.ops.searchsorted(boundaries, flat, side="right")
        return keras.ops.cast(keras.ops.reshape(ranges, keras.ops.shape(values)), "int64")


@keras.saving.register_keras_serializable(package="elasticdl")
class LogRound(_Map):
    """Give the logarithm of each value, rounded to a whole number (halves to the even one).

    `num_bins`: results of 0 to `num_bins` - 1 are given, `default_value` instead of all others and for values of 0 or less. `base`: of the
    logarithm, None: e. Computed as float64.
    """

    _arguments = ("num_bins", "default_value", "base")

    def __init__(self, num_bins: int, default_value: int = 0, base: float | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.num_bins, self.default_value, self.base = num_bins, default_value, base
        if base is not None and (base <= 0 or base == 1):
            raise ValueError(f"the base of {self.name} must be above 0, and not 1: {base}")

    def _map(self, values: Any) -> Any:
        logarithm = keras.ops.log(keras.ops.cast(values, "float64"))
        if self.base is not None:
            logarithm = logarithm / math.log(self.base)
        return _within(keras.ops.round(logarithm), self.num_bins, self.default_value)


@keras.saving.register_keras_serializable(package="elasticdl")
class RoundIdentity(_Map):
    """Give each value rounded to a whole number (halves to the even one).

    `num_buckets`: results of 0 to `num_buckets` - 1 are given, and `default_value` instead of all others. (Older versions of ElasticDL gave
    `num_buckets` itself too.)
    """

    _arguments = ("num_buckets", "default_value")

    def __init__(self, num_buckets: int, default_value: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.num_buckets, self.default_value = int(num_buckets), int(default_value)

    def _map(self, values: Any) -> Any:
        whole = keras.ops.round(values) if _is_float(values) else keras.ops.cast(values, "int64")
        return _within(whole, self.num_buckets, self.default_value)


@keras.saving.register_keras_serializable(package="elasticdl")
class Normalizer(_Map):
    """Give (value - subtractor) / divisor of each value, as float32. Raises ValueError where `divisor` is 0."""

    _value_dtype = "float32"
    _arguments = ("subtractor", "divisor")

    def __init__(self, subtractor: float, divisor: float, **options: Any) -> None:
        super().__init__(**options)
        self.subtractor, self.divisor = float(subtractor), float(divisor)
        if not self.divisor:
            raise ValueError(f"the divisor of {self.name} must not be 0")

    def _map(self, values: Any) -> Any:
        return (keras.ops.cast(values, "float32") - self.subtractor) / self.divisor


@keras.saving.register_keras_serializable(package="elasticdl")
class Hashing(_Map):
    """Give a bin of 0 to `num_bins` - 1 for each string or whole number, by its hash; see the module for which.

    Raises ValueError where `num_bins` is not above 0, and TypeError for other values.
    """

    _arguments = ("num_bins",)

    def __init__(self, num_bins: int, **options: Any) -> None:
        super().__init__(**options)
        if num_bins is None or num_bins <= 0:
            raise ValueError(f"num_bins of {self.name} must be above 0: {num_bins}")
        self.num_bins = int(num_bins)

    def _check(self, inputs: Any) -> None:
        _check_keys(self, inputs)

    def _map(self, values: Any) -> Any:
        return _bins(values, self.num_bins)


@keras.saving.register_keras_serializable(package="elasticdl")
class IndexLookup(_Map):
    """Give the index in a vocabulary for each string; with a vocabulary of whole numbers, for each of these.

    `vocabulary`: a list, or the path of a UTF-8 text file with a word a line (with TensorFlow a URL that it can read). It is saved with the
    model, so a model that is loaded does not need the file. `num_oov_tokens`: a word that is not in it gets `len(vocabulary)` plus a hash
    of 0 to `num_oov_tokens` - 1, or -1 where that is 0.
    Raises ValueError where there is no vocabulary, or a word is repeated, and TypeError for values that are not of its kind.
    """

    _arguments = ("vocabulary", "num_oov_tokens")

    def __init__(
        self, vocabulary: str | Sequence[str] | Sequence[int] | None = None, num_oov_tokens: int = 1, **options: Any
    ) -> None:
        super().__init__(**options)
        if vocabulary is None or not len(vocabulary):
            raise ValueError(f"{self.name} needs a vocabulary: a list, or the path of a file with a word a line")
        words = _read_words(vocabulary) if isinstance(vocabulary, str) else _plain_words(self, vocabulary)
        repeated = [word for word, count in Counter(words).items() if count > 1]
        if repeated:
            raise ValueError(f"the vocabulary of {self.name} has {repeated[0]!r} more than once")
        self.vocabulary, self.num_oov_tokens = words, int(num_oov_tokens)
        self._has_numbers = isinstance(words[0], int)
        self._table: Any = None

    def vocab_size(self) -> int:
        """Return the number of indices: those of the vocabulary, and those of other words."""
        return len(self.vocabulary) + self.num_oov_tokens

    def build(self, input_shape: Any = None) -> None:
        if HAS_TENSORFLOW and not self._has_numbers:
            with tf.init_scope():  # a table that is made in the graph of a function ends with it
                keys = tf.constant(self.vocabulary)
                pairs = tf.lookup.KeyValueTensorInitializer(keys, tf.range(len(self.vocabulary), dtype=tf.int64))
                if self.num_oov_tokens:
                    self._table = tf.lookup.StaticVocabularyTable(pairs, self.num_oov_tokens)
                else:
                    self._table = tf.lookup.StaticHashTable(pairs, -1)
        self.built = True

    def _check(self, inputs: Any) -> None:
        _check_keys(self, inputs)
        if _is_text(inputs) == self._has_numbers:
            kind = "whole numbers" if self._has_numbers else "strings"
            raise TypeError(f"the vocabulary of {self.name} is of {kind}: its values are {_dtype_name(inputs)}")

    def _map(self, values: Any) -> Any:
        if not self._has_numbers:
            return self._table.lookup(values)
        numbers = keras.ops.cast(values, "int64")
        size, flat = len(self.vocabulary), keras.ops.reshape(numbers, (-1,))
        words = numpy.array(self.vocabulary, "int64")
        order = numpy.argsort(words)
        ascending, indices = keras.ops.convert_to_tensor(words[order]), keras.ops.convert_to_tensor(order)
        places = keras.ops.minimum(keras.ops.searchsorted(ascending, flat), size - 1)
        is_known = keras.ops.take(ascending, places) == flat
        others = size + _bins(flat, self.num_oov_tokens) if self.num_oov_tokens else -keras.ops.ones_like(flat)
        lookup = keras.ops.where(is_known, keras.ops.take(indices, places), others)
        return keras.ops.reshape(lookup, keras.ops.shape(values))


@keras.saving.register_keras_serializable(package="elasticdl")
class ToNumber(_Map):
    """Give the number that each string says, or each number in another type.

    `out_type`: a type of Keras, NumPy, TensorFlow or PyTorch, as its name or itself. `default_value`: the number for an empty string. A
    string that says no number is an error of TensorFlow's. Raises ValueError where `out_type` is not the type of a number.
    """

    _arguments = ("out_type", "default_value")

    def __init__(self, out_type: Any, default_value: float, **options: Any) -> None:
        super().__init__(**options)
        try:
            self.out_type = dtype_name(out_type)
        except (ValueError, TypeError):
            self.out_type = ""
        if not self.out_type.startswith(("int", "uint", "float", "bfloat")):
            raise ValueError(f"out_type of {self.name} must be the type of a number: {out_type!r}")
        self.default_value = default_value
        self._value_dtype = self.out_type

    def _check(self, inputs: Any) -> None:
        if _is_text(inputs):
            _require_tensorflow(self, "strings")

    def _map(self, values: Any) -> Any:
        if not _is_text(values):
            return keras.ops.cast(values, self.out_type)
        is_whole = "int" in self.out_type
        default = str(int(self.default_value) if is_whole else self.default_value)
        texts = tf.where(tf.equal(values, ""), tf.constant(default), values)
        if self.out_type in ("int32", "int64", "float32", "float64"):
            return tf.strings.to_number(texts, self.out_type)
        return tf.cast(tf.strings.to_number(texts, "int64" if is_whole else "float64"), self.out_type)


@keras.saving.register_keras_serializable(package="elasticdl")
class ToRagged(_Layer):
    """Make a ragged tensor of a dense or ragged one, without the cells that are equal to `ignore_value`. Needs TensorFlow.

    Strings are split at `sep` first: ["1,2,3"] becomes ["1", "2", "3"], and the parts of all cells of a row are in one row.
    `ignore_value`: None means "" for strings, -1 for whole numbers, and for other numbers that all are kept. (The last versions of
    ElasticDL took `sep` and did not split.)
    """

    _arguments = ("sep", "ignore_value")

    def __init__(self, sep: str = ",", ignore_value: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.sep, self.ignore_value = sep, ignore_value

    def call(self, inputs: Any) -> Tensor:
        _require_tensorflow(self, "ragged tensors")
        cells = _as_tensor(self, inputs)
        if isinstance(cells, tf.SparseTensor):
            raise TypeError(f"{self.name} takes a dense or ragged tensor: this one is sparse")
        if _is_text(cells):
            cells = tf.strings.split(cells, sep=self.sep)
            rank = cells.shape.rank
            cells = cells.merge_dims(rank - 2, rank - 1) if rank > 2 else cells
        elif not isinstance(cells, tf.RaggedTensor):
            cells = tf.RaggedTensor.from_tensor(cells)
        ignored = _ignored(self.ignore_value, cells, None)
        if ignored is None:
            return cells
        return tf.ragged.boolean_mask(cells, tf.not_equal(cells, tf.cast(ignored, cells.dtype)))

    def compute_output_spec(self, inputs: Any) -> Any:
        _require_tensorflow(self, "ragged tensors")
        shape = (inputs.shape[0], *(None,) * max(1, len(inputs.shape) - 1))
        return keras.KerasTensor(shape, inputs.dtype, ragged=True)


@keras.saving.register_keras_serializable(package="elasticdl")
class ToSparse(_Layer):
    """Make a sparse tensor of a dense one, without the cells that are equal to `ignore_value`. A sparse one is given as it is.

    `ignore_value`: None means "" for strings, -1 for whole numbers and 0.0 for other ones. Needs TensorFlow.
    """

    _arguments = ("ignore_value",)

    def __init__(self, ignore_value: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.ignore_value = ignore_value

    def call(self, inputs: Any) -> Tensor:
        _require_tensorflow(self, "sparse tensors")
        cells = _as_tensor(self, inputs)
        if isinstance(cells, tf.SparseTensor):
            return cells
        ignored = _ignored(self.ignore_value, cells, 0.0)
        if isinstance(cells, tf.RaggedTensor):
            sparse = cells.to_sparse()
            return tf.sparse.retain(sparse, tf.not_equal(sparse.values, tf.cast(ignored, cells.dtype)))
        indices = tf.where(tf.not_equal(cells, tf.cast(ignored, cells.dtype)))
        return tf.SparseTensor(indices, tf.gather_nd(cells, indices), tf.shape(cells, out_type=tf.int64))

    def compute_output_spec(self, inputs: Any) -> Any:
        _require_tensorflow(self, "sparse tensors")
        return keras.KerasTensor(inputs.shape, inputs.dtype, sparse=True)


@keras.saving.register_keras_serializable(package="elasticdl")
class ConcatenateWithOffset(_Layer):
    """Add its offset to each tensor of a list, and concatenate them along `axis`.

    With offsets, ids of several features share one table of rows: [[1]] and [[2]] with the offsets [0, 10] are [[1, 12]].
    The tensors are all dense, all ragged or all sparse. `offsets`: one for each tensor, or None for none. A single tensor is
    given as it is. Raises ValueError where the numbers of tensors and offsets differ.
    """

    _arguments = ("offsets", "axis")

    def __init__(self, offsets: Sequence[float] | None, axis: int = -1, **options: Any) -> None:
        super().__init__(**options)
        self.offsets, self.axis = None if offsets is None else list(offsets), axis

    def call(self, inputs: Any) -> Tensor:
        if not isinstance(inputs, (list, tuple)):
            return inputs
        self._check(inputs)
        tensors = [_as_tensor(self, tensor) for tensor in inputs]
        if self.offsets is not None:
            pairs = zip(tensors, self.offsets, strict=True)
            tensors = [_mapped(partial(operator.add, offset), tensor) for tensor, offset in pairs]
        if not HAS_TENSORFLOW:
            return keras.ops.concatenate(tensors, axis=self.axis)
        if isinstance(tensors[0], tf.SparseTensor):
            return tf.sparse.concat(self.axis, tensors)
        return tf.concat(tensors, axis=self.axis)

    def compute_output_spec(self, inputs: Any) -> Any:
        if not isinstance(inputs, (list, tuple)):
            return _symbol(inputs, inputs.shape, inputs.dtype)
        self._check(inputs)
        for tensor in inputs if self.offsets is not None else ():
            _check_numbers(self, tensor)
        shape = list(inputs[0].shape)
        sizes = [tensor.shape[self.axis] for tensor in inputs]
        shape[self.axis] = None if None in sizes else sum(sizes)
        return _symbol(inputs[0], tuple(shape), inputs[0].dtype)

    def _check(self, inputs: Sequence[Any]) -> None:
        if self.offsets is not None and len(inputs) != len(self.offsets):
            raise ValueError(f"{self.name} has {len(self.offsets)} offsets, and is given {len(inputs)} tensors")


@keras.saving.register_keras_serializable(package="elasticdl")
class SparseEmbedding(_Layer):
    """Give for each row of ids the sum, mean or sum / sqrt(count) of their rows of a table; zeros for a row without ids.

    Input: ids from 0 to `input_dim` - 1 in the shape (batch, n), sparse or ragged; or dense, where the cells that are 0 are left out, as
    ElasticDL did. Ids below 0 are left out. Output: (batch, `output_dim`) in the type of the layer. `combiner`: sum, mean or sqrtn.
    Raises ValueError for another combiner and where a dimension is not above 0.
    """

    _arguments = ("input_dim", "output_dim", "combiner")

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        combiner: str = "mean",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if combiner not in COMBINERS:
            raise ValueError(f"the combiner of {self.name} must be sum, mean or sqrtn: {combiner!r}")
        if not input_dim or input_dim < 0 or not output_dim or output_dim < 0:
            raise ValueError(f"the dimensions of {self.name} must be above 0: {input_dim} and {output_dim}")
        self.input_dim, self.output_dim, self.combiner = int(input_dim), int(output_dim), combiner
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def get_config(self) -> dict[str, Any]:
        initializer = keras.initializers.serialize(self.embeddings_initializer)
        return {**super().get_config(), "embeddings_initializer": initializer}

    def build(self, input_shape: Any = None) -> None:
        self.embeddings = self.add_weight(
            shape=(self.input_dim, self.output_dim), initializer=self.embeddings_initializer, name="embeddings"
        )
        self.built = True

    def call(self, inputs: Any) -> Any:
        ids = _as_tensor(self, inputs)
        if HAS_TENSORFLOW and isinstance(ids, tf.RaggedTensor):
            ids = ids.to_sparse()
        if HAS_TENSORFLOW and isinstance(ids, tf.SparseTensor):
            ids = tf.SparseTensor(ids.indices, tf.cast(ids.values, tf.int64), ids.dense_shape)
            rows = tf.nn.safe_embedding_lookup_sparse(values_of([self.embeddings])[0], ids, combiner=self.combiner)
            return tf.cast(rows, self.compute_dtype)
        ids = keras.ops.cast(ids, "int64")
        is_id = ids > 0
        rows = keras.ops.take(self.embeddings, keras.ops.where(is_id, ids, keras.ops.zeros_like(ids)), axis=0)
        return combined(rows, is_id, self.combiner)

    def compute_output_spec(self, inputs: Any) -> Any:
        _check_numbers(self, inputs)
        return keras.KerasTensor((*inputs.shape[:-1], self.output_dim), self.compute_dtype)


def _as_tensor(layer: Any, inputs: Any) -> Tensor:
    """Return inputs as a tensor of the backend. A layer's `_check` says whether it can take it."""
    if HAS_TENSORFLOW:
        is_tensor = isinstance(inputs, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor))
        tensor = inputs if is_tensor else tf.convert_to_tensor(inputs)
    elif keras.ops.is_tensor(inputs):
        tensor = inputs
    else:
        array = numpy.asarray(inputs)
        if array.dtype.kind in "USO":
            _require_tensorflow(layer, "strings")
        tensor = keras.ops.convert_to_tensor(array)
    if isinstance(layer, _Map):
        layer._check(tensor)
    return tensor


def _ignored(value: Any, cells: Tensor, of_floats: Any) -> Any:
    """Return the value of the cells that are left out: `value`, or by the type of the cells where that is None."""
    return value if value is not None else "" if _is_text(cells) else -1 if cells.dtype.is_integer else of_floats


def _mapped(change: Callable[[Any], Any], tensor: Tensor) -> Tensor:
    """Return a tensor of the same form, with its values changed."""
    if HAS_TENSORFLOW and isinstance(tensor, tf.RaggedTensor):
        return tensor.with_flat_values(change(tensor.flat_values))
    if HAS_TENSORFLOW and isinstance(tensor, tf.SparseTensor):
        return tf.SparseTensor(tensor.indices, change(tensor.values), tensor.dense_shape)
    return change(tensor)


def _symbol(like: Any, shape: Any, dtype: str) -> Any:
    """Return the symbol of a tensor in the form of another."""
    options = {"ragged": True} if getattr(like, "ragged", False) else {"sparse": getattr(like, "sparse", False)}
    return keras.KerasTensor(shape, dtype, **options)


def _check_numbers(layer: Any, values: Any) -> None:
    if _is_text(values):
        raise TypeError(f"{layer.name} takes numbers: its values are strings, which ToNumber makes numbers")


def _check_keys(layer: Any, values: Any) -> None:
    if _is_text(values):
        _require_tensorflow(layer, "strings")
    elif not _dtype_name(values).startswith(("int", "uint")):
        raise TypeError(f"{layer.name} takes strings or whole numbers: its values are {_dtype_name(values)}")


def _dtype_name(values: Any) -> str:
    return dtype_name(values.dtype)


def _is_text(values: Any) -> bool:
    return _dtype_name(values) == "string"


def _is_float(values: Any) -> bool:
    return "float" in _dtype_name(values)


def _within(whole: Any, count: int, default: int) -> Any:
    """Return whole numbers of 0 to `count` - 1 as int64, and `default` for all others and NaN."""
    is_within = keras.ops.logical_and(whole >= 0, whole < count)
    safe = keras.ops.where(is_within, whole, keras.ops.zeros_like(whole))
    numbers = keras.ops.cast(safe, "int64")
    return keras.ops.where(is_within, numbers, keras.ops.full_like(numbers, default))


def _bins(keys: Any, count: int) -> Any:
    """Return the bin of each string or whole number of a dense tensor."""
    if HAS_TENSORFLOW:
        return tf.strings.to_hash_bucket_fast(keys if _is_text(keys) else tf.as_string(keys), count)
    return keras.ops.convert_to_tensor(fingerprints.bins(keras.ops.convert_to_numpy(keys), count))


def _read_words(path: str) -> list[str]:
    """Return the lines of a vocabulary's file, without white space around them."""
    if "://" in path and HAS_TENSORFLOW:
        with tf.io.gfile.GFile(path, "r") as lines:
            return [line.strip() for line in lines]
    with open(path, encoding="utf-8") as lines:
        return [line.strip() for line in lines]


def _plain_words(layer: Any, vocabulary: Sequence[Any]) -> list[Any]:
    """Return a vocabulary as a list of str or of int, as JSON can hold it."""
    words = [word.decode() if isinstance(word, bytes) else word for word in numpy.asarray(vocabulary, object).tolist()]
    words = [word.item() if isinstance(word, numpy.generic) else word for word in words]
    if all(isinstance(word, str) for word in words) or all(type(word) is int for word in words):
        return words
    raise ValueError(f"the vocabulary of {layer.name} must be of strings alone, or of whole numbers alone")
