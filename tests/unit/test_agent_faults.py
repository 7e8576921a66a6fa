"""What a program tells of its own failure: torch's error files, faulthandler's stacks, and the lines of each of its copies."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster.agent.attempt import faults, program
from trainmaster.agent.attempt.faults import ERROR_FILE, ErrorFiles, recorded
from trainmaster.agent.attempt.program import Launch
from trainmaster.agent.output.capture import Output
from trainmaster.agent.output.spool import Spool
from trainmaster.host.allowance import Allowance

TM = [sys.executable, "-m", "trainmaster.cli"]
STACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\nValueError: no such class: 11\n'
RECORDED = {
    "message": {"message": "ValueError: no such class: 11", "extraInfo": {"py_callstack": STACK, "timestamp": "1"}}
}
FAULT = "import faulthandler, os, sys, threading; faulthandler.enable()\ndef here(): os.kill(os.getpid(), 11)\nhere()"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (json.dumps(RECORDED), STACK.strip()),
        ('{"message": "killed by a signal"}', "killed by a signal"),
        ('{"message": {"message": "only a message", "errorCode": 1}}', "only a message"),
        ("[]", ""), ("{", ""), ('{"message": 3}', ""),
    ],
)  # fmt: skip
def test_error_files_of_torch_are_read(tmp_path: Path, content: str, text: str) -> None:
    (tmp_path / "error.json").write_text(content)
    assert recorded(str(tmp_path / "error.json")) == text
    assert recorded(str(tmp_path / "none.json")) == ""


def test_each_copy_has_an_error_file_and_the_first_error_counts(tmp_path: Path) -> None:
    files = ErrorFiles()
    copies = files.variables({}, ({"RANK": "0"}, {"RANK": "1"}), f"{tmp_path}/errors-1")
    assert [copy["RANK"] for copy in copies] == ["0", "1"]
    assert files.lines(20) == []
    for number in (1, 0):
        Path(copies[number][ERROR_FILE]).write_text(json.dumps({"message": f"of {number}"}))
    later = os.stat(copies[1][ERROR_FILE]).st_mtime + 5
    os.utime(copies[0][ERROR_FILE], (later, later))
    assert files.lines(20) == ["of 1"]


def test_an_error_file_of_the_users_own_stays_and_an_old_one_tells_nothing(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps(RECORDED))
    os.utime(own, (1, 1))
    files = ErrorFiles()
    assert files.variables({ERROR_FILE: str(own)}, ({},), "unused") == ({},)
    assert files.lines(20) == []
    own.write_text(json.dumps(RECORDED))
    assert files.lines(2) == STACK.splitlines()[-2:]


def test_a_program_that_cannot_go_on_says_why(tmp_path: Path) -> None:
    files = ErrorFiles()
    (copy,) = files.variables({}, ({},), f"{tmp_path}/errors-1")
    assert files.why_lasting() == ""
    Path(copy[ERROR_FILE]).write_text(json.dumps(RECORDED))
    assert files.why_lasting() == "", "another attempt may do better"
    code = "from trainmaster.runtime.reports import cannot_go_on; cannot_go_on('the loss of step 5 is NaN')"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **copy}, check=True)
    assert files.why_lasting() == "the loss of step 5 is NaN"
    assert files.lines(20) == ["the loss of step 5 is NaN"]


def test_the_stack_of_a_fault_is_found_before_what_follows_it(tmp_path: Path) -> None:
    printed = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True, check=False).stderr
    log = tmp_path / "log"
    log.write_text("epoch 1\n" + printed)
    assert faults.lines(str(log), 20) == [], "it is among the last lines"
    log.write_text("epoch 1\n" + printed + "\nExtension modules: many\n" + "noise\n" * 30)
    found = faults.lines(str(log), 20)
    assert found[0] == "Fatal Python error: Segmentation fault"
    assert found[1].startswith("Current thread")
    assert found[-1].endswith("in <module>")


def test_each_line_of_several_copies_names_its_copy_and_none_is_mixed(tmp_path: Path) -> None:
    code = "import os, sys\nfor n in range(200): os.write(1 + n % 2, b'half '); os.write(1 + n % 2, b'%d\\n' % n)\nos.write(1, b'end')"

    async def act() -> None:
        collector = Output(Spool(str(tmp_path / "log")), lambda value: None, copies=["w:0.0", "w:0.1"])
        launch = Launch([sys.executable, "-c", code], "/", dict(os.environ), Allowance.present(), ({}, {}))
        running = await program.start(launch, collector.ends)
        collector.started()
        await running.wait()
        await running.tidy()
        await collector.drained()

    asyncio.run(act())
    lines = (tmp_path / "log").read_text().splitlines()
    for copy in ("w:0.0", "w:0.1"):
        own = [line for line in lines if line.startswith(f"{copy} ")]
        assert own == [f"{copy} half {n}" for n in range(200)] + [f"{copy} end"]


def test_the_copies_and_the_recorded_error_of_a_job_are_shown(tmp_path: Path, home) -> None:
    error = json.dumps(RECORDED).replace("'", "")
    other = "until test -e zero; do sleep 0.02; done"
    fails = f"if [ $TRAINMASTER_COPY = 1 ]; then {other}; cat error.json > $TORCHELASTIC_ERROR_FILE; exit 3; fi"
    text = f'echo "copy $TRAINMASTER_COPY"; {fails}; touch zero; sleep 60'
    (tmp_path / "error.json").write_text(error)
    options = ("--processes", "2", "--set", "roles.worker.restart.scope=never", "--set", "roles.worker.stop.grace=0s")
    done = subprocess.run(
        [*TM, "run", *options, "--", "sh", "-c", text],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert sorted(done.stdout.splitlines()) == ["worker:0.0 copy 0", "worker:0.1 copy 1"]
    assert "  | ValueError: no such class: 11" in done.stderr.splitlines()
