"""All rows of a table, out of the client that has it."""

from __future__ import annotations

from typing import Any

import numpy

from ...ps.initializers import table_key
from ...ps.specification import TableSpec

_PIECE = 2**16  # rows that are pulled at once


def rows_of(source: Any, name: str, ids: Any, dimension: int) -> Any:
    """Return the rows of any number of ids, which differ."""
    pieces = [
        source.pull(dense=False, rows={name: ids[begin : begin + _PIECE]}).rows[name]
        for begin in range(0, len(ids), _PIECE)
    ]
    return numpy.concatenate(pieces) if pieces else numpy.zeros((0, dimension), numpy.float32)


def all_rows(source: Any, name: str, spec: TableSpec) -> Any:
    """Return all rows of a table with an input_dim. Those that nobody has asked for are made here, and not by the servers."""
    assert spec.input_dim is not None
    ids = source.ids(name)
    rows = spec.initializer.rows(table_key(spec.seed, name), numpy.arange(spec.input_dim), spec.dimension)
    rows[ids] = rows_of(source, name, ids, spec.dimension)
    return rows
