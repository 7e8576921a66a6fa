"""ElasticDL's names that model files import besides its layers, callbacks, readers and feature columns.

They are constants, the statistics of features that variables of the environment have, and two small pieces of a model file. The constants
of ElasticDL's own master are not here.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from ..zoo.modes import Mode as Mode

Kind = TypeVar("Kind", bound=type)


class WorkerEnv:
    MASTER_ADDR = "MASTER_ADDR"
    WORKER_ID = "WORKER_ID"
    WORKER_NUM = "WORKER_NUM"


class MaxComputeConfig:
    PROJECT_NAME = "MAXCOMPUTE_PROJECT"
    ACCESS_ID = "MAXCOMPUTE_AK"
    ACCESS_KEY = "MAXCOMPUTE_SK"
    ENDPOINT = "MAXCOMPUTE_ENDPOINT"
    TUNNEL_ENDPOINT = "MAXCOMPUTE_TUNNEL_ENDPOINT"


class JobType:
    TRAINING_ONLY = "training_only"
    EVALUATION_ONLY = "evaluation_only"
    PREDICTION_ONLY = "prediction_only"
    TRAINING_WITH_EVALUATION = "training_with_evaluation"


class MetricsDictKey:
    MODEL_OUTPUT = "output"
    LABEL = "label"


class SaveModelConfig:
    SAVED_MODEL_PATH = "saved_model_path"


class ReaderType:
    CSV_READER = "CSV"
    ODPS_READER = "ODPS"
    RECORDIO_READER = "RecordIO"


class Initializer:
    UNIFORM = "uniform"


class AnalysisEnvTemplate:
    """The names of the variables that have statistics of a feature."""

    MIN_ENV = "_{}_min"
    MAX_ENV = "_{}_max"
    AVG_ENV = "_{}_avg"
    STDDEV_ENV = "_{}_stddev"
    BUCKET_BOUNDARIES_ENV = "_{}_boundaries"
    DISTINCT_COUNT_ENV = "_{}_distinct_count"
    VOCABULARY_ENV = "_{}_vocab"


def _statistic(template: str, parse: Callable[[Any], Any]) -> Callable[[str, Any], Any]:
    """Return the function that reads a statistic of a feature, or takes the caller's default where no variable has it."""

    def read(feature_name: str, default_value: Any) -> Any:
        return parse(os.environ.get(template.format(feature_name), default_value))

    return read


get_min = _statistic(AnalysisEnvTemplate.MIN_ENV, float)
get_max = _statistic(AnalysisEnvTemplate.MAX_ENV, float)
get_avg = _statistic(AnalysisEnvTemplate.AVG_ENV, float)
get_stddev = _statistic(AnalysisEnvTemplate.STDDEV_ENV, float)
get_distinct_count = _statistic(AnalysisEnvTemplate.DISTINCT_COUNT_ENV, int)
get_vocabulary = _statistic(AnalysisEnvTemplate.VOCABULARY_ENV, lambda words: words)  # or the path of a file of words
get_bucket_boundaries = _statistic(  # they ascend, each once
    AnalysisEnvTemplate.BUCKET_BOUNDARIES_ENV,
    lambda value: sorted(set(map(float, value.split(",")))) if isinstance(value, str) else value,
)


class BasePredictionOutputsProcessor(ABC):
    """A class that a model file may derive its PredictionOutputsProcessor from."""

    @abstractmethod
    def process(self, predictions: Any, worker_id: int) -> None:
        """Take the model's outputs for a batch. `worker_id`: the index of the worker that computed them."""


def declare_model_inputs(*args: str) -> Callable[[Kind], Kind]:
    """Name the tensors that the model's `call` takes; they are kept as `_model_inputs` of the class."""

    def decorated(kind: Kind) -> Kind:
        if not args or not all(isinstance(name, str) for name in args):
            raise ValueError(f"declare_model_inputs needs one name or more, and each must be a string: {list(args)}")
        kind._model_inputs = list(args)  # type: ignore[attr-defined]
        return kind

    return decorated
