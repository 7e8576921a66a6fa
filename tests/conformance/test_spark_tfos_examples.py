"""The examples for TensorFlowOnSpark's users on a real Spark.

TensorFlow is where the tests are: there the programs of executors run, too.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conformance.test_spark_tfcluster import LIMIT, drive
from placing import EXAMPLES, free_port
from spark import VERSIONS

pytestmark = pytest.mark.xdist_group("spark")
HERE = EXAMPLES / "digits-tensorflowonspark"

RUN = """
import io, runpy
from contextlib import redirect_stdout
import trainmaster

examples, digits = sys.argv[3:5]

def run_example(name, *arguments):
    sys.argv = [os.path.join(examples, name), *arguments]
    with redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(sys.argv[0], run_name="__main__")
    return printed.getvalue()
"""
END = """
sc = SparkContext._active_spark_context
"""
READ_BY_NODES = """
run_example("mnist_tf.py", "--cluster_size", "2", "--epochs", "8", "--data_dir", digits, "--export_dir", os.path.join(place, "export"))
[job] = trainmaster.jobs()
out["lines"] = list(trainmaster.logs(job["id"]))
"""
FED = """
os.environ["PYSPARK_SUBMIT_ARGS"] = "--conf spark.executor.cores=2 --conf spark.cores.max=4 pyspark-shell"
out["printed"] = run_example("mnist_spark.py", "--cluster_size", "2", "--epochs", "8", "--data_dir", digits, "--model_dir", place)
"""
# Files come until enough digits were read; then another program stops the stream.
STREAMED = """
import shutil, subprocess
os.environ["PYSPARK_SUBMIT_ARGS"] = "--conf spark.executor.cores=2 --conf spark.cores.max=4 pyspark-shell"
stream, stopped = os.path.join(place, "stream"), []
os.mkdir(stream)

def add_digits():
    from pyspark.streaming import StreamingContext
    try:
        while StreamingContext.getActive() is None:
            time.sleep(0.1)
        [job] = trainmaster.jobs()
        run, copied, parts = trainmaster.attach(job["id"]), 0, sorted(os.listdir(os.path.join(digits, "train")))
        def rows():
            return sum({event["task"]: event["rows"] for event in run.events() if event["type"] == "feed-read"}.values())
        while rows() < 2000:
            draft = os.path.join(place, "draft.csv")
            shutil.copyfile(os.path.join(digits, "train", parts[copied % len(parts)]), draft)
            os.rename(draft, os.path.join(stream, f"{copied}.csv"))
            copied += 1
            time.sleep(0.5)
        stop = os.path.join(examples, "stop_streaming.py")
        stopped.append(subprocess.run([sys.executable, "-I", stop, "127.0.0.1", os.environ["TFOS_SERVER_PORT"]]).returncode)
    except BaseException as error:
        stopped.append(repr(error))
        trainmaster.attach(trainmaster.jobs()[0]["id"]).kill()

user = threading.Thread(target=add_digits, daemon=True)
user.start()
arguments = ["--cluster_size", "2", "--batch_interval", "1", "--stream_dir", stream, "--model_dir", place]
out["printed"] = run_example("mnist_streaming.py", *arguments)
user.join()
out["stopped"] = stopped
[job] = trainmaster.jobs()
out["state"], out["lines"] = job["state"], list(trainmaster.logs(job["id"]))
"""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, EXAMPLES / "digits" / "data.py", place], check=True, timeout=LIMIT)
    return place


def found(program: str, digits: Path, place: Path, **environ: str) -> dict[str, Any]:
    return drive(
        VERSIONS[0], RUN + program + END, place, str(HERE), str(digits), PYSPARK_PYTHON=sys.executable, **environ
    )


@pytest.mark.full
def test_nodes_that_read_the_digits_train(digits: Path, tmp_path: Path) -> None:
    lines = found(READ_BY_NODES, digits, tmp_path)["lines"]
    accuracy = {line.split()[0]: float(line.split()[3]) for line in lines if "held-out" in line}
    assert accuracy.keys() == {"chief:0", "worker:0"}
    assert min(accuracy.values()) > 0.9, lines
    assert (tmp_path / "export" / "saved_model.pb").exists()


@pytest.mark.full
def test_nodes_that_are_fed_train_and_read_held_out_digits(digits: Path, tmp_path: Path) -> None:
    printed = found(FED, digits, tmp_path)["printed"]
    assert float(printed.splitlines()[-1].split()[0]) > 0.9, printed


@pytest.mark.full
def test_a_stream_trains_until_it_is_stopped_from_outside(digits: Path, tmp_path: Path) -> None:
    out = found(STREAMED, digits, tmp_path, TFOS_SERVER_PORT=str(free_port()))
    assert out["stopped"] == [0]
    assert out["state"] == "succeeded", out["lines"]
    assert sum("made" in line and "steps" in line for line in out["lines"]) == 2, out["lines"]
    assert (tmp_path / "digits.keras").exists()
