"""ElasticDL's feature columns, for `tf.keras.layers.DenseFeatures` of Keras 2. Importing this module imports tensorflow.

    thal = tf.feature_column.categorical_column_with_hash_bucket("thal", hash_bucket_size=100)
    columns = [embedding_column(thal, dimension=8)]              # the rows are in a table, as those of the layer Embedding

`concatenated_categorical_column` gives one space of ids to several columns: the ids of each begin where those of the one before end.
"""

from __future__ import annotations

import itertools
import math
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as columns
from tensorflow.python.feature_column import serialization

from ..runtime.elastic.keras_in_use import keras
from ..zoo.embeddings.keras_layer import Embedding
from ..zoo.errors import BadModel


def embedding_column(
    categorical_column: Any,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> EmbeddingColumn:
    """Return the column of the rows of a categorical column's ids, combined for each example. Servers have them in a table.

    `max_norm` and `trainable` change nothing, as in ElasticDL. Raises ValueError for a dimension below 1, or an initializer that cannot be
    called.
    """
    if dimension is None or dimension < 1:
        raise ValueError(f"the dimension of {categorical_column.name} must be at least 1, and is {dimension}")
    if initializer is not None and not callable(initializer):
        raise ValueError(f"the initializer of {categorical_column.name} must be callable")
    if initializer is None:
        initializer = keras.initializers.TruncatedNormal(0.0, 1 / math.sqrt(dimension))
    return EmbeddingColumn(categorical_column, dimension, combiner, initializer, max_norm, trainable)


class EmbeddingColumn(
    columns.DenseColumn,  # type: ignore[misc]  # of type Any, as tensorflow has no types
    namedtuple("EmbeddingColumn", "categorical_column dimension combiner initializer max_norm trainable"),
):
    """See `embedding_column`. The rows are those of a layer `Embedding`, which the DenseFeatures that has the column holds."""

    _is_v2_column = True

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_embedding"

    @property
    def parse_example_spec(self) -> Any:
        return self.categorical_column.parse_example_spec

    @property
    def parents(self) -> list[Any]:
        return [self.categorical_column]

    @property
    def variable_shape(self) -> Any:
        return tf.TensorShape([self.dimension])

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> Any:
        return transformation_cache.get(self.categorical_column, state_manager)

    def create_state(self, state_manager: Any) -> None:
        holder = state_manager._layer
        table = Embedding(
            self.dimension,
            self.categorical_column.num_buckets,
            self.initializer,
            combiner=self.combiner,
            name=f"{holder.name}_{self.name}".replace("-", "_"),
        )
        setattr(holder, self._attribute, table)  # Keras finds the layers that are attributes

    def get_dense_tensor(self, transformation_cache: Any, state_manager: Any) -> Any:
        sparse = self.categorical_column.get_sparse_tensors(transformation_cache, state_manager)
        if sparse.weight_tensor is not None:
            raise BadModel(
                f"embedding_column of {self.categorical_column.name} cannot weigh ids",
                mend="use tf.feature_column.embedding_column, which keeps the table in the worker",
            )
        ids = tf.sparse.retain(sparse.id_tensor, sparse.id_tensor.values >= 0)  # -1 is a word that is not known
        return getattr(state_manager._layer, self._attribute)(ids)

    @property
    def _attribute(self) -> str:
        return f"table_of_{self.name}"

    def get_config(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "categorical_column": serialization.serialize_feature_column(self.categorical_column),
            "initializer": keras.initializers.serialize(self.initializer),
        }

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None, columns_by_name: Any = None) -> EmbeddingColumn:
        column = serialization.deserialize_feature_column(config["categorical_column"], custom_objects, columns_by_name)
        initializer = keras.initializers.deserialize(config["initializer"])
        return cls(**{**config, "categorical_column": column, "initializer": initializer})


def concatenated_categorical_column(categorical_columns: list[Any]) -> ConcatenatedCategoricalColumn:
    """Return one column of the ids of several. Raises ValueError unless these are a list of categorical columns."""
    if not isinstance(categorical_columns, list) or not categorical_columns:
        raise ValueError("categorical_columns must be a list with one column or more")
    for column in categorical_columns:
        if not isinstance(column, columns.CategoricalColumn):
            raise ValueError(f"categorical_columns has {column}, which is not a categorical column")
    return ConcatenatedCategoricalColumn(tuple(categorical_columns))


class ConcatenatedCategoricalColumn(
    columns.CategoricalColumn,  # type: ignore[misc]  # of type Any, as tensorflow has no types
    namedtuple("ConcatenatedCategoricalColumn", "categorical_columns"),
):
    """See `concatenated_categorical_column`."""

    _is_v2_column = True

    @property
    def name(self) -> str:
        return "_C_".join(sorted(column.name for column in self.categorical_columns))

    @property
    def num_buckets(self) -> int:
        return sum(self._sizes())

    def _sizes(self) -> Sequence[int]:
        return [column.num_buckets for column in self.categorical_columns]

    @property
    def parents(self) -> list[Any]:
        return list(self.categorical_columns)

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return {key: spec for column in self.categorical_columns for key, spec in column.parse_example_spec.items()}

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> Any:
        offsets = itertools.accumulate([0, *self._sizes()[:-1]])
        tensors = []
        for column, offset in zip(self.categorical_columns, offsets, strict=True):
            ids = column.get_sparse_tensors(transformation_cache, state_manager).id_tensor
            tensors.append(tf.SparseTensor(ids.indices, tf.cast(ids.values, tf.int64) + offset, ids.dense_shape))
        return tf.sparse.concat(axis=-1, sp_inputs=tensors)

    def get_sparse_tensors(self, transformation_cache: Any, state_manager: Any) -> Any:
        return columns.CategoricalColumn.IdWeightPair(transformation_cache.get(self, state_manager), None)

    def get_config(self) -> dict[str, Any]:
        return {"categorical_columns": tuple(map(serialization.serialize_feature_column, self.categorical_columns))}

    @classmethod
    def from_config(
        cls, config: Any, custom_objects: Any = None, columns_by_name: Any = None
    ) -> ConcatenatedCategoricalColumn:
        parts = config["categorical_columns"]
        return cls(
            tuple(serialization.deserialize_feature_column(part, custom_objects, columns_by_name) for part in parts)
        )
