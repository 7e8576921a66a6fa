"""A feed as a dataset of PyTorch, whose elements are batches already. Importing this module imports torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from .batches import choose, numbers

if TYPE_CHECKING:
    from ..reader import Batch
    from .batches import Columns

log = logging.getLogger(__name__)


class FeedDataset(IterableDataset[Any]):
    """The batches that `begin` returns; see `feed.torch`. Iterating again goes on behind what was read."""

    def __init__(self, begin: Callable[[], Iterator[Batch]], columns: Columns) -> None:
        self._begin, self._columns = begin, columns
        self._batches: Iterator[Batch] | None = None

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is not None and worker.id:
            log.warning(
                "a feed has one reader: worker %d of the DataLoader has nothing to read, worker 0 has all", worker.id
            )
            return
        if self._batches is None:
            self._batches = self._begin()
        for batch in self._batches:
            yield choose(batch, self._columns, _tensor)
            del batch


def _tensor(batch: Batch, name: str) -> Any:
    if batch.columns[name].kind == "fixed":
        return torch.from_numpy(numbers(batch, name))
    return [_nested(row) for row in batch[name]]


def _nested(row: Any) -> Any:
    """Return a row of any length: its numbers as a tensor, all else as it is."""
    if isinstance(row, list):
        return [_nested(part) for part in row]
    if not hasattr(row, "dtype"):
        return row
    plain = row.astype("f8") if row.dtype.kind == "O" else row.view("i8") if row.dtype.kind in "mM" else row
    return torch.from_numpy(plain)
