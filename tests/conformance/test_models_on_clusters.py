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

import pytest
from conformance.engines import TM, Engine, Submitted, container_process
from conformance.kubernetes_engine import Kubernetes
from conformance.test_zoo_servers import RECORDS, put_data
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
        until(lambda: any(jobs.glob("*")) or watching.poll() is not None, LIMIT, what=said)
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
    names = {entry.name for entry in Path(os.environ["TRAINMASTER_STATE_DIR"], "jobs").iterdir()}
    (name,) = names - {job.id for job in engine.jobs}
    engine.jobs.append(Submitted(trainmaster.attach(name)))
    return engine.jobs[-1]


def run(engine: Engine, *words: str) -> str:
    """Run the job of a command to its end, and return what the command printed."""
    done = engine.tm(*words, *THERE, "--engine", engine.name, limit=LIMIT)
    job = adopt(engine)
    assert done.returncode == 0, done.stdout + done.stderr + job.said()
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


def test_a_job_ends_in_words_where_a_server_is_lost_with_its_container(engine: Engine) -> None:
    with running(engine, *served(engine), status=1) as job:
        job.until_line("step=", "worker:1")
        lose_container(engine, job, "ps:0")
        assert any("the container of server 0 is lost" in line for line in job.failed("exit", LIMIT)["tail"]), (
            job.said()
        )
