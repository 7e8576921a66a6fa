"""Rows of a Parquet file as JSON objects, by pyarrow.

This file is imported where pyarrow is, and run as a script by the program's own interpreter where it is only there, so
it imports nothing of ours. Bytes become base64; other values that JSON has no form for (times, decimals) become text.

    python rows.py FILE FIRST END     one row a line, of the row groups [FIRST, END), or all that follow where END is empty
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from typing import Any


def rows(file: Any, first: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield the rows of the row groups [first, end) of a path or a file."""
    table = _table(file)
    for group in range(first, table.num_row_groups if end is None else min(end, table.num_row_groups)):
        for batch in table.iter_batches(row_groups=[group]):
            for row in batch.to_pylist():
                yield json.dumps(row, default=_plain, ensure_ascii=False).encode()


def count(file: Any) -> int:
    """Return the number of row groups."""
    return int(_table(file).num_row_groups)


def _table(file: Any) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(file)


def _plain(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes | bytearray) else str(value)


def _main(path: str, first: str, end: str) -> None:
    for row in rows(path, int(first), int(end) if end else None):
        sys.stdout.buffer.write(row + b"\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
