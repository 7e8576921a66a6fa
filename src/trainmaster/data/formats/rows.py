"""Rows of a Parquet file as JSON objects, by pyarrow.

This file is imported where pyarrow is, and run as a script by the program's own interpreter where it is only there, so
it imports nothing of ours. Bytes become base64; other values that JSON has no form for (times, decimals) become text, and
floats that are not numbers "NaN", "Infinity" and "-Infinity", as in the JSON of Protocol Buffers.

    python rows.py FILE FIRST END     one row a line, of the row groups [FIRST, END), or all that follow where END is empty
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Iterator
from typing import Any


def rows(file: Any, first: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield the rows of the row groups [first, end) of a path or a file."""
    table = _table(file)
    for group in range(first, table.num_row_groups if end is None else min(end, table.num_row_groups)):
        for batch in table.iter_batches(row_groups=[group]):
            for row in batch.to_pylist():
                yield _json(row).encode()


def count(file: Any) -> int:
    """Return the number of row groups."""
    return int(_table(file).num_row_groups)


def _table(file: Any) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(file)


def _json(row: Any) -> str:
    try:
        return json.dumps(row, default=_plain, ensure_ascii=False, allow_nan=False)
    except ValueError:  # some float is not a number
        return json.dumps(_finite(row), default=_plain, ensure_ascii=False)


def _finite(value: Any) -> Any:
    """Return the value with names in the place of floats that JSON has no form for."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _plain(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes | bytearray) else str(value)


def _main(path: str, first: str, end: str) -> None:
    for row in rows(path, int(first), int(end) if end else None):
        sys.stdout.buffer.write(row + b"\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
