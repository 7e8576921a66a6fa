"""A command that ends before its job: by a signal at any moment, with its terminal, or with the reader of its output."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from trainmaster.client.watch.leaving import letting_go

TM = [sys.executable, "-m", "trainmaster.cli"]
CHATTY = "echo here; while [ ! -e go ]; do echo again; sleep 0.02; done"
SILENT = "echo here; while [ ! -e go ]; do sleep 0.02; done"
FIRST = 0.4  # seconds: within them a command has submitted its job, and watches it


def tm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TM, *arguments], capture_output=True, text=True, check=False, timeout=120)


def jobs() -> list[dict[str, Any]]:
    return json.loads(tm("list", "--all", "--json").stdout)


def hear_signals() -> None:
    """A shell has some ignored in what runs behind it."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("text", [CHATTY, SILENT], ids=["chatty", "silent"])
@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_a_job_is_killed_with_the_terminal_of_its_command(tmp_path: Path, home, text: str, terminal: str) -> None:
    command, screen = pty.fork()
    if command == 0:
        hear_signals()
        os.chdir(tmp_path)
        os.execve(TM[0], [*TM, "run", "--detach=kill", "--", "sh", "-c", text], {**os.environ, "TERM": terminal})
    shown = bytearray()
    while b"here" not in shown:
        try:
            shown += os.read(screen, 65536)
        except OSError:
            raise AssertionError(f"the command has ended: {shown.decode()}") from None
    os.close(screen)
    _, status = os.waitpid(command, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert [job["state"] for job in jobs()] == ["killed"]


@pytest.mark.parametrize(("detach", "state"), [(None, "running"), ("kill", "killed")])
def test_a_reader_that_goes_away_ends_the_command(tmp_path: Path, home, detach: str | None, state: str) -> None:
    with subprocess.Popen(
        [*TM, "run", *([f"--detach={detach}"] if detach else []), "--", "sh", "-c", CHATTY], cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as command:  # fmt: skip
        command.stdout.readline()
        command.stdout.close()
        words = command.stderr.read().decode()
    (job,) = jobs()
    try:
        assert (command.returncode, job["state"]) == (128 + signal.SIGPIPE, state)
        assert (f"{job['id']} goes on" in words) is (detach is None)
        assert "Traceback" not in words
    finally:
        (tmp_path / "go").touch()
        tm("wait", job["id"])


def test_an_interrupt_before_there_is_a_job_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), letting_go():
        raise KeyboardInterrupt
    assert capsys.readouterr() == ("", "\ninterrupted: no job was submitted\n")


def test_a_signal_at_any_moment_leaves_no_job_behind(tmp_path: Path, home, seeds: Any) -> None:
    """Whether the job was submitted by then or not; with --detach=leave, what goes on is named."""
    for seed in seeds(9):
        dice = random.Random(seed)
        number = dice.choice([signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
        moment, detach = dice.uniform(0.05, FIRST), dice.choice([[], ["--detach=kill"], ["--detach=leave"]])
        leaves = detach == ["--detach=leave"] or (not detach and number == signal.SIGHUP)
        what = f"{number.name} after {moment:.3f} s, {detach}"
        with subprocess.Popen(
            [*TM, "run", *detach, "--", "sleep", "1000"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=hear_signals,
        ) as command:  # fmt: skip
            timer = threading.Timer(moment, command.send_signal, (number,))
            timer.start()
            try:
                _, errors = command.communicate(timeout=120)
            finally:
                command.kill()  # else a signal that was lost is waited for without an end
            timer.join()
        words = errors.decode()
        running = [job["id"] for job in jobs() if job["ended"] is None]
        for job in running:
            tm("kill", job)
        # A SIGINT before the first line of ours, while Python itself starts, ends it in its own way.
        early = command.returncode == 1 and ("Could not import runpy" in words or "init_import_site" in words)
        assert early or command.returncode in (128 + number, -number), f"{what}: {words}"
        assert [job for job in running if f"{job} goes on" not in words] == [], f"{what}: {words}"
        assert running == [] or leaves, f"{what}: {words}"
    until(lambda: all(job["ended"] for job in jobs()))
