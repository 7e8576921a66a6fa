"""ElasticDL's elastic controller for Keras and TensorFlow 2, on `runtime.elastic.keras_training`. Importing this module imports keras.

    controller = create_elastic_controller(batch_size=64, num_epochs=2, dataset_size=60000)
    controller.set_broadcast_model(model)
    controller.set_broadcast_optimizer(optimizer)
    train = controller.elastic_run(train_one_batch)
    with controller.scope():
        for images, labels in dataset:                 # of records of controller.data_shard_service
            train(model, optimizer, images, labels)

`train_one_batch` computes gradients and calls `optimizer.apply_gradients`, which applies their mean over all members. Its records are
reported when it returns. While the program waits for records that others may lose, it takes part in their steps without a batch.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ..runtime.elastic.keras_training import Training
from ..zoo.errors import BadModel
from .data_shards import DataShardService, RecordIndexService


def create_elastic_controller(
    batch_size: int, num_epochs: int | None = None, dataset_size: int | None = None, shuffle: bool = False
) -> TensorFlowV2AllReduceController:
    """Return a controller with a RecordIndexService of its own, its `data_shard_service`."""
    return TensorFlowV2AllReduceController(RecordIndexService(batch_size, num_epochs, dataset_size, shuffle))


def DistributedOptimizer(optimizer: Any, *, fixed_global_batch_size: bool = False, **horovod: Any) -> Any:
    """Return the optimizer, for `controller.set_broadcast_optimizer`. `horovod`: what Horovod's takes besides changes nothing.

    Raises BadModel where the global batch is to stay the same: Keras models have one batch of each member in a step.
    """
    if fixed_global_batch_size:
        raise BadModel(
            "fixed_global_batch_size is not there for Keras: a step has one batch of each member",
            mend="leave it out, or train a PyTorch model",
        )
    return optimizer


class TensorFlowV2AllReduceController:
    """The training of one model by all members. The last argument is the data shard service; a client of a master before it is not used."""

    def __init__(self, *arguments: Any) -> None:
        self.data_shard_service: DataShardService = arguments[-1]
        self._model: Any = None
        self._optimizer: Any = None
        self._training: Training | None = None
        self._computed = 0  # batches
        self._is_open = False
        self._turn = threading.Lock()  # of the thread that takes part in a step
        self.data_shard_service.idle = self._take_part

    def set_broadcast_model(self, model: Any) -> None:
        self._model = model

    def set_broadcast_optimizer(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def get_current_epoch(self) -> int:
        """Return the epoch, from 0, of the records that were fetched last."""
        return self.data_shard_service.get_current_epoch()

    def elastic_run(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return `func`, which trains on one batch, as a function that does this together with all members."""

        @functools.wraps(func)
        def train(*arguments: Any, **named: Any) -> Any:
            with self._turn:
                self._begun()
                result = func(*arguments, **named)
                self.data_shard_service.report_batch_done()
                self._computed += 1
                return result

        return train

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Train in this block. At its end this member takes part until all others have come to theirs."""
        self._is_open = True
        try:
            yield
        except BaseException:
            if self._training is not None:
                self._training.leave()
            raise
        with self._turn:
            self._is_open = False
            self.data_shard_service.close()
            if self._model is not None:
                self._begun().finish()

    def _take_part(self) -> bool:
        if not self._is_open or self._model is None or self._computed < self.data_shard_service.given:
            return False
        if not self._turn.acquire(blocking=False):
            return False
        try:
            return self._begun().take_part()
        finally:
            self._turn.release()

    def _begun(self) -> Training:
        """Return the training; the first call joins the other members, and takes their state."""
        if self._training is None:
            if self._model is None or self._optimizer is None:
                raise BadModel(
                    "the controller does not know the model and its optimizer",
                    mend="call set_broadcast_model(model) and set_broadcast_optimizer(optimizer) before the first batch",
                )
            self._training = Training(self._model, self._optimizer)
        return self._training
