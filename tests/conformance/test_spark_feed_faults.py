"""What goes wrong while Spark feeds the programs of a job: each ends with one clear error or goes on, and leaves nothing behind.

The tests share a cluster; each has an application of its own, whose driver says in lines of JSON how far it is. Programs note each batch in
a file of their attempt's, since the output of a killed one is lost.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import in_containers
from conformance.test_spark_application import executor_of
from leftovers import shared_memory
from spark import VERSIONS, own_spark
from waiting import until

from trainmaster.clusters.spark import Cluster

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.full]
LONG = 240.0  # s; reached by a failure alone
DRIVER = """
import json, os, sys, threading, time
sys.path.append(sys.argv[1])
from pyspark.sql import SparkSession
import trainmaster, trainmaster.spark
from trainmaster.client.jobs.past import Past
from trainmaster.core.errors import TrainmasterError
from trainmaster.core.input.audit import audit
from trainmaster.core.machine.events import decode
from trainmaster.log.reader import Reader, replay
from trainmaster.spark.feed import Feed
builder = SparkSession.builder.config("spark.executor.cores", "2").config("spark.executor.memory", "512m")
for name, value in json.loads(sys.argv[2]).items():
    builder = builder.config(name, value)
session = builder.config("spark.driver.memory", "512m").config("spark.cores.max", "4").getOrCreate()
context, folder = session.sparkContext, sys.argv[3]

def begin(replicas=1, memory="1MiB", agreed=False, pace=0.0, **keys):
    command = [sys.argv[6], "-c", sys.argv[4], folder, str(pace)]
    role = {"command": command, "replicas": replicas, "resources": {"cores": 0.05, "memory": "64MiB"},
            "feed": {"input": {"memory": memory, "agreed": agreed}}, "restart": {"scope": "task", "limit": 4}, **keys}
    return trainmaster.spark.run(session, trainmaster.Job(name="t", roles={"worker": role}))

def numbered(count, partitions, size=0):
    # Rows of a size, in order: 20 in a batch of 100 kB fill a ring of 1 MiB many times.
    return context.parallelize(range(count), partitions).map(lambda n: {"value": n, "more": bytes(size)})

def tell(**facts):
    print(json.dumps(facts), flush=True)

def faults(run):
    return [str(fault) for feed in audit(replay(Reader(Past(run.id).storage), decode)).feeds for fault in feed.faults]

def case(data, memory="1MiB", **keys):
    run = begin(memory=memory, **keys)
    error = ""
    try:
        with Feed(session, run) as feed:
            feed.put(data)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
        run.kill()
    return {"job": run.id, "state": run.wait(200, check=False)["state"], "error": error}

exec(sys.argv[5])
session.stop()
tell(last=True)
"""
READS = """
import json, os, sys, time
from trainmaster.runtime import feed
name = "-".join(os.environ["TRAINMASTER_" + part] for part in ("JOB", "INDEX", "ATTEMPT"))
with open(os.path.join(sys.argv[1], name + ".notes"), "ab", 0) as notes:
    notes.write(b"%d\\n" % os.getpid())
    for batch in feed.open("input"):
        valid = batch.valid("value")
        values = [value if valid is None or valid[i] else None for i, value in enumerate(batch["value"])]
        notes.write(json.dumps([value if value is None else int(value) for value in values]).encode() + b"\\n")
        del batch
        time.sleep(float(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with own_spark(VERSIONS[0]) as made:
        yield made


def processes(*words: str) -> list[int]:
    """Return the processes whose command lines have all of these in them."""
    known = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if all(word in line for word in words):
            known.append(int(entry))
    return known


class Application:
    """An application whose driver does `how`. `python`: of its executors; "": Spark's."""

    def __init__(self, cluster: Cluster, folder: Path, how: str, python: str, properties: Mapping[str, str]) -> None:
        self.cluster, self.folder, self.is_over = cluster, folder, False
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", DRIVER, str(cluster.home.folder.parent), json.dumps(dict(properties)), str(folder), READS,
             textwrap.dedent(how), str(cluster.home.python)],
            env={**os.environ, **cluster.environ, "PYSPARK_DRIVER_PYTHON": sys.executable,
                 "PYSPARK_PYTHON": python or str(cluster.home.python)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=(folder / "driver.log").open("wb"), text=True,
        )  # fmt: skip

    def told(self) -> Any:
        """Return the next line of its driver."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "driver.log").read_text()[-6000:]
        answer = json.loads(line)
        self.is_over = "last" in answer
        return answer

    def notes(self, job: str) -> dict[str, list[str]]:
        """Return what the attempts of a job have noted, by index and attempt: their pid, and the values of each batch."""
        paths = sorted(self.folder.glob(f"{job}-*.notes"))
        return {path.stem.removeprefix(f"{job}-"): path.read_text().splitlines() for path in paths}

    def until_fed(self, job: str) -> int:
        """Wait until a program reads; return its process."""
        until(lambda: any(len(lines) > 3 for lines in self.notes(job).values()), LONG, what="a program reads")
        return int(next(iter(self.notes(job).values()))[0])

    def values(self, job: str) -> list[Any]:
        return [value for lines in self.notes(job).values() for line in lines[1:] for value in json.loads(line)]

    def executors(self) -> list[int]:
        """Return the JVMs of its executors."""
        return processes("CoarseGrainedExecutorBackend", str(self.cluster.folder))

    def driver(self) -> list[int]:
        """Return the JVM of its driver, which notices the end of its Python."""
        return processes("org.apache.spark.deploy.SparkSubmit", str(self.cluster.folder))

    def masters(self) -> list[int]:
        """Return the masters of its jobs."""
        return processes("trainmaster.master", str(self.folder))

    def left(self, job: str) -> list[str]:
        """Return what there still is of a job: processes, sockets of rings, directories, shared memory."""
        walk = os.walk(self.cluster.folder)  # which bears folders that are removed meanwhile
        sockets = [Path(folder, name) for folder, _, names in walk for name in names if name.endswith(".feed")]
        places = [*self.cluster.folder.glob(f"worker-*/*/*/trainmaster-{job}*"), *sockets]
        return [*in_containers(f"trainmaster-{job}-").values(), *map(str, places), *shared_memory()]


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Iterator[Any]:
    begun: list[Application] = []

    def begin(how: str, python: str = "", **properties: str) -> Application:
        named = {f"spark.{name}": value for name, value in properties.items()}
        begun.append(Application(cluster, tmp_path, how, python, named))
        return begun[-1]

    yield begin
    for application in begun:
        if application.is_over:
            application.process.wait(LONG)
        application.process.kill()
        application.process.wait()
        until(lambda application=application: not application.executors(), LONG, what="its executors end")
        until(lambda application=application: not application.driver(), LONG, what="its driver's JVM ends")
        until(lambda application=application: not application.masters(), LONG, what="the masters of its jobs end")


def test_feeders_on_another_host_reach_the_reader_by_a_stream(start: Any, cluster: Cluster, tmp_path: Path) -> None:
    # Executors are hosts of their own as far as their Python sees: over what a kernel calls itself lies a file of the executor's.
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f"""#!/bin/sh
        [ -e boot_id ] || cat /proc/sys/kernel/random/uuid > boot_id
        exec unshare --mount sh -ec 'mount --bind boot_id /proc/sys/kernel/random/boot_id; exec "$@"' sh {cluster.home.python} "$@"
        """
    )
    wrapper.chmod(0o755)
    how = """
        def seen(index, rows):
            with open("/proc/sys/kernel/random/boot_id") as host, open(os.path.join(folder, f"{index}.host"), "w") as note:
                note.write(host.read())
            yield from rows
        run = begin(pace=0.02)
        with Feed(session, run) as feed:
            feed.put(numbered(3000, 6, 5000).mapPartitionsWithIndex(seen), rows=20)
        tell(job=run.id, state=run.wait(200, check=False)["state"], faults=faults(run))
    """
    application = start(how, str(wrapper))
    end = application.told()
    assert (end["state"], end["faults"]) == ("succeeded", [])
    assert sorted(application.values(end["job"])) == list(range(3000))
    assert len({path.read_text() for path in tmp_path.glob("*.host")}) == 2, (
        "both executors fed, of which one has the reader"
    )
    assert application.told() == {"last": True}


@pytest.mark.parametrize("lost", ["feeder", "reader", "node"])
def test_a_lost_executor_costs_no_row(start: Any, cluster: Cluster, lost: str) -> None:
    how = """
        run = begin(pace=0.02)
        tell(job=run.id)
        with Feed(session, run) as feed:
            feed.put(numbered(6000, 6, 5000), rows=20)
        tell(state=run.wait(200, check=False)["state"], faults=faults(run))
    """
    application = start(how)
    job = application.told()["job"]
    reader = executor_of(application.until_fed(job))
    if lost == "node":
        [name] = [name for name in ("worker-1", "worker-2") if name in os.readlink(f"/proc/{reader}/cwd")]
        cluster.daemon(name).kill()
    else:
        [other] = [pid for pid in application.executors() if pid != reader]
        os.kill(reader if lost == "reader" else other, signal.SIGKILL)
    try:
        end = application.told()
    finally:
        if lost == "node":
            cluster.revive()
    assert end == {"state": "succeeded", "faults": []}
    counts = Counter(application.values(job))
    assert counts.keys() == set(range(6000))
    repeated = sum(count > 1 for count in counts.values())
    # What the last reports before its death did not say is read again: at most what the ring had, and what was on its way.
    assert repeated <= (0 if lost == "feeder" else 1000)
    assert application.told() == {"last": True}
    until(lambda: not application.left(job), LONG, what=lambda: application.left(job))


@pytest.mark.parametrize("end", ["stop", "kill", "interrupt"])
def test_nothing_is_left_where_the_driver_ends_in_the_middle(start: Any, end: str) -> None:
    how = """
        run = begin(2, pace=0.05)
        tell(job=run.id)
        def stop():
            while not os.path.exists(os.path.join(folder, "go")):
                time.sleep(0.05)
            session.stop()
        threading.Thread(target=stop, daemon=True).start()
        try:
            with Feed(session, run) as feed:
                feed.put(numbered(100_000, 8, 5000), rows=20)
            tell(error="")
        except Exception as error:
            tell(error=f"{type(error).__name__}: {error}"[:2000])
        tell(state=run.wait(100, check=False)["state"])
    """
    application = start(how)
    job = application.told()["job"]
    application.until_fed(job)
    if end == "stop":
        (application.folder / "go").touch()
        error = application.told()["error"]
        assert "JobFailed" in error, error
        assert "its SparkContext was stopped" in error, error
        assert application.told() == {"state": "killed"}
    else:
        application.process.send_signal(signal.SIGKILL if end == "kill" else signal.SIGINT)
    application.process.wait(LONG)
    until(lambda: not application.left(job), LONG, what=lambda: application.left(job))
    until(lambda: not application.executors(), LONG, what="the executors end")


@pytest.mark.parametrize("tries", [1, 4])
def test_a_feeder_that_raises_is_the_drivers_error_and_the_next_run_works(start: Any, tries: int) -> None:
    how = """
        def bad(number):
            if number == 70:
                with open(os.path.join(folder, "tries"), "ab", 0) as notes:
                    notes.write(b"x")
                raise ValueError("row 70 is bad")
            return number
        run = begin()
        try:
            with Feed(session, run) as feed:
                feed.put(context.parallelize(range(100), 2).map(bad), rows=10)
            tell(error="")
        except Exception as error:
            tell(error=str(error))
        run.kill()
        run.wait(100, check=False)
        tell(error=case(context.parallelize([1.5, 2, 3.5, "4"], 2))["error"])
        run = begin()
        with Feed(session, run) as feed:
            feed.put(context.parallelize(range(100), 2), rows=10)
        tell(job=run.id, state=run.wait(200, check=False)["state"])
    """
    application = start(how, **{"task.maxFailures": str(tries)})
    assert "ValueError: row 70 is bad" in application.told()["error"]
    refused = application.told()["error"]
    assert refused.startswith("BadInput: partition 1, row 1, column 'value': expected a number, found text")
    end = application.told()
    assert (application.folder / "tries").read_text() == "x" * tries
    assert end["state"] == "succeeded"
    assert sorted(application.values(end["job"])) == list(range(100))
    assert application.told() == {"last": True}


def test_speculation_over_feeders_puts_no_row_twice(start: Any) -> None:
    how = """
        def slow(index, rows):
            first, second = os.path.join(folder, "first"), os.path.join(folder, "second")
            is_second = index == 0 and os.path.exists(first)
            if index == 0:
                open(second if is_second else first, "w").close()
            for number in rows:
                if index == 0 and number == 500:
                    while not os.path.exists(second):
                        time.sleep(0.05)
                yield number
        run = begin()
        with Feed(session, run) as feed:
            feed.put(context.parallelize(range(6000), 6).mapPartitionsWithIndex(slow), rows=10)
        tell(job=run.id, state=run.wait(200, check=False)["state"], faults=faults(run))
    """
    properties = {
        "speculation": "true", "speculation.interval": "100ms", "speculation.minTaskRuntime": "100ms", "speculation.quantile": "0.5",
        "speculation.multiplier": "1.1",
    }  # fmt: skip
    application = start(how, **properties)
    end = application.told()
    assert (end["state"], end["faults"]) == ("succeeded", [])
    assert (application.folder / "second").exists(), "Spark began a second try"
    assert sorted(application.values(end["job"])) == list(range(6000))
    assert application.told() == {"last": True}


def test_odd_data_and_several_feeds_in_one_application(start: Any) -> None:
    how = """
        tell(**case(context.parallelize([], 3)))
        tell(**case(context.emptyRDD()))
        tell(**case(context.parallelize(range(5), 12)))
        tell(**case(context.parallelize([{"value": None if n % 3 else n} for n in range(9)], 2)))
        tell(**case(numbered(1, 1, 200_000)))
        answers = [None, None]
        def beside(index):
            answers[index] = case(context.parallelize(range(index * 1000, index * 1000 + 900), 3))
        threads = [threading.Thread(target=beside, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tell(beside=answers)
    """
    application = start(how)
    for rows in ([], [], list(range(5)), [0, None, None, 3, None, None, 6, None, None], [0]):
        case = application.told()
        assert (case["state"], case["error"]) == ("succeeded", "")
        assert sorted(application.values(case["job"]), key=str) == sorted(rows, key=str)
    for index, case in enumerate(application.told()["beside"]):
        assert (case["state"], case["error"]) == ("succeeded", "")
        assert sorted(application.values(case["job"])) == list(range(index * 1000, index * 1000 + 900))
    assert application.told() == {"last": True}


def test_a_row_or_a_ring_that_is_too_large_is_named(start: Any) -> None:
    how = """
        tell(**case(numbered(1, 1, 2_000_000)))
        tell(**case(numbered(1, 1), memory="900TiB", restart={"scope": "never"}))
    """
    application = start(how)
    large = application.told()["error"]
    assert "a row has 2,000,208 bytes" in large, large
    assert "a third of the feed's ring of 1,048,576: make the ring larger" in large
    no_room = application.told()
    assert no_room["state"] == "failed", no_room
    assert "JobFailed" in no_room["error"]
    assert "the feed's ring needs 989,560,464,998,400 bytes of shared memory" in no_room["error"]
    assert application.told() == {"last": True}
