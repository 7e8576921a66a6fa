"""The rule by which CI leaves out full tests."""

from __future__ import annotations

import re
from pathlib import Path

from rotation import REACH, TURNS, is_chosen, summary, turn_of

SOURCE = Path(__file__).parents[2] / "src/trainmaster"
TESTS = [f"tests/conformance/test_ends.py::test_{number}[yarn]" for number in range(300)]


def test_each_test_runs_at_least_at_every_third_landing() -> None:
    for first in range(5):
        landings = range(first, first + TURNS)
        assert all(any(is_chosen(test, turn, []) for turn in landings) for test in TESTS)


def test_a_landing_runs_about_a_third_of_what_it_does_not_touch() -> None:
    for turn in range(TURNS):
        assert 60 < sum(is_chosen(test, turn, ["src/trainmaster/core/fold.py"]) for test in TESTS) < 140


def test_a_change_of_an_engine_runs_all_of_its_tests() -> None:
    files = ["src/trainmaster/engines/yarn/engine.py"]
    assert all(is_chosen(test, 0, files) for test in TESTS)
    other = next(test for test in TESTS if turn_of(test.replace("yarn", "kubernetes")) != 0).replace(
        "yarn", "kubernetes"
    )
    assert not is_chosen(other, 0, files)


def test_a_test_whose_file_changes_runs() -> None:
    assert all(is_chosen(test, 0, ["tests/conformance/test_ends.py"]) for test in TESTS)


def test_the_table_names_code_that_there_is() -> None:
    paths = [str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.*")]
    assert [code for code, _ in REACH if not any(re.match(code, path) for path in paths)] == []


def test_what_is_left_out_is_printed_with_its_turn() -> None:
    lines = summary([test for test in TESTS if turn_of(test) != 1], 1)
    assert lines[0].startswith("turn 1 of 3: ")
    assert {line.partition(":")[0] for line in lines[1:]} == {"left out until turn 0", "left out until turn 2"}
