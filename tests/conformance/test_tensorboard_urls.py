"""TensorBoard over event files on HDFS and S3, with TensorFlow installed, whose own file system knows neither. It is the real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import TM
from conformance.test_tensorboard import PATH
from waiting import until

import trainmaster
from trainmaster.data.store.stores import Store, store_for

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.full]
LIMIT = 240.0  # s for TensorBoard, which loads TensorFlow, on a busy machine; reached by a failure alone


@pytest.fixture(params=["hdfs", "s3"])
def logs(request: pytest.FixtureRequest) -> str:
    """The URL of an empty folder."""
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/logs"
    request.getfixturevalue("on_hadoop")
    return f"hdfs:///tmp/logs-{uuid.uuid4().hex}"


def event_file(folder: Path, *values: float) -> bytes:
    """The bytes of an event file with a scalar for each value, of the steps 0, 1, ..."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    path = folder / uuid.uuid4().hex
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for step, value in enumerate(values):
            summary = Summary(value=[Summary.Value(tag="loss", simple_value=value)])
            writer.write(Event(step=step, wall_time=1.0 + step, summary=summary).SerializeToString())
        writer.flush()
    return path.read_bytes()


def scalars(address: str, run: str) -> list[float]:
    """The values that TensorBoard shows of a run; none while it has none, or does not answer."""
    try:
        with urllib.request.urlopen(f"{address}data/plugin/scalars/scalars?tag=loss&run={run}", timeout=10) as answer:
            return [value for _, _, value in json.load(answer)]
    except OSError:
        return []


def until_shown(address: str, run: str, values: list[float], said: Any) -> None:
    until(lambda: scalars(address, run) == values, LIMIT, what=said)


def write(store: Store, folder: Path, run: str, *values: float) -> None:
    store.put(f"{run}/events.out.tfevents.1.host", event_file(folder, *values))


def test_the_task_of_a_job_shows_what_is_written_while_it_runs(logs: str, tmp_path: Path) -> None:
    store, go = store_for(logs), tmp_path / "go"
    job = trainmaster.submit({
        "roles": {"worker": {"command": ["sh", "-c", f"until [ -e {go} ]; do sleep 0.1; done"]}},
        "tensorboard": {"logs": logs, "memory": "3GiB"}, "environment": {"path": sys.prefix},
    })  # fmt: skip
    try:
        address = until(lambda: str(job.status().get("links", {}).get("TensorBoard", "")), LIMIT)
        write(store, tmp_path, "train", 4.0)
        until_shown(address, "train", [4.0], job.status)
        write(store, tmp_path, "train", 4.0, 2.0)
        until_shown(address, "train", [4.0, 2.0], job.status)
        go.touch()
        assert job.wait()["state"] == "succeeded"
    finally:
        job.kill()
    command = [TM, "tensorboard", job.id, "--port", "0"]
    with subprocess.Popen(command, env={**os.environ, "PATH": PATH}, stdout=subprocess.PIPE, text=True) as board:
        try:
            assert board.stdout is not None
            until_shown(board.stdout.readline().strip(), f"{job.id}%2Ftrain", [4.0, 2.0], job.status)
        finally:
            board.terminate()


def test_a_service_of_submarine_on_yarn_shows_the_runs_of_all_jobs(on_hadoop: object, tmp_path: Path) -> None:
    """As its quick start has it, with no word of workers; over the checkpoints of another job."""
    logs = f"hdfs:///tmp/jobs-{uuid.uuid4().hex}"
    write(store_for(logs), tmp_path, "tf-job-001/checkpoint_path", 3.0)
    words = (
        "submit",
        "--submarine",
        "job",
        "run",
        "--name",
        "tensorboard-service",
        "--tensorboard",
        "--checkpoint_path",
        logs,
    )
    resources = ("--tensorboard_resources", "memory=2G,vcores=1", "--set", f"environment.path={sys.prefix}")
    done = subprocess.run(
        [TM, *words, *resources], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    job = trainmaster.attach(done.stdout.strip())
    try:
        address = until(lambda: str(job.status().get("links", {}).get("Tensorboard", "")), LIMIT, what=job.status)
        until_shown(address, "tf-job-001%2Fcheckpoint_path", [3.0], job.status)
    finally:
        job.kill()
