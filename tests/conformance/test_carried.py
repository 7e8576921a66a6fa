"""A job file that names paths of the submitter's machine is the same job on a cluster: data go there and come back."""

from __future__ import annotations

import json

import pytest
from conformance.engines import Engine, Submitted, workers

import trainmaster
from trainmaster.client.jobs.places import job_ids
from trainmaster.core.errors import BadInput

COUNTS = "mkdir -p sums; for name in train one whole two; do find $name -type f | sort | xargs cat > sums/$name; done"
SUMS = {"sums": {"url": "out/sums", "from": "worker:0", "local": "sums", "overwrite": True}}


def given(engine: Engine) -> dict[str, object]:
    for name, content in {"a.csv": "a\n", "b.csv": "b\n", "deep/c.csv": "c\n", "c.txt": "not read\n"}.items():
        engine.write(f"data/{name}", content)
    return {
        "train": {"url": "data/*.csv", "split": "whole"},
        "one": {"url": "data/a.csv", "split": "whole"},
        "whole": {"url": "data", "split": "whole"},
        "two": {"url": ["data/a.csv", "data/deep"], "split": "whole"},
    }


def sums(engine: Engine) -> dict[str, str]:
    return {path.name: path.read_text() for path in (engine.folder / "out" / "sums" / "worker-0").iterdir()}


def test_data_of_this_machine_go_with_the_job_and_come_back(engine: Engine) -> None:
    inputs = given(engine)
    engine.write("out/sums/old", "of a run before")
    engine.write("out/sums/_saves/2026-01-01T00-00-00Z/worker-0/x", "saved then")
    job = engine.submit(workers(COUNTS), inputs=inputs, outputs=SUMS)
    job.succeeded()
    assert sums(engine) == {"train": "a\nb\n", "one": "a\n", "whole": "a\nb\nnot read\nc\n", "two": "a\nc\n"}
    left = sorted(path.name for path in (engine.folder / "out" / "sums").iterdir())
    assert left == ["_SUCCESS", "_saves", "old", "worker-0"], "no earlier output of a job, so not its to remove"
    assert [path.name for path in (engine.folder / "out").iterdir()] == ["sums"]
    assert (engine.folder / "out/sums/_saves/2026-01-01T00-00-00Z/worker-0/x").read_text() == "saved then"


def test_they_come_once_and_again_with_a_retry(engine: Engine) -> None:
    engine.write(
        "job.yaml", json.dumps({"name": "t", "roles": workers(COUNTS), "inputs": given(engine), "outputs": SUMS})
    )
    first = engine.tm("submit", "job.yaml", "--engine", engine.name, "--json")
    assert first.returncode == 0, first.stderr
    job = json.loads(first.stdout)["job"]
    for _ in range(2):
        done = engine.tm("wait", job)
        assert done.returncode == 0, done.stderr
        assert str(engine.folder / "out" / "sums") in done.stdout
        assert sums(engine)["one"] == "a\n"
    engine.write("data/a.csv", "another a\n")
    done = engine.tm("retry", job)
    assert done.returncode == 0, done.stderr
    assert sums(engine)["one"] == "another a\n"
    assert sorted(path.name for path in (engine.folder / "out" / "sums").iterdir()) == ["_SUCCESS", "worker-0"]
    engine.jobs += [Submitted(trainmaster.attach(name)) for name in job_ids()]


def test_what_is_there_is_not_touched_by_a_job_that_fails_or_may_not(engine: Engine) -> None:
    engine.write("out/sums/old", "of a run before")
    engine.submit(workers("mkdir sums; touch sums/x; exit 3"), outputs=SUMS).failed("exit")
    kept = {"sums": {**SUMS["sums"], "overwrite": False}}
    with pytest.raises(BadInput, match="exists already: old"):
        engine.submit(workers("true"), outputs=kept)
    assert (engine.folder / "out" / "sums" / "old").read_text() == "of a run before"
