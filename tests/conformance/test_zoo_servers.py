"""Jobs whose workers train one model on parameter servers: large embeddings lie there, records are counted exactly, whatever is killed."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import Engine, Submitted

PROGRAMS = Path(__file__).parents[1] / "programs"
RECORDS = 1200
LIMIT = 300.0  # s; imports of TensorFlow on a machine with other work

pytestmark = [pytest.mark.needs("frameworks"), pytest.mark.needs("local-master")]


def clicks(records: int, seed: int) -> str:
    """Lines of CSV: three ids below 40 and a label that their weights make."""
    weights, draw = [random.Random(0).gauss(0, 1.5) for _ in range(40)], random.Random(seed)
    lines = ["a,b,c,label"]
    for _ in range(records):
        ids = [draw.randrange(13), 13 + draw.randrange(13), 26 + draw.randrange(14)]
        lines.append(",".join(map(str, [*ids, int(sum(weights[number] for number in ids) > 0)])))
    return "\n".join(lines) + "\n"


def put_data(engine: Engine) -> None:
    for part in range(4):
        engine.put(f"data/{part}.csv", clicks(RECORDS // 4, part))
    engine.put("validation/0.csv", clicks(200, 9))


def submitted(
    engine: Engine,
    model: str,
    flags: dict[str, Any],
    workers: int = 2,
    servers: int = 1,
    epochs: int = 2,
    dies: str = "-1 0",
    **keys: Any,
) -> Submitted:
    """A job of `servers` and `workers`."""
    put_data(engine)
    flags = {
        "model_zoo": PROGRAMS / "zoo", "model_def": f"clicks.{model}.custom_model", "minibatch_size": 40, "log_loss_steps": 10,
        "distribution_strategy": "ParameterServerStrategy", "num_ps_pods": servers, **flags,
    }  # fmt: skip
    common = {"resources": {"cores": 0.05, "memory": "1GiB"}, "restart": {"scope": "task", "limit": 2}}
    roles = {
        "ps": {
            "command": [sys.executable, "-m", "trainmaster.ps", "--servers", str(servers)], "replicas": servers, "ports": ["ps"],
            "counts": False, **common,
        },
        "worker": {
            "command": [sys.executable, "-m", "trainmaster.zoo", "train", *(f"--{name}={value}" for name, value in flags.items())],
            "replicas": workers, "env": {"DIES": dies, **keys.pop("env", {})}, "threads": 1, **common,
        },
    }  # fmt: skip
    inputs = {
        "training": {"url": engine.place("data"), "as": "shards", "format": "csv", "epochs": epochs},
        "validation": {"url": engine.place("validation"), "as": "download", "split": "whole"},
    }
    outputs = {"model": {"url": engine.place("models"), "from": "worker:0"}}
    return engine.submit(roles, inputs=inputs, outputs=outputs, checkpoint={"path": "ckpt"}, **keys)


def counted(engine: Engine, job: Submitted) -> int:
    """The records that the job has counted, each exactly once."""
    audit = json.loads(engine.tm("audit", job.id, "--json").stdout)
    assert audit["ok"], audit
    return int(next(entry for entry in audit["inputs"] if entry["name"] == "training")["records"])


def metric(job: Submitted, attempt: int = 1) -> float:
    """The last figure of worker 0's evaluations."""
    lines = [line for line in job.lines("worker:0", attempt) if line.startswith("Evaluation metrics")]
    return float(lines[-1].rpartition(": ")[2].rstrip("}"))


def test_workers_train_tables_of_pytorch_on_servers_though_one_is_killed(engine: Engine) -> None:
    job = submitted(engine, "torch_clicks", {"evaluation_steps": 25, "checkpoint_steps": 20}, dies="1 12")
    job.succeeded(LIMIT)
    assert job.task("worker:1")["attempt"] == 2, job.said()
    assert counted(engine, job) == 2 * RECORDS
    assert metric(job) > 0.85
    assert {"worker-0/model.pt", "worker-0/model.pt2"} <= {*engine.files("models")}
