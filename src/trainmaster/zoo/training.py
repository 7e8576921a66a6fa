"""`train`: the loop over batches, and what happens between two steps.

After each step: the loss is looked at, progress is reported, and where they are due a line is printed, the model is evaluated, a checkpoint
is saved. What is due "each N steps" is due when the number of complete steps has passed a multiple of N, since with several workers steps
come that this one had no batch in.

*Evaluation.* One worker, rank 0, evaluates all of the validation data between two steps, so all is computed with the parameters of one
step; the others wait in the next step's sum.

*The end.* Where the data have ended, or `max_step` or a callback says so, all members finish together, the last state is saved and
evaluated, and the model is exported.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Iterator
from time import monotonic
from typing import Any

from .. import runtime
from .callbacks import Callbacks
from .data.batches import Batch, batches
from .data.records import SMALLEST, Windows
from .errors import BadModel
from .evaluating import Evaluation
from .flags import PARAMETER_SERVER, SINGLE
from .model_file import place_of
from .models.strategies import begun, use_tables
from .modes import Mode
from .reading import reader_of, whole_of
from .starting import initialise, restore

_ALL = 10**9  # checkpoints that are kept where all are


class Diverged(Exception):
    """The loss is not a number."""


class Checkpoints:
    """The checkpoints of a training. None are saved where nobody says where."""

    def __init__(self, flags: dict[str, Any]) -> None:
        job = os.environ.get("TRAINMASTER_CHECKPOINT", "")
        self.place = job or flags["checkpoint_dir"]
        self._at = "" if job else flags["checkpoint_dir"]
        self._keep = flags["keep_checkpoint_max"] or _ALL

    def load(self) -> Any:
        return runtime.checkpoint.load(at=self._at) if self.place else None

    def save(self, step: int, state: dict[str, Any]) -> None:
        if self.place:
            runtime.checkpoint.save(step, state, at=self._at, keep=self._keep, every=0.0)

    def wait(self) -> None:
        """Return once the newest state is stored."""
        if self.place:
            runtime.checkpoint.wait()

    def newest(self) -> str:
        """Describe the newest state that is stored."""
        from ..runtime.states import stored_states

        if not self.place:
            return "none: give --checkpoint_dir and --checkpoint_steps"
        self.wait()
        header = next(stored_states.headers(stored_states.place_at(self.place)), None)
        if header is None:
            return f"none in {self.place}"
        return f"state-{header['number']:08}.json of step {header['step']} in {self.place}"


class Meter:
    """Examples per second, of this worker, over the last second or more."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._since, self._examples = monotonic(), 0

    def note(self, examples: int) -> None:
        self._examples += examples
        seconds = monotonic() - self._since
        if seconds >= 1.0 or not self.rate:
            self.rate = self._examples / max(seconds, 1e-9)
        if seconds >= 1.0:
            self._since, self._examples = monotonic(), 0


class Training:
    """One training by the flags of a command line, of a model that is made and not built. `say(text)` prints."""

    def __init__(self, flags: dict[str, Any], model: Any, params: dict[str, Any], say: Any) -> None:
        self._flags, self._model, self._say = flags, model, say
        parts = model.parts
        self._has_servers = flags["distribution_strategy"] == PARAMETER_SERVER
        is_shared = flags["distribution_strategy"] != SINGLE and runtime.task().world > 1
        size, self._ledger = flags["minibatch_size"], set[int]()
        self._checkpoints, self._meter = Checkpoints(flags), Meter()
        self._loaded = None if self._has_servers else self._checkpoints.load()  # servers restore their own
        source, form = reader_of("training", flags, parts, params, is_shared)
        is_counted = bool(os.environ.get("TRAINMASTER_SOCKET")) and not parts.custom_data_reader
        if self._loaded is not None:
            self._ledger.update(self._loaded.get("ledger", ()))
        self._windows = Windows(source, form, SMALLEST * size, ledger=None if is_counted else self._ledger)
        record = self._windows.first_record()
        form.describe(record)
        feed = (
            model.feed(Mode.TRAINING, form.metadata, size, record, getattr(form, "types", None))
            if record is not None
            else None
        )
        self._batches: Iterator[Batch] = batches(self._windows, feed, size) if feed else iter(())
        self._evaluation: Evaluation | None = None
        if flags["validation_data"] or os.environ.get("TRAINMASTER_INPUT_VALIDATION"):
            self._evaluation = Evaluation(whole_of("validation", flags, parts, params, not is_shared), model, size)
        self._strategy: Any = None
        self._seen = self._begun_at = 0  # steps that `_between_steps` has looked at; steps at the beginning
        self._epoch = -1
        self._losses: list[float] = []  # of this epoch
        self._results: dict[str, float] = {}  # of the last evaluation
        self._evaluated = -1  # the step of the last evaluation

    def run(self) -> None:
        """Train to the end, and export. Raises BadModel, Diverged."""
        first = next(self._batches, None)
        if not self._prepare(first):
            return
        self._callbacks = self._made_callbacks()
        self._callbacks.call("on_train_begin")
        all_batches = itertools.chain([first], self._batches) if first is not None else iter(())
        for batch in self._strategy.batches(all_batches):
            if self._is_over():
                break
            self._train(batch)
            if self._is_over():
                break
        self._strategy.finish()
        self._end()

    def _prepare(self, first: Batch | None) -> bool:
        """Build the model, give it what it begins from, and join the others. Return False where there is nothing to do."""
        model, flags, step = self._model, self._flags, 0
        if first is not None:
            if first.labels is None:
                place = place_of(model.parts.path, model.parts.feed)
                raise BadModel(
                    "the feed gives no labels to train with", place=place, mend="return pairs (features, labels)"
                )
            model.build(first.features)
        elif self._loaded is None and not (self._has_servers and getattr(model.model, "built", True)):
            self._say("no records are left for this worker")
            return False
        if self._loaded is not None and not getattr(model.model, "built", True):
            restore(model, self._loaded)  # which builds it, and has no optimizer yet
        use_tables(flags["distribution_strategy"], model, flags["embedding_size"], self._say)
        model.prepare_training()
        if self._loaded is not None:
            restore(model, self._loaded)
            step = self._loaded.step
            self._say(f"going on from the checkpoint of step {step}")
        elif flags["checkpoint_dir_for_init"]:
            step = initialise(model, flags["checkpoint_dir_for_init"])
        if first is not None:
            model.check_loss(first.features, first.labels, first.size)
        self._strategy = begun(flags, model, self._windows, self._loaded, step, self._say)
        self._seen = self._begun_at = self._strategy.steps
        return True

    def _made_callbacks(self) -> Callbacks:
        model, flags = self._model, self._flags
        model.model.stop_training = False
        callbacks = model.parts.callbacks() if model.parts.callbacks is not None else []
        params = {"batch_size": flags["minibatch_size"], "epochs": flags["num_epochs"], "export": model.export}
        return Callbacks(callbacks or [], model.model, params)

    def _is_over(self) -> bool:
        limit = self._flags["max_step"]
        return bool(self._model.model.stop_training) or 0 < limit <= self._strategy.steps

    def _train(self, batch: Batch) -> None:
        if batch.epoch != self._epoch:
            self._end_epoch()
            self._epoch = batch.epoch
            self._callbacks.call("on_epoch_begin", self._epoch)
        before, applied = self._strategy.steps, self._strategy.applied
        self._callbacks.call("on_train_batch_begin", before)
        loss, parts = self._strategy.step(batch)
        if math.isnan(loss):
            raise Diverged(f"the loss of step {before + 1} is NaN")
        if self._strategy.applied > applied:
            self._losses.append(loss)
            self._meter.note(batch.size)
            logs = {"loss": loss, **parts}
            self._callbacks.call("on_train_batch_end", self._strategy.steps - 1, logs)
            self._report(logs)
            self._between_steps(logs)

    def _report(self, logs: dict[str, float]) -> None:
        runtime.progress(step=self._strategy.steps, throughput=self._meter.rate, epoch=self._epoch + 1, **logs)

    def _between_steps(self, logs: dict[str, float]) -> None:
        steps, flags = self._strategy.steps, self._flags
        before, self._seen = self._seen, steps

        def is_due(every: int) -> bool:
            return every > 0 and steps // every > before // every

        if is_due(flags["log_loss_steps"]):
            figures = " ".join(f"{name}={value:.6g}" for name, value in logs.items())
            self._say(f"step={steps} epoch={self._epoch + 1} {figures} examples/s={self._meter.rate:.0f}")
        if is_due(flags["evaluation_steps"]):
            self._evaluate()
        if is_due(flags["checkpoint_steps"]):
            self._save()

    def _end_epoch(self) -> None:
        if self._epoch < 0:
            return
        mean = sum(self._losses) / len(self._losses) if self._losses else math.nan
        self._losses.clear()
        self._callbacks.call("on_epoch_end", self._epoch, {"loss": mean, **self._results})

    def _evaluate(self) -> None:
        if self._evaluation is None or self._strategy.rank or self._evaluated == self._strategy.steps:
            return
        with runtime.phase("evaluating"), self._strategy.evaluating(self._evaluation) as step:
            self._results = {f"val_{name}": value for name, value in self._evaluation.run(step).items()}
        self._evaluated = step

    def _save(self) -> None:
        state = self._strategy.state()
        if state is not None:
            self._checkpoints.save(self._strategy.steps, {**state, "ledger": sorted(self._ledger)})

    def _end(self) -> None:
        if self._strategy.steps > self._begun_at or self._loaded is None:
            self._save()
            self._strategy.keep()
        is_first = runtime.task().index == 0  # ranks are over: the others have left
        if self._evaluation is not None:
            if is_first and self._evaluated != self._strategy.steps:
                with self._strategy.evaluating(self._evaluation) as step:
                    results = self._evaluation.run(step)
                self._results = {f"val_{name}": value for name, value in results.items()}
            self._evaluation.finish()
        self._end_epoch()
        self._callbacks.call("on_train_end")
        self._windows.close()
        place = os.environ.get("TRAINMASTER_OUTPUT_MODEL") or self._flags["output"]
        if place and is_first:
            paths = self._model.export(place)
            self._say(f"exported {' and '.join(paths)}")
        self._checkpoints.wait()
        self._say(f"trained {self._strategy.steps} steps")


def train(flags: dict[str, Any], model: Any, params: dict[str, Any], say: Any) -> int:
    """Train, and return the program's exit status."""
    training = Training(flags, model, params, say)
    try:
        training.run()
    except Diverged as error:
        newest = training._checkpoints.newest()
        print(f"error: {error}; the job is stopped\n  the last good checkpoint: {newest}", file=sys.stderr, flush=True)
        return 1
    return 0
