"""The commands over real jobs on the local engine: what a user sees, during a job's life and after it."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import until

import trainmaster
from trainmaster.cli.tm import run
from trainmaster.client.jobs.actions import cut
from trainmaster.client.jobs.sweep import is_abandoned
from trainmaster.client.watch.leaving import ENDS, SAME
from trainmaster.core.errors import BadInput
from trainmaster.host import linux, machine

TM = [sys.executable, "-m", "trainmaster.cli"]


def tm(
    *arguments: str, cwd: Path | None = None, program: Sequence[str] = TM, **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", **more}
    return subprocess.run(
        [*program, *arguments], capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=120
    )


def hear_signals() -> None:
    """A shell has SIGINT and SIGQUIT ignored in what runs behind it, nohup SIGHUP."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def begun(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*TM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, preexec_fn=hear_signals
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def shell(text: str) -> list[str]:
    return ["--", "sh", "-c", text]


def only_job(home) -> str:
    (job,) = (entry.name for entry in (home.state / "jobs").iterdir())
    return job


HOLD = 'echo "here $TRAINMASTER_INDEX"; while [ ! -e go ]; do sleep 0.02; done; echo over'


@pytest.fixture
def held(tmp_path: Path, home) -> Iterator[str]:
    """A job of two tasks that run until the file `go` is there."""
    done = tm("submit", "-n", "2", "--name", "held", *shell(HOLD), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    assert re.fullmatch(r"held-[a-z2-7]{6}", job)
    until(lambda: tm("logs", job).stdout.count("here") == 2, what=lambda: tm("events", job).stdout)
    try:
        yield job
    finally:
        (tmp_path / "go").touch()
        tm("wait", job)


def master_of(home, job: str) -> int:
    """The process of its master, as the master's record says."""
    record = home.state / "jobs" / job / "master"
    until(record.exists)
    return json.loads(record.read_text())["data"]["pid"]


def test_run_shows_every_task_and_succeeds(tmp_path: Path) -> None:
    done = tm("run", "-n", "2", *shell('echo "out $TRAINMASTER_INDEX"; echo "err" >&2'), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["worker:0 err", "worker:0 out 0", "worker:1 err", "worker:1 out 1"]
    assert re.search(r"^sh-\w{6} succeeded after", done.stderr, re.MULTILINE)


def test_run_tells_the_first_failure(tmp_path: Path) -> None:
    done = tm(
        "run",
        "-n",
        "2",
        "--restart",
        "never",
        *shell('[ $TRAINMASTER_INDEX = 1 ] || exit 0; echo "boom"; exit 7'),
        cwd=tmp_path,
    )
    assert done.returncode == 1
    told = done.stderr.splitlines()
    at = next(i for i, line in enumerate(told) if " failed after" in line)
    assert told[at + 1 : at + 3] == ["  worker:1 exited with status 7", "  | boom"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("value", ["nan", "-inf"])
def test_a_loss_that_is_not_a_number_ends_a_job_with_stop_on_nan_and_nothing_restarts(
    tmp_path: Path, value: str
) -> None:
    program = (
        "import time\nfrom trainmaster import runtime\n"
        "runtime.progress(step=1, loss=0.5)\n"
        f"runtime.progress(step=2, loss=float({value!r}))\n"
        "print('goes on', flush=True)\ntime.sleep(600)"
    )
    run = ("run", "-n", "2", "--restart", "group", "--set", "stop_on=nan", "--", sys.executable, "-c", program)
    done = tm(*run, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert re.search(rf"^  worker:\d reported loss = {value} at step 2, and stop_on is nan$", done.stderr, re.MULTILINE)
    assert "starts again" not in done.stderr
    (job,) = json.loads(tm("list", "--json").stdout)
    assert (job["state"], job["reason"]) == ("failed", "not-a-number")
    tasks = json.loads(tm("status", job["id"], "--json").stdout)["tasks"]
    assert sorted((task["state"], task["restarts"], task["reason"]) for task in tasks) == [
        ("failed", 0, "not-a-number"),
        ("killed", 0, "peer-failed"),
    ]


def test_run_as_json_is_one_object_a_line(tmp_path: Path) -> None:
    done = tm("run", "--json", *shell("echo hello"), cwd=tmp_path)
    items = [json.loads(line) for line in done.stdout.splitlines()]
    assert [item["log"]["data"] for item in items if "log" in item] == ["hello\n"]
    assert items[-1]["end"]["state"] == "succeeded"
    assert {key for item in items for key in item} <= {"event", "status", "log", "lost", "end"}
    assert all(item["lost"] >= 1 for item in items if "lost" in item)
    assert {"submitted", "ended"} <= {item["event"]["type"] for item in items if "event" in item}


def test_a_job_file_runs_in_its_directory(tmp_path: Path, home) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "said.txt").write_text("from here\n")
    (project / "job.yaml").write_text("roles:\n  worker: {command: cat said.txt}\n")
    done = tm("run", "project/job.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "from here\n"), done.stderr
    assert only_job(home).startswith("project-")
    again = tm("retry", only_job(home), cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, "from here\n"), again.stderr


def test_ps_shows_who_is_master_agent_and_template(tmp_path: Path, home) -> None:
    """And the program's title is its own."""
    program = "cat /proc/$$/cmdline | tr '\\0' ' '; echo; cat /proc/[0-9]*/cmdline 2>/dev/null | tr -s '\\0' '\\n' | grep '^tm: '"
    done = tm("run", "--name", "t", *shell(program), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    job = only_job(home)
    titles = [line.removeprefix("worker:0 ") for line in done.stdout.splitlines()]
    for title in (f"tm: master {job}", f"tm: template {job}", f"tm: agent worker:0 {job}"):
        assert titles.count(title) == 1, done.stdout
    assert titles[0].startswith("sh -c cat /proc/")


def test_a_program_that_asks_for_no_memory_has_no_limit_on_this_machine(tmp_path: Path, home) -> None:
    limit = shell("echo limit=${TRAINMASTER_MEMORY_LIMIT-none}")
    assert "limit=none" in tm("run", *limit, cwd=tmp_path).stdout
    assert "limit=104857600" in tm("run", "--memory", "100MiB", *limit, cwd=tmp_path).stdout
    assert "1 core, 1.06 GiB" in tm("run", "--dry-run", *limit, cwd=tmp_path).stdout, "it waits in line for that much"


def test_a_dry_run_leaves_no_trace(tmp_path: Path, home) -> None:
    (tmp_path / "a.csv").write_text("1\n")
    command = ["run", "-n", "2", "--dry-run", "--input", "train=a.csv", "--output", "model=out", *shell("true")]
    done = tm(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 x worker: 1 core," in done.stdout
    assert "threads of each worker program's libraries: " in done.stdout
    assert "worker:0: 1 file, 2 B" in done.stdout
    assert not (home.state / "jobs").exists()
    assert sorted(path.name for path in tmp_path.iterdir() if path != home.state) == ["a.csv"]
    assert json.loads(tm(*command[:1], "--json", *command[1:], cwd=tmp_path).stdout)["inputs"]["train"]["files"] == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run"], "there is no job"),
        (["run", "nothing.yaml"], "there is no job file nothing.yaml"),
        (["run", "python", "--dry-run"], "a command comes after --: tm run -- python ..."),
        (["run", "--frm", "x", "--", "true"], "there is no option --frm"),
        (["run", "--engine", "mesos", "--", "true"], "there is no engine 'mesos'"),
        (["run", "--set", "engines.locla.x=1", "--", "true"], "  engines.locla"),
        (["run", "--set", "engines.local.x=1", "--", "true"], "engines.local.x: there is no such key"),
        (["run", "--framework", "pytorhc", "--", "true"], "did you mean pytorch?"),
        (["run", "--memory", "12", "--", "true"], "flag --memory"),
        (["run", "--memory", "9000TiB", "--", "true"], "roles.worker.resources.memory"),
        (["run", "--gpus", "999", "--", "true"], "roles.worker.resources.gpus"),
        (["run", "--env", "SURELY_NOT_SET", "--", "true"], "SURELY_NOT_SET"),
        (["run", "--input", "x=nothing/*.csv", "--", "true"], "inputs.x.url"),
        (["run", "--input", "x:stream=g*.yaml", "--set", "inputs.x.format=cvs", "--", "true"], "inputs.x.format: cvs"),
        (
            ["run", "--dry-run", "--input", "x:shards=g*.yaml", "--set", "inputs.x.format=cvs", "--", "true"],
            "one of auto, lines",
        ),
        (["run", "--input", "x:mount=g*.yaml", "--", "true"], "use as: download, list or stream"),
        (["run", "--set", "environment.path=nowhere", "--", "true"], "there is no such directory"),
        (["run", "bad.yaml"], "did you mean replicas?"),
        (["run", "bad.yaml"], "bad.yaml line 3"),
        (["run", "framed.yaml"], "framework: pytorhc   (framed.yaml line 1)"),
        (["run", "framed.yaml", "--set", "framework=generic"], "roles.worker.resources.gpus   (framed.yaml line 3)"),
        (["run", "good.yaml", "--set", "roles.wroker.replicas=2"], "did you mean worker?"),
        (["run", "--set", "roles.wrker.replicas=2", "--", "true"], "did you mean roles.worker?"),
        (["run", "--set", "roles.worker.restart.scope=tsk", "--", "true"], "did you mean task?"),
        (["run", "--restart", "grp", "--", "true"], "did you mean group?"),
        (["run", "--input", "x:dwnload=g*.yaml", "--", "true"], "did you mean download?"),
        (["run", "two.yaml"], "roles.worker.replicas: two   (two.yaml line 2)"),
        (["run", "--dry-run", "--set", "files=[nothere.py]", "--", "true"], "files: nothere.py   (flag --set)"),
        (["run", "--dry-run", "--input", "x=smb://h/x", "--", "true"], "pip install smbprotocol"),
        (["run", "--dry-run", "--set", "archives=[foo://a.zip]", "--", "true"], "archives[0]: foo://a.zip"),
        (["run", "--dry-run", "--set", "cache=[sftp://h/x#x]", "--", "true"], "pip install paramiko"),
        (["run", "--dry-run", "--set", "tensorboard.logs=sftp://h/x", "--", "true"], "tensorboard.logs: sftp://h/x"),
        (["run", "--dry-run", "--set", "environment.archive=sftp://h/x.zip", "--", "true"], "is a file, not a URL"),
        (["run", "--dry-run", "--storage", "hfds://b/x", "--", "true"], "did you mean hdfs://?"),
        (["run", "--storage", "hdfs:///x", "--", "true"], "  storage: hdfs:///x   (flag --storage)"),
        (["run", "--storage", "good.yaml/jobs", "--", "true"], "good.yaml is not a directory"),
        (["run", "--set", "checkpoint={path: c, url: good.yaml/x}", "--", "true"], "good.yaml is not a directory"),
    ],
)
def test_bad_input_starts_nothing(
    tmp_path: Path, home, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:  # fmt: skip
    write_job_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        run(arguments)
    done = capfd.readouterr()
    assert (end.value.code, done.out) == (2, "")
    assert told in done.err
    assert "Traceback" not in done.err
    assert not (home.state / "jobs").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "nothing.yaml"], "there is no job file nothing.yaml"),
        (["run", "two.yaml"], "roles.worker.replicas: two   (two.yaml line 2)"),
        (["run", "--set", "engines.local.x=1", "--", "true"], "engines.local.x: there is no such key"),
    ],
)
def test_the_master_that_was_prepared_ends_with_bad_input(
    tmp_path: Path, home, arguments: list[str], told: str
) -> None:
    write_job_files(tmp_path)
    done = tm(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (home.state / "jobs").exists()


def write_job_files(folder: Path) -> None:
    (folder / "bad.yaml").write_text("roles:\n  worker:\n    replicsa: 2\n    command: true\n")
    (folder / "framed.yaml").write_text(
        "framework: pytorhc\nroles:\n  worker: {command: exit 0, resources: {gpus: 999}}\n"
    )
    (folder / "two.yaml").write_text("roles:\n  worker: {command: exit 0, replicas: two}\n")
    (folder / "good.yaml").write_text("roles:\n  worker: {command: exit 0}\n")


def test_what_cannot_be_shipped_is_named(tmp_path: Path, home) -> None:
    (tmp_path / "elsewhere").mkdir()
    project = tmp_path / "project"
    project.mkdir()
    (project / "data").symlink_to(tmp_path / "elsewhere")
    (project / "gone").symlink_to(tmp_path / "nothing")
    line = ["--set", "roles.worker.workdir=copy", *shell("ls")]
    told = "not shipped, because they lead elsewhere or are not files: data, gone\n"
    assert told in tm("run", "--dry-run", *line, cwd=project).stdout
    done = tm("run", *line, cwd=project)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert told in done.stderr


def test_a_dry_run_is_written_as_people_write(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("12345\n" * 10)
    done = tm(
        "run", "-n", "2", "--memory", "2GiB", "--dry-run", "--input", "train:stream=a.csv", *shell("true"), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "replicas: 2" in done.stdout
    assert "overhead" not in done.stdout
    assert "overhead: 102 MiB" in tm("run", "--memory", "2GiB", "--dry-run", "--all", *shell("true")).stdout
    assert "worker:1: 1 file, 30 B" in done.stdout
    told = tm("explain", "--all", "--memory", "2GiB", "--", "sh", "-c", "true", cwd=tmp_path).stdout
    assert re.search(r'^roles.worker.command +\["sh", "-c", "true"\] +the command after --$', told, re.MULTILINE)
    assert re.search(r"^roles.worker.resources.overhead +102 MiB ", told, re.MULTILINE)
    line = "threads of each worker program's libraries: 1\n"
    for command in (["explain"], ["run", "--dry-run"]):
        assert line in tm(*command, "-n", "999", *shell("true"), cwd=tmp_path).stdout


@pytest.mark.parametrize("more", [[], ["--all"]])
def test_what_a_dry_run_prints_is_a_job_file_that_runs(tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "a.csv").write_text("12345\n" * 10)
    line = ["-n", "2", "--env", "WORD=né: #1", "--input", "train=a.csv", "--output", "model=out", "--timeout", "5m"]
    command = shell("mkdir -p model; echo $WORD > model/word; ls train")
    printed = tm("run", "--dry-run", *more, *line, *command, cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    (tmp_path / "job.yaml").write_text(printed.stdout)
    again = tm("run", "--dry-run", *more, "job.yaml", cwd=tmp_path).stdout
    assert again.partition("\n#")[0] == printed.stdout.partition("\n#")[0]
    assert tm("run", "job.yaml", cwd=tmp_path).returncode == 0
    words = [path.read_text() for path in sorted((tmp_path / "out").glob("*/word"))]
    assert words == ["né: #1\n"] * len(words)
    assert words


def test_an_output_that_exists_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    done = tm("run", "--output", "model=out", *shell("mkdir -p model; echo new > model/x"), cwd=tmp_path)
    assert done.returncode == 2
    assert "the output model exists already" in done.stderr


def test_equal_names_are_the_users_to_mend(tmp_path: Path) -> None:
    """Who is told that the engine is at fault looks in the wrong place."""
    flat = ["-n", "2", "--output", "model=out", "--set", "outputs.model.layout=flat"]
    done = tm("run", *flat, *shell("mkdir -p model; echo new > model/x"), cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "both wrote x" in done.stderr
    assert "say layout: task, or name one task that writes it" in done.stderr


def test_a_shells_command_that_is_not_there_is_reported_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("roles:\n  worker: {command: surely-not-there train.py, restart: never}\n")
    done = tm("run", "job.yaml", cwd=tmp_path)
    assert "worker:0: a command was not found in: surely-not-there train.py" in done.stderr
    assert re.search(r"\| .*surely-not-there.*not found", done.stderr)


def test_outputs_are_named_at_the_end(tmp_path: Path) -> None:
    done = tm("run", "--output", "model=out", *shell("mkdir -p model; echo new > model/x"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"model: {tmp_path}/out (1 file, 4 B)" in done.stderr
    assert (tmp_path / "out/worker-0/x").read_text() == "new\n"


def test_one_key_is_one_job(tmp_path: Path, home) -> None:
    line = ["submit", "--idempotency-key", "k1", *shell("true")]
    first, second = tm(*line, cwd=tmp_path), tm(*line, cwd=tmp_path)
    assert first.stdout == second.stdout
    assert tm("wait", first.stdout.strip()).returncode == 0
    assert tm(*line, cwd=tmp_path).stdout == first.stdout
    assert only_job(home) == first.stdout.strip()


def test_a_running_job_is_seen_from_anywhere(tmp_path: Path, held: str) -> None:
    listed = tm("list").stdout
    assert re.search(rf"^{held} +running", listed, re.MULTILINE), listed
    status = json.loads(tm("status", "held", "--json").stdout)
    assert [task["state"] for task in status["tasks"]] == ["running", "running"]
    assert "worker:1  running" in tm("status", held).stdout
    assert tm("logs", held, "worker:1").stdout == "here 1\n"
    assert "started" in {json.loads(line)["type"] for line in tm("events", held, "--json").stdout.splitlines()}
    late = tm("wait", held, "--timeout", "100ms")
    assert late.returncode == 4
    with begun("logs", "-f", held, "worker:0", cwd=tmp_path) as following:
        assert following.stdout.readline() == "here 0\n"
        (tmp_path / "go").touch()
        assert following.stdout.readline() == "over\n"
        assert following.wait(30) == 0
    assert tm("wait", held).returncode == 0
    assert tm("logs", held, "worker:0").stdout == "here 0\nover\n"
    assert tm("logs", held, "-n", "1", "worker:0").stdout == "over\n"
    assert "succeeded" in tm("status", held).stdout
    assert tm("attach", held).returncode == 0


def test_the_last_lines_and_what_follows(tmp_path: Path) -> None:
    """As `tail -n 2 -f` does; of the present attempt, and a line that was begun is ended."""
    (tmp_path / "say.sh").write_text(
        "echo attempt $TRAINMASTER_ATTEMPT; [ $TRAINMASTER_ATTEMPT = 2 ] || exit 1\n"
        "printf 'one\\ntwo\\nthree\\nbeg'; : > begun; while [ ! -e go ]; do sleep 0.02; done; printf 'un\\nlast'\n"
    )
    job = tm("submit", *shell("sh say.sh"), cwd=tmp_path).stdout.strip()
    try:
        until(lambda: "beg" in tm("logs", job, "worker:0").stdout)
        assert tm("logs", job, "-n", "2").stdout == "worker:0 three\nworker:0 beg\n"
        with begun("logs", "-f", "-n", "2", job, "worker:0", cwd=tmp_path) as lines:
            with begun("logs", "-f", "-n", "2", "--json", job, cwd=tmp_path) as pieces:
                assert [lines.stdout.readline() for _ in range(2)] == ["two\n", "three\n"]
                assert [json.loads(pieces.stdout.readline())["data"] for _ in range(2)] == ["three\n", "beg"]
                (tmp_path / "go").touch()
                assert (
                    "".join(json.loads(line)["data"] for line in pieces.communicate(timeout=60)[0].splitlines())
                    == "un\nlast"
                )
            assert lines.communicate(timeout=60)[0] == "begun\nlast\n"
    finally:
        (tmp_path / "go").touch()
    assert tm("wait", job).returncode == 0
    told = [json.loads(line) for line in tm("logs", job, "-n", "1", "--json").stdout.splitlines()]
    assert [(piece["task"], piece["attempt"], piece["offset"], piece["next"], piece["data"]) for piece in told] == [
        ("worker:0", 2, 30, 34, "last")
    ]


def test_the_log_of_the_masters_is_followed_until_the_end(tmp_path: Path, home, held: str) -> None:
    log = home.state / "jobs" / held / "logs" / "master" / "start.log"
    with begun("logs", "-f", held, "master", cwd=tmp_path) as following:
        for said in ("here\n", "there\n"):
            with log.open("a") as file:
                file.write(said)
            assert following.stdout.readline() == said
        (tmp_path / "go").touch()
        assert following.wait(60) == 0


def test_what_there_is_not_in_the_logs_is_said(tmp_path: Path, home) -> None:
    """The log of the masters holds what was written before they had one; an attempt that was not is not an empty one."""
    done = tm("run", "--name", "told", *shell("echo one; echo reporter progress:0.5 >&2; echo two"), cwd=tmp_path)
    assert done.stdout == "one\nreporter progress:0.5\ntwo\n"
    job = only_job(home)
    assert tm("logs", job).stdout == "worker:0 one\nworker:0 two\n"
    assert tm("logs", job, "worker:0").stdout == "one\ntwo\n"
    assert tm("logs", job, "worker:0", "--progress").stdout == "one\nreporter progress:0.5\ntwo\n"
    late = tm("logs", job, "worker:0", "--attempt", "9")
    assert (late.returncode, late.stdout) == (2, "")
    assert "worker:0 had no attempt 9: its last one is 1" in late.stderr
    quiet = tm("logs", job, "master")
    assert (quiet.stdout, quiet.returncode) == ("", 0)
    assert "no master of" in quiet.stderr
    (home.state / "jobs" / job / "logs" / "master" / "start.log").write_text("foo is no format\n")
    assert tm("logs", job, "master").stdout == "foo is no format\n"


def test_attaching_to_a_job_that_has_ended_says_how(tmp_path: Path, home) -> None:
    tm("run", "--name", "over", *shell("echo much"), cwd=tmp_path)
    job = only_job(home)
    late = tm("attach", job)
    assert (late.returncode, late.stdout) == (0, "")
    assert late.stderr.startswith(f"{job} succeeded after")
    assert tm("attach", job, "--all-output").stdout == "much\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_a_job_in_the_foreground(tmp_path: Path, home, number: int) -> None:
    with begun("run", "--name", "over", *shell(HOLD), cwd=tmp_path) as watching:
        assert watching.stdout.readline() == "here 0\n"
        watching.send_signal(number)
        _, errors = watching.communicate(timeout=60)
    assert watching.returncode == 128 + number
    job = only_job(home)
    assert f"{job}: the job ends with this command" in errors
    assert f"{job} killed after" in errors
    assert signal.Signals(number).name in tm("events", job).stdout


@pytest.mark.parametrize("lead", [[], ["--timestamps"]])
def test_what_programs_print_after_ctrl_c_is_shown(tmp_path: Path, home, lead: list[str]) -> None:
    saves = "trap 'echo saving; sleep 1; echo saved; exit 0' TERM; " + HOLD
    with begun("run", "-n", "2", *lead, *shell(saves), cwd=tmp_path) as watching:
        assert sorted(watching.stdout.readline()[-16:] for _ in range(2)) == ["worker:0 here 0\n", "worker:1 here 1\n"]
        watching.send_signal(signal.SIGINT)
        output, errors = watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert sorted(re.findall(r"(?m)sav\w+$", output)) == [
        "saved",
        "saved",
        "saving",
        "saving",
    ]  # a shell says "Terminated" too
    assert f"{only_job(home)} killed after" in errors


def test_a_reader_that_goes_away_before_ctrl_c(tmp_path: Path, home) -> None:
    with begun("run", *shell("trap 'echo saving; sleep 1; exit 0' TERM; " + HOLD), cwd=tmp_path) as watching:
        assert watching.stdout.readline() == "here 0\n"
        watching.stdout.close()
        watching.send_signal(signal.SIGINT)
        watching.wait(60)
        errors = watching.stderr.read()
    assert watching.returncode == 130
    assert f"{only_job(home)} killed after" in errors
    assert "Traceback" not in errors


def test_timeout_gives_a_job_its_grace(tmp_path: Path, home) -> None:
    """`timeout` sends its signal twice."""
    saves = "trap 'sleep 1; echo saved; exit 0' TERM; " + HOLD
    with subprocess.Popen(
        ["timeout", "100", *TM, "run", *shell(saves)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as timing:  # fmt: skip
        assert timing.stdout.readline() == "here 0\n"
        timing.send_signal(signal.SIGTERM)  # it sends on what it is sent, as it does at its time
        output, errors = timing.communicate(timeout=60)
    assert output.endswith("saved\n")
    assert "at once" not in errors.replace(ENDS, "")


def test_a_second_ctrl_c_ends_a_job_at_once(tmp_path: Path, home) -> None:
    deaf = "trap 'echo saving; sleep 3600' TERM; " + HOLD
    with begun("run", "--set", "roles.worker.stop.grace=1h", *shell(deaf), cwd=tmp_path) as watching:
        assert watching.stdout.readline() == "here 0\n"
        watching.send_signal(signal.SIGINT)
        first = ""
        while "ends with this command" not in first:
            first += watching.stderr.readline()
        end = time.monotonic() + 2 * SAME
        until(lambda: time.monotonic() > end, what="a time that nobody's second Ctrl-C is below")
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=60)
    assert watching.returncode == 130
    job = only_job(home)
    assert f"{job} ends at once" in errors
    assert f"{job} killed after" in errors


def test_ctrl_c_leaves_a_job_that_was_asked_to_be_left(tmp_path: Path, home) -> None:
    with begun("run", "--detach=leave", "--name", "left", *shell(HOLD), cwd=tmp_path) as watching:
        assert watching.stdout.readline() == "here 0\n"
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=30)
    assert watching.returncode == 130
    job = only_job(home)
    assert f"{job} goes on. Watch it again: tm attach {job}" in errors
    with begun("attach", job, cwd=tmp_path) as attached:
        assert attached.stdout.readline() == "here 0\n"
        (tmp_path / "go").touch()
        assert attached.wait(30) == 0


def test_other_signals_leave_a_job_and_all_leave_one_that_is_watched(tmp_path: Path, home) -> None:
    """With --detach=kill the job ends with its command."""
    command = ("run", "--name", "left", *shell(HOLD))
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGINT):
        with begun(*command, cwd=tmp_path) as watching:
            assert watching.stdout.readline() == "here 0\n"
            watching.send_signal(number)
            _, errors = watching.communicate(timeout=30)
        job = only_job(home)
        words = f"{job} goes on. Watch it again: tm attach {job}   end it: tm kill {job}"
        assert (watching.returncode, errors.strip()) == (128 + number, words)
        command = ("attach", job)
    with begun("attach", "--detach=kill", job, cwd=tmp_path) as watching:
        assert watching.stdout.readline() == "here 0\n"
        watching.send_signal(signal.SIGTERM)
        _, errors = watching.communicate(timeout=60)
    assert watching.returncode == 143
    assert f"{job} killed after" in errors
    assert "SIGTERM" in tm("events", job).stdout


LOSES_ITS_PEERS_COMMIT = """
import json, os, time
from pathlib import Path

Path("model").mkdir()
Path("model", os.environ["TRAINMASTER_INDEX"]).touch()
if os.environ["TRAINMASTER_INDEX"] == "1":
    commit = Path("{out}/_temporary/commits/worker-0.json")
    while not (commit.exists() and json.loads(commit.read_text())["done"]):
        time.sleep(0.05)
    commit.unlink()
"""


def test_a_job_whose_outputs_are_not_whole_does_not_exit_with_0(tmp_path: Path, home) -> None:
    """It printed "given up at the end" and exited with 0."""
    (tmp_path / "lose.py").write_text(LOSES_ITS_PEERS_COMMIT.replace("{out}", str(tmp_path / "out")))
    role = {"command": f"{sys.executable} lose.py", "replicas": 2}
    (tmp_path / "job.yaml").write_text(json.dumps({"roles": {"worker": role}, "outputs": {"model": {"url": "out"}}}))
    done = tm("run", "job.yaml", cwd=tmp_path)
    assert "the output of worker:0 is not committed" in done.stderr
    assert done.returncode == 3
    assert tm("wait", only_job(home)).returncode == 3
    with pytest.warns(trainmaster.JobWarning, match="its outputs are not whole: the output of worker:0"):
        assert trainmaster.wait(only_job(home))["state"] == "succeeded"


@pytest.mark.parametrize(("text", "status"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -35 $$", 163), ("exit 0", 0)])
def test_the_exit_status_may_be_the_programs_own(tmp_path: Path, home, text: str, status: int) -> None:
    never = ("--set", "roles.worker.restart.scope=never")
    assert tm("run", *never, "--exit-status", "program", *shell(text), cwd=tmp_path).returncode == status
    (job,) = [entry.name for entry in (home.state / "jobs").iterdir()]
    assert tm("wait", "--exit-status", "program", job).returncode == status
    assert tm("wait", job).returncode == min(status, 1)


def test_acts_on_programs_are_refused_where_they_make_no_sense(held: str) -> None:
    refusals = {
        ("kill", held, "worker:1", "--signal", "NOPE"): "error: 'NOPE' is not a signal; a name is like USR1 or SIGTERM",
        ("kill", held, "worker:1", "--signal", "99"): "error: '99' is not a signal",
        (
            "kill",
            held,
            "--signal",
            "USR1",
        ): "error: name one job and the tasks that are meant: tm kill JOB worker:0 --signal USR1",
        ("kill", held, "worker:9", "--signal", "USR1"): "error: there is no task worker:9",
        ("dump", held, "worker:9"): "error: there is no task worker:9",
    }
    for line, words in refusals.items():
        done = tm(*line)
        assert (done.returncode, done.stderr.startswith(words)) == (2, True), done
    assert "user-acted" not in tm("events", held).stdout


def test_a_save_and_a_signal_say_who_asked(held: str) -> None:
    user = f"user {getpass.getuser()}"
    assert tm("save", held, "--no-wait").returncode == 0
    assert tm("kill", held, "worker:0", "worker:1", "--signal", "winch").returncode == 0
    events = tm("events", held).stdout
    for words in (
        f"a save was asked for by {user}",
        *(f"{user} sent SIGWINCH to the program of worker:{n}" for n in "01"),
    ):
        assert words in events


def test_a_job_may_forbid_chaos(tmp_path: Path) -> None:
    job = tm("submit", "--set", "chaos=false", *shell(HOLD), cwd=tmp_path).stdout.strip()
    until(lambda: "here" in tm("logs", job).stdout)
    try:
        refusal = tm("chaos", job, "--for", "1s")
        assert (refusal.returncode, refusal.stderr.split("\n")[0]) == (
            2,
            f"error: no faults may be let happen to {job}  [no-fault]",
        )
        with pytest.raises(BadInput, match="it has chaos: false"):
            cut(job, "worker:0", 1.0)
    finally:
        (tmp_path / "go").touch()
    assert tm("wait", job).returncode == 0


def test_a_save_waits_for_those_who_save(tmp_path: Path) -> None:
    """A task whose program is over waits for its peers before it commits; nobody asks it to save what will be committed."""
    ends = (
        'mkdir -p "$TRAINMASTER_OUTPUT_MODEL"; [ $TRAINMASTER_INDEX = 0 ] || while [ ! -e "$GO" ]; do sleep 0.02; done'
    )
    line = [
        "submit",
        "-n",
        "2",
        "--restart",
        "group",
        "--env",
        f"GO={tmp_path}/go",
        "--output",
        "model=out",
        *shell(ends),
    ]
    job = tm(*line, cwd=tmp_path).stdout.strip()
    try:
        until(lambda: '"type":"uploaded"' in tm("events", job, "--json").stdout.replace(" ", ""))
        done = tm("save", job)
        assert (done.returncode, done.stdout.count("worker:1: 0 files"), "worker:0" in done.stdout) == (0, 1, False), (
            done
        )
    finally:
        (tmp_path / "go").touch()
    assert tm("wait", job).returncode == 0


def test_a_job_that_cannot_be_killed_keeps_no_other_alive(tmp_path: Path, held: str, home) -> None:
    (home.state / "jobs" / "broken-aaaaaa").mkdir()
    (home.state / "jobs" / "broken-aaaaaa" / "events").write_text("no directory")
    soon = "from trainmaster.client.jobs import actions; actions.MASTER_BACK = 3.0; from trainmaster.cli import begin; begin()"
    done = tm("kill", "broken-aaaaaa", held, program=[sys.executable, "-c", soon])  # else it waits 30 s for a master
    assert (done.returncode, done.stdout) == (3, f"{held} killed\n")
    assert done.stderr.count("error: ") == 1, done.stderr


def test_a_wrong_name_keeps_no_other_job_alive(held: str) -> None:
    done = tm("kill", "nope", held, "nothing")
    assert (done.returncode, done.stdout) == (2, f"{held} killed\n")
    assert [line.partition("  [")[0] for line in done.stderr.splitlines() if "error: " in line] == [
        "error: there is no job nothing", "error: there is no job nope",
    ]  # fmt: skip


def test_kill_ends_a_job(tmp_path: Path, held: str) -> None:
    done = tm("kill", held, "--why", "enough")
    assert (done.returncode, done.stdout) == (0, f"{held} killed\n"), done.stderr
    assert tm("wait", held).returncode == 1
    assert tm("kill", held).stdout == f"{held} had ended: killed\n"
    assert "enough" in tm("events", held, "--json").stdout
    refused = tm("save", held)
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (2, f"error: {held} has ended: killed  [job-ended]")


def test_a_checkpoint_that_was_never_stored_is_named_at_the_end(tmp_path: Path) -> None:
    done = tm("run", "--checkpoint", "ckpt", *shell("true"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "  lost: no checkpoint was ever stored: nothing was written at ckpt"


def test_an_ended_job_is_never_listed_as_pending(tmp_path: Path, home) -> None:
    """Its storage is away when the list is asked for the first time."""
    far = tmp_path / "far"
    seen, unseen = (
        tm(*line, "--name", name, "--storage", f"file://{far}", *shell("true"), cwd=tmp_path)
        for line, name in ((["run"], "seen"), (["submit"], "unseen"))
    )
    assert (seen.returncode, unseen.returncode) == (0, 0), seen.stderr
    job = unseen.stdout.strip()
    until(lambda: '"type":"step-done"' in "".join(file.read_text() for file in far.glob(f"{job}/events/*")))
    until(lambda: not list(home.state.glob("live/*")))
    far.rename(tmp_path / "away")
    os.utime(home.state / "jobs" / job / "job.json", (1e9, 1e9))  # long ago
    listed = tm("list").stdout
    assert len(re.findall(r"^(?:un)?seen-\w{6} +succeeded", listed, re.MULTILINE)) == 2, listed
    (home.state / "jobs" / job / "end.json").unlink()  # what was killed before its master could note it
    (home.state / "index.json").unlink()
    listed = tm("list").stdout
    assert re.search(r"^seen-\w{6} +succeeded", listed, re.MULTILINE), listed
    assert re.search(
        rf"^{job} +unreadable .* last known: pending; file://{far}/{job} has no events of it$", listed, re.MULTILINE
    ), listed


def test_of_several_jobs_to_end_none_waits_for_another(tmp_path: Path) -> None:
    stays = 'trap "" TERM; echo here; while [ ! -e go ]; do sleep 0.02; done'
    deaf = tm("submit", "--set", "roles.worker.stop.grace=10m", *shell(stays), cwd=tmp_path).stdout.strip()
    other = tm("submit", *shell(HOLD), cwd=tmp_path).stdout.strip()
    try:
        until(lambda: tm("logs", deaf).stdout and tm("logs", other).stdout)
        with begun("kill", deaf, other, cwd=tmp_path) as killing:
            until(lambda: "killed" in tm("status", other).stdout.splitlines()[0])
            assert killing.poll() is None
            (tmp_path / "go").touch()
            assert killing.communicate(timeout=60)[0] == f"{deaf} killed\n{other} killed\n"
    finally:
        (tmp_path / "go").touch()
        tm("wait", deaf)
        tm("wait", other)


def test_a_killed_command_leaves_the_job(tmp_path: Path, home) -> None:
    with begun("run", "--name", "alone", *shell(HOLD), cwd=tmp_path) as watching:
        assert watching.stdout.readline() == "here 0\n"
        watching.kill()
    (tmp_path / "go").touch()
    assert tm("wait", only_job(home)).returncode == 0


def test_a_task_that_is_not_there_is_named(held: str) -> None:
    done = tm("logs", held, "worker:9")
    assert done.returncode == 2
    assert "has no task worker:9" in done.stderr


def test_watching_goes_on_over_the_death_of_a_master(tmp_path: Path, home) -> None:
    with begun("run", "-n", "2", "--name", "orphan", *shell(HOLD), cwd=tmp_path) as watching:
        first = {watching.stdout.readline() for _ in range(2)}
        job = only_job(home)
        os.kill(master_of(home, job), signal.SIGKILL)
        until((home.state / "jobs" / job / "epochs" / "2").exists)
        (tmp_path / "go").touch()
        rest, errors = watching.communicate(timeout=60)
    assert watching.returncode == 0, errors
    assert first == {"worker:0 here 0\n", "worker:1 here 1\n"}
    assert sorted(rest.splitlines()) == ["worker:0 over", "worker:1 over"]


def test_a_job_whose_master_does_not_answer_is_ended_by_force(home, held: str) -> None:
    os.kill(master_of(home, held), signal.SIGSTOP)
    done = tm("kill", held, "--force")
    assert (done.returncode, done.stdout) == (0, f"{held} killed\n"), done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_streams_are_closed_runs_its_job(tmp_path: Path, home, closed: str) -> None:
    text = f'"$@" {closed}; echo status $?'
    done = subprocess.run(
        ["sh", "-c", text, "sh", *TM, "run", *shell("echo out; touch ran")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("status 0\n"), done
    assert (tmp_path / "ran").exists()
    assert tm("logs", only_job(home)).stdout == "worker:0 out\n"


def test_a_command_whose_parent_ignores_the_ends_of_children_runs_its_job(tmp_path: Path) -> None:
    done = subprocess.run(
        [*TM, "run", *shell("echo out")], cwd=tmp_path, capture_output=True, text=True, check=True,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )  # fmt: skip
    assert done.stdout == "out\n"


def test_ctrl_c_leaves_no_master_stopped_by_an_end_by_force(tmp_path: Path, home) -> None:
    deaf = (
        "trap '' TERM; echo here; while [ ! -e go ]; do sleep 0.02; done"  # so its agent waits for the end of its grace
    )
    job = tm("submit", "--name", "deaf", *shell(deaf), cwd=tmp_path).stdout.strip()
    until(lambda: "here" in tm("logs", job).stdout)
    master = linux.look(master_of(home, job))
    with begun("kill", job, "--force", cwd=tmp_path) as killing:
        until(lambda: (now := linux.look(master.pid)) is not None and now.state == "T")
        killing.send_signal(signal.SIGINT)
        assert killing.wait(120) == 130
    assert not linux.lives(master.pid, master.start)
    assert tm("wait", job).returncode == 1
    assert "killed" in tm("list").stdout


def test_a_job_that_nobody_works_for_is_no_endless_wait(home) -> None:
    storage = home.state / "jobs" / "never-abcdef"
    (storage / "logs" / "master").mkdir(parents=True)
    (storage / "logs" / "master" / "start.log").write_text("Traceback\nImportError: no such module\n")
    (storage / "token").write_text("x" * 64)
    os.utime(storage / "token", (1, 1))  # long ago
    (storage / "job.json").write_text("{}")
    done = tm("wait", "never")
    assert done.returncode == 3
    assert "no process of never-abcdef is left, and it has not ended: ImportError: no such module" in done.stderr
    assert "tm retry never-abcdef" in done.stderr


def test_old_jobs_are_pruned_by_count(tmp_path: Path, home) -> None:
    jobs = [tm("submit", "--name", f"old{number}", *shell("true"), cwd=tmp_path).stdout.strip() for number in range(3)]
    for job in jobs:
        tm("wait", job)
        until(lambda job=job: is_abandoned(job), what="the end of its master")
    assert tm("prune", "--yes").returncode == 2, "which jobs is to be said"
    assert tm("prune", "--keep", "1", "--every", "1h").returncode == 2, "nobody is there to say yes"
    pruned = tm("prune", "--keep", "1", "--yes")
    assert pruned.returncode == 0, pruned.stderr
    left = {entry.name for entry in (home.state / "jobs").iterdir()}
    assert len(left) == 1
    assert left < set(jobs)


def test_a_wait_says_how_to_end_a_job_of_another_state_directory(tmp_path: Path, home) -> None:
    """The command that it prints ends that job, and the wait."""
    cores = machine.cores()
    with begun("run", "--cores", str(cores), *shell(HOLD), cwd=tmp_path) as watching:
        assert watching.stdout.readline() == "here 0\n"
        holder = only_job(home)
        other = {"TRAINMASTER_STATE_DIR": str(tmp_path / "my other")}
        waits = tm("submit", "--cores", str(cores), *shell("true"), cwd=tmp_path, **other).stdout.strip()
        ends_it = f"TRAINMASTER_STATE_DIR={shlex.quote(str(home.state))} tm kill {holder}"
        until(lambda: f"held by {holder} ({ends_it} ends it)" in tm("status", waits, **other).stdout)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        subprocess.run(ends_it, shell=True, check=True, env={**os.environ, **other, "PATH": path}, capture_output=True)
        assert tm("wait", waits, **other).returncode == 0
        watching.communicate(timeout=60)
    assert watching.returncode == 1
