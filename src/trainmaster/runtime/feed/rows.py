"""Rows of Python as batches of columns.

A row is a Row of Spark's or a dict, whose fields are the columns; a tuple, whose columns are "0", "1" and so on; or one value, the column
"value". A value is a number, a boolean, text, bytes, None, an array of NumPy, or a list of numbers, which may be nested. The first row that
has a value decides the type and the shape of its column; whole numbers also fit where fractions are expected. NumPy is used where it is
there.
"""

from __future__ import annotations

from array import array
from itertools import chain

from .layout import Column

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

ROWS = 10_000  # of a batch at most
SIZE = 1024 * 1024  # bytes of a batch, about
_CODES = {"<i8": "q", "<f8": "d", "|b1": "B"}
_WORDS = {"<i8": "a whole number", "<f8": "a number", "|b1": "a boolean", "text": "text", "bytes": "bytes"}


class WrongRow(ValueError):
    """A row does not fit the rows before it."""


def batches(rows: Iterable[Any], most: int = ROWS, size: int = SIZE) -> Iterator[list[Column]]:
    """Yield batches of up to `most` rows and about `size` bytes. Equal rows give equal batches. Raises WrongRow."""
    buffer: list[Any] = []
    weight = first = 0
    table = Table()
    for row in rows:
        buffer.append(row)
        weight += _weight(row)
        if len(buffer) == most or weight >= size:
            yield table.columns(buffer, first)
            first, weight, buffer = first + len(buffer), 0, []
    if buffer:
        yield table.columns(buffer, first)


class Table:
    """The columns of a partition: their names, types and shapes, as the first rows had them."""

    def __init__(self) -> None:
        self._names: list[str] | None = None
        self._types: dict[str, tuple[str, tuple[int, ...]]] = {}  # by column: dtype, "text" or "bytes", and shape

    def columns(self, rows: Sequence[Any], first: int) -> list[Column]:
        """Return rows as columns. `first`: the number of the first row, for messages. Raises WrongRow."""
        split = [_split(row) for row in rows]
        if self._names is None:
            self._names = list(split[0])
        for number, row in enumerate(split, first):
            if list(row) != self._names:
                raise WrongRow(
                    f"row {number:,} has the columns {', '.join(row)}, and the rows before have {', '.join(self._names)}"
                )
        return [self._column(name, [row[name] for row in split], first) for name in self._names]

    def _column(self, name: str, values: list[Any], first: int) -> Column:
        present = [value for value in values if value is not None]
        if name not in self._types and present:
            number = first + next(index for index, value in enumerate(values) if value is not None)
            self._types[name] = _type_of(present[0], name, number)
        dtype, shape = self._types.get(name, ("<f8", ()))
        validity = None if len(present) == len(values) else _bits([value is not None for value in values])
        if dtype in ("text", "bytes"):
            return _text_column(name, dtype, values, first, validity)
        filled = values if validity is None else [_zeros(shape) if value is None else value for value in values]
        return _number_column(name, dtype, shape, filled, first, validity)


def _number_column(
    name: str, dtype: str, shape: tuple[int, ...], values: list[Any], first: int, validity: bytes | None
) -> Column:
    for number, value in enumerate(values, first):
        own_type, own_shape = _type_of(value, name, number)
        if own_shape != shape or not (own_type == dtype or (dtype == "<f8" and own_type == "<i8")):
            raise WrongRow(_wrong(name, number, _words(dtype, shape), _words(own_type, own_shape)))
    if hasattr(values[0], "tobytes") or dtype not in _CODES:
        return Column(name, dtype, b"".join(value.tobytes() for value in values), shape=shape, validity=validity)
    flat: Any = values
    for _ in shape:
        flat = chain.from_iterable(flat)
    return Column(name, dtype, array(_CODES[dtype], flat), shape=shape, validity=validity)


def _text_column(name: str, kind: str, values: list[Any], first: int, validity: bytes | None) -> Column:
    expected = str if kind == "text" else (bytes, bytearray)
    for number, value in enumerate(values, first):
        if value is not None and not isinstance(value, expected):
            raise WrongRow(_wrong(name, number, _WORDS[kind], _words(*_type_of(value, name, number))))
    parts = [b"" if value is None else value.encode() if kind == "text" else bytes(value) for value in values]
    offsets = array("q", [0])
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return Column(name, "|u1", b"".join(parts), kind=kind, offsets=offsets, validity=validity)


def _split(row: Any) -> dict[str, Any]:
    if isinstance(row, dict):
        return row
    if isinstance(row, tuple):
        names = getattr(row, "__fields__", None) or map(str, range(len(row)))
        return dict(zip(names, row, strict=True))
    return {"value": row}


def _type_of(value: Any, name: str, number: int) -> tuple[str, tuple[int, ...]]:
    """Return the type and the shape of a value. Raises WrongRow where it is none that a feed carries."""
    if isinstance(value, str):
        return "text", ()
    if isinstance(value, bytes | bytearray):
        return "bytes", ()
    if isinstance(value, bool):
        return "|b1", ()
    if isinstance(value, int):
        return "<i8", ()
    if isinstance(value, float):
        return "<f8", ()
    if hasattr(value, "dtype") and hasattr(value, "tobytes") and value.dtype.kind in "biufc":
        return value.dtype.str, tuple(value.shape)
    if hasattr(value, "toArray"):  # a vector of Spark's ML
        return _type_of(value.toArray(), name, number)
    if isinstance(value, list | tuple) and value:
        types = {_type_of(part, name, number) for part in value}
        if (
            len(types) == 2
            and {dtype for dtype, _ in types} == {"<i8", "<f8"}
            and len({shape for _, shape in types}) == 1
        ):
            types = {("<f8", shape) for _, shape in types}
        if len(types) == 1 and next(iter(types))[0] in _CODES:
            [(dtype, shape)] = types
            return dtype, (len(value), *shape)
        parts = " and ".join(sorted(_words(*kind) for kind in types))
        raise WrongRow(_wrong(name, number, "a list of numbers of one shape", f"a list of {parts}"))
    kind = "an empty list" if isinstance(value, list | tuple) else type(value).__name__
    raise WrongRow(_wrong(name, number, "a number, text, bytes, an array or a list of numbers", kind))


def _wrong(name: str, number: int, expected: str, present: str) -> str:
    return f"row {number:,}, column {name!r}: expected {expected}, found {present}"


def _words(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype} of shape {shape}" if shape else _WORDS.get(dtype, dtype)


def _zeros(shape: tuple[int, ...]) -> Any:
    return [_zeros(shape[1:])] * shape[0] if shape else 0


def _bits(flags: list[bool]) -> bytes:
    return sum(flag << index for index, flag in enumerate(flags)).to_bytes((len(flags) + 7) // 8, "little")


def _weight(row: Any) -> int:
    """Return about the bytes of a row."""
    if isinstance(row, dict):
        return sum(map(_weight, row.values()))
    if isinstance(row, tuple):
        return sum(map(_weight, row))
    if isinstance(row, str | bytes | bytearray):
        return len(row)
    if isinstance(row, list):
        return len(row) * (_weight(row[0]) if row else 0)
    return int(getattr(row, "nbytes", 8))
