"""A Keras model: of Keras 3, with TensorFlow or PyTorch behind Keras, or of Keras 2. Importing this module imports keras."""

from __future__ import annotations

import contextlib
import os
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy

from ...runtime.elastic.keras_in_use import IS_KERAS_2, keras, path_of, values_of, with_apply
from ..errors import BadModel
from ..model_file import ModelFile, place_of
from . import losses
from .keras_tables import FirstRows, KerasTables, load_beside_tables, own_layers, read_unbounded, to_weights

BACKENDS = ("tensorflow", "torch")
WEIGHTS_FILES = (".keras", ".weights.h5", ".h5")
MODEL_FILE, SAVED_MODEL = "model.keras", "saved_model"


class KerasModel:
    """A model, and the optimizer that trains it (None where it is not trained)."""

    kind = "keras"
    weights_files = WEIGHTS_FILES
    model_files = (MODEL_FILE,)

    def __init__(self, model: Any, parts: ModelFile) -> None:
        self.backend = keras.backend.backend()
        if self.backend not in BACKENDS:
            raise BadModel(f"Keras's backend is {self.backend}", mend=f"set KERAS_BACKEND to {' or '.join(BACKENDS)}")
        self.model, self.parts = model, parts
        self.optimizer: Any = None
        self._example: Any = None  # features of one example
        self.index_errors: tuple[type[Exception], ...] = (IndexError,)  # of an embedding that has no row for an id
        self._predict = self.predict_by_torch
        self._step = self._by_tensorflow() if self.backend == "tensorflow" else self._step_by_torch
        self.tables: Any = None  # KerasTables, where servers have its parameters
        self.first_rows: FirstRows | None = None  # of its tables, where weights were loaded

    # -- its data --

    def feed(self, mode: str, metadata: Any, size: int, record: Any, types: Any = None) -> Any:
        """Return the feed of batches of `size` examples. `record`: the first one; `types`: those that a custom reader tells."""
        if self.backend == "tensorflow":
            from ..data.tensorflow_feed import TensorFlowFeed

            return TensorFlowFeed(self.parts.feed, mode, metadata, size, record, types)
        from ..data.torch_feed import TorchFeed

        return TorchFeed(self.parts.feed, mode, metadata, size)

    # -- training --

    @property
    def is_built(self) -> bool:
        """Tell whether the model has weights."""
        return bool(self.model.built)

    def build(self, features: Any) -> None:
        """Make the weights of a model that learns the form of its input from a first batch."""
        self.call(features)
        self.note_example(features)

    @property
    def has_example(self) -> bool:
        """Tell whether a batch has shown the form of the input, which is exported where the model does not say it."""
        return self._example is not None

    def note_example(self, features: Any) -> None:
        """Take the form of the input from a batch."""
        self._example = _example(features)

    def prepare_training(self) -> None:
        """Make the optimizer, of a model that is built."""
        optimizer = with_apply(self.parts.optimizer())
        if not (hasattr(optimizer, "apply") and hasattr(optimizer, "build")):
            raise BadModel(
                f"the optimizer is a {type(optimizer).__name__}, and one of Keras {keras.__version__} is due",
                place=place_of(self.parts.path, self.parts.optimizer),
            )
        self.optimizer = self.model.optimizer = optimizer
        self.optimizer.build(self.model.trainable_variables)

    def has_tables(self) -> bool:
        """Tell whether the model has embeddings with tables of their own accord."""
        return bool(own_layers(self.model))

    def use_tables(self, moved: int | Collection[str] | None, say: Callable[[str], None]) -> None:
        """Have its parameters and tables kept by a client of servers from now on. `moved`: see `KerasTables`."""
        self.tables = KerasTables(self, moved, say)

    def leave_tables(self) -> None:
        """Put weights in place of tables, to be loaded: for a model that is not trained."""
        if self.has_tables():
            self.model = to_weights(self.model)

    def call(self, features: Any, training: bool = False) -> Any:
        """Return the model's outputs."""
        return _call(self.model, features, training)

    def check_loss(self, features: Any, labels: Any, size: int) -> None:
        """Raise BadModel where the loss has a wrong shape for a batch."""
        losses.check(self.parts.loss(labels, self.call(features)), size, self.parts)

    def step(self, features: Any, labels: Any) -> tuple[float, dict[str, float]]:
        """Train with a batch. Return the loss before it, and its parts by name where there are several."""
        total, parts = self._step(features, labels)
        return float(total), {name: float(part) for name, part in parts.items()}

    def loss_of(self, features: Any, labels: Any) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a batch in training, with the losses of the model's own layers, and its parts."""
        value = self.parts.loss(labels, self.call(features, training=True))
        total, parts = losses.total(value, keras.ops.mean)
        for own in self.model.losses:
            total = total + own
        return total, parts

    def _by_tensorflow(self) -> Callable[[Any, Any], Any]:
        import tensorflow as tf

        def step(features: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                total, parts = self.loss_of(features, labels)
            trained = self.model.trainable_variables
            self.optimizer.apply(tape.gradient(total, values_of(trained)), trained)
            return total, parts

        self.index_errors = (tf.errors.InvalidArgumentError,)
        self._predict = tf.function(self.call, reduce_retracing=True)
        traced: Callable[[Any, Any], Any] = tf.function(step, reduce_retracing=True)
        return traced

    def _step_by_torch(self, features: Any, labels: Any) -> Any:
        import torch

        self.model.zero_grad()
        total, parts = self.loss_of(features, labels)
        total.backward()
        trained = self.model.trainable_variables
        gradients = [value.grad for value in values_of(trained)]
        with torch.no_grad():
            self.optimizer.apply(gradients, trained)
        return total.detach(), {name: part.detach() for name, part in parts.items()}

    def diverged_parameter(self) -> str:
        """Return the name of a variable that is not finite; "" where all are."""
        trained = self.model.trainable_variables
        return next((path_of(value) for value in trained if not bool(keras.ops.all(keras.ops.isfinite(value)))), "")

    # -- predicting --

    def outputs(self, features: Any) -> Any:
        """Return the model's outputs for a batch, as tensors."""
        return self._predict(features) if self.tables is None else self.tables.outputs(features)

    def predict_by_torch(self, features: Any) -> Any:
        import torch

        with torch.no_grad():
            return self.call(features)

    def plain_outputs(self, features: Any) -> Any:
        """Return them layer by layer, not by a graph."""
        return self.call(features)

    @contextlib.contextmanager
    def looking_at_ids(self, look: Callable[[str, int, Any], None]) -> Iterator[None]:
        """Have look(name, rows, ids) called with the ids that each of Keras's embeddings gets. It counts negative ones from its end."""

        def looked_at(layer: Any, call: Any) -> Any:
            def looking_call(inputs: Any) -> Any:
                ids = keras.ops.convert_to_numpy(inputs).astype("int64")
                look(layer.name, layer.input_dim, ids[ids >= 0])
                return call(inputs)

            return looking_call

        members = self.model._flatten_layers(include_self=False, recursive=True)
        layers = [layer for layer in members if isinstance(layer, keras.layers.Embedding)]
        calls = [layer.call for layer in layers]
        try:
            for layer, call in zip(layers, calls, strict=True):
                layer.call = looked_at(layer, call)
            yield
        finally:
            for layer, call in zip(layers, calls, strict=True):
                layer.call = call

    @staticmethod
    def numbers(tensors: Any) -> Any:
        """Return tensors as NumPy arrays."""
        return keras.tree.map_structure(keras.ops.convert_to_numpy, tensors)

    # -- keeping --

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint must have."""
        known = {id(variable) for variable in self.model.weights}
        seeds = [variable for variable in self.model.variables if id(variable) not in known]
        return {
            "kind": self.kind, "model": self.model, "optimizer": self.optimizer, "example": self._example,
            "seeds": [keras.ops.convert_to_numpy(variable) for variable in seeds],
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Take what a checkpoint has: of the optimizer only where there is one. Raises BadModel where it is another model's."""
        if not self.model.built and state.get("example") is not None:
            self.build(keras.tree.map_structure(_tensor, state["example"]))
        try:
            self.model.set_weights(state["model"])
            if self.optimizer is not None:
                for variable, value in zip(self.optimizer.variables, state["optimizer"], strict=True):
                    variable.assign(value)
            known = {id(variable) for variable in self.model.weights}
            seeds = [variable for variable in self.model.variables if id(variable) not in known]
            for variable, value in zip(seeds, state["seeds"], strict=False):
                variable.assign(value)
        except ValueError as error:
            raise BadModel(f"the checkpoint is of another model or optimizer: {error}") from None

    def load_weights(self, path: str) -> None:
        """Take the weights of a file. Raises BadModel."""

        def load() -> None:
            self.model.load_weights(path)
            read_unbounded(self.model, os.path.dirname(path))

        self._load(path, load)

    def load_before_tables(self, path: str) -> None:
        """Take the weights of a file before `use_tables`, which has the tables begin with their rows. Raises BadModel."""

        def load() -> None:
            self.first_rows = load_beside_tables(self.model, path)

        self._load(path, load)

    def _load(self, path: str, load: Callable[[], None]) -> None:
        try:
            load()
        except BadModel:
            raise
        except zipfile.BadZipFile as error:
            raise BadModel(
                f"{path} is cut short, or no file that Keras has saved: {error}", place="--checkpoint_dir_for_init"
            ) from None
        except (ValueError, OSError, KeyError) as error:
            raise BadModel(
                f"the weights of {path} do not fit the model: {error}", place="--checkpoint_dir_for_init"
            ) from None

    def export(self, directory: str) -> list[str]:
        """Write the model into a directory, for plain Keras and TensorFlow. Return the paths. A path is there once it is whole.

        Tables are weights there. A table without an input_dim has files of its own beside the model, which then is not a SavedModel.
        """
        os.makedirs(directory, exist_ok=True)
        model = self.model if self.tables is None else self.tables.filled()
        draft, path = os.path.join(directory, f".part-{MODEL_FILE}"), os.path.join(directory, MODEL_FILE)
        model.save(draft)
        os.replace(draft, path)
        others = [] if self.tables is None else self.tables.write_unbounded(directory)
        if self.backend != "tensorflow" or others:
            return [path, *others]
        draft, saved = os.path.join(directory, f".part-{SAVED_MODEL}"), os.path.join(directory, SAVED_MODEL)
        shutil.rmtree(draft, ignore_errors=True)
        try:
            self._export_saved_model(model, draft)
        except AssertionError as error:
            if "untracked" not in str(error):  # TensorFlow's word for a table that a layer makes anew in each call
                raise
            print(f"no {SAVED_MODEL} is exported: {str(error).splitlines()[0]}", flush=True)
            return [path]
        with contextlib.suppress(OSError):  # an empty directory: outputs have files alone
            os.rmdir(os.path.join(draft, "assets"))
        shutil.rmtree(saved, ignore_errors=True)
        os.rename(draft, saved)
        return [path, saved]

    def _export_saved_model(self, model: Any, directory: str) -> None:
        """Write a SavedModel. Keras 2 itself knows no inputs that are a dictionary, and loses the tables of layers that are not its own."""
        if not IS_KERAS_2:
            model.export(directory, verbose=False, input_signature=self._signature())
            return
        import tensorflow as tf

        whole = tf.Module()
        resource = tf.saved_model.experimental.TrackableResource
        tables = [part for part in tf.train.TrackableView(model).descendants() if isinstance(part, resource)]
        whole.parts = [*model.variables, *tables]
        whole.serve = tf.function(lambda features: _call(model, features, False), self._signature())
        tf.saved_model.save(whole, directory, whole.serve.get_concrete_function())

    def _signature(self) -> Any:
        """Return the form of the input of a model that does not say it, None of one that does."""
        if self._example is None or (getattr(self.model, "inputs", None) and not IS_KERAS_2):
            return None
        import tensorflow as tf

        return [keras.tree.map_structure(
            lambda value: tf.TensorSpec([None, *value.shape[1:]], tf.as_dtype(value.dtype) if value.dtype.kind not in "SU" else tf.string),
            self._example,
        )]  # fmt: skip


def _call(model: Any, features: Any, training: bool) -> Any:
    """Return a model's outputs. A lone input gets the one feature, whatever the names of both, as with TensorFlow 2.0."""
    form = getattr(model, "_inputs_struct", None)
    form = getattr(model, "_nested_inputs", None) if form is None else form  # of Keras 2
    is_lone = form is not None and not isinstance(form, dict | list | tuple)
    if is_lone and isinstance(features, dict) and len(features) == 1:
        (features,) = features.values()
    return model(features, training=training)


def _example(features: Any) -> Any:
    """Return the first example of a batch as arrays that a checkpoint can have; None where it has no such form."""

    def first(tensor: Any) -> Any:
        array = numpy.asarray(keras.ops.convert_to_numpy(tensor[:1]))
        return numpy.array(array.tolist()) if array.dtype.hasobject else array

    try:
        return keras.tree.map_structure(first, features)
    except (TypeError, ValueError, AttributeError):  # sparse and ragged tensors
        return None


def _tensor(array: Any) -> Any:
    if array.dtype.kind in "SU":
        import tensorflow as tf

        return tf.constant(array.tolist())
    return keras.ops.convert_to_tensor(array)
