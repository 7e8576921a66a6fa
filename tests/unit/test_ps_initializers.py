"""Initial rows: their distributions, their independence, and that they are the same bits whoever makes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.ps.initializers import (
    Constant,
    Normal,
    TruncatedNormal,
    Uniform,
    _normal_quantile,
    glorot_normal,
    glorot_uniform,
    table_key,
    zeros,
)

KEY = table_key(7, "user")
MANY = numpy.arange(-50_000, 50_000)
STANDARD = NormalDist()
INITIALIZERS = [zeros(), Constant(0.5), Uniform(-2.0, 3.0), Normal(1.0, 2.0), TruncatedNormal(1.0, 2.0)]


def sample(initializer: Any, dimension: int = 4) -> Any:
    return initializer.rows(KEY, MANY, dimension).astype(numpy.float64)


@pytest.mark.parametrize("initializer", INITIALIZERS, ids=str)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30), st.integers(1, 9))
def test_a_row_depends_on_its_id_alone(initializer: Any, ids: list[int], dimension: int) -> None:
    rows = initializer.rows(KEY, numpy.array(ids, numpy.int64), dimension)
    assert rows.shape == (len(ids), dimension)
    assert rows.dtype == numpy.float32
    for number, row in zip(ids, rows, strict=True):
        assert (initializer.rows(KEY, numpy.array([number]), dimension)[0] == row).all()
        assert (initializer.rows(KEY, numpy.array([number]), 12)[0, :dimension] == row).all()


def test_the_bits_never_change() -> None:
    """A row that is made again, on another machine or by another version, must be the same."""
    ids = numpy.array([0, 1, -1, 2**40])
    rows = [initializer.rows(KEY, ids, 3).tobytes().hex() for initializer in INITIALIZERS[2:]]
    assert rows == [
        "751e1740f5d11240cd9ff43fbeb00f3f8cd81840dde9a03f0691bcbf5c2dc53f031c3e403e60b93ee91fd13fbd162c40",
        "b78b5140a599494038ce234003de873f94e654401ba1e33f5466c0bfb01e06403120c140eb905c3f3f300d4013548240",
        "0d9d4740099b40401c501e405982873fc88b4a408ce0de3f6796a8bfc09d0240b1eb9940452e5e3f0a41094015067240",
    ]


def test_other_seeds_and_tables_make_other_rows() -> None:
    keys = [table_key(7, "user"), table_key(8, "user"), table_key(7, "item"), table_key(-7, "user")]
    rows = [Uniform().rows(key, MANY[:1000], 4) for key in keys]
    assert len({key % 2**32 for key in keys}) == 4
    for number, first in enumerate(rows):
        for second in rows[number + 1 :]:
            assert abs(numpy.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.06


def cut_normal(value: float) -> float:
    below = STANDARD.cdf(-2)
    return (STANDARD.cdf((value - 1) / 2) - below) / (1 - 2 * below)


@pytest.mark.parametrize(
    ("initializer", "share_below", "mean", "deviation", "bounds"),
    [
        (Uniform(-2.0, 3.0), lambda value: (value + 2) / 5, 0.5, 5 / math.sqrt(12), (-2, 3)),
        (Normal(1.0, 2.0), NormalDist(1, 2).cdf, 1.0, 2.0, (-11, 13)),
        (TruncatedNormal(1.0, 2.0), cut_normal, 1.0, 2 * 0.8796256610342398, (-3, 5)),
    ],
    ids=["uniform", "normal", "truncated"],
)
def test_numbers_have_their_distribution(
    initializer: Any, share_below: Callable[[float], float], mean: float, deviation: float, bounds: tuple[float, float]
) -> None:
    values = sample(initializer)
    count = values.size
    assert abs(values.mean() - mean) < 4 * deviation / math.sqrt(count)
    assert values.std() == pytest.approx(deviation, rel=0.01)
    assert bounds[0] <= values.min() < values.max() <= bounds[1]
    assert abs(((values - mean) ** 3).mean()) / deviation**3 < 0.03  # all three are symmetric
    ordered = numpy.sort(values.ravel())[:: count // 2000]
    distance = max(abs(share_below(value) - place * (count // 2000) / count) for place, value in enumerate(ordered))
    assert distance < 1.95 / math.sqrt(count)  # Kolmogorov and Smirnov, at 0.1 %


@pytest.mark.parametrize("stride", [1, 2, 26, 2**20, 2**40])
def test_rows_of_regular_ids_are_independent(stride: int) -> None:
    values = Uniform(0.0, 1.0).rows(KEY, numpy.arange(20_000) * stride, 8).astype(numpy.float64)
    limit = 4.5 / math.sqrt(len(values))
    assert numpy.abs(numpy.corrcoef(values.T) - numpy.eye(8)).max() < limit  # columns of a row
    for lag in (1, 2, 16):
        assert abs(numpy.corrcoef(values[:-lag].ravel(), values[lag:].ravel())[0, 1]) < limit  # rows of neighbours
    cells = numpy.bincount((values[:-1, 0] * 16).astype(int) * 16 + (values[1:, 0] * 16).astype(int), minlength=256)
    expected = (len(values) - 1) / 256
    assert ((cells - expected) ** 2 / expected).sum() < 360  # chi-squared of 255 degrees of freedom, at 0.002 %


def test_the_normal_quantile_is_that_of_the_standard_library() -> None:
    shares = numpy.concatenate([numpy.linspace(1e-6, 1 - 1e-6, 20_001), 2.0 ** -numpy.arange(1, 53)])
    expected = [STANDARD.inv_cdf(share) for share in shares]
    numpy.testing.assert_allclose(_normal_quantile(shares), expected, rtol=1e-13, atol=1e-15)


def test_glorot_scales_with_both_sides() -> None:
    uniform, normal = sample(glorot_uniform(996, 4)), sample(glorot_normal(996, 4))
    limit = math.sqrt(6 / 1000)
    assert limit * 0.999 < numpy.abs(uniform).max() <= numpy.float32(limit)
    assert uniform.std() == pytest.approx(math.sqrt(2 / 1000), rel=0.01)
    assert normal.std() == pytest.approx(math.sqrt(2 / 1000), rel=0.01)
    for make in (glorot_uniform, glorot_normal):
        with pytest.raises(ValueError, match="give the table an input_dim"):
            make(None, 4)


def test_impossible_distributions_are_refused() -> None:
    with pytest.raises(ValueError, match="low <= high"):
        Uniform(1.0, 0.0)
    for kind in (Normal, TruncatedNormal):
        with pytest.raises(ValueError, match="must not be negative, and is -1"):
            kind(0.0, -1.0)
