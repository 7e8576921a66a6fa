"""Read in the plan of a DataFrame whether it is a scan of Parquet files, which executors can read with Arrow, past the JVM.

Spark decides which files and which parts of them (its `FilePartition`s), and so it alone looks at conditions on directories. Columns that
are chosen and renamed, and conditions that compare a column with a constant, are translated; anything else is a reason to let Spark read.
Executors check the rest by the footers of the files (`runtime.feed.parquet`) before anything is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

_SCAN = "org.apache.spark.sql.execution.FileSourceScanExec"
_FORMAT = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"  # others derive from it, and read more than the files
_LISTS = "org.apache.spark.sql.execution.datasources."  # the package of Spark's own lists of files
_OPTIONS = {
    "path", "paths", "basepath", "mergeschema", "recursivefilelookup", "pathglobfilter", "modifiedbefore", "modifiedafter", "compression",
    "serialization.format",
}  # fmt: skip
_OFF = (  # Spark's settings by which it reads other rows than those of the files
    "spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles", "spark.sql.parquet.fieldId.read.enabled",
)  # fmt: skip
_KEYS = (
    "EXISTS_DEFAULT",
    "__CHAR_VARCHAR_TYPE_STRING",
)  # of a column's metadata: a value where files have none; padding
# No fractions: Spark's own answer for NaN and -0.0 depends on which row groups their statistics let it skip.
_COMPARABLE = {"tinyint", "smallint", "int", "bigint", "boolean", "string", "date"}
_FROM_DIRECTORIES = {*_COMPARABLE, "float", "double"}
_COMPARISONS = {
    "EqualTo": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_FLIPPED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class NoScan(Exception):
    """The rows of a DataFrame are not surely those of files. Its words say why."""


def scan_of(frame: Any) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """Return a DataFrame's scan and the splits of each of its partitions, as `runtime.feed.parquet` reads them. Raises NoScan."""
    plan = frame._jdf.queryExecution().sparkPlan()
    scan, columns, filters = _walk(plan)
    _check(frame, scan)
    outputs = [(field.name(), columns[field.exprId().id()]) for field in _items(plan.output())]
    if not outputs:
        raise NoScan("it has no columns")
    used = {name for _, name in outputs}.union(*map(_columns_of, filters))
    relation = scan.relation()
    directories = list(relation.partitionSchema().fieldNames())
    known = {*relation.dataSchema().fieldNames(), *directories}
    fields = [field for field in _items(scan.output()) if field.name() in used]
    for field in fields:
        if field.name() not in known or any(field.metadata().contains(key) for key in _KEYS):
            raise NoScan(f"Spark makes the column {field.name()!r} by itself")
    partitions = [name for name in directories if name in used]
    case = _setting(frame, "spark.sql.caseSensitive") == "true"
    described = {
        "schema": _arrow(fields),
        "partitions": partitions,
        "outputs": outputs,
        "filters": filters,
        "case": case,
    }
    return described, [list(_splits(part, relation.partitionSchema(), partitions)) for part in _parts(scan)]


def _walk(node: Any) -> tuple[Any, dict[int, str], list[Any]]:
    """Return the scan below a node of the plan, the scan's name of each column by its id, and the conditions on rows."""
    kind = _name(node)
    if node.getClass().getName() == _SCAN:
        return node, {field.exprId().id(): field.name() for field in _items(node.output())}, []
    if kind not in ("ProjectExec", "FilterExec"):
        raise NoScan(f"its plan has {node.nodeName()}")
    scan, columns, filters = _walk(node.child())
    if kind == "FilterExec":
        return scan, columns, [*filters, _condition(node.condition(), columns)]
    chosen = {}
    for expression in _items(node.projectList()):
        source = expression.child() if _name(expression) == "Alias" else expression
        if _name(source) != "AttributeReference":
            raise NoScan(f"it computes {expression.toString()[:80]}")
        chosen[expression.exprId().id()] = columns[source.exprId().id()]
    return scan, chosen, filters


def _check(frame: Any, scan: Any) -> None:
    """Refuse what Spark reads by more than the files' own columns. Raises NoScan."""
    relation = scan.relation()
    kind = relation.fileFormat().getClass().getName()
    if kind != _FORMAT or not relation.location().getClass().getName().startswith(_LISTS):
        raise NoScan(f"its files are not read as plain Parquet, but by {kind.rpartition('.')[2]}")
    options = {str(name).lower() for name in _items(relation.options().keys().toSeq())}
    if unknown := sorted(options - _OPTIONS):
        raise NoScan(f"it reads with the option {unknown[0]}")
    if not relation.overlappedPartCols().isEmpty():
        raise NoScan("files and directories name the same column")
    for field in _items(relation.partitionSchema()):
        if field.dataType().simpleString() not in _FROM_DIRECTORIES:
            raise NoScan(f"the column {field.name()!r} of its directories is {field.dataType().simpleString()}")
    for name in _OFF:
        if _setting(frame, name) == "true":
            raise NoScan(f"{name} is set")
    hadoop = frame.sparkSession._jsparkSession.sessionState().newHadoopConf()
    if hadoop.get("parquet.crypto.factory.class"):
        raise NoScan("its files may be encrypted (parquet.crypto.factory.class is set)")


# -- conditions --


def _condition(expression: Any, columns: Mapping[int, str]) -> list[Any]:
    """Translate a condition on rows. Raises NoScan where Arrow may answer otherwise."""
    kind = _name(expression)
    if kind in ("And", "Or"):
        return [kind.lower(), _condition(expression.left(), columns), _condition(expression.right(), columns)]
    if kind == "Not":
        return ["not", _condition(expression.child(), columns)]
    if kind in ("IsNull", "IsNotNull") and _name(expression.child()) == "AttributeReference":
        is_null = ["is null", columns[expression.child().exprId().id()]]
        return is_null if kind == "IsNull" else ["not", is_null]
    if kind == "AttributeReference":
        return ["is true", columns[expression.exprId().id()]]
    if kind in _COMPARISONS:
        left, right, sign = expression.left(), expression.right(), _COMPARISONS[kind]
        if _name(left) == "Literal":
            left, right, sign = right, left, _FLIPPED[sign]
        return [sign, _column(left, columns, expression), _constant(left, right, expression)]
    if kind == "In":
        column = expression.value()
        values = [_constant(column, item, expression) for item in _items(expression.list())]
        return ["in", _column(column, columns, expression), values]
    raise _unlike(expression)


def _column(expression: Any, columns: Mapping[int, str], whole: Any) -> str:
    if _name(expression) != "AttributeReference" or expression.dataType().simpleString() not in _COMPARABLE:
        raise _unlike(whole)
    return columns[expression.exprId().id()]


def _constant(column: Any, literal: Any, whole: Any) -> Any:
    kind = column.dataType().simpleString()
    if _name(literal) != "Literal" or literal.dataType().simpleString() != kind or literal.value() is None:
        raise _unlike(whole)
    return _plain(literal.value())


def _unlike(expression: Any) -> NoScan:
    return NoScan(f"its condition {expression.toString()[:80]} is Spark's to decide")


def _columns_of(condition: list[Any]) -> set[str]:
    operation, *parts = condition
    return set().union(*map(_columns_of, parts)) if operation in ("and", "or", "not") else {parts[0]}


# -- files --


def _parts(scan: Any) -> list[Any]:
    parts = list(scan.inputRDD().partitions())
    if not parts:
        raise NoScan("it has no files")
    return parts


def _splits(part: Any, directories: Any, used: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the splits of one of Spark's partitions."""
    fields = [(index, field) for index, field in enumerate(_items(directories)) if field.name() in used]
    for file in part.files():
        row = file.partitionValues()
        values = [None if row.isNullAt(index) else _plain(row.get(index, field.dataType())) for index, field in fields]
        yield {
            "path": file.filePath().urlEncoded(), "start": file.start(), "length": file.length(), "size": file.fileSize(), "values": values
        }  # fmt: skip


def _arrow(fields: list[Any]) -> Any:
    from pyspark.sql.types import StructField, StructType, _parse_datatype_json_string

    types = [StructField(field.name(), _parse_datatype_json_string(field.dataType().json())) for field in fields]
    try:
        return arrow_schema(StructType(types))
    except Exception as error:  # each version has a class of its own for a type that Arrow has not
        raise NoScan(f"Arrow has not all of its types: {error}") from error


def arrow_schema(schema: Any) -> Any:
    """Return the schema that Spark's batches of Arrow have; times are UTC. Raises Spark's own error for a type that Arrow has not."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zone = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}  # since Spark 4
    return to_arrow_schema(schema, **zone)


# -- Java --


def _items(sequence: Any) -> list[Any]:
    """Return the elements of a Scala `Seq`."""
    return [sequence.apply(index) for index in range(sequence.length())]


def _name(java_object: Any) -> str:
    return str(java_object.getClass().getSimpleName())


def _plain(value: Any) -> Any:
    """Return a value of Spark's as Python has it; Spark has text in a class of its own."""
    return value.toString() if hasattr(value, "getClass") else value


def _setting(frame: Any, name: str) -> str:
    return str(frame.sparkSession.conf.get(name, "false")).lower()
