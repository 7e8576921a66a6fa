"""Functions of nodes without Spark: with rows from queues, and in a cluster that a program forms by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.spark import alias, compat, reservation
from trainmaster.spark.nodes import TFManager, TFSparkNode, job
from trainmaster.spark.nodes.TFSparkNode import TFNodeContext


@pytest.fixture
def queues() -> Any:
    manager = TFManager.start(b"a key", ["input", "output"])
    yield manager
    manager.shutdown()


def put(manager: Any, *rows: Any) -> None:
    for row in rows:
        manager.get_queue("input").put(row)


def taken(manager: Any) -> list[Any]:
    queue = manager.get_queue("output")
    return [queue.get() for _ in range(queue.qsize())]


def test_a_function_reads_rows_from_a_queue(queues: Any) -> None:
    put(queues, *range(10), None)
    feed = TFNodeContext(mgr=queues).get_data_feed()
    assert [feed.next_batch(2), feed.next_batch(4)] == [[0, 1], [2, 3, 4, 5]]
    assert not feed.should_stop()
    assert feed.next_batch(10) == [6, 7, 8, 9]
    assert feed.should_stop()


def test_a_batch_of_inference_ends_at_the_mark_of_a_partition(queues: Any) -> None:
    put(queues, (1, "a"), (2, "b"), (3, "c"), TFManager.EndPartition(), (4, "d"), None)
    feed = TFNodeContext(mgr=queues).get_data_feed(False, input_mapping={"n": "number", "t": "text"})
    read = []
    while not feed.should_stop():
        batch = feed.next_batch(2)
        read.append(batch["text"])
        feed.batch_results(10 * number for number in batch["number"])
    assert read == [["a", "b"], ["c"], ["d"]]
    assert taken(queues) == [10, 20, 30, 40]


def test_a_manager_is_reached_by_its_address_and_key(queues: Any) -> None:
    put(queues, "row")
    queues.set("state", "running")
    other: Any = TFManager.connect(queues.address, b"a key")
    assert (other.get_queue("input").get(), str(other.get("state"))) == ("row", "'running'")
    assert str(other.get_queue("nothing")) == "None"
    with pytest.raises(ValueError, match="mode is 'remote': it does not exist here"):
        TFManager.start(b"a key", [], "remote")


def test_nodes_form_a_cluster_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    monkeypatch.setenv(reservation.TFOS_SERVER_HOST, "127.0.0.1")
    server = reservation.Server(2)
    meta = {
        "cluster_template": {"chief": [0], "worker": [1]}, "server_addr": server.start(), "default_fs": "file://", "working_dir": "/w",
    }  # fmt: skip
    seen: dict[int, Any] = {}

    def function(args: Any, ctx: TFNodeContext) -> None:
        facts = (args.lr, ctx.job_name, ctx.task_index, ctx.num_workers, ctx.absolute_path("x"), ctx.tmp_socket)
        seen[ctx.executor_id] = ctx.cluster_spec, facts

    node = TFSparkNode.run(function, SimpleNamespace(lr=0.1), meta, False, None, ["input", "output"], False)
    try:
        with ThreadPoolExecutor() as pool:
            assert list(pool.map(node, ([0], [1]))) == [None, None]
    finally:
        server.stop()
    assert seen[0][1] == (0.1, "chief", 0, 2, "file:///w/x", None)
    assert seen[1][1] == (0.1, "worker", 0, 2, "file:///w/x", None)
    assert seen[0][0] == seen[1][0] == json.loads(os.environ["TF_CONFIG"])["cluster"]
    with pytest.raises(ValueError, match="has neither tensorboard nor background"):
        TFSparkNode.run(function, None, meta, True, None, [], False)


def test_a_node_has_all_modules_of_the_alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function may come from a module that imports whatever its driver uses."""
    whole = Path(job.__file__).parents[2]
    carried: Any = job.FunctionJob(SimpleNamespace(_jsc=None), "x", b"", {"worker": 1})
    monkeypatch.setattr(job, "default_file_system", lambda context: "file://")
    carried.write(tmp_path / job.FOLDER)
    (tmp_path / "runtime" / "trainmaster").mkdir(parents=True)
    (tmp_path / "runtime" / "trainmaster" / "runtime").symlink_to(whole / "runtime")  # an agent brings it
    names = [*(name.partition(".")[2] for name in alias.MODULES), "util"]
    assert {"TFCluster", "TFManager", "dfutil", "pipeline", "util"} <= set(names)
    pyspark = next(Path(sys.prefix).glob("spark-3*/lib/python3*/site-packages"), None)
    if pyspark is None:
        names = [name for name in names if name not in ("dfutil", "pipeline")]  # only these two need pyspark
    path = [
        tmp_path / job.FOLDER / "trainmaster/spark/alias",
        tmp_path / job.FOLDER,
        tmp_path / "runtime",
        *filter(None, [pyspark]),
    ]
    program = f"import sys; sys.path += {list(map(str, path))}; from tensorflowonspark import {', '.join(names)}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Keras2:
    """A model as Keras 2.15 has it: `export` gives a signature of other names than `save`."""

    def save(self, filepath: str, save_format: str = "") -> None:
        Path(filepath).write_text(save_format)

    def export(self, filepath: str) -> None:
        raise AssertionError


class Keras3:
    def save(self, filepath: str, zipped: bool = True) -> None:
        raise AssertionError

    def export(self, filepath: str) -> None:
        Path(filepath).write_text("exported")


@pytest.mark.parametrize(("model", "content"), [(Keras2(), "tf"), (Keras3(), "exported")])
def test_each_keras_exports_a_saved_model(
    model: Any, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace())
    compat.export_saved_model(model, str(tmp_path / "model"), is_chief=True)
    assert (tmp_path / "model").read_text() == content


@pytest.mark.parametrize("waiting", ["", "worker: 1 x 1 core"])
def test_a_barrier_waits_for_slots_alone(waiting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine may take longer to begin what has its slot."""
    monkeypatch.setattr(job, "NOTICE", 0.01)
    started: Any = job.FunctionJob(None, "x", b"", {"worker": 1})

    def status() -> dict[str, str]:
        if not waiting:
            started._take({"type": "started", "task": "worker:0"})
        return {"waiting": waiting}

    started._run = SimpleNamespace(status=status, id="x")
    if not waiting:
        started.await_start(0.0, only_slots=True)
    else:
        with pytest.raises(TimeoutError, match="what waits: worker: 1 x 1 core"):
            started.await_start(0.0, only_slots=True)


def test_the_alias_shows_messages_of_programs_and_not_those_of_py4j() -> None:
    program = """
        import logging, tensorflowonspark
        logging.info("of the program")
        exec(compile("logging.info('of py4j')", "/x/py4j/java_gateway.py", "exec"))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(alias.__file__).parent)},
    )  # fmt: skip
    assert "of the program" in done.stderr
    assert "of py4j" not in done.stderr
