"""DataFrames as TFRecord files, and back, with TensorFlowOnSpark's names. Importing this module imports pyspark.

    from trainmaster.spark import dfutil

    dfutil.saveAsTFRecords(df, "hdfs:///data/digits")
    df = dfutil.loadTFRecords(sc, "hdfs:///data/digits", binary_features=["image"])

A row is a `tf.train.Example`: float and double columns are FloatLists, boolean and whole ones Int64Lists, string and binary ones
BytesLists, and so are arrays of these. The types of the columns that are read are those of the first record: a list of one value is that
value, a longer one an array; BytesLists are strings unless `binary_features` names them.

No class of a JVM is needed except Spark's own. Spark lists and reads the files, so any URL that Spark reads will do, with its credentials;
each file is a partition, and one of 2 GiB or more cannot be read. The class path of executors has no output
format that writes bytes as they are. So tasks write the files (`hadoop_files`), under names of their own, and the driver moves those of
the attempts that count into place.

Our packages are not installed where tasks run: the functions here, in `tfrecords` and in `crc32c` are pickled by value.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark import RDD, TaskContext, cloudpickle
from pyspark.serializers import NoOpSerializer, PairDeserializer, UTF8Deserializer
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import ArrayType, BinaryType, DoubleType, LongType, StringType, StructField, StructType

from trainmaster.core.errors import BadInput
from trainmaster.host.java import commands_above
from trainmaster.runtime.formats.crc32c import masked_crc32c
from trainmaster.runtime.formats.tfrecord_frames import frame, records

from .hadoop_files import OutputFolder, writing
from .tfrecords import decode, encode

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

loadedDF: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # the directory that each DataFrame was loaded from
KINDS = {
    **dict.fromkeys(("float", "double"), "float"),
    **dict.fromkeys(("boolean", "tinyint", "smallint", "int", "bigint", "long"), "int64"),
    **dict.fromkeys(("string", "binary"), "bytes"),
}

for _function in (commands_above, decode, frame, masked_crc32c, writing):
    cloudpickle.register_pickle_by_value(sys.modules[_function.__module__])
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def isLoadedDF(df: DataFrame) -> bool:
    """Say whether the DataFrame was made by `loadTFRecords`."""
    return df in loadedDF


def saveAsTFRecords(df: DataFrame, output_dir: str) -> None:
    """Save the rows as TFRecord files part-00000, part-00001, ..., one a partition, in a directory that does not exist yet.

    Raises BadInput where the directory exists, for a type that has no feature, and for a null, with its row and column.
    """
    convert = toTFExample(df.dtypes)
    folder = OutputFolder(df.rdd.context, output_dir)
    attempts, configuration = folder.attempts, folder.configuration

    def write(partition: int, rows: Iterable[Row]) -> Iterator[tuple[str, str, str]]:
        name = f"part-{partition:05d}"
        attempt = f"{name}-{TaskContext.get().taskAttemptId()}"
        checksum, refusal = masked_crc32c(), ""
        with writing(f"{attempts}/{attempt}", configuration) as file:
            try:
                for example, _ in convert(rows):
                    file.write(frame(bytes(example), checksum))
            except ValueError as error:  # raised, it would make Spark try again
                refusal = f"partition {partition}, {error}"
        yield name, attempt, refusal

    with folder:
        parts = df.rdd.mapPartitionsWithIndex(write).collect()
        for _, _, refusal in parts:
            if refusal:
                raise BadInput(
                    refusal, place=f"saveAsTFRecords to {output_dir}", mend="fill in such values, or drop their rows"
                )
        folder.commit({name: attempt for name, attempt, _ in parts})


def loadTFRecords(sc: SparkContext, input_dir: str, binary_features: Collection[str] = ()) -> DataFrame:
    """Return a DataFrame of the Examples in a directory, a file or a pattern. Its columns are sorted by name.

    A record may lack a column (null), but not have another one, another type, or several values where the first record has one.
    """
    examples = _files(sc, input_dir).flatMap(_records_of_file)
    first = examples.take(1)
    if not first:
        raise BadInput(f"there is no record in {input_dir}", place="loadTFRecords")
    schema = infer_schema(first[0], binary_features)

    def rows(examples: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        return (_row(example, schema) for example in examples)

    session = SparkSession.builder.getOrCreate()
    df = session.createDataFrame(examples.mapPartitions(rows), schema, verifySchema=False)
    loadedDF[df] = input_dir
    return df


def toTFExample(dtypes: Sequence[tuple[str, str]]) -> Callable[[Iterable[Row]], Iterator[tuple[bytearray, None]]]:
    """Return a function for `mapPartitions` that makes each row a pair: a serialized Example and None. Its features are sorted by name.

    `dtypes` are those of the DataFrame. Raises BadInput for a type that has no feature; the function raises ValueError for a null.
    """
    kinds = []
    for name, dtype in sorted(dtypes):
        kind = KINDS.get(dtype.removeprefix("array<").removesuffix(">"))
        if kind is None:
            types = ", ".join(KINDS)
            raise BadInput(
                f"Unsupported dtype: {dtype}",
                place=f"column {name}",
                mend=f"cast it to one of {types}, or an array of it",
            )
        kinds.append((name, kind, dtype.startswith("array<")))

    def examples(rows: Iterable[Row]) -> Iterator[tuple[bytearray, None]]:
        for number, row in enumerate(rows):
            features = [
                (name, kind, _values(row[name], kind, is_array, name, number)) for name, kind, is_array in kinds
            ]
            yield bytearray(encode(features)), None

    return examples


def fromTFExample(iter: Iterable[Any], binary_features: Collection[str] = ()) -> Iterator[Row]:  # noqa: A002 - TensorFlowOnSpark's name
    """Yield the Row of each pair of a serialized Example and None, for `mapPartitions`.

    A list of one value is that value, an empty one None.
    """
    for record in iter:
        example = bytes(record[0])
        schema = infer_schema(example, binary_features)
        yield Row(**dict(zip(schema.names, _row(example, schema), strict=True)))


def infer_schema(example: Any, binary_features: Collection[str] = ()) -> StructType:
    """Return the schema of a `tf.train.Example`, or of one that is serialized; empty lists are strings."""
    types = {"int64": LongType(), "float": DoubleType()}
    fields = []
    content = example if isinstance(example, bytes) else example.SerializeToString()
    for name, (kind, values) in sorted(decode(content).items()):
        column = types.get(kind if values else "") or (BinaryType() if name in binary_features else StringType())
        fields.append(StructField(name, ArrayType(column) if len(values) > 1 else column, True))
    return StructType(fields)


def _values(value: Any, kind: str, is_array: bool, name: str, row: int) -> Sequence[Any]:
    values = value if is_array else [value]
    if values is None or None in values:
        raise ValueError(f"row {row}, column {name}: a null has no form in a tf.train.Example")
    if kind == "bytes":
        return [item.encode() if isinstance(item, str) else bytes(item) for item in values]
    return values


def _files(sc: SparkContext, url: str) -> RDD[tuple[str, bytes]]:
    """Return the files at a URL, with their contents, each in a partition of its own: `binaryFiles` puts small ones together."""
    configuration = sc._jvm.org.apache.hadoop.conf.Configuration(sc._jsc.hadoopConfiguration())
    configuration.set("mapreduce.input.fileinputformat.split.maxsize", "1")  # a byte, and files are not split
    loader = sc._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    names = (
        "org.apache.spark.input.StreamInputFormat",
        "java.lang.String",
        "org.apache.spark.input.PortableDataStream",
    )
    classes = [sc._jvm.java.lang.Class.forName(name, True, loader) for name in names]
    files = sc._jsc.newAPIHadoopFile(url, *classes, configuration)
    return RDD(files, sc, PairDeserializer(UTF8Deserializer(), NoOpSerializer()))


def _records_of_file(file: tuple[str, bytes]) -> Iterator[bytes]:
    name, content = file
    return records(io.BytesIO(content), name, len(content), masked_crc32c())


def _row(example: bytes, schema: StructType) -> tuple[Any, ...]:
    features = decode(example)
    if strangers := features.keys() - set(schema.names):
        raise ValueError(f"a record has a feature {min(strangers)}, which the first record does not have")
    return tuple(_column(field, *features.get(field.name, ("", []))) for field in schema.fields)


def _column(field: StructField, kind: str, values: list[Any]) -> Any:
    """Return a feature's values as the value of a column."""
    is_array = isinstance(field.dataType, ArrayType)
    element = field.dataType.elementType if is_array else field.dataType
    if not values:
        return [] if is_array and kind else None
    expected = {LongType: "int64", DoubleType: "float"}.get(type(element), "bytes")
    if kind != expected:
        raise ValueError(
            f"feature {field.name} of a record is a list of {kind}, that of the first record of {expected}"
        )
    if len(values) > 1 and not is_array:
        raise ValueError(
            f"feature {field.name} of a record has {len(values)} values, that of the first record has one or none"
        )
    if isinstance(element, StringType):
        try:
            values = [value.decode() for value in values]
        except UnicodeDecodeError as error:
            raise ValueError(
                f"feature {field.name} of a record is not text in UTF-8: name it in binary_features"
            ) from error
    elif isinstance(element, BinaryType):
        values = [bytearray(value) for value in values]
    return values if is_array else values[0]
