"""How a step of training comes about: by this worker alone, or by all members of the role together.

    strategy = begun(name, model, windows, step)    # waits for the others; the model has their state then
    for batch in strategy.batches(batches): ...     # a batch may come again, and others' steps may come between two
        strategy.step(batch)
    strategy.finish()

`steps` are those that are complete; `is_counted`: whether the last batch is in one; `rank` is this worker's among `size`. What a strategy
does with gradients, and where parameters come from, is known here alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..data.batches import Batch
from ..errors import BadModel
from ..flags import ALLREDUCE, SINGLE

Result = tuple[float, dict[str, float]]  # a loss, and its parts by name


def begun(name: str, model: Any, windows: Any, step: int) -> Any:
    """Begin a strategy. `step`: those that a checkpoint has behind it. Raises BadModel, SystemExit where the others have finished."""
    if name == SINGLE:
        return Local(model, step)
    if name != ALLREDUCE:
        raise BadModel(
            f"this program has no {name}", place="--distribution_strategy", mend=f"use {SINGLE} or {ALLREDUCE}"
        )
    return (KerasAllreduce if model.kind == "keras" else TorchAllreduce)(model, windows, step)


class Local:
    """One worker, whose optimizer applies its own gradients."""

    rank, size = 0, 1
    is_counted = True

    def __init__(self, model: Any, step: int) -> None:
        self._model, self.steps = model, step

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        return batches

    def step(self, batch: Batch) -> Result:
        result: Result = self._model.step(batch.features, batch.labels)
        self.steps += 1
        return result

    def finish(self) -> None:
        """Do nothing: nobody waits."""


class KerasAllreduce:
    """Members whose Keras optimizers apply the mean of their gradients. While there are no records for this one, it takes part without."""

    is_counted = True  # a step is done again until it is complete

    def __init__(self, model: Any, windows: Any, step: int) -> None:
        from ...runtime.elastic.keras_training import Training

        self._model = model
        self._training = Training(model.model, model.optimizer, step=step)
        windows.source = self._training.patient(windows.source)

    @property
    def steps(self) -> int:
        return self._training.steps

    @property
    def rank(self) -> int:
        return self._training.rank

    @property
    def size(self) -> int:
        return self._training.size

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        return batches

    def step(self, batch: Batch) -> Result:
        result: Result = self._model.step(batch.features, batch.labels)
        return result

    def finish(self) -> None:
        """Take part in the others' steps until all come to this end. All have equal weights then."""
        self._training.finish()


class TorchAllreduce:
    """Members whose PyTorch optimizers apply the mean of their gradients. The batch of a step that was interrupted comes again."""

    def __init__(self, model: Any, windows: Any, step: int) -> None:
        from ...runtime.elastic.torch_training import Training

        self._model = model
        self._training = Training(model=model.model, optimizer=model.optimizer, step=step)

    @property
    def is_counted(self) -> bool:
        return self._training.is_counted

    @property
    def steps(self) -> int:
        return self._training.steps

    @property
    def rank(self) -> int:
        return self._training.rank

    @property
    def size(self) -> int:
        return self._training.size

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        return self._training.batches(batches)

    def step(self, batch: Batch) -> Result:
        with self._training.step():
            result: Result = self._model.backward(batch.features, batch.labels)
        return result

    def finish(self) -> None:
        """Leave: all members have the same parameters after each step."""
        self._training.leave()
