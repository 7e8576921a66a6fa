"""What `tm` says of a Hadoop cluster that is not there, not named, or named wrongly."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import yaml

HADOOP = ("HADOOP_CONF_DIR", "HADOOP_HOME")


def tm(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name not in HADOOP}
    return subprocess.run(
        [sys.executable, "-m", "trainmaster.cli", *words],
        capture_output=True, text=True, check=False, env={**environ, "NO_COLOR": "1", **more},
    )  # fmt: skip


XLEARNING = "--xlearning --worker-num 2 --app-name dry --dry-run python demo.py"
SUBMARINE = (  # a chief and two workers
    "--submarine job run --name dry --dry-run --input_path /in --num_workers 3 "
    "--worker_resources memory=1G,vcores=1 --worker_launch_cmd true"
)


@pytest.mark.parametrize(("words", "status"), [(XLEARNING, 1), (SUBMARINE, 2)])
def test_a_translation_is_shown_without_a_cluster(home, words: str, status: int) -> None:
    done = tm("submit", *words.split())
    assert (done.returncode, done.stderr.count("error: ")) == (status, 1), done.stderr
    told = yaml.safe_load(done.stdout)
    assert (told["name"], told["roles"]["worker"]["replicas"]) == ("dry", 2)
    assert "HADOOP_CONF_DIR is not set" in done.stderr
