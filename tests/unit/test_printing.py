"""The output that a command puts on a pipe: exactly the program's bytes, or its lines behind a lead, as fast as a pipe takes them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from trainmaster.client.printing import Choice, Piped
from trainmaster.client.text import last_state
from trainmaster.log.output import beyond, exact, piece, readable

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
        output(b"\nworker:0.1 of a copy\nlast", 6 + 24 + len(long)),
        output(b"again\n", attempt=2),
    )
    assert got.split(b"\n") == [
        b"worker:0 one", b"worker:1 other", b"worker:0 two", b"worker:0 " + long, b"worker:0.1 of a copy", b"worker:0 last",
        b"worker:0 again", b"",
    ]  # fmt: skip


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


def test_only_the_tasks_that_are_asked_for_are_shown(tmp_path: Path, home) -> None:
    one = tm("run", "-n", "2", "--tasks", "worker:1", "--", "sh", "-c", "echo $TRAINMASTER_INDEX", cwd=tmp_path)
    assert (one.returncode, one.stdout) == (0, b"1\n"), one.stderr
    wrong = tm("run", "--tasks", "ps", "--", "true", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr.count(b"error")) == (2, 1)
    assert b"the job has no task ps" in wrong.stderr
