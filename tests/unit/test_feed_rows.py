"""Rows of Python as columns, cut at any row, and the words for a row that does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainmaster.runtime.feed.arrow import batches_of, record_batch
from trainmaster.runtime.feed.reader import Batch
from trainmaster.runtime.feed.rows import WrongRow, batches


def plain(batch: Batch, name: str) -> list[Any]:
    values = batch[name]
    return list(values.tolist() if hasattr(values, "tolist") else values)


@pytest.mark.parametrize(
    ("rows", "name", "expected"),
    [
        ([1, 2, 3], "value", [1, 2, 3]),
        ([0.5, 2, None], "value", [0.5, 2.0, 0.0]),
        ([True, False], "value", [True, False]),
        (["a", "", "ü"], "value", ["a", "", "ü"]),
        ([b"x", None, b"yz"], "value", [b"x", None, b"yz"]),
        ([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], "value", [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
        ([[1, 0.5], [2, 3]], "value", [[1.0, 0.5], [2.0, 3.0]]),
        ([np.arange(3, dtype="f4"), np.zeros(3, "f4")], "value", [[0, 1, 2], [0, 0, 0]]),
        ([([1, 2], 0), ([3, 4], 1)], "0", [[1, 2], [3, 4]]),
        ([{"x": 1, "label": "a"}, {"x": 2, "label": "b"}], "label", ["a", "b"]),
    ],
)
def test_rows_become_columns(rows: list[Any], name: str, expected: list[Any]) -> None:
    [columns] = batches(rows)
    assert plain(Batch((0, 0, 0), columns), name) == expected
    for cut in range(len(rows) + 1):
        halves = [[column.cut(*ends) for column in columns] for ends in ((0, cut), (cut, len(rows)))]
        assert [plain(Batch((0, 0, 0), half), name) for half in halves] == [expected[:cut], expected[cut:]]
        assert [record_batch(half).num_rows for half in halves] == [cut, len(rows) - cut]


def test_batches_have_the_same_bounds_each_time() -> None:
    rows = [b"x" * (number % 70) for number in range(500)]
    sizes = [columns[0].rows for columns in batches(rows, most=40, size=1000)]
    assert sizes == [columns[0].rows for columns in batches(rows, most=40, size=1000)]
    assert sum(sizes) == 500
    assert max(sizes) == 40
    assert len(set(sizes)) > 1, "some batches are cut by their bytes"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[1, 2], [1, 2, 3]], r"row 1, column 'value': expected <i8 of shape \(2,\), found <i8 of shape \(3,\)"),
        ([1, 2, "3"], r"row 2, column 'value': expected a whole number, found text"),
        ([1, 2.5], r"row 1, column 'value': expected a whole number, found a number"),
        (["a", 1], r"row 1, column 'value': expected text, found a whole number"),
        ([[1, 2], []], r"row 1, column 'value': expected a number, text, .* found an empty list"),
        ([{"x": 1}, {"y": 1}], r"row 1 has the columns y, and the rows before have x"),
        ([object()], r"row 0, column 'value': .* found object"),
    ],
)
def test_a_row_that_does_not_fit_is_named(rows: list[Any], words: str) -> None:
    with pytest.raises(WrongRow, match=words):
        list(batches(rows))


def test_batches_of_arrow_are_cut_by_rows_and_bytes() -> None:
    batch = pa.RecordBatch.from_pydict({"x": list(range(1000)), "text": [f"{n}" * 3 for n in range(1000)]})
    for options in ({"rows": 300}, {"size": 4000}):
        parts = [record_batch(columns) for columns in batches_of([batch], **options)]
        assert len(parts) > 2
        assert [row for part in parts for row in part.column("x").to_pylist()] == list(range(1000))
        assert parts[1].column("text")[0].as_py() == f"{parts[0].num_rows}" * 3
