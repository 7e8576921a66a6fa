"""An RDD or a DataFrame that feeds the programs of a job, on a real Spark: what they read, and what is read once whatever fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import python
from spark import VERSIONS, own_spark

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.full]

# A driver that submits the job in its second argument, feeds it as its third one says, and tells what became of it. Its Python has
# Trainmaster, and pyspark from the directory in its first argument.
DRIVER = """
import json, sys, time
sys.path.append(sys.argv[1])
from pyspark.sql import Row, SparkSession
import trainmaster, trainmaster.spark
from trainmaster.spark.feed import Feed
from trainmaster.core.errors import TrainmasterError
builder = SparkSession.builder.config("spark.executor.cores", "2").config("spark.executor.memory", "512m")
session = builder.config("spark.driver.memory", "512m").getOrCreate()
context = session.sparkContext
run = trainmaster.spark.run(session, trainmaster.Job(**json.loads(sys.argv[2])))
answer = {}
began = time.monotonic()
try:
    feed = Feed(session, run)
    exec(sys.argv[3])
except TrainmasterError as error:
    answer["error"] = str(error)
answer["state"] = run.wait(200, check=False)["state"]
lines = [*run.logs(), *(run.logs("worker:0", 1) if run.status()["tasks"][0]["attempt"] > 1 else [])]
answer["lines"] = [line for line in lines if "{" in line]
answer["events"] = [event for event in run.events() if event["type"].startswith("feed")]
from trainmaster.core.input.audit import audit
from trainmaster.client.jobs.past import Past
from trainmaster.core.machine.events import decode
from trainmaster.log.reader import Reader, replay
answer["audit"] = audit(replay(Reader(Past(run.id).storage), decode)).to_json()["feeds"]
answer["ok"] = all(not feed["faults"] for feed in answer["audit"])
print(json.dumps(answer))
session.stop()
"""
READS = """
    import json, os, sys
    from trainmaster.runtime import feed
    values, numbers = [], []
    for batch in feed.open("input"):
        values += batch["value"].tolist()
        numbers.append(batch.number)
        {extra}
    print(json.dumps({{"values": values, "task": os.environ["TRAINMASTER_INDEX"]}}))
"""


def fed(
    tmp_path: Path, version: str, how: str, extra: str = "pass", reads: str = READS, executors: str = "", **keys: Any
) -> Any:
    """Run a driver with a job of two readers, programs of `reads`, whose loop over the batches goes on with `extra`.

    `executors`: their Python, where it is not that of the cluster.
    """
    python_of_executors = {"PYSPARK_PYTHON": executors} if executors else {}
    role = {
        "command": python(reads.format(extra=extra)), "replicas": 2, "resources": {"cores": 0.05, "memory": "64MiB"},
        "feed": {"input": {"memory": "4MiB"}}, **keys,
    }  # fmt: skip
    with own_spark(version) as cluster:
        done = subprocess.run(
            [sys.executable, "-I", "-c", DRIVER, str(cluster.home.folder.parent), json.dumps({"name": "t", "roles": {"worker": role}}),
             textwrap.dedent(how)],
            capture_output=True, text=True, check=False, cwd=tmp_path, timeout=900,
            env={**os.environ, **cluster.environ, "PYSPARK_DRIVER_PYTHON": sys.executable, **python_of_executors},
        )  # fmt: skip
        told = done.stderr[done.stderr.find("Traceback") :]  # Spark's JVM tells of the end after it
        assert done.returncode == 0, f"{done.stdout}\n{told[:4000]}"
    return json.loads(done.stdout.splitlines()[-1])


def values(answer: Any) -> list[list[int]]:
    """Return what each attempt of a reader read."""
    lines = (json.loads(line.partition("{")[1] + line.partition("{")[2]) for line in answer["lines"])
    return [line["values"] for line in sorted(lines, key=lambda line: line["task"])]


@pytest.mark.parametrize("version", VERSIONS)
def test_ranks_read_the_same_number_of_rows_of_uneven_partitions(version: str, tmp_path: Path) -> None:
    how = """
        parts = context.parallelize([0, 1, 2, 3], 4).flatMap(lambda part: range(part * 1000, part * 1000 + 100 + 311 * part))
        feed.put(parts, epochs=2, rows=50)
        feed.put(session.createDataFrame(parts.map(lambda value: Row(value=value))), rows=50)
        answer["rows"] = feed.end()
    """
    answer = fed(tmp_path, version, how)
    assert answer["state"] == "succeeded", answer
    first, second = values(answer)
    rows = [part * 1000 + row for part in range(4) for row in range(100 + 311 * part)]
    assert len(first) == len(second) == answer["rows"]
    assert 0 <= 3 * len(rows) - 2 * answer["rows"] == answer["audit"][0]["left"] <= 4 * 50 + answer["rows"] // 16
    counts = {value: (first + second).count(value) for value in rows}
    assert set(first + second) <= set(rows)
    assert max(counts.values()) == 3
    assert answer["ok"]
    [end] = [event for event in answer["events"] if event["type"] == "feed-ended"]
    assert end["rows"] == answer["rows"]


def test_a_reader_that_fails_is_replaced_and_each_batch_is_read_once(tmp_path: Path) -> None:
    how = """
        feed.put(context.parallelize(range(20_000), 6), rows=100)
        feed.end()
    """
    # The failing attempt has read whole batches: what it prints is what it read.
    extra = """
        if os.environ["TRAINMASTER_ATTEMPT"] == "1" and os.environ["TRAINMASTER_INDEX"] == "0" and len(numbers) == 7:
            del batch
            print(json.dumps({"values": values, "task": "0"}), flush=True)
            os._exit(3)
    """
    answer = fed(
        tmp_path, VERSIONS[0], how, textwrap.indent(textwrap.dedent(extra), " " * 8).strip(),
        feed={"input": {"memory": "4MiB", "agreed": False}}, restart={"scope": "task", "limit": 2},
    )  # fmt: skip
    assert answer["state"] == "succeeded", answer
    assert answer["ok"], answer["audit"]
    assert answer["audit"][0]["batches"] == 204
    missing = set(range(20_000)).difference(*values(answer))
    assert not missing, (
        f"{len(missing)} rows from {min(missing)} on; {[len(rows) for rows in values(answer)]} were printed, {answer}"
    )


def test_a_job_that_fails_is_the_drivers_error(tmp_path: Path) -> None:
    how = """
        try:
            feed.put(context.parallelize(range(2_000_000), 6))
        finally:
            answer["seconds"] = time.monotonic() - began
    """
    extra = "sys.exit('no more of that')"
    answer = fed(tmp_path, VERSIONS[0], how, extra, restart={"scope": "never"})
    assert answer["state"] == "failed"
    assert "exited with status 1" in answer["error"], answer
