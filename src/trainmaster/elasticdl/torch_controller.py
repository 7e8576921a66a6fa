"""ElasticDL's elastic controllers for PyTorch, on `runtime.elastic.torch_training`. Importing this module imports torch.

    controller = create_elastic_controller(batch_size=64, num_epochs=2, dataset_size=60000)
    controller.set_broadcast_model(model)
    controller.set_broadcast_optimizer(optimizer)
    train = controller.elastic_run(train_one_batch)
    with controller.scope():
        for data, target in loader:                    # of records of controller.data_shard_service
            train(model, optimizer, data, target)

`train_one_batch` is the program's: it computes gradients, and calls `optimizer.step()`. Within it that call, and `zero_grad`, do nothing:
once it returns, the gradients are averaged over all members, and the optimizer steps. Where a member dies meanwhile the others form the
next round, and a batch that is in no step is computed again. Its shard is reported once the step is complete.

While a program waits for records that others may lose, its controller takes part in their steps without a batch: in the thread that
waits, which is the program's own or, for a loader with processes, one of the service. So after the last records of others are done, at the
end of `scope`, all members have the same parameters.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from ..runtime.elastic.torch_training import _AGAIN, _COMPLETE, Training
from ..zoo.errors import BadModel
from .controllers import Controller
from .data_shards import RecordIndexService


def create_elastic_controller(
    batch_size: int, num_epochs: int | None = None, dataset_size: int | None = None, shuffle: bool = False
) -> PyTorchAllReduceController:
    """Return a controller with a RecordIndexService of its own, its `data_shard_service`."""
    return PyTorchAllReduceController(RecordIndexService(batch_size, num_epochs, dataset_size, shuffle))


class PyTorchAllReduceController(Controller):
    """The training of one PyTorch model by all members. The last argument is the data shard service."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.batch_count_per_epoch: int = self.data_shard_service.get_minibatch_count_per_epoch()
        self._resumed = 0  # batches before this training
        self._ahead: deque[Callable[[], Any]] = deque()  # batches that are to be computed
        self._current: deque[Callable[[], Any]] = deque()  # the batches of this step
        self._is_computing = False
        self._replaced: list[
            tuple[Any, str, Any]
        ] = []  # methods of model and optimizer: of whom, name, what it had of its own

    @property
    def global_completed_batch_num(self) -> int:
        """Return the number of batches, of all members, that are in complete steps."""
        done = 0 if self._training is None else self._training.batches_done
        return int(self._resumed + done)

    def set_resume_epoch(self, epoch: int) -> None:
        """Count epochs from this one on: the model comes from a checkpoint."""
        self._resumed = epoch * self.batch_count_per_epoch

    def get_current_epoch(self) -> int:
        """Return how often the batches of all members together make up the data, rounded down."""
        return self.global_completed_batch_num // self.batch_count_per_epoch

    # -- below --

    def _train_batch(self, batch: Callable[[], Any]) -> Any:
        self._ahead.append(batch)
        result = None
        while self._ahead:
            result = self._advance()
        return result

    def _step_without_batch(self) -> bool:
        self._advance()
        return True

    def _finish(self) -> None:
        while self._current or self._ahead:
            self._advance(has_ended=True)
        self.data_shard_service.close()
        training = self._begun()
        before = training._ends
        while training._ends == before:
            self._advance(has_ended=True)
        for place, name, method in self._replaced:
            place.__dict__.pop(name)
            place.__dict__.update({name: method} if method else {})

    def _advance(self, has_ended: bool = False) -> Any:
        """Compute one of the batches that are ahead, or bring a step to its end with those that there are."""
        training, result = self._begun(), None
        training._outcome = ""
        if self._ahead and len(self._current) < training._share():
            batch = self._ahead.popleft()
            self._current.append(batch)
            try:
                with training.step():
                    result = self._compute(batch)
            except BaseException:
                self._current.pop()
                self._ahead.extendleft(reversed(self._current))
                self._current.clear()
                training.undo()
                raise
        else:
            training._complete(has_ended)
        if training._outcome == _AGAIN:
            self._ahead.extendleft(reversed(self._current))
            self._current.clear()
        elif training._outcome == _COMPLETE:
            while self._current:
                self._current.popleft()
                self.data_shard_service.report_batch_done()
        return result

    def _compute(self, batch: Callable[[], Any]) -> Any:
        self._is_computing = True
        try:
            return batch()
        finally:
            self._is_computing = False

    def _make_training(self) -> Training:
        step = self.optimizer.step
        for place, name in ((self.optimizer, "step"), (self.optimizer, "zero_grad"), (self.model, "zero_grad")):
            self._replaced.append((place, name, place.__dict__.get(name)))
            setattr(place, name, MethodType(self._outside(getattr(place, name)), place))
        batches = getattr(self.optimizer, "global_batch_num_per_step", 0)
        return Training(model=self.model, optimizer=self.optimizer, update=step, batches_per_step=batches)

    def _outside(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that, while a batch is computed, only calls the closure that it is given."""

        @functools.wraps(method)
        def guarded(_: Any, *arguments: Any, **named: Any) -> Any:
            if not self._is_computing:
                return method(*arguments, **named)
            closure = arguments[0] if arguments else named.get("closure")
            return closure() if callable(closure) else None

        return guarded


class DDPController(PyTorchAllReduceController):
    """The controller of programs with `elastic_DDP` and `train_one_batch`. `model` and `optimizer` are what the program trains."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._round = 0  # in which the last batch was trained
        self._is_new_round = False

    def elastic_DDP(self, model: torch.nn.Module, func_def_optimizer: Callable[[Any], Any]) -> None:
        """Have all members train this model, with the optimizer that `func_def_optimizer(model)` makes. Only the first call does anything.

        The model goes to the GPU where there is one. It is not a DistributedDataParallel: the controller averages the gradients.
        """
        if self.model is None:
            if torch.cuda.is_available():
                model.to(torch.device("cuda", self.get_local_rank()))
            self.model, self.optimizer = model, func_def_optimizer(model)
            with self._turn:
                self._begun()

    def train_one_batch(self, func: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Return what `func`, which trains on one batch, returns: see `elastic_run`. Raises what it raises."""
        result = self._train(functools.partial(func, *arguments, **named))
        number = self._members().number
        self._is_new_round, self._round = number != self._round, number
        return result

    def is_process_group_reinit(self) -> bool:
        """Tell whether members have come or gone since the batch before the last one."""
        return self._is_new_round

    def get_rank(self) -> int:
        return int(self._members().rank)

    def get_world_size(self) -> int:
        return int(self._members().size)

    def get_local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK") or os.environ.get("TRAINMASTER_COPY") or 0)

    def get_local_size(self) -> int:
        return int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("TRAINMASTER_COPIES") or 1)

    def _members(self) -> Any:
        if self._training is None:
            raise BadModel("the controller trains nothing yet", mend="call elastic_DDP(model, optimizer_fn) before")
        return self._training._round
