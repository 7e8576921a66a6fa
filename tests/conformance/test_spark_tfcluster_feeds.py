"""InputMode.SPARK of TFCluster on a real Spark: functions that are fed, give results, fail, stop, and follow streams."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conformance.test_spark_tfcluster import CONTEXT, drive
from spark import VERSIONS

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.soak]  # not run as a whole since its last mends

COMMON = """
SPARK = TFCluster.InputMode.SPARK

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

def both(name):
    return [read(f"{name}-0"), read(f"{name}-1")]
"""
TRAIN = (
    COMMON
    + """
from pyspark.sql import SparkSession
session = SparkSession(sc)
uneven = sc.parallelize([0, 1, 2], 3).flatMap(lambda part: range(part * 10_000, part * 10_000 + 100 + 1500 * part))
cluster = TFCluster.run(sc, reads, [place, "a"], 2, 0, input_mode=SPARK, master_node="chief")
cluster.train(uneven, 2)
cluster.train(session.createDataFrame(uneven.map(lambda value: (value,)), ["value"]), 1)
cluster.shutdown()
out["read"] = both("a")

cluster = TFCluster.reserve(sc, 2, 0, input_mode=SPARK)  # the form of 2017
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
checks = threading.Thread(target=cluster.train, args=(sc.parallelize(range(200), 2), 1), kwargs={"qname": "check"})
checks.start()
cluster.train(sc.parallelize(range(4000), 2), 1)
checks.join()
out["unknown"] = error_of(cluster.train, sc.parallelize([1]), qname="chekc")
cluster.shutdown()
out["two"] = both("two")

def stops(args, ctx):
    feed = ctx.get_data_feed()
    feed.next_batch(100)
    feed.terminate()

def never(args, ctx):
    pass

many = sc.parallelize(range(3_000_000), 4)
for name, function in {"stops": stops, "never": never}.items():
    began = time.time()
    cluster = TFCluster.run(sc, function, place, 2, 0, input_mode=SPARK)
    cluster.train(many)
    cluster.shutdown()
    out[name] = time.time() - began

def fails(args, ctx):
    feed = ctx.get_data_feed()
    feed.next_batch(100)
    time.sleep(1)
    raise RuntimeError(f"no such digit, at {time.time()}")

cluster = TFCluster.run(sc, fails, None, 2, 0, input_mode=SPARK)
out["failed"] = error_of(cluster.train, many)
out["at shutdown"] = error_of(cluster.shutdown)

cluster = TFCluster.run(sc, never, None, 4, 0, input_mode=SPARK)
out["no slot"] = error_of(cluster.train, many)
cluster.shutdown()
out["mode"] = error_of(TFCluster.run, sc, never, None, 2, 0, input_mode=SPARK, eval_node=True)
cluster = TFCluster.run(sc, never, None, 2, 0)
out["not fed"] = error_of(cluster.inference, many)
cluster.shutdown()
"""
)


@pytest.mark.parametrize("version", VERSIONS)
def test_training(version: str, tmp_path: Path) -> None:
    out = drive(version, CONTEXT + TRAIN, tmp_path, PYSPARK_PYTHON=sys.executable)
    first, second = out["read"]
    rows = {part * 10_000 + row for part in range(3) for row in range(100 + 1500 * part)}
    assert len(first) == len(second)
    assert 0 <= 3 * len(rows) - 2 * len(first) <= 4 * 256
    assert set(first + second) <= rows
    assert max((first + second).count(value) for value in list(rows)[::100]) <= 3

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
    happened = float(out["failed"]["words"].partition("no such digit, at ")[2].split()[0])
    assert out["failed"]["raised"] - happened < 20  # 2.5 s at a load of 20
    assert "no such digit" in out["at shutdown"]["words"]
    assert "4 nodes take all 4 slots of the application" in out["no slot"]["words"]
    assert "eval_node needs functions that read their data" in out["mode"]["words"]
    assert "the functions of this cluster read their data" in out["not fed"]["words"]


INFER = (
    COMMON
    + """
def answers(args, ctx):
    write(args, f"pid-{ctx.executor_id}-{os.environ['TRAINMASTER_ATTEMPT']}", os.getpid())
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        batch = feed.next_batch(70)
        if batch and batch[0] == "slow":
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
action = threading.Thread(target=lambda: found.extend(cluster.inference(sc.parallelize(rows, 1)).map(lambda r: r[0]).collect()))
action.start()
time.sleep(2)
os.kill(jvm_of(read("pid-1-1")), signal.SIGKILL)
await_file("pid-1-2")
open(os.path.join(place, "go"), "w").close()
action.join()
out["after a loss"] = found == rows
cluster.shutdown()

def too_few(args, ctx):
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results(feed.next_batch(10)[:-1])

cluster = TFCluster.run(sc, too_few, place, 1, 0, input_mode=SPARK)
out["too few"] = error_of(cluster.inference(parts).collect)
out["at shutdown"] = error_of(cluster.shutdown)
cluster = TFCluster.run(sc, reads, [place, "r"], 1, 0, input_mode=SPARK)
out["no results"] = error_of(cluster.inference(parts).collect)
out["not wanted"] = error_of(cluster.shutdown)
"""
)


@pytest.mark.parametrize("version", VERSIONS)
def test_inference(version: str, tmp_path: Path) -> None:
    out = drive(version, CONTEXT + INFER, tmp_path, PYSPARK_PYTHON=sys.executable)
    assert out["same"]
    assert out["again"] == sum(10 + 900 * part for part in range(4))
    assert set(out["nodes"]) <= {0, 1}
    assert out["kinds"].startswith("(0, ")
    assert out["kinds"].endswith("[None, b'x', 'y'])")
    assert out["take"] == 3
    assert out["empty"] == []
    assert "feed 'input' is for inference, and cannot be for training too" in out["train"]["words"]
    assert out["after a loss"]
    assert "1 rows of the last batch have no result: give one result a row" in out["at shutdown"]["words"]
    assert "read it with train_mode=False" in out["not wanted"]["words"]
    for error in out["too few"], out["no results"]:
        assert error["type"] == "Py4JJavaError"
        assert "the job has failed: " in error["words"] or "it may have ended" in error["words"]


STREAM = (
    COMMON
    + """
from pyspark.sql import SparkSession
from pyspark.streaming import StreamingContext
session = SparkSession(sc)
cluster = TFCluster.run(sc, reads, [place, "s"], 2, 0, input_mode=SPARK)
ssc = StreamingContext(sc, 1)
cluster.train(ssc.queueStream([sc.parallelize(range(first, first + 100), 2) for first in range(0, 500, 100)]))
counted = []
ssc.queueStream([sc.parallelize([first]) for first in range(5)]).foreachRDD(lambda rdd: counted.append(rdd.count()))
ssc.start()
while sum(counted) < 5:
    time.sleep(0.1)
ssc.stop(stopSparkContext=False, stopGraceFully=True)
cluster.shutdown(ssc)
out["stream"] = both("s")

os.mkdir(os.path.join(place, "rows"))
for number in range(3):
    with open(os.path.join(place, "rows", f"{number}.json"), "w") as file:
        file.writelines(json.dumps({"value": number * 100 + row}) + "\\n" for row in range(100))
cluster = TFCluster.run(sc, reads, [place, "q"], 1, 0, input_mode=SPARK)
rows = session.readStream.schema("value long").option("maxFilesPerTrigger", 1).json(os.path.join(place, "rows"))
query = rows.writeStream.foreachBatch(cluster.train_batch).option("checkpointLocation", os.path.join(place, "checkpoint"))
query = query.trigger(availableNow=True).start()
query.awaitTermination()
cluster.shutdown()
out["structured"] = read("q-0")
"""
)


# The stream took 70 s from its last batch to the end of the feed when this was tried.
def test_streams(tmp_path: Path) -> None:
    out = drive(VERSIONS[0], CONTEXT + STREAM, tmp_path, PYSPARK_PYTHON=sys.executable)
    first, second = out["stream"]
    assert len(first) == len(second)
    assert len({*first, *second}) == len(first) + len(second) >= 400
    assert sorted(out["structured"]) == list(range(300))
