"""What a user of a notebook meets on a real Spark: actions that take less than all, interrupted cells, failures, and too few slots."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import watchdog
from conformance.engines import python
from conformance.test_spark_tfcluster import CONTEXT, drive
from leftovers import MARK
from placing import EXAMPLES
from spark import VERSIONS

PAGE = EXAMPLES.parent / "docs" / "clusters" / "spark.md"
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.full]

NOTEBOOK = """
import logging, traceback
import trainmaster, trainmaster.spark
from pyspark.sql import SparkSession
from trainmaster.spark.feed import Feed
commands = json.loads(sys.argv[3])
session = SparkSession(sc)
signal.signal(signal.SIGINT, signal.default_int_handler)  # as a notebook's kernel has it while a cell runs
told = []

class Kept(logging.Handler):
    def emit(self, record):
        told.append(record.getMessage())

logging.getLogger("trainmaster").addHandler(Kept())

def interrupted(reached, call, *arguments, **options):
    "Call, and interrupt that as soon as there is the file `reached`."
    def interrupt():
        await_file(reached)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt, daemon=True).start()
    before = len(told)
    try:
        call(*arguments, **options)
    except KeyboardInterrupt:
        return told[before:]

def raised(call, *arguments, **options):
    "Call; return the error, whether others are shown with it, and the lines that were told meanwhile."
    before = len(told)
    try:
        call(*arguments, **options)
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        return {"type": type(error).__name__, "words": str(error), "is alone": "exception" not in text, "told": told[before:]}
"""
CLUSTER = """
SPARK = TFCluster.InputMode.SPARK

def double(args, ctx):
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results([2 * value for value in feed.next_batch(args)])

rdd = sc.parallelize(range(40_000), 4)
for size in (64, 100):  # one that divides the rows of a batch, and one that does not
    cluster = TFCluster.run(sc, double, size, 2, 0, input_mode=SPARK)
    results = cluster.inference(rdd)
    out[f"taken {size}"] = [
        results.take(5), results.count(), results.first(), results.collect() == [2 * value for value in range(40_000)],
        cluster.inference(rdd).map(lambda value: (value,)).toDF(["two"]).limit(3).collect(), results.take(2), results.sum(),
    ]
    cluster.shutdown()
    out[f"log {size}"] = [line for line in trainmaster.logs(cluster.cluster_id) if "results" in line]

def slow(args, ctx):
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        if feed.next_batch(64) and not os.path.exists(args + "/go"):
            open(args + "/reached", "w").close()
            time.sleep(0.5)

cluster = TFCluster.run(sc, slow, place, 2, 0, input_mode=SPARK)
out["interrupted"] = interrupted("reached", cluster.train, rdd, 500)
second = TFCluster.run(sc, slow, place, 2, 0, input_mode=SPARK)
out["no slots again"] = raised(cluster.train, rdd, 2)  # it has begun to train, and is not ended
out["no slots"] = raised(second.train, rdd, 2)
out["ids"] = [cluster.cluster_id, second.cluster_id]
out["states"] = [trainmaster.status(job)["state"] for job in out["ids"]]
open(os.path.join(place, "go"), "w").close()
cluster.train(sc.parallelize(range(100), 2), 1)
cluster.shutdown()
out["end"] = trainmaster.status(cluster.cluster_id)["state"]
"""
LOCAL = """
def job_of(name, n, **keys):
    worker = {"command": commands[name], "replicas": n, "resources": {"cores": 1, "memory": "64MiB"}, "restart": {"limit": 0}}
    worker["feed"] = {"input": {"memory": "4MiB", "agreed": False}}
    return {"name": name, "roles": {"worker": worker | keys}}

def job(name, n=2, **keys):
    return trainmaster.spark.run(sc, job_of(name, n, **keys))

def put(run, data, **options):
    with Feed(sc, run) as feed:
        feed.put(data, **options)

rdd = sc.parallelize(range(400_000), 4)
few = sc.parallelize(range(100), 2)
first = job("slow")
out["interrupted"] = interrupted("reached", put, first, rdd, epochs=50)
second = job("slow")
out["no slots"] = raised(put, second, few)
out["ids"] = [first.id, second.id]
second.kill()
second.wait(check=False)
open(os.path.join(place, "go"), "w").close()
put(first, few)
out["fed again"] = first.wait()["state"]

out["raises"] = raised(put, job("raises"), rdd, epochs=20)
run = job("answers", n=1)
feed = Feed(sc, run)
out["answers raise"] = raised(feed.map(rdd).count)
out["put later"] = raised(put, run, few)
run = job("raises_once", n=1, restart={"limit": 1})
before = len(told)
put(run, rdd)
out["once"] = [run.wait()["state"], told[before:]]

def waits(**keys):
    run = trainmaster.spark.run(sc, {**job_of("slow", 8), **keys})
    before = len(told)
    threading.Thread(target=raised, args=(put, run, few), daemon=True).start()
    while not any("feeding" in line for line in told[before:]):
        time.sleep(0.05)
    run.kill()
    run.wait(check=False)
    return told[before:]

out["eight"] = [waits(gang=True), waits()]

run = job("waits", n=1)
await_file("runs")
sc.stop()
status = run.wait(check=False)
out["stopped"] = {"state": status["state"], **{name: status["reason"][name] for name in ("reason", "words")}}
out["listed"] = [row["reason"] for row in trainmaster.jobs() if row["id"] == run.id]
out["status"] = [task["reason"] for task in status["tasks"]]
"""
READ = "import os, sys, time\nfrom trainmaster.runtime import feed\nplace = {place!r}\n"
COMMANDS = {
    "slow": """
for batch in feed.open("input"):
    open(place + "/reached", "w").close()
    time.sleep(0 if os.path.exists(place + "/go") else 0.5)
""",
    "raises": """
for batch in feed.open("input"):
    raise ValueError("my own mistake")
""",
    "answers": """
reader = feed.open("input")
for number, batch in enumerate(reader):
    if number == 3:
        raise ValueError("my own mistake")
    reader.answer(batch, batch["value"].tolist())
""",
    "raises_once": """
for batch in feed.open("input"):
    if os.environ["TRAINMASTER_ATTEMPT"] == "1":
        sys.exit(3)
""",
    "waits": """
open(place + "/runs", "w").close()
for batch in feed.open("input"):
    pass
""",
}


def in_notebook(version: str, place: Path, context: str, program: str) -> dict[str, Any]:
    commands = {name: python(READ.format(place=str(place)) + text) for name, text in COMMANDS.items()}
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as runtime:
        environ = {"TRAINMASTER_RUNTIME_DIR": runtime, MARK: watchdog.run_id(), "PYSPARK_PYTHON": sys.executable}
        return drive(version, context + NOTEBOOK + program, place, json.dumps(commands), **environ)


@pytest.fixture(scope="module", params=VERSIONS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a notebook with clusters of TFCluster met, on a standalone Spark."""
    return in_notebook(request.param, tmp_path_factory.mktemp("cluster"), CONTEXT, CLUSTER)


@pytest.fixture(scope="module", params=VERSIONS)
def local(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a notebook with jobs and feeds met, on `local[4]`."""
    context = 'sc = SparkContext(conf=SparkConf().setMaster("local[4]"))\n'
    return in_notebook(request.param, tmp_path_factory.mktemp("local"), context, LOCAL)


def test_the_programs_of_the_page_train_and_answer(tmp_path: Path) -> None:
    """All workers train one model, and those of another job answer each row with it."""
    section = PAGE.read_text().partition("## Feed programs")[2].partition("### Read it with")[0]
    driver = ""
    for name, text in re.findall(r'^```python(?: title="(.+?)")?\n(.*?)^```', section, re.MULTILINE | re.DOTALL):
        if name:
            (tmp_path / name).write_text(text)
        else:
            driver += text
    begin = """
import trainmaster, trainmaster.spark
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[4]").config("spark.ui.showConsoleProgress", "false").getOrCreate()
sc = spark.sparkContext
"""
    end = """
out["states"] = [row["state"] for row in trainmaster.jobs()]
out["loss"] = [line for line in trainmaster.logs(trainmaster.jobs()[1]["id"]) if "loss" in line]
"""
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as runtime:
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        environ = {
            "TRAINMASTER_RUNTIME_DIR": runtime,
            MARK: watchdog.run_id(),
            "PYSPARK_PYTHON": sys.executable,
            "PATH": path,
        }
        out = drive(VERSIONS[-1], begin + driver + end, tmp_path, **environ)
    assert out["states"] == ["succeeded", "succeeded"]
    [line] = out["loss"]
    assert float(line.split()[-1]) < 0.5, line


def test_an_action_after_one_that_took_less_than_all_is_exact(cluster: dict[str, Any]) -> None:
    for size in (64, 100):
        exact = [[0, 2, 4, 6, 8], 40_000, 0, True, [[0], [2], [4]], [0, 2], 39_999 * 40_000]
        assert cluster[f"taken {size}"] == exact
        assert cluster[f"log {size}"] == [], "nothing is said of dropped results"


def goes_on(job: str) -> str:
    return f"{job} goes on until Spark stops, and waits for its feed input: feed it again, or end it: tm kill {job}"


def test_an_interrupted_training_goes_on_and_is_named_where_it_holds_the_slots(cluster: dict[str, Any]) -> None:
    first, second = cluster["ids"]
    assert cluster["interrupted"] == [goes_on(first)]
    error = cluster["no slots"]
    assert f"held by {first} (running): tm kill {first}, this job, {second} (running)" in error["words"]
    assert "spark.executor.cores" in error["words"]
    assert f"{second} was ended: it holds no slots any more" in error["words"]
    assert cluster["states"] == ["running", "killed"]
    assert "was ended" not in cluster["no slots again"]["words"]
    assert cluster["end"] == "succeeded", "it could be fed again"


def test_an_interrupted_feed_goes_on_and_is_named_where_it_holds_the_slots(local: dict[str, Any]) -> None:
    first, second = local["ids"]
    assert local["interrupted"] == [goes_on(first)]
    error = local["no slots"]
    assert f"held by {first} (running): tm kill {first}, this job, {second} (running)" in error["words"]
    assert "a larger N of local[N]" in error["words"]
    assert "spark.executor.cores" not in error["words"]
    assert error["told"] == [goes_on(second)]
    assert local["fed again"] == "succeeded"


def test_a_program_that_raises_is_the_notebooks_error_with_its_last_lines(local: dict[str, Any]) -> None:
    for error in (local["raises"], local["put later"]):
        assert error["type"] == "JobFailed"
        assert "worker:0 exited with status 1" in error["words"] or "worker:1 exited with status 1" in error["words"]
        assert "| ValueError: my own mistake" in error["words"]
        assert error["is alone"], "no error of Py4J is shown with it"
    assert "| ValueError: my own mistake" in local["answers raise"]["words"], "it is in Spark's own error"
    state, lines = local["once"]
    assert state == "succeeded"
    [line] = [line for line in lines if "exited with status 3" in line]
    assert "worker:0" in line


def test_a_feed_says_why_it_waits_and_for_how_many(local: dict[str, Any]) -> None:
    gang, singles = (next(line for line in lines if "feeding" in line) for lines in local["eight"])
    assert "waits for worker:0, worker:1, worker:2 and 5 more to begin, 8 of 8: worker: 8 x 1 core: " in gang
    assert re.search(r"waits for (worker:\d, ){2}worker:\d and \d more to begin, \d of 8: worker:4: 1 core: ", singles)
    for line in gang, singles:
        assert "start Spark with a larger N of local[N] (it is local[4])" in line


def test_a_job_whose_context_was_stopped_was_not_killed_by_its_user(local: dict[str, Any]) -> None:
    assert local["stopped"]["state"] == "killed"
    assert local["stopped"]["reason"] == "killed-by-engine"
    assert "was killed by the engine: its SparkContext was stopped" in local["stopped"]["words"]
    assert local["listed"] == ["killed-by-engine"]
