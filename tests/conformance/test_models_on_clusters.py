"""`tm train`, `evaluate` and `predict` on real clusters: the model, its data and its results go there and back, or lie on the cluster's
storage; servers and workers find each other over the network, and come back.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import postgres
import pytest
from conformance.engines import TM, Engine, Submitted, container_process
from conformance.kubernetes_engine import Kubernetes
from conformance.test_models import OWN
from conformance.test_zoo_servers import RECORDS, clicks, predicted, put_data
from waiting import until

import trainmaster

pytestmark = [pytest.mark.full, pytest.mark.needs("frameworks", "nodes")]

PROGRAMS = Path(__file__).parents[1] / "programs"
LIMIT = 400.0  # s
EPOCHS = 30
# This machine's Python, which every node has, and little of a node.
THERE = [
    "--set", f"environment.path={sys.prefix}", "--worker_resource_request", "cpu=0.1,memory=1024Mi",
    "--ps_resource_request", "cpu=0.1,memory=256Mi", "--master_resource_request", "cpu=0.1,memory=256Mi",
]  # fmt: skip
CLICKS = [
    "--model_zoo", str(PROGRAMS / "zoo"), "--model_def", "clicks.torch_clicks.custom_model", "--minibatch_size", "40",
    "--log_loss_steps", "10", "--num_workers", "2", "--num_ps_pods", "2",
]  # fmt: skip


@contextlib.contextmanager
def running(engine: Engine, *words: str, status: int = 0) -> Iterator[Submitted]:
    """The job of a command that watches it to its end, and ends with `status`."""
    command = [TM, *words, *THERE, "--engine", engine.name]
    with (engine.folder / "printed").open("wb") as printed:
        watching = subprocess.Popen(command, cwd=engine.folder, stdout=printed, stderr=printed)
    try:
        jobs = Path(os.environ["TRAINMASTER_STATE_DIR"], "jobs")
        said = (engine.folder / "printed").read_text
        until(lambda: any(jobs.glob("[!.]*")) or watching.poll() is not None, LIMIT, what=said)
        assert watching.poll() is None, said()
        job = adopt(engine)
        yield job
        if not status:
            job.succeeded(LIMIT)
        assert watching.wait(LIMIT) == status, said()
    finally:
        watching.kill()
        watching.wait()


def adopt(engine: Engine) -> Submitted:
    """Return the job that a command has begun; it is taken down with the engine."""
    names = {entry.name for entry in Path(os.environ["TRAINMASTER_STATE_DIR"], "jobs").glob("[!.]*")}
    (name,) = names - {job.id for job in engine.jobs}
    engine.jobs.append(Submitted(trainmaster.attach(name)))
    return engine.jobs[-1]


def run(engine: Engine, *words: str) -> str:
    """Run the job of a command to its end, and return what the command printed."""
    done = engine.tm(*words, *THERE, "--engine", engine.name, limit=LIMIT)
    jobs = Path(os.environ["TRAINMASTER_STATE_DIR"], "jobs")
    job = adopt(engine) if any(jobs.glob("[!.]*")) else None
    assert done.returncode == 0, done.stdout + done.stderr + (job.said() if job else "")
    return str(done.stdout)


def counted(engine: Engine, job: Submitted) -> int:
    """The records that the job has counted, each exactly once."""
    audit = json.loads(engine.tm("audit", job.id, "--json").stdout)
    assert audit["ok"], audit
    return int(audit["inputs"][0]["records"])


def test_a_model_goes_there_and_comes_back(engine: Engine) -> None:
    """Zoo, data and results are of the submitter's machine."""
    assert engine.tm("zoo", "init", "zoo").returncode == 0
    subprocess.run([sys.executable, "zoo/points/data.py", "data"], cwd=engine.folder, check=True)
    model = ["--model_zoo", "zoo", "--model_def", "points.points.custom_model"]
    run(
        engine, "train", *model, "--training_data", "data/train", "--validation_data", "data/test", "--num_epochs", "4",
        "--distribution_strategy", "Local", "--output", "model",
    )  # fmt: skip
    assert counted(engine, engine.jobs[-1]) == 4 * 2000
    assert {"_SUCCESS", "model.pt"} <= set(os.listdir(engine.folder / "model"))
    printed = run(engine, "evaluate", *model, "--validation_data", "data/test", "--checkpoint_dir_for_init", "model")
    assert float(re.search(r"'accuracy': ([\d.]+)", printed)[1]) > 0.9  # type: ignore[index]
    run(
        engine, "predict", *model, "--prediction_data", "data/new", "--checkpoint_dir_for_init", "model", "--output", "out",
        "--num_workers", "1",
    )  # fmt: skip
    lines = [line for file in engine.folder.glob("out/*/*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) == 100


def served(engine: Engine, *words: str) -> list[str]:
    """The command of a job of two servers and two workers; data and results lie on the cluster's storage."""
    put_data(engine, 4)
    data = ["--training_data", engine.place("data"), "--num_epochs", str(EPOCHS), "--checkpoint_steps", "20"]
    return ["train", *CLICKS, *data, *words]


def trained_here(engine: Engine) -> int:
    """Have a job on this machine leave its two servers' checkpoints in `kept`, and return their version."""
    for part in range(4):
        engine.write(f"data/{part}.csv", clicks(RECORDS // 4, part))
    words = [
        "--training_data",
        "data",
        "--checkpoint_steps",
        "20",
        "--checkpoint_dir",
        "kept",
        "--set",
        "roles.worker.threads=1",
    ]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {
        **os.environ,
        "PATH": path,
        "TRAINMASTER_SITE": "",
        "TRAINMASTER_STATE_DIR": str(engine.folder / "state"),
    }
    done = engine.tm("train", *CLICKS, *words, *THERE[2:], env=environ, limit=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return max(int(entry.name.partition("-")[2]) for entry in engine.folder.glob("kept/version-*"))


def test_servers_begin_from_a_former_job_s_wherever_its_checkpoints_lie(engine: Engine) -> None:
    """On the submitter's machine, on the cluster's storage, and in a directory that all nodes see; with another number of servers."""
    version = trained_here(engine)
    for file in (path for path in engine.folder.glob("kept/version-*/*") if path.is_file()):
        engine.put(f"there/{file.relative_to(engine.folder / 'kept')}", file.read_bytes())
    engine.put("validation/0.csv", clicks(200, 9))
    validation = ["--validation_data", engine.place("validation")]
    model = [*CLICKS[:6], "--num_ps_pods", "3"]
    printed = run(engine, "evaluate", *model, *validation, "--checkpoint_dir_for_init", "kept")
    figures = re.search(r"Evaluation metrics\[step=(\d+)\]: \{'accuracy': ([\d.]+)\}", printed)
    assert figures is not None, printed
    assert int(figures[1]) == version
    assert float(figures[2]) > 0.7
    prediction = ["--prediction_data", engine.place("validation"), "--output", engine.place("out")]
    run(engine, "predict", *model, *prediction, "--checkpoint_dir_for_init", engine.place("there"))
    lines = [
        line for name, text in engine.files("out").items() if name.endswith(".jsonl") for line in text.splitlines()
    ]
    assert len(lines) == 200
    put_data(engine, 4)
    training = ["--training_data", engine.place("data"), "--checkpoint_dir_for_init", (engine.folder / "kept").as_uri()]
    printed = run(engine, "train", *model, *training, *validation)
    assert f"going on from version {version} of the parameter servers" in printed
    last = re.findall(r"Evaluation metrics\[step=(\d+)\]", printed)[-1]
    assert int(last) - version in (RECORDS // 40, RECORDS // 40 + 1), (
        "each of two workers may end with a part of a batch"
    )
    missing = f"there/version-{version}/variables-1-of-2.ckpt"
    engine.remove(missing)
    refused = engine.tm(
        "predict", *model, *prediction, "--checkpoint_dir_for_init", engine.place("there"), "--engine", engine.name
    )
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "the share of server 1 is missing" in refused.stderr


def lose_container(engine: Engine, job: Submitted, task: str) -> None:
    """Kill all processes of a task's container."""
    container = [event for event in job.told("granted") if event["task"] == task][-1]["container"]
    if isinstance(engine, Kubernetes):
        (pod,) = (pod for pod in engine.pods(job) if pod["metadata"]["name"] == container)
        for pid in engine._processes(pod):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    else:
        os.kill(container_process(engine.application(job), container, "agent"), signal.SIGKILL)  # type: ignore[attr-defined]


def test_a_worker_and_a_server_start_again_in_their_containers(engine: Engine) -> None:
    validation = ["--validation_data", engine.place("validation")]
    with running(engine, *served(engine, *validation, "--output", engine.place("models"))) as job:
        job.until_line("step=", "worker:1")
        os.kill(engine.process(job, 1, "ps:1"), signal.SIGKILL)
        os.kill(engine.process(job, 1, "worker:1"), signal.SIGKILL)
    assert job.task("ps:1")["attempt"] == job.task("worker:1")["attempt"] == 2
    assert counted(engine, job) == EPOCHS * RECORDS
    assert {"model.pt", "model.pt2"} <= {*engine.files("models")}


def test_a_server_comes_back_in_another_container_where_all_nodes_see_its_directory(engine: Engine) -> None:
    with running(engine, *served(engine, "--checkpoint_dir", (engine.folder / "servers").as_uri())) as job:
        job.until_line("step=", "worker:1")
        lose_container(engine, job, "ps:0")
    assert job.task("ps:0")["attempt"] == 2
    assert job.task("worker:0")["attempt"] == job.task("worker:1")["attempt"] == 1
    assert counted(engine, job) == EPOCHS * RECORDS


def test_servers_come_and_go_while_workers_train_there(engine: Engine) -> None:
    with running(engine, *served(engine)) as job:
        job.until_line("step=", "worker:1")
        for servers in (3, 1, 2):
            assert engine.tm("scale", job.id, f"ps={servers}").returncode == 0
            job.until_line(f"server 0 of {servers} serves version", "ps:0")
    assert job.task("worker:0")["attempt"] == job.task("worker:1")["attempt"] == 1
    assert counted(engine, job) == EPOCHS * RECORDS


def test_a_job_ends_in_words_where_a_server_is_lost_with_its_container(engine: Engine) -> None:
    with running(engine, *served(engine), status=1) as job:
        job.until_line("step=", "worker:1")
        lose_container(engine, job, "ps:0")
        assert "the container of server 0 is lost" in job.failed("cannot-go-on", LIMIT)["words"], job.said()


# Worker 0 leaves enough records for worker 1 to die of.
MEETING = """

from trainmaster import runtime


class Meeting(Dying):
    def on_train_batch_end(self, batch, logs=None):
        if self.count == 3 and os.environ["TRAINMASTER_ATTEMPT"] == "1":
            runtime.barrier("both train")
        super().on_train_batch_end(batch, logs)


def callbacks():
    return [Meeting()]
"""


def test_workers_share_the_records_of_a_reader_of_the_model_file_s_own(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submitter counts them, the master gives out their numbers, and each worker's reader reads what it gets, though one is killed."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert engine.tm("zoo", "init", "zoo").returncode == 0
    engine.write("zoo/points/own.py", OWN + MEETING)
    model = ["--model_zoo", "zoo", "--model_def", "points.own.custom_model", "--minibatch_size", "8"]
    model += ["--num_minibatches_per_task", "3", "--num_workers", "2", "--set", "roles.worker.replicas=2"]
    training = ["--training_data", "nowhere", "--num_ps_pods", "1", "--num_epochs", "6"]
    run(engine, "train", *model, *training, "--output", "model")
    job = engine.jobs[-1]
    assert counted(engine, job) == 6 * 200
    assert job.task("worker:1")["attempt"] == 2, "it died in its fourth batch"
    assert "model.pt" in os.listdir(engine.folder / "model")
    run(
        engine,
        "predict",
        *model,
        "--prediction_data",
        "nowhere",
        "--checkpoint_dir_for_init",
        "model",
        "--output",
        "out",
    )
    assert counted(engine, engine.jobs[-1]) == 200
    lines = [line for file in engine.folder.glob("out/*/*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) == 200


@pytest.mark.parametrize(("model", "export"), [("torch_lines", "model.pt"), ("keras_lines", "model.keras")])
def test_workers_that_sum_their_gradients_go_on_where_one_is_killed(engine: Engine, model: str, export: str) -> None:
    """Worker 1 dies in its third batch, and comes back: its program is killed, or its container is lost."""
    for file in range(12):
        engine.put(f"data/{file:02}.txt", "".join(f"{file * 20 + line}\n" for line in range(20)))
    words = [
        "--model_zoo", str(PROGRAMS / "zoo"), "--model_def", f"models.{model}.custom_model", "--training_data", engine.place("data"),
        "--num_epochs", "2", "--minibatch_size", "8", "--num_workers", "2", "--distribution_strategy", "AllreduceStrategy",
        "--set", "roles.worker.replicas.min=2", "--output", engine.place("models"),
    ]  # fmt: skip
    if model == "torch_lines":
        with running(engine, "train", *words, "--envs", "DIES=1 3,DIE=/nowhere") as job:
            job.until_line("dies", "worker:1")
            lose_container(engine, job, "worker:1")
    else:
        run(engine, "train", *words, "--envs", "DIES=1 3")
        job = engine.jobs[-1]
    assert [job.task(f"worker:{index}")["attempt"] for index in range(2)] == [1, 2], job.said()
    assert counted(engine, job) == 2 * 240
    assert export in engine.files("models")


def test_tables_of_keras_come_back_into_a_model_on_the_cluster_s_storage(engine: Engine, tmp_path: Path) -> None:
    """Keras alone loads it, from a copy here."""
    put_data(engine, 4)
    printed = run(
        engine, "train", *CLICKS[:2], "--model_def", "clicks.keras_clicks.custom_model", "--model_params", "kind='keras'",
        *CLICKS[4:], "--embedding_size", "100", "--training_data", engine.place("data"), "--num_epochs", "4",
        "--validation_data", engine.place("validation"), "--output", engine.place("models"),
    )  # fmt: skip
    assert "is on the parameter servers" in printed
    assert counted(engine, engine.jobs[-1]) == 4 * RECORDS
    (tmp_path / "model.keras").write_bytes(engine.files("models")["model.keras"])
    assert len(predicted(engine, str(tmp_path / "model.keras"))) == 3


def table_words(engine: Engine, url: str) -> list[str]:
    """The command of a job that trains on a table of clicks."""
    keys = ["--num_epochs", "2", "--set", "secrets.PGPASSWORD.file=password"]
    return ["train", *CLICKS, "--training_data", f"{url}?table=clicks&columns=a,b,c,label", *keys]


def test_workers_train_on_a_table_of_a_database_that_they_reach(engine: Engine) -> None:
    is_in_pods = isinstance(engine, Kubernetes)
    with postgres.serving(engine.cluster.address if is_in_pods else "127.0.0.1") as server:  # type: ignore[attr-defined]
        database = server.database()
        rows = [line.split(",") for line in clicks(RECORDS, 0).splitlines()[1:]]
        values = ", ".join(f"({number}, {', '.join(row)})" for number, row in enumerate(rows))
        database.run(
            "CREATE TABLE clicks (id int PRIMARY KEY, a int, b int, c int, label int)",
            f"INSERT INTO clicks VALUES {values}",
        )
        engine.write("password", database.password)
        run(engine, *table_words(engine, database.url))
        assert counted(engine, engine.jobs[-1]) == 2 * RECORDS


def test_a_table_in_a_file_that_nodes_do_not_see_is_refused_or_named(engine: Engine, tmp_path: Path) -> None:
    """A cluster whose nodes see what its volumes have is known not to see it; nodes of others may see it, by a mount of theirs."""
    engine.write("password", "none")
    path = tmp_path / "clicks.db"
    if isinstance(engine, Kubernetes):
        path.write_bytes(b"")
    done = engine.tm(*table_words(engine, f"sqlite:///{path}"), *THERE, "--engine", engine.name, limit=LIMIT)
    said = " ".join(done.stderr.split())
    if isinstance(engine, Kubernetes):
        assert done.returncode == 2, said
        assert f"the table's file {path} is of this machine, and the pods do not see it" in said
    else:
        adopt(engine)
        assert done.returncode == 1, said
        assert f"the file of the table clicks of sqlite:///{path} does not exist" in said
    assert "PostgreSQL" in said
