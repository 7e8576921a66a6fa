"""Rows of Python as columns, cut at any row, and the words for a row that does not fit."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.runtime.feed.arrow import batches_of, record_batch
from trainmaster.runtime.feed.reader import Batch
from trainmaster.runtime.feed.rows import WrongRow, batches

NAIVE = datetime(2024, 7, 1, 12)  # noqa: DTZ001  a moment without a time zone is meant


class Structure(tuple[Any, ...]):
    """A Row as pyspark's is: a tuple that knows its fields, and is asked by them too."""

    __fields__: tuple[str, ...]

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.__fields__.index(key) if isinstance(key, str) else key)


def structure(**fields: Any) -> Structure:
    row = Structure(fields.values())
    row.__fields__ = tuple(fields)
    return row


def image(height: int, width: int, mode: int = 16) -> Structure:
    data = bytes(range(height * width * 3))
    return structure(origin="file:/x.png", height=height, width=width, nChannels=3, mode=mode, data=data)


class Vector:
    """A vector as those of pyspark.ml: sparse where it has indices."""

    def __init__(self, size: int, values: list[float], indices: list[int] | None = None) -> None:
        self.size, self.values = size, np.array(values, float)
        if indices is not None:
            self.indices = np.array(indices, "i4")

    def toArray(self) -> Any:
        dense = np.zeros(self.size)
        dense[getattr(self, "indices", slice(None))] = self.values
        return dense


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


def columns(rows: list[Any], **options: Any) -> Batch:
    [columns] = batches(rows, **options)
    return Batch((0, 0, 0), columns)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "text": st.text(max_size=4),
    "binary": st.binary(max_size=4),
    "date": st.dates(),
    "moment": st.datetimes(),
    "zoned": st.datetimes(timezones=st.just(UTC)),
    "time": st.times(),
    "delta": st.timedeltas(timedelta(-1000), timedelta(1000)),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False, places=18, max_value=10**19, min_value=-(10**19)),
    "tensor": st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=3, max_size=3),
    "dates": st.lists(st.dates(), min_size=2, max_size=2),
    "words": st.lists(st.text(max_size=2), min_size=1, max_size=3),
    "ragged": st.lists(st.lists(st.floats(allow_nan=False), min_size=1, max_size=3), min_size=1, max_size=3),
}


@given(st.data(), st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4, unique=True), st.integers(1, 6))
def test_what_goes_in_comes_out(data: st.DataObject, names: list[str], count: int) -> None:
    rows = [
        structure(s=structure(**{name: data.draw(st.none() | VALUES[name]) for name in names})) for _ in range(count)
    ]
    arrow = columns(rows, ragged=["s.ragged"]).arrow()
    arrow.validate(full=True)
    for name in names:
        assert arrow.column(f"s.{name}").to_pylist() == [row["s"][name] for row in rows], name


def test_structures_become_columns_of_their_fields() -> None:
    rows = [
        structure(s=structure(a=1, b=structure(c="x")), m={"k": 1, "l": 2}, l=[structure(x=1, y="p"), structure(x=2, y="q")]),
        structure(s=None, m=None, l=None),
        structure(s=structure(a=2, b=None), m={}, l=[structure(x=3, y="r")]),
    ]  # fmt: skip
    batch = columns(rows, ragged=["l"])
    assert list(batch.columns) == ["s.a", "s.b.c", "m.key", "m.value", "l.x", "l.y"]
    assert batch["s.a"].tolist() == [1, 0, 2]
    assert batch.valid("s.a").tolist() == [True, False, True]
    assert batch["s.b.c"] == ["x", None, None]
    assert batch["m.key"] == [["k", "l"], None, []]
    assert [row if row is None else row.tolist() for row in batch["m.value"]] == [[1, 2], None, []]
    assert [row if row is None else row.tolist() for row in batch["l.x"]] == [[1, 2], None, [3]]
    assert batch["l.y"] == [["p", "q"], None, ["r"]]


def test_images_and_vectors_are_tensors_or_their_fields() -> None:
    rows = [
        structure(i=image(2, 1), v=Vector(3, [1, 2, 3])),
        structure(i=None, v=None),
        structure(i=image(2, 1), v=Vector(3, [9], [1])),
    ]
    batch = columns(rows)
    assert list(batch.columns) == ["i", "i.origin", "v"]
    assert batch["i"].shape == (3, 2, 1, 3)
    assert batch["i"][2].tolist() == [[[0, 1, 2]], [[3, 4, 5]]]
    assert batch["v"].tolist() == [[1, 2, 3], [0, 0, 0], [0, 9, 0]]
    assert batch.valid("i").tolist() == batch.valid("v").tolist() == [True, False, True]
    rows = [structure(i=image(2, 1), v=Vector(3, [9], [1])), structure(i=image(1, 1), v=Vector(3, [1, 2, 3]))]
    batch = columns(rows, ragged=["i", "v"])
    assert batch["i.height"].tolist() == [2, 1]
    assert batch["i.data"] == [bytes(range(6)), bytes(range(3))]
    assert batch["v.size"][0] == 3
    assert [None if row is None else row.tolist() for row in batch["v.indices"]] == [[1], None]
    assert [row.tolist() for row in batch["v.values"]] == [[9], [1, 2, 3]]


NUMBERS = dict.fromkeys(("height", "width", "nChannels", "mode"), pa.int32())
IMAGE = pa.struct({"origin": pa.string(), **NUMBERS, "data": pa.binary()})
LISTS = {"indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
VECTOR = pa.struct({"type": pa.int8(), "size": pa.int32(), **LISTS})


def test_arrow_gives_the_columns_that_rows_give() -> None:
    rows = [
        structure(n=[[1, 2]], s=structure(a=[0.5, 1.5]), m={"k": 1}, i=image(1, 2), v=Vector(2, [9], [1]), d=date(2024, 2, 29), r=[1]),
        structure(n=None, s=None, m=None, i=None, v=None, d=None, r=None),
        structure(n=[[3, 4]], s=structure(a=[2.5, 3.5]), m={}, i=image(1, 2), v=Vector(2, [1, 2]), d=date(1969, 1, 1), r=[1, 2]),
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pydict(
        {
            "n": pa.array([row["n"] for row in rows], pa.list_(pa.list_(pa.int64()))),
            "s": pa.array([row["s"] and {"a": row["s"]["a"]} for row in rows]),
            "m": pa.array([row["m"] if row["m"] is None else list(row["m"].items()) for row in rows], pa.map_("string", "int64")),
            "i": pa.array([row["i"] and dict(zip(row["i"].__fields__, row["i"], strict=True)) for row in rows], IMAGE),
            "v": pa.array([{"type": 0, "size": 2, "indices": [1], "values": [9.0]}, None, {"type": 1, "values": [1.0, 2.0]}], VECTOR),
            "d": pa.array([row["d"] for row in rows], pa.date32()),
            "r": pa.array([row["r"] for row in rows]),
        }
    )  # fmt: skip
    for ragged in (["r"], ["r", "i", "v", "s"]):
        [[of_arrow], of_rows] = [list(batches_of([batch], ragged=ragged)), columns(rows, ragged=ragged)]
        expected = of_rows.arrow().to_pydict()
        assert record_batch(of_arrow).to_pydict() == expected
        halves = [part for half in (batch.slice(0, 1), batch.slice(1)) for part in batches_of([half], ragged=ragged)]
        assert [row for half in halves for row in record_batch(half).to_pylist()] == of_rows.arrow().to_pylist()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            [[1, 2], [3]],
            r"row 1, column 'x': expected int64 of shape \(2,\), found int64 of shape \(1,\); .* in `ragged`",
        ),
        (
            [[[1, 2]], [[1], [2, 3]]],
            r"row 1, column 'x': expected int64 of one shape, found lists of different lengths",
        ),
        ([[1], []], r"row 1, column 'x': expected int64 of shape \(1,\), found an empty list"),
    ],
)
def test_a_list_of_arrow_that_does_not_fit_is_named(values: list[Any], words: str) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(values)], ["x"])
    for ends in ([(0, 2)], [(0, 1), (1, 1)]):
        with pytest.raises(WrongRow, match=words):
            list(batches_of(batch.slice(*end) for end in ends))


def test_moments_of_the_local_zone_become_those_of_utc() -> None:
    here = NAIVE
    batch = columns([{"t": here, "n": here, "l": [here]}], zoned=["t", "l"])
    expected = here.astimezone(UTC).replace(tzinfo=None)
    assert [batch[name].ravel().tolist() for name in "tnl"] == [[expected], [here], [expected]]
    batch = columns([{"t": here.replace(tzinfo=timezone(timedelta(hours=2)))}])
    assert batch["t"].tolist() == [NAIVE - timedelta(hours=2)]
    assert columns([time(1, 2, 3)])["value"].tolist() == [timedelta(hours=1, minutes=2, seconds=3)]


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
        (
            [{"x": [1]}, {"x": [2**63]}],
            r"row 1, column 'x': expected whole numbers of 64 bits, found 9223372036854775808",
        ),
        ([[0.5, 1], [0.5, 10**400]], r"row 1, column 'value': expected whole numbers of 64 bits, found 1000"),
        (["a", 1], r"row 1, column 'value': expected text, found a whole number"),
        ([[1, 2], []], r"row 1, column 'value': expected <i8 of shape \(2,\), found an empty list; .* in `ragged`"),
        ([[1, None]], r"row 0, column 'value': .* found a null"),
        ([Decimal("1e-19")], r"row 0, .*expected a decimal of 38 digits, 18 of them after the point, found 1E-19"),
        ([date(2024, 1, 1), NAIVE], r"row 1, .*: expected a date, found a moment without a time zone"),
        ([{"x": 1}, {"x": {"a": 1}}], r"row 1, column 'x': expected a value, found a map"),
        (
            [{"x": structure(a=1)}, {"x": structure(b=1)}],
            r"row 1, .*: expected a structure of a, found a structure of b",
        ),
        (
            [{"i": image(1, 2)}, {"i": image(2, 1)}],
            r"row 1, .* an image of shape \(1, 2, 3\), found one of shape \(2, 1, 3\)",
        ),
        (
            [{"i": image(1, 2, mode=21)}],
            r"row 0, column 'i': expected an image with a byte .*, found 6 bytes of mode 21",
        ),
        ([{"x": 1}, {"y": 1}], r"row 1 has the columns y, and the rows before have the columns x"),
        ([(1, 2), None], r"row 1 is null, and the rows before have the columns 0, 1"),
        ([np.zeros(0)] * 2, r"row 0, column 'value': expected an array with values, found one of shape \(0,\)"),
        ([{"v": Vector(0, [])}] * 2, r"row 0, column 'v': expected an array with values, found one of shape \(0,\)"),
        ([np.ma.array([1.0, 2.0], mask=[1, 0])], r"row 0, .*: expected an array without a mask"),
        ([np.array([object()])], r"row 0, .* found an array of object"),
        ([{"t": "a"}, {"t": "b\udc80"}], r"row 1, column 't': expected text that UTF-8 can encode, found '\\udc80'"),
        ([object()], r"row 0, column 'value': .* found object"),
    ],
)
def test_a_row_that_does_not_fit_is_named(rows: list[Any], words: str) -> None:
    with pytest.raises(WrongRow, match=words):
        list(batches(rows))


@pytest.mark.parametrize("is_null_there", [False, True])
@pytest.mark.parametrize("whole", [3, np.int64(3), np.float64(3)])
@pytest.mark.parametrize("first", [1.5, np.float64(1.5)])
def test_whole_numbers_among_fractions(first: Any, whole: Any, is_null_there: bool) -> None:
    rows = [first, *[None] * is_null_there, whole]
    assert [value for value in columns(rows).arrow()["value"].to_pylist() if value is not None] == [1.5, 3.0]


@pytest.mark.parametrize("is_null_there", [False, True])
@pytest.mark.parametrize("form", ["list", "<i8", "<f8", ">f8", ">i8"])
@pytest.mark.parametrize("is_array_first", [False, True])
def test_lists_of_whole_numbers_among_those_of_fractions(is_array_first: bool, form: str, is_null_there: bool) -> None:
    first: Any = np.array([1.5, 2.0]) if is_array_first else [1.5, 2.0]
    rows = [first, *[None] * is_null_there, [3, 4] if form == "list" else np.array([3, 4], form)]
    assert [value for value in columns(rows).arrow()["value"].to_pylist() if value is not None] == [[1.5, 2], [3, 4]]


def test_a_large_row_is_a_batch_of_its_own() -> None:
    rows = [bytes(300), bytes(300), bytes(5000), bytes(300)]
    assert [columns[0].rows for columns in batches(rows, size=1000)] == [2, 1, 1]
    assert [columns[0].rows for columns in batches([["a" * 9, "b" * 900], ["c"]], size=600, ragged=["value"])] == [1, 1]


def test_batches_of_arrow_are_cut_by_rows_and_bytes() -> None:
    batch = pa.RecordBatch.from_pydict({"x": list(range(1000)), "text": [f"{n}" * 3 for n in range(1000)]})
    for options in ({"rows": 300}, {"size": 4000}):
        parts = [record_batch(columns) for columns in batches_of([batch], **options)]
        assert len(parts) > 2
        assert [row for part in parts for row in part.column("x").to_pylist()] == list(range(1000))
        assert parts[1].column("text")[0].as_py() == f"{parts[0].num_rows}" * 3
