"""`train`: the loop over batches, and what happens between two steps.

After each step: the loss is looked at, progress is reported, and where they are due a line is printed, the model is evaluated, a checkpoint
is saved. An act "each N steps" is due when the number of complete steps has passed a multiple of N, since with several workers steps come
that this one had no batch in.

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
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from .. import runtime
from ..runtime.reports import cannot_go_on
from .callbacks import Callbacks
from .data.batches import Batch, batches
from .data.records import Windows
from .data.results import require_folder
from .embeddings.former import is_of_servers
from .errors import BadModel
from .evaluating import Evaluation
from .flags import PARAMETER_SERVER, SINGLE
from .model_file import place_of
from .models.plain_ids import naming_ids
from .models.strategies import begun, needs_tables, use_tables
from .modes import Mode
from .reading import counted_input, reader_of, whole_of
from .starting import initialise, initialise_tables, restore

_ALL = 10**9  # checkpoints that are kept where all are


class Diverged(Exception):
    """The loss, a gradient or a parameter is not a finite number."""


class Unexported(Exception):
    """There is a model, and this worker has not got it."""


class Checkpoints:
    """The checkpoints of a training. None are saved where nobody says where."""

    def __init__(self, flags: dict[str, Any]) -> None:
        job = os.environ.get("TRAINMASTER_CHECKPOINT", "")
        self.place = job or flags["checkpoint_dir"]
        self._at = "" if job else flags["checkpoint_dir"]
        self.kept_in = (
            f"in {flags['checkpoint_dir']}" if flags["checkpoint_dir"] else "with the job, until that is removed"
        )
        self._keep = flags["keep_checkpoint_max"] or _ALL

    def load(self) -> Any:
        return runtime.checkpoint.load(at=self._at) if self.place else None

    def save(self, step: int, state: dict[str, Any], rank: int) -> None:
        if self.place:
            runtime.checkpoint.save(step, state, at=self._at, keep=self._keep, every=0.0, rank=rank)

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
        return f"state-{header['number']:08}.json of step {header['step']} {self.kept_in}"


class Meter:
    """Examples per second, of this worker, over the last second or more.

    Preparing the model counts for nothing. The first step, in which much is compiled, counts until the second one ends; and in the first
    second the rate is that of the steps so far.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.rate = 0.0
        self._clock = clock
        self._since: float | None = None
        self._examples, self._seconds = 0, 0  # of the present second; seconds that are over

    def begin(self) -> None:
        """Note that a step begins."""
        if self._since is None:
            self._since = self._clock()

    def note(self, examples: int) -> None:
        """Note that a step ends."""
        assert self._since is not None
        is_first, now = not self.rate, self._clock()
        self._examples += examples
        seconds = now - self._since
        if seconds >= 1.0 or not self._seconds:
            self.rate = self._examples / max(seconds, 1e-9)
        if is_first or seconds >= 1.0:
            self._seconds += not is_first
            self._since, self._examples = now, 0


class Training:
    """One training by the flags of a command line, of a model that is made and not built. `say(text)` prints."""

    def __init__(self, flags: dict[str, Any], model: Any, params: dict[str, Any], say: Any) -> None:
        self._flags, self._model, self._say = flags, model, say
        parts = model.parts
        if place := self._export_place():
            require_folder(place, "--output")
        self._has_servers = flags["distribution_strategy"] == PARAMETER_SERVER
        is_shared = flags["distribution_strategy"] != SINGLE and runtime.task().world > 1
        size, self._ledger = flags["minibatch_size"], set[int]()
        self._checkpoints, self._meter = Checkpoints(flags), Meter()
        self._loaded = None if self._has_servers else self._checkpoints.load()  # servers restore their own
        source, form = reader_of("training", flags, parts, params, is_shared)
        is_counted = (
            bool(counted_input("training")) if parts.custom_data_reader else bool(os.environ.get("TRAINMASTER_SOCKET"))
        )
        if self._loaded is not None:
            self._ledger.update(self._loaded.get("ledger", ()))
        self._windows = Windows(source, form, size, ledger=None if is_counted else self._ledger)
        self._batches = self._all_batches(form)
        self._is_checked = False  # whether the first batch has shown that feed, model and loss fit
        self._evaluation: Evaluation | None = None
        if flags["validation_data"] or os.environ.get("TRAINMASTER_INPUT_VALIDATION"):
            self._evaluation = Evaluation(whole_of("validation", flags, parts, params, not is_shared), model, size)
        self._strategy: Any = None
        self._seen = self._begun_at = 0  # steps that `_between_steps` has looked at; steps at the beginning
        self._epoch = -1
        self._losses: list[float] = []  # of this epoch
        self._results: dict[str, float] = {}  # of the last evaluation
        self._evaluated = self._saved = -1  # the steps of the last evaluation and checkpoint

    def run(self) -> None:
        """Train to the end, and export. Raises BadModel, Diverged."""
        try:
            first = self._prepare()
        except SystemExit:  # the others have finished before this worker came
            self._end_too_late()
            return
        self._callbacks = self._made_callbacks()
        if not self._callbacks.begin(None if self._loaded is None else self._loaded.get("callbacks")):
            self._say("the callbacks begin anew: the checkpoint is of others")
        for batch in self._strategy.batches(itertools.chain(first, self._batches)):
            if self._is_over():
                break
            self._train(batch)
            if self._is_over():
                break
        rank = self._strategy.rank
        self._strategy.finish()
        self._end(rank)

    def _all_batches(self, form: Any) -> Iterator[Batch]:
        size = self._flags["minibatch_size"]
        record = self._windows.first_record()
        if record is not None:
            form.describe(record)
            feed = self._model.feed(Mode.TRAINING, form.metadata, size, record, getattr(form, "types", None))
            self._windows.least = max(size, feed.buffer)
            yield from batches(self._windows, feed, size)

    def _prepare(self) -> list[Batch]:
        """Give the model what it begins from, and join the others. Return the batches that were needed for it.

        A model that learns the form of its input from a first batch waits for one; any other joins without, so a worker that comes when
        no records are left has the others' model in the end.
        """
        model, flags, step = self._model, self._flags, 0
        first = [] if model.is_built else list(itertools.islice(self._batches, 1))
        for batch in first:
            self._check(batch)
        if not first and not model.is_built:
            if self._has_servers and runtime.task().index:
                raise SystemExit(0)  # the servers have what the others did, and worker 0 exports it
            if self._loaded is not None:
                restore(model, self._loaded)  # which builds it, and has no optimizer yet
            elif self._evaluation is not None:
                model.build(self._evaluation.first_batch().features)
            else:
                raise BadModel("no records are left for this worker, and its model has no form without one",
                               mend="have the model built by custom_model(), or give --validation_data")  # fmt: skip
        place = flags["checkpoint_dir_for_init"] if self._loaded is None else ""
        if needs_tables(flags["distribution_strategy"], model) and place:
            if not is_of_servers(place):  # else whoever keeps the tables loads them
                initialise_tables(model, place)
            place = ""
        use_tables(flags, model, self._say)
        model.prepare_training()
        if self._loaded is not None:
            restore(model, self._loaded)
            step = self._loaded.step
            self._say(f"going on from the checkpoint of step {step}")
        elif place:
            step = initialise(model, place)
        self._strategy = begun(flags, model, self._windows, self._loaded, step, self._say)
        self._seen = self._begun_at = self._strategy.steps
        return first

    def _check(self, batch: Batch) -> None:
        """Raise BadModel where a first batch shows that feed, model and loss do not fit."""
        if batch.labels is None:
            place = place_of(self._model.parts.path, self._model.parts.feed)
            raise BadModel(
                "the feed gives no labels to train with", place=place, mend="return pairs (features, labels)"
            )
        with naming_ids(self._model, batch.features):
            self._model.build(batch.features)
            self._model.check_loss(batch.features, batch.labels, batch.size)
        self._is_checked = True

    def _made_callbacks(self) -> Callbacks:
        model, flags = self._model, self._flags
        model.model.stop_training = False
        callbacks = model.parts.callbacks() if model.parts.callbacks is not None else []
        params = {"batch_size": flags["minibatch_size"], "epochs": flags["num_epochs"], "export": self._export_to}
        return Callbacks(callbacks or [], model.model, params)

    def _is_over(self) -> bool:
        limit = self._flags["max_step"]
        return bool(self._model.model.stop_training) or 0 < limit <= self._strategy.steps

    def _train(self, batch: Batch) -> None:
        if not self._is_checked:
            self._check(batch)
        if batch.epoch != self._epoch:
            self._end_epoch()
            self._epoch = batch.epoch
            self._callbacks.call("on_epoch_begin", self._epoch)
        before = self._strategy.steps
        self._callbacks.call("on_train_batch_begin", before)
        self._meter.begin()
        try:
            with naming_ids(self._model, batch.features):
                loss, parts = self._strategy.step(batch)
        except FloatingPointError as error:
            raise Diverged(f"in step {before + 1}, {error}") from error
        if not math.isfinite(loss):
            raise Diverged(f"the loss of step {before + 1} is {'NaN' if math.isnan(loss) else loss}")
        if self._strategy.is_counted:
            batch.used()  # before a checkpoint, which has what this batch changed
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
            self._evaluate(self._strategy.rank)
        if is_due(flags["checkpoint_steps"]):
            self._save(self._strategy.rank)

    def _end_epoch(self) -> None:
        if self._epoch < 0:
            return
        mean = sum(self._losses) / len(self._losses) if self._losses else math.nan
        self._losses.clear()
        self._callbacks.call("on_epoch_end", self._epoch, {"loss": mean, **self._results})

    def _evaluate(self, rank: int) -> None:
        if self._evaluation is None or rank or self._evaluated == self._strategy.steps:
            return
        with runtime.phase("evaluating"), self._strategy.evaluating(self._evaluation) as step:
            self._results = {f"val_{name}": value for name, value in self._evaluation.run(step).items()}
        self._evaluated = step

    def _save(self, rank: int) -> None:
        state = self._strategy.state()
        if state is not None:
            if name := self._model.diverged_parameter():  # a loss would show it one step too late
                raise Diverged(f"parameter {name!r} is not finite after step {self._strategy.steps}")
            own = {"ledger": sorted(self._ledger), "callbacks": self._callbacks.state()}
            self._checkpoints.save(self._strategy.steps, {**state, **own}, rank)
        self._saved = self._strategy.steps

    def _end(self, rank: int) -> None:
        """Save, evaluate and export. `rank`: the last one; the others have come to their end too."""
        steps = self._strategy.steps
        if not steps:
            raise BadModel("the training data have no records")
        if self._saved < steps and (steps > self._begun_at or self._loaded is None):
            self._save(rank)
        self._strategy.keep()
        if self._evaluation is not None:
            self._evaluate(rank)
            if self._export_place() and not self._model.has_example:  # it came when no records were left
                self._model.note_example(self._evaluation.first_batch().features)
            self._evaluation.finish()
        self._end_epoch()
        self._callbacks.call("on_train_end")
        self._windows.close()
        self._export()
        self._checkpoints.wait()
        self._say(f"trained {steps} steps")

    def newest_checkpoint(self) -> str:
        """Describe the newest checkpoint that is stored."""
        if self._has_servers:
            return str(self._strategy.newest_checkpoint())
        if self._strategy.rank and self._saved >= 0:
            return f"the newest that rank 0 has stored, of step {self._saved} at most, {self._checkpoints.kept_in}"
        return self._checkpoints.newest()

    def _export_to(self, place: str) -> None:
        """Export for a callback: all workers have it, and one path."""
        if self._strategy.rank == 0:
            self._model.export(place)

    def _export_place(self) -> str:
        """Return the output of the job that this task has; alone, or where the job has none, the first task has `--output`."""
        place = os.environ.get("TRAINMASTER_OUTPUT_MODEL") or (
            self._flags["output"] if runtime.task().index == 0 else ""
        )
        return str(place)

    def _export(self) -> None:
        if place := self._export_place():
            names = [os.path.relpath(path, place) for path in self._model.export(place)]
            self._say(f"exported {' and '.join(names)}")

    def _end_too_late(self) -> None:
        """Export the others' model, by their last checkpoint, where this task's output is the job's. Raises Unexported."""
        if not os.environ.get("TRAINMASTER_OUTPUT_MODEL"):
            return
        if self._loaded is None:
            raise Unexported(
                "the other workers have finished, and left no checkpoint by which this one could export their model"
            )
        restore(self._model, self._loaded)
        self._export()


def train(flags: dict[str, Any], model: Any, params: dict[str, Any], say: Any) -> int:
    """Train, and return the program's exit status."""
    training = Training(flags, model, params, say)
    try:
        training.run()
    except Diverged as error:
        newest = f"the last good checkpoint: {training.newest_checkpoint()}"
        print(f"error: {error}; the job is stopped\n  {newest}", file=sys.stderr, flush=True)
        cannot_go_on(f"{error}; {newest}")  # from there the same would come
        return 1
    except Unexported as error:
        print(f"error: {error}\n  give the job a checkpoint", file=sys.stderr, flush=True)
        return 1
    return 0
