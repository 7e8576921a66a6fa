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


KEY = "-----BEGIN KEY-----\nfirst-line-of-it\nab\nother-line-of-it\n-----END KEY-----"


@given(
    st.lists(st.sampled_from([KEY, repr(KEY), KEY[:30], "first-line-of-it", "first-", "\n", "x"]), max_size=9),
    st.lists(st.integers(1, 40), min_size=1),
)
def test_no_cut_lets_a_line_of_a_value_through(parts: list[str], sizes: list[int]) -> None:
    text, redactor, stored = "".join(parts).encode(), Redactor([KEY]), b""
    at = turn = 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        stored += redactor.redact(text[at : at + size])
        at, turn = at + size, turn + 1
    stored += redactor.rest()
    assert b"first-line-of-it" not in stored
    assert b"other-line-of-it" not in stored
    assert b"\nab\n" not in stored.replace(b"-----\n[redacted]\nab\n[redacted]\n-----", b"")
    assert stored.count(b"x") == text.count(b"x")


def test_short_values_are_not_looked_for() -> None:
    assert not Redactor(["1234567"])
