"""Rows of float32 in blocks of fixed size: the arena grows block by block, and no row moves.

Row n is in block `n // block_rows`. The pages of a new block take no memory until a row in them is written, as malloc(3) takes large
arrays from mmap(2): so the last block costs what is used of it. `Places` finds once where rows are. All arenas of a table have equally many
rows a block, so each then reads and writes with the same `Places`.
"""

from __future__ import annotations

import mmap

import numpy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from numpy.typing import NDArray

    Floats = NDArray[numpy.float32]
    Integers = NDArray[numpy.int64]

BLOCK_ROWS = 2**18  # 16 MiB a block where a row has 16 numbers
_STEP = 1024  # elements by which a short array grows at least


class Arena:
    """Rows of `width` float32. Rows that were never written hold anything."""

    def __init__(self, width: int, block_rows: int = BLOCK_ROWS) -> None:
        self.width, self.block_rows = width, block_rows
        self._blocks: list[Floats] = []

    def reserve(self, rows: int) -> None:
        """Have room for this many rows in all."""
        while len(self._blocks) * self.block_rows < rows:
            self._blocks.append(numpy.empty((self.block_rows, self.width), numpy.float32))

    def read(self, places: Places) -> Floats:
        """Return a copy of the rows, (n, width), in the order that `places` was made of."""
        if places.is_single:
            block, _, offsets = next(iter(places))
            return self._blocks[block].take(offsets, axis=0)
        values = numpy.empty((len(places), self.width), numpy.float32)
        for block, part, offsets in places:
            self._blocks[block].take(offsets, axis=0, out=values[part], mode="clip")
        return values if places.order is None else values.take(places.inverse(), axis=0)

    def copy(self, begin: int, end: int) -> Floats:
        """Return a copy of rows `begin` to `end`. A row that another thread writes meanwhile may have some of its former numbers."""
        values = numpy.empty((end - begin, self.width), numpy.float32)
        row = begin
        while row < end:
            block, offset = divmod(row, self.block_rows)
            part = self._blocks[block][offset : offset + end - row]
            values[row - begin : row - begin + len(part)] = part
            row += len(part)
        return values

    def write(self, places: Places, values: Floats) -> None:
        """Write (n, width) values, in the order that `places` was made of. A row that occurs twice gets either value."""
        values = numpy.ascontiguousarray(values, numpy.float32)
        if places.order is not None:
            values = values.take(places.order, axis=0)
        for block, part, offsets in places:
            put_rows(self._blocks[block], offsets, values[part])

    def fill(self, places: Places, value: float) -> None:
        """Write one value into all numbers of the rows."""
        for block, _, offsets in places:
            self._blocks[block][offsets] = value


class Places:
    """The blocks and offsets of n rows. `is_sorted`: the rows ascend, which spares sorting them by block."""

    def __init__(self, rows: Integers, block_rows: int, is_sorted: bool = False) -> None:
        self._size = len(rows)
        self.order: Integers | None = None
        self._parts: list[tuple[int, slice, Integers]] = []
        if not len(rows):
            return
        blocks = rows // block_rows
        first, last = (int(blocks[0]), int(blocks[-1])) if is_sorted else (int(blocks.min()), int(blocks.max()))
        if first != last and not is_sorted:
            narrow = (blocks - first).astype(
                numpy.uint16 if last - first < 2**16 else numpy.int64
            )  # 16 bits: radix sort
            self.order = narrow.argsort(kind="stable")
            rows, blocks = rows.take(self.order), blocks.take(self.order)
        begin = 0
        while begin < len(rows):
            block = int(blocks[begin])
            end = int(blocks.searchsorted(block, "right"))
            self._parts.append((block, slice(begin, end), rows[begin:end] - block * block_rows))
            begin = end

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[tuple[int, slice, Integers]]:
        """Yield each block, the slice of the sorted rows that are in it, and their offsets in it."""
        return iter(self._parts)

    @property
    def is_single(self) -> bool:
        return len(self._parts) == 1

    def inverse(self) -> Integers:
        """Return where each row lies among the sorted ones."""
        assert self.order is not None
        inverse = numpy.empty_like(self.order)
        inverse[self.order] = numpy.arange(len(self.order))
        return inverse


def put_rows(array: Floats, rows: Integers, values: Floats) -> None:
    """Write rows of (n, width) into an array of (m, width), both in C's order.

    `array[rows] = values` takes three times as long: here a row is one element.
    """
    whole_row = numpy.dtype((numpy.void, array.itemsize * array.shape[1]))
    numpy.put(array.view(whole_row), rows, values.view(whole_row), mode="clip")


def mapped(length: int, dtype: Any) -> NDArray[Any]:
    """Return an array of zeros in a mapping of its own.

    Its pages go back to the system with it, where malloc(3) may keep those of arrays of up to 32 MiB for itself.
    """
    size = length * numpy.dtype(dtype).itemsize
    return numpy.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype)


def grown(array: NDArray[Any], length: int) -> NDArray[Any]:
    """Return `array`, or where it is shorter than `length` a copy of at least twice its length; what is new in it is 0."""
    if len(array) >= length:
        return array
    larger = mapped(max(length, 2 * len(array), _STEP), array.dtype)
    larger[: len(array)] = array
    return larger
