"""Tables without a bound beside an exported model.

`tables/NAME.ids.npy` and `tables/NAME.rows.npy` have equally many ids, ascending, and rows.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

import numpy

from ..errors import BadModel

_FOLDER = "tables"


def write(directory: str, name: str, ids: Any, rows: Any) -> list[str]:
    """Write a table, and return the paths. A path is there once it is whole."""
    os.makedirs(os.path.join(directory, _FOLDER), exist_ok=True)
    paths = _paths(directory, name)
    for path, array in zip(paths, (ids, rows), strict=True):
        draft = os.path.join(os.path.dirname(path), f".part-{os.path.basename(path)}")
        numpy.save(draft, array)
        os.replace(draft, path)
    return paths


def read(directory: str, name: str) -> tuple[Any, Any]:
    """Return ids and rows of a table. Raises BadModel."""
    ids, rows = _paths(directory, name)
    try:
        return numpy.load(ids), numpy.load(rows)
    except (OSError, ValueError) as error:
        raise BadModel(f"the table {name} cannot be read: {error}", place=os.path.dirname(ids)) from None


def _paths(directory: str, name: str) -> list[str]:
    # The draft must end with .npy: numpy.save appends it otherwise.
    return [os.path.join(directory, _FOLDER, f"{quote(name, '')}.{kind}.npy") for kind in ("ids", "rows")]
