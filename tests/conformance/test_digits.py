"""The examples, by their own job files: on this machine, and on a cluster by adding its name. The data are this machine's and go there
with the job, or lie on HDFS. Job files run as they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conformance.engines import Engine, Local, Submitted, Yarn
from hadoop import Settings, own_hadoop
from placing import EXAMPLES

import trainmaster

pytestmark = [pytest.mark.full, pytest.mark.needs("frameworks")]
LIMIT = 400.0  # s


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, EXAMPLES / "digits" / "data.py", place], check=True, timeout=LIMIT)
    return place


@pytest.fixture
def examples(engine: Engine, data: Path) -> Engine:
    copy_examples(engine, data)
    return engine


def copy_examples(engine: Engine, data: Path) -> None:
    """Put the examples into the submitter's directory, with data beside them."""
    for name in ("digits", "digits-elasticdl", "digits-keras", "digits-ps", "digits-estimator", "elastic"):
        wanted = shutil.ignore_patterns("data", "out", "ckpt", "model", "__pycache__")
        shutil.copytree(EXAMPLES / name, engine.folder / name, ignore=wanted)
    shutil.copytree(data, engine.folder / "digits" / "data")


def run(engine: Engine, file: str, *options: str, name: str = "") -> Submitted:
    there = ["--set", f"environment.path={sys.prefix}"]  # the Python that has the frameworks, on every node
    done = engine.tm("run", file, "--engine", engine.name, *there, *options, limit=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    job = Submitted(trainmaster.attach(name or Path(file).parent.name))
    engine.jobs.append(job)
    return job


def nodes(job: Submitted) -> set[str]:
    return {event["node"] for event in job.told("granted")}


def result(content: bytes) -> float:
    return float(json.loads(content)["accuracy"])


def test_the_demo_runs_wherever_it_is_sent(examples: Engine) -> None:
    job = run(examples, "digits/job.yaml")
    out = examples.folder / "digits" / "out" / "model" / "worker-0"
    assert result((out / "result.json").read_bytes()) >= 0.9
    assert (out / "model.pt").stat().st_size > 0
    assert (out.parent / "_SUCCESS").exists()
    assert [path.name for path in out.parent.parent.iterdir()] == ["model"], "nothing beside it"
    assert len(nodes(job)) == (2 if examples.name == "yarn" else 1) or examples.name == "kubernetes"


@pytest.mark.full
@pytest.mark.needs("local-master")
def test_workers_keep_running_and_count_each_record_once(examples: Engine) -> None:
    job = run(examples, "elastic/job.yaml", name="digits-elastic")
    out = examples.folder / "elastic" / "out" / "model" / "worker-0"
    assert result((out / "result.json").read_bytes()) >= 0.9
    assert examples.tm("audit", job.id).returncode == 0


@pytest.mark.full
@pytest.mark.needs("local-master")
def test_a_program_with_the_imports_of_elasticdl_counts_each_record_once(examples: Engine) -> None:
    job = run(examples, "digits-elasticdl/job.yaml")
    out = examples.folder / "digits-elasticdl" / "out" / "model" / "worker-0"
    assert result((out / "result.json").read_bytes()) >= 0.9
    audited = examples.tm("audit", job.id)
    assert audited.returncode == 0, audited.stdout
    assert "14,370 records" in audited.stdout


@pytest.mark.needs("nodes")
def test_keras_from_hdfs_to_hdfs(examples: Engine) -> None:
    job = run(examples, "digits-keras/job.yaml", *on_hdfs(examples))
    assert result(examples.files("out")["worker-0/result.json"]) >= 0.9
    assert len(nodes(job)) == 2 or examples.name == "kubernetes"  # which places them as it likes


@pytest.mark.needs("nodes")
def test_a_parameter_server_from_hdfs_to_hdfs(examples: Engine) -> None:
    run(examples, "digits-ps/job.yaml", *on_hdfs(examples))
    assert result(examples.files("out")["chief-0/result.json"]) >= 0.9


@pytest.mark.parametrize("name", ["local", pytest.param("yarn", marks=pytest.mark.xdist_group("hadoop"))])
def test_a_parameter_server_runs_here_and_on_the_smallest_trial_cluster(
    name: str, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:
        if name == "yarn":
            cluster = stack.enter_context(own_hadoop(Settings()))  # as `tm cluster up hadoop` starts it
            for variable, value in cluster.environ.items():
                monkeypatch.setenv(variable, value)
        folder = tmp_path / "place"
        folder.mkdir()
        engine = Yarn(folder, cluster) if name == "yarn" else Local(folder)
        stack.callback(engine.close)
        copy_examples(engine, data)
        run(engine, "digits-ps/job.yaml")
        assert result((folder / "digits-ps/out/model/chief-0/result.json").read_bytes()) >= 0.9


def test_an_estimator_s_input_fn_reads_shards(tmp_path: Path, data: Path) -> None:
    made = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    subprocess.run(["make", "estimator"], cwd=EXAMPLES.parent, env=made, check=True, timeout=LIMIT)
    engine = Local(tmp_path)
    try:
        copy_examples(engine, data)
        old_tensorflow = EXAMPLES.parent / ".venv" / "estimator"
        job = run(engine, "digits-estimator/job.yaml", "--set", f"environment.path={old_tensorflow}")
        assert result((tmp_path / "digits-estimator/out/model/chief-0/result.json").read_bytes()) >= 0.9
        assert "255 of 255 shards counted exactly once" in engine.tm("audit", job.id).stdout
    finally:
        engine.close()


def on_hdfs(engine: Engine) -> list[str]:
    """Options by which a job's data are there."""
    root = engine.folder / "digits" / "data"
    for path in root.rglob("*.csv"):
        engine.put(f"data/{path.relative_to(root)}", path.read_bytes())
    urls = {f"inputs.{name}.url": f"{engine.place('data')}/{name}/*.csv" for name in ("train", "test")}
    urls["outputs.model.url"] = engine.place("out")
    return [word for key, url in urls.items() for word in ("--set", f"{key}={url}")]
