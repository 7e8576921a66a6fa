"""The metrics of an evaluation, exact over all examples: Keras's by their states, functions as the mean of what they give for each.

`eval_metrics_fn()` gives {name: metric or function(labels, predictions)}, or, for a model of several outputs, {output: {name: ...}}. If
labels are a dictionary with the output's name, the metric gets that entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .errors import BadModel


class Mean:
    """The mean over all examples of a function of a batch, which gives a number for each example, or their mean."""

    def __init__(self, function: Callable[[Any, Any], Any], numbers: Callable[[Any], Any]) -> None:
        self._function, self._numbers = function, numbers
        self._total, self._count = 0.0, 0

    def reset_state(self) -> None:
        self._total, self._count = 0.0, 0

    def update_state(self, labels: Any, predictions: Any, size: int) -> None:
        import numpy

        values = numpy.asarray(self._numbers(self._function(labels, predictions)), "f8")
        weight = size if values.ndim == 0 else values.size
        self._total += float(values.mean()) * weight if weight else 0.0
        self._count += weight

    def result(self) -> float:
        return self._total / self._count if self._count else float("nan")


class Metrics:
    """The metrics of a model file, for one evaluation after another. `numbers` makes tensors NumPy arrays."""

    def __init__(self, metrics: Any, numbers: Callable[[Any], Any]) -> None:
        if not isinstance(metrics, dict) or not metrics:
            raise BadModel(
                f"eval_metrics_fn returns a {type(metrics).__name__}", mend="return {name: metric or function}"
            )
        self._numbers = numbers
        self._metrics = {name: self._made(value) for name, value in metrics.items()}

    def _made(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._made(part) for name, part in value.items()}
        if hasattr(value, "update_state") and hasattr(value, "result"):
            return value
        if callable(value):
            return Mean(value, self._numbers)
        raise BadModel(f"eval_metrics_fn has a {type(value).__name__}", mend="give a Keras metric or a function")

    def reset(self) -> None:
        for _, _, metric in self._rows():
            metric.reset_state()

    def update(self, labels: Any, outputs: Any, size: int) -> None:
        """Take a batch of `size` examples. Raises BadModel for an output that the model has not got."""
        for output, _, metric in self._rows():
            predictions, expected = outputs, labels
            if output:
                if not isinstance(outputs, dict) or output not in outputs:
                    has = f"it has {', '.join(outputs)}" if isinstance(outputs, dict) else "it has one without a name"
                    raise BadModel(f"eval_metrics_fn names an output {output} that the model has not got", mend=has)
                predictions = outputs[output]
                expected = labels[output] if isinstance(labels, dict) and output in labels else labels
            if isinstance(metric, Mean):
                metric.update_state(expected, predictions, size)
            else:
                metric.update_state(expected, predictions)

    def results(self) -> dict[str, Any]:
        """Return the results, nested as the metrics are."""

        def result(metric: Any) -> Any:
            if isinstance(metric, dict):
                return {name: result(part) for name, part in metric.items()}
            return _plain(self._numbers(metric.result()))

        return {name: result(metric) for name, metric in self._metrics.items()}

    def _rows(self) -> Iterator[tuple[str, str, Any]]:
        """Yield (output, name, metric); the output is "" where there is one alone."""
        for name, value in self._metrics.items():
            if isinstance(value, dict):
                yield from ((name, inner, metric) for inner, metric in value.items())
            else:
                yield "", name, value


def flat(results: dict[str, Any]) -> dict[str, float]:
    """Return results of one number each by names as `logits_accuracy`."""
    figures: dict[str, float] = {}
    for name, value in results.items():
        if isinstance(value, dict):
            figures |= {f"{name}_{inner}": number for inner, number in flat(value).items()}
        elif isinstance(value, float):
            figures[name] = value
    return figures


def _plain(value: Any) -> Any:
    import numpy

    array = numpy.asarray(value)
    return float(array) if array.ndim == 0 else array.tolist()
