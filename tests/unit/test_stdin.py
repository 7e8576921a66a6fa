"""The stdin of `tm run`: a single task on this machine has it, from a pipe or a terminal; others say that they cannot."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from trainmaster.client.watch.lines import Lines
from trainmaster.client.watch.printing import LONGEST_QUESTION, STANDING, Question

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
    note = "note: nobody reads this command's stdin: --stdin worker:0 gives it to a task, --stdin none says that this is meant"
    assert without.stderr.decode().count(note) == 1
    for words, stdin in ((("--stdin", "none"), b"one\n"), ((), b"")):
        assert b"note: " not in tm("run", "-n", "2", *words, "--", "cat", cwd=tmp_path, stdin=stdin).stderr


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


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self._command, self._screen = pty.fork()
        if self._command == 0:
            os.chdir(cwd)
            os.execve(TM[0], [*TM, *arguments], {**os.environ, "TERM": "xterm"})
        os.set_blocking(self._screen, False)
        self.shown = bytearray()

    def wait_for(self, text: bytes) -> None:
        until(lambda: text in self._read(), what=lambda: bytes(self.shown))

    def write(self, text: bytes) -> None:
        os.write(self._screen, text)

    def end(self) -> int:
        """Wait for the end; returns the exit status."""
        try:
            self.wait_for(b"<end>")
        except BaseException:
            os.kill(self._command, signal.SIGKILL)
            raise
        finally:
            _, status = os.waitpid(self._command, 0)
            os.close(self._screen)
        return os.waitstatus_to_exitcode(status)

    def _read(self) -> bytes:
        try:
            self.shown.extend(os.read(self._screen, 65536))
        except BlockingIOError:
            pass
        except OSError:  # the command has left the terminal
            self.shown.extend(b"<end>")
        return bytes(self.shown)


def test_pdb_works_on_a_terminal(tmp_path: Path, home) -> None:
    (tmp_path / "debugged.py").write_text(DEBUGGED)
    terminal = Terminal("run", "--", sys.executable, "debugged.py", cwd=tmp_path)
    try:
        terminal.wait_for(b"(Pdb) ")
        terminal.write(b"p x * 7\n")
        terminal.wait_for(b"42")
        terminal.write(b"c\n")
        terminal.wait_for(b"succeeded after")
        assert b"after 6" in terminal.shown
    finally:
        status = terminal.end()
    assert status == 0


@pytest.mark.parametrize(
    ("text", "at_once", "later"),
    [
        ("(Pdb) ", True, True), ("text\nname? ", True, True), (">>> ", True, True), ("Your name ", False, True),
        ("whole\n", False, False), ("\r 10 %:", False, False), ("x" * LONGEST_QUESTION, False, False), ("", False, False),
    ],
)  # fmt: skip
def test_a_question_is_a_line_that_is_not_whole_and_stands(text: str, at_once: bool, later: bool) -> None:
    """`input('Your name ')` ends as any text may, so it is no line on its way once it has stood for a moment."""
    lines, question = Lines(), Question("worker:0")
    lines.add({"task": "worker:0", "attempt": 1, "offset": 0, "data": text})
    lines.add({"task": "worker:1", "attempt": 1, "offset": 0, "data": "Anybody? "})
    asked = [question.is_asked(lines, now) for now in (5.0, 5.0 + STANDING / 2, 5.1 + STANDING)]
    assert asked == [at_once, at_once, later]


def test_a_question_without_a_mark_is_seen_on_a_terminal(tmp_path: Path, home) -> None:
    (tmp_path / "asks.py").write_text("print('got', input('Your name '))\n")
    terminal = Terminal("run", "--", sys.executable, "asks.py", cwd=tmp_path)
    try:
        terminal.wait_for(b"Your name ")
        terminal.write(b"Bob\n")
        terminal.wait_for(b"got Bob")
    finally:
        status = terminal.end()
    assert status == 0
