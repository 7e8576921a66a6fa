"""A model file, trained, evaluated and used by one command each, as the pages show it. It is PyTorch's, since that starts fastest."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from conformance.engines import Engine, Submitted

import trainmaster

pytestmark = pytest.mark.needs("local-data", "frameworks")

PROGRAMS = Path(__file__).parents[1] / "programs"
MODEL = ["--model_zoo", "zoo", "--model_def", "points.points.custom_model"]
SMALL = ["--worker_resource_request", "cpu=0.05,memory=1024Mi"]


@pytest.fixture(autouse=True)
def zoo(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The zoo that `tm zoo init` begins, with its data, in the engine's folder; `python` is that of the tests."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert engine.tm("zoo", "init", "zoo").returncode == 0
    subprocess.run([sys.executable, "zoo/points/data.py", "data"], cwd=engine.folder, check=True)
    return engine.folder


def tm(engine: Engine, *words: str, model: Sequence[str] = MODEL) -> subprocess.CompletedProcess[str]:
    """A command that runs a job; what it started is taken down with the engine."""
    folder = Path(os.environ["TRAINMASTER_STATE_DIR"], "jobs")
    done = engine.tm(*words, *model, *SMALL, "--engine", engine.name)
    known = {job.id for job in engine.jobs}
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    engine.jobs += [Submitted(trainmaster.attach(name)) for name in names if name not in known]
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_model_is_trained_evaluated_and_used(engine: Engine, zoo: Path) -> None:
    trained = tm(
        engine, "train", "--training_data", "data/train", "--validation_data", "data/test", "--num_epochs", "4",
        "--log_loss_steps", "50", "--distribution_strategy", "Local", "--output", "model", "--checkpoint_dir", "saved",
    )  # fmt: skip
    assert re.search(r"^step=50 epoch=2 loss=[\d.]+ examples/s=\d+$", trained.stdout, re.MULTILINE), trained.stdout
    accuracy = re.compile(r"^Evaluation metrics\[step=(\d+)\]: \{'accuracy': ([\d.]+)\}$", re.MULTILINE)
    steps, beside = accuracy.search(trained.stdout).groups()  # type: ignore[union-attr]
    assert steps == "128"
    assert float(beside) > 0.9
    assert "warning" not in trained.stderr
    assert {"_SUCCESS", "model.pt"} <= set(os.listdir(zoo / "model"))
    audit = engine.tm("audit", engine.jobs[-1].id)
    assert audit.returncode == 0, audit.stdout
    evaluated = tm(engine, "evaluate", "--validation_data", "data/test", "--checkpoint_dir_for_init", "saved")
    assert accuracy.search(evaluated.stdout).groups() == ("128", beside)  # type: ignore[union-attr]
    tm(engine, "predict", "--prediction_data", "data/new", "--checkpoint_dir_for_init", "model", "--output", "out",
       "--num_workers", "1")  # fmt: skip
    lines = [line for file in sorted(zoo.glob("out/*/*.jsonl")) for line in file.read_text().splitlines()]
    points = list(csv.reader((zoo / "data/new/points.csv").read_text().splitlines()))[1:]
    assert len(lines) == len(points) == 100
    guesses = [json.loads(line) for line in lines]
    inside = [float(x) ** 2 + float(y) ** 2 < 0.6 for x, y in points]
    assert sum((no < yes) == is_inside for (no, yes), is_inside in zip(guesses, inside, strict=True)) > 85


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["Local", "AllreduceStrategy"])
def test_a_loss_that_is_no_number_ends_the_job_without_a_restart(engine: Engine, zoo: Path, strategy: str) -> None:
    flowers = [f"{number % 7},{number % 5},{number % 3},{number % 2},{number % 3}" for number in range(600)]
    (zoo / "flowers.csv").write_text("\n".join(["a,b,c,d,class", *flowers]) + "\n")
    words = [
        "train", "--model_zoo", str(PROGRAMS / "zoo"), "--model_def", "models.torch_iris.custom_model", "--loss", "nan_loss",
        "--training_data", "flowers.csv", "--minibatch_size", "20", "--num_minibatches_per_task", "1", "--checkpoint_dir", "saved",
        "--checkpoint_steps", "2", "--distribution_strategy", strategy, "--num_workers", "1" if strategy == "Local" else "2",
    ]  # fmt: skip
    done = engine.tm(*words, *SMALL, "--engine", engine.name)
    assert done.returncode == 1, done.stdout + done.stderr
    names = os.listdir(Path(os.environ["TRAINMASTER_STATE_DIR"], "jobs"))
    engine.jobs += [Submitted(trainmaster.attach(name)) for name in names]
    why = engine.jobs[-1].failed("cannot-go-on")["figures"]["detail"]
    assert re.match(r"the loss of step \d+ is NaN; the last good checkpoint: .*of step \d+ ", why), why
    assert "could not go on: the loss of step " in done.stdout + done.stderr
    assert all(task["attempt"] == 1 for task in engine.jobs[-1].run.status()["tasks"])


@pytest.mark.full
def test_the_job_file_of_a_command_is_the_same_job(engine: Engine, zoo: Path) -> None:
    words = [
        "--training_data",
        "data/train",
        "--distribution_strategy",
        "Local",
        "--output",
        "model",
        "--yaml",
        "job.yaml",
    ]
    tm(engine, "train", *words)
    assert list(yaml.safe_load((zoo / "job.yaml").read_text())["inputs"]) == ["training"]
    done = engine.tm("run", "job.yaml", "--engine", engine.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (zoo / "model/_SUCCESS").exists()


@pytest.mark.full
def test_a_program_of_one_s_own_has_the_data_service(engine: Engine, zoo: Path) -> None:
    (zoo / "program.py").write_text(
        "import os\nfrom trainmaster import runtime\n"
        "print('read', sum(1 for row in runtime.shards('training')), flush=True)\n"
        "print('worker', os.environ['WORKER_ID'], 'of', os.environ['WORKER_NUM'], 'at', os.environ['MY_POD_IP'], flush=True)\n"
    )
    words = [
        "--training_data",
        "data/train",
        "--num_epochs",
        "2",
        "--num_workers",
        "1",
        "--job_command",
        "python program.py",
    ]
    done = engine.tm("train", *words, *SMALL, "--engine", engine.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "read 4002" in done.stdout, "two epochs of 2000 rows and a header"
    assert re.search(r"worker 0 of 1 at [\d.]+\n", done.stdout), "as ElasticDL's programs expect"


OWN = """
import os
import signal

from points import *

COUNTS = {"first": (0, 70), "second": (1000, 45), "third": (500, 85)}


class Points:
    def __init__(self, data_origin, records_per_task):
        assert data_origin == "nowhere" and records_per_task == 24

    def create_shards(self):
        return COUNTS

    def read_records(self, task):
        start, count = COUNTS[task.shard.name]
        assert start <= task.shard.start < task.shard.end <= start + count
        for number in range(task.shard.start, task.shard.end):
            yield [number / 2000, 0.1, number % 2]


def custom_data_reader(data_origin, records_per_task=None):
    return Points(data_origin, records_per_task)


class Dying:
    count = 0

    def set_model(self, model):
        pass

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.count == 4 and (os.environ["TRAINMASTER_INDEX"], os.environ["TRAINMASTER_ATTEMPT"]) == ("1", "1"):
            os.kill(os.getpid(), signal.SIGKILL)


def callbacks():
    return [Dying()]


class PredictionOutputsProcessor:
    def process(self, predictions, worker_id):
        pass
"""


@pytest.mark.full
def test_two_workers_share_the_records_of_a_reader_of_the_model_file_s_own(engine: Engine, zoo: Path) -> None:
    (zoo / "zoo/points/own.py").write_text(OWN)
    model = [
        *MODEL[:2],
        "--model_def",
        "points.own.custom_model",
        "--minibatch_size",
        "8",
        "--num_minibatches_per_task",
        "3",
    ]

    def counted(*words: str) -> int:
        tm(engine, *words, "--num_workers", "2", "--set", "roles.worker.replicas=2", model=model)
        audit = json.loads(engine.tm("audit", engine.jobs[-1].id, "--json").stdout)
        assert audit["ok"], audit
        return int(audit["inputs"][0]["records"])

    trained = counted("train", "--training_data", "nowhere", "--distribution_strategy", "AllreduceStrategy", "--num_epochs", "12",
                      "--output", "model")  # fmt: skip
    assert trained == 12 * 200, "though one was killed in the middle"
    assert engine.jobs[-1].task("worker:1")["attempt"] == 2
    assert {event["task"] for event in engine.jobs[-1].told("shards-done")} == {"worker:0", "worker:1"}
    assert (
        counted("predict", "--prediction_data", "nowhere", "--checkpoint_dir_for_init", "model", "--output", "out")
        == 200
    )
    assert sum(len(file.read_text().splitlines()) for file in zoo.glob("out/*/*.jsonl")) == 200
