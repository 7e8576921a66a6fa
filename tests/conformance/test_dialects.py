"""Jobs said in the words of XLearning and of Submarine, as those who come from there would try them first."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from conformance.engines import TM, Engine, Submitted
from waiting import until

import trainmaster
from trainmaster.core.spec.reading import job_from

pytestmark = pytest.mark.needs("local-data")  # on YARN: test_dialects_yarn

# What fits beside other tests: XLearning's cores are whole numbers.
SMALL = [f"--set=roles.{role}.resources.cores=0.05" for role in ("worker", "ps")]
DEMO = """
import json, os, socket, sys, time
role, index = os.environ["TF_ROLE"], int(os.environ["TF_INDEX"])
cluster = json.loads(os.environ["TF_CLUSTER_DEF"])
host, port = cluster["ps"][0].rsplit(":", 1)
assert json.loads(os.environ["TF_CONFIG"]) == {"cluster": cluster, "task": {"type": role, "index": index}}
assert os.environ["INDEX"] == str(index)
if role == "ps":
    server = socket.create_server((host, int(port)))
    while True:
        server.accept()[0].sendall(b"weights")
while True:
    try:
        got = socket.create_connection((host, int(port))).recv(7).decode()
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
folder = sys.argv[1].partition("=")[2]
os.makedirs("model", exist_ok=True)
with open("model/result.json", "w") as file:
    json.dump({"index": index, "got": got, "read": sorted(os.listdir(folder)), "workers": len(cluster["worker"])}, file)
print("reporter progress:1.0", flush=True)
"""
TORCH = """
import os
import torch.distributed as dist
import torch
dist.init_process_group("gloo", init_method=os.environ["INIT_METHOD"], rank=int(os.environ["RANK"]),
                        world_size=int(os.environ["WORLD_SIZE"]))
one = torch.ones(1)
dist.all_reduce(one)
print("sum", one.item(), "index", os.environ["INDEX"], flush=True)
dist.destroy_process_group()  # else its threads are ended with the process, which aborts now and then
"""


def submitted(engine: Engine, *words: str) -> subprocess.CompletedProcess[str]:
    """`tm submit` in these words; what it started is taken down with the engine."""
    done = engine.tm("submit", *words)
    folder = Path(os.environ["TRAINMASTER_STATE_DIR"], "jobs")
    known = {made.id for made in engine.jobs}
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    engine.jobs += [Submitted(trainmaster.attach(name)) for name in names if name not in known]
    return done


def xlearning(engine: Engine, words: str, *command: str) -> subprocess.CompletedProcess[str]:
    return submitted(engine, "--xlearning", "--engine", engine.name, *words.split(), *command)


def test_the_quick_start_of_xlearning(engine: Engine) -> None:
    """2 workers and 1 ps, input and output, code by --files."""
    for number in range(4):
        engine.write(f"data/part-{number}.txt", "x\n")
    engine.write("src/demo.py", DEMO)
    words = (
        "--app-type tensorflow --app-name tf-demo --input data#data --output out#model --files src/demo.py --worker-memory 128M "
        "--worker-num 2 --ps-memory 128m --ps-num 1 --queue default"
    )
    done = xlearning(engine, words, *SMALL, sys.executable, "demo.py", "--data_path=./data")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tf-demo-" in done.stderr
    made = [json.loads((engine.folder / f"out/worker-{index}/result.json").read_text()) for index in range(2)]
    assert [one["index"] for one in made] == [0, 1]
    assert {one["got"] for one in made} == {"weights"}
    assert {one["workers"] for one in made} == {2}
    assert sorted(made[0]["read"] + made[1]["read"]) == [f"part-{number}.txt" for number in range(4)]
    assert not (engine.folder / "out/ps-0").exists()


# How a program meets its part of an input by each strategy; all print the lines that they got.
READERS = {
    "DOWNLOAD": "cat data/*",
    "PLACEHOLDER": """python3 -c 'import json, os
for path in json.loads(os.environ["INPUT_FILE_LIST"])["data"]: print(open(path).read(), end="")'""",
    "STREAM": "cat",
}


@pytest.mark.parametrize("strategy", READERS)
def test_several_remote_paths_are_one_input(engine: Engine, strategy: str) -> None:
    """Two of them have a file of the same name, and one is named twice: each file is handed out once."""
    for path in ("a/part-0", "b/part-0", "b/part-1", "c/x"):
        engine.write(path, f"{path}\n")
    inputs = f"--input a,b#data --input b/*#data --input c/x#data --input-strategy {strategy}"
    done = xlearning(
        engine,
        f"--app-type xgboost --worker-num 2 --worker-memory 64M {inputs}",
        SMALL[0],
        "sh",
        "-c",
        READERS[strategy],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.partition(" ")[2] for line in done.stdout.splitlines()]
    assert sorted(lines) == ["a/part-0", "b/part-0", "b/part-1", "c/x"]


@pytest.mark.parametrize(
    ("writer", "status"), [("[ $INDEX = 1 ] && echo x > model/x || true", 0), ("true", 2), ("rm -r model", 2)]
)
def test_a_worker_that_writes_no_output_is_no_error_where_another_wrote_one(
    engine: Engine, writer: str, status: int
) -> None:
    """The directory is there when the program begins. A job of which no worker wrote anything fails, and says what to do."""
    words = "--worker-num 2 --worker-memory 64M --output out#model"
    done = xlearning(engine, words, SMALL[0], "sh", "-c", writer)
    assert done.returncode == status, done.stdout + done.stderr
    if status:
        assert "no task wrote a file of output model" in done.stderr
        assert "write to ./model; if that is usual, use --set outputs.model.required=none" in done.stderr
    else:
        assert (engine.folder / "out/worker-1/x").read_text() == "x\n"
        assert list(json.loads((engine.folder / "out/_SUCCESS").read_text())["tasks"]) == ["worker:0", "worker:1"]


def test_the_board_s_history_is_the_directory_as_named(engine: Engine) -> None:
    """A later job replaces what the one before left there, and nothing else."""
    engine.write("history/kept", "x")
    for name in ("first", "second"):
        words = f"--app-type tensorflow --app-name {name} --worker-memory 64M --board-historydir history"
        done = xlearning(engine, words, SMALL[0], "--launch-cmd", f"touch eventLog/{name}")
        assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in (engine.folder / "history").iterdir()} == {"kept", "second", "_SUCCESS"}


@pytest.mark.full
def test_pytorch_s_processes_meet(engine: Engine) -> None:
    engine.write("train.py", TORCH)
    words = "--app-type distTorch --worker-num 2 --worker-memory 600M --files train.py"
    done = xlearning(engine, words, SMALL[0], "--launch-cmd", f"{sys.executable} train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"worker:{index} sum 2.0 index {index}" for index in range(2)]


def test_exit_statuses_are_those_of_xl_submit(engine: Engine) -> None:
    assert xlearning(engine, "--app-type mpi --worker-num 2", "true").returncode == 1
    assert xlearning(engine, "--input nowhere#data", SMALL[0], "true").returncode == 1
    assert xlearning(engine, "--worker-memory 900000G", SMALL[0], "true").returncode == 1
    failed = xlearning(
        engine, "--conf xlearning.app.max.attempts=1 --worker-memory 64M", SMALL[0], "sh", "-c", "exit 7"
    )
    assert failed.returncode == 2, failed.stderr
    assert "worker:0 exited with status 7" in failed.stderr
    assert xlearning(engine, "--worker-memory 64M", SMALL[0], "true").returncode == 0


def test_a_few_of_independent_workers_may_fail(engine: Engine) -> None:
    words = "--worker-num 4 --worker-memory 64M --conf xlearning.app.max.attempts=1"
    for failing, status in ((1, 0), (2, 2)):
        done = xlearning(engine, words, SMALL[0], "sh", "-c", f"[ $INDEX -ge {failing} ]")
        assert done.returncode == status, done.stderr


def test_ctrl_c_leaves_the_job_running_as_there(engine: Engine) -> None:
    words = ["submit", "--xlearning", "--engine", engine.name, "--worker-memory", "64M", SMALL[0], "--app-name", "held"]
    command = ["sh", "-c", f"echo here; while [ ! -e {engine.folder}/go ]; do sleep 0.05; done"]
    with subprocess.Popen(
        [TM, *words, *command], cwd=engine.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == b"here\n"
            client.send_signal(signal.SIGINT)
            assert client.wait(60) == 130
        finally:
            client.kill()
    job = Submitted(trainmaster.attach("held"))
    engine.jobs.append(job)
    assert job.status()["state"] == "running"
    engine.write("go", "")
    job.succeeded()


def test_a_save_is_where_users_of_xlearning_look(engine: Engine) -> None:
    program = (
        f"mkdir -p model; echo weights > model/w; echo written; while [ ! -e {engine.folder}/go ]; do sleep 0.05; done"
    )
    words = [
        *("submit", "--xlearning", "--engine", engine.name, "--worker-memory", "64M", SMALL[0], "--app-name", "saving"),
        *("--output", "out#model"),
    ]
    with subprocess.Popen([TM, *words, "sh", "-c", program], cwd=engine.folder, stdout=subprocess.PIPE) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == b"written\n"
            job = Submitted(trainmaster.attach("saving"))
            engine.jobs.append(job)
            name = engine.tm("save", job.id).stdout.split()[0]
            assert re.fullmatch(r"interResult_\d{4}(_\d\d){5}", name)
            assert (engine.folder / "out" / name / "worker-0" / "w").read_text() == "weights\n"
            engine.write("go", "")
            assert client.wait(60) == 0
        finally:
            client.kill()


def test_a_dry_run_prints_the_job_file_and_starts_nothing(engine: Engine, home) -> None:
    words = "--dry-run --worker-num 2 --app-name dry --worker-memory 64M"
    done = xlearning(engine, words, SMALL[0], "python", "x.py")
    assert done.returncode == 0, done.stderr
    told = yaml.safe_load(done.stdout)
    assert job_from(told).roles["worker"].replicas.max == 2
    assert f"# tm run --engine {engine.name} job.yaml" in done.stdout
    assert not (home.state / "jobs").exists()
    engine.write("job.yaml", done.stdout.replace("python, x.py", "echo, ran"))
    assert "worker:1 ran" in engine.tm("run", "--engine", engine.name, "job.yaml").stdout


RUN = (
    "--submarine",
    "job",
    "run",
    "--name",
    "sub",
    "--input_path",
    "/in",
    "--worker_resources",
    "memory=64M,vcores=1",
    SMALL[0],
)


def test_submarine_waits_only_where_it_is_asked_to(engine: Engine) -> None:
    gate = f"while [ ! -e {engine.folder}/go ]; do sleep 0.05; done"
    done = submitted(engine, "--engine", engine.name, *RUN, "--worker_launch_cmd", gate)
    assert done.returncode == 0, done.stderr
    (job,) = engine.jobs
    assert done.stdout.strip() == job.id
    shown = engine.tm("submit", "--submarine", "job", "show", "--name", "sub")
    assert job.id in shown.stdout
    killed = engine.tm("submit", "--submarine", "job", "kill", "--name", "sub")
    assert killed.stdout.strip() == f"{job.id} killed"
    for status in (0, 1):
        words = [
            *RUN,
            "--wait_job_finish",
            "--set",
            "roles.worker.restart=never",
            "--worker_launch_cmd",
            f"exit {status}",
        ]
        assert submitted(engine, "--engine", engine.name, *words).returncode == status


def test_workers_of_submarine_know_their_cluster(engine: Engine) -> None:
    """TF_CONFIG has a master, which is worker 0, and the paths are filled in; what is localized lies in the working directory."""
    engine.write("words.txt", "one two")
    engine.write("lib/more.py", "x = 1")
    program = 'import os, json; print(json.dumps(json.loads(os.environ["TF_CONFIG"])))'
    show = f"{sys.executable} -c '{program}'; cat words.txt more/more.py; echo %input_path%"
    words = [
        *("--num_workers", "2", "--worker_launch_cmd", show, "--num_ps", "1", "--ps_resources", "memory=64M,vcores=1"),
        *("--ps_launch_cmd", "sleep 600", SMALL[1], "--set", "roles.master.resources.cores=0.05", "--wait_job_finish"),
        *("--localization", "./words.txt:.", "--localization", "./lib:./more"),
    ]
    done = submitted(engine, "--engine", engine.name, *RUN, *words)
    assert done.returncode == 0, done.stderr
    (job,) = engine.jobs
    for task, kind in (("master:0", "master"), ("worker:0", "worker")):
        first, *rest = job.lines(task)
        config = json.loads(first)
        assert {role: len(members) for role, members in config["cluster"].items()} == {
            "master": 1,
            "worker": 1,
            "ps": 1,
        }
        assert (config["task"], config["environment"]) == ({"type": kind, "index": 0}, "cloud")
        assert rest == ["one twox = 1/in"]


def test_tensorboard_is_the_only_task(engine: Engine) -> None:
    """Real TensorBoard, whose page is where `tm status` says."""
    (engine.folder / "logs").mkdir()
    words = [
        *("--submarine", "job", "run", "--name", "board", "--num_workers", "0", "--tensorboard", "--checkpoint_path"),
        *(str(engine.folder / "logs"), "--tensorboard_resources", "memory=900M,vcores=1"),
        *("--set", "roles.tensorboard.resources.cores=0.5", "--env", f"PATH={Path(TM).parent}:{os.environ['PATH']}"),
    ]
    done = submitted(engine, "--engine", engine.name, *words)
    assert done.returncode == 0, done.stderr
    (job,) = engine.jobs
    address = until(
        lambda: re.search(r"^Tensorboard: (http://\S+)", engine.tm("status", job.id).stdout, re.MULTILINE), 60.0
    )

    def page() -> str:
        try:
            with urllib.request.urlopen(address[1], timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            return ""

    assert "tensorboard" in until(page, 180.0, what=lambda: "\n".join(job.lines("tensorboard:0"))).lower()
    assert engine.tm("submit", "--submarine", "job", "kill", "--name", "board").returncode == 0


def test_tensorboard_beside_workers_does_not_count(engine: Engine) -> None:
    """The job ends when its workers have; who shows their logs is stopped."""
    board = engine.write("bin/tensorboard", "#!/bin/sh\necho shown $*\nexec sleep 600\n")
    board.chmod(0o755)
    words = "--app-type tensorflow --board-enable true --worker-memory 64M --app-name boarded --board-logdir"
    gate = f"while [ ! -e {engine.folder}/go ]; do sleep 0.05; done"
    sets = [
        *SMALL[:1],
        "--set",
        "roles.tensorboard.resources={cores: 0.05, memory: 64MiB}",
        "--conf",
        f"xlearning.tf.board.path={board}",
    ]
    command = [
        TM,
        "submit",
        "--xlearning",
        "--engine",
        engine.name,
        *words.split(),
        str(engine.folder),
        *sets,
        "sh",
        "-c",
        gate,
    ]
    with subprocess.Popen(command, cwd=engine.folder) as client:
        try:
            told = until(
                lambda: re.search(
                    r"^TensorBoard: http://\S+:(\d+)/", engine.tm("status", "boarded").stdout, re.MULTILINE
                ),
                60.0,
            )
            job = Submitted(trainmaster.attach("boarded"))
            engine.jobs.append(job)
            job.until_line(f"shown --logdir {engine.folder} --port {told[1]}", "tensorboard:0")
            engine.write("go", "")
            assert client.wait(60) == 0
        finally:
            client.kill()
    assert job.task("tensorboard:0")["state"] == "killed"


def test_tensorboard_in_a_worker_ends_with_it(engine: Engine) -> None:
    """Logs in a worker's own directory are shown by that worker, as XLearning had it."""
    board = engine.write("bin/tensorboard", '#!/bin/sh\necho "shown $*"; touch eventLog/seen\nexec sleep 600\n')
    board.chmod(0o755)
    words = "--app-type tensorflow --worker-num 2 --board-enable true --board-index 1 --worker-memory 64M"
    words += f" --conf xlearning.tf.board.path={board}"
    command = ["sh", "-c", "[ $INDEX = 0 ] || while [ ! -e eventLog/seen ]; do sleep 0.02; done"]
    done = xlearning(engine, words, SMALL[0], *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^worker:1 shown --logdir eventLog --port \d+ --host 127.0.0.1", done.stdout, re.MULTILINE)
    assert "worker:0 shown" not in done.stdout
