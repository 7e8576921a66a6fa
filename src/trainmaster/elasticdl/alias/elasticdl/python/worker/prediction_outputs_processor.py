"""The class that a model file may derive its PredictionOutputsProcessor from."""

from abc import ABC, abstractmethod
from typing import Any


class BasePredictionOutputsProcessor(ABC):
    @abstractmethod
    def process(self, predictions: Any, worker_id: int) -> None:
        """Take the model's outputs for a batch. `worker_id`: the index of the worker that computed them."""
