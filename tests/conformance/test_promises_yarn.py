"""A YARN without docker and GPUs, and one with rules of queues: the user hears of each request that it takes and does not keep."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.engines import TM
from hadoop import own_hadoop

import trainmaster
from trainmaster.clusters.hadoop import Cluster, Settings
from trainmaster.engines.yarn.submit.store import user_of

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.full]
LIMIT = 240.0  # s for a job; reached by a failure alone


def tm(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TM, *words], cwd=cwd, capture_output=True, text=True, timeout=LIMIT, check=False)


def test_a_program_never_runs_outside_its_image(on_hadoop: object, tmp_path: Path) -> None:
    """The cluster has no docker runtime: it would run the command on the host, where it would succeed."""
    ran = tmp_path / "ran"
    done = tm(
        *("submit", "--submarine", "job", "run", "--name", "in-docker", "--docker_image", "no-such-image:1", "--input_path", "/in"),
        *("--worker_resources", "memory=64M,vcores=1", "--worker_launch_cmd", f"touch {ran}", "--wait_job_finish"), cwd=tmp_path,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 3, said
    assert "its container is not what the job asks for: the image no-such-image:1 was asked for" in said
    assert "yarn.nodemanager.runtime.linux.allowed-runtimes" in said, "what to do"
    assert not ran.exists()


def test_gpus_that_a_node_counts_and_has_not_are_told(on_hadoop: object, tmp_path: Path) -> None:
    worker = {"command": "true", "resources": {"memory": "64MiB", "gpus": 1}}
    job = trainmaster.submit({"roles": {"worker": worker}}, engine="yarn")
    assert job.wait()["state"] == "succeeded"
    shown = tm("status", job.id, cwd=tmp_path).stdout
    assert "not kept: gpus of worker:0: 1 were granted on" in shown


@pytest.fixture(scope="module")
def lenient() -> Iterator[Cluster]:
    """A cluster that maps its user to a queue, and whose nodes check no memory."""
    rules = {
        "yarn.scheduler.capacity.queue-mappings": f"u:{user_of(dict(os.environ))}:low",
        "yarn.scheduler.capacity.queue-mappings-override.enable": "true", "yarn.nodemanager.pmem-check-enabled": "false",
    }  # fmt: skip
    with own_hadoop(Settings(nodes=1, queues={"default": 70.0, "low": 30.0}, properties=rules)) as cluster:
        yield cluster


@pytest.fixture
def on_lenient(lenient: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in lenient.environ.items():
        monkeypatch.setenv(name, value)


def test_another_queue_than_the_one_asked_for_is_told(on_lenient: None, tmp_path: Path) -> None:
    done = tm("run", "--engine", "yarn", "--queue", "default", "--memory", "64MiB", "--", "true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "warning: --queue: YARN puts the job into the queue root.low instead of default" in done.stderr


def test_memory_is_limited_where_yarn_checks_none(on_lenient: None, tmp_path: Path) -> None:
    hold = "import time; held = b'x' * (512 << 20); time.sleep(3600)"
    done = tm("run", "--engine", "yarn", "--memory", "64MiB", "--", sys.executable, "-c", hold, cwd=tmp_path)
    assert done.returncode != 0
    assert "of 64 MiB and was killed" in done.stdout + done.stderr
