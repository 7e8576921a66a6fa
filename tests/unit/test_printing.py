"""The output that a command puts on a pipe: exactly the program's bytes, or its lines behind a lead, as fast as a pipe takes them."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from trainmaster.client.watch.printing import Choice, Piped
from trainmaster.client.watch.view import watch
from trainmaster.log.output import beyond, exact, piece, readable
from trainmaster.words.text import clean, last_state

ENDED = {"job": "digits", "state": "succeeded", "submitted": 1.0, "at": 2.0, "tasks": []}
TM = [sys.executable, "-m", "trainmaster.cli"]
BINARY = bytes(range(256)) * 8
PROGRAM = """
import os, sys
line = b"%06d " + b"x" * 72 + b"\\n"
for n in range(400):
    os.write(1, b"".join(line % (100 * n + i) for i in range(100)))
os.write(1, b"y" * 200_000 + b"\\n" + bytes(range(256)) + b"\\rno end")
"""


def written(choice: Choice, *pieces: dict[str, Any]) -> bytes:
    out = io.TextIOWrapper(io.BytesIO())
    shown = Piped(out, io.StringIO(), choice)
    for part in pieces:
        shown.piece(part)
    shown.close()
    return out.buffer.getvalue()


def output(data: bytes, offset: int = 0, task: str = "worker:0", attempt: int = 1) -> dict[str, Any]:
    text = data.decode("utf-8", "surrogateescape")
    return {"task": task, "attempt": attempt, "offset": offset, "next": offset + len(data), "data": text}


def tm(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*TM, *arguments], capture_output=True, cwd=cwd, env={**os.environ, **environ}, timeout=120, check=False
    )


def test_a_piece_stands_for_its_bytes_exactly() -> None:
    part = piece(0, 0, BINARY)
    assert part is not None
    assert exact(part["data"]) == BINARY[: part["next"]]
    rest = beyond(part, 130)
    assert rest is not None
    assert exact(rest["data"]) == BINARY[130 : part["next"]]
    assert json.loads(json.dumps(part)) == part
    assert readable(part["data"]).encode().startswith(bytes(range(128)) + "\ufffd".encode())


def test_one_task_on_a_pipe_is_byte_exact() -> None:
    first, second = BINARY + b"\rbar\r\nreporter progress:0.5\nhalf", b" a line\n\x1b[31mred"
    assert written(Choice(prefix=False), output(first), output(second, len(first))) == first + second


def test_lines_of_several_tasks_are_led_by_their_task_and_never_mixed() -> None:
    long = b"z" * 200_000
    got = written(
        Choice(),
        output(b"one\ntw"),
        output(b"other\n", task="worker:1"),
        output(b"o\nreporter progress:0.5\n" + long, 6),
        output(b"\nworker:0.1 is no copy\nlast", 6 + 24 + len(long)),
        output(b"again\n", attempt=2),
    )
    assert got.split(b"\n") == [
        b"worker:0 one", b"worker:1 other", b"worker:0 two", b"worker:0 " + long, b"worker:0 worker:0.1 is no copy", b"worker:0 last",
        b"worker:0 again", b"",
    ]  # fmt: skip


def test_lines_of_copies_are_led_by_their_copy_alone() -> None:
    printed = (
        b"worker:0.1 10 %\r20 %\r\nworker:0.10 worker:0.1 x\n[mark]\nworker:0.x\nworker:0.0 reporter progress:0.5\n"
    )
    wanted = [b"worker:0.1 10 %\r20 %\r", b"worker:0.10 worker:0.1 x", b"worker:0 [mark]", b"worker:0 worker:0.x"]
    choice = Choice(copied=["worker:0"])
    assert written(choice, output(printed)).split(b"\n") == [*wanted, b""]
    shown = choice.led("worker:0", printed.decode(), clean, 36).splitlines()
    assert shown[:2] == ["\x1b[36mworker:0.1 \x1b[0m20 %", "\x1b[36mworker:0.10 \x1b[0mworker:0.1 x"]
    stamped = Choice(timestamps=True, copied=["worker:0"]).led("worker:0", printed.decode()).splitlines()
    assert [line.partition(" ")[2] for line in stamped[-4:-1]] == [line.decode() for line in wanted[1:]]


def test_what_was_gone_before_it_was_read_is_named_on_stderr_and_not_among_the_bytes() -> None:
    gap = {
        "task": "worker:0",
        "attempt": 1,
        "offset": 4,
        "next": 1234,
        "data": "\n[trainmaster: 1230 bytes left out here]\n",
    }
    items = [
        {"log": output(b"one\n")},
        {"log": gap | {"left_out": 1230}},
        {"log": output(b"two\n", 1234)},
        {"end": ENDED},
    ]
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    watch("digits", items, out, err, Choice(prefix=False))
    assert out.buffer.getvalue() == b"one\ntwo\n"
    assert "missing: 1,230 bytes of the output of worker:0" in err.getvalue()
    assert "logs.limit" in err.getvalue()
    assert b"worker:0 [trainmaster: 1230 bytes left out here]\n" in written(
        Choice(), *(item["log"] for item in items[:3])
    )


def test_lines_may_be_led_by_their_time() -> None:
    got = written(Choice(timestamps=True, prefix=False), output(b"one\ntwo\n")).decode().splitlines()
    assert [line.partition(" ")[2] for line in got] == ["one", "two"]
    assert all(len(line.split()[0]) == len("2026-11-24T04:01:02.123+0000") for line in got)


@pytest.mark.parametrize(
    ("line", "state"), [(" 10 %\r 20 %\r100 %", "100 %"), ("\r 10 %\r 20 %\r", " 20 %"), ("plain", "plain"), ("", "")]
)
def test_a_progress_bar_is_shown_as_it_was_last(line: str, state: str) -> None:
    assert last_state(line) == state


def test_much_output_arrives_exactly_and_is_filtered(tmp_path: Path, home) -> None:
    """A line of 200 KB is one line, bytes that are no text stay what they are, and what is filtered is not shown."""
    (tmp_path / "many.py").write_text(PROGRAM)
    plain = subprocess.run([sys.executable, "many.py"], cwd=tmp_path, capture_output=True, check=True).stdout
    done = tm("run", "--name", "many", "--", sys.executable, "many.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain
    assert tm("logs", "many", "worker:0", cwd=tmp_path).stdout == plain
    shown = tm("attach", "--all-output", "--prefix", "many", cwd=tmp_path).stdout.splitlines(keepends=True)
    assert b"".join(line.removeprefix(b"worker:0 ") for line in shown) == plain + b"\n"
    assert tm("logs", "many", cwd=tmp_path).stdout.splitlines()[-1] == b"worker:0 no end"
    assert tm("attach", "--all-output", "--quiet", "many", cwd=tmp_path).stdout == b""
    quiet = tm("run", "--quiet", "--", "sh", "-c", "echo seen", cwd=tmp_path)
    assert (quiet.returncode, quiet.stdout, b"succeeded after" in quiet.stderr) == (0, b"", True)
    wrong = tm("attach", "--tasks", "worker:7", "many", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr.count(b"error")) == (2, 1)
    assert b"has no task worker:7" in wrong.stderr


def test_a_reader_that_stands_still_holds_up_no_program(tmp_path: Path, home) -> None:
    """As a terminal does after Ctrl-S: nobody reads the command's output, and the job ends all the same."""
    (tmp_path / "many.py").write_text(PROGRAM)
    with subprocess.Popen(
        [*TM, "run", "--name", "still", "--", sys.executable, "many.py"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path
    ) as command:  # fmt: skip
        try:
            until(lambda: tm("wait", "still", cwd=tmp_path).returncode == 0)
            assert command.poll() is None
        finally:
            command.kill()


def test_no_program_can_write_in_the_name_of_another(tmp_path: Path, home) -> None:
    said = "echo worker:0.9 no copy; echo worker:1.x"
    done = tm("run", "-n", "2", "--name", "two", "--", "sh", "-c", said, cwd=tmp_path)
    wanted = {f"worker:{index} {line}".encode() for index in (0, 1) for line in ("worker:0.9 no copy", "worker:1.x")}
    assert set(done.stdout.splitlines()) == wanted
    assert set(tm("logs", "two", cwd=tmp_path).stdout.splitlines()) == wanted


def test_a_reader_that_is_too_slow_for_the_log_is_reported(tmp_path: Path, home) -> None:
    """All that arrives is what was printed, in order; what does not is counted."""
    (tmp_path / "many.py").write_text(PROGRAM)
    roles = f"roles: {{worker: {{command: [{sys.executable}, many.py]}}}}"
    (tmp_path / "job.yaml").write_text(f"name: large\nlogs: {{limit: 1MiB, first: 256KiB}}\n{roles}\n")
    printed = subprocess.run([sys.executable, "many.py"], cwd=tmp_path, capture_output=True, check=True).stdout
    with subprocess.Popen(
        [*TM, "run", "job.yaml"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as command:
        try:
            until(lambda: tm("wait", "large", cwd=tmp_path).returncode == 0)
            arrived, words = command.communicate(timeout=60)
        finally:
            command.kill()
    (missing,) = re.findall(r"missing: ([\d,]+) bytes of the output of worker:0", words.decode())
    assert len(arrived) + int(missing.replace(",", "")) == len(printed)
    assert arrived.endswith(printed[-100_000:])
    assert b"left out" not in arrived


def test_only_the_tasks_that_are_asked_for_are_shown(tmp_path: Path, home) -> None:
    one = tm("run", "-n", "2", "--tasks", "worker:1", "--", "sh", "-c", "echo $TRAINMASTER_INDEX", cwd=tmp_path)
    assert (one.returncode, one.stdout) == (0, b"1\n"), one.stderr
    wrong = tm("run", "--tasks", "ps", "--", "true", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr.count(b"error")) == (2, 1)
    assert b"the job has no task ps" in wrong.stderr


def test_our_words_do_not_stand_behind_a_line_without_an_end(tmp_path: Path, home) -> None:
    """Where both streams go to one place; a program's bytes alone stay as they are."""
    line = [*TM, "run", "--", "printf", "abc"]
    done = subprocess.run(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=True)
    program, ours = done.stdout.splitlines()
    assert (program, b"succeeded after" in ours) == (b"abc", True)
    apart = subprocess.run(line, cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert (apart.stdout, apart.stderr.count(b"\n")) == (b"abc", 1)
