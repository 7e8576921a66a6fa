"""The stdin of `tm run`: a single task on this machine has it, from a pipe or a terminal; others say that they cannot."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from trainmaster.client.printing import asks

TM = [sys.executable, "-m", "trainmaster.cli"]
DEBUGGED = "x = 6\nimport pdb; pdb.set_trace()\nprint('after', x)\n"


def tm(*arguments: str, cwd: Path, stdin: bytes | None) -> subprocess.CompletedProcess[bytes]:
    source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    return subprocess.run([*TM, *arguments], capture_output=True, cwd=cwd, timeout=120, check=False, **source)


def test_a_pipe_reaches_a_single_task_to_its_last_byte(tmp_path: Path, home) -> None:
    data = bytes(range(256)) * 4000
    done = tm("run", "--", "cat", cwd=tmp_path, stdin=data)
    assert (done.returncode, done.stdout) == (0, data), done.stderr
    again = tm("run", "--stdin", "none", "--", "cat", cwd=tmp_path, stdin=b"nobody reads it\n")
    assert (again.returncode, again.stdout) == (0, b""), again.stderr


def test_one_task_of_several_has_it_by_name(tmp_path: Path, home) -> None:
    done = tm("run", "-n", "2", "--stdin", "worker:1", "--", "sed", "s/^/got /", cwd=tmp_path, stdin=b"one\ntwo\n")
    assert (done.returncode, done.stdout) == (0, b"worker:1 got one\nworker:1 got two\n"), done.stderr
    without = tm("run", "-n", "2", "--", "cat", cwd=tmp_path, stdin=b"one\n")
    assert (without.returncode, without.stdout) == (0, b""), without.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stdin", "ps:0"], b"has no task ps:0"),
        (["--stdin", "worker:0", "--processes", "2"], b"worker:0 has several copies of its program"),
    ],
)
def test_a_task_that_cannot_have_it_is_named(tmp_path: Path, home, words: list[str], message: bytes) -> None:
    done = tm("run", *words, "--", "cat", cwd=tmp_path, stdin=b"")
    assert (done.returncode, done.stderr.count(b"error")) == (2, 1)
    assert message in done.stderr


def test_pdb_works_on_a_terminal(tmp_path: Path, home) -> None:
    (tmp_path / "debugged.py").write_text(DEBUGGED)
    command, terminal = pty.fork()
    if command == 0:
        os.chdir(tmp_path)
        os.execve(TM[0], [*TM, "run", "--", sys.executable, "debugged.py"], {**os.environ, "TERM": "xterm"})
    os.set_blocking(terminal, False)
    shown = bytearray()

    def read() -> bytes:
        try:
            shown.extend(os.read(terminal, 65536))
        except BlockingIOError:
            pass
        except OSError:  # the command has left the terminal
            shown.extend(b"<end>")
        return bytes(shown)

    try:
        until(lambda: b"(Pdb) " in read(), what=lambda: bytes(shown))
        os.write(terminal, b"p x * 7\n")
        until(lambda: b"42" in read(), what=lambda: bytes(shown))
        os.write(terminal, b"c\n")
        until(lambda: b"<end>" in read(), what=lambda: bytes(shown))
        assert b"after 6" in shown
        assert b"succeeded after" in shown
    finally:
        _, status = os.waitpid(command, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("(Pdb) ", True), ("text\nname? ", True), (">>> ", True),
        ("whole\n", False), ("\r 10 %:", False), ("half a li", False), ("", False),
    ],
)  # fmt: skip
def test_a_question_is_told_from_a_line_that_is_not_whole(text: str, question: bool) -> None:
    assert asks(text) is question
