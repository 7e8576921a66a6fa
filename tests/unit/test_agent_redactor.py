"""Secret values are redacted in what is stored, wherever the pieces are cut."""

from __future__ import annotations

import html
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.agent.output.redactor import Redactor
from trainmaster.core.spec.redaction import redact

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


ODD = "it's <odd> &+%value"
ODD_WRITINGS = [
    html.escape(ODD),
    repr(ODD),
    quote(ODD),
    ODD.replace("'", "'\\''"),
    f"{ODD[:7]}\x1b[31m{ODD[7:]}",
    ODD.encode().hex(),
    ODD.upper(),
]


@given(
    st.lists(st.sampled_from([*ODD_WRITINGS, "it", "&", "\\", "%", "\n", "x"]), max_size=9),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_no_cut_lets_a_writing_through(parts: list[str], sizes: list[int]) -> None:
    text, redactor, stored = "; ".join(parts).encode(), Redactor([ODD]), b""
    at = turn = 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        stored += redactor.redact(text[at : at + size])
        at, turn = at + size, turn + 1
    stored += redactor.rest()
    assert stored == redact(text.decode(), (ODD,)).encode()
    assert stored.count(b"[redacted]") == sum(part in ODD_WRITINGS for part in parts)


def test_a_line_is_stored_at_once_though_a_value_begins_as_it_ends() -> None:
    redactor = Redactor(["abcabcabd-secret"])
    for line in (b"it ends with abc\n", b"50%\r", b"60%", b"70 \\"):
        assert redactor.redact(line) == line
