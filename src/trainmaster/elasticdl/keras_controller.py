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

from collections.abc import Callable
from typing import Any

from ..runtime.elastic.keras_training import Training
from ..zoo.errors import BadModel
from .controllers import Controller
from .data_shards import RecordIndexService


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


class TensorFlowV2AllReduceController(Controller):
    """The training of one Keras model by all members. The last argument is the data shard service."""

    def get_current_epoch(self) -> int:
        """Return the epoch, from 0, of the records that were fetched last."""
        return self.data_shard_service.get_current_epoch()

    def _make_training(self) -> Training:
        return Training(self.model, self.optimizer)

    def _train_batch(self, batch: Callable[[], Any]) -> Any:
        self._begun()
        result = batch()
        self.data_shard_service.report_batch_done()
        return result

    def _step_without_batch(self) -> bool:
        return bool(self._begun().take_part())

    def _finish(self) -> None:
        self.data_shard_service.close()
        self._begun().finish()
