"""Numbers in names that others may have written."""

from __future__ import annotations

import re

import pytest

from trainmaster.core.numerals import NUMERAL, number_in, numbers_in


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("9" * 15, 10**15 - 1)])
def test_a_numeral_is_read(text: str, number: int) -> None:
    assert number_in(text) == number
    assert re.fullmatch(NUMERAL, text)


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", " 1", "1\n", "1_0", "1.0", "9" * 16, "9" * 5000, "\u0663", "\u00b2", "x"]
)
def test_other_texts_are_no_number(text: str) -> None:
    assert number_in(text) is None
    assert re.fullmatch(NUMERAL, text) is None


def test_the_numbers_among_names_rise() -> None:
    assert numbers_in(["10", "x", "9", "9" * 20, "008"]) == [8, 9, 10]
