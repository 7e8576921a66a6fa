"""Each file that we write is emptied and cut short before each command: it goes on, or says which file is damaged and what to do."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from trainmaster.host import places, processes

TM = [sys.executable, "-m", "trainmaster.cli"]
LIMIT = 120  # s, that no command comes near unless it waits for ever
DAMAGES = {"empty": lambda content: b"", "cut short": lambda content: content[: len(content) // 2]}
OVERWRITTEN = {"overwritten": lambda content: b"\xff" * len(content)}  # no text
VERBS = (
    "list", "status JOB", "logs JOB", "events JOB", "attach JOB", "wait JOB", "audit JOB", "export JOB exported", "kill JOB", "save JOB",
    "scale JOB worker=2", "dump JOB worker:0", "retry --detach=leave JOB", "prune --keep 1 --dry-run",
    "submit --idempotency-key once other.yaml", "remove JOB",
)  # fmt: skip
FILES = {  # of an ended job: what must be said, by the verbs that cannot go on
    "job.json": {},
    "site.json": {"retry": "site.json is damaged"},
    "token": {},
    "master": {},
    "epochs/1": {},
    "events/1-1.jsonl": {},
    "inputs/data.json": {},
    "metrics/*": {},
    "logs/master/1.log": {},
    "logs/worker-0/1.log": {},
    "logs/worker-0/agent.log": {},
    "../../cache/*/tool": {},
    "../../cache/*/.tool.sizes.json": {},
    "../../files/*.tar.gz": {},
    "../../keys/*": {"submit": "is damaged"},
    "../../index.json": {},
}
PROGRAM = """
import os, sys, time
from trainmaster import runtime
os.makedirs("ckpt", exist_ok=True)
assert open("tool").read() == "a tool"
begin = max([int(name) for name in os.listdir("ckpt")], default=0)
print("begins after", begin, flush=True)
for record in runtime.shards("data"):
    pass
for number in range(begin + 1, int(os.environ["UNTIL"]) + 1):
    with open(f"ckpt/{number}", "w") as file:
        file.write("x" * number)
    print("step", number, flush=True)
    time.sleep(0.2)
while os.environ.get("GO") and not os.path.exists(os.environ["GO"]):
    time.sleep(0.02)
os.makedirs("model", exist_ok=True)
open("model/weights", "w").write("done")
"""
JOB = """
name: kept
roles:
  worker: {command: "PYTHON program.py", env: {UNTIL: "3", GO: "TMP/go"}}
files: [program.py]
cache: ["TMP/tool"]
inputs:
  data: {url: "TMP/data/*.csv", as: shards}
outputs:
  model: {url: "TMP/out", from: worker:0, overwrite: true}
checkpoint: {path: ckpt, url: "TMP/ckpt", every: 200ms, keep: 3}
"""


def tm(text: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "TRAINMASTER_STATE_DIR": str(folder / "state"), **more}
    return subprocess.run(
        [*TM, *text.split()],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def prepare(folder: Path, text: str = JOB, **changes: str) -> Path:
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "a.csv").write_text("1\n2\n3\n")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "tool").write_text("a tool")
    for old, new in {"PYTHON": sys.executable, "TMP": str(folder), **changes}.items():
        text = text.replace(old, new)
    (folder / "job.yaml").write_text(text)
    (folder / "other.yaml").write_text("name: other\nroles: {worker: {command: 'true'}}\n")
    return folder


def job_in(folder: Path, name: str = "kept") -> Path:
    (job,) = (folder / "state" / "jobs").glob(f"{name}-*")
    return job


def check_words(done: subprocess.CompletedProcess[str]) -> None:
    assert "Traceback" not in done.stderr, done.stderr
    assert "fault of trainmaster" not in done.stderr, done.stderr
    assert done.returncode == 0 or "error: " in done.stderr or " failed after " in done.stderr, done


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the state directory of a job that has ended, and another one that was submitted under a key."""
    folder = prepare(tmp_path_factory.mktemp("ended"))
    (folder / "go").touch()
    assert tm("run job.yaml", folder).returncode == 0
    submitted = tm("submit --idempotency-key once other.yaml", folder)
    assert tm(f"wait {submitted.stdout.strip()}", folder).returncode == 0
    assert tm("list", folder).returncode == 0
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name", [name if FILES[name] else pytest.param(name, marks=pytest.mark.full) for name in FILES]
)
def test_each_command_over_an_ended_job_goes_on_or_says_what_is_damaged(
    ended: Path, tmp_path: Path, name: str, damage: str
) -> None:
    job = job_in(ended).name
    (path,) = sorted(path.resolve() for path in job_in(ended).glob(name) if path.is_file())[:1]
    for verb in VERBS:
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
        shutil.copytree(ended / "state", tmp_path / "state")
        for other in ("other.yaml", "job.yaml"):
            shutil.copyfile(ended / other, tmp_path / other)
        shutil.rmtree(tmp_path / "exported", ignore_errors=True)
        place = tmp_path / "state" / os.path.relpath(path, ended / "state")
        place.write_bytes(DAMAGES[damage](place.read_bytes()))
        done = tm(verb.replace("JOB", job), tmp_path)
        check_words(done)
        word = verb.partition(" ")[0]
        if word in FILES[name]:
            assert done.returncode, verb
            assert FILES[name][word] in done.stderr
            assert place.name in done.stderr


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    folder = prepare(tmp_path)
    assert tm("submit job.yaml", folder).returncode == 0
    until(lambda: "step 3" in tm(f"logs {job_in(folder).name}", folder).stdout, 60)
    yield folder
    tm(f"kill --force {job_in(folder).name}", folder)


READ = (
    "list",
    "status JOB",
    "logs JOB",
    "events JOB",
    "audit JOB",
    "save JOB",
    "dump JOB worker:0",
    "scale JOB worker=2",
    "kill JOB",
)


@pytest.mark.parametrize("damage", DAMAGES | OVERWRITTEN)
@pytest.mark.parametrize("name", ["job.json", "site.json", "token"])
def test_each_command_over_a_running_job_goes_on_or_says_what_is_damaged(running: Path, name: str, damage: str) -> None:
    job = job_in(running)
    content = (job / name).read_bytes()
    (job / name).write_bytes((DAMAGES | OVERWRITTEN)[damage](content))
    for verb in READ:
        done = tm(verb.replace("JOB", job.name), running)
        check_words(done)
        if name == "token" and verb not in ("list", "events JOB", "audit JOB", "logs JOB"):
            assert "token is damaged" in done.stderr, verb
    if name == "token":
        assert tm(f"kill --force {job.name}", running).returncode == 0
    assert "killed" in tm(f"wait {job.name}", running).stdout


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name", ["job.json", "site.json", "token", "environ.json", "inputs/data.json", "../../files/*.tar.gz"]
)
def test_a_job_whose_processes_are_gone_is_taken_up_or_says_what_is_damaged(
    running: Path, name: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in(running)
    while marks := processes.living(job.name):
        for mark in marks:
            processes.send(mark.process, signal.SIGKILL)
    (place,) = job.glob(name)
    place.write_bytes(DAMAGES[damage](place.read_bytes()))
    (running / "go").touch()
    done = tm(f"attach {job.name}", running)
    check_words(done)
    if name == "job.json":
        assert done.returncode == 0, done
        assert (running / "out" / "_SUCCESS").exists()
    else:
        assert done.returncode, done
        # A master may have taken it up meanwhile, and ended it.
        assert re.search(rf"{place.name} is damaged|is damaged: \S*{place.name}", done.stderr + done.stdout), done
        assert tm(f"kill --force {job.name}", running).returncode == 0
        assert tm(f"wait {job.name}", running).returncode


STOPPING = ("inputs/data.json", "site.json")  # what only these tell, a master needs


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name",
    [
        *STOPPING,
        *(pytest.param(name, marks=pytest.mark.full) for name in ("job.json", "environ.json", "master", "epochs/1")),
    ],
)
def test_a_successor_goes_on_or_ends_the_job_with_the_file_that_is_damaged(
    running: Path, name: str, damage: str
) -> None:
    """The agent of a master that died starts the next one, which meets what was damaged meanwhile."""
    job = job_in(running)
    place = job / name
    place.write_bytes(DAMAGES[damage](place.read_bytes()))
    (master,) = processes.living(job.name, processes.MASTER)
    processes.send(master.process, signal.SIGKILL)
    until(lambda: "master 2 started" in tm(f"events {job.name}", running).stdout, 60)
    (running / "go").touch()
    done = tm(f"wait {job.name}", running)
    if name in STOPPING:
        assert done.returncode, done
        assert f"a file of its state is damaged: {place}" in tm(f"status {job.name}", running).stdout
    else:
        assert done.returncode == 0, done
        assert (running / "out" / "_SUCCESS").exists()
    assert sorted(os.listdir(job / "epochs")) == ["1", "2"]


# Names of files as ours, with numbers that no job reaches; N stands for one.
STRANGE = (
    "epochs/N", "events/N-N.jsonl", "snapshots/N-N-x.snapshot", "metrics/N-N.series", "metrics/N-N.samples", "logs/worker-0/N.log",
    "logs/worker-0/1.log.d/N", "checkpoints/N.json",
)  # fmt: skip


@pytest.mark.parametrize("number", ["9" * 15, "9" * 20, "9" * 100, "\u0663"])
def test_numbers_that_no_job_reaches_in_names_stop_nobody(running: Path, number: str) -> None:
    job = job_in(running)
    for name in STRANGE:
        place = job / name.replace("N", number)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    (master,) = processes.living(job.name, processes.MASTER)
    processes.send(master.process, signal.SIGKILL)
    until(lambda: "master 2 started" in tm(f"events {job.name}", running).stdout, 60)
    for verb in ("list", "status JOB", "logs JOB", "events JOB", "audit JOB", "save JOB"):
        check_words(tm(verb.replace("JOB", job.name), running))
    (running / "go").touch()
    assert tm(f"wait {job.name}", running).returncode == 0
    assert (running / "out" / "_SUCCESS").exists()
    assert (job / "epochs" / "2").exists()
    assert "step 3" in tm(f"logs {job.name} worker:0 --attempt 1", running).stdout


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["cache/*/tool", "cache/*/.tool.sizes.json", "files/*.tar.gz"])
def test_what_jobs_share_is_made_again(tmp_path: Path, name: str, damage: str) -> None:
    """The program itself sees whether it has the whole of what is cached."""
    folder = prepare(tmp_path)
    (folder / "go").touch()
    assert tm("run job.yaml", folder).returncode == 0
    (place,) = (folder / "state").glob(name)
    whole = place.read_bytes()
    place.write_bytes(DAMAGES[damage](whole))
    assert tm("run job.yaml --set roles.worker.env.UNTIL=5", folder).returncode == 0
    assert place.read_bytes() == whole


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_ledger_stops_no_command_and_holds_up_the_next_job_in_words(running: Path, damage: str) -> None:
    job, place = job_in(running), places.runtime_dir() / "ledger.sqlite"
    place.write_bytes(DAMAGES[damage](place.read_bytes()))
    for verb in (
        "list",
        "status JOB",
        "logs JOB",
        "events JOB",
        "audit JOB",
        "save JOB",
        "dump JOB worker:0",
        "doctor",
    ):
        check_words(tm(verb.replace("JOB", job.name), running))
    other = tm("submit other.yaml", running)
    assert other.returncode == 0
    name = other.stdout.strip()
    until(lambda: f"{place.name} is damaged" in tm(f"status {name}", running).stdout, 60)
    assert "it is made anew then" in tm(f"status {name}", running).stdout
    (running / "go").touch()
    assert tm(f"wait {job.name}", running).returncode == 0
    assert tm(f"wait {name}", running).returncode == 0
    assert tm("run other.yaml", running).returncode == 0


def lines(folder: Path, job: Path) -> list[str]:
    return tm(f"logs {job.name}", folder).stdout.splitlines()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_set_stops_no_later_one(tmp_path: Path, damage: str) -> None:
    """The newest of two manifests is damaged; the next two runs store sets, and go on from them."""
    folder = prepare(tmp_path)
    (folder / "go").touch()
    for steps in (3, 5):
        assert tm(f"run job.yaml --set roles.worker.env.UNTIL={steps}", folder).returncode == 0
    newest = max((folder / "ckpt").glob("*.json"))
    newest.write_bytes(DAMAGES[damage](newest.read_bytes()))
    assert tm("run job.yaml --set roles.worker.env.UNTIL=6", folder).returncode == 0
    jobs = sorted((folder / "state" / "jobs").glob("kept-*"), key=lambda job: job.stat().st_mtime)
    events = tm(f"events --json {jobs[-1].name}", folder).stdout
    assert f"{newest.name} is damaged" in events
    assert max((folder / "ckpt").glob("*.json")) > newest
    done = tm("run job.yaml --set roles.worker.env.UNTIL=7", folder)
    assert done.returncode == 0
    assert "begins after 6" in done.stdout


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_list_of_a_save_stops_no_later_save(running: Path, damage: str) -> None:
    job = job_in(running).name
    (running / "state" / "jobs" / job / "work" / "worker-0" / "model").mkdir(parents=True, exist_ok=True)
    for number in range(5):
        (running / "state" / "jobs" / job / "work" / "worker-0" / "model" / "weights").write_text(str(number))
        done = tm(f"save {job}", running)
        assert done.returncode == 0, done
        kept = sorted((running / "out" / "_saves").glob("*/worker-0.json"))
        newest = kept[-1].parent / "worker-0" / "weights"
        assert newest.read_text() == str(number)
        if number == 1:
            kept[-1].write_bytes(DAMAGES[damage](kept[-1].read_bytes()))
    assert "is damaged" in tm(f"events --json {job}", running).stdout


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["_temporary/commits/worker-0.json", "_SUCCESS"])
def test_a_damaged_list_of_an_output_is_named_and_nothing_of_it_is_lost(tmp_path: Path, name: str, damage: str) -> None:
    folder = prepare(tmp_path)
    (folder / "go").touch()
    assert tm("run job.yaml", folder).returncode == 0
    place = folder / "out" / name
    if name != "_SUCCESS":
        place.parent.mkdir(parents=True)
        place.write_text(
            json.dumps({"job": "earlier", "attempt": 1, "id": "earlier.worker-0.1", "files": {}, "done": False})
        )
    place.write_bytes(DAMAGES[damage](place.read_bytes()))
    is_of_hadoop = name == "_SUCCESS" and not place.read_bytes()
    done = tm("run job.yaml --set roles.worker.env.UNTIL=4", folder)
    check_words(done)
    assert (folder / "out" / "worker-0" / "weights").read_text() == "done"
    if not is_of_hadoop:
        assert done.returncode, done
        assert f"{place.name} is damaged" in done.stderr + done.stdout
