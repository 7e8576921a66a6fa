"""Batches of Arrow as columns, and back, without copies, except for booleans, dates, slices, and rows of tensors with nulls.

Numbers, booleans, dates, times, decimals, binary and text are columns; for structures, maps, images and vectors see `structures`. Lists of
numbers whose rows have one shape are tensors, others lists. Nulls are those of rows, not of values within lists.
"""

from __future__ import annotations

from math import prod

from .layout import Column, item_size
from .structures import IMAGE, RAGGED, VECTOR, bits, image_column, is_named, tensor, vector_column, wrong

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from typing import Any

    from .structures import Shape

_SIZES = {f"{sign}int{8 * size}": (sign or "i", size) for sign in ("", "u") for size in (1, 2, 4, 8)}
_DTYPES = {name: f"{'<' if size > 1 else '|'}{sign}{size}" for name, (sign, size) in _SIZES.items()}
_DTYPES |= {"halffloat": "<f2", "float": "<f4", "double": "<f8", "bool": "|b1", "date32[day]": "<M8[D]"}
_DTYPES |= {f"timestamp[{unit}]": f"<M8[{unit}]" for unit in ("s", "ms", "us", "ns")}
_DTYPES |= {f"duration[{unit}]": f"<m8[{unit}]" for unit in ("s", "ms", "us", "ns")}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_DTYPES |= {f"time64[{unit}]": f"<m8[{unit}]" for unit in ("us", "ns")}
_BYTES = {"binary": "bytes", "large_binary": "bytes", "string": "text", "large_string": "text"}
_STORED = {"bool": "uint8", "date32[day]": "int64"}  # what the values of these types are in a column
_LISTS = ("list<", "large_list<", "fixed_size_list<")


def batches_of(
    batches: Iterable[Any], rows: int = 0, size: int = 1024 * 1024, ragged: Collection[str] | None = ()
) -> Iterator[list[Column]]:
    """Yield the columns of `pyarrow.RecordBatch`es, cut into batches of up to `rows` (0: as many as there are) and about `size` bytes.

    `ragged`: columns that are not made tensors; None: all. Raises as `Table.columns`.
    """
    table = Table(ragged)
    for batch in batches:
        step = max(1, min(rows or batch.num_rows, batch.num_rows * size // max(batch.nbytes, 1)))
        for first in range(0, batch.num_rows, step):
            yield table.columns(batch.slice(first, step))


def record_batch(columns: Iterable[Column]) -> Any:
    """Return columns as a `pyarrow.RecordBatch` of the same memory."""
    import pyarrow

    columns = list(columns)
    return pyarrow.RecordBatch.from_arrays([_array(column) for column in columns], [column.name for column in columns])


class Table:
    """The columns of one partition: the first rows decide the shapes of tensors. `ragged`: as in `batches_of`."""

    def __init__(self, ragged: Collection[str] | None) -> None:
        self._ragged = ragged
        self._shapes: dict[str, Shape] = {}
        self._first = 0  # the number of a batch's first row

    def columns(self, batch: Any) -> list[Column]:
        """Return the columns of a `pyarrow.RecordBatch`.

        Raises TypeError, naming the column, for a type without one, and WrongRow for a wrong shape.
        """
        pairs = zip(batch.schema.names, batch.columns, strict=True)
        columns = [column for name, array in pairs for column in self._columns(name, array)]
        names = [column.name for column in columns]
        if double := {name for name in names if names.count(name) > 1}:
            raise TypeError(f"there are two columns {min(double)!r}: name the fields of structures otherwise")
        self._first += batch.num_rows
        return columns

    def _columns(self, name: str, array: Any) -> list[Column]:
        kind = str(array.type)
        if kind.startswith("dictionary<"):
            return self._columns(name, array.dictionary_decode())
        if kind.startswith("extension<"):
            return self._columns(name, array.storage)
        if kind == "null":
            return [tensor(name, "<f8", [None] * len(array), ())]
        if kind.startswith("struct<"):
            return self._fields(name, array)
        if kind.startswith("map<"):
            return [column for field in self._lists(_unsliced(array)) for column in self._list(name, *field)]
        if kind.startswith(_LISTS) and str(array.type.value_type).startswith("struct<"):
            return [
                column
                for field in self._lists(_unsliced(array))
                for column in self._columns(f"{name}.{field[0]}", field[1])
            ]
        if kind.startswith(_LISTS) and self._is_tensor(name) and _is_numeric(array.type):
            return [self._tensor(name, array)]
        return [self._column(name, array)]

    def _is_tensor(self, name: str) -> bool:
        return self._ragged is not None and not is_named(name, self._ragged)

    def _fields(self, name: str, array: Any) -> list[Column]:
        names = tuple(field.name for field in array.type)
        if self._is_tensor(name) and names in (IMAGE, VECTOR):
            rows = [None if row is None else tuple(row.values()) for row in array.to_pylist()]
            make = image_column if names == IMAGE else vector_column
            column = make(name, rows, self._first, self._shapes.get(name))
            if column.shape:
                self._shapes[name] = column.shape
            origins = [] if names == VECTOR else self._columns(f"{name}.origin", array.flatten()[0])
            return [column, *origins]
        if not names:
            raise TypeError(f"column {name!r} is a structure without fields, which a feed does not carry: leave it out")
        # `flatten` makes the fields of a null structure nulls.
        return [
            column
            for field, part in zip(names, array.flatten(), strict=True)
            for column in self._columns(f"{name}.{field}", part)
        ]

    def _lists(self, array: Any) -> Iterator[tuple[str, Any]]:
        """Yield for each field of a list of structures its name, and a list of its values."""
        import pyarrow

        kind, content = str(array.type), array.values
        names = [field.name for field in content.type]
        for name, values in zip(names, content.flatten(), strict=True):
            if kind.startswith("fixed_size_list<"):
                size, levels = pyarrow.list_(values.type, array.type.list_size), 1
            else:
                size, levels = (pyarrow.large_list if kind.startswith("large_") else pyarrow.list_)(values.type), 2
            buffers = array.buffers()[:levels]
            yield name, pyarrow.Array.from_buffers(size, len(array), buffers, array.null_count, children=[values])

    def _list(self, name: str, field: str, array: Any) -> list[Column]:
        """Return the column of the keys or values of a map, which have any length."""
        return Table(None)._columns(f"{name}.{field}", array)

    def _tensor(self, name: str, array: Any) -> Column:
        """Return lists as a column of one shape."""
        import pyarrow.compute as compute

        if "fixed_size_list<" in str(array.type):
            array = _unsliced(array)
        valid = compute.is_valid(array).to_pylist() if array.null_count else None
        level, shape = (array.drop_null() if valid else array), list[int]()
        known = self._shapes.get(name)
        while str(level.type).startswith(_LISTS):
            lengths = compute.list_value_length(level)
            size = known[len(shape)] if known else lengths[0].as_py() if len(lengths) else 0
            if level.null_count or not compute.all(compute.equal(lengths, size), min_count=0).as_py():
                raise self._wrong_shape(name, array, known)
            shape.append(size)
            level = level.flatten()
        if level.null_count:
            raise self._null_within(name, array)
        if len(array) == (valid or []).count(False):  # nulls alone: the shape is not known
            return tensor(name, "<f8", [None] * len(array), ())
        if 0 in shape:
            raise self._wrong_shape(name, array, known)
        self._shapes[name] = tuple(shape)
        column = self._column(name, level)
        values: Any = column.values
        if valid:
            size = item_size(column.dtype) * prod(shape)
            content, values = iter(range(0, len(values), size)), bytearray()
            for is_valid in valid:
                at = next(content) if is_valid else 0
                values += column.values[at : at + size] if is_valid else bytes(size)
        return Column(
            name, column.dtype, values, shape=shape, detail=column.detail, validity=bits(valid) if valid else None
        )

    def _wrong_shape(self, name: str, array: Any, known: Shape | None) -> Exception:
        """Return the error for the first row that has another shape."""
        kind, rows = str(_leaf(array.type)), array.to_pylist()
        for number, row in enumerate(rows, self._first):
            if row is None:
                continue
            if _has_null(row):
                return self._null_within(name, array)
            try:
                shape = _shape(row)
            except ValueError:
                return wrong(name, number, f"{kind} of one shape", f"lists of different lengths; {RAGGED}")
            if 0 in shape:
                return wrong(
                    name,
                    number,
                    f"{kind} of shape {known}" if known else "lists of numbers",
                    f"an empty list; {RAGGED}",
                )
            known = known or shape
            if shape != known:
                return wrong(name, number, f"{kind} of shape {known}", f"{kind} of shape {shape}; {RAGGED}")
        return self._null_within(name, array)

    def _null_within(self, name: str, array: Any) -> TypeError:
        rows = enumerate(array.to_pylist(), self._first)
        number = next((number for number, row in rows if row is not None and _has_null(row)), self._first)
        return TypeError(
            f"row {number:,}, column {name!r} has nulls within its lists, which a feed does not carry: fill them"
        )

    def _column(self, name: str, array: Any) -> Column:
        """Return a column whose lists stay as they are."""
        import pyarrow

        has_values_alone = pyarrow.types.is_primitive(array.type) and not array.null_count
        array, whole = (array if has_values_alone else _unsliced(array)), array
        count = len(array)
        shape: list[int] = []
        levels: list[tuple[Any, int]] = []  # buffer, and bytes of an offset
        options: dict[str, Any] = {
            "validity": _cut(array.buffers()[0], (count + 7) // 8, 1) if array.null_count else None
        }
        while (kind := str(array.type)).startswith(("list<", "large_list<", "fixed_size_binary[")) or kind in _BYTES:
            if kind.startswith("fixed_size_binary["):
                array, kind = array.cast(pyarrow.binary()), "binary"
            width = 8 if str(array.type).startswith("large_") else 4
            level = _cut(array.buffers()[1], len(array) + 1, width) or bytes(width)  # of no rows Arrow may have none
            levels.append((level, width))
            end = memoryview(level).cast("B").cast("q" if width == 8 else "i")[-1]
            if kind in _BYTES:
                content, options["kind"] = _cut(array.buffers()[2], end, 1), _BYTES[kind]
                return Column(name, "|u1", content, **_offsets(levels), **options)
            array = self._elements(name, array, end, whole)
        while str(array.type).startswith("fixed_size_list<"):
            shape.append(array.type.list_size)
            array = self._elements(name, array, len(array) * array.type.list_size, whole)
        if levels:
            options |= {"kind": "list", **_offsets(levels)}
        dtype, array, detail = _stored(name, array)
        values = _cut(array.buffers()[1], len(array), item_size(dtype), array.offset)
        return Column(name, dtype, values, shape=shape, detail=detail, **options)

    def _elements(self, name: str, array: Any, count: int, whole: Any) -> Any:
        """Return the first `count` elements of an array of lists."""
        if (
            array.values.null_count and array.flatten().null_count
        ):  # `flatten` leaves out the places of lists that are null themselves
            raise self._null_within(name, whole)
        return _unsliced(array.values.slice(0, count))


def _stored(name: str, array: Any) -> tuple[str, Any, str]:
    """Return the type of an array of values, an array whose buffer has them as a column stores them, and the detail of the type."""
    import pyarrow

    kind, detail = str(array.type), ""
    if kind == "null":
        return "<f8", pyarrow.nulls(len(array), "float64"), ""
    if kind.startswith("decimal128("):
        return "|V16", array, f"{array.type.precision},{array.type.scale}"
    if kind.startswith("timestamp["):
        kind, _, zone = kind.partition(", tz=")
        kind, detail = (f"{kind}]", zone[:-1]) if zone else (kind, "")
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise TypeError(
            f"column {name!r} has the type {array.type}, which a feed does not carry: cast it to one that it does"
        )
    if kind == "date32[day]":
        array = array.cast("int32")
    if kind.startswith("time64["):
        detail = "time"
    return dtype, array.cast(_STORED[kind]) if kind in _STORED else array, detail


def _offsets(levels: list[tuple[Any, int]]) -> dict[str, Any]:
    """Return the levels of offsets of one width."""
    from array import array

    if len({width for _, width in levels}) > 1:
        wide = [
            (array("q", memoryview(level).cast("B").cast("q" if width == 8 else "i")), 8) for level, width in levels
        ]
        return _offsets(wide)
    return {"offsets": levels[0][0], "inner": [level for level, _ in levels[1:]], "offsets_dtype": f"<i{levels[0][1]}"}


def _is_numeric(kind: Any) -> bool:
    """Tell whether the values within lists can be those of a tensor."""
    leaf = str(_leaf(kind))
    return leaf in _DTYPES or leaf.startswith(("decimal128(", "timestamp["))


def _leaf(kind: Any) -> Any:
    while str(kind).startswith(_LISTS):
        kind = kind.value_type
    return kind


def _shape(value: Any) -> Shape:
    """Return the shape of lists. Raises ValueError where they have none."""
    if not isinstance(value, list):
        return ()
    shapes = {_shape(part) for part in value}
    if len(shapes) > 1:
        raise ValueError
    return (len(value), *next(iter(shapes), ()))


def _has_null(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(_has_null, value)))


def _unsliced(array: Any) -> Any:
    """Return an array whose buffers begin with its own values."""
    import pyarrow

    # `take` gives other rows of a sliced array whose lists of a fixed size lie within each other (seen with pyarrow 26).
    return pyarrow.concat_arrays([array.slice(0, 0), array]) if array.offset else array


def _cut(buffer: Any, count: int, width: int, first: int = 0) -> Any:
    """Return the bytes of so many values from a first one on: buffers are often longer."""
    return b"" if buffer is None else memoryview(buffer)[first * width : (first + count) * width]


def _array(column: Column) -> Any:
    import pyarrow

    validity = None if column.validity is None else pyarrow.py_buffer(column.validity)
    values, is_large = pyarrow.py_buffer(column.values), column.offsets_dtype == "<i8"
    levels = [pyarrow.py_buffer(level) for level in (column.offsets, *column.inner) if level is not None]
    rows = [len(level) - 1 for level in column.levels]
    if column.kind in ("bytes", "text"):
        alias = ("large_" if is_large else "") + {"bytes": "binary", "text": "string"}[column.kind]
        count, offsets = rows.pop(), levels.pop()
        buffers = [None if levels else validity, offsets, values]
        array = pyarrow.Array.from_buffers(pyarrow.type_for_alias(alias), count, buffers)
    else:
        array = _values(column, values, validity, bool(levels))
    while levels:
        count, offsets = rows.pop(), levels.pop()
        kind = pyarrow.large_list(array.type) if is_large else pyarrow.list_(array.type)
        array = pyarrow.Array.from_buffers(kind, count, [None if levels else validity, offsets], children=[array])
    return array


def _values(column: Column, values: Any, validity: Any, is_inner: bool) -> Any:
    """Return the values, or the groups of them, as an array. `is_inner`: they are in lists, to which the nulls belong."""
    import pyarrow

    count = column.values.nbytes // item_size(column.dtype)
    shape = list(reversed(column.shape))
    place = [None if shape or is_inner else validity, values]  # nulls are those of rows, and so of the outermost level
    array = pyarrow.Array.from_buffers(_stored_type(column), count, place)
    name = _NAMES.get(column.dtype, "")
    if name == "bool":
        array = array.cast("bool")
    if name == "date32[day]":
        array = array.cast("int32").cast("date32")
    for depth, size in enumerate(shape, 1):
        count //= size
        nulls = validity if depth == len(shape) and not is_inner else None
        array = pyarrow.Array.from_buffers(pyarrow.list_(array.type, size), count, [nulls], children=[array])
    return array


def _stored_type(column: Column) -> Any:
    import pyarrow

    if column.dtype == "|V16":
        return pyarrow.decimal128(*map(int, column.detail.split(",")))
    name = _NAMES[column.dtype]
    if name.startswith("timestamp["):
        return pyarrow.timestamp(name[10:-1], column.detail or None)
    if column.detail == "time":
        return pyarrow.time64(name[9:-1])
    return pyarrow.type_for_alias(_STORED.get(name, name))
