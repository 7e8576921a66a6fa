"""Numbers and texts that others may have written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from trainmaster.core.foreign import NUMERAL, json_in, number_in, numbers_in, printable


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


def test_a_terminal_obeys_nothing_of_a_text() -> None:
    assert printable("a \x1b]52;c;aGVsbG8=\x07b\n\u202e\ud800", 40) == "a \ufffd]52;c;aGVsbG8=\ufffdb\ufffd\ufffd\ufffd"
    assert printable("Größe 模型 🚂", 8) == "Größe 模型"


PROGRAM = """
import time
from trainmaster import runtime
evil = "\\x1b]52;c;aGVsbG8=\\x07"
runtime.metrics(**{evil: 1.0})
with runtime.phase(f"phase {evil}"):
    while not __import__("os").path.exists("go"):
        time.sleep(0.05)
open("go2", "w").close()
runtime.cannot_go_on(f"cannot {evil}")
raise SystemExit(1)
"""


def test_no_command_writes_what_a_program_would_have_a_terminal_obey(tmp_path: Path, home) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    def tm(*arguments: str) -> str:
        command = [sys.executable, "-m", "trainmaster.cli", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
        )
        return done.stdout + done.stderr

    tm("submit", "--", sys.executable, "program.py")
    (name,) = (path.name for path in (home.state / "jobs").iterdir())
    until(lambda: "phase " in tm("status", name))
    shown = [tm(*arguments) for arguments in (("status", name), ("list",), ("events", name), ("top", "-n", "1"))]
    (tmp_path / "go").touch()
    shown += [tm(*arguments) for arguments in (("wait", name), ("status", name), ("list",), ("events", name))]
    assert [text for text in shown if "\x1b]" in text or "\x07" in text] == []
    assert any("cannot" in text for text in shown)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "{", b"\xff", ""])
def test_what_is_not_json_is_one_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|Expecting|invalid start byte"):
        json_in(text)
