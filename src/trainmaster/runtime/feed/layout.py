"""A batch as bytes: a header, and the buffers of its columns.

    length of the header (8 bytes) | header (JSON) | buffers, each from a multiple of 64 bytes on

A column is *fixed*, each row being `shape` values of `dtype` (as NumPy writes it, "<f4"), or varies in length: its row n is then the values
(or, with a shape, the groups of values) from `offsets[n]` to `offsets[n + 1]`. These are a "list", "bytes", or "text" in UTF-8. Lists
within lists have a level of offsets each: `offsets` counts in the first of `inner`, that one in the next, the last one in the values; lists
of bytes or text have one more for the bytes. `validity` has a bit per row, the lowest bit first, that is 0 where the row is null. So
buffers are those of Arrow's columnar format, but that a boolean takes a byte and a date eight, as in NumPy.

A decimal is a whole number of 16 bytes, "|V16". `detail` says the rest of a type: of a decimal precision and scale ("10,2"), of a moment
its time zone (the values are those of UTC), and "time" of a duration that is a time of day.
"""

from __future__ import annotations

import json
import re
import struct
from array import array
from itertools import islice
from math import prod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

ALIGNMENT = 64
KINDS = ("fixed", "list", "bytes", "text")
_LENGTH = struct.Struct("<Q")
_DTYPE = re.compile(r"[<|](?P<kind>[biufcmMV])(?P<size>\d+)(\[\w+\])?")
OFFSETS = ("<i4", "<i8")


class Column:
    """One column of a batch. `values`, `offsets` and `validity` are objects with buffers. Raises ValueError where these disagree."""

    __slots__ = (
        "detail",
        "dtype",
        "inner",
        "kind",
        "name",
        "offsets",
        "offsets_dtype",
        "rows",
        "shape",
        "validity",
        "values",
    )

    def __init__(
        self,
        name: str,
        dtype: str,
        values: Any,
        *,
        shape: Sequence[int] = (),
        kind: str = "fixed",
        offsets: Any = None,
        inner: Sequence[Any] = (),
        offsets_dtype: str = "<i8",
        validity: Any = None,
        detail: str = "",
    ) -> None:
        self.name, self.dtype, self.shape, self.kind, self.detail = name, dtype, tuple(shape), kind, detail
        self.values, self.offsets_dtype = _bytes_of(values), offsets_dtype
        self.offsets = None if offsets is None else _bytes_of(offsets)
        self.inner = [_bytes_of(level) for level in inner]
        self.validity = None if validity is None else _bytes_of(validity)
        self.rows = self._count_rows()

    @property
    def buffers(self) -> list[memoryview]:
        return [buffer for buffer in (self.values, self.offsets, *self.inner, self.validity) if buffer is not None]

    @property
    def levels(self) -> list[memoryview]:
        """Return the offsets of each level as sequences of numbers, the outermost first."""
        return [] if self.offsets is None else [self._numbers(level) for level in (self.offsets, *self.inner)]

    def describe(self) -> list[Any]:
        """Return all but the buffers, for JSON."""
        present = [buffer is not None for buffer in (self.offsets, self.validity)]
        return [
            self.name,
            self.dtype,
            self.shape,
            self.kind,
            self.offsets_dtype,
            *present,
            len(self.inner),
            self.detail,
        ]

    def cut(self, first: int, end: int) -> Column:
        """Return the rows from `first` up to `end`, as views of the same memory; only the bits of validity are copied."""
        validity = None
        if self.validity is not None:
            bits = int.from_bytes(self.validity, "little") >> first & (1 << end - first) - 1
            validity = bits.to_bytes((end - first + 7) // 8, "little")
        if self.offsets is not None:
            width = item_size(self.offsets_dtype)
            return self.holding(
                self.values, self.offsets[first * width : (end + 1) * width], self.inner, validity=validity
            )
        size = item_size(self.dtype) * prod(self.shape)
        return self.holding(self.values[first * size : end * size], validity=validity)

    def holding(self, values: Any, offsets: Any = None, inner: Sequence[Any] = (), **options: Any) -> Column:
        """Return a column of this name and type with other buffers."""
        options = {"offsets_dtype": self.offsets_dtype, **options}
        return Column(
            self.name, self.dtype, values, shape=self.shape, kind=self.kind, offsets=offsets, inner=inner, detail=self.detail, **options
        )  # fmt: skip

    def _numbers(self, offsets: memoryview) -> memoryview:
        return offsets.cast("i") if self.offsets_dtype == "<i4" else offsets.cast("q")

    def _count_rows(self) -> int:
        element = item_size(self.dtype) * prod(self.shape)
        if (
            self.kind not in KINDS
            or self.offsets_dtype not in OFFSETS
            or (self.kind == "fixed") != (self.offsets is None)
            or (self.offsets is None and self.inner)
        ):
            raise ValueError(f"column {self.name!r}: {self.kind!r} with offsets {self.offsets_dtype} is not a column")
        if element < 1 or len(self.values) % element:
            raise ValueError(
                f"column {self.name!r}: {len(self.values)} bytes are not a multiple of {self.dtype} of shape {self.shape}"
            )
        rows = len(self.values) // element
        for level in [] if self.offsets is None else [*reversed(self.inner), self.offsets]:
            if len(level) % item_size(self.offsets_dtype):
                raise ValueError(f"column {self.name!r}: {len(level)} bytes are not offsets of {self.offsets_dtype}")
            offsets = self._numbers(level)
            if not len(offsets) or offsets[0] < 0 or offsets[-1] > rows:
                raise ValueError(f"column {self.name!r}: the offsets do not fit the {rows} values")
            rows = len(offsets) - 1
        if self.validity is not None and len(self.validity) < (rows + 7) // 8:
            raise ValueError(
                f"column {self.name!r}: {len(self.validity)} bytes of validity are too few for {rows} rows"
            )
        return rows


def column_of(name: str, array: Any, validity: Any = None) -> Column:
    """Return the column of a NumPy array: a row for each element of its first axis. A copy only where its memory is in another order."""
    array = array if array.flags.c_contiguous else array.copy(order="C")
    values = array.view("i8") if array.dtype.kind in "mM" else array  # NumPy gives no buffers of times
    return Column(name, array.dtype.str, values, shape=array.shape[1:], validity=validity)


def join(parts: Sequence[Column]) -> Column:
    """Return the rows of several columns of one name as one column: a copy. Raises ValueError where their types differ."""
    like = next((part for part in parts if not _is_empty(part)), parts[0])
    parts = [part if _type(part) == _type(like) or not _is_empty(part) else _nulls(part.rows, like) for part in parts]
    for part in parts:
        if _type(part) != _type(like):
            raise ValueError(f"column {like.name!r}: expected {_type(like)} as in the rows before, found {_type(part)}")
    options: dict[str, Any] = {"validity": _joined_validity(parts), "offsets_dtype": "<i8"}
    if like.offsets is None:
        return like.holding(
            bytearray().join(part.values for part in parts), **options
        )  # to be written to, as the ring is
    levels = [array("q", [0]) for _ in like.levels]
    values, size = [], item_size(like.dtype) * prod(like.shape)
    for part in parts:
        first, end = 0, part.rows
        for level, offsets in zip(levels, part.levels, strict=True):
            base = level[-1] - offsets[first]
            level.extend(offset + base for offset in islice(offsets, first + 1, end + 1))
            first, end = offsets[first], offsets[end]
        values.append(part.values[first * size : end * size])
    return like.holding(bytearray().join(values), levels[0], levels[1:], **options)


def _type(column: Column) -> str:
    shape = f" of shape {column.shape}" if column.shape else ""
    kind = "" if column.kind == "fixed" else f"{len(column.levels)} levels of {column.kind} of "
    return f"{kind}{column.dtype}{shape}" + (f" ({column.detail})" if column.detail else "")


def _is_empty(column: Column) -> bool:
    """Tell whether no row has a value: the type is then that of any column of nulls."""
    return column.validity is not None and not int.from_bytes(column.validity, "little") & (1 << column.rows) - 1


def _nulls(rows: int, like: Column) -> Column:
    validity = bytes((rows + 7) // 8)
    if like.offsets is None:
        return like.holding(bytes(rows * item_size(like.dtype) * prod(like.shape)), validity=validity)
    width = item_size(like.offsets_dtype)
    return like.holding(b"", bytes((rows + 1) * width), [bytes(width)] * len(like.inner), validity=validity)


def _joined_validity(parts: Sequence[Column]) -> bytes | None:
    if all(part.validity is None for part in parts):
        return None
    bits = rows = 0
    for part in parts:
        every = (1 << part.rows) - 1
        bits |= (every if part.validity is None else int.from_bytes(part.validity, "little") & every) << rows
        rows += part.rows
    return bits.to_bytes((rows + 7) // 8, "little")


class Layout:
    """The places of the columns of a batch. `size` is that of the whole batch in bytes, `rows` its number of rows."""

    def __init__(self, columns: Sequence[Column]) -> None:
        if len({column.rows for column in columns}) != 1:
            counts = ", ".join(f"{column.name!r}: {column.rows}" for column in columns) or "none"
            raise ValueError(f"the columns of a batch need the same number of rows ({counts})")
        self.rows = columns[0].rows
        self._buffers = [buffer for column in columns for buffer in column.buffers]
        header = [[len(buffer) for buffer in self._buffers], [column.describe() for column in columns]]
        self._header = json.dumps(header, separators=(",", ":")).encode()
        self._places, self.size = _places(len(self._header), self._buffers)

    def write(self, memory: memoryview) -> None:
        """Write the batch into `size` bytes of memory."""
        begin = _LENGTH.size
        memory[:begin] = _LENGTH.pack(len(self._header))
        memory[begin : begin + len(self._header)] = self._header
        for place, buffer in zip(self._places, self._buffers, strict=True):
            memory[place : place + len(buffer)] = buffer


def read(memory: memoryview) -> list[Column]:
    """Return the columns of a batch as views of its memory. Raises ValueError where the bytes are not a batch."""
    (length,) = _LENGTH.unpack_from(memory)
    lengths, descriptions = json.loads(bytes(memory[_LENGTH.size : _LENGTH.size + length]))
    places, size = _places(length, [range(length) for length in lengths])
    if size > len(memory):
        raise ValueError(f"a batch of {size} bytes does not fit {len(memory)}")
    buffers = (memory[place : place + length] for place, length in zip(places, lengths, strict=True))
    columns = []
    for name, dtype, shape, kind, offsets_dtype, has_offsets, is_nullable, levels, detail in descriptions:
        values = next(buffers)
        offsets = next(buffers) if has_offsets else None
        inner = list(islice(buffers, levels))
        validity = next(buffers) if is_nullable else None
        columns.append(
            Column(
                name, dtype, values, shape=shape, kind=kind, offsets=offsets, inner=inner, offsets_dtype=offsets_dtype, validity=validity,
                detail=detail,
            )
        )  # fmt: skip
    return columns


def item_size(dtype: str) -> int:
    """Return the bytes of one value. Raises ValueError where `dtype` is not the type of a column."""
    if (match := _DTYPE.fullmatch(dtype)) is None:
        raise ValueError(f"{dtype!r} is not the type of a column, such as '<f4'")
    return int(match["size"])


def _places(header: int, buffers: Sequence[Any]) -> tuple[list[int], int]:
    """Return where each buffer begins, behind a header of so many bytes, and where the last one ends."""
    places, end = [], _LENGTH.size + header
    for buffer in buffers:
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        places.append(begin)
        end = begin + len(buffer)
    return places, end


def _bytes_of(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError("a column needs contiguous memory, in C's order")
    return view.cast("B") if view.nbytes else memoryview(b"")
