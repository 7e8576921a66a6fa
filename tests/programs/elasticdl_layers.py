"""Give values to ElasticDL's layers with a backend of Keras, and print what they give, as JSON: `elasticdl_layers.py BACKEND DIRECTORY`.

Models are saved in the directory.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

BACKEND, DIRECTORY = sys.argv[1], Path(sys.argv[2])
os.environ["KERAS_BACKEND"] = BACKEND
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402
import numpy as np  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from trainmaster.elasticdl import fingerprints, preprocessing  # noqa: E402

TABLE = np.arange(12, dtype="float32").reshape(6, 2)
NUMBERS = [0, 1, 7, 12, 345, 6789, 12345678, 1234567890123456, -17, 2**63 - 1, -(2**63)]


def plain(value: Any) -> Any:
    """Return a tensor of any form as lists."""
    if hasattr(value, "to_list"):
        return decoded(value.to_list())
    if hasattr(value, "dense_shape"):
        return [plain(value.indices), plain(value.values), plain(value.dense_shape)]
    return decoded(keras.ops.convert_to_numpy(value).tolist())


def decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [decoded(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def error(call: Callable[[], Any]) -> list[str]:
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return [type(error).__name__, str(error)]
    return []


def embedding(**options: Any) -> Any:
    layer = preprocessing.SparseEmbedding(6, 2, **options)
    layer.build()
    layer.set_weights([TABLE])
    return layer


def again(layer: Any) -> Any:
    """Return the layer as Keras restores it from JSON."""
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    return keras.saving.deserialize_keras_object(config)


def restored(model: Any, inputs: Any) -> list[Any]:
    """Return what the model gives before and after it is saved and loaded."""
    path = DIRECTORY / f"{model.name}.keras"
    model.save(path)
    return [plain(model.predict(inputs, verbose=0)), plain(keras.saving.load_model(path).predict(inputs, verbose=0))]


@settings(max_examples=40, deadline=None, database=None)
@given(
    # TensorFlow takes numbers that are nearly 0 (subnormal ones) for 0.
    st.lists(st.floats(-1000, 1000, width=32, allow_subnormal=False), min_size=1, max_size=6),
    st.lists(st.floats(width=32, allow_subnormal=False) | st.sampled_from([20.0, 30.0]), min_size=1),
    st.sampled_from(["float32", "float64", "int32", "int64"]),
)
def discretization_equals_digitize(bins: list[float], values: list[float], dtype: str) -> None:
    array = np.clip(np.nan_to_num(values), -1e9, 1e9).astype(dtype) if "int" in dtype else np.array(values, dtype)
    ranges = preprocessing.Discretization(sorted(bins))(array.reshape(1, -1))
    assert plain(ranges) == [np.digitize(array, np.sort(np.array(bins, "float64"))).tolist()]


def of_numbers() -> dict[str, Any]:
    layers = preprocessing
    discretization_equals_digitize()
    return {
        "discretization": plain(
            layers.Discretization([20, 30, 40, 50])(np.array([[34, 45, 23, 67], [15, 37, 52, 47]]))
        ),
        "bins of short floats": plain(layers.Discretization([0.1])(np.array([0.1, 0.0], "float32"))),
        "log_round": plain(layers.LogRound(16, base=2)(np.array([1.2, 1.6, 0.2, 3.1, 100]))),
        "log_round of no logarithm": plain(
            layers.LogRound(16, default_value=3)(np.array([0.0, -1.0, np.nan, np.inf, 1e30]))
        ),
        "round_identity": plain(
            layers.RoundIdentity(5, default_value=2)(np.array([[1.2], [1.6], [0.2], [4.9], [-3.0], [2.5]]))
        ),
        "round_identity of whole numbers": plain(layers.RoundIdentity(5)(np.array([4, 5, -1]))),
        "normalizer": plain(layers.Normalizer(1.0, 2.0)(np.array([[3.0], [5.0], [7.0]]))),
        "type of normalized": keras.backend.standardize_dtype(layers.Normalizer(1, 2)(np.array([3.0])).dtype),
        "hashing": plain(layers.Hashing(1000)(np.array(NUMBERS))),
        "index_lookup": plain(layers.IndexLookup([5, 7, 3])(np.array([[3, 5, 1, 7]]))),
        "index_lookup without others": plain(layers.IndexLookup([5, 7, 3], num_oov_tokens=0)(np.array([[3, 9]]))),
        "index_lookup of others": plain(layers.IndexLookup([5, 7, 3], num_oov_tokens=10)(np.array(NUMBERS))),
        "to_number": plain(layers.ToNumber("int32", -1)(np.array([1.7, -2.2]))),
        "types": [layers.ToNumber(dtype, 0).out_type for dtype in (np.int16, "float64", np.dtype("uint8"))],
        "concatenate": plain(layers.ConcatenateWithOffset([0, 10], axis=1)([np.array([[1]] * 3), np.array([[2]] * 3)])),
        "a single tensor": alone(),
        "embedding": {
            name: plain(embedding(combiner=name)(np.array([[1, 3], [0, 2], [0, 0]]))) for name in layers.COMBINERS
        },
        "configurations": [again(layer).get_config() == layer.get_config() for layer in every_layer()],
        "saved": restored(model_of_numbers(), np.array([[1.2], [36.0], [700.0]])),
        "not ascending": error(lambda: layers.Discretization([1, 3, 2])),
        "divisor": error(lambda: layers.Normalizer(1, 0)),
        "num_bins": error(lambda: layers.Hashing(0)),
        "no vocabulary": error(lambda: layers.IndexLookup()),
        "repeated": error(lambda: layers.IndexLookup(["a", "b", "a"])),
        "combiner": error(lambda: layers.SparseEmbedding(3, 2, combiner="max")),
        "out_type": error(lambda: layers.ToNumber("string", 0)),
        "offsets": error(lambda: layers.ConcatenateWithOffset([0])([np.array([[1]]), np.array([[2]])])),
        "hash of floats": error(lambda: layers.Hashing(3, name="hash")(np.array([1.5]))),
    }


def every_layer() -> list[Any]:
    return [
        preprocessing.Discretization([1, 2]),
        preprocessing.LogRound(16, 1, 2, name="log"),
        preprocessing.RoundIdentity(3, 1),
        preprocessing.Normalizer(1, 2),
        preprocessing.Hashing(7),
        preprocessing.IndexLookup(["a", "b"], 2),
        preprocessing.IndexLookup(np.array([3, 4])),
        preprocessing.ToNumber("int8", 3),
        preprocessing.ToRagged(";", "x"),
        preprocessing.ToSparse(0),
        preprocessing.ConcatenateWithOffset([1, 2], 1),
        preprocessing.ConcatenateWithOffset(None),
        preprocessing.SparseEmbedding(3, 4, keras.initializers.Constant(2.0), "sum"),
    ]


def model_of_numbers() -> Any:
    value = keras.Input((1,))
    ids = [
        preprocessing.Discretization([10, 50])(value),
        preprocessing.LogRound(10)(value),
        preprocessing.RoundIdentity(100)(value),
    ]
    joined = preprocessing.ConcatenateWithOffset([0, 3, 13])(ids)
    keys = preprocessing.IndexLookup([1, 2, 3], 5)(preprocessing.Hashing(50)(joined))
    rows = preprocessing.SparseEmbedding(8, 3)(keys)
    scaled = preprocessing.ToNumber("float32", 0)(preprocessing.Normalizer(3, 4)(value))
    return keras.Model(value, keras.layers.Concatenate()([rows, scaled]), name="numbers")


def alone() -> Any:
    """Return what a model gives whose only layer is given a single tensor."""
    value = keras.Input((2,))
    model = keras.Model(value, preprocessing.ConcatenateWithOffset([5])(value))
    return plain(model(np.array([[1.0, 2.0]])))


def without_strings() -> dict[str, Any]:
    words, layers = np.array([["A", "B"]]), preprocessing
    return {
        "hashing": error(lambda: layers.Hashing(3, name="words")(words)),
        "hashing in a model": error(lambda: layers.Hashing(3, name="words")(keras.Input((1,), dtype="string"))),
        "index_lookup": error(lambda: layers.IndexLookup(["A"], name="words")(words)),
        "to_number": error(lambda: layers.ToNumber("int32", 0, name="words")(words)),
        "to_ragged": error(lambda: layers.ToRagged(name="words")(np.array([[1]]))),
        "to_sparse": error(lambda: layers.ToSparse(name="words")(np.array([[1]]))),
        "to_sparse in a model": error(lambda: layers.ToSparse(name="words")(keras.Input((1,)))),
    }


def of_strings() -> dict[str, Any]:
    import tensorflow as tf

    layers = preprocessing
    letters = np.array([["A"], ["B"], ["C"], ["D"], ["E"]])
    ragged = tf.ragged.constant([["A", "B"], ["C", "D"], ["E"], []])
    vocabulary = DIRECTORY / "words.txt"
    vocabulary.write_text("A\nB \nC\n")
    lookup = layers.IndexLookup(["A", "B", "C"])
    numbers = tf.ragged.constant([[34.0, 15.0], [67.0]])
    ids = (tf.ragged.constant([[1], [], [1]]), tf.ragged.constant([[2], [2], []]))
    join = layers.ConcatenateWithOffset([0, 10], axis=1)
    discretization = layers.Discretization([20, 30, 40, 50])
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 500) >> np.arange(500) % 64
    return {
        "hashing": plain(layers.Hashing(3)(letters)),
        "hashing of ragged": plain(layers.Hashing(3)(ragged)),
        "hashing of sparse": plain(layers.Hashing(3)(ragged.to_sparse())),
        "fingerprints": plain(tf.strings.to_hash_bucket_fast(tf.as_string(keys), 997))
        == fingerprints.bins(keys, 997).tolist(),
        "index_lookup": plain(lookup(letters)),
        "index_lookup of a file": plain(layers.IndexLookup(str(vocabulary))(letters)),
        "index_lookup of ragged": plain(lookup(ragged)),
        "index_lookup of sparse": plain(lookup(ragged.to_sparse())),
        "index_lookup without others": plain(layers.IndexLookup(["A"], num_oov_tokens=0)(letters)),
        "index_lookup in a graph": plain(tf.function(layers.IndexLookup(["C", "E"]))(tf.constant(letters))),
        "vocab_size": lookup.vocab_size(),
        "whole numbers": error(lambda: lookup(np.array([1]))),
        "to_number": plain(layers.ToNumber(tf.int32, -1.0)(np.array([["123", ""], ["456", "-789"]]))),
        "to_number of floats": plain(layers.ToNumber("float32", 0.0)(np.array([["123.5", ""]]))),
        "to_number of short": plain(layers.ToNumber("int16", 7)(np.array([["12", ""]]))),
        "to_ragged": plain(layers.ToRagged()(np.array([["1,2,3"], ["4,5"], [""]]))),
        "to_ragged of two columns": plain(layers.ToRagged("|")(np.array([["a|b", "c"], ["", "d"]]))),
        "to_ragged of numbers": plain(layers.ToRagged()(np.array([[1], [-1], [4]]))),
        "to_ragged of floats": plain(layers.ToRagged()(np.array([[1.0, -1.0]]))),
        "to_ragged of ragged": plain(layers.ToRagged()(tf.ragged.constant([["1", "2"], [""]]))),
        "to_sparse": plain(layers.ToSparse()(np.array([["A", ""], ["B", "C"]]))),
        "to_sparse of numbers": plain(layers.ToSparse()(np.array([[3, -1], [-1, 0]]))),
        "to_sparse of sparse": plain(layers.ToSparse()(ids[0].to_sparse())),
        "discretization of ragged": plain(discretization(numbers)),
        "discretization of sparse": plain(discretization(numbers.to_sparse())),
        "concatenate ragged": plain(join(list(ids))),
        "concatenate sparse": plain(join([part.to_sparse() for part in ids])),
        "concatenate strings": plain(layers.ConcatenateWithOffset(None)([letters[:1], letters[1:2]])),
        "embedding of sparse": {
            name: plain(embedding(combiner=name)(tf.ragged.constant([[1, 3], [2], []]).to_sparse()))
            for name in layers.COMBINERS
        },
        "embedding of ragged": plain(embedding()(tf.ragged.constant([[1, 3], [0], []]))),
        "saved": restored(model_of_strings(), tf.constant([["a,b"], ["c"], [""]])),
        "exported": exported(model_of_strings(), tf.constant([["a,b"], ["c"], [""]])),
        "losses": losses(),
    }


def model_of_strings() -> Any:
    words = keras.Input((1,), dtype="string")
    parts = preprocessing.ToRagged()(words)
    sparse = preprocessing.ToSparse()(preprocessing.IndexLookup(["a", "b"], 3)(parts))
    rows = [
        preprocessing.SparseEmbedding(20, 4)(preprocessing.Hashing(20)(parts)),
        preprocessing.SparseEmbedding(5, 4, combiner="sum")(sparse),
    ]
    return keras.Model(words, keras.layers.Dense(1)(keras.layers.Concatenate()(rows)), name="strings")


def exported(model: Any, inputs: Any) -> list[Any]:
    """Return what the model gives, and what TensorFlow alone gives for the files that it is exported to."""
    import tensorflow as tf

    path = str(DIRECTORY / "exported")
    model.export(path, verbose=False)
    loaded = tf.saved_model.load(path)
    return [plain(model(inputs)), plain(loaded.serve(inputs))]


def losses() -> list[float]:
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    model = model_of_strings()
    model.compile(keras.optimizers.Adam(0.05), "mse")
    data = tf.data.Dataset.from_tensor_slices(([["a,b"], ["c"], [""], ["b"]], [[1.0], [2.0], [0.0], [3.0]])).batch(2)
    return [float(loss) for loss in model.fit(data, epochs=30, verbose=0).history["loss"]]


more = of_strings if BACKEND == "tensorflow" else without_strings
print(json.dumps({"numbers": of_numbers(), "strings": more()}))
