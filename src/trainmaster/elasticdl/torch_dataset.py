"""ElasticDL's folder of images, whose records a data shard service chooses. Importing this module imports torchvision."""

from __future__ import annotations

import sys
from typing import Any

from torchvision.datasets import ImageFolder

from .data_shards import RecordIndexService


class ElasticImageFolder(ImageFolder):  # type: ignore[misc]  # of type Any where torchvision is not installed
    """A torchvision ImageFolder. With a service it has no end of its own: the loader reads until all records of the job are done."""

    _data_shard_service: RecordIndexService | None = None

    def set_data_shard_service(self, data_shard_service: RecordIndexService) -> None:
        self._data_shard_service = data_shard_service

    def __len__(self) -> int:
        return int(super().__len__()) if self._data_shard_service is None else sys.maxsize

    def __getitem__(self, index: int) -> Any:
        service = self._data_shard_service
        return super().__getitem__(index if service is None else service.fetch_record_index())
