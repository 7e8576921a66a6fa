"""Rows a second that a Spark application feeds to one program: of files, computed, and of an RDD, beside two peers in the same run.

    ROWS=300000 python benchmarks/spark_feed.py [--runs 5]

A row is 784 float32 and a label; of an RDD, whose rows are tuples with a list of floats, there is a tenth as many. A standalone cluster has
one executor, with a slot for the program and one for the feeder. The program is one reader, which looks at each value. Before the clock
starts, a row goes all the way. A rate counts from the call that feeds until all was read; ours has the end of the feed in it too.
The peers: `mapInArrow` with a function that discards the batches, the floor of what leaves the JVM as Arrow; and, where `make peers` and
`make frameworks` were run, the feed of TensorFlowOnSpark, read by its `DataFeed` in batches of 128. All take turns. The driver's share of
a core while it feeds is given for its Python, where we run, and for its JVM, which is Spark's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import figures
import tfos

sys.path[:0] = [str(figures.ROOT / "src")]

ROWS = int(os.environ.get("ROWS", "300000"))
LIMIT = 3600.0  # s of a run

READS = """
import numpy
from trainmaster.runtime import feed
total = 0
for batch in feed.open("input"):
    for column in batch.columns.values():
        total += int(numpy.frombuffer(column.values, "u1").max())
"""

# A driver. Its arguments: the directory of pyspark, rows, a directory for files, and what to measure.
DRIVER = """
import json, os, sys, time
sys.path.append(sys.argv[1])
rows, place, what = int(sys.argv[2]), sys.argv[3], sys.argv[4]
from pyspark.sql import SparkSession
path = os.environ.get("PYTHONPATH", "")
settings = {"cores.max": "2", "executor.cores": "2", "executor.memory": "2g", "driver.memory": "512m", "executorEnv.PYTHONPATH": path}
builder = SparkSession.builder
for name, value in settings.items():
    builder = builder.config(f"spark.{name}", value)
session = builder.getOrCreate()
context = session.sparkContext
computed = session.range(0, rows, 1, 1).selectExpr("array_repeat(cast(id % 256 / 255 as float), 784) as pixels", "id % 10 as label")
if what == "write":
    computed.write.mode("overwrite").parquet("file://" + place)
    sys.exit()
frame = session.read.parquet("file://" + place) if what == "files" else computed
if what in ("rdd", "tfos"):
    frame = context.range(rows, numSlices=1).map(lambda n: ([n % 256 / 255] * 784, n % 10))

def seconds_of(process):
    fields = open(f"/proc/{process}/stat").read().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

def discard(batches):
    import pyarrow
    yield pyarrow.RecordBatch.from_pydict({"n": [sum(batch.num_rows for batch in batches)]})

java = context._gateway.proc.pid
java = next((int(p) for p in open(f"/proc/{java}/task/{java}/children").read().split()), java)
if what == "floor":
    go = lambda: computed.mapInArrow(discard, "n long").collect()
elif what == "tfos":
    from tensorflowonspark import TFCluster
    def program(arguments, context):
        feed = context.get_data_feed(train_mode=True)
        while not feed.should_stop():
            feed.next_batch(128)
    cluster = TFCluster.run(context, program, [], 1, 0, input_mode=TFCluster.InputMode.SPARK)
    cluster.train(context.parallelize([([0.0] * 784, 0)], 1), 1)
    go = lambda: cluster.train(frame, 1)
else:
    import trainmaster, trainmaster.spark
    from trainmaster.spark.feed import Feed
    role = {"command": [os.environ["READER"], "-c", os.environ["READS"]], "replicas": 1, "resources": {"cores": 0.05, "memory": "256MiB"}}
    job = trainmaster.Job(name="reader", files=[], roles={"worker": {**role, "feed": {"input": {"memory": "64MiB"}}}})
    run = trainmaster.spark.run(session, job)
    feed = Feed(session, run)
    feed.put(computed.limit(1) if what != "rdd" else context.parallelize([([0.0] * 784, 0)], 1))
    def go():
        feed.put(frame)
        feed.end()
context.parallelize([0], 1).map(lambda value: __import__("pyarrow") and value).count()  # the executor's Python is warm
before = seconds_of(os.getpid()), seconds_of(java)
began = time.perf_counter()
go()
took = time.perf_counter() - began
after = seconds_of(os.getpid()), seconds_of(java)
python, jvm = (100 * (now - then) / took for then, now in zip(before, after))
print(json.dumps({"rate": rows / took, "python": python, "java": jvm}), flush=True)
os._exit(0)
"""


def measure_once(cluster: Any, rows: int, files: str, way: str, environ: dict[str, str]) -> dict[str, float]:
    """Run one driver, and return its rows a second and its shares of a core in percent."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(cluster.home.folder.parent), str(rows), files, way],
        env={**cluster.environ, **environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "READER": cluster.home.python, "READS": READS},
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{way}: {done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1])) if way != "write" else {}


def measure(runs: int) -> list[figures.Row]:
    from trainmaster.clusters import spark

    [package] = (figures.BIN.parent / "spark-3.5").glob("lib/python3*/site-packages/pyspark")
    with figures.place() as environ, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        peer_environ = tfos.environment(place / "peer")
        ways = ["files", "computed", "rdd", "floor", *(["tfos"] if peer_environ else [])]
        answers: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        cluster = spark.up(spark.Settings(nodes=1, memory=4096, cores=4), folder=place / "spark", home=package)
        try:
            files = str(place / "files")
            measure_once(cluster, ROWS, files, "write", environ)
            for _ in range(runs):
                for way in ways:
                    rows = ROWS // 10 if way in ("rdd", "tfos") else ROWS
                    own = peer_environ if way == "tfos" else {}
                    answers[way].append(measure_once(cluster, rows, files, way, {**environ, **own}))
        finally:
            spark.down(folder=place / "spark")
    rates = {way: [answer["rate"] / 1000 for answer in answers[way]] for way in ways}
    unit, floor = "k rows/s", "mapInArrow, discarded"
    result = [
        figures.Row(
            "files",
            rates["files"],
            unit,
            peer_name=floor,
            peer=rates["floor"],
            least=1.0,
            more_is_better=True,
            note="wanted: 300",
        ),
        figures.Row(
            "computed", rates["computed"], unit, peer_name=floor, peer=rates["floor"], least=3.0, more_is_better=True
        ),
    ]
    if peer_environ:
        peer: dict[str, Any] = {"peer_name": "TensorFlowOnSpark", "peer": rates["tfos"], "more_is_better": True}
        result.append(figures.Row("an RDD of rows", rates["rdd"], unit, least=10.0, **peer))
    else:
        result.append(figures.Row("an RDD of rows", rates["rdd"], unit, note=tfos.MISSING, more_is_better=True))
    for way in ("files", "computed", "rdd"):
        for part in ("python", "java"):
            shares = [answer[part] for answer in answers[way]]
            result.append(figures.Row(f"the driver's {part} while feeding {way}", shares, "%", limit=5.0))
    return result


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
