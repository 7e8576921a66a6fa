"""Secret values are redacted in what is stored, wherever the pieces are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.agent.output.redactor import Redactor

VALUE = "abcabcabd-secret"


@given(
    st.lists(st.sampled_from(["abc", VALUE, "x", "abcabcab", "\n"]), max_size=12),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_no_cut_lets_a_value_through(parts: list[str], sizes: list[int]) -> None:
    text, redactor, stored = "".join(parts).encode(), Redactor([VALUE, "short"]), b""
    at = turn = 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        stored += redactor.redact(text[at : at + size])
        at, turn = at + size, turn + 1
    stored += redactor.rest()
    assert stored == text.replace(VALUE.encode(), b"[redacted]")


def test_short_values_are_not_looked_for() -> None:
    assert not Redactor(["1234567"])
