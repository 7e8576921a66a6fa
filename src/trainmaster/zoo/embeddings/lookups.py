"""How embedding layers come to their rows.

A *lookup* gives the rows of ids. The layers of a model use the one that is in force in their thread (`looking_up`); where there is none,
each layer has rows of its own in this process. Two lookups exist, which the frameworks fill with their tensors:

    Recording    notes the ids of each table, and gives zeros: so a step knows what to pull before it computes
    Pulled       has distinct ids, ascending, and their rows; finds the place of each id by bisection, or has it from `BatchIds`

Both are used while TensorFlow traces a function too: then ids and rows are symbolic.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy

from ...ps.optimizers import SGD
from ...ps.specification import TableSpec
from ...ps.tables.table import Block, Table
from ..errors import BadModel

_in_force = threading.local()

COMBINERS = ("sum", "mean", "sqrtn")


class Recording:
    """Notes the ids that layers look up. `zeros(ids, dimension)` makes the rows that they get."""

    def __init__(self, zeros: Callable[[Any, int], Any]) -> None:
        self._zeros = zeros
        self.ids: dict[str, list[Any]] = {}

    def rows(self, name: str, dimension: int, ids: Any) -> Any:
        """Return zeros for ids, (n,)."""
        self.ids.setdefault(name, []).append(ids)
        return self._zeros(ids, dimension)


class BatchIds(dict[str, Any]):
    """The distinct ids of each table in a batch, ascending. `places`: of each id that was noted, in that order, its place among these."""

    def __init__(self, ids: Mapping[str, Any], places: Mapping[str, Any]) -> None:
        super().__init__(ids)
        self.places = dict(places)


class Pulled:
    """Gives rows that were pulled. `tables`: ids, ascending, and rows of each; `take(ids, rows, wanted)` gives the rows of wanted ids."""

    def __init__(self, tables: Mapping[str, Sequence[Any]], take: Callable[..., Any]) -> None:
        self._tables, self._take = tables, take

    def rows(self, name: str, dimension: int, ids: Any) -> Any:
        """Return the rows of ids, (n, dimension)."""
        if name not in self._tables:
            raise BadModel(
                f"the table {name} is looked up in training, and was not when the ids of the batch were gathered",
                mend="look up the same tables whether the model trains or not",
            )
        return self._take(*self._tables[name], ids)


@contextlib.contextmanager
def looking_up(lookup: Recording | Pulled) -> Iterator[None]:
    """Have the layers that are called in this thread use a lookup."""
    former = getattr(_in_force, "lookup", None)
    _in_force.lookup = lookup
    try:
        yield
    finally:
        _in_force.lookup = former


def lookup_in_force() -> Recording | Pulled | None:
    lookup: Recording | Pulled | None = getattr(_in_force, "lookup", None)
    return lookup


def distinct_of(ids: Any) -> Any:
    """Return the distinct ids of an array, (n,), ascending. `numpy.unique` takes ten times as long: it hashes them before it sorts."""
    ids = numpy.sort(ids, axis=None)
    is_first = numpy.ones(len(ids), bool)
    numpy.not_equal(ids[1:], ids[:-1], out=is_first[1:])
    return ids[is_first]


def checked(name: str, spec: TableSpec, distinct: Any) -> Any:
    """Return ids, ascending, that the table may have. Raises BadModel."""
    check_ids(f"the table {name}", spec.input_dim, distinct)
    return distinct


def check_ids(subject: str, limit: int | None, distinct: Any) -> None:
    """Raise BadModel where not all ids, ascending, are 0 to `limit` - 1; None: where one is negative. `subject` is what has them."""
    if not len(distinct):
        return
    least, most = int(distinct[0]), int(distinct[-1])
    if least < 0:
        raise BadModel(
            f"{subject} got the id {least}, and "
            + ("ids must not be negative" if limit is None else f"its ids are 0 to {limit - 1}"),
            mend="have the feed give another id for what is missing or unknown",
        )
    if limit is not None and most >= limit:
        raise BadModel(
            f"{subject} got the id {most}, and its ids are 0 to {limit - 1}",
            mend=f"give it {most + 1} rows or more (input_dim; of PyTorch num_embeddings), or take ids modulo {limit}",
        )


class OwnRows:
    """Rows of one layer in this process, for a model that is called outside of the worker program's steps. They are not trained.

    `layer` has `name` and `spec`, which are looked at when rows are first asked for.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._table: Table | None = None

    def pull(self, ids: Any) -> Any:
        """Return the rows of ids, (n,), as an array (n, dimension). Raises BadModel."""
        ids = numpy.asarray(ids, numpy.int64)
        checked(self._layer.name, self._layer.spec, distinct_of(ids))
        return self._made().pull(ids)

    def load(self, ids: Any, rows: Any) -> None:
        """Take rows in, in place of those with the same ids."""
        self._made().load(Block(ids, rows, {}, numpy.zeros(len(ids), numpy.uint32)))

    def contents(self) -> tuple[Any, Any]:
        """Return the ids that have rows, ascending, and the rows."""
        ids = self._made().ids()
        return ids, self._made().pull(ids)

    def _made(self) -> Table:
        if self._table is None:
            name, spec = self._layer.name, self._layer.spec
            self._table = Table(name, spec.dimension, spec.initializer, SGD(), seed=spec.seed, input_dim=spec.input_dim)
        return self._table


OTHER_IDS = "the model looks up other ids in training than when the ids of the batch were gathered"


def is_trained_elsewhere(name: str) -> BadModel:
    return BadModel(
        f"the table {name} is trained by `python -m trainmaster.zoo train` alone, not by the model's own fit or optimizer",
        mend="train with that program, or use the framework's own embedding layer",
    )
