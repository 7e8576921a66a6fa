"""Rows that Spark packed into bytes within the JVM, as batches of Arrow.

Spark's own way to Arrow copies arrays element by element. A row that Kryo serializes is one block instead: a few bytes that name the class,
the length of the row and its number of fields (4 bytes each), and Spark's own memory of it (`UnsafeRow`), in the machine's order of bytes:

    a bit per field, 1 where it is null, in words of 8 bytes | a word per field | bytes of fields that vary in size

The word of a field begins with its value, or is its place in the row (upper half) and its size. An array of numbers (`UnsafeArrayData`) is

    number of elements (8 bytes) | a bit per element, 1 where it is null, in words of 8 bytes | elements

Where all rows are of one size, no step is taken for each row.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

SIZE = 1024 * 1024  # bytes of a batch, about
_LONGEST = 64  # bytes of the name of the class, at most


def batches(rows: Iterable[bytes], schema: Any, most: int = 0) -> Iterator[Any]:
    """Yield packed rows as `pyarrow.RecordBatch`es of up to `most` rows (0: any number) and about `SIZE` bytes. Raises ValueError."""
    buffer: list[bytes] = []
    size = 0
    for row in rows:
        buffer.append(row)
        size += len(row)
        if len(buffer) == most or size >= SIZE:
            yield record_batch(buffer, schema)
            size, buffer = 0, []
    if buffer:
        yield record_batch(buffer, schema)


def record_batch(rows: list[bytes], schema: Any) -> Any:
    """Return packed rows as one `pyarrow.RecordBatch`. Raises ValueError where the bytes are not such rows."""
    import numpy
    import pyarrow

    count, begin = len(schema), _begin(rows[0], len(schema))
    data = numpy.frombuffer(b"".join(rows), "u1")
    table = data.reshape(len(rows), -1)[:, begin:] if len({len(row) for row in rows}) == 1 else None
    blocks: Any = table if table is not None else [numpy.frombuffer(row, "u1")[begin:] for row in rows]
    words = (count + 63) // 64 * 8
    heads = (
        numpy.stack([block[: words + 8 * count] for block in blocks])
        if table is None
        else table[:, : words + 8 * count]
    )
    nulls = numpy.unpackbits(heads[:, :words], axis=1, bitorder="little").astype(bool)
    columns = []
    for index, field in enumerate(schema):
        word = heads[:, words + 8 * index :][:, :8].copy()
        validity = _bits(~nulls[:, index]) if nulls[:, index].any() else None
        if pyarrow.types.is_primitive(field.type):
            columns.append(_fixed(word, field.type, validity))
            continue
        places = word.view("u8").reshape(-1)
        starts, sizes = (places >> 32).astype("i8"), (places & 0xFFFFFFFF).astype("i8")  # of nulls both are 0
        parts: Any
        if table is not None and (places == places[0]).all():
            parts = table[:, starts[0] : starts[0] + sizes[0]]
        else:
            ends = (starts + sizes).tolist()
            parts = [block[first:end] for block, first, end in zip(blocks, starts.tolist(), ends, strict=True)]
        columns.append(_varying(parts, sizes, field.type, validity))
    return pyarrow.RecordBatch.from_arrays(columns, schema.names)


def _fixed(word: Any, kind: Any, validity: Any) -> Any:
    """Return a column of numbers, booleans or times, out of the word of each row."""
    import numpy
    import pyarrow

    if pyarrow.types.is_boolean(kind):
        return pyarrow.Array.from_buffers(kind, len(word), [validity, _bits(word[:, 0] != 0)])
    values = numpy.ascontiguousarray(word[:, : kind.bit_width // 8])
    return pyarrow.Array.from_buffers(kind, len(word), [validity, pyarrow.py_buffer(values)])


def _varying(parts: Any, sizes: Any, kind: Any, validity: Any) -> Any:
    """Return a column of text, of bytes or of arrays. `parts`: the bytes of each row, a table where these are equally many."""
    import numpy
    import pyarrow

    if not pyarrow.types.is_list(kind):
        values = pyarrow.py_buffer(numpy.concatenate(list(parts)) if isinstance(parts, list) else parts.copy())
        return pyarrow.Array.from_buffers(kind, len(sizes), [validity, _offsets(sizes), values])
    width = kind.value_type.bit_width // 8
    counts = _counts(parts)
    if isinstance(parts, list) or not (counts == counts[0]).all():
        lengths = counts.tolist()
        rows = [_elements(part.reshape(1, -1), count, width) for part, count in zip(parts, lengths, strict=True)]
        content = numpy.concatenate([values for values, _ in rows])
        flags = [flags for _, flags in rows]
        valid = numpy.concatenate(
            [numpy.ones(n, bool) if f is None else f for f, n in zip(flags, lengths, strict=True)]
        )
    else:
        content, valid = _elements(parts, int(counts[0]), width)
    elements = [None if valid is None else _bits(valid), pyarrow.py_buffer(content)]
    values = pyarrow.Array.from_buffers(kind.value_type, len(content) // width, elements)
    return pyarrow.Array.from_buffers(kind, len(sizes), [validity, _offsets(counts)], children=[values])


def _counts(parts: Any) -> Any:
    """Return the number of elements of each array; 0 for a null."""
    import numpy

    if not isinstance(parts, list):
        return parts[:, :8].copy().view("i8").reshape(-1) if parts.shape[1] else numpy.zeros(len(parts), "i8")
    return numpy.array([int.from_bytes(part[:8].tobytes(), sys.byteorder) for part in parts], "i8")


def _elements(rows: Any, count: int, width: int) -> tuple[Any, Any]:
    """Return the bytes of the elements of arrays of equal size, and which elements are valid; None where all are."""
    import numpy

    first = 8 + (count + 63) // 64 * 8
    if count and first + count * width > rows.shape[1]:
        raise ValueError(f"{rows.shape[1]} bytes are not a packed array of {count} elements")
    bits, valid = rows[:, 8:first], None
    if bits.any():
        valid = ~numpy.unpackbits(bits, axis=1, bitorder="little")[:, :count].astype(bool).reshape(-1)
    return rows[:, first : first + count * width].flatten(), valid  # a copy, which is aligned


def _offsets(sizes: Any) -> Any:
    import numpy
    import pyarrow

    return pyarrow.py_buffer(numpy.concatenate([[0], sizes.cumsum()]).astype("i4"))


def _bits(flags: Any) -> Any:
    import numpy
    import pyarrow

    return pyarrow.py_buffer(numpy.packbits(flags, bitorder="little"))


def _begin(block: bytes, fields: int) -> int:
    """Return where Spark's memory begins in a packed row. Raises ValueError."""
    for begin in range(8, min(len(block), _LONGEST)):
        for order in ("big", "little"):  # Kryo's versions differ
            length = int.from_bytes(block[begin - 8 : begin - 4], order)
            if length == len(block) - begin and fields == int.from_bytes(block[begin - 4 : begin], order):
                return begin
    raise ValueError(f"{len(block)} bytes are not a packed row of {fields} fields: {block[:_LONGEST].hex()}")
