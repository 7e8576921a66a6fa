"""Compute the metrics of a model over all of the validation data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import runtime
from .data.batches import Batch, batches
from .data.records import Whole
from .errors import BadModel
from .metrics import Metrics, flat
from .models.plain_ids import naming_ids
from .modes import Mode


class Evaluation:
    """The evaluation of a model, once or several times. `whole` is the input that it reads each time."""

    def __init__(self, whole: Whole, model: Any, size: int) -> None:
        self._whole, self._model, self._size = whole, model, size
        self._metrics = Metrics(model.parts.eval_metrics_fn(), model.numbers)
        self._feed: Any = None

    def run(self, step: int) -> dict[str, float]:
        """Evaluate the model as it is after `step` steps. Print and report the metrics, and return those that are one number by name."""
        self._metrics.reset()
        for batch in self.batches():
            with naming_ids(self._model, batch.features):
                outputs = self._model.outputs(batch.features)
            self._metrics.update(batch.labels, outputs, batch.size)
        results = self._metrics.results()
        print(f"Evaluation metrics[step={step}]: {results}", flush=True)
        figures = flat(results)
        runtime.metrics(**{f"val_{name}": value for name, value in figures.items()})
        return figures

    def first_batch(self) -> Batch:
        """Return a batch, by which a model can be built."""
        return next(self.batches())

    def batches(self) -> Iterator[Batch]:
        """Yield all of the validation data."""
        windows, form = self._whole.windows(self._size), self._whole.form
        record = windows.first_record()
        if record is None:
            raise BadModel("the validation data have no records")
        if self._feed is None:
            form.describe(record)
            types = getattr(form, "types", None)
            self._feed = self._model.feed(Mode.EVALUATION, form.metadata, self._size, record, types)
        for batch in batches(windows, self._feed, self._size):
            if batch.labels is None:
                raise BadModel("the feed gives no labels to evaluate with", mend="return pairs (features, labels)")
            yield batch

    def finish(self) -> None:
        """Tell that the validation data were evaluated."""
        self._whole.finish()
