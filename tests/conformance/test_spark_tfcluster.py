"""TFCluster and TFParallel on a real Spark, whose executors have nothing of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from spark import VERSIONS, own_spark

pytestmark = pytest.mark.xdist_group("spark")
LIMIT = 900.0  # s of a driver, which only a failure reaches

# The driver's Python has Trainmaster, and pyspark from the directory in its first argument; the second one is a directory for files.
BEGIN = """
import faulthandler
faulthandler.dump_traceback_later(840, exit=True)  # one that hangs says where, and ends before LIMIT
import json, os, signal, sys, threading, time
sys.path.append(sys.argv[1])
place = sys.argv[2]
from pyspark import SparkConf, SparkContext
from trainmaster.spark import TFCluster, TFNode, TFParallel

def error_of(call, *arguments, **options):
    began = time.time()
    try:
        call(*arguments, **options)
    except Exception as error:
        return {"type": type(error).__name__, "words": str(error), "raised": time.time(), "took": time.time() - began}

def read(name):
    with open(os.path.join(place, name)) as file:
        return json.load(file)

def await_file(name):
    while not os.path.exists(os.path.join(place, name)):
        time.sleep(0.05)

out = {}
"""
CONTEXT = """
conf = SparkConf().set("spark.executor.cores", "2").set("spark.cores.max", "4")
sc = SparkContext(conf=conf.set("spark.executor.memory", "512m").set("spark.driver.memory", "512m"))
"""
END = """
print(json.dumps(out))
sc.stop()
"""

NODES = """
def main_fun(args, ctx):
    import importlib.util, json, os, socket, sys, time
    port = int(os.environ.get("TRAINMASTER_PORT_TENSORFLOW", 0))
    def is_free():
        with socket.socket() as trial:
            try:
                trial.bind(("", port))
            except OSError:
                return False
            return True
    held = port and not is_free()
    ctx.release_port()
    facts = {
        "id": ctx.executor_id, "job": ctx.job_name, "index": ctx.task_index, "workers": ctx.num_workers, "cluster": ctx.cluster_spec,
        "config": json.loads(os.environ["TF_CONFIG"]), "argv": sys.argv, "path": ctx.absolute_path("x"), "cwd": os.getcwd(),
        "held": held, "free": port and is_free(), "pid": os.getpid(), "attrs": importlib.util.find_spec("attrs") is not None,
    }
    draft = os.path.join(args[0], f"draft-{args[1]}-{ctx.executor_id}")
    with open(draft, "w") as file:
        json.dump(facts, file)
    os.rename(draft, os.path.join(args[0], f"{args[1]}-{ctx.executor_id}"))
    while ctx.job_name in ("ps", "evaluator"):
        time.sleep(1)
    for node in args[2:]:  # the job ends with its workers, and would stop these nodes before they have written
        while not os.path.exists(os.path.join(args[0], f"{args[1]}-{node}")):
            time.sleep(0.05)

cluster = TFCluster.run(sc, main_fun, [place, "a", 0, 2], 4, 1, master_node="chief", eval_node=True, release_port=False)
out["url"], out["info"] = cluster.tensorboard_url(), cluster.cluster_info
cluster.shutdown(timeout=-1)
out["nodes"] = [read(f"a-{number}") for number in range(4)]
out["alive"] = [node["job"] for node in out["nodes"] if os.path.exists(f"/proc/{node['pid']}")]

clusters = [TFCluster.run(sc, main_fun, [place, name], 2, 0) for name in "bc"]  # both at once
for cluster in clusters:
    cluster.shutdown()
out["both"] = [read(f"{name}-{number}")["cluster"]["worker"] for name in "bc" for number in range(2)]

cluster = TFCluster.run(sc, main_fun, [place, "d", 0], 2, 1, driver_ps_nodes=True)
cluster.shutdown()
out["with driver"] = [read(f"d-{number}") for number in range(2)]
def is_over():
    return not os.path.exists(f"/proc/{out['with driver'][0]['pid']}")
for _ in range(600):
    if is_over():
        break
    time.sleep(0.1)
out["server ended"] = is_over()

def instance(args, ctx):
    with open(os.path.join(args, f"instance-{ctx.executor_id}"), "w") as file:
        file.write(str(ctx.num_workers))

TFParallel.run(sc, instance, place, 3)
TFParallel.run(sc, instance, place, 6, use_barrier=False)  # more than there are slots
out["instances"] = [read(f"instance-{number}") for number in range(6)]
"""

FAILURES = """
def fails(args, ctx):
    import time
    if ctx.task_index == 1:
        time.sleep(1)
        raise RuntimeError(f"no such digit, at {time.time()}")
    time.sleep(1000)

def passes(args, ctx):
    pass

def run(function, arguments, count, servers=0, **options):
    TFCluster.run(sc, function, arguments, count, servers, **options).shutdown(timeout=400)

jobs = lambda: len(os.listdir(os.path.join(os.environ["TRAINMASTER_STATE_DIR"], "jobs")))
out["numbers"] = [error_of(run, passes, None, 2, 2), error_of(run, passes, None, 2, 1, master_node="chief", eval_node=True)]
out["not pickled"] = [error_of(run, passes, threading.Lock(), 1), error_of(run, lambda args, ctx: sc.version, None, 1)]
out["mode"] = error_of(run, passes, None, 2, 1, input_mode=TFCluster.InputMode.SPARK, driver_ps_nodes=True)
out["jobs"] = os.path.exists(os.environ["TRAINMASTER_STATE_DIR"] + "/jobs") and jobs()
out["failed"] = error_of(run, fails, None, 2)
out["again"] = error_of(run, passes, None, 2)  # a second run after a failed one
out["parallel"] = error_of(TFParallel.run, sc, fails, None, 2)
out["too few"] = error_of(run, passes, None, 6, reservation_timeout=60)
out["barrier"] = error_of(TFParallel.run, sc, passes, None, 5)

def stays(args, ctx):
    import time
    time.sleep(1000)

cluster = TFCluster.run(sc, stays, None, 1, 0)
out["too long"] = error_of(cluster.shutdown, timeout=1)
def server_fails(args, ctx):
    import time
    if ctx.job_name == "ps":
        raise RuntimeError("no room for variables")
    time.sleep(1000)
out["server"] = error_of(run, server_fails, None, 2, 1, driver_ps_nodes=True)
def evaluator_fails(args, ctx):
    import time
    if ctx.job_name == "evaluator":
        raise RuntimeError("no held-out digits " + "that these nodes could find " * 100)
    time.sleep(1000)
out["evaluator"] = error_of(run, evaluator_fails, None, 2, eval_node=True)
"""

LOSS = """
sys.path.append(os.path.join(os.path.dirname(TFNode.__file__), "alias"))  # what `python -m trainmaster.spark.alias` prints
from tensorflowonspark import TFCluster

def main_fun(args, ctx):
    import json, os, socket, time
    from tensorflowonspark import TFNode
    assert TFNode.hdfs_path(ctx, "x") == ctx.absolute_path("x")
    attempt = os.environ["TRAINMASTER_ATTEMPT"]
    def write(**facts):
        name = os.path.join(args, f"{attempt}-{ctx.job_name}-{ctx.task_index}")
        with open(name + ".draft", "w") as file:
            json.dump({"pid": os.getpid(), "config": json.loads(os.environ["TF_CONFIG"])["cluster"], **facts}, file)
        os.rename(name + ".draft", name)
    if ctx.job_name == "ps":  # it tells those who come which attempt it is
        with socket.create_server(("", int(os.environ["TRAINMASTER_PORT_TENSORFLOW"]))) as server:
            write()
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.sendall(attempt.encode())
    host, port = json.loads(os.environ["TF_CONFIG"])["cluster"]["ps"][0].split(":")
    def ask():
        while True:
            try:
                with socket.create_connection((host, int(port))) as connection:
                    return connection.recv(8).decode()
            except ConnectionRefusedError:  # it is about to listen
                time.sleep(0.05)
    write(answer=ask())
    while not os.path.exists(os.path.join(args, "go")):
        time.sleep(0.05)

def jvm_of(pid):
    while True:
        with open(f"/proc/{pid}/stat") as file:
            name, _, rest = file.read().partition(" (")[2].rpartition(") ")
        if name == "java":
            return pid
        pid = int(rest.split()[1])

def nodes_of(attempt):
    names = [f"{attempt}-{name}" for name in ("ps-0", "chief-0", "worker-0")]
    for name in names:
        await_file(name)
    return [read(name) for name in names]

cluster = TFCluster.run(sc, main_fun, place, 3, 1, master_node="chief")
out["attempts"] = {}
for attempt, lost in {1: "ps-0", 2: "worker-0", 3: None}.items():
    nodes = nodes_of(attempt)
    out["attempts"][attempt] = nodes
    if lost:
        os.kill(jvm_of(read(f"{attempt}-{lost}")["pid"]), signal.SIGKILL)
open(os.path.join(place, "go"), "w").close()
cluster.shutdown()
"""


def drive(version: str, program: str, place: Path, *arguments: str, **environ: str) -> dict[str, Any]:
    """Run a driver's program in an application of its own, and return what it found."""
    state = place / "state"
    state.mkdir()
    with own_spark(version) as cluster:
        done = subprocess.run(
            [sys.executable, "-I", "-c", BEGIN + program + END, str(cluster.home.folder.parent), str(place), *arguments], cwd=place,
            env={**os.environ, **cluster.environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "TRAINMASTER_STATE_DIR": str(state), **environ},
            capture_output=True, text=True, check=False, timeout=LIMIT,
        )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[:3000]}\n{done.stderr[-6000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.full
@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_of_clusters(version: str, tmp_path: Path) -> None:
    out = drive(version, CONTEXT + NODES, tmp_path)
    nodes = out["nodes"]
    assert [(node["job"], node["index"]) for node in nodes] == [
        ("ps", 0),
        ("chief", 0),
        ("evaluator", 0),
        ("worker", 0),
    ]
    assert [node["id"] for node in nodes] == [0, 1, 2, 3]
    assert {node["workers"] for node in nodes} == {2}
    cluster = nodes[0]["cluster"]
    assert {role: len(addresses) for role, addresses in cluster.items()} == {"ps": 1, "chief": 1, "worker": 1}
    for node in nodes:
        told = node["config"]["cluster"]
        assert node["cluster"] == told
        assert len(told.pop("evaluator", ())) == (node["job"] == "evaluator"), (
            "MultiWorkerMirroredStrategy serves there"
        )
        assert (told, node["config"]["task"]) == (cluster, {"type": node["job"], "index": 0})
        assert node["argv"] == [str(tmp_path), "a", 0, 2]
        assert node["path"] == f"file://{tmp_path}/x", "relative paths begin at the driver's directory"
        assert node["cwd"] != str(tmp_path)
        assert node["held"] is node["free"] is True, "release_port=False"
        assert not node["attrs"], "executors have nothing of ours"
    in_cluster = [node for node in nodes if node["job"] != "evaluator"]
    assert [(node["executor_id"], node["job_name"], node["task_index"]) for node in out["info"]] == [
        (node["id"], node["job"], node["index"]) for node in in_cluster
    ]
    assert [[f"{node['host']}:{node['port']}"] for node in out["info"]] == [cluster[node["job"]] for node in in_cluster]
    assert out["url"] is None
    assert out["alive"] == []

    assert out["both"][0] == out["both"][1]
    assert len({*out["both"][0], *out["both"][2]}) == 4

    server, worker = out["with driver"]
    assert (server["job"], server["id"], worker["id"]) == ("ps", 0, 1)
    assert server["cluster"] == worker["cluster"]
    assert sorted(server["cluster"]) == ["ps", "worker"]
    assert server["held"] is worker["held"] is False
    assert out["server ended"]
    assert out["instances"] == [6] * 6


@pytest.mark.full
def test_failures_are_errors_of_the_driver(tmp_path: Path) -> None:
    check = "spark.scheduler.barrier.maxConcurrentTasksCheck"
    barrier = f"--conf {check}.interval=30s --conf {check}.maxFailures=2 pyspark-shell"
    out = drive(VERSIONS[0], CONTEXT + FAILURES, tmp_path, PYSPARK_SUBMIT_ARGS=barrier)
    for error in out["numbers"]:
        assert error["type"] == "BadInput"
        assert "at least one worker or master is needed" in error["words"]
    assert "tf_args cannot be pickled: TypeError" in out["not pickled"][0]["words"]
    assert "map_fun cannot be pickled" in out["not pickled"][1]["words"]
    assert "driver_ps_nodes needs functions that read their data" in out["mode"]["words"]
    assert not out["jobs"], "nothing was started"

    failed = out["failed"]
    assert failed["type"] == "JobFailed"
    assert "worker:1 exited with status 1" in failed["words"]
    assert "RuntimeError: no such digit" in failed["words"]
    happened = float(failed["words"].partition("no such digit, at ")[2].split()[0])
    assert failed["raised"] - happened < 200  # of 1,000 that the other one sleeps; 0.9 s on a loaded machine
    assert out["again"] is None
    assert "no such digit" in out["parallel"]["words"]

    assert out["too few"]["type"] == "TimeoutError"
    assert "timed out after 60 s, waiting for 6 nodes: " in out["too few"]["words"]
    assert "2 executors of the application have 4 cores" in out["too few"]["words"]
    assert "timed out after 60 s, waiting for 5 nodes: " in out["barrier"]["words"], (
        "as long as Spark's own barrier waits"
    )
    assert out["too long"]["type"] == "TimeoutError"
    assert "ps:0, on the driver's machine, exited with status 1" in out["server"]["words"]
    assert "evaluator:0 exited with status 1" in out["evaluator"]["words"]
    assert "RuntimeError: no held-out digits" in out["evaluator"]["words"]


@pytest.mark.full
def test_a_lost_executor_is_replaced(tmp_path: Path) -> None:
    """All that have its address begin anew with it, whether it was that of a parameter server or of a worker."""
    attempts = drive(VERSIONS[0], CONTEXT + LOSS, tmp_path)["attempts"]
    for attempt, nodes in attempts.items():
        assert [node["config"] for node in nodes] == [nodes[0]["config"]] * 3
        assert [node["answer"] for node in nodes[1:]] == [attempt] * 2, "they have met the server of their own cluster"
    assert len({node["pid"] for nodes in attempts.values() for node in nodes}) == 9
