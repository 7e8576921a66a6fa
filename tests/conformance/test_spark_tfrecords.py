"""DataFrames as TFRecord files on a real Spark, whose Python has nothing of ours on its executors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import spark
from spark import VERSIONS, own_spark

import trainmaster
from trainmaster.clusters.spark import Settings

pytestmark = pytest.mark.xdist_group("spark")
SOURCE = Path(trainmaster.__file__).parents[1]
SETTINGS = Settings(
    nodes=2, memory=2048, cores=2,
    properties={"spark.ui.enabled": "false", "spark.executor.memory": "512m"},
)  # fmt: skip

PROGRAM = """
import json, os, sys
from datetime import date
place, source = sys.argv[1:]
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import *
from decimal import Decimal

builder = SparkSession.builder.config("spark.driver.memory", "512m").config("spark.sql.shuffle.partitions", "2")
spark = builder.config("spark.hadoop.fs.viewfs.mounttable.t.link./d", "file://" + place).getOrCreate()
sc = spark.sparkContext
sys.path.insert(0, source)  # after the executors' environment was made: they have nothing of ours
from trainmaster.spark import dfutil

plain = {"b": BooleanType(), "by": ByteType(), "s": ShortType(), "i": IntegerType(), "l": LongType(), "f": FloatType(), "d": DoubleType(),
         "t": StringType(), "raw": BinaryType()}
fields = [StructField(name, kind) for name, kind in plain.items()]
fields += [StructField("a_" + name, ArrayType(kind)) for name, kind in plain.items() if name != "raw"]
def row(n):
    values = [n % 2 == 0, n, -n, n * 1000, n << 60, n / 2, -n / 4, "text \\u00e9%d" % n, bytearray([n, 255])]
    return values + [[value, value] for value in values[:-1]]
def saved(df, name, where="file://" + place):
    dfutil.saveAsTFRecords(df, where + "/" + name)
    return sorted(path for path in os.listdir(place + "/" + name) if not path.startswith("."))
def error_of(function, *arguments):
    try:
        return function(*arguments) and ""
    except Exception as error:
        return type(error).__name__ + ": " + str(error)
def of(schema, *rows):
    return spark.createDataFrame(sc.parallelize(rows, 1), schema)

out = {}
df = spark.createDataFrame(sc.parallelize([row(n) for n in range(5)], 6), StructType(fields))  # one of six partitions is empty
out["files"] = saved(df, "all types")
loaded = dfutil.loadTFRecords(sc, "file://" + place + "/all types", ["raw"])
out["partitions"] = loaded.rdd.getNumPartitions()
out["types"] = dict(loaded.dtypes)
out["columns"] = loaded.columns
def plain_value(value):
    return value.hex() if isinstance(value, (bytes, bytearray)) else value  # Spark 4 gives bytes
out["rows"] = [[plain_value(value) for value in r] for r in sorted(loaded.collect(), key=lambda r: r.i)]
out["is_loaded"] = [dfutil.isLoadedDF(loaded), dfutil.isLoadedDF(df), dfutil.loadedDF[loaded] == "file://" + place + "/all types"]

out["hadoop"] = saved(of("x long, y array<float>", (1, [0.5]), (2, [1.0, 2.0]), (3, [])), "hadoop here", "viewfs://t/d")
out["single"] = error_of(lambda: dfutil.loadTFRecords(sc, "viewfs://t/d/hadoop here").collect())
saved(of("x long, y array<float>", (2, [1.0, 2.0]), (1, [0.5]), (3, [])), "hadoop", "viewfs://t/d")
out["hadoop rows"] = sorted(tuple(r) for r in dfutil.loadTFRecords(sc, "viewfs://t/d/hadoop/part-*").collect())
out["not writable"] = error_of(dfutil.saveAsTFRecords, of("x long", (1,)), "viewfs://t/elsewhere")

out["exists"] = error_of(saved, df, "all types")
out["null"] = error_of(saved, of("x long, y string", (1, "a"), (2, None)), "null")
out["null in an array"] = error_of(saved, of("x array<long>", ([1, None],)), "nulls")
out["type"] = error_of(saved, of("x long, day date", (1, date(2024, 1, 1))), "dates")
out["left"] = sorted(os.listdir(place))
out["empty"] = saved(spark.createDataFrame([], "x long").coalesce(1), "empty")
out["no record"] = error_of(dfutil.loadTFRecords, sc, "file://" + place + "/empty")
out["no text"] = error_of(lambda: dfutil.loadTFRecords(sc, "file://" + place + "/all types").collect())
with open(place + "/damaged", "wb") as file:
    file.write(open(place + "/hadoop/part-00000", "rb").read()[:-1])
out["damaged"] = error_of(lambda: dfutil.loadTFRecords(sc, "file://" + place + "/damaged").collect())

def names(rows):
    import importlib.util
    yield importlib.util.find_spec("trainmaster") is not None
pairs = df.select("i", "t").rdd.mapPartitions(dfutil.toTFExample([("t", "string"), ("i", "int")]))
out["pairs"] = sorted(tuple(r) for r in pairs.mapPartitions(dfutil.fromTFExample).collect())
out["ours there"] = sc.parallelize([0], 1).mapPartitions(names).collect()
print(json.dumps(out))
spark.stop()
"""


def row(n: int) -> dict[str, object]:
    values: dict[str, object] = {
        "b": int(n % 2 == 0), "by": n, "s": -n, "i": n * 1000, "l": n << 60, "f": n / 2, "d": -n / 4, "t": f"text é{n}",
    }  # fmt: skip
    return values | {f"a_{name}": [value, value] for name, value in values.items()} | {"raw": bytes([n, 255]).hex()}


@pytest.mark.full
@pytest.mark.parametrize("version", VERSIONS)
def test_dataframes_are_tfrecords_and_back(version: str, tmp_path: Path) -> None:
    with own_spark(version, SETTINGS) as cluster:
        out = json.loads(spark.run(cluster, PROGRAM, str(tmp_path), str(SOURCE)).splitlines()[-1])

    assert out["files"] == ["_SUCCESS", *(f"part-0000{number}" for number in range(6))]
    types = {
        "b": "bigint",
        "by": "bigint",
        "s": "bigint",
        "i": "bigint",
        "l": "bigint",
        "f": "double",
        "d": "double",
        "t": "string",
    }
    assert out["types"] == types | {f"a_{name}": f"array<{kind}>" for name, kind in types.items()} | {"raw": "binary"}
    assert out["columns"] == sorted(out["types"])
    assert out["rows"] == [[row(n)[name] for name in out["columns"]] for n in range(5)]
    assert out["is_loaded"] == [True, False, True]
    assert out["pairs"] == [[n * 1000, f"text é{n}"] for n in range(5)]
    assert out["ours there"] == [False], "nothing of ours is needed on executors"

    assert out["hadoop"] == ["_SUCCESS", "part-00000"]
    assert out["partitions"] >= 5, "each file is one, so that all nodes of a cluster have their part"
    assert out["hadoop rows"] == [[1, [0.5]], [2, [1.0, 2.0]], [3, []]]
    assert "feature y of a record has 2 values, that of the first record has one" in out["single"]
    assert out["not writable"].startswith(
        "StorageFailed: viewfs://t/elsewhere cannot be written: java.io.FileNotFoundException: "
    )

    assert "all types already exists" in out["exists"]
    assert out["null"].startswith("BadInput: partition 0, row 1, column y: a null has no form")
    assert "row 0, column x: a null" in out["null in an array"]
    assert out["type"].startswith("BadInput: Unsupported dtype: date\n  column day")
    assert out["left"] == ["all types", "hadoop", "hadoop here"], "what failed leaves nothing"
    assert out["empty"] == ["_SUCCESS", "part-00000"]
    assert out["no record"].startswith("BadInput: there is no record in file:")
    assert "feature raw of a record is not text in UTF-8: name it in binary_features" in out["no text"]
    assert "damaged is cut short: record 2" in out["damaged"]
