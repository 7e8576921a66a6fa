"""Batches of the size that a program wants, from batches of the size that the ring has.

A batch that lies within one of the ring's is a part of it, without a copy. One that lies across two is a copy of its rows. At most one
batch of the ring is kept while the next one is waited for, so that a small ring will do for batches of any size.
"""

from __future__ import annotations

from ..channel import FeedError
from ..layout import join
from ..reader import Batch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    Columns = str | Sequence[str] | None


def batches(source: Iterable[Batch], rows: int, drop_last: bool = False) -> Iterator[Batch]:
    """Yield batches of so many rows (0: as they come), the last one shorter. Each has the number of the batch that its last row is of.

    `drop_last` leaves a shorter last one out. Raises FeedError where batches differ in their columns.
    """
    waiting: list[Batch] = []  # for more rows: one of the ring's, or several copies
    missing = rows
    for batch in source:
        if not rows:
            yield batch
        first, count = 0, batch.rows if rows else 0
        while count - first >= missing and count:
            part = _cut(batch, first, first + missing)
            first += missing
            part = _join([*waiting, part]) if waiting else part
            waiting, missing = [], rows
            yield part
            del part
        if first < count:
            missing -= count - first
            if waiting:
                waiting = [_join(waiting)] if len(waiting) == 1 else waiting
                waiting.append(_join([_cut(batch, first, count)]))
            else:
                waiting = [_cut(batch, first, count)]
        del batch  # its memory may go while the next one is waited for
    if waiting and not drop_last:
        yield _join(waiting)


def choose(batch: Batch, columns: Columns, convert: Any) -> Any:
    """Return what `convert(batch, name)` makes of columns: a dictionary of all, a tuple of those listed, or the value of the one named.

    Raises FeedError for a column that is not there.
    """
    if columns is None:
        return {name: convert(batch, name) for name in batch.columns}
    for name in [columns] if isinstance(columns, str) else columns:
        if name not in batch.columns:
            raise FeedError(f"the feed has no column {name!r}; it has {', '.join(batch.columns)}")
    if isinstance(columns, str):
        return convert(batch, columns)
    return tuple(convert(batch, name) for name in columns)


def numbers(batch: Batch, name: str) -> Any:
    """Return a fixed column as an array of numbers. Decimals are float64; dates and times int64, the units since their beginning.

    A null is NaN, or the least number of int64 for a date or a time (NumPy's NaT). Raises FeedError for a null of another type.
    """
    import numpy

    column, valid = batch.columns[name], batch.valid(name)
    if column.dtype == "|V16":
        array = batch[name].astype("f8")  # None becomes NaN
    else:
        array = batch[name]
        if valid is not None and not valid.all():
            if array.dtype.kind not in "fcmM":
                raise FeedError(
                    f"batch {batch.number}, row {int(numpy.argmin(valid))}, column {name!r}: a null, and {column.dtype} has no value for "
                    "it; fill it in Spark, or read it by `feed.open`, whose batches have `valid`"
                )  # fmt: skip
            array[~valid] = numpy.nan if array.dtype.kind in "fc" else numpy.array("NaT", array.dtype)
    return array.view("i8") if array.dtype.kind in "mM" else array


def _cut(batch: Batch, first: int, end: int) -> Batch:
    if (first, end) == (0, batch.rows):
        return batch
    return Batch(batch.number, [column.cut(first, end) for column in batch.columns.values()])


def _join(parts: Sequence[Batch]) -> Batch:
    """Return the rows of all as one batch, with a memory of its own."""
    names = list(parts[0].columns)
    for part in parts:
        if list(part.columns) != names:
            raise FeedError(
                f"batch {part.number} has the columns {', '.join(part.columns)}, and the one before {', '.join(names)}"
            )
    try:
        return Batch(parts[-1].number, [join([part.columns[name] for part in parts]) for name in names])
    except ValueError as error:
        raise FeedError(f"batch {parts[-1].number} does not fit the one before: {error}") from error
