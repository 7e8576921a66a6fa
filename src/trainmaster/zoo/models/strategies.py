"""How a step of training comes about: by this worker alone, or by all members of the role together.

    strategy = begun(flags, model, windows, loaded, step, say)    # waits for the others; the model has their state then
    for batch in strategy.batches(batches): ...     # a batch may come again, and others' steps may come between two
        strategy.step(batch)
    strategy.finish()

`steps` are those that are complete; `is_counted`: whether the last batch is in one; `rank` is this worker's among `size`. Only strategies
know what becomes of gradients, and where parameters come from.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from ..data.batches import Batch
from ..embeddings.durations import parse_seconds
from ..errors import BadModel
from ..flags import ALLREDUCE, PARAMETER_SERVER, SINGLE

Result = tuple[float, dict[str, float]]  # a loss, and its parts by name


def needs_tables(name: str, model: Any) -> bool:
    """Tell whether a strategy keeps a model's parameters elsewhere."""
    return name == PARAMETER_SERVER or (name == SINGLE and bool(model.has_tables()))


def use_tables(flags: dict[str, Any], model: Any, say: Any) -> None:
    """Prepare a model that is built, and has no optimizer yet, for a strategy that keeps its parameters elsewhere. Raises BadModel."""
    name, unused = flags["distribution_strategy"], flags["evict_unused"]
    if needs_tables(name, model):
        model.use_tables(flags["embedding_size"] if name == PARAMETER_SERVER else None, say)
        if unused:
            bound_lives(model.tables, unused)
    elif model.has_tables():
        raise BadModel(
            "embeddings with tables need parameter servers",
            place=f"--distribution_strategy {name}",
            mend=f"use {PARAMETER_SERVER}, or {SINGLE} with one worker, or the framework's own embedding layer",
        )


def bound_lives(tables: Any, unused: str) -> None:
    """Have rows of those tables that do not say it themselves removed where they are unused for so long. Raises BadModel."""
    try:
        seconds = parse_seconds(unused)
        tables.specs = {
            name: dataclasses.replace(spec, evict_unused=seconds if spec.evict_unused is None else spec.evict_unused)
            for name, spec in tables.specs.items()
        }
    except ValueError as error:
        raise BadModel(str(error), place="--evict_unused") from None


def begun(flags: dict[str, Any], model: Any, windows: Any, loaded: Any, step: int, say: Any) -> Any:
    """Begin a strategy. `loaded`: a checkpoint, or None; `step`: the steps that it has completed.

    Raises BadModel, SystemExit where the others have finished.
    """
    name = flags["distribution_strategy"]
    if model.tables is not None:
        from .server_strategy import ServerStrategy

        return ServerStrategy(model, windows, flags, None if loaded is None else loaded["tables"], say)
    if name == SINGLE:
        return Local(model, step)
    assert name == ALLREDUCE
    return (KerasAllreduce if model.kind == "keras" else TorchAllreduce)(model, windows, step)


class _Worker:
    """A member that keeps all parameters itself."""

    _model: Any
    steps: int
    is_counted = True  # a step is done again until it is complete

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        return batches

    def step(self, batch: Batch) -> Result:
        result: Result = self._model.step(batch.features, batch.labels)
        return result

    @contextlib.contextmanager
    def evaluating(self, evaluation: Any) -> Iterator[int]:
        """Have the model evaluated as it is after the steps that are complete, whose number is returned."""
        yield self.steps

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must have."""
        state: dict[str, Any] = self._model.state()
        return state

    def keep(self) -> None:
        """Do nothing: who has all saves it."""


class Local(_Worker):
    """One worker, whose optimizer applies its own gradients."""

    rank, size = 0, 1

    def __init__(self, model: Any, step: int) -> None:
        self._model, self.steps = model, step

    def step(self, batch: Batch) -> Result:
        result = super().step(batch)
        self.steps += 1
        return result

    def finish(self) -> None:
        """Do nothing: nobody waits."""


class _Member(_Worker):
    """One of several members that train together."""

    _training: Any

    @property
    def steps(self) -> int:  # type: ignore[override]  # read only
        return int(self._training.steps)

    @property
    def rank(self) -> int:
        return int(self._training.rank)

    @property
    def size(self) -> int:
        return int(self._training.size)


class KerasAllreduce(_Member):
    """Members whose Keras optimizers apply the mean of their gradients. While there are no records for this one, it takes part without."""

    def __init__(self, model: Any, windows: Any, step: int) -> None:
        from ...runtime.elastic.keras_training import Training

        self._model = model
        self._training = Training(model.model, model.optimizer, step=step)
        windows.source = self._training.patient(windows.source)

    def finish(self) -> None:
        """Take part in the others' steps until all come to this end. All have equal weights then."""
        self._training.finish()


class TorchAllreduce(_Member):
    """Members whose PyTorch optimizers apply the mean of their gradients. The batch of a step that was interrupted comes again."""

    def __init__(self, model: Any, windows: Any, step: int) -> None:
        from ...runtime.elastic.torch_training import Training

        self._model = model
        self._training = Training(model=model.model, optimizer=model.optimizer, step=step)

    @property
    def is_counted(self) -> bool:  # type: ignore[override]  # read only
        return bool(self._training.is_counted)

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        yield from self._training.batches(batches)

    def step(self, batch: Batch) -> Result:
        with self._training.step():
            result: Result = self._model.backward(batch.features, batch.labels)
        return result

    def finish(self) -> None:
        """Leave: all members have the same parameters after each step."""
        self._training.leave()
