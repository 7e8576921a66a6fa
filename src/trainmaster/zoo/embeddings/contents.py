"""Rows of tables: out of the client that has them, and in files beside an exported model.

A table without a bound is in `tables/NAME.ids.npy` and `tables/NAME.rows.npy`, which have equally many ids, ascending, and rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import numpy

from ...ps.initializers import table_key
from ...ps.specification import TableSpec
from ..errors import BadModel
from .lookups import OTHER_IDS

_PIECE = 2**16  # rows that are pulled at once
_FILES = "tables"


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


def present_rows(source: Any, snapshot: Mapping[str, tuple[Any, Any]] | None, ids: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of ids of each table: those of the snapshot (all ids, ascending, and rows), or those that the source has now."""
    if snapshot is None:
        return dict(source.pull(dense=False, rows=ids).rows) if ids else {}
    return {name: _rows_among(*snapshot[name], distinct) for name, distinct in ids.items()}


def _rows_among(known: Any, rows: Any, ids: Any) -> Any:
    """Return the rows of some of the known ids, which ascend. Raises BadModel where one is not among them."""
    places = numpy.searchsorted(known, ids)
    if len(ids) and (places[-1] >= len(known) or (known[places] != ids).any()):
        raise BadModel(OTHER_IDS, mend="look up the same ids each time that the model is called with a batch")
    return rows[places]


def write_unbounded(directory: str, source: Any, specs: Mapping[str, TableSpec]) -> list[str]:
    """Write the tables without an input_dim beside an exported model, and return the paths."""
    paths = []
    for name, spec in specs.items():
        if spec.input_dim is None:
            ids = source.ids(name)
            paths += _write(directory, name, ids, rows_of(source, name, ids, spec.dimension))
    return paths


def read_unbounded(directory: str, name: str) -> tuple[Any, Any]:
    """Return ids and rows of a table. Raises BadModel."""
    ids, rows = _paths(directory, name)
    try:
        return numpy.load(ids), numpy.load(rows)
    except (OSError, ValueError) as error:
        raise BadModel(f"the table {name} cannot be read: {error}", place=os.path.dirname(ids)) from None


def _write(directory: str, name: str, ids: Any, rows: Any) -> list[str]:
    """Write a table, and return the paths. A path is there once it is whole."""
    os.makedirs(os.path.join(directory, _FILES), exist_ok=True)
    paths = _paths(directory, name)
    for path, array in zip(paths, (ids, rows), strict=True):
        draft = os.path.join(os.path.dirname(path), f".part-{os.path.basename(path)}")
        numpy.save(draft, array)
        os.replace(draft, path)
    return paths


def _paths(directory: str, name: str) -> list[str]:
    # The draft must end with .npy: numpy.save appends it otherwise.
    return [os.path.join(directory, _FILES, f"{quote(name, '')}.{kind}.npy") for kind in ("ids", "rows")]
