"""ElasticDL's hook for Estimators of TensorFlow: it reports records as they are trained. Importing this module imports tensorflow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .data_shards import DataShardService


class ElasticDataShardReportHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]  # of type Any where tensorflow has no types
    """Reports a batch to the service after each step of training. A batch that fails ends the program, and others get its shard."""

    def __init__(self, data_shard_service: DataShardService) -> None:
        self._data_shard_service = data_shard_service

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._data_shard_service.report_batch_done()
