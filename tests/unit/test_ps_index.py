"""The hash index of embedding tables: any sequence of insertions and removals gives what a dict gives."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.ps.tables.index import MISSING, Index

SMALL = st.integers(-8, 8)  # often the same ones
ANY = st.integers(-(2**63), 2**63 - 1)
HIGH = st.integers(-(2**15), 2**15 - 1).map(lambda number: number << 48)  # differ in their top bits alone
IDS = st.lists(SMALL | ANY | HIGH, max_size=60)


def array(ids: Any) -> Any:
    return numpy.array(list(ids), numpy.int64)


@given(st.lists(st.tuples(st.booleans(), IDS), max_size=12), IDS)
def test_an_index_is_a_dict(actions: list[tuple[bool, list[int]]], strangers: list[int]) -> None:
    index, model, most = Index(), dict[int, int](), 0
    for is_insertion, ids in actions:
        if is_insertion:
            new = sorted({*ids} - {*model})
            model.update(zip(new, index.insert(array(new)).tolist(), strict=True))
            most = max(most, len(model))
        else:
            freed = index.remove(array({*ids}))
            assert sorted(freed.tolist()) == sorted(model.pop(key) for key in {*ids} if key in model)
        assert len(index) == len(model) == len({*model.values()})
        asked = [*model, *strangers, *ids]
        assert index.lookup(array(asked)).tolist() == [model.get(key, MISSING) for key in asked]
        assert index.rows().tolist() == sorted(model.values())
        assert index.ids(array(model.values())).tolist() == [*model]
    assert index.end == most  # free row numbers are used before new ones


@pytest.mark.parametrize("shift", [0, 1, 7, 20, 40, 44])
def test_ids_in_any_regular_pattern_are_found_in_few_steps(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = (numpy.arange(-100_000, 100_000) << shift) + 5
    index = Index()
    rows = numpy.concatenate([index.insert(part) for part in numpy.split(ids, 40)])
    steps = 0
    goes_on = Index._goes_on

    def count(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        return goes_on(*arguments)

    monkeypatch.setattr(Index, "_goes_on", count)
    assert (index.lookup(ids) == rows).all()
    assert steps < 60
    assert (index.lookup(ids ^ 2**62) == MISSING).all()


def test_rows_that_come_and_go_let_no_search_get_long_and_no_memory_grow() -> None:
    index = Index()
    for number in range(200):
        ids = numpy.arange(1000) + 1000 * number
        index.insert(ids)
        if number:
            assert len(index.remove(ids - 1000)) == 1000
    assert len(index) == 1000
    assert index.end == 2000
    assert index.size < 80_000


def test_an_id_takes_at_most_24_bytes() -> None:
    index = Index()
    for number in range(300):
        index.insert(numpy.arange(1000) * 7919 + number * 7_919_000)
        assert number < 4 or index.size <= 24 * len(index)


def test_row_numbers_that_need_more_than_31_bits_get_them() -> None:
    index = Index()
    ids = numpy.arange(50)
    rows = index.insert(ids)
    narrow = index.size
    index.end = 2**31  # as after so many insertions
    index._rebuild(len(index))
    index.end = 50
    assert index.size > narrow
    assert (index.lookup(ids) == rows).all()
