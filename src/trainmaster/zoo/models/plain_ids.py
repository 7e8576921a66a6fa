"""Name the id where a framework's own embedding has no row for it: the framework's error says neither which one nor where.

A model that fails on a batch is run once more, with a look at the ids of each embedding. So this costs nothing where all is well. Such an
error ends the job as that of a table does (`embeddings.lookups.check_ids`): a worker that reads the batch again would fail again.

Keras's own embeddings count negative ids from their end, so negative ids are not an error there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ..embeddings.lookups import check_ids, distinct_of
from ..errors import BadModel


@contextlib.contextmanager
def naming_ids(model: Any, features: Any) -> Iterator[None]:
    """Raise BadModel where the block fails since an embedding of the model has no row for an id of the features."""
    try:
        yield
    except model.index_errors:
        faults: list[BadModel] = []  # not raised where they are found: Keras would put words of its own around them

        def look(name: str, rows: int, ids: Any) -> None:
            try:
                check_ids(f"the embedding {name}", rows, distinct_of(ids.reshape(-1)))
            except BadModel as error:
                faults.append(error)

        with contextlib.suppress(Exception), model.looking_at_ids(look):
            model.plain_outputs(features)
        if faults:
            raise faults[0] from None
        raise
