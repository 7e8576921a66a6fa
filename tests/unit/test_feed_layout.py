"""A batch as bytes: whatever columns are written, the same are read, in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.runtime.feed.arrow import Table
from trainmaster.runtime.feed.layout import Column, Layout, column_of, read
from trainmaster.runtime.feed.reader import Batch

DTYPES = ["<f4", "<f8", "<f2", "|i1", "<i2", "<i4", "<i8", "|u1", "<u8", "|b1", "<M8[us]", "<m8[s]", "<c8"]


def through(columns: list[Column]) -> tuple[Batch, memoryview]:
    layout = Layout(columns)
    memory = memoryview(bytearray(layout.size))
    layout.write(memory)
    return Batch((0, 0, 0), read(memory)), memory


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(1, 5), max_size=3)), min_size=1, max_size=6),
    st.integers(0, 20), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_fixed_columns(kinds: list[tuple[str, list[int]]], rows: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    arrays = {
        f"c {n} é": draw.integers(0, 100, (rows, *shape)).astype("i8" if dtype[1] in "mM" else dtype).astype(dtype)
        for n, (dtype, shape) in enumerate(kinds)
    }
    batch, _ = through([column_of(name, array) for name, array in arrays.items()])
    assert batch.rows == rows
    assert list(batch.columns) == list(arrays)
    for name, array in arrays.items():
        assert batch[name].dtype == array.dtype
        assert batch[name].shape == array.shape
        assert np.array_equal(batch[name], array)


def test_arrays_are_the_memory_itself() -> None:
    batch, memory = through([column_of("x", np.arange(12, dtype="f4").reshape(3, 4))])
    address = np.frombuffer(memory, "u1").ctypes.data
    assert 0 < batch["x"].ctypes.data - address < len(memory)
    batch["x"][1, 1] = 77
    assert batch["x"][1, 1] == 77


def test_an_array_in_another_order_is_copied() -> None:
    array = np.arange(12, dtype="f4").reshape(3, 4)
    batch, _ = through([column_of("t", array.T), column_of("s", array[:, ::2].T[:, :].repeat(2, axis=0)[:4])])
    assert np.array_equal(batch["t"], array.T)


ARROW: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "timestamp": (pa.timestamp("us"), st.integers(0, 2**50)),
    "text": (pa.string(), st.text(max_size=5)),
    "large_text": (pa.large_string(), st.text(max_size=5)),
    "binary": (pa.binary(), st.binary(max_size=5)),
    "list": (pa.list_(pa.int32()), st.lists(st.integers(0, 9), max_size=4)),
    "large_list": (pa.large_list(pa.float32()), st.lists(st.integers(0, 9).map(float), max_size=4)),
    "vector": (pa.list_(pa.float32(), 3), st.lists(st.integers(0, 9).map(float), min_size=3, max_size=3)),
    "flags": (pa.list_(pa.bool_(), 2), st.lists(st.booleans(), min_size=2, max_size=2)),
    "matrix": (
        pa.list_(pa.list_(pa.int16(), 2), 2),
        st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=2, max_size=2),
    ),
    "date": (pa.date32(), st.dates()),
    "time": (pa.time64("us"), st.times()),
    "moment": (pa.timestamp("us", "Europe/Berlin"), st.integers(0, 2**50)),
    "decimal": (
        pa.decimal128(38, 18),
        st.decimals(allow_nan=False, allow_infinity=False, places=18, min_value=-(10**19), max_value=10**19),
    ),
    "words": (pa.list_(pa.list_(pa.string())), st.lists(st.lists(st.text(max_size=2), max_size=2), max_size=2)),
    "ragged": (pa.large_list(pa.large_list(pa.int8())), st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2)),
    "points": (
        pa.list_(pa.list_(pa.int16(), 2)),
        st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), max_size=3),
    ),
}


def test_a_slice_of_lists_within_lists_has_its_own_rows() -> None:
    whole = pa.RecordBatch.from_arrays([pa.array([[[0, 0], [0, 0]], [[0, 0], [0, 1]]], ARROW["matrix"][0])], ["m"])
    assert through(Table(None).columns(whole.slice(1)))[0].arrow().to_pylist() == [{"m": [[0, 0], [0, 1]]}]


@given(st.data(), st.lists(st.sampled_from(sorted(ARROW)), min_size=1, max_size=5), st.integers(0, 12))
def test_arrow_batches_come_back_as_they_were(data: st.DataObject, names: list[str], rows: int) -> None:
    arrays = []
    for name in names:
        kind, values = ARROW[name]
        content = data.draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        arrays.append(pa.array(content, kind))
    whole = pa.RecordBatch.from_arrays(arrays, [f"{n}:{name}" for n, name in enumerate(names)])
    first = data.draw(st.integers(0, rows))
    for batch in (whole, whole.slice(first), whole.slice(0, first)):
        copy = through(Table(None).columns(batch))[0].arrow()
        copy.validate(full=True)
        assert copy.schema == batch.schema
        assert copy.to_pylist() == batch.to_pylist()


def test_columns_of_arrow_as_numpy_and_python() -> None:
    batch, _ = through(
        Table(None).columns(
            pa.RecordBatch.from_pydict(
                {
                    "n": pa.array([1, None, 3]),
                    "t": pa.array(["a", None, "çé"]),
                    "b": pa.array([b"", b"xy", None]),
                    "l": pa.array([[1.0, 2.0], [], None]),
                    "p": pa.array([[[1, 2]], [], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int8(), 2))),
                    "f": pa.array([True, False, True]),
                }
            )
        )
    )
    assert batch.valid("n").tolist() == [True, False, True]
    assert batch.valid("f") is None
    assert batch["n"][[0, 2]].tolist() == [1, 3]
    assert batch["t"] == ["a", None, "çé"]
    assert batch["b"] == [b"", b"xy", None]
    assert [row if row is None else row.tolist() for row in batch["l"]] == [[1.0, 2.0], [], None]
    assert [row.tolist() for row in batch["p"]] == [[[1, 2]], [], [[3, 4], [5, 6]]]
    assert batch["f"].tolist() == [True, False, True]


def test_a_moment_is_that_of_utc_in_numpy() -> None:
    batch, _ = through(
        Table(None).columns(pa.RecordBatch.from_pydict({"t": pa.array([5], pa.timestamp("us", "Asia/Tokyo"))}))
    )
    assert batch["t"].tolist() == [np.datetime64(5, "us").astype(object)]


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "column 'x' has the type month_day_nano_interval"),
        (pa.array([{}], pa.struct([])), "column 'x' is a structure without fields"),
        (pa.array([[1, None]], pa.list_(pa.int8(), 2)), "row 0, column 'x' has nulls within its lists"),
        (pa.array([None, [1, None]]), "row 1, column 'x' has nulls within its lists"),
    ],
)
def test_types_that_columns_do_not_have(array: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words.replace("[", "\\[")):
        Table(None).columns(pa.RecordBatch.from_arrays([array], ["x"]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Column("x", "<f4", b"12345"), "5 bytes are not a multiple of <f4"),
        (lambda: Column("x", ">f4", b"1234"), "'>f4' is not the type"),
        (lambda: Column("x", "<f4", b"1234", kind="list"), "is not a column"),
        (lambda: Column("x", "<f4", b"1234", kind="list", offsets=b"123"), "3 bytes are not offsets"),
        (lambda: Column("x", "<f4", b"1234", kind="list", offsets=b""), "do not fit"),
        (lambda: Column("x", "<f4", b"1234", kind="list", offsets=np.array([0, 2])), "do not fit the 1 values"),
        (lambda: Column("x", "|u1", b"123456789", validity=b"1"), "too few for 9 rows"),
        (lambda: Column("x", "<f4", np.zeros((4, 4), "f4").T), "contiguous"),
        (lambda: Layout([]), "none"),
        (lambda: Layout([Column("x", "|u1", b"1"), Column("y", "|u1", b"12")]), "'x': 1, 'y': 2"),
    ],
)
def test_columns_that_are_none(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_bytes_that_are_cut_short_are_no_batch() -> None:
    layout = Layout([Column("x", "<f4", bytes(400))])
    memory = bytearray(layout.size)
    layout.write(memoryview(memory))
    with pytest.raises(ValueError, match="does not fit"):
        read(memoryview(memory)[:-1])
