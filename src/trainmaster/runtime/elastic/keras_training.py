"""Train a Keras model while members of the job come and go. Importing this module imports keras.

    from trainmaster.runtime.elastic import keras_training as elastic

    with elastic.Training(model, optimizer) as training:             # a training loop of one's own
        while training.steps < STEPS:
            ...
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    model.fit(pixels, labels, epochs=10, callbacks=[elastic.Callback()])

While training lasts, the optimizer applies the mean of the gradients of all members that had a batch, summed up by `all_reduce`. Weights
and optimizer variables are equal everywhere from the first step on.

*A step* is completed when its mean is there. Where the round breaks before, the members form another and add up again, with the gradients
that each has: they come from equal weights, so nothing is computed twice. A member that was interrupted in a step that another one had
completed takes weights and optimizer variables from that one, and applies nothing: its batch is in that step.

*Forming a round.* The member with the highest completed step (ties: the oldest) gives its weights and optimizer variables to all, where
somebody is new or behind. They are taken over whole or not at all. Everything else stays a member's own: seeds, metrics.

*Newcomers.* A member that hears of one says so beside its gradients. So all learn of it in the same step, and form the next round before
the next one.

*Ends of data.* Each sum carries how many members had a batch, and how many have come to their end. A member without a batch takes part
all the same, with zeros that count for nothing, until all have come to their end.

*The end.* Then the weights that no gradient changes become their mean: for a member at once or not at all, and a member that has this is
further than one that has not. If a member dies meanwhile, the others take the mean from one that has it. Nobody leaves before all have it.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy

from .. import inputs, shards, task
from ..batches import batches as batches_of
from ..reports import progress
from .alike import Form
from .all_reduce import Aborted, Listener, Ring
from .keras_in_use import dtype_name, keras, path_of, with_apply
from .reader import PatientSource
from .rendezvous import BROKEN, LOOPBACK, Rendezvous
from .rounds import NO_STATE, STATE, Round

PATIENCE = 60.0  # s that a member which is done waits for the others to form a round


class Training:
    """Training of one model by all members of the role, from its making until `finish`.

    Making it waits for the first round, and from then on `optimizer.apply` and `apply_gradients` apply the mean over the members. `model`
    is built; `optimizer` is the compiled one by default. `step`: the steps that a loaded checkpoint has completed. `steps`: those completed
    now. `rank` and `size` are those of the round, and may change after each step. As a context it finishes at its end.
    """

    def __init__(self, model: Any, optimizer: Any = None, *, step: int = 0, name: str = "elastic") -> None:
        if keras.backend.backend() not in _MEANS:
            raise ValueError(f"Keras with {keras.backend.backend()} is not elastic: with {' or '.join(_MEANS)} it is")
        self._optimizer = with_apply(optimizer or model.optimizer)
        if not model.built or self._optimizer is None:
            raise ValueError("the model has no weights or no optimizer yet: give it a keras.Input, and compile it")
        if not getattr(self._optimizer, "built", False):  # Keras 2 does not say it, and builds once
            self._optimizer.build(model.trainable_variables)
        variables = {id(variable): variable for variable in [*model.weights, *self._optimizer.variables]}
        self._trainable, self._variables = model.trainable_variables, [*variables.values()]
        self._untrained = [weight for weight in model.non_trainable_weights if "float" in dtype_name(weight.dtype)]
        self._alike = self._described()
        is_double = any(dtype_name(variable.dtype) == "float64" for variable in self._trainable)
        self._type = "float64" if is_double else "float32"
        self._numbers = numpy.zeros(0, self._type)
        self.steps = step
        self._has_state = NO_STATE  # of the other members: weights and variables
        self._is_even = False  # whether the end is reached, and the weights that are not trained are their mean
        self._is_new = False  # whether the others had a round without this member
        self._is_leaving = False  # whether all agreed to form another round before the next step
        self._has_left = False
        self._have_all_finished = False  # as they reported to each other in the last step
        self._sources: list[PatientSource] = []
        self._turn = threading.Lock()  # of the thread that takes part in a step
        self._rendezvous = Rendezvous(name, self._heard)
        self._key, address = self._rendezvous.key_and_address()
        self._listener = Listener(address)
        self._ring = Ring(self._listener, self._key, "", 0, 0, [("", 0)])
        self._apply = self._optimizer.apply
        self._form()
        if self._is_even:
            self._end_too_late()
        self._report_shards()
        self._optimizer.apply = self._apply_mean

    @property
    def rank(self) -> int:
        return self._ring.rank

    @property
    def size(self) -> int:
        return self._ring.size

    def batches(
        self, name: str, size: int, *, shuffle: int = 0, seed: int = 0, drop_last: bool = False, **options: Any
    ) -> Iterator[list[Any]]:
        """Yield lists of `size` records of the shards of the input `name`, over all epochs, until all members together have done them.

        While there is none to lease, this member takes part without a batch, and gets those that another one loses or leaves. `shuffle`,
        `seed` and `drop_last` are those of `runtime.shards(...).batches`, `options` those of `runtime.shards`.
        """
        source = self.patient(shards(name, **options)._source())
        return batches_of(source, size, shuffle, seed, drop_last)

    def patient(self, source: Any) -> Any:
        """Return a source of the shards that `source` leases, which takes part in the others' steps while it waits for one.

        While a step runs, ask the source for no shard in another thread, except without waiting. `finish` closes the source.
        """
        self._sources.append(PatientSource(source, self.take_part))
        return self._sources[-1]

    def take_part(self) -> bool:
        """Take part in a step without a batch. Return False where nobody had one, and the members are the same as before."""
        return self._step_without_batch()

    def finish(self) -> None:
        """Take part in the others' steps until all come to this end, and leave. All have equal weights then.

        Weights that no gradient changes, as the moving averages of BatchNormalization, are each member's own until then; now they become
        their mean.
        """
        self._give_back()
        is_known = False  # that all are even
        while not is_known:
            try:
                self._step_without_batch(is_finishing=True)
                if self._have_all_finished:
                    self._even_out()
                    self._ring.all_reduce(numpy.zeros(1, "f4"))
                    is_known = True
            except Aborted:
                is_known = not self._form_at_the_end()
        with contextlib.suppress(Aborted):  # somebody has left, and so knew that all are even, or has died
            self._ring.all_reduce(numpy.zeros(1, "f4"))  # nobody leaves, which breaks the round, before all know it
        self.leave()

    def leave(self) -> None:
        """Leave at once: the others go on without this member, and its optimizer is its own again."""
        self._has_left = True
        self._give_back()
        self._optimizer.apply = self._apply
        self._ring.abort()  # a thread that takes part meanwhile would wait for ever in a ring that is only closed
        self._ring.close()
        self._rendezvous.leave()
        self._listener.close()

    def _give_back(self) -> None:
        """Let the others read the shards that this member did not read to their end."""
        while self._sources:
            self._sources.pop().close()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, kind: object, *raised: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.leave()

    # -- rounds --

    def _form_at_the_end(self) -> bool:
        """Join the next round. Return False where nobody else comes, and this member has all that it needs."""
        try:
            self._form(timeout=PATIENCE if self._is_even else None)
        except TimeoutError:  # the others have left: their programs go on, and may wait for this one
            return False
        return True

    def _form(self, agreed: bool = False, timeout: float | None = None) -> Round:
        """Join until there is a round in which all have the same state."""
        self._is_new = False
        while True:
            self._ring.close()
            payload = json.dumps([self._listener.port, self._has_state, self._alike.brief])
            progressed = 2 * self.steps + self._is_even  # who is even is further than who has completed as many steps
            meeting = self._rendezvous.join(payload, progressed, agreed=agreed, timeout=timeout)
            if meeting.is_too_late and not self._is_even:
                self._end_too_late()
            self._has_state = meeting.after_joining(self._has_state)
            self._is_new |= meeting.members[meeting.rank].new
            members = [(member.address or LOOPBACK, json.loads(member.payload)[0]) for member in meeting.members]
            self._ring = Ring(self._listener, self._key, task().job, meeting.number, meeting.rank, members)
            if self._rendezvous.is_broken:  # heard before there was this ring
                self._ring.abort()
            try:
                self._ring.connect()
                self._compare(meeting)
                self._share(meeting)
            except ValueError:
                self.leave()
                raise
            except Aborted:
                agreed = False
            else:
                self._is_leaving = False
                return meeting

    def _end_too_late(self) -> NoReturn:
        self.leave()
        print("the other members have finished; there is nothing left to train", file=sys.stderr, flush=True)
        raise SystemExit(0)

    def _described(self) -> Form:
        """Return what all members must have alike. Names may differ: Keras counts the layers that a process has made."""
        trained = {id(variable) for variable in self._trainable}
        rows = [("the number of variables", str(len(self._variables)), "")]
        for number, variable in enumerate(self._variables):
            value = f"{dtype_name(variable.dtype)} {tuple(variable.shape)}" + ", trained" * (id(variable) in trained)
            rows.append((f"variable {number}", value, path_of(variable)))
        return Form(rows)

    def _compare(self, meeting: Round) -> None:
        """Raise ValueError where this member differs in what it trains, Aborted where another does that leaves."""
        _, have_state, briefs = zip(*(json.loads(member.payload) for member in meeting.members), strict=True)
        if not self._alike.is_alike(
            meeting.members, meeting.rank, briefs, have_state,
            lambda content: self._ring.all_reduce(numpy.frombuffer(content, "u1")),
        ):  # fmt: skip
            raise Aborted

    def _share(self, meeting: Round) -> None:
        """Give the state of the member that is furthest to all, where not all have it."""
        # At the beginning all have completed no step, and yet have weights of their own.
        states = [json.loads(member.payload)[1] for member in meeting.members]
        source = meeting.furthest(meeting.holders(states))
        if meeting.rank == source:
            self._rendezvous.begin_state(
                meeting.number, self.steps, lost=meeting.begins_anew(states),
                restored=self._has_state == NO_STATE and self.steps > 0,
            )  # fmt: skip
        if meeting.is_equal and min(states) == STATE:
            return
        values = [numpy.asarray(variable.numpy()) for variable in self._variables]
        state = numpy.concatenate([numpy.ascontiguousarray(value).reshape(-1).view("u1") for value in values])
        self._ring.broadcast(state, source)
        if meeting.rank != source:
            first = 0
            for variable, value in zip(self._variables, values, strict=True):
                part = state[first : first + value.nbytes]
                variable.assign(part.view(value.dtype).reshape(value.shape))
                first += value.nbytes
        self.steps, is_even = divmod(meeting.members[source].step, 2)
        self._is_even = bool(is_even)
        self._has_state = STATE

    def _report_shards(self) -> None:
        """Report what this member has done: it is in the state of all that complete this step."""
        inputs.report_at_once("members", [self._rendezvous.name, self._ring.number, self.steps])

    def _even_out(self) -> None:
        """Make the weights that are not trained, where they are floats, their mean over the members: all or none. Raises Aborted."""
        if self._is_even:
            return
        values = [numpy.asarray(variable.numpy(), "f8") for variable in self._untrained]
        total = numpy.concatenate([numpy.zeros(0), *(value.reshape(-1) for value in values)])
        self._ring.all_reduce(total)
        first = 0
        for variable, value in zip(self._untrained, values, strict=True):
            variable.assign((total[first : first + value.size] / self.size).reshape(value.shape))
            first += value.size
        self._is_even = True

    def _heard(self, word: str, number: int) -> None:
        ring = self._ring
        if word == BROKEN and ring.number == number:
            ring.abort()

    # -- gradients --

    def _step_without_batch(self, is_finishing: bool = False) -> bool:
        number = self._ring.number
        mean = self._mean(None, is_finishing)
        if mean is not None:
            self._apply(_cut(mean, self._trainable), self._trainable)
        return mean is not None or self._is_leaving or number != self._ring.number

    def _mean(self, gradients: Any, is_finishing: bool = False) -> Any:
        """Complete a step: return the mean of the members' gradients, as one vector.

        None where the others have completed the step before, or nobody had a batch. `gradients` None: this member has none.
        """
        if not self._turn.acquire(blocking=False):
            raise RuntimeError(
                "two threads take part in training at once: a dataset that waits for records must not read ahead"
            )
        try:
            return self._complete(gradients, is_finishing)
        finally:
            self._turn.release()

    def _complete(self, gradients: Any, is_finishing: bool) -> Any:
        step, self._have_all_finished = self.steps, False
        if self._is_leaving:
            self._form(agreed=True)
        count = sum(int(numpy.prod(variable.shape)) for variable in self._trainable)
        if gradients is not None and len(gradients) != count:
            raise ValueError(f"gradients of {len(gradients)} numbers, and the model's trainable variables have {count}")
        if len(self._numbers) != count + 3:
            self._numbers = numpy.zeros(count + 3, self._type)
        numbers = self._numbers
        while self.steps == step:
            numbers[:count] = 0 if gradients is None else gradients
            numbers[count:] = gradients is not None, self._rendezvous.is_wanted, is_finishing
            try:
                self._ring.all_reduce(numbers)
            except Aborted:
                if self._is_even or self._has_left:  # `finish` forms the next round, or has nobody to form it with
                    raise
                self._form()
                if self._is_new:  # the others went on without these gradients
                    step = self.steps
                continue
            with_batch, leaving, finishing = numbers[count:]
            self._is_leaving = bool(leaving)
            self._have_all_finished = finishing == self.size and not leaving
            if not with_batch:
                return None
            self.steps, self._is_even = self.steps + 1, False
            self._report_shards()
            progress(step=self.steps)
            return numbers[:count] / with_batch
        return None

    def _apply_mean(self, gradients: Any, trainable_variables: Any = None) -> None:
        """Apply the mean over the members, where `optimizer.apply` would apply this member's gradients."""
        variables = self._trainable if trainable_variables is None else list(trainable_variables)
        flat = [
            keras.ops.zeros((int(numpy.prod(variable.shape)),), self._type) if gradient is None
            else keras.ops.reshape(keras.ops.cast(keras.ops.convert_to_tensor(gradient, sparse=False), self._type), (-1,))
            for gradient, variable in zip(gradients, variables, strict=True)
        ]  # fmt: skip
        _MEANS[keras.backend.backend()](
            self._mean, keras.ops.concatenate(flat), lambda mean: self._apply(_cut(mean, variables), variables)
        )


class Callback(keras.callbacks.Callback):  # type: ignore[misc]  # of type Any where keras is not installed
    """Let `model.fit` train with all members of the role. `training` is its Training while it lasts.

    Where `fit` knows its number of steps (arrays, `steps_per_epoch`), it ends when the members together have completed `epochs` times as
    many: a newcomer begins in the epoch in which the others are. Otherwise it ends when nobody has a batch any more.
    """

    def __init__(self, *, step: int = 0, name: str = "elastic") -> None:
        super().__init__()
        self.training: Training | None = None
        self._step, self._name = step, name

    def dataset(self, name: str, size: int, parse: Callable[[list[Any]], Any], signature: Any, **options: Any) -> Any:
        """Return a `tf.data.Dataset` of the batches that `Training.batches` yields, for the `fit` that this callback is given to.

        `parse` makes of a list of records what an element is, of the form `signature` (`tf.TensorSpec`s). It reads nothing ahead, and nor
        may what the program adds to it.
        """
        import tensorflow as tf

        def elements() -> Iterator[Any]:
            assert self.training is not None, "fit has begun"
            yield from map(parse, self.training.batches(name, size, **options))

        settings = tf.data.Options()
        settings.experimental_optimization.inject_prefetch = False
        return tf.data.Dataset.from_generator(elements, output_signature=signature).with_options(settings)

    def on_train_begin(self, logs: Any = None) -> None:
        if getattr(self.model, "steps_per_execution", 1) != 1:
            raise ValueError("steps_per_execution must be 1: members come and go between two steps")
        if self.model.jit_compile:  # XLA calls no Python
            self.model.jit_compile = False
        self.training = Training(self.model, step=self._step, name=self._name)
        self.model.make_train_function(force=True)  # one that was traced before has the plain optimizer
        if self._steps():  # as Keras' own BackupAndRestore does
            self.model._initial_epoch = self.training.steps // self.params["steps"]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        assert self.training is not None
        if self._steps() and self.training.steps >= self._steps():
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        assert self.training is not None
        self.training.finish()
        self.model.train_function = None

    def _steps(self) -> int:
        """Return the number of steps of this training, 0 where it is not known."""
        return int(self.params["epochs"] * (self.params["steps"] or 0))


def _cut(mean: Any, variables: Sequence[Any]) -> list[Any]:
    """Return the parts of a vector as tensors of the form and type of the variables."""
    first, parts = 0, list[Any]()
    for variable in variables:
        end = first + int(numpy.prod(variable.shape))
        parts.append(keras.ops.cast(keras.ops.reshape(mean[first:end], variable.shape), variable.dtype))
        first = end
    return parts


def _by_tensorflow(mean: Callable[[Any], Any], gradients: Any, apply: Callable[[Any], None]) -> None:
    """Call `mean` in the middle of a step of TensorFlow, eager or in the graph of a `tf.function`."""
    import tensorflow as tf

    def call(gradients: Any) -> tuple[bool, Any]:
        numbers = mean(gradients.numpy())
        return numbers is not None, gradients if numbers is None else numbers

    is_new, numbers = tf.py_function(call, [gradients], [tf.bool, gradients.dtype])
    numbers.set_shape(gradients.shape)

    def applied() -> Any:
        apply(numbers)
        return tf.constant(0)

    tf.cond(is_new, applied, lambda: tf.constant(0))


def _by_torch(mean: Callable[[Any], Any], gradients: Any, apply: Callable[[Any], None]) -> None:
    numbers = mean(keras.ops.convert_to_numpy(gradients))
    if numbers is not None:
        apply(keras.ops.convert_to_tensor(numbers))


_MEANS: dict[str, Callable[..., None]] = {"tensorflow": _by_tensorflow, "torch": _by_torch}
