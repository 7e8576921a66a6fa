"""The Keras of this program. Importing this module imports keras, or tf_keras.

    from trainmaster.runtime.elastic.keras_in_use import keras

Keras 3 is given as it is. Keras 2 is the package tf_keras where TF_USE_LEGACY_KERAS is set or the program has imported it, or the package
keras of TensorFlow 2.15. It gets those functions of `keras.ops` and `keras.tree` that our code calls, by TensorFlow. The functions
below are for the rest that differs.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import Any

Variable = Any


class _Keras2:
    """The module of Keras 2, with names that only Keras 3 has."""

    def __init__(self, module: Any) -> None:
        import tensorflow as tf

        self._module, self.ops, self.tree = module, _Operations(), tf.nest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Operations:
    """Functions of `keras.ops`, with their parameters. All others are those of TensorFlow that have the same name and parameters."""

    def __getattr__(self, name: str) -> Any:
        import tensorflow as tf

        return operator.attrgetter(_NAMES_OF_TENSORFLOW.get(name, name))(tf)

    @staticmethod
    def cast(values: Any, dtype: Any) -> Any:
        import tensorflow as tf

        return tf.cast(values, tf.as_dtype(dtype))

    @staticmethod
    def concatenate(tensors: Any, axis: int = 0) -> Any:
        import tensorflow as tf

        return tf.concat(tensors, axis)

    @staticmethod
    def convert_to_numpy(values: Any) -> Any:
        import numpy
        import tensorflow as tf

        return numpy.asarray(tf.convert_to_tensor(values))

    @staticmethod
    def convert_to_tensor(values: Any, dtype: Any = None, sparse: bool | None = None) -> Any:
        import tensorflow as tf

        return tf.convert_to_tensor(values, dtype)

    @staticmethod
    def full_like(values: Any, fill_value: Any) -> Any:
        import tensorflow as tf

        return tf.fill(tf.shape(values), tf.cast(fill_value, values.dtype))

    @staticmethod
    def shape(values: Any) -> tuple[Any, ...]:
        import tensorflow as tf

        known, present = values.shape.as_list(), tf.shape(values)
        return tuple(present[axis] if size is None else size for axis, size in enumerate(known))

    @staticmethod
    def take(values: Any, indices: Any, axis: int) -> Any:
        import tensorflow as tf

        return tf.gather(values, indices, axis=axis)


_NAMES_OF_TENSORFLOW = {
    "all": "reduce_all",
    "isfinite": "math.is_finite",
    "log": "math.log",
    "mean": "reduce_mean",
    "sum": "reduce_sum",
}


def _module_in_use() -> Any:
    if os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"):  # as TensorFlow reads it
        import tf_keras

        return _Keras2(tf_keras)
    import keras as module

    return _Keras2(module) if module.__version__.startswith("2.") else module


keras: Any = _module_in_use()
IS_KERAS_2 = isinstance(keras, _Keras2)
ROWS = "embeddings" if IS_KERAS_2 else "_embeddings"  # the attribute in which Keras's layer Embedding has its weight


def dtype_name(dtype: Any) -> str:
    """Return the name of a type, which is one of Keras, NumPy, TensorFlow or PyTorch. Raises ValueError or TypeError for anything else."""
    if not IS_KERAS_2:
        return str(keras.backend.standardize_dtype(dtype))
    import tensorflow as tf

    return str(tf.as_dtype(dtype).name)


def is_functional(model: Any) -> bool:
    """Tell whether a model of Keras 3 is a graph of layers. One of Keras 2 cannot be made again with other layers."""
    return not IS_KERAS_2 and isinstance(model, keras.src.models.Functional)


def path_of(variable: Variable) -> str:
    """Return the name of a variable in its model."""
    return str(variable.name if IS_KERAS_2 else variable.path)


def values_of(variables: Sequence[Variable]) -> list[Any]:
    """Return the backend's own variables, which gradients are asked for."""
    return list(variables) if IS_KERAS_2 else [variable.value for variable in variables]


def with_apply(optimizer: Any) -> Any:
    """Return an optimizer whose `apply_gradients` calls its method `apply(gradients, variables)`, as those of Keras 3 do."""
    if IS_KERAS_2 and not hasattr(optimizer, "apply") and hasattr(optimizer, "apply_gradients"):
        plain = optimizer.apply_gradients
        optimizer.apply = lambda gradients, variables: plain(zip(gradients, variables, strict=True))
        optimizer.apply_gradients = lambda pairs, **options: optimizer.apply(*zip(*pairs, strict=True))
    return optimizer


def drop_weight(layer: Any, name: str) -> None:
    """Take a weight from a layer that is built. Its attribute is None from then on."""
    if not IS_KERAS_2:
        layer._untrack_variable(getattr(layer, name))
    else:
        delattr(layer, name)  # Keras 2 forgets a weight whose attribute is deleted
    setattr(layer, name, None)


def add_weight(layer: Any, attribute: str, **options: Any) -> None:
    """Give a layer that may be built a weight as an attribute. `options`: of its method `add_weight`."""
    if not IS_KERAS_2:
        layer._tracker.unlock()
    setattr(layer, attribute, layer.add_weight(**options))
    if not IS_KERAS_2:
        layer._tracker.lock()
