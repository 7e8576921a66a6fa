"""Batches of any size out of those of the ring, and what becomes of a null for a framework."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.runtime.feed.arrow import Table
from trainmaster.runtime.feed.channel import FeedError
from trainmaster.runtime.feed.layout import column_of
from trainmaster.runtime.feed.reader import Batch
from trainmaster.runtime.feed.readers.batches import batches, choose, numbers


def ring(sizes: list[int]) -> Iterator[Batch]:
    """Batches of one array each, whose rows are numbered through; every third value is null."""
    first = 0
    for number, size in enumerate(sizes):
        rows = range(first, first + size)
        first += size
        arrow = pa.RecordBatch.from_pydict(
            {
                "n": pa.array(rows),
                "f": pa.array([None if row % 3 == 0 else row / 2 for row in rows], pa.float64()),
                "t": pa.array([None if row % 5 == 0 else f"é{row}" for row in rows], pa.string()),
                "l": pa.array([[[row] * (row % 3)] * (row % 2) for row in rows], pa.list_(pa.list_(pa.int64()))),
            }
        )
        yield Batch((0, 0, number), Table(None).columns(arrow))


@given(st.lists(st.integers(1, 9), max_size=8), st.integers(0, 12), st.booleans())
def test_the_rows_stay_the_same_in_batches_of_any_size(sizes: list[int], rows: int, drop_last: bool) -> None:
    count = sum(sizes)
    batched = list(batches(ring(sizes), rows, drop_last))
    if rows:
        rest = [count % rows] if count % rows and not drop_last else []
        assert [batch.rows for batch in batched] == [rows] * (count // rows) + rest
        count -= count % rows if drop_last else 0
    [whole] = ring([count]) if count else [None]
    for batch in batched:
        batch.arrow().validate(full=True)
    assert [row for batch in batched for row in batch.arrow().to_pylist()] == (
        whole.arrow().to_pylist() if whole else []
    )


def test_a_batch_is_a_copy_only_where_it_lies_across_two() -> None:
    arrays = [np.arange(10.0) + 10 * number for number in range(3)]
    source = (Batch((0, 0, number), [column_of("x", array)]) for number, array in enumerate(arrays))
    shares = [[np.shares_memory(batch["x"], array) for array in arrays] for batch in batches(source, 4)]
    one, two, three, copy = ([number == place for place in range(3)] for number in (0, 1, 2, None))
    assert shares == [one, one, copy, two, two, three, three, copy]


def test_no_batch_of_the_ring_is_kept_while_more_than_one_is_waited_for() -> None:
    alive: list[weakref.ref[Any]] = []

    def source() -> Iterator[Batch]:
        for number in range(5):
            gc.collect()
            assert sum(array() is not None for array in alive) <= 1
            array = np.full(10, number)
            alive.append(weakref.ref(array))
            batch = Batch((0, 0, number), [column_of("x", array)])
            del array
            yield batch
            del batch

    [batch] = batches(source(), 50)
    assert batch["x"].tolist() == [number for number in range(5) for _ in range(10)]


def test_batches_of_other_columns_are_refused() -> None:
    def two(first: Any, second: Any) -> list[Batch]:
        source = [Batch((0, number, 0), [column_of(*column)]) for number, column in enumerate((first, second))]
        return list(batches(source, 4))

    with pytest.raises(FeedError, match=r"batch \(0, 1, 0\) has the columns y, and the one before x"):
        two(("x", np.zeros(3)), ("y", np.zeros(3)))
    with pytest.raises(
        FeedError, match=r"column 'x': expected <f8 of shape \(2,\) as in the rows before, found <f8 of shape \(3,\)"
    ):
        two(("x", np.zeros((3, 2))), ("x", np.zeros((3, 3))))
    nulls = column_of("x", np.zeros(3, "i8"), validity=b"\0")
    [first, last] = batches([Batch((0, 0, 0), [nulls]), Batch((0, 1, 0), [column_of("x", np.ones((3, 2), "f4"))])], 4)
    assert first["x"].tolist() == [[0, 0]] * 3 + [[1, 1]], "nulls alone have the type of the others"
    assert first.valid("x").tolist() == [False] * 3 + [True]
    assert last["x"].shape == (2, 2)


def test_numbers_for_a_framework() -> None:
    content = {
        "f": pa.array([1.5, None]),
        "d": pa.array([Decimal("1.25"), None], pa.decimal128(9, 2)),
        "t": pa.array([7, None], pa.timestamp("us")),
        "day": pa.array([3, 4], pa.date32()),
        "i": pa.array([1, None]),
    }
    batch = Batch((1, 2, 3), Table(None).columns(pa.RecordBatch.from_pydict(content)))
    batch.columns["f"] = batch.columns["f"].holding(bytearray(batch.columns["f"].values), validity=b"\1")
    assert np.array_equal(numbers(batch, "f"), [1.5, np.nan], equal_nan=True)
    assert np.array_equal(numbers(batch, "d"), [1.25, np.nan], equal_nan=True)
    batch.columns["t"] = batch.columns["t"].holding(bytearray(batch.columns["t"].values), validity=b"\1")
    assert numbers(batch, "t").tolist() == [7, -(2**63)]
    assert numbers(batch, "day").tolist() == [3, 4]
    with pytest.raises(FeedError, match=r"batch \(1, 2, 3\), row 1, column 'i': a null, and <i8 has no value for it"):
        numbers(batch, "i")
    assert choose(batch, ("day", "f"), lambda batch, name: name) == ("day", "f")
    assert choose(batch, "day", lambda batch, name: name) == "day"
    with pytest.raises(FeedError, match=r"the feed has no column 'z'; it has f, d, t, day, i"):
        choose(batch, ("z",), numbers)
