"""The command line before any job: help that loads nothing, errors in one line, exit statuses."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster.cli.main import main, submits
from trainmaster.cli.tm import COMMANDS
from trainmaster.core.machine.reasons import REASONS
from trainmaster.words.explained import explained

HEAVY = {
    "rich",
    "asyncio",
    "yaml",
    "attrs",
    "attr",
    "starlette",
    "uvicorn",
    "fsspec",
    "ssl",
    "http.client",
    "logging",
    "socket",
}


def tm(*arguments: str, code: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """`tm` in a fresh interpreter; `code` runs after it, with the modules that were loaded."""
    run = (
        "import sys\n"
        "from trainmaster.cli.main import main\n"
        f"try:\n    main({list(arguments)!r})\n"
        f"finally:\n    {code or 'pass'}\n"
    )
    return subprocess.run(
        [sys.executable, "-c", run],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1", **more},
    )


LOADED = "(name for name, module in sys.modules.items() if getattr(module, '__spec__', None))"  # others only stand in


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_loads_nothing_heavy(command: str) -> None:
    done = tm(*filter(None, [command]), "--help", code=f"print('\\n@', *{LOADED})")
    assert done.returncode == 0, done.stderr
    text, _, modules = done.stdout.partition("\n@")
    assert text.startswith(f"Usage: tm {command}".rstrip())
    assert HEAVY & set(modules.split()) == set()


def test_help_costs_little_more_than_python() -> None:
    bare = subprocess.run(
        [sys.executable, "-c", "import sys, click; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    done = tm("--help", code=f"print('\\n@', *{LOADED})")
    more = set(done.stdout.partition("\n@")[2].split()) - set(bare.stdout.split())
    assert len(more) <= 40, sorted(more)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_say_json_and_is_described(command: str) -> None:
    text = tm(command, "--help").stdout
    assert len(text.splitlines()[2].strip()) > 10
    assert "--json" in text


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("run job.yaml", "local"),
        ("--json submit job.yaml", "local"),
        ("run -n 2 -- python train.py --help", "local"),
        ("run -n 2 --engine local -- x --engine yarn", "local"),
        ("run -n 2 --engine yarn -- x", "yarn"),
        ("submit job.yaml --engine=yarn", "yarn"),
        ("submit --xlearning --app-type generic -- true", "yarn"),
        ("submit --engine local --submarine job run", "local"),
        ("train --model_zoo zoo", "local"),
        ("predict --engine=yarn --model_zoo zoo", "yarn"),
        ("train --yaml=job.yaml", ""),
        ("elasticdl train --engine local", ""),
        ("run --help", ""),
        ("run job.yaml --dry-run", ""),
        ("run", ""),
        ("list", ""),
        ("logs run", ""),
        ("", ""),
    ],
)
def test_what_is_forked_ahead_is_for_a_job_of_its_engine(line: str, engine: str) -> None:
    assert submits(line.split()) == engine


def test_what_is_forked_ahead_is_for_the_engine_of_the_settings(tmp_path, monkeypatch) -> None:
    (tmp_path / "site.yaml").write_text("timeouts: {job: 1h}\nengine: kubernetes  # ours\n")
    monkeypatch.setenv("TRAINMASTER_SITE", str(tmp_path / "site.yaml"))
    lines = ["run job.yaml", "submit --xlearning -- true", "run --engine local -- x", "list"]
    assert [submits(line.split()) for line in lines] == ["kubernetes", "kubernetes", "local", ""]
    monkeypatch.setenv("TRAINMASTER_SET_ENGINE", "spark")
    assert submits(["run", "job.yaml"]) == "spark"


@pytest.mark.parametrize("site", ["engine: yarn", "{engine: yarn}"])
def test_commands_without_an_engine_have_that_of_the_settings(home, tmp_path, site: str) -> None:
    (tmp_path / "site.yaml").write_text(site)
    environ = {"TRAINMASTER_SITE": str(tmp_path / "site.yaml"), "HADOOP_CONF_DIR": str(tmp_path / "none")}
    for line in (["run", "--", "true"], ["submit", "--", "true"], ["cluster", "show"]):
        done = tm(*line, **environ)
        assert (done.returncode, "[hadoop-conf]" in done.stderr) == (2, True), done.stderr
    done = tm("list", **environ)
    assert done.stdout.startswith("no jobs yet")
    assert done.stderr.startswith("without jobs of yarn that other machines submitted:")
    assert tm("run", "--engine", "local", "--", "echo", "here", **environ).stdout == "here\n"
    assert tm("run", "--", "echo", "here", **environ, TRAINMASTER_SET_ENGINE="local").stdout == "here\n"


def test_a_job_of_this_machine_has_the_defaults_of_its_site(home, tmp_path) -> None:
    (tmp_path / "site.yaml").write_text("defaults: {env: {WHOSE: site, ALSO: site}}")
    show = ("sh", "-c", "echo $WHOSE $ALSO")
    environ = {"TRAINMASTER_SITE": str(tmp_path / "site.yaml")}
    assert tm("run", "--env", "WHOSE=mine", "--", *show, **environ).stdout == "mine site\n"
    assert "env: {WHOSE: site, ALSO: site}" in tm("run", "--dry-run", "--", *show, **environ).stdout


@pytest.mark.parametrize(
    "moment", ["trainmaster.engines.local.launch.agents", "trainmaster.engines.local.launch.prepare"]
)
def test_ctrl_c_before_anything_has_begun_is_no_fault(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(moment, interrupted)
    with pytest.raises(SystemExit) as left:
        main(["run", "--", "true"])
    assert left.value.code == 130


def test_a_user_who_may_have_no_more_processes_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refused)
    with pytest.raises(SystemExit) as left:
        main(["run", "--", "true"])
    assert left.value.code == 3
    said = capsys.readouterr().err
    assert "no process could be made: Resource temporarily unavailable" in said
    assert "ulimit -u" in said


def test_all_commands_are_listed_with_what_they_do() -> None:
    text = tm("--help").stdout
    for name, told in COMMANDS.items():
        assert f"  {name} " in text
        assert told in text


@pytest.mark.parametrize(
    ("asked", "same"),
    [
        (["help"], ["--help"]),
        (["help", "run"], ["run", "--help"]),
        (["help", "cluster", "up"], ["cluster", "up", "--help"]),
        (["version"], ["--version"]),
    ],
)
def test_help_and_version_are_commands_too(asked: list[str], same: list[str]) -> None:
    done, expected = tm(*asked), tm(*same)
    assert (done.returncode, done.stdout) == (0, expected.stdout), done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["rnu"], "error: there is no command 'rnu'; did you mean run?"),
        (["xyzzy"], "error: there is no command 'xyzzy'"),
        (["delete", "x"], "error: there is no command 'delete'; did you mean kill?"),
        (["stop"], "error: there is no command 'stop'; did you mean kill?"),
        (["ps"], "error: there is no command 'ps'; did you mean list?"),
        (["rm"], "error: there is no command 'rm'; did you mean remove?"),
        (["validate"], "error: there is no command 'validate'; did you mean run --dry-run?"),
        (["Describe"], "error: there is no command 'Describe'; did you mean status?"),
        (["cluster", "list"], "error: there is no command 'list'; did you mean show?"),
        (["image", "biuld"], "error: there is no command 'biuld'; did you mean build?"),
        (["help", "stop"], "error: there is no command 'stop'; did you mean kill?"),
        (["run", "--nnodes", "2", "--", "true"], "error: there is no option --nnodes; did you mean -n?"),
        (["run", "--worker-num", "2", "--", "true"], "error: there is no option --worker-num; did you mean -n?"),
        (
            ["run", "--standalone", "--", "true"],
            "error: there is no option --standalone; tasks find each other without it",
        ),
        (
            ["run", "--rdzv_backend", "c10d", "x"],
            "error: there is no option --rdzv_backend; tasks find each other without it",
        ),
        (["run", "-m", "pkg"], "error: there is no option -m; a module runs by: tm run -- python -m MODULE"),
        (
            ["explain", "out-of-memry"],
            "error: there is no error out-of-memry, and no file of this name; did you mean out-of-memory?",
        ),
        (["list", "--runing"], "error: there is no option --runing; did you mean --running?"),
        (["status"], "error: missing argument 'JOB'"),
        (["list", "-n", "many"], "error: invalid value for '-n' / '--number': 'many' is not a whole number"),
        (["status", "nothing"], "error: there is no job nothing  [no-such-job]"),
        (["status", "mesos://here/x"], "error: there is no engine 'mesos'  [unknown-engine]"),
        (["wait", "x", "--timeout", "5"], "error: there is no job x  [no-such-job]"),
    ],
)
def test_bad_input_is_one_clear_error(arguments: list[str], told: str) -> None:
    done = tm(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == told
    assert "Traceback" not in done.stderr


def test_without_a_command_the_help_is_shown() -> None:
    done = tm()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == tm("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "train.py"], "tm run -- python train.py"),
        (["run", "python", "train.py"], "a command comes after --: tm run -- python train.py"),
        (["submit", "python", "train.py", "7"], "a command comes after --: tm submit -- python train.py 7"),
        (["run", "job.yaml", "python", "train.py"], "a command comes after --: tm run job.yaml -- python train.py"),
        (["run", "python", "train.py", "--lr", "3"], "a command, with its own options, comes after --"),
    ],
)
def test_a_command_without_its_dashes_is_reported_where_they_go(arguments: list[str], told: str) -> None:
    done = tm(*arguments)
    assert done.returncode == 2
    assert told in done.stderr


def test_an_error_is_json_too_where_json_is_wanted() -> None:
    done = tm("status", "nothing", "--json")
    told = json.loads(done.stdout)["error"]
    assert told == {
        "message": "there is no job nothing", "lines": ["see them all: tm list"], "anchor": "no-such-job", "status": 2
    }  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no job nothing")


def test_the_name_of_an_error_or_of_a_reason_is_explained(home) -> None:
    name = re.search(r"\[([a-z-]+)\]", tm("status", "nothing").stderr)
    assert name
    assert tm("explain", name[1]).stdout.startswith("No job has that id, name or beginning. ")
    assert "What to do: raise timeouts.stall" in tm("explain", "stalled").stdout
    assert json.loads(tm("explain", "stalled", "--json").stdout)["name"] == "stalled"
    assert tm("explain", "nonsense").returncode == 2
    broken = tm("explain", "no-file", TRAINMASTER_SITE="/nowhere")
    assert (broken.returncode, broken.stdout.startswith("The named")) == (0, False), broken
    assert not [name for name in REASONS if set("[]{}|") & set(explained(name))]


def test_jobs_that_run_are_json_in_top(home) -> None:
    done = tm("top", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])


def test_a_fault_of_ours_carries_its_traceback(home) -> None:
    (home.state / "jobs" / "broken-aaaaaa").mkdir(parents=True)
    (home.state / "jobs" / "broken-aaaaaa" / "events").write_text("not a directory")
    done = tm("status", "broken-aaaaaa", code="", PYTHONPATH=os.pathsep.join(sys.path))
    assert done.returncode in (2, 3)


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["--help"]])
def test_output_that_cannot_be_written_is_said_as_that(home, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trainmaster.cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    assert done.stderr == "error: could not print: No space left on device\n  see where the output goes\n"


def test_a_user_without_a_home_directory_is_reported_what_to_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "XDG_STATE_HOME", "TRAINMASTER_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as end:
        main(["list"])
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: there is no home directory: HOME is not set, and user {os.getuid()} has no entry in /etc/passwd  [no-home]",
        "  set HOME, or TRAINMASTER_STATE_DIR",
    ]


def test_packages_in_pythonpath_are_for_programs_and_not_for_us(home, tmp_path) -> None:
    for package in ("attr", "attrs", "click", "yaml"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise ImportError('an old version')")
    (tmp_path / "theirs.py").write_text("print('theirs')")
    script = os.path.join(os.path.dirname(sys.executable), "tm")
    done = subprocess.run(
        [script, "run", "--", sys.executable, "-c", "import theirs, attr"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "theirs" in done.stdout.splitlines()
    assert done.returncode == 1
    assert "ImportError: an old version" in done.stderr, "the program's own"


def test_no_jobs_is_no_error(home) -> None:
    done = tm("list")
    assert (done.returncode, done.stdout) == (0, "no jobs yet; start one: tm run --help\n")
    assert tm("--json", "list").stdout == "[]\n"
    assert tm("list", "--json").stdout == "[]\n"


def test_jobs_that_cannot_be_read_are_no_fault_of_ours(tmp_path) -> None:
    (tmp_path / "file").touch()
    done = tm("list", TRAINMASTER_STATE_DIR=str(tmp_path / "file"))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: could not read the jobs: Not a directory")


def test_doctor_looks_at_spark(home, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "bin").mkdir()
    for name in ("jars/spark-core_2.13-4.1.0.jar", "bin/spark-class"):
        (tmp_path / name).touch()
    [line] = [line for line in tm("doctor", SPARK_HOME=str(tmp_path)).stdout.splitlines() if "  spark: " in line]
    assert "4.1.0" in line
    assert "is not a Spark installation" in tm("doctor", SPARK_HOME=str(tmp_path / "jars")).stdout


def test_doctor_finds_this_machine_ready(home) -> None:
    done = tm("doctor")
    assert done.returncode == 0, done.stdout
    assert "cores" in done.stdout


def test_a_broken_package_of_an_engine_is_in_the_way_of_its_own_jobs_alone(home, tmp_path) -> None:
    package = tmp_path / "broken-0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0\n")
    (package / "entry_points.txt").write_text("[trainmaster.engines]\nbroken = no_such_module:ENGINE\n")
    trouble = "the engine broken cannot be used: ModuleNotFoundError: No module named 'no_such_module'"
    assert f"error: {trouble}" in tm("run", "--engine", "broken", "--", "true", PYTHONPATH=str(tmp_path)).stderr
    assert "error: there is no job x" in tm("status", "x", PYTHONPATH=str(tmp_path)).stderr
    assert trouble in tm("doctor", PYTHONPATH=str(tmp_path)).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_commands_and_jobs(home, shell: str) -> None:
    assert "_TM_COMPLETE" in tm("completion", shell).stdout
    (home.state / "jobs" / "digits-abcdef").mkdir(parents=True)
    offered = tm(_TM_COMPLETE="bash_complete", COMP_WORDS="tm status dig", COMP_CWORD="2").stdout
    assert "digits-abcdef" in offered
    assert "status" in tm(_TM_COMPLETE="bash_complete", COMP_WORDS="tm st", COMP_CWORD="1").stdout


def offered(line: str) -> list[str]:
    words = line.split(" ")
    done = tm(_TM_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    return done.stdout.splitlines()


def test_completion_leaves_files_to_the_shell() -> None:
    for line in ("tm run jo", "tm submit --framework pytorch jo", "tm explain jo", "tm run job.yaml -- python jo"):
        assert offered(line) == ["file,jo"], line


def test_completion_offers_values(home, tmp_path) -> None:
    assert {"plain,pytorch", "plain,tensorflow"} <= set(offered("tm run --framework "))
    assert offered("tm run --restart t") == ["plain,task"]
    assert offered("tm run --engine l") == ["plain,local"]
    assert offered("tm run --engine n") == ["plain,netns"], "of another package"
    job = home.state / "jobs" / "digits-abcdef"
    job.mkdir(parents=True)
    (job / "job.json").write_text('{"roles": {"w": {"command": "true", "replicas": 2}}}')
    assert offered("tm logs digits-abcdef w") == ["plain,w:0", "plain,w:1"]
    assert offered("tm logs digits-abcdef m") == ["plain,master"]
    assert offered("tm logs nothing ") == []


def test_completion_of_keys_knows_the_roles_of_the_job_file(tmp_path) -> None:
    assert offered("tm run --set roles.worker.rep") == [
        "plain,roles.worker.replicas.max=",
        "plain,roles.worker.replicas.min=",
        "plain,roles.worker.replicas.start=",
        "plain,roles.worker.replicas=",
    ]
    file = tmp_path / "job.yaml"
    file.write_text("roles:\n  ps: {command: a}\n  trainer: {command: b}\n")
    keys = offered(f"tm run {file} --set roles.")
    assert {"plain,roles.ps.command=", "plain,roles.trainer.command="} <= set(keys)
    assert not any("worker" in key for key in keys)


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -c 'from trainmaster.cli.main import main; main([\"--help\"])' | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_a_reader_that_has_enough_is_no_failure() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "trainmaster.cli", "completion", "bash"], stdout=writer, stderr=subprocess.PIPE, check=False
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
