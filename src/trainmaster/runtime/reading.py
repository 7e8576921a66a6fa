"""Read the records of one shard, and cut files into shards where no master does it.

Text is read by Hadoop's rule. A shard that does not begin at 0 drops what it reads up to the first line end. Each shard
reads on to the end of the line that begins at or before its own end. So exactly one shard reads each line, wherever the
cuts fall. A line ends with "\\n" (a "\\r" before it is dropped too). gzip, bzip2 and xz files are read as wholes,
Parquet by row groups as dictionaries, if pyarrow is there, RecordIO by chunks as bytes, and TFRecord by files as bytes.
Tables of databases are read by ranges of keys as dictionaries, if SQLAlchemy is there.

An input `records://COUNT/SIZE` has no files: its records are the numbers from 0 to COUNT, in shards of SIZE. The program reads what they
stand for. It also says COUNT and SIZE, as the default of its input, where the job names `records://` alone.
"""

from __future__ import annotations

import os
import re

from trainmaster.runtime.elsewhere import library, open_binary
from trainmaster.runtime.formats import is_table
from trainmaster.runtime.formats.kinds import format_of_file
from trainmaster.runtime.patterns import matching

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

    from trainmaster.runtime.formats import sql

LINES, ROWS, WHOLE, RECORDS = "lines", "rows", "whole", "records"
JSONL, CSV, RECORDIO, TFRECORD = "jsonl", "csv", "recordio", "tfrecord"
TABLE = "table"  # start and end are keys; of one that is read whole they mean nothing
_MARK = b"\xef\xbb\xbf"  # UTF-8 byte order mark; Hadoop drops it too
_PACKED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma"}
_COUNTED = re.compile(r"records://(?P<count>[1-9]\d*)(?:/(?P<size>[1-9]\d*))?(?:\?epochs=(?P<epochs>\d+))?")
MOST_SHARDS = 2**20  # of an input that is cut by a number of records: the master keeps each in its memory
_SHARDS = 1000  # into which an input of records is cut where its URL does not say the size of one


def lines(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """Yield the lines of the byte range [start, end) by Hadoop's rule, without their ends."""
    file.seek(start)
    position = start + len(file.readline()) if start else 0
    while position <= end:
        line = file.readline()
        if not line:
            return
        if position == 0 and line.startswith(_MARK):
            position += len(_MARK)
            line = line[len(_MARK) :]
        position += len(line)
        yield _stripped(line)


def joined(file_lines: Iterator[bytes]) -> Iterator[bytes]:
    """Join the lines of a whole file to the records of RFC 4180: one with an odd number of quotes goes on in the next line."""
    record_lines: list[bytes] = []
    quotes = 0
    for line in file_lines:
        record_lines.append(line)
        quotes += line.count(b'"')
        if quotes % 2 == 0:
            yield b"\n".join(record_lines)
            record_lines, quotes = [], 0
    if record_lines:
        yield b"\n".join(record_lines)


def _stripped(line: bytes) -> bytes:
    if line.endswith(b"\r\n"):
        return line[:-2]
    return line[:-1] if line.endswith(b"\n") else line


class Reader:
    """A reader of shards, one after another, that keeps the last file open, since the next shard is often of the same file."""

    def __init__(self, encoding: str | None, errors: str) -> None:
        self._encoding, self._errors = encoding, errors
        self._path = ""
        self._file: BinaryIO | None = None
        self._table: sql.Table | None = None

    def records(self, path: str, kind: str, start: int, end: int) -> Iterator[Any]:
        """Yield the records of a shard. Raises OSError where the file cannot be read, DamagedFile where it is damaged."""
        if is_table(path):
            yield from self._open_table(path).records(*((start, end) if kind == TABLE else ()))
            return
        if kind == RECORDS:
            yield from range(start, end)
            return
        if kind == RECORDIO:
            from .formats import recordio

            yield from recordio.records(self._open(path), path, start, end)
            return
        if kind == TFRECORD:
            from .formats import tfrecord

            yield from tfrecord.records(self._open(path), path, end)
            return
        if path.lower().endswith(".parquet") or kind == ROWS:
            yield from self._rows(path, None if kind == WHOLE else range(start, end))
            return
        file = self._open(path)
        is_packed = kind == WHOLE or path.lower().endswith(tuple(_PACKED))
        record_lines = self._unpacked_lines(path, file) if is_packed else lines(file, start, end)
        if kind == JSONL:
            record_lines = (line for line in record_lines if line.strip())
        elif kind == CSV:
            record_lines = joined(record_lines)
            next(record_lines, None)  # the header
        if self._encoding is None:
            yield from record_lines
            return
        for line in record_lines:
            yield line.decode(self._encoding, self._errors)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._table is not None:
            self._table.close()
        self._file, self._table, self._path = None, None, ""

    def _open(self, path: str) -> BinaryIO:
        if self._file is None or self._path != path:
            self.close()
            self._file, self._path = open_binary(path), path
        return self._file

    def _open_table(self, path: str) -> sql.Table:
        if self._table is None or self._path != path:
            from .formats import sql

            self.close()
            self._table, self._path = sql.Table(library("sqlalchemy", path), path), path
        return self._table

    def _unpacked_lines(self, path: str, file: BinaryIO) -> Iterator[bytes]:
        module = _PACKED.get(os.path.splitext(path)[1].lower())
        if module is None:
            raise OSError(f"{path}: records of this kind of file cannot be read")
        file.seek(0)
        import importlib

        with importlib.import_module(module).open(file, "rb") as unpacked:
            for number, line in enumerate(unpacked):
                yield _stripped(line if number else line.removeprefix(_MARK))

    def _rows(self, path: str, groups: range | None) -> Iterator[dict[str, Any]]:
        table = library("pyarrow.parquet", path).ParquetFile(self._open(path))
        for group in range(table.num_row_groups) if groups is None else groups:
            for batch in table.iter_batches(row_groups=[group]):
                yield from batch.to_pylist()


def cut_alone(place: str, format_name: str = "auto") -> list[tuple[str, str, int, int]]:
    """Return the shards (path, kind, start, end) of a file, directory, pattern or table: one per file or table. Hidden files and those led
    by _ are left out. `format_name`: as the job file's `format`.
    """
    if is_table(place):
        return [(place, WHOLE, 0, 0)]
    if place.startswith("records:"):
        count, size, _ = counted(place)
        return [(place, RECORDS, start, min(start + size, count)) for start in range(0, count, size)]
    shards = []
    for path in _files(place):
        size = os.path.getsize(path)
        if size:
            shards.append((path, _kind(path, format_name), 0, size))
    return shards


def counted(url: str) -> tuple[int, int, int]:
    """Return the records of `records://COUNT/SIZE`, those of a shard, and the epochs that the job has set for its program (0: none).

    Raises ValueError for any other text, and where there would be too many shards.
    """
    parts = _COUNTED.fullmatch(url)
    if parts is None:
        raise ValueError(f"{url} is not records://COUNT or records://COUNT/SIZE")
    count = int(parts["count"])
    size = int(parts["size"] or max(1, count // _SHARDS))
    if count > MOST_SHARDS * size:
        least = -(-count // MOST_SHARDS)
        raise ValueError(
            f"{url} makes {-(-count // size):,} shards, more than {MOST_SHARDS:,}: a shard needs {least:,} records or more"
        )
    return count, size, int(parts["epochs"] or 0)


def _kind(path: str, format_name: str) -> str:
    def read_head(size: int) -> bytes:
        with open_binary(path) as file:
            return bytes(file.read(size))

    if format_name == "auto":
        format_name = format_of_file(path, read_head)
    if format_name in (JSONL, CSV, RECORDIO, TFRECORD):
        return format_name
    return WHOLE if format_name == "parquet" or path.lower().endswith(tuple(_PACKED)) else LINES


def _files(place: str) -> list[str]:
    if place.startswith("file://"):
        from urllib.parse import unquote, urlsplit

        place = unquote(urlsplit(place).path)
    places = matching(place)
    if not places:
        raise FileNotFoundError(f"input {place} matches no file")
    files = []
    for path in places:
        if not os.path.isdir(path):
            files.append(path)
            continue
        for directory, inner, names in os.walk(path):
            inner[:] = sorted(name for name in inner if not name.startswith((".", "_")))
            files += [os.path.join(directory, name) for name in sorted(names) if not name.startswith((".", "_"))]
    return files
