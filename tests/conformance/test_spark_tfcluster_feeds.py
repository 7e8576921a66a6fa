"""InputMode.SPARK of TFCluster on a real Spark: functions that are fed, give results, fail, stop, and follow streams.

One application of each version runs all of it, in turn: an application takes longer to begin than most of what is tried here.
"""

from __future__ import annotations

import sys
import tempfile
import textwrap
from typing import Any

import pytest
import watchdog
from conformance.test_spark_tfcluster import CONTEXT, drive
from leftovers import MARK
from placing import EXAMPLES
from spark import VERSIONS

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.full,
]
STOP = EXAMPLES / "digits-tensorflowonspark" / "stop_streaming.py"

COMMON = """
import subprocess, traceback
import trainmaster
from pyspark.sql import SparkSession
from pyspark.streaming import StreamingContext
session = SparkSession(sc)
sc.setLogLevel("ERROR")
SPARK = TFCluster.InputMode.SPARK
out["errors"] = {}

def write(place, name, found):
    draft = os.path.join(place, f"draft-{name}")
    with open(draft, "w") as file:
        json.dump(found, file)
    os.rename(draft, os.path.join(place, name))

def reads(args, ctx):
    place, name = args
    feed, rows = ctx.get_data_feed(), []
    while not feed.should_stop():
        rows += feed.next_batch(100)
    write(place, f"{name}-{ctx.executor_id}", rows)

def stops(args, ctx):
    feed = ctx.get_data_feed()
    feed.next_batch(100)
    feed.terminate()

def fails(args, ctx):
    feed = ctx.get_data_feed()
    while not feed.next_batch(100):
        pass
    raise RuntimeError(f"no such digit, at {time.time()}")

def both(name):
    return [read(f"{name}-0"), read(f"{name}-1")]

def note_error(part):
    out["errors"][part] = traceback.format_exc()
    for job in trainmaster.jobs():  # the next part needs their slots
        if job["state"] not in ("succeeded", "failed", "killed"):
            trainmaster.attach(job["id"]).kill()
"""
TRAIN = """
uneven = sc.parallelize([0, 1, 2], 3).flatMap(lambda part: range(part * 10_000, part * 10_000 + 100 + 1500 * part))
cluster = TFCluster.run(sc, reads, [place, "a"], 2, 0, input_mode=SPARK, master_node="chief")
cluster.train(uneven, 2)
cluster.train(session.createDataFrame(uneven.map(lambda value: (value,)), ["value"]), 1)
cluster.shutdown()
out["read"] = both("a")

cluster = TFCluster.reserve(sc, 2, 0, input_mode=SPARK, queues=["input", "output"])  # the form of 2017
cluster.start(reads, [place, "b"])
cluster.train(sc.parallelize([([n, n + 1], str(n)) for n in range(40)], 2).map(lambda row: (row[1], float(row[1]))), 1)
cluster.shutdown()
out["tuples"] = both("b")

def two_feeds(args, ctx):
    train, check = ctx.get_data_feed(), ctx.get_data_feed(qname_in="check")
    counts = [0, 0]
    while not train.should_stop():
        counts[0] += len(train.next_batch(50))
        counts[1] += 0 if check.should_stop() else len(check.next_batch(5))
    while not check.should_stop():
        counts[1] += len(check.next_batch(5))
    write(args, f"two-{ctx.executor_id}", counts)

cluster = TFCluster.run(sc, two_feeds, place, 2, 0, input_mode=SPARK, queues=["input", "check", "output", "error"])
checks = threading.Thread(target=cluster.train, args=(sc.parallelize(range(200), 2), 1), kwargs={"qname": "check"}, daemon=True)
checks.start()
cluster.train(sc.parallelize(range(4000), 2), 1)
checks.join()
out["unknown"] = error_of(cluster.train, sc.parallelize([1]), qname="chekc")
cluster.shutdown()
out["two"] = both("two")

def reads_parts(args, ctx):  # as programs that train and infer by one function, also on a parameter server
    feed, batches = TFNode.DataFeed(ctx.mgr, False), []
    if ctx.job_name == "ps":
        threading.Event().wait()
    while not feed.should_stop():
        batches.append(feed.next_batch(100))
        feed.batch_results(batches[-1])
    write(args, "parts", [batch for batch in batches if batch])

cluster = TFCluster.run(sc, reads_parts, place, 2, 1, input_mode=SPARK)
cluster.train(sc.parallelize(range(600), 4), 1)
cluster.shutdown()
out["parts"] = read("parts")

def never(args, ctx):
    pass

many = sc.parallelize(range(3_000_000), 4)
for name, function in {"stops": stops, "never": never}.items():
    began = time.time()
    cluster = TFCluster.run(sc, function, place, 2, 0, input_mode=SPARK)
    cluster.train(many)
    cluster.shutdown()
    out[name] = time.time() - began

cluster = TFCluster.run(sc, fails, None, 2, 0, input_mode=SPARK)
out["failed"] = error_of(cluster.train, many)
out["failed at shutdown"] = error_of(cluster.shutdown)

cluster = TFCluster.run(sc, reads, [place, "n"], 4, 0, input_mode=SPARK)
out["no slot"] = error_of(cluster.train, many)
out["no slot at shutdown"] = error_of(cluster.shutdown)
out["mode"] = error_of(TFCluster.run, sc, never, None, 2, 0, input_mode=SPARK, eval_node=True)
cluster = TFCluster.run(sc, never, None, 2, 0)
out["not fed"] = error_of(cluster.inference, many)
cluster.shutdown()
"""
INFER = """
def answers(args, ctx):
    write(args, f"pid-{ctx.executor_id}-{os.environ['TRAINMASTER_ATTEMPT']}", os.getpid())
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        batch = feed.next_batch(70)
        if batch and batch[0] == "slow":
            write(args, "reached", ctx.executor_id)
            while not os.path.exists(os.path.join(args, "go")):
                time.sleep(0.05)
        feed.batch_results([(row, ctx.executor_id, [None, b"x", "y"]) if row != -1 else None for row in batch])

parts = sc.parallelize([0, 1, 2, 3], 4).flatMap(lambda part: range(part * 10_000, part * 10_000 + 10 + 900 * part))
cluster = TFCluster.run(sc, answers, place, 2, 0, input_mode=SPARK)
results = cluster.inference(parts)
out["same"] = parts.glom().collect() == results.map(lambda result: result[0]).glom().collect()
out["again"] = results.count()
out["nodes"] = sorted(results.map(lambda result: result[1]).distinct().collect())
out["kinds"] = repr(results.first())
out["take"] = len(results.take(3))
out["empty"] = cluster.inference(sc.parallelize([], 2)).collect()
out["train"] = error_of(cluster.train, parts)

def jvm_of(pid):
    while True:
        with open(f"/proc/{pid}/stat") as file:
            name, _, rest = file.read().partition(" (")[2].rpartition(") ")
        if name == "java":
            return pid
        pid = int(rest.split()[1])

rows = ["slow", *map(str, range(2000))]  # a node waits in the middle of its rows, and its executor is killed
found = []
infer = lambda: found.extend(cluster.inference(sc.parallelize(rows, 1)).map(lambda r: r[0]).collect())
action = threading.Thread(target=infer, daemon=True)
action.start()
await_file("reached")
reached = read("reached")
os.kill(jvm_of(read(f"pid-{reached}-1")), signal.SIGKILL)
await_file(f"pid-{reached}-2")
open(os.path.join(place, "go"), "w").close()
action.join()
out["after a loss"] = found == rows
cluster.shutdown()

def too_few(args, ctx):
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results(feed.next_batch(10)[:-1])

def squares(args, ctx):
    import numpy
    feed = TFNode.DataFeed(ctx.mgr)
    while not feed.should_stop():
        feed.batch_results(numpy.square(numpy.array(feed.next_batch(70))))

cluster = TFCluster.run(sc, squares, place, 2, 0, input_mode=SPARK)
out["squares"] = cluster.inference(parts.map(lambda number: [number])).map(lambda square: square.tolist()).collect()
out["expected"] = parts.map(lambda number: [number * number]).collect()
cluster.shutdown()

cluster = TFCluster.run(sc, too_few, place, 1, 0, input_mode=SPARK)
out["too few"] = error_of(cluster.inference(parts).collect)
out["at shutdown"] = error_of(cluster.shutdown)

def breaks(args, ctx):
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.next_batch(10):
        pass
    raise RuntimeError(f"no such digit, at {time.time()}")

cluster = TFCluster.run(sc, breaks, place, 1, 0, input_mode=SPARK)
results = cluster.inference(parts).map(repr)
out["broken"] = [error_of(results.collect), error_of(results.count)]  # the second one begins when no master is there any more
cluster = TFCluster.run(sc, reads, [place, "r"], 1, 0, input_mode=SPARK)
out["no results"] = error_of(cluster.inference(parts).collect)
out["not wanted"] = error_of(cluster.shutdown)
"""
STREAM = """
def stop_from_outside(cluster):
    host, port = cluster.cluster_meta["server_addr"]
    return subprocess.run([sys.executable, "-I", sys.argv[3], host, str(port)], check=True, capture_output=True)

def follow(function, arguments, nodes, datas):
    cluster = TFCluster.run(sc, function, arguments, nodes, 0, input_mode=SPARK)
    ssc = StreamingContext(sc, 2)  # s; what has come is fed before a stop, so batches must not come faster than a loaded machine feeds them
    stream = ssc.queueStream(datas)  # then it gives empty ones
    cluster.train(stream)
    counted = []
    stream.foreachRDD(lambda rdd: counted.append(1))
    ssc.start()
    return cluster, ssc, counted

cluster, ssc, counted = follow(reads, [place, "s"], 2, [sc.parallelize(range(first, first + 100), 2) for first in range(0, 500, 100)])
def stop_when_fed():
    while len(counted) < 5:
        time.sleep(0.05)
    out["fed"] = time.time()
    stop_from_outside(cluster)
stopper = threading.Thread(target=stop_when_fed, daemon=True)
stopper.start()
cluster.shutdown(ssc)
stopper.join()
out["stream took"] = time.time() - out["fed"]
out["stream"] = both("s")

cluster, ssc, _ = follow(stops, None, 1, [sc.parallelize(range(200), 2)])
cluster.shutdown(ssc)  # the stream goes on until nobody reads it any more
cluster, ssc, _ = follow(fails, None, 1, [sc.parallelize(range(200), 2)])
out["failed stream"] = error_of(cluster.shutdown, ssc)
out["contexts"] = StreamingContext.getActive() is None

os.mkdir(os.path.join(place, "rows"))
def add_rows(number):
    draft = os.path.join(place, f"draft-{number}")
    with open(draft, "w") as file:
        file.writelines(json.dumps({"value": number * 100 + row}) + "\\n" for row in range(100))
    os.rename(draft, os.path.join(place, "rows", f"{number}.json"))

def query_of(cluster, name):
    rows = session.readStream.schema("value long").option("maxFilesPerTrigger", 1).json(os.path.join(place, "rows"))
    rows = rows.writeStream.foreachBatch(cluster.train_batch).option("checkpointLocation", os.path.join(place, name))
    return rows.trigger(processingTime="200 milliseconds").start()

for number in range(3):
    add_rows(number)
cluster = TFCluster.run(sc, reads, [place, "q"], 1, 0, input_mode=SPARK)
query = query_of(cluster, "checkpoint")
def stop_when_idle():
    while query.lastProgress is None or query.lastProgress["batchId"] < 2:
        time.sleep(0.05)
    stop_from_outside(cluster)
stopper = threading.Thread(target=stop_when_idle, daemon=True)
stopper.start()
cluster.shutdown(query)
stopper.join()
out["structured"] = read("q-0")
out["active"] = query.isActive
cluster = TFCluster.run(sc, fails, None, 1, 0, input_mode=SPARK)
query = query_of(cluster, "another checkpoint")
out["failed query"] = error_of(cluster.shutdown, query)
out["active"] = out["active"] or query.isActive
"""


def program() -> str:
    parts = {"training": TRAIN, "inference": INFER, "streams": STREAM}
    tries = [
        f"try:\n{textwrap.indent(part, '    ')}\nexcept Exception:\n    note_error({name!r})\n"
        for name, part in parts.items()
    ]
    return "\n".join([CONTEXT, COMMON, *tries])


@pytest.fixture(scope="module", params=VERSIONS)
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an application of a version found."""
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as runtime:
        environ = {"TRAINMASTER_RUNTIME_DIR": runtime, MARK: watchdog.run_id(), "PYSPARK_PYTHON": sys.executable}
        return drive(request.param, program(), tmp_path_factory.mktemp("feeds"), str(STOP), **environ)


def test_training(outcome: dict[str, Any]) -> None:
    out = outcome
    assert "training" not in out["errors"], out["errors"]["training"]
    first, second = out["read"]
    rows = {part * 10_000 + row for part in range(3) for row in range(100 + 1500 * part)}
    assert len(first) == len(second)
    assert 0 <= 3 * len(rows) - 2 * len(first) <= 4 * 256
    assert set(first + second) <= rows
    assert max((first + second).count(value) for value in list(rows)[::100]) <= 3

    assert all(len({row // 150 for row in batch}) == 1 for batch in out["parts"]), "batches end with their partition"
    assert sorted(row for batch in out["parts"] for row in batch) == list(range(600))
    assert sorted(row for node in out["tuples"] for row in node) == sorted([str(n), float(n)] for n in range(40))
    for counts in out["two"]:
        assert counts == out["two"][0]
        assert 1500 < counts[0] <= 2000
        assert 0 < counts[1] <= 100
    assert "the cluster has no feed 'chekc'" in out["unknown"]["words"]

    assert out["stops"] < 60, "nobody computed 30 million rows"
    assert out["never"] < 60
    assert out["failed"]["type"] == "JobFailed"
    assert "RuntimeError: no such digit" in out["failed"]["words"]
    assert out["failed"]["raised"] - moment(out["failed"]) < 100  # 2.5 s at a load of 20
    assert "no such digit" in out["failed at shutdown"]["words"]
    assert "tasks of jobs take all slots of the application" in out["no slot"]["words"]
    assert "there was no slot for tasks that feed it" in out["no slot at shutdown"]["words"]
    assert "eval_node needs functions that read their data" in out["mode"]["words"]
    assert "the functions of this cluster read their data" in out["not fed"]["words"]


def test_inference(outcome: dict[str, Any]) -> None:
    out = outcome
    assert "inference" not in out["errors"], out["errors"]["inference"]
    assert out["same"]
    assert out["again"] == sum(10 + 900 * part for part in range(4))
    assert set(out["nodes"]) <= {0, 1}
    assert out["kinds"].startswith("(0, ")
    assert out["kinds"].endswith("[None, b'x', 'y'])")
    assert out["take"] == 3
    assert out["empty"] == []
    assert "feed 'input' is for inference, and cannot be for training too" in out["train"]["words"]
    assert out["after a loss"]
    assert out["squares"] == out["expected"]
    for name in ("too few", "at shutdown", "no results", "not wanted"):
        assert "rows have no result, and their partition has no more rows" in out[name]["words"], name
    for error in out["broken"]:
        assert "RuntimeError: no such digit, at " in error["words"]
    assert out["broken"][0]["raised"] - moment(out["broken"][0]) < 100
    assert out["broken"][1]["took"] < 100


def test_streams(outcome: dict[str, Any]) -> None:
    out = outcome
    assert "streams" not in out["errors"], out["errors"]["streams"]
    first, second = out["stream"]
    assert len(first) == len(second)
    assert len({*first, *second}) == len(first) + len(second) >= 400
    assert out["stream took"] < 300
    assert sorted(out["structured"]) == list(range(300))
    for error in out["failed stream"], out["failed query"]:
        assert error["type"] == "JobFailed"
        assert "RuntimeError: no such digit, at " in error["words"]
        assert error["raised"] - moment(error) < 150
    assert out["contexts"], "no StreamingContext is active"
    assert not out["active"], "no query is"


def moment(error: dict[str, Any]) -> float:
    """Return when a function has raised the error."""
    return float(error["words"].partition("no such digit, at ")[2].split()[0])
