"""Columns of all of Spark SQL's types that a feed carries, from a DataFrame's Arrow batches and from an RDD of its rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from conformance.engines import python
from conformance.test_spark_feed import fed
from spark import VERSIONS

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.full]

# The reader prints in the end what it has read: the rows of the DataFrame, then those of the RDD.
READER = """
    import json
    from trainmaster.runtime import feed
    columns, kinds = {}, []
    for batch in feed.open("input"):
        content = batch.arrow()
        for name in batch.columns:
            columns.setdefault(name, []).extend(content.column(name).to_pylist())
        kinds.append({name: [column.kind, *column.shape] for name, column in batch.columns.items()})
    print(json.dumps({"columns": columns, "kinds": kinds}, default=str))
"""
HOW = """
    from datetime import date, datetime, timedelta, timezone
    from decimal import Decimal
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql.types import *
    numbers = {name: IntegerType() for name in ("height", "width", "nChannels", "mode")}
    def structure(**fields):
        return StructType([StructField(name, kind) for name, kind in fields.items()])
    image = structure(origin=StringType(), **numbers, data=BinaryType())
    kinds = {
        "flag": BooleanType(), "small": ByteType(), "whole": LongType(), "real": DoubleType(), "text": StringType(), "day": DateType(),
        "moment": TimestampType(), "local": TimestampNTZType(), "price": DecimalType(10, 2), "tensor": ArrayType(ArrayType(DoubleType())),
        "words": ArrayType(StringType()), "tags": ArrayType(LongType()), "place": structure(x=LongType(), name=StringType()),
        "counts": MapType(StringType(), LongType()), "image": image, "vector": VectorUDT(), "took": DayTimeIntervalType(),
    }
    schema = structure(**kinds)
    noon, old = datetime(2024, 7, 1, 12), datetime(1950, 1, 1)
    rows = [
        (True, 1, 1 << 60, 0.5, "é", date(2024, 2, 29), noon.replace(tzinfo=timezone.utc), noon,
         Decimal("1.25"), [[1.0, 2.0]], ["a", "b"], [1, 2, 3], (1, "n"), {"k": 1},
         ("f", 1, 2, 3, 16, bytearray(range(6))), Vectors.dense([1.0, 0.0, 2.0]), timedelta(1, 2, 3)),
        (None,) * len(kinds),
        (False, -1, -1, -0.5, "", date(1950, 1, 1), old.replace(tzinfo=timezone.utc), old,
         Decimal("-9.99"), [[3.0, 4.0]], [], [], (2, None), {},
         ("g", 1, 2, 3, 16, bytearray(6)), Vectors.sparse(3, [1], [5.0]), timedelta(-1)),
    ]
    frame = session.createDataFrame(context.parallelize(rows, 1), schema)
    feed.put(frame, ragged=["tags"])
    feed.put(frame.drop("moment").rdd, ragged=["tags"])
    from trainmaster.spark.frames.ways import zoned
    answer["zoned"] = zoned(frame)
    feed.end()
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_types_of_a_frame_and_of_its_rows(version: str, tmp_path: Path) -> None:
    answer = fed(tmp_path, version, HOW, command=python(READER), replicas=1)
    assert answer["state"] == "succeeded", answer
    assert answer["zoned"] == ["moment"]
    [line] = (json.loads(line[line.index("{") :]) for line in answer["lines"])
    columns, (of_frame, of_rows) = line["columns"], line["kinds"]
    moments = columns.pop("moment")
    assert [moment and datetime.fromisoformat(moment).astimezone(UTC).isoformat() for moment in moments] == [
        "2024-07-01T12:00:00+00:00", None, "1950-01-01T00:00:00+00:00"
    ]  # fmt: skip
    prices = [price and float(price) for price in columns.pop("price")]
    assert prices == [1.25, None, -9.99] * 2
    expected = {
        "flag": [True, None, False], "small": [1, None, -1], "whole": [1 << 60, None, -1], "real": [0.5, None, -0.5],
        "text": ["é", None, ""],
        "day": ["2024-02-29", None, "1950-01-01"], "local": ["2024-07-01 12:00:00", None, "1950-01-01 00:00:00"],
        "tensor": [[[1.0, 2.0]], None, [[3.0, 4.0]]], "words": [["a", "b"], None, []], "tags": [[1, 2, 3], None, []],
        "place.x": [1, None, 2], "place.name": ["n", None, None], "counts.key": [["k"], None, []], "counts.value": [[1], None, []],
        "image": [[[[0, 1, 2], [3, 4, 5]]], None, [[[0] * 3] * 2]], "image.origin": ["f", None, "g"],
        "vector": [[1.0, 0.0, 2.0], None, [0.0, 5.0, 0.0]], "took": ["1 day, 0:00:02.000003", None, "-1 day, 0:00:00"],
    }  # fmt: skip
    assert columns == {name: values * 2 for name, values in expected.items()}
    del of_frame["moment"]
    assert of_frame == of_rows
    assert (of_rows["tensor"], of_rows["image"], of_rows["vector"]) == (
        ["fixed", 1, 2],
        ["fixed", 1, 2, 3],
        ["fixed", 3],
    )
