"""Sizes and durations as people write them, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core.spec.quantities import (
    exact_bytes,
    exact_seconds,
    format_bytes,
    format_count,
    format_seconds,
    parse_bytes,
    parse_count,
    parse_seconds,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 * GIB), ("2 GiB", 2 * GIB), ("2g", 2 * GIB), ("2Gi", 2 * GIB), ("512MB", 512_000_000), ("1.5KiB", 1536),
     ("7B", 7), ("0B", 0), (" 1TiB ", 2**40), ("1_000kb", 10**6)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "told"),
    [("12", "a size needs a unit: 12MiB or 12GiB?"), ("12GiBs", "GiBs is not a unit of size"), ("much", "expected a size"),
     ("", "expected a size"), ("1GiB 2MiB", "expected a size"), ("-1GiB", "expected a size"), ("1e3MB", "expected a size"),
     ("9000PiB", "larger than any machine"), ("infGiB", "expected a size"), ("²GiB", "expected a size")],
)  # fmt: skip
def test_what_is_no_size(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("?", r"\?")):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300.0), ("1h30m", 5400.0), ("1 h 30 m", 5400.0), ("250ms", 0.25), ("2 days", 172800.0), ("1.5s", 1.5),
     ("10min", 600.0), ("1w", 604800.0), ("0s", 0.0), ("none", None), ("None", None)],
)  # fmt: skip
def test_durations(text: str, seconds: float | None) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "told"),
    [("30", "a duration needs a unit: 30s or 30m?"), ("5 parsecs", "parsecs is not a unit of time"), ("soon", "expected a duration"),
     ("", "expected a duration"), ("-5m", "expected a duration"), ("99999999w", "longer than 100 years"), ("9" * 400 + "s", "expected")],
)  # fmt: skip
def test_what_is_no_duration(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("?", r"\?")):
        parse_seconds(text)


def test_counts() -> None:
    assert [parse_count("0"), parse_count(" 1_000 ")] == [0, 1000]
    for text in ("", "-1", "1.5", "one", "１", "9" * 19):
        with pytest.raises(ValueError, match="expected a whole number"):
            parse_count(text)


@given(st.integers(0, 2**63 - 2**11))
def test_an_exact_size_reads_back(size: int) -> None:
    if size < 2**53 or size % 1024 == 0:  # a number in a text is a float
        assert parse_bytes(exact_bytes(size)) == size


@given(st.none() | st.floats(0, 100 * 366 * 86400.0))
def test_an_exact_duration_reads_back(seconds: float | None) -> None:
    assert parse_seconds(exact_seconds(seconds)) == seconds


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (12 * GIB, "12 GiB"), (1_500_000, "1.43 MiB"), (GIB - 1, "1 GiB"),
     (512 * 2**20, "512 MiB"), (2**63, "8192 PiB")],
)  # fmt: skip
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.0903, "90.3 ms"), (2.5, "2.5 s"), (59.97, "1 m"), (300, "5 m"), (5400, "1 h 30 m"), (90061, "1 d 1 h"),
     (86401, "1 d"), (None, "none"), (-2.5, "-2.5 s")],
)  # fmt: skip
def test_durations_for_people(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.floats(0, 1e10))
def test_any_figure_can_be_shown(figure: float) -> None:
    assert format_seconds(figure)
    assert format_bytes(figure)


def test_counts_for_people() -> None:
    assert [format_count(1, "task"), format_count(1200, "task"), format_count(0, "task")] == [
        "1 task",
        "1,200 tasks",
        "0 tasks",
    ]
