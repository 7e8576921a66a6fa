"""Jobs whose command is `python -m trainmaster.zoo`: their records are counted exactly, and their results are whole, though workers die."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import Engine, Submitted

ZOO = Path(__file__).parents[1] / "programs" / "zoo"
LIMIT = 300.0  # s; imports of PyTorch on a machine with other work
FILES, LINES = 12, 20

pytestmark = [pytest.mark.needs("frameworks"), pytest.mark.needs("local-master")]


def submitted(
    engine: Engine, task: str, data: str, replicas: Any, flags: dict[str, Any], dies: str, **keys: Any
) -> Submitted:
    """A job whose workers read 240 records, by two epochs or once."""
    for file in range(FILES):
        engine.put(f"data/{file:02}.txt", "".join(f"{file * LINES + line}\n" for line in range(LINES)))
    flags = {"model_zoo": ZOO, "minibatch_size": 8, "model_def": "models.torch_lines.custom_model", **flags}
    role = {
        "command": [sys.executable, "-m", "trainmaster.zoo", task, *(f"--{name}={value}" for name, value in flags.items())],
        "replicas": replicas, "resources": {"cores": 0.05, "memory": "1GiB"}, "env": {"DIES": dies, **keys.pop("env", {})}, "threads": 1,
        "restart": {"scope": keys.pop("scope", "task"), "limit": 2},
    }  # fmt: skip
    inputs = {data: {"url": engine.place("data"), "as": "shards", **keys.pop("input", {})}, **keys.pop("inputs", {})}
    return engine.submit({"worker": role}, inputs=inputs, **keys)


def counted(engine: Engine, job: Submitted) -> int:
    """The records that the job has counted, each exactly once."""
    audit = json.loads(engine.tm("audit", job.id, "--json").stdout)
    assert audit["ok"], audit
    return int(audit["inputs"][0]["records"])


def printed(job: Submitted, begin: str, *places: tuple[str, int]) -> list[str]:
    return [line for task, attempt in places for line in job.lines(task, attempt) if line.startswith(begin)]


@pytest.mark.full
@pytest.mark.parametrize(("model", "export"), [("torch_lines", "model.pt"), ("keras_lines", "model.keras")])
def test_all_members_train_one_model_and_a_killed_one_comes_back(engine: Engine, model: str, export: str) -> None:
    validation = {"validation": {"url": engine.place("data"), "as": "download", "split": "whole"}}
    flags = {
        "distribution_strategy": "AllreduceStrategy",
        "evaluation_steps": 10,
        "model_def": f"models.{model}.custom_model",
    }
    job = submitted(
        engine, "train", "training", {"min": 2, "max": 2}, flags, "1 3", input={"epochs": 2}, inputs=validation,
        outputs={"model": {"url": engine.place("models"), "from": "worker:0"}},
    )  # fmt: skip
    job.succeeded(LIMIT)
    assert job.task("worker:1")["attempt"] == 2, job.said()
    assert job.task("worker:0")["attempt"] == 1
    assert counted(engine, job) == 2 * FILES * LINES
    weights = printed(job, "weights", ("worker:0", 1), ("worker:1", 2))
    assert weights in ([weights[0]] * 2, [weights[0]]), (
        "all have the same model, or the others finished before one came back"
    )
    evaluated = printed(job, "Evaluation metrics[step=", ("worker:0", 1))
    assert len(evaluated) >= 2
    assert {line.partition("]: ")[2] for line in evaluated} == {"{'label': 239.0}"}
    assert f"worker-0/{export}" in engine.files("models")


@pytest.mark.full
@pytest.mark.parametrize("model", ["torch_lines", "keras_lines"])
def test_the_others_go_on_at_once_where_one_of_three_is_killed_and_it_comes_back(engine: Engine, model: str) -> None:
    """With one worker as the least, as `tm train` asks for: whoever is left does not wait for the one that was killed."""
    epochs, go, back = 20, engine.folder / "go", engine.folder / "back"
    flags = {"distribution_strategy": "AllreduceStrategy", "model_def": f"models.{model}.custom_model"}
    environ = {"GO": str(go), "BACK": str(back)}
    job = submitted(
        engine, "train", "training", {"min": 1, "max": 3}, flags, "1 3", env=environ, input={"epochs": epochs}
    )
    job.until_line("dies", "worker:1")
    for survivor in ("worker:0", "worker:2"):
        job.until_line(f"batch {len(printed(job, 'batch', (survivor, 1))) + 3}", survivor)
    back.write_text("")
    job.attempt(2, "worker:1")
    job.until_line("batch", "worker:1")
    go.write_text("")
    job.succeeded(LIMIT)
    assert [job.task(f"worker:{index}")["attempt"] for index in range(3)] == [1, 2, 1], job.said()
    assert counted(engine, job) == epochs * FILES * LINES
    weights = printed(job, "weights", ("worker:0", 1), ("worker:1", 2), ("worker:2", 1))
    assert weights == [weights[0]] * 3


@pytest.mark.full
def test_one_worker_goes_on_from_its_checkpoint(engine: Engine) -> None:
    die = engine.folder / "die"
    job = submitted(
        engine, "train", "training", 1, {"checkpoint_steps": 5}, "0 12", scope="group", env={"DIE": str(die)},
        checkpoint={"path": "ckpt", "every": "200ms"},
    )  # fmt: skip
    job.until_line("dies")
    job.until_status("a set", lambda status: status["checkpoint"] is not None)
    die.write_text("")
    job.succeeded(LIMIT)
    assert counted(engine, job) == FILES * LINES
    (line,) = printed(job, "going on", ("worker:0", 2))
    assert line in {f"going on from the checkpoint of step {step}" for step in (5, 10)}


@pytest.mark.full
@pytest.mark.parametrize("batch", [3, 12])
def test_each_record_is_predicted_once_though_a_worker_dies(engine: Engine, tmp_path: Path, batch: int) -> None:
    """Before it has reported a shard, and once it has reported several."""
    submitted(engine, "train", "training", 1, {"output": tmp_path}, "-1 0").succeeded(LIMIT)
    job = submitted(
        engine, "predict", "prediction", 2, {"checkpoint_dir_for_init": tmp_path}, f"1 {batch}",
        outputs={"predictions": {"url": engine.place("predicted"), "layout": "flat"}},
    )  # fmt: skip
    job.succeeded(LIMIT)
    assert counted(engine, job) == FILES * LINES
    files = {name: content.splitlines() for name, content in engine.files("predicted").items() if name != "_SUCCESS"}
    assert len(files) == FILES
    assert sum(map(len, files.values())) == FILES * LINES
