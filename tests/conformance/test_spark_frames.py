"""The ways of a DataFrame to programs, on a real Spark: files that are read past the JVM give the rows that Spark gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import python
from conformance.test_spark_feed import DRIVER
from spark import VERSIONS, home_of

pytestmark = pytest.mark.xdist_group("spark")

# A driver without a cluster. Its arguments are the directory of pyspark, one for files, and a seed. It prints what differed, the reasons of
# DataFrames that are no scans, and how many are.
SCANS = """
import datetime, json, math, random, re, sys
sys.path.append(sys.argv[1])
from pyspark.sql import SparkSession, types as t
from trainmaster.runtime.feed import parquet
from trainmaster.spark.frames.scan import NoScan, scan_of
place, chance = sys.argv[2], random.Random(int(sys.argv[3]))
SETTINGS = {
    "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC",
    "spark.sql.warehouse.dir": place + "/tables", "spark.sql.files.maxPartitionBytes": "9000", "spark.sql.files.openCostInBytes": "100",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED", "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
builder = SparkSession.builder.master("local[1]")
for name, value in SETTINGS.items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
session.sparkContext.setLogLevel("ERROR")

def maybe(value):
    return lambda: None if chance.random() < 0.2 else value()

def real():
    return chance.choice([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, chance.uniform(-3, 3)])

COLUMNS = {
    "a": (t.IntegerType(), maybe(lambda: chance.randint(0, 6))), "b": (t.LongType(), maybe(lambda: chance.getrandbits(60))),
    "c": (t.FloatType(), maybe(lambda: chance.choice([0.0, -0.0, 0.5, math.nan]))), "d": (t.DoubleType(), maybe(real)),
    "s": (t.StringType(), maybe(lambda: chance.choice(["", "a", "k", "\\u00e9", "\\U0001f600", "zz"]))),
    "f": (t.BooleanType(), maybe(lambda: chance.random() < 0.5)), "n": (t.ByteType(), maybe(lambda: chance.randint(-5, 5))),
    "e": (t.DateType(), maybe(lambda: datetime.date(chance.choice([1500, 1999, 2020]), 3, 1))),
    "u": (t.TimestampType(), maybe(lambda: datetime.datetime(chance.choice([1850, 2020]), 3, 1, 12, 0, 0, 123))),
    "x": (t.BinaryType(), maybe(lambda: bytearray(chance.randbytes(3)))),
    "V": (t.ArrayType(t.FloatType()), maybe(lambda: [chance.choice([None, 0.5, math.nan]) for _ in range(chance.randint(0, 4))])),
    "dot": (t.ArrayType(t.LongType()), maybe(lambda: [chance.randint(0, 9)] * 3)),
    "p": (t.IntegerType(), lambda: chance.choice([1, 2, None])), "q": (t.StringType(), lambda: chance.choice(["x", "a b%=/c", "7"])),
}
CONDITIONS = [
    "a > 3", "3 > a", "a is not null", "not (a <= 2)", "a = 2 or a is null", "a in (1, 2)", "a not in (1, 2, 5)", "b <> 7",
    "s >= 'k'", "s > 'zz'", "s in ('a', '\\u00e9')", "f", "not f", "f or a > 2", "not (f and a > 2)",
    "e > date'1600-01-01'", "p = 1", "p is null", "p = 1 or a > 3", "q <> 'x'", "q = '7'", "V is null", "n < 2Y",
    "s = 'a' and (a > 4 or a is null)",
]
OTHERS = [
    "a + 1 > 3", "d in (0D, 1D)", "d = -0.0D", "d > double('NaN')", "s like 'a%k'", "a <=> 2", "size(V) > 1", "rand() < 0.9",
    "u > timestamp'2000-01-01'",
]

def columns_of(condition):
    return {word for word in re.findall(r"\\w+", re.sub("'.*?'", "", condition)) if word in COLUMNS}

def seen(value):
    if isinstance(value, (list, tuple)):
        return [seen(part) for part in value]
    if isinstance(value, datetime.datetime):
        return repr(value.replace(tzinfo=None))
    return repr(bytes(value)) if isinstance(value, (bytes, bytearray)) else repr(value)

def of_files(frame):
    scan, parts = scan_of(frame)
    reason = parquet.difference(scan, [split for part in parts for split in part])
    if reason:
        raise NoScan(reason)
    batches = [list(parquet.read(scan, part)) for part in parts]
    for batch in sum(batches, []):
        assert batch.schema.names == frame.columns, batch.schema
    return [list(row.values()) for part in batches for batch in part for row in batch.to_pylist()]

def of_spark(frame):
    return [list(row) for row in frame.collect()]

answer = {"differ": [], "reasons": {}, "scans": 0}
for number in range(4):
    names = sorted(chance.sample(list(COLUMNS)[:12], 7)) + chance.choice([[], ["p"], ["p", "q"]])
    schema = t.StructType([t.StructField(name, COLUMNS[name][0]) for name in names])
    rows = [tuple(COLUMNS[name][1]() for name in names) for _ in range(400)]
    folder, directories = f"{place}/{number} \\u00e9", [name for name in names if name in "pq"]
    frame = session.createDataFrame(rows, schema)
    def write(frame, mode):
        frame.write.mode(mode).option("parquet.block.size", 2000).partitionBy(*directories).parquet(folder)
    write(frame.coalesce(chance.randint(1, 3)), "overwrite")
    if chance.random() < 0.5:  # files that lack a column
        write(frame.drop(names[0]).limit(50), "append")
    table = session.read.schema(schema).parquet(folder)
    for _ in range(6):
        query = table
        known = [condition for condition in CONDITIONS + OTHERS[:1] if columns_of(condition) <= {*names}]
        for condition in chance.sample(known, chance.randint(0, 2)):
            query = query.where(condition)
        chosen = chance.sample(names, chance.randint(1, len(names)))
        query = query.select(*[query[name].alias(name + "2") if chance.random() < 0.3 else query[name] for name in chosen])
        try:
            ours = of_files(query)
        except NoScan as why:
            answer["reasons"][f"{number} {chosen} " + str(query._jdf.queryExecution().optimizedPlan())[:300]] = str(why)
            continue
        answer["scans"] += 1
        theirs = of_spark(query)
        if seen(ours) != seen(theirs):
            answer["differ"].append([str(query._jdf.queryExecution().optimizedPlan()), str(seen(ours))[:500], str(seen(theirs))[:500]])

# What must be left to Spark.
left = {}
whole = t.StructType([t.StructField(name, COLUMNS[name][0]) for name in COLUMNS])
rows = [tuple(column[1]() for column in COLUMNS.values()) for _ in range(20)]
session.createDataFrame(rows, whole).write.parquet(place + "/whole")
table = session.read.parquet(place + "/whole")
cases = {condition: table.where(condition) for condition in OTHERS}
cases["computed"] = table.selectExpr("a + 1 as a")
cases["limit"] = table.limit(3)
cases["cached"] = table.select("a").cache()
cases["repartitioned"] = table.repartition(2)
cases["joined"] = table.join(table.select("a").distinct(), "a")
cases["metadata"] = table.select("a", "_metadata.file_name")
cases["wider"] = session.read.schema("n int").parquet(place + "/whole")
cases["days of others"] = table.select("e")
cases["option"] = session.read.option("ignoreCorruptFiles", "true").parquet(place + "/whole")
cases["csv"] = session.createDataFrame([(1,)], "a int").select("a")
session.sql("create table padded (c char(5), v int) using parquet")
session.sql("insert into padded values ('a', 1)")
cases["padded"] = session.table("padded")
session.sql("create table grown (v int) using parquet")
session.sql("insert into grown values (1)")
session.sql("alter table grown add column w int default 7")
cases["grown"] = session.table("grown")
import pyarrow, pyarrow.parquet
import os
os.mkdir(place + "/foreign")
pyarrow.parquet.write_table(pyarrow.table({"e": pyarrow.array([1], "date32")}), place + "/foreign/a.parquet")
cases["days of others"] = session.read.parquet(place + "/foreign")
for name, frame in cases.items():
    try:
        of_files(frame)
        left[name] = None
    except NoScan as why:
        left[name] = str(why)
answer["left"] = left
session.sql("create table kept (v int, w string) using parquet clustered by (v) into 3 buckets")
session.sql("insert into kept select id, concat('w', id) from range(100)")
kept = session.table("kept").where("v > 10")
answer["kept"] = sorted(seen(of_files(kept))) == sorted(seen(of_spark(kept)))  # buckets have no order
print(json.dumps(answer))
"""
READS = """
    import json, os
    from trainmaster.runtime import feed
    rows = []
    for batch in feed.open("input"):
        rows += [list(row.values()) for row in batch.arrow().to_pylist()]
        {extra}
    print(json.dumps({{"values": rows, "task": os.environ["TRAINMASTER_INDEX"]}}))
"""


@pytest.mark.full
@pytest.mark.parametrize("version", VERSIONS)
def test_files_give_the_rows_that_spark_reads_of_them(version: str, tmp_path: Path) -> None:
    home = home_of(version)
    done = subprocess.run(
        [sys.executable, "-I", "-c", SCANS, str(home.folder.parent), str(tmp_path), "17"],
        env={**os.environ, "SPARK_HOME": str(home.folder), "TZ": "UTC", "PYSPARK_PYTHON": sys.executable},
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    answer = json.loads(done.stdout.splitlines()[-1])
    assert not answer["differ"], json.dumps(answer["differ"], indent=1)
    assert answer["scans"] >= 12, json.dumps(answer["reasons"], indent=1)
    assert [name for name, why in answer["left"].items() if why is None] == [], answer["left"]
    assert answer["kept"]


def driven(version: str, tmp_path: Path, how: str, role: dict[str, Any]) -> Any:
    """Run a driver that is its own executor, does `how`, and has a role's programs read it; return its answer."""
    home = home_of(version)
    done = subprocess.run(
        [sys.executable, "-I", "-c", DRIVER, str(home.folder.parent), json.dumps({"name": "t", "roles": {"worker": role}}),
         textwrap.dedent(how)],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=900,
        env={**os.environ, "SPARK_HOME": str(home.folder), "PYSPARK_PYTHON": home.python, "PYSPARK_DRIVER_PYTHON": sys.executable,
             "PYSPARK_SUBMIT_ARGS": "--master local[3] pyspark-shell"},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
@pytest.mark.parametrize("version", VERSIONS)
def test_programs_read_the_same_of_files_and_of_computed_arrays(version: str, tmp_path: Path) -> None:
    how = """
        import logging
        lines = []
        logging.getLogger("trainmaster.spark.feed").setLevel(logging.INFO)
        logging.getLogger("trainmaster.spark.feed").handle = lambda record: lines.append(record.getMessage())
        expressions = ["id as value", "if(id % 7 = 0, null, transform(sequence(1, 3), x -> cast(x + id as float))) as same"]
        expressions += ["transform(sequence(0, id % 4), x -> cast(x as bigint)) as ragged", "concat('t', id % 3) as text"]
        computed = session.range(0, 300, 1, 3).selectExpr(*expressions)
        feed.put(computed, rows=40, ragged=["ragged"])
        computed.coalesce(2).write.parquet("files")
        feed.put(session.read.parquet("files").where("value >= 0"), epochs=2, ragged=["ragged"])
        feed.put(computed.select("value", "text"))
        answer["ways"] = lines
        feed.end()
    """
    role = {
        "command": python(READS.format(extra="pass")), "resources": {"cores": 0.05, "memory": "64MiB"},
        "feed": {"input": {"memory": "4MiB"}},
    }  # fmt: skip
    answer = driven(version, tmp_path, how, role)
    assert answer["state"] == "succeeded", answer
    assert answer["ok"]
    texts = (line.partition("{")[1] + line.partition("{")[2] for line in answer["lines"])
    rows = [row for text in texts for row in json.loads(text)["values"]]
    expected = [
        [
            value,
            None if value % 7 == 0 else [1.0 + value, 2.0 + value, 3.0 + value],
            list(range(value % 4 + 1)),
            f"t{value % 3}",
        ]
        for value in range(300)
    ]
    assert sorted((row for row in rows if len(row) == 4), key=lambda row: row[0]) == [
        row for row in expected for _ in range(3)
    ]
    assert sorted(row for row in rows if len(row) == 2) == [[value, text] for value, _, _, text in expected]
    packed, files, arrow = answer["ways"]
    assert (
        "rows with arrays are packed in the JVM: it computes" in packed
        or "packed in the JVM: its plan has Range" in packed
    )
    assert "2 Parquet files are read with Arrow" in files
    assert "Spark makes batches of Arrow" in arrow
