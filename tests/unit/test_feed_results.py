"""Results of rows as bytes and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.runtime.feed.results import pack, unpack

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


def through(results: list[Any]) -> list[Any]:
    return unpack(b"".join(pack(results)))


def typed(value: Any) -> Any:
    """Return a value with its types, which == does not compare."""
    parts = list(value.items()) if isinstance(value, dict) else value
    return type(value), [typed(part) for part in parts] if isinstance(parts, list | tuple) else value


@given(st.lists(values, max_size=20))
def test_results_come_back_as_they_were(results: list[Any]) -> None:
    assert typed(through(results)) == typed(results)


def test_arrays_keep_type_and_shape() -> None:
    results = [
        np.arange(6, dtype="f4").reshape(2, 3),
        np.arange(2, dtype=">i2"),
        np.ones((2, 3), "f4").T,
        None,
        np.zeros((0, 3)),
    ]
    for back, result in zip(through(results), results, strict=True):
        assert (back is None) == (result is None)
        if result is not None:
            assert back.dtype == result.dtype
            np.testing.assert_array_equal(back, result)


def test_scalars_of_numpy_become_those_of_python_and_tensors_arrays() -> None:
    class Tensor:
        def numpy(self) -> Any:
            return np.array([1.5, 2.5])

    [number, flag, label, scalar, tensor] = through(
        [np.float32(0.5), np.bool_(True), (np.int64(3), "a"), np.array(7), Tensor()]
    )
    assert typed([number, flag, label, scalar]) == typed([0.5, True, (3, "a"), 7])
    assert tensor.tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"a": {1}}, "a result is set: it must be a number, text"),
        ([1, object()], "a result is object"),
        (np.array(["a"]), "a result is an array of <U1"),
        (2**63, "more than 64 bits"),
        (1j, "a result is complex"),
    ],
)
def test_what_is_no_result_is_named(result: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        pack([1, result])
