"""TensorFlowOnSpark's pipeline on a real Spark, whose executors have TensorFlow and nothing of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from spark import VERSIONS, own_spark

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.full]
LIMIT = 900.0  # s of a driver, which only a failure reaches

# The driver's Python has Trainmaster and TensorFlow, and pyspark from the directory in its first argument; the second one is for files.
BEGIN = """
import json, os, sys
sys.path.append(sys.argv[1])
place = sys.argv[2]
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
from argparse import Namespace as Arguments
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import *
from trainmaster.spark import dfutil, pipeline
from trainmaster.spark.pipeline import *

builder = SparkSession.builder.config("spark.executor.cores", "2").config("spark.cores.max", "4").config("spark.driver.memory", "512m")
spark = builder.config("spark.executor.memory", "512m").getOrCreate()
sc = spark.sparkContext

def error_of(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

out = {}
"""
END = """
print(json.dumps(out))
spark.stop()
"""

TRANSFORM = """
import tensorflow as tf

class Scorer(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 2, 2], tf.float32, "image"), tf.TensorSpec([None], tf.string, "name")])
    def score(self, image, name):
        with open(place + "/calls", "a") as file:
            file.write("traced\\n")
        total = tf.reduce_sum(image, [1, 2])
        return {"total": total, "pair": tf.stack([total, -total], 1), "size": tf.strings.length(name), "name": name + "!"}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "x")])
    def odd(self, x):
        return {"y": x[:1], "ok": x % 2 == 1}

model = Scorer()
export = place + "/model"
tf.saved_model.save(model, export, {"serving_default": model.score, "odd": model.odd})

rows = [Row(image=[float(n), 1.0, 2.0, 3.0], label=n, name="n" * (n % 4)) for n in range(250)]
df = spark.createDataFrame(sc.parallelize(rows, 3))
args = Arguments(colour="red", batch_size=7)
mapping = {"image": "image", "name": "name"}
scorer = TFModel(args).setInputMapping(mapping).setExportDir(export).setBatchSize(32).setTagSet("serve")
scorer.setOutputMapping({"total": "sum", "pair": "both", "size": "length", "name": "shout"})
result = scorer.transform(df)
out["schema"] = result.dtypes
out["rows"] = [[r["sum"], r["both"], r["length"], bytes(r["shout"]).decode()] for r in result.collect()]
out["columns"] = result.columns
odd = TFModel({}).setInputMapping({"label": "x"}).setOutputMapping({"ok": "is_odd"}).setExportDir(export).setSignatureDefKey("odd")
out["odd"] = [r["is_odd"] for r in odd.transform(df).collect()]
out["empty"] = odd.transform(df.where("label < 0")).collect()
out["errors"] = [
    error_of(TFModel({}).setInputMapping(mapping).setOutputMapping({"total": "t"}).transform, df),
    error_of(TFModel({}).setInputMapping(mapping).setExportDir(export).transform, df),
    error_of(odd.copy().setSignatureDefKey("even").transform, df),
    error_of(odd.copy().setInputMapping({"label": "z"}).transform, df),
    error_of(odd.copy().setOutputMapping({"nay": "z"}).transform, df),
    error_of(odd.copy().setOutputMapping({"y": "y"}).transform(df).collect),
    error_of(odd.copy().setInputMapping, [1]),
    error_of(Namespace, 5),
    error_of(TFEstimator(print, {}).fit, df),
    error_of(TFEstimator(print, {}).setInputMapping({"label": "x"}).setInputMode(0).fit, df),
]

from pyspark.ml import Pipeline, PipelineModel
PipelineModel([scorer]).write().overwrite().save("file://" + place + "/saved")
loaded = PipelineModel.load("file://" + place + "/saved")
out["loaded"] = sorted(loaded.transform(df).columns) == sorted(result.columns) and loaded.stages[0].args.colour

estimator = TFEstimator(lambda args, ctx: args, args).setInputMapping(mapping).setSteps(5).setNumPS(1).setDriverPSNodes(True)
Pipeline(stages=[estimator]).write().overwrite().save("file://" + place + "/estimator")
[copy] = Pipeline.load("file://" + place + "/estimator").getStages()
out["estimator"] = [copy.getSteps(), copy.getNumPS(), copy.getDriverPSNodes(), copy.getInputMapping() == mapping, copy.uid == estimator.uid]
merged = copy.train_fn(copy.merge_args_params(), None)
out["merged"] = [merged.colour, merged.steps, merged.batch_size, merged.cluster_size, merged.master_node, merged.grace_secs, merged.epochs]
other = TFEstimator(print, ["--steps", "3"])
out["argv"] = [list(other.args), other.args == ["--steps", "3"], "colour" in copy.args, repr(Namespace({"a": 1}))]
setters = [name for name in dir(TFEstimator) + dir(TFModel) if name.startswith("set") and name[3:4].isupper()]
out["setters"] = sorted({name[3:] for name in setters} - {"Params", "Parent"})
"""

FIT = """
def train(args, ctx):
    import os
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import numpy as np
    import tensorflow as tf
    from trainmaster.spark import TFNode
    if args.input_mode == 1:
        feed = TFNode.DataFeed(ctx.mgr, input_mapping=args.input_mapping)
        parts = []
        while not feed.should_stop():
            batch = feed.next_batch(args.batch_size)
            if batch["x"]:
                parts.append((np.stack(batch["x"]), np.stack(batch["y"])))
        x, y = (np.concatenate(part) for part in zip(*parts))
    else:
        files = sorted(tf.io.gfile.glob(args.tfrecord_dir + "/part-*"))
        features = {"x": tf.io.FixedLenFeature([2], tf.float32), "y": tf.io.FixedLenFeature([1], tf.float32)}
        examples = [tf.io.parse_single_example(record, features) for record in tf.data.TFRecordDataset(files)]
        x, y = (np.array([example[name] for example in examples]) for name in "xy")
    weights = np.linalg.lstsq(x, y, rcond=None)[0]
    class Line(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")])
        def apply(self, x):
            return {"y": tf.matmul(x, tf.constant(weights, tf.float32))}
    line = Line()
    with open(f"{args.place}/{args.name}-{ctx.executor_id}", "w") as file:
        file.write(f"{ctx.job_name} {len(x)}")
    if ctx.job_name == "chief":
        tf.saved_model.save(line, args.export_dir, {"serving_default": line.apply})

rows = [Row(x=[float(n % 7), float(n % 5)], y=[3.0 * (n % 7) + 2.0 * (n % 5)], other="no") for n in range(400)]
df = spark.createDataFrame(sc.parallelize(rows, 4))

def fitted(name, mode, df, **params):
    def export(args):
        open(f"{args.place}/{args.name}-end", "w").close()
    estimator = TFEstimator(train, {"place": place, "name": name}, export_fn=export)
    estimator.setInputMapping({"x": "x", "y": "y"}).setInputMode(mode).setExportDir(place + "/" + name).setClusterSize(2)
    model = estimator._set(**params).fit(df)
    result = model.setInputMapping({"x": "x"}).setOutputMapping({"y": "z"}).transform(df)
    facts = [open(f"{place}/{name}-{number}").read() for number in range(2)] + [os.path.exists(f"{place}/{name}-end")]
    return [max(abs(r["z"][0] - y["y"][0]) for r, y in zip(result.collect(), rows)), *facts]

out["records"] = fitted("records", 0, df, tfrecord_dir="file://" + place + "/tfr")
rows = dfutil.loadTFRecords(sc, "file://" + place + "/tfr").withColumnRenamed("y", "z").collect()
rows = [Row(x=row["x"], y=[row["z"]]) for row in rows]
out["loaded"] = fitted("loaded", 0, dfutil.loadTFRecords(sc, "file://" + place + "/tfr"))
rows = df.collect()
out["fed"] = fitted("fed", 1, df, epochs=2)
"""


def drive(version: str, program: str, place: Path, *arguments: str) -> dict[str, Any]:
    """Run a driver's program in an application of its own, whose executors have TensorFlow, and return what it found."""
    state = place / "state"
    state.mkdir()
    with own_spark(version) as cluster:
        done = subprocess.run(
            [sys.executable, "-I", "-c", BEGIN + program + END, str(cluster.home.folder.parent), str(place), *arguments], cwd=place,
            env={**os.environ, **cluster.environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": sys.executable,
                 "TRAINMASTER_STATE_DIR": str(state)},
            capture_output=True, text=True, check=False, timeout=LIMIT,
        )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_a_model_transforms_and_is_saved(version: str, tmp_path: Path) -> None:
    out = drive(version, TRANSFORM, tmp_path)
    assert out["schema"] == [["shout", "binary"], ["both", "array<double>"], ["length", "bigint"], ["sum", "double"]]
    assert out["rows"] == [[n + 6.0, [n + 6.0, -n - 6.0], n % 4, "n" * (n % 4) + "!"] for n in range(250)]
    assert out["odd"] == [n % 2 == 1 for n in range(250)]
    assert out["empty"] == []
    assert (tmp_path / "calls").read_text() == "traced\n", "executors run the model, and trace nothing"
    words = [
        "BadInput: transform needs export_dir", "BadInput: transform needs output_mapping", "has no 'even'; it has odd, serving_default",
        "has no 'z'; it has x", "has no 'nay'; it has ok, y", "output y has 1 rows for", "Could not convert [1] to dict",
        "TypeError: Unsupported",
        "BadInput: fit needs input_mapping", "BadInput: fit needs tfrecord_dir",
    ]  # fmt: skip
    for error, part in zip(out["errors"], words, strict=True):
        assert part in error
    assert out["loaded"] == "red"
    assert out["estimator"] == [5, 1, True, True, True]
    assert out["merged"] == ["red", 5, 100, 1, "chief", 30, 1]
    assert out["argv"] == [["--steps", "3"], True, True, "Namespace(a=1)"]
    assert out["setters"] == sorted(
        [
            "BatchSize",
            "ClusterSize",
            "DriverPSNodes",
            "Epochs",
            "ExportDir",
            "GraceSecs",
            "InputMapping",
            "InputMode",
            "MasterNode",
            "ModelDir",
            "NumPS",
            "OutputMapping",
            "Protocol",
            "Readers",
            "SignatureDefKey",
            "Steps",
            "TFRecordDir",
            "TagSet",
            "Tensorboard",
        ]
    )


def test_an_estimator_fits_in_each_mode(tmp_path: Path) -> None:
    out = drive(VERSIONS[0], FIT, tmp_path)
    for mode in ("records", "loaded"):
        error, chief, worker, is_exported = out[mode]
        assert error < 1e-3
        assert (chief, worker, is_exported) == ("chief 400", "worker 400", True)
    error, chief, worker, is_exported = out["fed"]
    assert error < 1e-3
    assert (chief.split()[0], worker.split()[0], is_exported) == ("chief", "worker", True)
    assert 700 <= int(chief.split()[1]) + int(worker.split()[1]) <= 800, "two epochs, but for a rest"
