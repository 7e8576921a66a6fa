"""An embedding table: a row of float32 for each id that was ever asked for, and what the optimizer remembers of each number beside it.

A row is made at its first touch, by an initializer that depends on the seed, the table's name and the id alone. Values and slots lie in
arenas, one each, under the row number that the index gives an id. Row numbers of evicted ids are used again.

*Time* is handed in, in seconds of any clock that does not go back; of a row the last whole second of use is kept (4 bytes, so up
to the year 2106). `evict` takes the part of a second that is lost as use: it never comes early, and up to a second late.

*A refused call changes nothing*: ids, shapes and numbers are checked before the first row is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from .arena import BLOCK_ROWS, Arena, Places, grown
from .index import MISSING, Index
from .initializers import table_key
from .optimizers import update_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from numpy.typing import NDArray

    from .initializers import Initializer
    from .optimizers import Optimizer

    Floats = NDArray[numpy.float32]
    Integers = NDArray[numpy.int64]
    Seconds = NDArray[numpy.uint32]

_BATCH = 2**16  # rows that `blocks` yields at once


class BadIds(ValueError):
    """Ids that the table cannot have."""


@dataclass(frozen=True)
class Block:
    """Rows of a table as copies: ids (n,), values (n, dimension), each slot (n, dimension), the last second of use (n,)."""

    ids: Integers
    values: Floats
    slots: Mapping[str, Floats]
    last_used: Seconds


@dataclass(frozen=True)
class Memory:
    """The memory of a table in bytes. `numbers`: values and slots of the rows in it; `total`: all that the table holds."""

    rows: int
    numbers: int
    total: int

    @property
    def per_row(self) -> float:
        """The bytes of a row; 0.0 of an empty table."""
        return self.total / self.rows if self.rows else 0.0


class Table:
    """A table of rows of `dimension` float32. With `input_dim`, its ids are 0 to `input_dim` - 1; else any int64."""

    def __init__(
        self,
        name: str,
        dimension: int,
        initializer: Initializer,
        optimizer: Optimizer,
        *,
        seed: int = 0,
        input_dim: int | None = None,
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        if dimension < 1:
            raise ValueError(f"a row of table {name!r} needs at least 1 number, and dimension is {dimension}")
        self.name, self.dimension, self.input_dim, self.block_rows = name, dimension, input_dim, block_rows
        self.initializer, self.optimizer = initializer, optimizer
        self._key = table_key(seed, name)
        self._index = Index()
        self._initial = list(optimizer.slots.values())
        self._arenas = [Arena(dimension, block_rows) for _ in range(1 + len(self._initial))]  # values, then slots
        self._last_used: Seconds = numpy.empty(0, numpy.uint32)  # by row

    def __len__(self) -> int:
        return len(self._index)

    def pull(self, ids: Any, now: float = 0.0) -> Floats:
        """Return the values of n ids, which may repeat, as (n, dimension). Missing rows are made. Raises BadIds."""
        ids = self._checked_ids(ids)
        rows = self._rows(ids)
        self._last_used[rows] = int(now)
        return self._arenas[0].read(Places(rows, self.block_rows))

    def push(self, ids: Any, gradients: Any, step: int, now: float = 0.0, learning_rate: float | None = None) -> int:
        """Update the rows of n ids by gradients of (n, dimension), and return how many rows these are. Missing rows are made first.

        Gradients of one id are summed. `step` is that of the training, from 1 on. `learning_rate` replaces the
        optimizer's own. Raises BadIds, ValueError for another shape or step, FloatingPointError for a gradient that is not finite.
        """
        ids = self._checked_ids(ids)
        gradients = self._checked_gradients(gradients, len(ids))
        if step < 1:
            raise ValueError(f"the first step of table {self.name!r} is 1, and a push has step {step}")
        if not len(ids):
            return 0
        rows, sums = sum_by_row(self._rows(ids), gradients)
        self._last_used[rows] = int(now)
        update_rows(self.optimizer, self._arenas, rows, sums, step, learning_rate)
        return len(rows)

    def evict(self, unused: float, now: float) -> int:
        """Remove the rows that were not used for `unused` seconds, and return how many. Their memory is kept for new rows."""
        return len(self._index.remove(self.unused_ids(unused, now)))

    def unused_ids(self, unused: float, now: float) -> Integers:
        """Return the ids of the rows that `evict` would remove."""
        rows = self._index.rows()
        is_old = now - self._last_used[rows] - 1.0 >= unused
        return self._index.ids(rows[is_old])

    def remove(self, ids: Any) -> int:
        """Remove the rows of these ids, which must differ from each other, and return how many there were. Raises BadIds."""
        return len(self._index.remove(self._distinct(self._checked_ids(ids))))

    def ids(self) -> Integers:
        """Return the ids that have a row, ascending."""
        return numpy.sort(self._index.ids(self._index.rows()))

    def blocks(self, rows: int = _BATCH) -> Iterator[Block]:
        """Yield all rows, in copies of up to so many. What the table does meanwhile may or may not be in them."""
        all_rows = self._index.rows()
        for begin in range(0, len(all_rows), rows):
            part = all_rows[begin : begin + rows]
            places = Places(part, self.block_rows, is_sorted=True)
            values, *slots = (arena.read(places) for arena in self._arenas)
            named = dict(zip(self.optimizer.slots, slots, strict=True))
            yield Block(self._index.ids(part), values, named, self._last_used[part])

    def load(self, block: Block) -> None:
        """Take rows in, in place of those with the same ids. Raises BadIds, and ValueError where the block is of another table."""
        ids = self._distinct(self._checked_ids(block.ids))
        arrays = [block.values, *(block.slots[name] for name in self.optimizer.slots if name in block.slots)]
        shape = (len(ids), self.dimension)
        if {*block.slots} != {*self.optimizer.slots} or any(array.shape != shape for array in arrays):
            expected = ", ".join(self.optimizer.slots) or "no slots"
            present = ", ".join(
                f"{name} {array.shape}" for name, array in {"values": block.values, **block.slots}.items()
            )
            raise ValueError(f"table {self.name!r} has rows of {shape[1:]} and {expected}; the block has {present}")
        rows = self._index.lookup(ids)
        is_missing = rows == MISSING
        rows[is_missing] = self._new_rows(ids[is_missing])
        places = Places(rows, self.block_rows)
        for arena, array in zip(self._arenas, arrays, strict=True):
            arena.write(places, array)
        self._last_used[rows] = block.last_used

    @property
    def row_bytes(self) -> int:
        """The bytes of a row: its id, its last use, its numbers and their slots."""
        return self._last_used.itemsize + 8 + 4 * self.dimension * len(self._arenas)

    def missing(self, ids: Any) -> int:
        """Return how many of the ids, which should differ from each other, have no row. Raises BadIds."""
        return int(numpy.count_nonzero(self._index.lookup(self._checked_ids(ids)) == MISSING))

    def memory(self) -> Memory:
        """Return what the table takes. Pages of blocks that no row has reached yet are not counted: the system has not given them."""
        width = 4 * self.dimension * len(self._arenas)
        total = self._index.end * (width + self._last_used.itemsize) + self._index.size
        return Memory(len(self), len(self) * width, total)

    # -- rows --

    def _rows(self, ids: Integers) -> Integers:
        """Return the row numbers of the ids, and make the rows that are missing."""
        rows = self._index.lookup(ids)
        is_missing = rows == MISSING
        if is_missing.any():
            missing, places = numpy.unique(ids[is_missing], return_inverse=True)
            rows[is_missing] = self._made_rows(missing)[places]
        return rows

    def _made_rows(self, ids: Integers) -> Integers:
        """Make rows of ids that differ from each other, with their initial values, and return their numbers."""
        rows = self._new_rows(ids)
        places = Places(rows, self.block_rows)
        self._arenas[0].write(places, self.initializer.rows(self._key, ids, self.dimension))
        for arena, initial in zip(self._arenas[1:], self._initial, strict=True):
            arena.fill(places, initial)
        return rows

    def _new_rows(self, ids: Integers) -> Integers:
        """Return row numbers for ids that have none; what is in these rows is anything."""
        rows = self._index.insert(ids)
        self._last_used = grown(self._last_used, self._index.end)
        for arena in self._arenas:
            arena.reserve(self._index.end)
        return rows

    # -- checks --

    def _checked_ids(self, ids: Any) -> Integers:
        array = numpy.asarray(ids)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            raise BadIds(
                f"ids of table {self.name!r} must be whole numbers in one dimension, and are {array.dtype} of shape {array.shape}"
            )
        if self.input_dim is not None and array.size:
            self._check_range(array, self.input_dim)
        elif array.dtype == numpy.uint64 and array.size and int(array.max()) >= 2**63:
            raise BadIds(f"ids of table {self.name!r} must be below 2**63, and one is {array.max()}")
        return numpy.ascontiguousarray(array, numpy.int64)

    def _check_range(self, ids: NDArray[Any], input_dim: int) -> None:
        if int(ids.min()) >= 0 and int(ids.max()) < input_dim:
            return
        wrong = numpy.flatnonzero((ids < 0) | (ids >= input_dim))
        raise BadIds(
            f"table {self.name!r} has ids from 0 to {input_dim - 1}, and {len(wrong)} of {len(ids)} ids are outside:"
            f" the first is {ids[wrong[0]]}, at position {wrong[0]}"
        )

    def _distinct(self, ids: Integers) -> Integers:
        if len(numpy.unique(ids)) != len(ids):
            raise BadIds(f"ids of table {self.name!r} repeat within {len(ids)} ids that must differ")
        return ids

    def _checked_gradients(self, gradients: Any, count: int) -> Floats:
        array: Floats = numpy.ascontiguousarray(gradients, numpy.float32)
        if array.shape != (count, self.dimension):
            raise ValueError(
                f"table {self.name!r} needs gradients of shape {(count, self.dimension)}, and they have {array.shape}"
            )
        if not numpy.isfinite(array).all():
            wrong = numpy.flatnonzero(~numpy.isfinite(array).all(axis=1))
            raise FloatingPointError(
                f"{len(wrong)} of {count} gradients for table {self.name!r} are not finite: the first is at position {wrong[0]}"
            )
        return array


def sum_by_row(rows: Integers, gradients: Floats) -> tuple[Integers, Floats]:
    """Return the distinct rows, ascending, and the sum of the gradients of each, in an order that the batch alone decides."""
    bits = (len(rows) - 1).bit_length()
    keys = rows << bits | numpy.arange(len(rows))  # sorting keys that differ is stable, and faster than sorting stably
    keys.sort()
    order = keys & ((1 << bits) - 1)
    keys >>= bits
    is_first = numpy.empty(len(keys), bool)
    is_first[0] = True
    numpy.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    starts = numpy.flatnonzero(is_first)
    if len(starts) == len(keys):
        return keys, gradients.take(order, axis=0)
    sums = gradients.take(order[starts], axis=0)
    is_repeated = ~is_first
    is_repeated[:-1] |= is_repeated[1:]  # the first ones too, of ids that repeat
    groups = numpy.flatnonzero(is_first[is_repeated])
    sums[is_repeated[starts]] = numpy.add.reduceat(gradients.take(order[is_repeated], axis=0), groups, axis=0)
    return keys[starts], sums
