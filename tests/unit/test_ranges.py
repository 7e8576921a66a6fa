"""Sets of ranges agree with Python's own sets, whatever is done to them."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core.input.ranges import LARGEST, RangeSet

numbers = st.integers(0, 40)
pairs = st.tuples(numbers, numbers)
sets = st.sets(numbers)


def well_formed(ranges: RangeSet) -> bool:
    form = ranges.to_json()
    apart = all(left[1] < right[0] for left, right in itertools.pairwise(form))
    return apart and all(a < b for a, b in form) and ranges.count == sum(b - a for a, b in form)


@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "take"]), numbers, numbers)))
def test_any_sequence_of_changes_gives_what_a_plain_set_gives(steps: list[tuple[str, int, int]]) -> None:
    ranges, plain = RangeSet(), set[int]()
    for verb, a, b in steps:
        if verb == "add":
            ranges.add(a, b)
            plain |= set(range(a, b))
        elif verb == "discard":
            ranges.discard(a, b)
            plain -= set(range(a, b))
        else:
            taken = [n for first, end in ranges.take(a) for n in range(first, end)]
            assert taken == sorted(plain)[:a]
            plain -= set(taken)
        assert list(ranges) == sorted(plain)
        assert well_formed(ranges)


@given(sets, sets)
def test_union_difference_intersection(one: set[int], two: set[int]) -> None:
    a, b = RangeSet.of(one), RangeSet.of(two)
    assert set(a.union(b)) == one | two
    assert set(a.difference(b)) == one - two
    assert set(a.intersection(b)) == one & two
    assert set(a) == one
    assert set(b) == two
    assert all(well_formed(made) for made in (a.union(b), a.difference(b), a.intersection(b)))


@given(sets, pairs)
def test_membership(plain: set[int], pair: tuple[int, int]) -> None:
    ranges, (first, end) = RangeSet.of(plain), pair
    assert [n in ranges for n in range(42)] == [n in plain for n in range(42)]
    assert ranges.covers(first, end) == (set(range(first, end)) <= plain)
    assert {n for a, b in ranges.within(first, end) for n in range(a, b)} == plain & set(range(first, end))
    assert bool(ranges) == bool(plain)
    assert ranges.count == len(plain)


@given(sets, st.randoms())
def test_equal_sets_have_one_json_form_in_whatever_order_they_were_made(plain: set[int], random) -> None:
    shuffled = list(plain)
    random.shuffle(shuffled)
    one, two = RangeSet.of(sorted(plain)), RangeSet.of(shuffled)
    assert one == two
    assert one.to_json() == two.to_json()
    assert RangeSet.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        3,
        "ab",
        {},
        [1],
        [[1]],
        [[1, 2, 3]],
        [[2, 1]],
        [[1, 1]],
        [[-1, 2]],
        [["1", 2]],
        [[1.0, 2]],
        [[True, 2]],
        [[0, LARGEST + 1]],
    ],
)
def test_what_is_no_list_of_ranges_is_refused(garbage: object) -> None:
    with pytest.raises(ValueError, match="range"):
        RangeSet.from_json(garbage)


def test_a_million_consecutive_numbers_are_one_range() -> None:
    ranges = RangeSet()
    for first in range(0, 1_000_000, 1000):
        ranges.add(first, first + 1000)
    assert ranges.to_json() == [[0, 1_000_000]]
