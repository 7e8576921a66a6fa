"""`evaluate` and `predict`: what is done with a model that is trained.

*Predictions* of a shard are one file, `shard-NNNNNNNN.jsonl`, with a line of JSON for each example, in the feed's order: a number or a
list, or a dictionary by output. It is written under another name, and renamed once it is whole. A shard that is read again gives the same
file.
A directory of `--output` outlasts the program, so there each shard is done at once. In a job the output's directory is that of one attempt:
its files are committed each 30 s (`runtime.commit`), and once the program is asked to stop, with the shards that they hold. Others do
again all that came after the last commit.

The processor gets the predictions of each batch, so those of each record once; those of a shard that is read again, again.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from time import monotonic
from typing import Any

import numpy

from .. import runtime
from ..runtime.inputs import keep_in_outputs
from .data.batches import window_batches
from .data.records import Window, Windows
from .data.results import require_folder
from .embeddings.former import FLAG, is_of_servers
from .errors import BadModel
from .evaluating import Evaluation
from .models.plain_ids import naming_ids
from .modes import Mode
from .reading import reader_of, whole_of
from .starting import initialise, use_former

COMMITTED_EVERY = 30.0  # s


def evaluate(flags: dict[str, Any], model: Any, params: dict[str, Any], say: Any) -> int:
    """Evaluate: the first worker alone does, for metrics are of all data. Return the program's exit status."""
    task = runtime.task()
    if task.index:
        say(f"{task.role}:0 evaluates; there is nothing to do for {task.key}")
        return 0
    _require_start(flags, "evaluate")
    evaluation = Evaluation(
        whole_of("validation", flags, model.parts, params, task.world == 1), model, flags["minibatch_size"]
    )
    first = evaluation.first_batch()
    evaluation.run(_started(model, first.features, flags, say))
    evaluation.finish()
    return 0


def predict(flags: dict[str, Any], model: Any, params: dict[str, Any], say: Any) -> int:
    """Predict with the records that this worker gets. Return the program's exit status."""
    task, parts = runtime.task(), model.parts
    _require_start(flags, "predict")
    own = os.environ.get("TRAINMASTER_OUTPUT_PREDICTIONS", "")
    directory = own or flags["output"]
    if not directory and parts.prediction_outputs_processor is None:
        mend = "give --output, or a PredictionOutputsProcessor in the model file"
        raise BadModel("nothing takes the predictions", mend=mend)
    if directory:
        require_folder(directory, "--output")
        os.makedirs(directory, exist_ok=True)  # also where there is nothing to write: a job must have its output
    source, form = reader_of("prediction", flags, parts, params, task.world > 1)
    windows = Windows(source, form, 0)
    record = windows.first_record()
    if record is None:
        say("no records are left for this worker")
        return 0
    form.describe(record)
    size = flags["minibatch_size"]
    feed = model.feed(Mode.PREDICTION, form.metadata, size, record, getattr(form, "types", None))
    processor = parts.prediction_outputs_processor() if parts.prediction_outputs_processor is not None else None
    examples, committed = 0, monotonic()
    if own:
        keep_in_outputs()
        source.is_manual = True  # of the shards that are leased ahead nothing is written
    stop = Stop()
    while (window := stop.next_window(windows)) is not None:
        rows: list[Any] = []
        for batch in window_batches(window, feed):
            with naming_ids(model, batch.features):
                if not examples:
                    _started(model, batch.features, flags, say)
                predictions = model.numbers(model.outputs(batch.features))
            if processor is not None:
                processor.process(_outputs(predictions), task.index)
            if directory:
                rows += _rows(predictions, batch.size)
            examples += batch.size
            runtime.progress(examples=examples)
        if directory:
            _write(directory, window.first.number, rows)
        window.done()
        if own and (monotonic() - committed >= COMMITTED_EVERY or runtime.warning() is not None):
            runtime.commit()
            committed = monotonic()
    if own and stop.has_come and examples:
        runtime.commit()
    windows.close()
    say(f"predicted {examples} examples")
    return 0


class _Stopped(Exception):
    """SIGTERM came while this program waited."""


class Stop:
    """SIGTERM ends this program after the shards that it is in the middle of, and at once where it waits for what others may lose."""

    def __init__(self) -> None:
        self.has_come = self._is_waiting = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self.has_come = True
        if self._is_waiting:
            raise _Stopped

    def next_window(self, windows: Windows) -> Window | None:
        """Return the next window; None where there is none, or this program is to end."""
        try:
            try:
                self._is_waiting = True
                return None if self.has_come else windows.next()
            finally:
                self._is_waiting = False
        except _Stopped:  # also one that came while `finally` began
            return None


def _started(model: Any, features: Any, flags: dict[str, Any], say: Any) -> int:
    """Build a model by a batch, give it what was trained, and return the number of steps trained. Raises BadModel."""
    model.build(features)
    if is_of_servers(flags["checkpoint_dir_for_init"]):
        return use_former(model, flags, say)
    model.leave_tables()
    return initialise(model, flags["checkpoint_dir_for_init"])


def _require_start(flags: dict[str, Any], task: str) -> None:
    if not flags["checkpoint_dir_for_init"]:
        mend = "name a directory of checkpoints, an exported model, or a file of weights"
        raise BadModel(f"{task} needs a trained model", place=FLAG, mend=mend)


class Outputs(numpy.ndarray[Any, Any]):
    """An array with the method of TensorFlow's tensors that ElasticDL's processors call."""

    def numpy(self) -> Any:
        return self.view(numpy.ndarray)


def _outputs(predictions: Any) -> Any:
    """Return predictions in the form in which a processor gets them."""
    if isinstance(predictions, dict):
        return {name: _outputs(part) for name, part in predictions.items()}
    if isinstance(predictions, list | tuple):
        return [_outputs(part) for part in predictions]
    return numpy.asarray(predictions).view(Outputs)


def _rows(predictions: Any, size: int) -> Iterator[Any]:
    """Yield the predictions of each example, as JSON can hold them."""
    if isinstance(predictions, dict):
        columns = {name: list(_rows(part, size)) for name, part in predictions.items()}
        yield from ({name: column[row] for name, column in columns.items()} for row in range(size))
    elif isinstance(predictions, list | tuple):
        yield from map(list, zip(*(_rows(part, size) for part in predictions), strict=True))
    else:
        yield from predictions.tolist()


def _write(directory: str, number: int, rows: list[Any]) -> None:
    """Write the file of a shard."""
    name = f"shard-{number:08}.jsonl"
    draft = os.path.join(directory, f".{name}.part-{os.getpid()}")
    with open(draft, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, os.path.join(directory, name))
