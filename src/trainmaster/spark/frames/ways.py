"""Choose the way of an RDD's or a DataFrame's rows to the feeders, by its plan.

| way | where | a feeder gets |
|---|---|---|
| files | the DataFrame is a scan of Parquet files, with simple columns and conditions | splits of files, which it reads with Arrow |
| packed | it has arrays of numbers, and no struct, map or decimal | each row as one block of bytes that Spark's own serializer made |
| Arrow | any other | batches of Arrow |
| rows | an RDD; executors without pyarrow; a driver without pandas and pyarrow | rows of Python |

A way's `words` say which one was taken and why. Each gives the same rows: only their path differs.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.runtime.feed import packed
from trainmaster.spark import feeding
from trainmaster.spark.frames.scan import NoScan, arrow_schema, scan_of
from trainmaster.spark.frames.stores import storages

log = logging.getLogger(__name__)
_EXAMPLES: dict[str, Any] = {  # a value of each type
    **{f"array<{kind}>": [1, 2] for kind in ("tinyint", "smallint", "int", "bigint")},
    **{f"array<{kind}>": [0.5, -2.0] for kind in ("float", "double")},
    "tinyint": -1, "smallint": 2, "int": -3, "bigint": 1 << 40, "float": 0.5, "double": 0.1, "boolean": True, "string": "tr\u00e4in",
    "binary": b"\0\xff", "date": datetime.date(2020, 2, 29), "timestamp": datetime.datetime(2020, 2, 29, 1, tzinfo=datetime.UTC),
}  # fmt: skip
_ARRAYS = {kind for kind in _EXAMPLES if kind.startswith("array")}
_SCALARS = {*_EXAMPLES} - _ARRAYS


@attrs.frozen
class Way:
    """The way of some data. `feeders` makes the RDD that feeds while it is computed, out of the function of its tasks.

    `is_slow`: there would be a faster way, if something were installed.
    """

    words: str
    partitions: int
    feeders: Callable[[feeding.Task], Any]
    is_slow: bool = False


def is_frame(data: Any) -> bool:
    return hasattr(data, "mapInArrow")


def zoned(data: Any) -> list[str]:
    """Return the columns that are timestamps, whose rows Python gets as moments of its local time zone."""
    return list(_timestamps("", data.schema)) if is_frame(data) else []


def _timestamps(name: str, kind: Any) -> Iterator[str]:
    for field in getattr(kind, "fields", ()):
        yield from _timestamps(f"{name}.{field.name}".lstrip("."), field.dataType)
    if kind.typeName() == "timestamp":
        yield name
    elif kind.typeName() == "array":
        yield from _timestamps(name, kind.elementType)
    elif kind.typeName() == "map":
        yield from _timestamps(f"{name}.key", kind.keyType)
        yield from _timestamps(f"{name}.value", kind.valueType)


def way_of(data: Any, archive: str, lacking: str = "") -> Way:
    """Return the way of an RDD or a DataFrame. `archive`: what executors import of ours. `lacking`: why they cannot read Arrow."""
    if not is_frame(data):
        return _by_rows(data, "it is an RDD")
    if lacking:
        return attrs.evolve(
            _by_rows(data.rdd, f"as batches of Arrow it would be much faster, but {lacking}"), is_slow=True
        )
    try:
        from pyspark.sql.pandas.utils import require_minimum_pandas_version, require_minimum_pyarrow_version

        require_minimum_pandas_version()  # as Spark's own `mapInArrow` does
        require_minimum_pyarrow_version()
    except ImportError as error:
        return attrs.evolve(
            _by_rows(data.rdd, f"as batches of Arrow it would be much faster, but {error}"), is_slow=True
        )
    try:
        return _by_files(data, archive)
    except NoScan as why:
        return _packed(data, str(why)) or _by_arrow(data, str(why))


def _by_rows(rdd: Any, why: str) -> Way:
    return Way(f"row by row: {why}", rdd.getNumPartitions(), rdd.mapPartitionsWithIndex)


def _by_files(frame: Any, archive: str) -> Way:
    """Let feeders read the files, where executors find nothing in them that Spark could read otherwise. Raises NoScan."""
    scan, parts = scan_of(frame)
    schemes = {urlsplit(split["path"]).scheme for part in parts for split in part}
    try:
        opener = storages(frame.sparkSession) if schemes - {"file"} else None
    except BadInput as error:
        raise NoScan(f"executors get no client of {', '.join(sorted(schemes))}: {error}") from error
    splits = frame.sparkSession.sparkContext.parallelize(parts, len(parts))
    if reasons := splits.mapPartitionsWithIndex(feeding.Check(scan, archive, opener)).collect():
        raise NoScan(reasons[0])
    count = len({split["path"] for part in parts for split in part})
    words = f"{count:,} Parquet files are read with Arrow, past the JVM: its plan is a scan of them"

    def feeders(task: feeding.Task) -> Any:
        return splits.mapPartitionsWithIndex(feeding.Files(task, scan, opener))

    return Way(words, len(parts), feeders)


def _packed(frame: Any, why: str) -> Way | None:
    """Pack each row into one block of bytes in the JVM. None where it would not pay, or where executors pack rows otherwise than is known.

    Where rows have arrays, batches of Arrow cost nearly twice as much; where they have none, batches cost less.
    """
    types = [field.dataType.simpleString() for field in frame.schema.fields]
    if not _ARRAYS.intersection(types) or not _ARRAYS.union(_SCALARS).issuperset(types):
        return None
    schema = arrow_schema(frame.schema)
    example = tuple(_EXAMPLES[kind] for kind in types)
    try:
        blocks = _blocks(frame.sparkSession.createDataFrame([example], frame.schema)).collect()
        if packed.record_batch(blocks, schema).to_pylist() != [dict(zip(frame.columns, example, strict=True))]:
            return None
        rdd = _blocks(frame)
    except Exception as error:  # noqa: BLE001  another serializer's settings, another vendor's classes: there is a way without them
        log.debug("rows are not packed: %s", error)
        return None

    def feeders(task: feeding.Task) -> Any:
        return rdd.mapPartitionsWithIndex(feeding.Packed(task, schema))

    return Way(f"rows with arrays are packed in the JVM: {why}", rdd.getNumPartitions(), feeders)


def _blocks(frame: Any) -> Any:
    """Return an RDD of rows packed by the serializer that `Encoders.kryo` uses."""
    from pyspark import RDD
    from pyspark.serializers import NoOpSerializer

    session, java = frame.sparkSession, frame.sparkSession.sparkContext._jvm
    rows = frame.selectExpr("struct(*) as row")._jdf
    # A plan of its own on top of the rows: there a row is one block of memory, however it was computed.
    rows = session._jsparkSession.internalCreateDataFrame(rows.queryExecution().toRdd(), rows.schema(), False)
    encode = java.org.apache.spark.sql.catalyst.expressions.objects.EncodeUsingSerializer
    if not session.version.startswith("3."):
        columns = java.org.apache.spark.sql.classic.ExpressionUtils
        packed_row = columns.column(encode(columns.expression(rows.col("row")), True))
    else:
        packed_row = java.org.apache.spark.sql.Column(encode(rows.col("row").expr(), True))
    blocks = rows.select(java.org.apache.spark.api.python.PythonUtils.toSeq([packed_row.alias("row")]))
    blocks = getattr(blocks, "as")(java.org.apache.spark.sql.Encoders.BINARY()).toJavaRDD()
    return RDD(blocks, session.sparkContext, NoOpSerializer())


def _by_arrow(frame: Any, why: str) -> Way:
    """Let Spark make batches of Arrow."""
    from pyspark.sql import DataFrame

    # A plan of its own on top of the rows runs Spark's shuffles once, for the number of partitions and for each round.
    session, rows = frame.sparkSession, frame._jdf.queryExecution().toRdd()
    frame = DataFrame(session._jsparkSession.internalCreateDataFrame(rows, frame._jdf.schema(), False), session)

    def feeders(task: feeding.Task) -> Any:
        return frame.mapInArrow(feeding.Arrow(task), "batches long").rdd

    return Way(f"Spark makes batches of Arrow: {why}", rows.getNumPartitions(), feeders)
