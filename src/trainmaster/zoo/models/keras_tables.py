"""A Keras model whose parameters and tables are kept by parameter servers: what a step computes. Importing this module imports keras."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy

from ...ps.specification import TableSpec
from ...runtime.elastic.keras_in_use import ROWS, is_functional, keras, path_of, values_of
from ..embeddings import contents
from ..embeddings.contents import all_rows, present_rows, write_unbounded
from ..embeddings.initial import are_initial, of_keras
from ..embeddings.keras_layer import Embedding, Moved, take, zeros
from ..embeddings.lookups import BatchIds, Pulled, Recording, checked, looking_up
from ..errors import BadModel
from . import server_optimizers

Arrays = dict[str, Any]
FirstRows = dict[str, tuple[Any, Any]]  # ids and rows by table


def own_layers(model: Any) -> list[Any]:
    """Return the layers of a model that have a table of their own accord."""
    layers = model._flatten_layers(include_self=False, recursive=True)
    return list({id(layer): layer for layer in layers if isinstance(layer, Embedding)}.values())


def to_weights(model: Any) -> Any:
    """Return the model with weights in place of those tables that have an input_dim, to be loaded or assigned.

    A functional model gets Keras's own layers where these can do the same, and is another object then.
    """
    layers = own_layers(model)
    bounded = [layer for layer in layers if layer.input_dim is not None]
    are_plain = all(layer.takes == "dense" and not (layer.mask_zero and layer.combiner) for layer in bounded)
    if bounded and is_functional(model) and are_plain and len(bounded) == len(layers):
        plain: dict[int, Any] = {}  # by the layer that it replaces

        def chosen(layer: Any) -> Any:
            if not isinstance(layer, Embedding):
                return layer
            return plain.setdefault(id(layer), _plain_layer(layer))

        return keras.models.clone_model(model, clone_function=chosen)
    for layer in bounded:
        layer.take_weights(None)
    return model


def _plain_layer(layer: Any) -> Any:
    name = layer.name if layer.combiner is None else f"{layer.name}_rows"
    rows = keras.layers.Embedding(layer.input_dim, layer.output_dim, mask_zero=layer.mask_zero, name=name)
    rows.build()
    if layer.combiner is None:
        return rows
    ids = keras.Input(layer.input.shape[1:], dtype=layer.input.dtype, name=f"{layer.name}_ids")
    vectors = rows(ids)
    if layer.combiner == "mean":
        return keras.Model(ids, keras.ops.mean(vectors, axis=-2), name=layer.name)
    total = keras.ops.sum(vectors, axis=-2)
    if layer.combiner == "sqrtn":
        count = layer.input.shape[-1]
        if count is None:
            count = keras.ops.cast(keras.ops.shape(vectors)[-2], vectors.dtype)
        total = total / keras.ops.sqrt(keras.ops.cast(count, vectors.dtype))
    return keras.Model(ids, total, name=layer.name)


class KerasTables:
    """The parameters and tables of a model that is built. `moved`: the bytes above which a layer of Keras gets a table, or the names of
    those that do; None: none does. `first_rows`: ids and rows of tables that begin with rows of their own.

    `source` is the client that has the tables. While `snapshot` is there, rows are taken from it alone.
    """

    def __init__(self, model: Any, moved: int | Collection[str] | None, say: Callable[[str], None]) -> None:
        self._model = model
        self.first_rows: FirstRows | None = model.first_rows
        layers = own_layers(model.model)
        layers += _moved(model.model, moved, self.first_rows, say) if moved is not None else []
        self._layers: dict[str, Any] = {}
        for layer in layers:
            if self._layers.setdefault(layer.name, layer) is not layer:
                raise BadModel(f"two embeddings are named {layer.name}", mend="give each a name of its own")
        self.specs: dict[str, TableSpec] = {layer.name: layer.spec for layer in layers}
        self.source: Any = None
        self.snapshot: dict[str, tuple[Any, Any]] | None = None
        self._filled: Any = None
        if model.backend == "tensorflow":
            self._ids, self._gradients, self._outputs = self._by_tensorflow()
        else:
            self._ids, self._gradients, self._outputs = self._record, self._gradients_by_torch, self._outputs_by_torch

    # -- parameters --

    def dense(self) -> Arrays:
        """Return the parameters that are trained, by name."""
        return {name: keras.ops.convert_to_numpy(variable) for name, variable in self._variables().items()}

    def assign(self, values: Mapping[str, Any]) -> None:
        variables = self._variables()
        for name, value in values.items():
            variables[name].assign(value)

    def optimizer(self) -> tuple[dict[str, Any], float | None]:
        """Return the optimizer for servers, and the limit of the gradients' norm. Raises BadModel."""
        return server_optimizers.of_keras(self._model.optimizer, self.rate(0))

    def rate(self, step: int) -> float:
        """Return the learning rate of the step behind `step` others."""
        rate = self._model.optimizer._learning_rate
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            rate = rate(step)
        return float(keras.ops.convert_to_numpy(rate))

    def _variables(self) -> dict[str, Any]:
        variables: dict[str, Any] = {}
        for variable in self._model.model.trainable_variables:
            name, number = path_of(variable), 1
            while name in variables:
                number += 1
                name = f"{path_of(variable)}#{number}"
            variables[name] = variable
        return variables

    # -- a step --

    def ids(self, features: Any) -> BatchIds:
        """Return the distinct ids of each table in a batch. Raises BadModel for one that the table cannot have."""
        if not self.specs:
            return BatchIds({}, {})
        distinct, places = {}, {}
        for name, ids in self._ids(features).items():
            unchecked, places[name] = numpy.unique(keras.ops.convert_to_numpy(ids), return_inverse=True)
            distinct[name] = checked(name, self.specs[name], unchecked)
        return BatchIds(distinct, places)

    def gradients(
        self, features: Any, labels: Any, ids: BatchIds, rows: Arrays
    ) -> tuple[float, dict[str, float], Arrays, Arrays]:
        """Return the loss of a batch, its parts, and the gradients of parameters and of the rows of the distinct ids."""
        total, parts, dense, of_rows = self._gradients(features, labels, *_tensors(ids, rows))
        numbers = keras.ops.convert_to_numpy
        return (
            float(total), {name: float(part) for name, part in parts.items()},
            {name: numbers(gradient) for name, gradient in zip(self._variables(), dense, strict=True)},
            {name: numbers(gradient) for name, gradient in of_rows.items()},
        )  # fmt: skip

    def outputs(self, features: Any) -> Any:
        """Return the model's outputs, as tensors, with the rows of the snapshot, or those that the tables have now."""
        ids = self.ids(features)
        rows = present_rows(self.source, self.snapshot, ids)
        return self._outputs(features, *_tensors(ids, rows))

    def _record(self, features: Any) -> Arrays:
        recording = Recording(zeros)
        with looking_up(recording):
            self._model.predict_by_torch(features)
        return {name: keras.ops.concatenate(ids) for name, ids in recording.ids.items()}

    def _by_tensorflow(self) -> tuple[Any, Any, Any]:
        import tensorflow as tf

        def gradients(features: Any, labels: Any, ids: Arrays, rows: Arrays, places: Arrays) -> Any:
            with tf.GradientTape() as tape, looking_up(Pulled(_tables(ids, rows, places), take)):
                tape.watch(rows)
                total, parts = self._model.loss_of(features, labels)
            variables = values_of(self._model.model.trainable_variables)
            dense, of_rows = tape.gradient(total, (variables, rows), unconnected_gradients="zero")
            return total, parts, *tf.nest.map_structure(tf.convert_to_tensor, (dense, of_rows))

        def outputs(features: Any, ids: Arrays, rows: Arrays, places: Arrays) -> Any:
            with looking_up(Pulled(_tables(ids, rows, places), take)):
                return self._model.call(features)

        def record(features: Any) -> Any:  # of the traced model only what the ids need is run
            recording = Recording(zeros)
            with looking_up(recording):
                self._model.call(features)
            return {name: tf.concat(ids, 0) for name, ids in recording.ids.items()}

        return _traced(record), _traced(gradients), _traced(outputs)

    def _gradients_by_torch(self, features: Any, labels: Any, ids: Arrays, rows: Arrays, places: Arrays) -> Any:
        self._model.model.zero_grad()
        for tensor in rows.values():
            tensor.requires_grad_()
        with looking_up(Pulled(_tables(ids, rows, places), take)):
            total, parts = self._model.loss_of(features, labels)
        total.backward()
        variables = values_of(self._model.model.trainable_variables)
        dense = [value.new_zeros(value.shape) if value.grad is None else value.grad for value in variables]
        of_rows = {
            name: tensor.grad if tensor.grad is not None else tensor.new_zeros(tensor.shape)
            for name, tensor in rows.items()
        }
        return total.detach(), {name: part.detach() for name, part in parts.items()}, dense, of_rows

    def _outputs_by_torch(self, features: Any, ids: Arrays, rows: Arrays, places: Arrays) -> Any:
        with looking_up(Pulled(_tables(ids, rows, places), take)):
            return self._model.predict_by_torch(features)

    # -- the model without tables --

    def filled(self) -> Any:
        """Return the model with its tables as weights, whose rows are what `source` has."""
        bounded = {name: spec for name, spec in self.specs.items() if spec.input_dim is not None}
        rows = {name: all_rows(self.source, name, spec) for name, spec in bounded.items()}
        for name in bounded:
            if isinstance(self._layers[name], Moved):
                self._layers[name].take_weights(rows[name])
        if self._filled is None:
            self._filled = to_weights(self._model.model)
        for layer in self._filled._flatten_layers(include_self=False, recursive=True):
            table = layer.name.removesuffix("_rows")
            if table in bounded and hasattr(layer, "embeddings"):
                layer.embeddings.assign(rows[table])
        return self._filled

    def write_unbounded(self, directory: str) -> list[str]:
        """Write the tables without an input_dim beside an exported model, and return the paths."""
        return write_unbounded(directory, self.source, self.specs)


def read_unbounded(model: Any, directory: str) -> None:
    """Give the layers without an input_dim the rows in files of an exported model. Raises BadModel."""
    for layer in own_layers(model):
        if layer.input_dim is None:
            layer.own.load(*contents.read_unbounded(directory, layer.name))


def load_beside_tables(model: Any, path: str) -> FirstRows:
    """Load the weights of a file into a model with tables, and return ids and rows of these. Raises BadModel, and what Keras raises."""
    plain = to_weights(model)
    plain.load_weights(path)
    read_unbounded(model, os.path.dirname(path))
    own = {layer.name: layer for layer in own_layers(model)}
    first_rows = {name: layer.own.contents() for name, layer in own.items() if layer.input_dim is None}
    for layer in plain._flatten_layers(include_self=False, recursive=True):
        table = layer.name.removesuffix("_rows")
        if table in own and getattr(layer, "embeddings", None) is not None:
            rows = keras.ops.convert_to_numpy(layer.embeddings)
            first_rows[table] = numpy.arange(len(rows)), rows
    for layer in own.values():
        layer.leave_weights()
    return first_rows


def _moved(
    model: Any, chosen: int | Collection[str], first_rows: FirstRows | None, say: Callable[[str], None]
) -> list[Moved]:
    """Give embeddings of Keras tables, and return these. Rows that were loaded are added to `first_rows`; None: none were."""
    moved = []
    for layer in model._flatten_layers(include_self=False, recursive=True):
        if (
            type(layer) is not keras.layers.Embedding
            or not layer.built
            or getattr(layer, "quantization_mode", None)
            or getattr(layer, "lora_enabled", False)
        ):
            continue
        size = 4 * layer.input_dim * layer.output_dim
        is_chosen = size > chosen if isinstance(chosen, int) else layer.name in chosen
        if not is_chosen or not layer.trainable or getattr(layer, ROWS) is None:
            continue
        if layer.embeddings_constraint is not None or layer.embeddings_regularizer is not None:
            say(f"the embedding {layer.name} stays with the dense parameters: it has a constraint or a regularizer")
            continue
        try:
            initializer, seed = of_keras(layer.embeddings_initializer, layer.input_dim, layer.output_dim, layer.name)
        except BadModel as error:
            say(f"the embedding {layer.name} stays with the dense parameters: {error.message}")
            continue
        rows = keras.ops.convert_to_numpy(getattr(layer, ROWS))
        if first_rows is not None:
            first_rows[layer.name] = numpy.arange(len(rows)), rows
        elif isinstance(chosen, int) and not are_initial(rows, initializer):
            say(
                f"the embedding {layer.name} stays with the dense parameters: its rows are not those of its initializer"
            )
            continue
        moved.append(Moved(layer, TableSpec(layer.output_dim, initializer, layer.input_dim, seed)))
        if isinstance(chosen, int):
            say(f"the embedding {layer.name} of {size:,} bytes is on the parameter servers")
    return moved


def _traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as a graph of TensorFlow for tensors of any length.

    The number of distinct ids is another one in each batch. `tf.function` would compare such forms with all that it knows, for
    milliseconds of each step.
    """
    import tensorflow as tf

    traced = tf.function(function, reduce_retracing=True)
    graphs: dict[Any, Any] = {}

    def call(*arguments: Any) -> Any:
        tensors = tf.nest.flatten(arguments)
        if not all(isinstance(tensor, tf.Tensor) and tensor.shape.rank for tensor in tensors):
            return traced(*arguments)  # ragged and sparse ones
        key = tuple((tensor.dtype, tuple(tensor.shape[1:])) for tensor in tensors)
        if key not in graphs:
            forms = [tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) for tensor in tensors]
            graphs[key] = traced.get_concrete_function(*tf.nest.pack_sequence_as(arguments, forms))
        return graphs[key](*arguments)

    return call


def _tensors(ids: BatchIds, rows: Arrays) -> list[Arrays]:
    """Return ids, rows and places as tensors by table."""
    to_tensor = keras.ops.convert_to_tensor
    return [
        {name: to_tensor(array) for name, array in arrays.items()} for arrays in (dict(ids), dict(rows), ids.places)
    ]


def _tables(ids: Arrays, rows: Arrays, places: Arrays) -> dict[str, Sequence[Any]]:
    return {name: (ids[name], rows[name], places[name]) for name in rows}
