"""ElasticDL's callbacks. Those of Keras work too; of any object these methods are called that it has:

`set_params`, `set_model`, `on_train_begin`, `on_epoch_begin`, `on_train_batch_begin`, `on_train_batch_end`, `on_epoch_end`, `on_train_end`.

A batch's number is the number of steps that are complete before it, from 0. An epoch is one of the data: with several workers, of those
records that this worker gets of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .data.results import require_folder


class LearningRateScheduler:
    """Set the learning rate before each batch: `schedule(step)` gives it, with the number of steps that are complete."""

    def __init__(self, schedule: Callable[[int], float]) -> None:
        self.schedule = schedule
        self.model: Any = None

    def set_model(self, model: Any) -> None:
        self.model = model

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        rate = float(self.schedule(batch))
        optimizer = self.model.optimizer
        if hasattr(optimizer, "param_groups"):
            for group in optimizer.param_groups:
                group["lr"] = rate
        else:
            optimizer.learning_rate = rate


class MaxStepsStopping:
    """Stop training once `max_steps` steps are complete."""

    def __init__(self, max_steps: int) -> None:
        self.max_steps = max_steps
        self.model: Any = None

    def set_model(self, model: Any) -> None:
        self.model = model

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
        for callback in self._callbacks:
            for name, value in (("set_params", params), ("set_model", model)):
                if callable(method := getattr(callback, name, None)):
                    method(value)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a method of each callback that has it."""
        for callback in self._callbacks:
            if callable(method := getattr(callback, name, None)):
                method(*arguments)
