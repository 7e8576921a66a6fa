"""The readers of MaxCompute tables: a model file may import them, and cannot use them."""

from typing import Any

from trainmaster.elasticdl.readers import AbstractDataReader, no_maxcompute


class ODPSDataReader(AbstractDataReader):
    def __init__(self, **kwargs: Any) -> None:
        raise no_maxcompute("ODPSDataReader")


class ParallelODPSDataReader(ODPSDataReader):
    def __init__(self, parse_fn: Any, **kwargs: Any) -> None:
        raise no_maxcompute("ParallelODPSDataReader")
