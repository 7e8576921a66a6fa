"""Read splits of Parquet files with Arrow, and give the rows that Spark would give, in its order.

A *scan* is plain data that the driver makes out of Spark's plan: `schema`, of the columns that are needed, with the types that Arrow has
for Spark's; `partitions`, the names of those that come from directories; `outputs`, pairs of a new name and a column's; `filters`, trees of
comparisons; and `case`, whether case counts in names of columns. A *split* is `path` (a URI), `start` and `length` in bytes, the `size` of
the file, and the `values` of `partitions`. A row group belongs to the split that has its middle, as in Spark.

`difference` looks at footers alone and names whatever could make Spark's rows others than Arrow's. Only where it finds nothing may `read`
be used.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Open = Callable[[str], Any] | None  # a file of a storage, by its URL

BATCH = (
    4 * 1024 * 1024
)  # bytes of a batch that is read, about: more at once is slower, since it leaves the processor's caches
_WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
_LEGACY = (
    b"org.apache.spark.legacyDateTime",
    b"org.apache.spark.legacyINT96",
)  # keys of files with days of the Julian calendar
_SAME_CALENDAR = (3, 1)  # the first version of Spark that writes those keys where they are needed


def read(scan: dict[str, Any], splits: Iterable[dict[str, Any]], storages: Open = None) -> Iterator[Any]:
    """Yield the rows of splits as `pyarrow.RecordBatch`es of Spark's types; the same batches each time."""
    for split in splits:
        with _opened(split, storages) as file:
            groups = _groups(file.metadata, split)
            if not groups:
                continue
            columns = {field.name: _column(scan, file.schema_arrow, field.name) for field in scan["schema"]}
            present = [column for column in columns.values() if column is not None]
            batches = file.iter_batches(_rows(file.metadata, groups, present), row_groups=groups, columns=present)
            for batch in _one_ahead(batches):
                yield _selected(
                    scan, {**_constants(scan, split, columns, batch.num_rows), **_read(scan, columns, batch)}
                )


def _one_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches, and decode the next one meanwhile: Arrow lets other threads run."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, batches, None)
        while (batch := following.result()) is not None:
            following = pool.submit(next, batches, None)
            yield batch


def difference(scan: dict[str, Any], splits: Iterable[dict[str, Any]], storages: Open = None) -> str | None:
    """Return why Arrow could read other rows out of these files than Spark; None where it reads the same."""
    try:
        for split in splits:
            with _opened(split, storages) as file:
                if reason := _difference(scan, file):
                    return f"{split['path']}: {reason}"
    except Exception as error:  # noqa: BLE001  whatever Arrow cannot open, Spark may
        return f"executors cannot read the files with Arrow: {type(error).__name__}: {str(error)[:300]}"
    return None


# -- files --


@contextmanager
def _opened(split: dict[str, Any], storages: Open) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile

    with _source(split["path"], storages) as source:
        if source.size() != split["size"]:
            raise ValueError(f"{split['path']} has changed since Spark listed it")
        with ParquetFile(source, coerce_int96_timestamp_unit="us") as file:  # Spark's unit
            yield file


def _source(uri: str, storages: Open) -> Any:
    import pyarrow

    url = urlsplit(uri)
    if url.scheme == "file":
        return pyarrow.OSFile(unquote(url.path))
    if storages is None:
        raise ValueError(f"{uri} is not a file of this machine")
    return pyarrow.PythonFile(storages(uri), "r")


def _groups(metadata: Any, split: dict[str, Any]) -> list[int]:
    """Return the row groups whose middle is in the split, as Parquet's own library for Java assigns them."""
    groups = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(index) for index in range(group.num_columns)]
        begin = chunks[0].data_page_offset
        if chunks[0].has_dictionary_page and 0 < chunks[0].dictionary_page_offset < begin:
            begin = chunks[0].dictionary_page_offset
        middle = min(begin + sum(chunk.total_compressed_size for chunk in chunks) // 2, split["size"] - 1)
        if split["start"] <= middle < split["start"] + split["length"]:
            groups.append(number)
    return groups


def _rows(metadata: Any, groups: list[int], columns: list[str]) -> int:
    """Return the rows of a batch of about `BATCH` bytes."""
    group = metadata.row_group(groups[0])
    chunks = [group.column(index) for index in range(group.num_columns)]
    size: int = sum(
        max(chunk.num_values * _WIDTHS.get(chunk.physical_type, 1), chunk.total_uncompressed_size)
        for chunk in chunks
        if chunk.path_in_schema.partition(".")[0] in columns
    )
    return max(1, min(BATCH * int(group.num_rows) // max(size, 1), 1024 * 1024))


# -- columns --


def _column(scan: dict[str, Any], schema: Any, name: str) -> str | None:
    """Return a column's name in a file; None where the file lacks it: it is null there, or comes from the directory."""
    if name in scan["partitions"]:
        return None
    names = [own for own in schema.names if own == name or (not scan["case"] and own.lower() == name.lower())]
    if len(names) > 1:
        raise ValueError(f"the columns {' and '.join(names)} differ by case alone")
    return names[0] if names else None


def _difference(scan: dict[str, Any], file: Any) -> str | None:
    for field in scan["schema"]:
        column = _column(scan, file.schema_arrow, field.name)
        if column is None:
            continue
        if "." in column:
            return f"the column {column!r} has a dot in its name"
        own, is_time = file.schema_arrow.field(column).type, re.search("date|timestamp", str(field.type))
        if is_time and not _has_same_calendar(file.metadata.metadata or {}):
            return f"the days and times of the column {column!r} may be of another calendar"
        if not (
            _agrees(own, field.type) or (_is_int96(file, column) and str(field.type).startswith("timestamp[us, tz"))
        ):
            return f"the column {column!r} is {own} in the file, and {field.type} in the DataFrame"
    return None


def _agrees(own: Any, other: Any) -> bool:
    """Tell whether values of a file's type are those of the other type, which is Spark's."""
    from pyarrow import types

    if types.is_list(other) or types.is_large_list(other):
        is_list = types.is_list(own) or types.is_large_list(own) or types.is_fixed_size_list(own)
        return is_list and _agrees(own.value_type, other.value_type)
    if types.is_timestamp(other):
        return types.is_timestamp(own) and own.unit == other.unit and (own.tz is None) == (other.tz is None)
    return bool(own == other) or {str(own).removeprefix("large_"), str(other).removeprefix("large_")} in (
        {"string"},
        {"binary"},
    )


def _is_int96(file: Any, column: str) -> bool:
    leaves = [file.schema.column(index) for index in range(len(file.schema))]
    return any(leaf.path == column and leaf.physical_type == "INT96" for leaf in leaves)


def _has_same_calendar(metadata: dict[bytes, bytes]) -> bool:
    """Tell whether Spark reads the days and times of a file as they are (Proleptic Gregorian), by what its writer noted."""
    version = re.match(rb"(\d+)\.(\d+)", metadata.get(b"org.apache.spark.version", b""))
    is_new = version is not None and (int(version[1]), int(version[2])) >= _SAME_CALENDAR
    return is_new and not any(key in metadata for key in _LEGACY)


def _read(scan: dict[str, Any], columns: dict[str, str | None], batch: Any) -> dict[str, Any]:
    arrays = {}
    for field in scan["schema"]:
        if (column := columns[field.name]) is not None:
            array = batch.column(batch.schema.get_field_index(column))
            arrays[field.name] = array if array.type == field.type else array.cast(field.type)
    return arrays


def _constants(
    scan: dict[str, Any], split: dict[str, Any], columns: dict[str, str | None], rows: int
) -> dict[str, Any]:
    """Return the columns that a file lacks."""
    import pyarrow

    values = dict(zip(scan["partitions"], split["values"], strict=True))
    return {
        field.name: pyarrow.repeat(pyarrow.scalar(values.get(field.name), field.type), rows)
        for field in scan["schema"]
        if columns[field.name] is None
    }


# -- rows --


def _selected(scan: dict[str, Any], arrays: dict[str, Any]) -> Any:
    import pyarrow

    outputs = [arrays[source] for _, source in scan["outputs"]]
    batch = pyarrow.RecordBatch.from_arrays(outputs, [name for name, _ in scan["outputs"]])
    for condition in scan["filters"]:
        keep = _mask(condition, arrays)
        arrays = {name: array.filter(keep) for name, array in arrays.items()}
        batch = batch.filter(keep)  # a row whose condition is null goes, as in SQL
    return batch


def _mask(condition: list[Any], arrays: dict[str, Any]) -> Any:
    """Return where a condition is true, false or null, by SQL's logic."""
    import pyarrow
    from pyarrow import compute

    operation, *parts = condition
    if operation in ("and", "or", "not"):
        masks = [_mask(part, arrays) for part in parts]
        return {"and": compute.and_kleene, "or": compute.or_kleene, "not": compute.invert}[operation](*masks)
    array = arrays[parts[0]]
    if operation == "is null":
        return compute.is_null(array)
    if operation == "is true":
        return array
    if operation == "in":
        isin = compute.is_in(array, value_set=pyarrow.array(parts[1], array.type))
        return compute.if_else(compute.is_valid(array), isin, pyarrow.scalar(None, pyarrow.bool_()))
    value = pyarrow.scalar(parts[1], array.type)
    compare = {
        "=": compute.equal,
        "<": compute.less,
        "<=": compute.less_equal,
        ">": compute.greater,
        ">=": compute.greater_equal,
    }
    return compare[operation](array, value)
