"""Apply a SavedModel to the rows of a partition, in a task of Spark's whose Python has TensorFlow and nothing of ours.

Spark sends this module's contents by value. A Python worker keeps its last model, so the tasks that it gets load it once.
"""

from __future__ import annotations

import itertools
import os
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_KEPT = "_trainmaster_model"  # a module by this name holds the worker's model: what is sent by value has no globals that last


class Namespace:
    """Arguments as attributes, from a dictionary, an argparse.Namespace or another Namespace; or `argv`, a list of the command line."""

    argv: list[str] | None = None

    def __init__(self, d: Any) -> None:
        if isinstance(d, list):
            self.argv = d
        elif isinstance(d, dict):
            self.__dict__.update(d)
        elif hasattr(d, "__dict__"):
            self.__dict__.update(vars(d))
        else:
            raise TypeError(f"Unsupported Namespace args: {d!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.argv or self.__dict__)

    def __eq__(self, other: object) -> bool:
        return self.argv == other if self.argv else vars(self) == getattr(other, "__dict__", None)

    __hash__ = None  # type: ignore[assignment]  # its attributes may be changed

    def __repr__(self) -> str:
        if self.argv:
            return f"{self.argv}"
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in sorted(vars(self).items()))})"


class Serving:
    """A signature of a SavedModel. `inputs`: the tensor of each column, `outputs`: the tensors of a result, each in the columns' order."""

    def __init__(
        self, export_dir: str, tags: str | None, signature: str, inputs: Sequence[str], outputs: Sequence[str], batch_size: int,
        argv: list[str] | None = None,
    ) -> None:  # fmt: skip
        self.export_dir, self.tags, self.signature = export_dir, tags, signature
        self.inputs, self.outputs, self.batch_size, self.argv = inputs, outputs, batch_size, argv

    def __call__(self, rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """Yield for each row the values of the outputs: be the function of `mapPartitions`."""
        function = self._function()
        rows = iter(rows)
        while batch := list(itertools.islice(rows, self.batch_size)):
            columns = zip(*batch, strict=True)
            tensors = {name: _tensor(values, function, name) for name, values in zip(self.inputs, columns, strict=True)}
            results = function(**tensors)
            lists = []
            for name in self.outputs:
                result = results[name].numpy().tolist()
                if not isinstance(result, list) or len(result) != len(batch):
                    count = len(result) if isinstance(result, list) else "no"
                    raise ValueError(
                        f"output {name} has {count} rows for {len(batch)} rows of input: one a row is needed"
                    )
                lists.append(result)
            yield from zip(*lists, strict=True)

    def describe(self, _: Any = None) -> dict[str, Any]:
        """Return the names of the model's signatures; and of this one its inputs, and its outputs with their type and number of axes."""
        model = self._model()
        answer: dict[str, Any] = {"signatures": sorted(model.signatures)}
        if self.signature in model.signatures:
            function = model.signatures[self.signature]
            answer["inputs"] = sorted(function.structured_input_signature[1])
            answer["outputs"] = {
                name: (spec.dtype.name, spec.shape.rank) for name, spec in function.structured_outputs.items()
            }
        return answer

    def _function(self) -> Any:
        return self._model().signatures[self.signature]

    def _model(self) -> Any:
        kept: Any = sys.modules.setdefault(_KEPT, types.ModuleType(_KEPT))
        key = (self.export_dir, self.tags)
        if getattr(kept, "key", None) != key:
            self._prepare()
            import tensorflow as tf

            kept.model = tf.saved_model.load(self.export_dir, tags=self.tags.split(",") if self.tags else None)
            kept.key = key
        return kept.model

    def _prepare(self) -> None:
        """Let TensorFlow see the GPUs that Spark gave to this task, and the command line."""
        from pyspark import TaskContext

        context = TaskContext.get()
        gpus = context.resources().get("gpu") if context is not None else None
        if gpus is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus.addresses)
        if self.argv:
            sys.argv = self.argv


def _tensor(values: Sequence[Any], function: Any, name: str) -> Any:
    """Return the values of a column as the tensor that the signature has, in its shape: Spark's arrays may be flat."""
    import tensorflow as tf

    spec = function.structured_input_signature[1][name]
    plain = [
        value.toArray() if hasattr(value, "toArray") else bytes(value) if isinstance(value, bytearray) else value
        for value in values
    ]
    tensor = tf.constant(plain, dtype=spec.dtype)
    if spec.shape.rank is not None and not spec.shape.is_compatible_with(tensor.shape):
        tensor = tf.reshape(tensor, [len(plain), *(-1 if size is None else size for size in spec.shape.as_list()[1:])])
    return tensor
