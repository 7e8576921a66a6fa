"""The stdin of `tm run`: a single task on this machine has it, from a pipe or a terminal; others say that they cannot."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import leftovers
import pytest
from waiting import until

from trainmaster.agent.input.stdin import Stdin
from trainmaster.client.submit import stdin as submitted
from trainmaster.client.watch.lines import Lines
from trainmaster.client.watch.printing import LONGEST_QUESTION, STANDING, Question
from trainmaster.core.errors import StorageFailed
from trainmaster.host.places import job_dir, job_storage
from trainmaster.log.storage import LocalStorage

TM = [sys.executable, "-m", "trainmaster.cli"]
JOB = "stdin-aaaaaa"
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


def test_a_count_that_could_not_be_noted_cuts_no_input_short(home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program read the end after the first bytes, and its job succeeded."""
    failures, replace, passed_on = iter([True]), LocalStorage.replace, bytearray()

    def full_at_first(storage: LocalStorage, path: str, data: bytes, *, durable: bool = True) -> None:
        if next(failures, False):
            raise StorageFailed("no space left on the disk")
        replace(storage, path, data, durable=durable)

    monkeypatch.setattr(LocalStorage, "replace", full_at_first)
    job_storage(JOB).mkdir(parents=True)
    reading_end, writing_end = os.pipe()
    stdin = submitted.Stdin("worker:0", reading_end)
    stdin.prepare(JOB)
    pipe = os.open(job_dir(JOB) / "worker-0.stdin", os.O_RDONLY | os.O_NONBLOCK)

    def has_come(text: bytes) -> bool:
        with contextlib.suppress(BlockingIOError):
            passed_on.extend(os.read(pipe, 100))
        return passed_on == text

    (job_dir(JOB) / "worker-0.stdin.opened").touch()
    stdin.begin()
    try:
        os.write(writing_end, b"one\n")
        until(lambda: has_come(b"one\n"))
        os.write(writing_end, b"two\n")
        until(lambda: has_come(b"one\ntwo\n"))
        until(lambda: (job_storage(JOB) / "worker-0.stdin").read_bytes() == b"8\n")
    finally:
        for descriptor in (writing_end, pipe):
            os.close(descriptor)
        shutil.rmtree(job_dir(JOB))


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


def program(text: str) -> list[str]:
    return [
        "--",
        sys.executable,
        "-c",
        f"import os, sys, time; first = os.environ['TRAINMASTER_ATTEMPT'] == '1'; {text}",
    ]


READ_AND_FAIL = "line = sys.stdin.readline(); first and sys.exit(3); print('got', line, sys.stdin.read())"
READER_WITH_A_PEER = """
if [ $TRAINMASTER_INDEX = 0 ]; then read line; echo got $line > has-read; sleep 60; fi
until [ -e has-read ]; do sleep 0.1; done; exit 5
"""
READ_AND_LOSE_ITS_AGENT = (
    "line = sys.stdin.readline(); first and os.kill(os.getppid(), 9); first and time.sleep(60); print('got', line)"
)


@pytest.mark.parametrize(
    ("words", "stdin", "reason"),
    [
        (["--", sys.executable, "-"], b"import sys; sys.exit(3)", "exited with status 3, and had read from its stdin"),
        (["--", "bash", "-s"], b"exit 3\n", "exited with status 3, and had read from its stdin"),
        (program(READ_AND_FAIL), b"1\n2\n3\n", "exited with status 3, and had read from its stdin"),
        (program(READ_AND_FAIL), b"1\n" * 500_000, "exited with status 3, and had read from its stdin"),
        (program(READ_AND_LOSE_ITS_AGENT), b"1\n2\n3\n", "has no stdin any more"),
        (
            ["-n", "2", "--stdin", "worker:0", "--set", "roles.worker.restart.scope=group", "--", "sh", "-c", READER_WITH_A_PEER],
            b"1\n2\n3\n",
            "worker:0 has no stdin any more",
        ),
    ],
    ids=["a-program", "a-script", "in-the-middle", "more-than-a-pipe-holds", "its-agent-dies", "a-peer-fails"],
)  # fmt: skip
def test_a_program_that_has_read_its_stdin_is_not_started_again_without_it(
    tmp_path: Path, home, words: list[str], stdin: bytes, reason: str
) -> None:
    done = tm("run", *words, cwd=tmp_path, stdin=stdin)
    assert done.returncode not in (0, 2), done.stderr
    assert reason in done.stderr.decode()
    assert b"got  " not in done.stdout
    job = next((home.state / "jobs").iterdir()).name
    again = tm("retry", job, cwd=tmp_path, stdin=None)
    assert again.returncode == 2
    assert f"a program of {job} read from the stdin of its command" in again.stderr.decode()


def test_a_program_that_left_its_stdin_unread_finds_it_when_it_starts_again(tmp_path: Path, home) -> None:
    done = tm(
        "run", *program("first and sys.exit(1); print(len(sys.stdin.read()))"), cwd=tmp_path, stdin=b"1\n" * 500_000
    )
    assert (done.returncode, done.stdout) == (0, b"1000000\n"), done.stderr
    assert b"after 1 restart" in done.stderr


@pytest.mark.parametrize("count", [b"", b"6", b"x"])
def test_where_the_count_of_what_was_passed_on_is_damaged_nobody_takes_it_for_unread(
    tmp_path: Path, count: bytes
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "count").write_bytes(b"6\n")
    stdin = Stdin(str(tmp_path / "pipe"), str(tmp_path / "count"))
    stdin.open()
    with open(tmp_path / "pipe", "wb", buffering=0) as pipe:
        pipe.write(b"1\n2\n3\n")
        assert not stdin.was_read()
        (tmp_path / "count").write_bytes(count)
        assert stdin.was_read()
    stdin.close()


def test_a_job_whose_program_read_nothing_can_be_retried(tmp_path: Path, home) -> None:
    """As in a shell's loop that reads a list: the command reads the rest of it, and the program does not."""
    done = tm("run", "--set", "roles.worker.restart.scope=never", "--", "false", cwd=tmp_path, stdin=b"the\nlist\n")
    assert done.returncode == 1, done.stderr
    job = next((home.state / "jobs").iterdir()).name
    assert b"stdin" not in tm("retry", job, cwd=tmp_path, stdin=None).stderr


def test_a_job_that_is_taken_up_after_a_boot_does_not_begin_its_stdin_anew(tmp_path: Path, home) -> None:
    """All processes are gone, and with them what lay in the runtime directory."""
    words = program("first or sys.exit(0); sys.stdin.readline(); open('has-read', 'w').close(); time.sleep(120)")
    with subprocess.Popen([*TM, "run", *words], cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        assert run.stdin is not None
        run.stdin.write(b"1\n2\n")
        run.stdin.close()
        until(lambda: (tmp_path / "has-read").is_file())
        while processes := leftovers.marked(home.mark, [tmp_path]):
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
    job = next((home.state / "jobs").iterdir()).name
    shutil.rmtree(next(home.runtime.glob(f"*/{job}")))
    done = tm("attach", job, cwd=tmp_path, stdin=None)
    assert done.returncode not in (0, 2), done.stderr
    assert b"has no stdin any more" in done.stderr
