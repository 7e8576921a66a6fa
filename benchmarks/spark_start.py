"""A cluster of two programs in a running Spark application: the time to the first line of both, and from an error to the driver's error.

    python benchmarks/spark_start.py [--runs 5]

One standalone cluster. The executors are warm: each way has one turn before those that count, so that JVMs and Pythons run and have
imported what they need. A start counts from the driver's call to the later one of the two first lines. `trainmaster.spark.run` forms a
group for PyTorch, as TorchDistributor does; both run the same file, which imports nothing, and which is alone in the directory that
`trainmaster.spark.run` brings along. The two TFClusters run the same function.

An error counts from the moment before the function of a fed node raises it, or kills its own process, to the error of the driver's
`train` or `shutdown`. If a process is killed by a signal, one second is the wait for Spark's word, since the loss of its executor is the
better reason (`core.decide.limits.SOON`). TensorFlowOnSpark sees an error that was raised within a second; it misses a process that is gone
until `feed_timeout` is over: 600 s by default, and for each of Spark's tries of a task. Here that is 20 s and one try.

The peers are there after `make peers frameworks`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import figures
import tfos

sys.path[:0] = [str(figures.ROOT / "src")]

LIMIT = 1800.0  # s of a driver
FEED_TIMEOUT = 20  # s
FASTER = 2.0  # of a start, than each peer's
RAISED = 1.0  # s from an executor's error to the driver's; one more of a process that was killed

PROGRAM = """
import os, sys, time
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    file.write(str(time.monotonic()))
"""

# Both drivers begin so. Arguments: the directory of pyspark, a directory for notes, Spark's properties. Nodes note the monotonic clock,
# which all processes of a machine share.
SESSION = """
import json, os, sys, time
sys.path.append(sys.argv[1])
from pyspark.sql import SparkSession
folder = sys.argv[2]
builder = SparkSession.builder
for name, value in json.loads(sys.argv[3]).items():
    builder = builder.config(f"spark.{name}", value)
session = builder.config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", "")).getOrCreate()
context = session.sparkContext
import trainmaster, trainmaster.spark
from trainmaster.spark import TFCluster as Ours

def note(place, name):
    import os, time
    with open(os.path.join(place, str(name)), "w") as file:
        file.write(str(time.monotonic()))

def noted(place):
    return [float(open(os.path.join(place, name)).read()) for name in sorted(os.listdir(place))]
"""

# More arguments: the ways, the number of turns.
STARTS = """
def function(place, node):
    note(place, node.task_index)

def job(place):
    role = {"command": [sys.executable, os.path.join(folder, "program.py"), place], "replicas": 2}
    role["resources"] = {"cores": 0.05, "memory": "256MiB"}
    described = trainmaster.Job(name="start", framework="pytorch", gang=True, roles={"worker": role})
    trainmaster.spark.run(session, described).wait()

def cluster_of(module):
    return lambda place: module.run(context, function, place, 2, 0).shutdown()

ways = {"job": job, "cluster": cluster_of(Ours)}
if "tfos" in sys.argv[4]:
    from tensorflowonspark import TFCluster as Theirs
    ways["tfos"] = cluster_of(Theirs)
if "torch" in sys.argv[4]:
    from pyspark.ml.torch.distributor import TorchDistributor
    distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    ways["torch"] = lambda place: distributor.run(os.path.join(folder, "program.py"), place)
times = {way: [] for way in ways}
for turn in range(int(sys.argv[5]) + 1):
    for way, start in ways.items():
        place = os.path.join(folder, f"{way}-{turn}")
        os.mkdir(place)
        began = time.monotonic()
        start(place)
        lines = noted(place)
        assert len(lines) == 2, (way, lines)
        if turn:
            times[way].append(max(lines) - began)
print("figures:" + json.dumps(times), flush=True)
os._exit(0)
"""

# More arguments: whose cluster, what happens, feed_timeout.
ERRORS = """
whose, what = sys.argv[4:6]
if whose == "tfos":
    from tensorflowonspark import TFCluster as Theirs
module = Ours if whose == "cluster" else Theirs

def function(place, node):
    import os, signal
    node.get_data_feed().next_batch(1)
    note(place, "error")
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("an error of the benchmark's")

rows = context.parallelize([(float(number),) for number in range(100)], 1)
cluster = module.run(context, function, folder, 1, 0, input_mode=module.InputMode.SPARK)
try:
    cluster.train(rows, 1, int(sys.argv[6]))
    cluster.shutdown()
except BaseException as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    print("figures:" + json.dumps(time.monotonic() - noted(folder)[0]), flush=True)
os._exit(0)
"""

PROPERTIES = {"executor.memory": "1g", "driver.memory": "512m", "task.maxFailures": "1"}


def run_driver(
    cluster: Any, environ: dict[str, str], code: str, folder: Path, cores: int, count: int, *more: str
) -> Any:
    """Run a driver with `count` executors of so many cores, and return its figures."""
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM) if code is STARTS else None
    properties = {**PROPERTIES, "executor.cores": str(cores), "cores.max": str(cores * count)}
    done = subprocess.run(
        [sys.executable, "-c", SESSION + code, str(cluster.home.folder.parent), str(folder), json.dumps(properties), *more],
        cwd=folder, env={**cluster.environ, **environ}, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("figures:")]
    if not lines:
        raise RuntimeError(f"{more}: {done.stderr[done.stderr.rfind('Traceback (most recent call last)') :][:6000]}")
    return json.loads(lines[-1].removeprefix("figures:"))


def measure(runs: int) -> list[figures.Row]:
    from trainmaster.clusters import spark

    [package] = (figures.BIN.parent / "spark-3.5").glob("lib/python3*/site-packages/pyspark")
    errors: dict[tuple[str, str], list[float]] = {}
    with figures.place() as environ, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        peer = tfos.environment(place / "peer")
        ways = "tfos,torch" if peer else ""
        settings = spark.Settings(nodes=1, memory=8192, cores=8)
        cluster = spark.up(settings, folder=place / "spark", home=package)
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        environ = {**environ, **python, **peer, "TF_CPP_MIN_LOG_LEVEL": "2"}
        try:
            starts = run_driver(cluster, environ, STARTS, place / "starts", 1, 2, ways, str(runs))
            for run in range(runs):
                for what in ("raised", "killed"):
                    for whose in ("cluster", *(["tfos"] if peer else [])):
                        cores = 2 if whose == "cluster" else 1  # the peer's executors must have one slot
                        notes = place / f"{whose}-{what}-{run}"
                        more = (whose, what, str(FEED_TIMEOUT))
                        took = run_driver(cluster, environ, ERRORS, notes, cores, 1, *more)
                        errors.setdefault((whose, what), []).append(took)
        finally:
            spark.down(folder=place / "spark")
    names = {"tfos": "TensorFlowOnSpark's TFCluster.run", "torch": "TorchDistributor"}
    rows = [
        figures.Row(figure, starts[way], "s", peer_name=names[other], peer=starts[other], least=FASTER)
        for way, other, figure in [
            ("job", "torch", "first lines of 2 programs, trainmaster.spark.run"),
            ("job", "tfos", "first lines of 2 programs, trainmaster.spark.run"),
            ("cluster", "tfos", "first lines of 2 programs, our TFCluster.run"),
        ]
        if other in starts
    ] or [figures.Row(f"first lines of 2 programs, {way}", starts[way], "s", note=tfos.MISSING) for way in starts]
    for what, figure in {
        "raised": "a function's exception to the driver's",
        "killed": "a killed process to the driver's exception",
    }.items():
        theirs = errors.get(("tfos", what), [])
        note = f"its feed_timeout is {FEED_TIMEOUT} s here, not 600" if theirs and what == "killed" else ""
        rows.append(
            figures.Row(
                figure,
                errors["cluster", what],
                "s",
                RAISED + (what == "killed"),
                "TensorFlowOnSpark" if theirs else "",
                theirs,
                note=note,
            )
        )
    return rows


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
