"""Batches of Arrow as columns, and back, without copies but for booleans and for slices.

A column has numbers, booleans, timestamps or durations (without time zones), or lists of these; or binary, or text. Lists of a fixed
size may lie within each other, and within one of another kind. Nulls are those of rows, not of values within lists.
"""

from __future__ import annotations

import re

from .layout import Column, item_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_SIZES = {f"{sign}int{8 * size}": (sign or "i", size) for sign in ("", "u") for size in (1, 2, 4, 8)}
_DTYPES = {name: f"{'<' if size > 1 else '|'}{sign}{size}" for name, (sign, size) in _SIZES.items()}
_DTYPES |= {"halffloat": "<f2", "float": "<f4", "double": "<f8", "bool": "|b1"}
_DTYPES |= {f"timestamp[{unit}]": f"<M8[{unit}]" for unit in ("s", "ms", "us", "ns")}
_DTYPES |= {f"duration[{unit}]": f"<m8[{unit}]" for unit in ("s", "ms", "us", "ns")}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_BYTES = {"binary": "bytes", "large_binary": "bytes", "string": "text", "large_string": "text"}


def columns_of(batch: Any) -> list[Column]:
    """Return the columns of a `pyarrow.RecordBatch`. Raises TypeError, naming the column, for a type that columns do not have."""
    return [_column(name, array) for name, array in zip(batch.schema.names, batch.columns, strict=True)]


def batches_of(batches: Iterable[Any], rows: int = 0, size: int = 1024 * 1024) -> Iterator[list[Column]]:
    """Yield the columns of `pyarrow.RecordBatch`es, cut into batches of up to `rows` (0: as many as there are) and about `size` bytes.

    Raises TypeError as `columns_of`.
    """
    for batch in batches:
        step = max(1, min(rows or batch.num_rows, batch.num_rows * size // max(batch.nbytes, 1)))
        for first in range(0, batch.num_rows, step):
            yield columns_of(batch.slice(first, step))


def record_batch(columns: Iterable[Column]) -> Any:
    """Return columns as a `pyarrow.RecordBatch` of the same memory."""
    import pyarrow

    columns = list(columns)
    return pyarrow.RecordBatch.from_arrays([_array(column) for column in columns], [column.name for column in columns])


def _column(name: str, array: Any) -> Column:
    array = _unsliced(array)
    kind, count, shape = str(array.type), len(array), []
    options: dict[str, Any] = {"validity": _cut(array.buffers()[0], (count + 7) // 8, 1) if array.null_count else None}
    if kind in _BYTES or kind.startswith(("list<", "large_list<")):
        width = 8 if kind.startswith("large_") else 4
        offsets = _cut(array.buffers()[1], count + 1, width) or bytes(width)  # of no rows Arrow may have none
        options |= {"kind": _BYTES.get(kind, "list"), "offsets": offsets, "offsets_dtype": f"<i{width}"}
        end = memoryview(offsets).cast("B").cast("q" if width == 8 else "i")[-1]
        if kind in _BYTES:
            return Column(name, "|u1", _cut(array.buffers()[2], end, 1), **options)
        array = _elements(name, array, end)
    while str(array.type).startswith("fixed_size_list<"):
        shape.append(array.type.list_size)
        array = _elements(name, array, len(array) * array.type.list_size)
    dtype = _DTYPES.get(re.sub(", tz=.*]", "]", str(array.type)))
    if dtype is None:
        raise TypeError(
            f"column {name!r} has the type {kind}, which a feed does not carry: cast it to one that it does"
        )
    if dtype == "|b1":
        array = array.cast("uint8")
    values = _cut(array.buffers()[1], len(array), item_size(dtype))
    return Column(name, dtype, values, shape=shape, **options)


def _elements(name: str, array: Any, count: int) -> Any:
    """Return the first `count` elements of an array of lists."""
    if (
        array.values.null_count and array.flatten().null_count
    ):  # `flatten` leaves out the places of lists that are null themselves
        raise TypeError(f"column {name!r} has nulls within its lists, which a feed does not carry: fill them")
    return _unsliced(array.values.slice(0, count))


def _unsliced(array: Any) -> Any:
    """Return an array whose buffers begin with its own values."""
    import pyarrow

    # `take` gives other rows of a sliced array whose lists of a fixed size lie within each other (seen with pyarrow 26).
    return pyarrow.concat_arrays([array.slice(0, 0), array]) if array.offset else array


def _cut(buffer: Any, count: int, width: int) -> Any:
    """Return the bytes of so many values: buffers are often longer."""
    return b"" if buffer is None else memoryview(buffer)[: count * width]


def _array(column: Column) -> Any:
    import pyarrow

    validity = None if column.validity is None else pyarrow.py_buffer(column.validity)
    values, prefix = pyarrow.py_buffer(column.values), "large_" if column.offsets_dtype == "<i8" else ""
    offsets = None if column.offsets is None else pyarrow.py_buffer(column.offsets)
    if column.kind in ("bytes", "text"):
        kind = pyarrow.type_for_alias(prefix + {"bytes": "binary", "text": "string"}[column.kind])
        return pyarrow.Array.from_buffers(kind, column.rows, [validity, offsets, values])
    name = _NAMES[column.dtype]
    count = column.values.nbytes // item_size(column.dtype)
    levels = list(reversed(column.shape))
    bits = None if levels or offsets else validity  # nulls are those of rows, and so of the outermost level
    array = pyarrow.Array.from_buffers(
        pyarrow.type_for_alias("uint8" if name == "bool" else name), count, [bits, values]
    )
    array = array.cast("bool") if name == "bool" else array
    for depth, size in enumerate(levels, 1):
        count //= size
        bits = validity if depth == len(levels) and not offsets else None
        array = pyarrow.Array.from_buffers(pyarrow.list_(array.type, size), count, [bits], children=[array])
    if offsets:
        kind = pyarrow.large_list(array.type) if prefix else pyarrow.list_(array.type)
        array = pyarrow.Array.from_buffers(kind, column.rows, [validity, offsets], children=[array])
    return array
