"""ElasticDL's callbacks. Those of Keras work too, and so does any object that has some of these methods:

`set_params`, `set_model`, `on_train_begin`, `on_epoch_begin`, `on_train_batch_begin`, `on_train_batch_end`, `on_epoch_end`, `on_train_end`.

A callback's counts are kept in checkpoints: its attributes that are numbers, have changed since training began, and are not parameters of
its constructor, which the model file sets anew. (Keras turns the sign of `min_delta` at the first epoch's end.) So a worker that comes back
has the patience of `EarlyStopping` and `ReduceLROnPlateau` where it was.

A batch's number is the number of steps that are complete before it, from 0. An epoch is one of the data: with several workers, of the
records that this worker gets.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .data.results import require_folder


class _OfModel:
    model: Any = None

    def set_model(self, model: Any) -> None:
        self.model = model


class LearningRateScheduler(_OfModel):
    """Set the learning rate before each batch: `schedule(step)` gives it, with the number of steps that are complete."""

    def __init__(self, schedule: Callable[[int], float]) -> None:
        self.schedule = schedule

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        rate = float(self.schedule(batch))
        optimizer = self.model.optimizer
        if hasattr(optimizer, "param_groups"):
            for group in optimizer.param_groups:
                group["lr"] = rate
        else:
            optimizer.learning_rate = rate


class MaxStepsStopping(_OfModel):
    """Stop training once `max_steps` steps are complete."""

    def __init__(self, max_steps: int) -> None:
        self.max_steps = max_steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch + 1 >= self.max_steps:
            self.model.stop_training = True


class SavedModelExporter:
    """Export the model at the end of training into the directory `path`, besides what `--output` says."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.params: dict[str, Any] = {}

    def set_params(self, params: dict[str, Any]) -> None:
        require_folder(self.path, "SavedModelExporter")
        self.params = params

    def on_train_end(self, logs: Any = None) -> None:
        self.params["export"](self.path)


class Callbacks:
    """The callbacks of a training, called as Keras's `fit` calls them. `stop_training` of the model ends it."""

    def __init__(self, callbacks: Sequence[Any], model: Any, params: dict[str, Any]) -> None:
        self._callbacks = list(callbacks)
        self._first: list[dict[str, Any]] = [{} for _ in self._callbacks]  # their numbers as training begins
        for callback in self._callbacks:
            for name, value in (("set_params", params), ("set_model", model)):
                if callable(method := getattr(callback, name, None)):
                    method(value)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a method of each callback that has it."""
        for callback in self._callbacks:
            if callable(method := getattr(callback, name, None)):
                method(*arguments)

    def begin(self, state: Sequence[Mapping[str, Any]] | None) -> bool:
        """Begin training, with the numbers that a checkpoint has of it. Return False where they are of other callbacks, and not used."""
        self.call("on_train_begin")
        self._first = [_numbers_of(callback) for callback in self._callbacks]
        if state is None:
            return True
        if [known["name"] for known in state] != [type(callback).__name__ for callback in self._callbacks]:
            return False
        for callback, known in zip(self._callbacks, state, strict=True):
            for name, value in known["numbers"].items():
                setattr(callback, name, value)
        return True

    def state(self) -> list[dict[str, Any]]:
        """Return what a checkpoint must have of each callback: its numbers that have changed."""
        state = []
        for callback, first in zip(self._callbacks, self._first, strict=True):
            present = _numbers_of(callback).items()
            changed = {name: value for name, value in present if name not in first or first[name] != value}
            state.append({"name": type(callback).__name__, "numbers": changed})
        return state


def _numbers_of(callback: Any) -> dict[str, Any]:
    """Return the attributes of a callback that are numbers, as Python's own, without the parameters of its constructors."""
    makers = [
        vars(kind)["__init__"] for kind in type(callback).__mro__ if inspect.isfunction(vars(kind).get("__init__"))
    ]
    parameters = {name for maker in makers for name in inspect.signature(maker).parameters}
    kept: dict[str, Any] = {}
    for name, value in getattr(callback, "__dict__", {}).items():
        if name in parameters:
            continue
        if isinstance(value, int):  # truth values too
            kept[name] = value
        elif isinstance(value, numbers.Real):
            kept[name] = int(value) if isinstance(value, numbers.Integral) else float(value)
    return kept
