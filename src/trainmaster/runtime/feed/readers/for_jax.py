"""A feed as arrays of JAX. Importing this module imports jax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from .batches import choose, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..reader import Batch
    from .batches import Columns


def arrays(batches: Iterable[Batch], columns: Columns, device: Any) -> Iterator[Any]:
    """Yield the columns of each batch; see `feed.jax`."""
    for batch in batches:
        yield choose(batch, columns, lambda batch, name: _array(batch, name, device))
        del batch


def _array(batch: Batch, name: str, device: Any) -> Any:
    column = batch.columns[name]
    if column.kind != "fixed":
        return batch[name]
    if column.dtype[1] in "mM" and not jax.config.jax_enable_x64:
        return batch[name]  # as int32 it would lose its upper half
    return jax.device_put(numbers(batch, name), device)
