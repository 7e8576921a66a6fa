"""A hash index: the row number of each id, for many ids in one call.

*Theory.* The index is an open-addressing table of row numbers, in a power of two of slots. The ids themselves are stored once, by row
number: a lookup compares the id at the row that a slot names. The slot of an id is the top bits of a multiplicative hash (Knuth, TAOCP 3,
6.4) of the id folded upon itself. Where that slot has another id, the search goes 1, 2, 3, ... slots further (triangular probing, which
reaches every slot of a power of two). It ends at the id or at an EMPTY slot. A removed id leaves REMOVED, and a search goes on past that.

A call takes one step of all its ids at a time, and goes on with those that have not reached their end: two or three steps decide nearly
all of them, and every step is a few calls of NumPy.

*Invariants.* At most `_FULLEST` of the slots are not EMPTY. Each row number is either that of one id or free, and free ones are reused
before new ones are made. Row numbers take 4 bytes until there are 2**31 of them, then 8.
"""

from __future__ import annotations

import numpy

from .arena import grown, mapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Integers = NDArray[numpy.int64]

MISSING = -1  # the row number of an id that the index does not hold
_EMPTY, _REMOVED = -1, -2  # slots without a row
_FULLEST = 2 / 3  # share of slots that are not EMPTY, at which the table is rebuilt
_EMPTIEST = 1 / 2  # the largest share of slots that are in use after it is rebuilt
_SMALLEST = 64  # slots
_GOLDEN = numpy.uint64(0x9E3779B97F4A7C15)  # 2**64 / the golden ratio, odd
_FOLD = numpy.uint64(32)
_CHUNK = 2**20  # slots that are moved at once when the table is rebuilt


class Index:
    """Row numbers by id. Any int64 is an id."""

    def __init__(self) -> None:
        self._ids: Integers = numpy.empty(0, numpy.int64)  # by row
        self._slots: NDArray[Any] = numpy.full(_SMALLEST, _EMPTY, numpy.int32)
        self._in_use = self._removed = 0  # slots
        self.free: Integers = numpy.empty(
            0, numpy.int64
        )  # row numbers below `end` that no id has; never changed in place
        self.end = 0  # row numbers made so far
        self._is_shared = False  # the array of ids, which is copied before the id of a row number changes

    def __len__(self) -> int:
        return self._in_use

    def lookup(self, ids: Integers) -> Integers:
        """Return the row number of each id, MISSING where there is none."""
        return self._search(ids)[1]

    def insert(self, ids: Integers) -> Integers:
        """Give each id a row number, and return these. The ids must differ from each other and from those in the index."""
        rows = self._take_rows(len(ids))
        self._ids[rows] = ids
        is_full = self._in_use + self._removed + len(ids) > _FULLEST * len(self._slots)
        if is_full or self.end - 1 > numpy.iinfo(self._slots.dtype).max:
            self._rebuild(self._in_use + len(ids))
        self._place(ids, rows)
        self._in_use += len(ids)
        return rows

    def remove(self, ids: Integers) -> Integers:
        """Remove those ids that the index holds, and return the row numbers that became free. The ids must differ from each other."""
        positions, rows = self._search(ids)
        is_held = rows != MISSING
        freed: Integers = rows[is_held]
        self._slots[positions[is_held]] = _REMOVED
        self._in_use -= len(freed)
        self._removed += len(freed)
        self.free = numpy.concatenate([self.free, freed])
        return freed

    def rows(self) -> Integers:
        """Return the row numbers that ids have, ascending."""
        rows: Integers = self._slots[self._slots >= 0].astype(numpy.int64)
        rows.sort()
        return rows

    def ids(self, rows: Integers) -> Integers:
        """Return the ids that have these row numbers."""
        ids: Integers = self._ids[rows]
        return ids

    def shared_ids(self) -> Integers:
        """Return the ids by row number, those of free ones too. The array stays as it is."""
        self._is_shared = True
        ids: Integers = self._ids[: self.end]
        return ids

    @property
    def size(self) -> int:
        """The bytes of the slots, the ids and the list of free rows."""
        return self._slots.nbytes + self.end * self._ids.itemsize + self.free.nbytes

    def _search(self, ids: Integers) -> tuple[Integers, Integers]:
        """Return the slot at which the search for each id ends, and the row number that it holds."""
        positions = self._first_slots(ids)
        rows = self._slots.take(positions)
        if not self.end:
            return positions, rows.astype(numpy.int64)
        pending = numpy.flatnonzero(self._goes_on(rows, ids))
        step = 0
        while len(pending):
            step += 1
            further = (positions.take(pending) + step) & (len(self._slots) - 1)
            contents = self._slots.take(further)
            positions[pending], rows[pending] = further, contents
            pending = pending[self._goes_on(contents, ids.take(pending))]
        return positions, rows.astype(numpy.int64)

    def _goes_on(self, rows: NDArray[Any], ids: Integers) -> NDArray[numpy.bool_]:
        """Tell for which ids the slot, which holds this row, is not the last one to look at."""
        goes_on: NDArray[numpy.bool_] = (
            self._ids.take(rows, mode="clip") != ids
        )  # of a slot without a row: the id of row 0
        goes_on &= rows != _EMPTY
        if self._removed:
            goes_on |= rows == _REMOVED
        return goes_on

    def _first_slots(self, ids: Integers) -> Integers:
        bits = len(self._slots).bit_length() - 1
        folded = ids.view(numpy.uint64)
        folded = folded ^ (folded >> _FOLD)
        folded *= _GOLDEN
        folded >>= numpy.uint64(64 - bits)
        return folded.view(numpy.int64)

    def _take_rows(self, count: int) -> Integers:
        """Return free row numbers, and new ones where these are too few."""
        kept = max(0, len(self.free) - count)
        reused, self.free = self.free[kept:], self.free[:kept].copy()
        end = self.end + count - len(reused)
        if self._is_shared and len(reused):
            self._ids, self._is_shared = self._ids.copy(), False
        self._ids = grown(self._ids, end)
        rows = numpy.concatenate([reused, numpy.arange(self.end, end, dtype=numpy.int64)])
        self.end = end
        return rows

    def _rebuild(self, count: int) -> None:
        """Make a table for `count` ids, without REMOVED slots."""
        size = _SMALLEST
        while count > _EMPTIEST * size:
            size *= 2
        former = self._slots
        self._slots = mapped(size, self._row_type())
        self._slots.fill(_EMPTY)
        self._removed = 0
        for begin in range(0, len(former), _CHUNK):
            rows = former[begin : begin + _CHUNK]
            rows = rows[rows >= 0].astype(numpy.int64)
            self._place(self._ids.take(rows), rows)

    def _row_type(self) -> type[Any]:
        return numpy.int32 if self.end <= numpy.iinfo(numpy.int32).max else numpy.int64

    def _place(self, ids: Integers, rows: Integers) -> None:
        """Write each row number into the first slot on its id's way that no row is in."""
        positions = self._first_slots(ids)
        step = 0
        while len(rows):
            contents = self._slots.take(positions)
            vacant = contents < 0
            self._slots[positions[vacant]] = rows[vacant]
            lost = self._slots.take(positions) != rows  # to a row that was there, or to one that wanted the same slot
            if self._removed:
                self._removed -= int(numpy.count_nonzero(contents[~lost] == _REMOVED))
            step += 1
            rows, positions = rows[lost], (positions[lost] + step) & (len(self._slots) - 1)
