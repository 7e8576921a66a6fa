"""Jobs whose workers train one model on parameter servers: large embeddings lie there, records are counted exactly, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
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
    of_ids, draw = random.Random(0), random.Random(seed)
    weights = [of_ids.gauss(0, 1.5) for _ in range(40)]
    lines = ["a,b,c,label"]
    for _ in range(records):
        ids = [draw.randrange(13), 13 + draw.randrange(13), 26 + draw.randrange(14)]
        lines.append(",".join(map(str, [*ids, int(sum(weights[number] for number in ids) > 0)])))
    return "\n".join(lines) + "\n"


def put_data(engine: Engine, parts: int) -> None:
    for part in range(parts):
        engine.put(f"data/{part}.csv", clicks(RECORDS // parts, part))
    engine.put("validation/0.csv", clicks(200, 9))


def submitted(
    engine: Engine,
    model: str,
    flags: dict[str, Any],
    workers: int = 2,
    servers: int = 1,
    epochs: int = 2,
    dies: str = "",
    **keys: Any,
) -> Submitted:
    """A job of `servers` and `workers`."""
    put_data(engine, keys.pop("parts", 4))
    flags = {
        "model_zoo": PROGRAMS / "zoo", "model_def": f"clicks.{model}.custom_model", "minibatch_size": 40, "log_loss_steps": 10,
        "distribution_strategy": "ParameterServerStrategy", "num_ps_pods": servers, **flags,
    }  # fmt: skip
    common = {"resources": {"cores": 0.05, "memory": "1GiB"}, "restart": {"scope": "task", "limit": 2}}
    roles = {
        "ps": {
            "command": [sys.executable, "-m", "trainmaster.ps", "--servers", str(servers)], "ports": ["ps"],
            "replicas": {"min": 1, "max": 3, "start": servers}, "stop": {"grace": "2m"}, "counts": False,
            "env": {"TRAINMASTER_PS_DIRECTORY": "{work}/../servers"}, **common,
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
    return engine.submit(roles, inputs=inputs, outputs=outputs, **keys)


def counted(engine: Engine, job: Submitted) -> int:
    """The records that the job has counted, each exactly once."""
    audit = json.loads(engine.tm("audit", job.id, "--json").stdout)
    assert audit["ok"], audit
    return int(audit["inputs"][0]["records"])


def metric(job: Submitted, attempt: int = 1) -> float:
    """The last figure of worker 0's evaluations."""
    lines = [line for line in job.lines("worker:0", attempt) if line.startswith("Evaluation metrics")]
    return float(lines[-1].rpartition(": ")[2].rstrip("}"))


def test_workers_train_tables_of_pytorch_on_servers_though_one_is_killed(engine: Engine) -> None:
    job = submitted(
        engine, "torch_clicks", {"evaluation_steps": 25, "checkpoint_steps": 20}, dies=f"12 {engine.folder}/dead"
    )
    job.succeeded(LIMIT)
    attempts = [job.task(f"worker:{index}")["attempt"] for index in range(2)]
    assert sorted(attempts) == [1, 2], job.said()
    assert counted(engine, job) == 2 * RECORDS
    assert metric(job, attempts[0]) > 0.85
    assert {"worker-0/model.pt", "worker-0/model.pt2"} <= {*engine.files("models")}


@pytest.mark.full
def test_a_worker_that_comes_back_when_no_records_are_left_exports_a_program(engine: Engine) -> None:
    """A batch of the validation data shows the form of the input."""
    job = submitted(engine, "torch_clicks", {}, workers=1, dies=f"59 {engine.folder}/dead")
    job.succeeded(LIMIT)
    assert job.task("worker:0")["attempt"] == 2
    assert not any(line.startswith("step=") for line in job.lines("worker:0", 2)), "all was trained before"
    assert {"worker-0/model.pt", "worker-0/model.pt2"} <= {*engine.files("models")}


@pytest.mark.full
def test_servers_come_and_go_while_workers_train(engine: Engine) -> None:
    job = submitted(engine, "torch_clicks", {"evaluation_steps": 400}, epochs=60)
    job.until_line("serves", "ps:0")
    for servers in (2, 1):
        assert engine.tm("scale", job.id, f"ps={servers}").returncode == 0
        job.until_line(f"server 0 of {servers} serves version", "ps:0")
    assert engine.tm("scale", job.id, "ps=3").returncode == 0
    job.succeeded(LIMIT)
    assert counted(engine, job) == 60 * RECORDS
    assert metric(job) > 0.85
    assert [job.task(f"worker:{index}")["attempt"] for index in range(2)] == [1, 1], job.said()


@pytest.mark.full
def test_the_rows_of_a_server_that_is_killed_while_it_leaves_are_trained_on(engine: Engine) -> None:
    job = submitted(engine, "torch_clicks", {"evaluation_steps": 400}, servers=2, epochs=60)
    job.until_line("step=", "worker:1")
    others = engine.process(job, 1, "ps:0")
    os.kill(others, signal.SIGSTOP)
    assert engine.tm("scale", job.id, "ps=1").returncode == 0
    job.until_line("asks the others to take its rows", "ps:1")
    os.kill(engine.process(job, 1, "ps:1"), signal.SIGKILL)
    os.kill(others, signal.SIGCONT)
    job.until_line("server 0 of 1 serves version", "ps:0")
    assert engine.tm("scale", job.id, "ps=3").returncode == 0
    job.succeeded(LIMIT)
    assert counted(engine, job) == 60 * RECORDS
    assert metric(job) > 0.85


@pytest.mark.full
def test_numbers_of_servers_that_follow_each_other_at_once_end_in_the_last_one(engine: Engine) -> None:
    job = submitted(engine, "torch_clicks", {"evaluation_steps": 400}, epochs=60)
    job.until_line("step=", "worker:1")
    for servers in (3, 1, 2, 2):
        assert engine.tm("scale", job.id, f"ps={servers}").returncode == 0
    for servers in (0, 4):
        refused = engine.tm("scale", job.id, f"ps={servers}")
        assert refused.returncode == 2
        assert f"ps has 1 to 3 members (replicas), and cannot have {servers}" in refused.stderr
    job.until_line("server 0 of 2 serves version", "ps:0")
    job.succeeded(LIMIT)
    assert counted(engine, job) == 60 * RECORDS
    assert metric(job) > 0.85


@pytest.mark.full
def test_a_job_may_be_killed_while_rows_move(engine: Engine) -> None:
    """The engine's check of what is left finds no process, no socket and no shared memory of it."""
    job = submitted(engine, "torch_clicks", {}, epochs=60)
    job.until_line("step=", "worker:1")
    assert engine.tm("scale", job.id, "ps=3").returncode == 0
    job.until_line("rows are moved", "ps:0")
    assert engine.tm("kill", job.id).returncode == 0
    assert job.end(LIMIT)["state"] == "killed"


@pytest.mark.full
def test_a_gradient_that_is_no_number_ends_the_job_with_its_step(engine: Engine) -> None:
    flags = {"loss": "steep_loss", "checkpoint_steps": 2}
    env = {"KEPT": "{work}/../servers/version-2/manifest-of-2.json"}
    job = submitted(engine, "torch_clicks", flags, workers=1, servers=2, env=env)
    why = job.failed("cannot-go-on", LIMIT)["figures"]["detail"]
    assert job.task("worker:0")["attempt"] == 1, "the cause would only repeat"
    text = "\n".join(job.lines("worker:0", 1))
    assert re.search(
        r"error: in step 5, parameter server \d: a gradient of '.+' is not finite; the job is stopped", text
    ), text
    assert re.search(
        r"the last good checkpoint: version-[24] of the parameter servers, which ends with the job: --checkpoint_dir",
        text,
    ), text
    assert re.match(
        r"in step 5, parameter server .*; the last good checkpoint: version-[24] of the parameter servers, which ends with the job",
        why,
    ), why
    assert "Traceback" not in text


@pytest.mark.full
@pytest.mark.parametrize(("wrong", "model"), [(99, "torch_clicks"), (-3, "keras_clicks")])
def test_an_id_without_a_row_ends_the_job_at_once(engine: Engine, wrong: int, model: str) -> None:
    """No shard is set aside for it: its data, or the size of its table, are to be mended."""
    engine.put("data/9.csv", f"a,b,c,label\n{wrong},14,30,1\n")
    job = submitted(engine, model, {"use_async": True}, servers=2)
    why = job.failed("cannot-go-on", LIMIT)["figures"]["detail"]
    assert re.match(rf"the table \w+ got the id {wrong}, and its ids are 0 to 39; ", why), why
    assert [job.task(f"worker:{index}")["attempt"] for index in range(2)] == [1, 1], job.said()
    assert job.told("shard-set-aside") == []


@pytest.mark.full
def test_servers_that_began_with_nothing_are_refused_where_a_worker_sees_a_checkpoint(engine: Engine) -> None:
    """As where a volume with a former job's checkpoint is mounted for the workers alone."""
    manifest = {"format": 1, "version": 7, "sequence": 9, "shares": [{"bytes": 4, "digest": "", "rows": 1}]}
    engine.write("kept/version-7/manifest-of-1.json", json.dumps(manifest))
    job = submitted(engine, "torch_clicks", {"checkpoint_dir_for_init": engine.folder / "kept"}, workers=1)
    job.failed("cannot-go-on", LIMIT)
    text = " ".join("\n".join(job.lines("worker:0", 1)).split())
    assert "the parameter servers began with nothing: they do not see the checkpoint that this worker sees" in text


def predicted(engine: Engine, model: str) -> Any:
    """What plain Keras predicts with an exported model, with nothing of ours, for three clicks."""
    program = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy
model = keras.models.load_model(sys.argv[1])
assert not any(name.startswith("trainmaster") for name in sys.modules)
print(json.dumps(model.predict(numpy.array([[1, 14, 30], [2, 20, 39], [12, 25, 26]]), verbose=0)[:, 0].tolist()))
"""
    done = subprocess.run([sys.executable, "-I", "-c", program, model], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def saved(engine: Engine, tmp_path: Path) -> str:
    """The path of the model that a job has exported."""
    path = tmp_path / "model.keras"
    path.write_bytes(engine.files("models")["worker-0/model.keras"])
    return str(path)


@pytest.mark.full
def test_one_worker_and_two_servers_do_what_keras_does_alone(engine: Engine, tmp_path: Path) -> None:
    """Keras's own embeddings are moved to the servers, trained there, and come back into the exported model."""
    # All records make a batch, whatever their order. With SGD, as Keras squares gradients of equal ids before it sums them.
    flags = {"model_params": "kind='keras'", "embedding_size": 100, "minibatch_size": RECORDS}
    env = {"OPTIMIZER": "SGD", "RATE": "0.5"}
    job = submitted(engine, "keras_clicks", flags, workers=1, servers=2, epochs=8, parts=1, env=env)
    job.succeeded(LIMIT)
    assert sum("is on the parameter servers" in line for line in job.lines("worker:0")) == 2, job.said()
    assert counted(engine, job) == 8 * RECORDS
    data = engine.folder / "alone"
    data.mkdir()
    (data / "0.csv").write_text(clicks(RECORDS, 0))
    alone = [sys.executable, "-m", "trainmaster.zoo", "train", "--model_zoo", str(PROGRAMS / "zoo")]
    alone += ["--model_def", "clicks.keras_clicks.custom_model", "--model_params", "kind='keras'", "--num_epochs", "8"]
    alone += ["--minibatch_size", str(RECORDS), "--training_data", str(data), "--output", str(tmp_path / "alone")]
    done = subprocess.run(alone, capture_output=True, text=True, timeout=LIMIT, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    expected = predicted(engine, str(tmp_path / "alone" / "model.keras"))
    assert predicted(engine, saved(engine, tmp_path)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.full
def test_asynchronous_workers_of_keras_though_one_is_killed(engine: Engine, tmp_path: Path) -> None:
    flags = {"use_async": True, "lr_staleness_modulation": True, "evaluation_steps": 20}
    job = submitted(engine, "keras_clicks", flags, servers=2, epochs=3, dies=f"10 {engine.folder}/dead")
    job.succeeded(LIMIT)
    attempts = [job.task(f"worker:{index}")["attempt"] for index in range(2)]
    assert sorted(attempts) == [1, 2], job.said()
    assert counted(engine, job) == 3 * RECORDS
    assert metric(job, attempts[0]) > 0.85, job.said()
    assert len(predicted(engine, saved(engine, tmp_path))) == 3
