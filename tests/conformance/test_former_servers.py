"""Commands that begin from what a former job's parameter servers have left, or from an export; and rarer ways to train on servers."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from conformance.engines import Engine, Submitted
from conformance.test_zoo_servers import RECORDS, put_data

import trainmaster

ZOO = Path(__file__).parents[1] / "programs" / "zoo"
LIMIT = 300.0  # s; imports of TensorFlow on a machine with other work
SMALL = ["--worker_resource_request", "cpu=0.05,memory=1024Mi", "--ps_resource_request", "cpu=0.05,memory=512Mi"]
DATA = [
    "--training_data",
    "data",
    "--validation_data",
    "validation",
    "--minibatch_size",
    "40",
    "--embedding_size",
    "100",
]
EVALUATED = re.compile(r"Evaluation metrics\[step=(\d+)\]: \{'\w+': ([\d.]+)\}")
FROM = "--checkpoint_dir_for_init"

pytestmark = [pytest.mark.needs("frameworks", "local-data"), pytest.mark.full]


@pytest.fixture(autouse=True)
def python(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python` in the jobs is that of the tests."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def tm(engine: Engine, task: str, model: str, *words: str, status: int = 0) -> str:
    """What a command prints whose job ends; what it started is taken down with the engine."""
    folder = Path(os.environ["TRAINMASTER_STATE_DIR"], "jobs")
    command = [task, "--model_zoo", str(ZOO), "--model_def", f"clicks.{model}.custom_model", *words, *SMALL]
    done = engine.tm(*command, "--engine", engine.name, limit=LIMIT)
    known = {job.id for job in engine.jobs}
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    engine.jobs += [Submitted(trainmaster.attach(name)) for name in names if name not in known]
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def evaluations(printed: str) -> list[tuple[int, float]]:
    """The steps and figures of the evaluations that a command has printed."""
    return [(int(step), float(figure)) for step, figure in EVALUATED.findall(printed)]


def test_jobs_begin_from_the_checkpoints_of_several_servers(engine: Engine) -> None:
    """Onto another number, with other updates, in the same directory; and a share that is missing is told before the job starts."""
    put_data(engine, 4)
    first = tm(engine, "train", "torch_clicks", *DATA, "--num_workers", "1", "--num_ps_pods", "2",
               "--checkpoint_steps", "20", "--checkpoint_dir", "kept")  # fmt: skip
    ((steps, figure),) = evaluations(first)
    assert steps == RECORDS // 40
    for servers in ((), ("--num_ps_pods", "3")):
        evaluated = tm(engine, "evaluate", "torch_clicks", "--validation_data", "validation", FROM, "kept", *servers)
        assert evaluations(evaluated) == [(steps, figure)]
    tm(engine, "predict", "torch_clicks", "--prediction_data", "validation", FROM, "kept", "--output", "out")
    lines = [line for file in engine.folder.glob("out/*/*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) == 200
    more = tm(engine, "train", "torch_clicks", *DATA, "--num_workers", "1", "--num_ps_pods", "3", "--use_async", "true",
              "--evict_unused", "7d", FROM, "kept")  # fmt: skip
    assert f"going on from version {steps} of the parameter servers" in more
    assert evaluations(more)[-1][0] == 2 * steps
    alone = tm(engine, "train", "torch_clicks", *DATA, "--distribution_strategy", "Local", FROM, "kept")
    assert evaluations(alone)[-1][0] == 2 * steps
    again = tm(engine, "train", "torch_clicks", *DATA, "--num_workers", "1", "--num_ps_pods", "2",
               "--checkpoint_dir", "kept", "--keep_checkpoint_max", "2")  # fmt: skip
    assert evaluations(again)[-1][0] == 2 * steps
    (engine.folder / f"kept/version-{2 * steps}/variables-1-of-2.ckpt").unlink()
    known = len(engine.jobs)
    refused = tm(engine, "train", "torch_clicks", *DATA, "--num_ps_pods", "1", FROM, "kept", status=2)
    assert "the share of server 1 is missing" in refused
    assert "to begin from the checkpoint before" in refused
    assert len(engine.jobs) == known, "no job was started"


@pytest.mark.parametrize("kind", ["keras", "unbounded", "tables"])
def test_tables_on_servers_begin_with_the_rows_of_an_export(engine: Engine, kind: str) -> None:
    """No step changes what was learned, as the learning rate is nothing."""
    put_data(engine, 4)
    flags = [*DATA, "--model_params", f"kind='{kind}'", "--num_workers", "2", "--num_ps_pods", "2"]
    trained = tm(engine, "train", "keras_clicks", *flags, "--output", "model")
    (_, figure) = evaluations(trained)[-1]
    assert figure > 0.8
    same = tm(engine, "train", "keras_clicks", *flags, FROM, "model", "--envs", "RATE=1e-9", "--checkpoint_dir", "kept")
    assert evaluations(same)[-1][1] == pytest.approx(figure, abs=1e-4)
    evaluated = tm(engine, "evaluate", "keras_clicks", "--validation_data", "validation", FROM, "kept",
                   "--model_params", f"kind='{kind}'")  # fmt: skip
    assert evaluations(evaluated)[-1] == evaluations(same)[-1]


def test_a_subclassed_model_with_a_schedule_has_two_gradients_a_step(engine: Engine) -> None:
    put_data(engine, 4)
    flags = [*DATA, "--num_workers", "2", "--num_ps_pods", "2"]
    trained = tm(engine, "train", "subclassed", *flags, "--num_epochs", "4", "--grads_to_wait", "2",
                 "--evaluation_steps", "10", "--checkpoint_dir", "kept", "--output", "model", "--envs", "STEPS=20")  # fmt: skip
    figures = evaluations(trained)
    steps = 4 * RECORDS // 40 // 2
    assert figures[-1][0] in (steps, steps + 1), "files of 300 records: each worker's last batch may be half of one"
    late = {figure for step, figure in figures if step > 20}
    assert len(late) == 1, "the schedule ends learning"
    assert late.pop() > 0.9
    for place, steps in (("kept", figures[-1][0]), ("model", 0)):
        evaluated = tm(engine, "evaluate", "subclassed", "--validation_data", "validation", FROM, place)
        assert evaluations(evaluated) == [(steps, figures[-1][1])]
    seldom = tm(
        engine, "train", "subclassed", *flags, "--get_model_steps", "3", "--sync_version_tolerance", "4", FROM, "model"
    )
    assert evaluations(seldom)[-1][0] in (RECORDS // 40, RECORDS // 40 + 1), "each worker's last batch may be smaller"
    assert evaluations(seldom)[-1][1] > 0.9


def test_another_model_than_the_checkpoint_s_is_refused(engine: Engine) -> None:
    put_data(engine, 1)
    flags = [*DATA, "--num_workers", "1", "--num_ps_pods", "2"]
    tm(engine, "train", "torch_clicks", *flags, "--max_step", "2", "--checkpoint_dir", "kept")
    other = ["--model_params", "kind='moved'"]
    refused = tm(engine, "evaluate", "torch_clicks", "--validation_data", "validation", FROM, "kept", *other, status=1)
    assert "the checkpoint is of another model: tables.weights.input_dim: 40, and null now" in refused
    refused = tm(engine, "train", "torch_clicks", *flags, *other, FROM, "kept", status=1)
    assert "their checkpoint is of another model or optimizer: tables.weights.input_dim: 40, and null now" in refused
