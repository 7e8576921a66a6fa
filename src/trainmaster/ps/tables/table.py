"""An embedding table: a row of float32 for each id that was ever asked for, and what the optimizer remembers of each of its numbers.

A row is made at its first touch, by an initializer that depends on the seed, the table's name and the id alone. Values and slots are in
arenas, one each, under the row number that the index gives an id. Row numbers of evicted ids are used again.

*Time* is handed in, in seconds. The table keeps the last whole second of use of each row (4 bytes, so up to the year 2106). `evict` counts
the part of a second that is lost as use: it never comes early, and up to a second late. A time before the newest one, from another
server's clock or a former process's, counts as the newest: no row that was used later looks older.

*A table can be read while it changes*: `freeze` returns its rows as they are at that moment, for another thread to copy block by block.
A call that is about to change a row puts its former numbers aside, where that thread has not come to them yet.

*A refused call changes nothing*: ids, shapes and numbers are checked before the first row is made.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy

from ..initializers import table_key
from ..optimizers import update_rows
from .arena import BLOCK_ROWS, Arena, Places, grown, put_rows
from .index import MISSING, Index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from ..initializers import Initializer
    from ..optimizers import Optimizer

    Floats = NDArray[numpy.float32]
    Integers = NDArray[numpy.int64]
    Seconds = NDArray[numpy.uint32]

LARGEST = float(numpy.finfo(numpy.float32).max)
_BATCH = 2**24  # bytes that `blocks` yields at once
_LOOKED_AT = 2**18  # rows whose use is looked at together
_AS_IT_WAS, _IS_READ = 0, -1  # what is known of a row of a `Frozen` that does not lie aside


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
        self.newest_use = 0  # the latest second of use of any row so far
        self._frozen: list[Frozen] = []  # those that have not ended

    def __len__(self) -> int:
        return len(self._index)

    def pull(self, ids: Any, now: float = 0.0) -> Floats:
        """Return the values of n ids, which may repeat, as (n, dimension). Missing rows are made. Raises BadIds."""
        ids = self._checked_ids(ids)
        rows = self._rows(ids)
        self._note_use(rows, now)
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
        self._note_use(rows, now)
        update_rows(self.optimizer, self._arenas, rows, sums, step, learning_rate, self._keep if self._frozen else None)
        return len(rows)

    def evict(self, unused: float, now: float) -> int:
        """Remove the rows that were not used for `unused` seconds, and return how many. Their memory is kept for new rows."""
        return len(self._index.remove(self.unused_ids(unused, now)))

    def unused_ids(self, unused: float, now: float) -> Integers:
        """Return the ids of the rows that `evict` would remove."""
        newest, parts = max(now, self.newest_use), []
        for begin in range(0, self._index.end, _LOOKED_AT):
            last_used = self._last_used[begin : min(begin + _LOOKED_AT, self._index.end)]
            rows = begin + numpy.flatnonzero(newest - last_used - 1.0 >= unused)
            ids = self._index.ids(rows)
            parts.append(ids[self._index.lookup(ids) == rows])  # a row that is free has the id that it had
        return numpy.concatenate(parts) if parts else numpy.empty(0, numpy.int64)

    def remove(self, ids: Any) -> int:
        """Remove the rows of these ids, which must differ from each other, and return how many there were. Raises BadIds."""
        return len(self._index.remove(self._distinct(self._checked_ids(ids))))

    def ids(self) -> Integers:
        """Return the ids that have a row, ascending."""
        return numpy.sort(self._index.ids(self._index.rows()))

    def freeze(self) -> Frozen:
        """Return the rows as they are now, until `thaw`. Both are for the table's own thread."""
        self._frozen.append(Frozen([*self.optimizer.slots], self._arenas, self._index, self._last_used))
        return self._frozen[-1]

    def thaw(self, frozen: Frozen) -> None:
        """Put no more rows aside for it."""
        self._frozen.remove(frozen)

    def blocks(self, rows: int | None = None) -> Iterator[Block]:
        """Yield all rows as they were at the first of them, in copies of up to so many; by default of 16 MiB."""
        frozen = self.freeze()
        try:
            yield from frozen.blocks(rows)
        finally:
            self.thaw(frozen)

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
        places = self._changing(rows)
        for arena, array in zip(self._arenas, arrays, strict=True):
            arena.write(places, array)
        self._last_used[rows] = block.last_used
        self.newest_use = max(self.newest_use, int(block.last_used.max(initial=0)))

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

    def _note_use(self, rows: Integers, now: float) -> None:
        self.newest_use = max(self.newest_use, int(now))
        self._last_used[rows] = self.newest_use

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
        places = self._changing(rows := self._new_rows(ids))
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

    def _changing(self, rows: Integers) -> Places:
        """Return the places of rows whose numbers are about to change, after putting these aside where they are frozen."""
        places = Places(rows, self.block_rows)
        if self._frozen:
            self._keep(rows, [arena.read(places) for arena in self._arenas])
        return places

    def _keep(self, rows: Integers, numbers: Sequence[Floats]) -> None:
        for frozen in self._frozen:
            frozen.keep(rows, numbers)

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


class Frozen:
    """The rows of a table as they were at one moment, while the table changes. It belongs to two threads.

    *Copy-on-write by rows.* The reader copies a block of rows as it is, some of them new or half written. Then it takes the former numbers
    of the rows that were put aside, and from then on none of the block are. The table's thread puts a row aside before it first changes
    it. So as much lies aside as changes before it is read, and its memory is used again block by block. Times of use and what lies
    aside take 8 bytes a row beside that.
    """

    def __init__(self, slots: Sequence[str], arenas: Sequence[Arena], index: Index, last_used: Seconds) -> None:
        self._slots, self._arenas, self._free, self._ids = slots, arenas, index.free, index.shared_ids()
        self._last_used = last_used[: index.end].copy()
        self._lock = threading.Lock()
        self._places = numpy.zeros(
            index.end + 1, numpy.int32
        )  # by row: its place in `_aside`, counted from 1; _AS_IT_WAS or _IS_READ
        self._places[-1] = _IS_READ  # for all rows that are new since then
        self._aside = [Arena(arena.width, arena.block_rows) for arena in arenas]
        self._end = 0  # of the places
        self._unused: list[Integers] = []  # places below `_end`
        self._is_interrupted = False

    def blocks(self, rows: int | None = None) -> Iterator[Block]:
        """Yield copies of up to so many rows. Raises InterruptedError after `interrupt`."""
        width = sum(arena.width for arena in self._arenas) * 4
        step = rows or max(1, _BATCH // width)
        free = numpy.sort(self._free)
        for begin in range(0, len(self._ids), step):
            if self._is_interrupted:
                raise InterruptedError("it was interrupted")
            end = min(begin + step, len(self._ids))
            arrays: list[NDArray[Any]] = [self._ids[begin:end], self._last_used[begin:end], *self._copy(begin, end)]
            missing = free[slice(*free.searchsorted([begin, end]))] - begin
            if len(missing):
                arrays = [numpy.delete(array, missing, axis=0) for array in arrays]
            ids, last_used, values, *slots = arrays
            if len(ids):
                yield Block(ids, values, dict(zip(self._slots, slots, strict=True)), last_used)

    def keep(self, rows: Integers, numbers: Sequence[Floats]) -> None:
        """Put rows aside that are about to change: `numbers` of each arena. Rows that are new since then may be among them."""
        with self._lock:
            chosen = numpy.flatnonzero(self._places.take(rows, mode="clip") == _AS_IT_WAS)
            if not len(chosen):
                return
            if len(chosen) < len(rows):
                rows, numbers = rows.take(chosen), [values.take(chosen, axis=0) for values in numbers]
            places = self._take_places(len(rows))
            self._places[rows] = places + 1
            where = Places(places, self._aside[0].block_rows)
            for arena, values in zip(self._aside, numbers, strict=True):
                arena.reserve(self._end)
                arena.write(where, values)

    def interrupt(self) -> None:
        """Have `blocks` fail, where it is not through."""
        self._is_interrupted = True

    def _copy(self, begin: int, end: int) -> list[Floats]:
        numbers = [arena.copy(begin, end) for arena in self._arenas]
        with self._lock:
            places = self._places[begin:end].copy()
            self._places[begin:end] = _IS_READ
        changed = numpy.flatnonzero(places > 0)
        if len(changed):
            aside = places.take(changed).astype(numpy.int64) - 1
            where = Places(aside, self._aside[0].block_rows)
            for array, arena in zip(numbers, self._aside, strict=True):
                put_rows(array, changed, arena.read(where))
            self._unused.append(numpy.sort(aside))
        return numbers

    def _take_places(self, count: int) -> Integers:
        """Return places that are used no more, and new ones where these are too few."""
        parts = []
        while count and self._unused:
            unused = self._unused.pop()
            if len(unused) > count:
                self._unused.append(unused[count:])
            parts.append(unused[:count])
            count -= len(parts[-1])
        self._end += count
        return numpy.concatenate([*parts, numpy.arange(self._end - count, self._end)])


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
