"""Formats turn the files of an input into records.

A format says two things: whether a file of it can be cut anywhere, and how the records of a piece are read. A record
is bytes, without the line end that follows it. Adding a format is a row in `FORMATS`.

    lines     text; cut by Hadoop's rule (core.records)
    jsonl     the same, blank lines left out
    csv       the first record of each file is its header and left out; never cut, for quotes may hold line ends
    bytes     chunks of the file as they are; nothing follows them
    parquet   a row as a JSON object; a piece counts row groups; needs pyarrow, here or in the program's environment

Formats of `BINARY` have records that nothing separates in a stream. Programs read them themselves, as shards (`runtime.formats`); where
their files can be cut, the master looks for the places.

    recordio  chunks of records; cut between chunks
    tfrecord  frames of records; never cut, for a record may look like frames

`auto` goes by the file's ending: Parquet for .parquet, RecordIO for .recordio, TFRecord for .tfrecord and .tfrecords, lines for .csv too,
since only the user knows whether there is a header. Where the ending tells nothing, the first bytes tell RecordIO, TFRecord or
lines. Compressed files (.gz, .bz2, .xz) are unpacked on the way and never cut.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import attrs

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.input import shards
from trainmaster.core.input.records import Read, lines, quoted
from trainmaster.core.input.splits import File, Listing, Piece
from trainmaster.core.spec.job import Input
from trainmaster.data.formats import rows
from trainmaster.data.store.stores import Store, local_path, store_for
from trainmaster.data.store.transfer import CHUNK, retried, writing
from trainmaster.host import children
from trainmaster.runtime.formats import DamagedFile, recordio
from trainmaster.runtime.formats.kinds import format_of_file
from trainmaster.runtime.reading import MOST_SHARDS

T = TypeVar("T")

BINARY = (shards.RECORDIO, shards.TFRECORD)
BYTES = "bytes"  # the files as they are
_PACKED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma"}
_CONCURRENT = 16  # files whose chunks are looked for at once
_SAMPLES, _SAMPLE = 8, 64 * 1024  # files, and bytes of each, by which the length of a line is guessed


@attrs.frozen(slots=True)
class Source:
    """A file to be read. `python` is the program's interpreter, used where ours lacks a library."""

    store: Store
    name: str
    size: int
    python: str = ""

    @property
    def place(self) -> str:
        return f"{self.store.url}/{self.name}"

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes, with retries where they may help; none behind the end."""
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        return retried("read an input", self.place, lambda: self.store.read(self.name, offset, size))


@attrs.frozen(slots=True)
class Format:
    """A way to read a kind of file. `records(source, start, end)` yields the records of a piece, or of the whole file where its `end` is
    None. The field `end`: the bytes that follow each record.
    """

    records: Callable[[Source, int, int | None], Iterator[bytes]]
    cuttable: bool = False
    end: bytes = b"\n"


def source_of(path: str, size: int, python: str = "") -> Source:
    """Return the file at a path or URL."""
    folder, _, name = (local_path(path) or path).rpartition("/")
    return Source(store_for(folder or "/"), name, size, python)


def format_name(name: str, path: str, read_head: Callable[[int], bytes] = lambda size: b"") -> str:
    """Return the name of the format of a file of an input with `format: name`. Raises BadInput for an unknown name."""
    return format_of_file(path, read_head) if name in ("", "auto") else known(name)


def format_of(name: str, path: str, read_head: Callable[[int], bytes] = lambda size: b"") -> Format:
    """Return the format by which a file of an input with `format: name` is streamed. Raises BadInput where there is none."""
    if (name := format_name(name, path, read_head)) in BINARY:
        raise _no_stream(name, path)
    return FORMATS[name]


def known(name: str, key: str = "format") -> str:
    """Return `name` if it is a format. Raises BadInput, naming `key` of the job file, if not; submit calls this too."""
    if name not in ("", "auto", *FORMATS, *BINARY):
        raise BadInput(
            f"{name} is not a format of records",
            place=f"{key}: {name}",
            mend=f"one of auto, {', '.join((*FORMATS, *BINARY))}",
            anchor="unknown-format",
        )
    return name


def check_format(input_: Input) -> None:
    """Raise BadInput, naming the key, where the input's format is unknown, or cannot be read as the input is to be read."""
    key = f"inputs.{input_.name}.format"
    if known(input_.format, key) in BINARY and input_.as_ == "stream":
        raise _no_stream(input_.format, f"{key}: {input_.format}")
    if input_.format == BYTES and input_.as_ == "shards":
        raise BadInput(
            "shards have records, and with format: bytes a file has none",
            place=f"{key}: {input_.format}", mend="say as: stream, or format: lines", anchor="unknown-format",
        )  # fmt: skip


def _no_stream(name: str, place: str) -> BadInput:
    return BadInput(
        f"records of the format {name} hold any bytes, so nothing could separate them in a stream",
        place=place,
        mend="say as: shards",
        anchor="unknown-format",
    )


def cuttable(name: str, path: str) -> bool:
    """Tell whether the records of a file can be dealt by ranges of its bytes."""
    return format_of(name, path).cuttable and not path.lower().endswith(tuple(_PACKED))


def records(piece: Piece, size: int, name: str = "auto", python: str = "") -> Iterator[bytes]:
    """Return the records of a piece of a file of `size` bytes."""
    source = source_of(piece.path, size, python)
    return format_of(name, piece.path, lambda size: source.read(0, size)).records(source, piece.start, piece.end)


def shard_files(input_: Input, listing: Listing) -> list[shards.File]:
    """Return the files of a listing, to cut shards from: Parquet files with their number of row groups, where pyarrow is there to count,
    and RecordIO files with the places where shards begin. Raises StorageFailed where a file cannot be read, or is damaged.
    """
    if input_.location.startswith("records:"):
        return [shards.File(file.path, file.size, None, shards.RECORDS) for file in listing.files]
    names = _format_names(input_, listing)
    chunked = [file for file, name in zip(listing.files, names, strict=True) if name == shards.RECORDIO]
    cuts = _recordio_cuts(chunked, input_.shard_records)
    files = []
    for file, name in zip(listing.files, names, strict=True):
        groups = row_groups(source_of(file.path, file.size)) if name == "parquet" else None
        kind = name if name in shards.NAMED else ""
        files.append(shards.File(file.path, file.size, groups, kind, cuts.get(file.path, ())))
    return files


def shard_size(input_: Input, listing: Listing) -> int:
    """Return the bytes of a shard of about `shard_records` lines, by the first lines of some files. 0: the rule decides."""
    if not input_.shard_records:
        return 0
    lines_of = [
        file
        for file, name in zip(listing.files, _format_names(input_, listing), strict=True)
        if file.size and name in ("lines", shards.JSONL) and cuttable(name, file.path)
    ]
    samples = [source_of(file.path, file.size).read(0, _SAMPLE) for file in lines_of[:_SAMPLES]]
    if not samples:
        return 0
    mean = sum(map(len, samples)) / max(1, sum(sample.count(b"\n") for sample in samples))
    return max(1, round(input_.shard_records * mean), sum(file.size for file in lines_of) // MOST_SHARDS)


def _format_names(input_: Input, listing: Listing) -> list[str]:
    """Return the format of each file. Files of one folder whose names differ in numbers alone are of one format: one is looked into."""
    names: dict[tuple[str, str], str] = {}
    for file in listing.files:
        kin = _kin(file)
        if file.size and kin not in names:
            names[kin] = format_name(input_.format, file.path, partial(source_of(file.path, file.size).read, 0))
    return [names.get(_kin(file), "lines") for file in listing.files]


def _kin(file: File) -> tuple[str, str]:
    """Return the folder, and the name without its numbers: `part-00017-of-00100`."""
    folder, name = os.path.split(file.path)
    return folder, re.sub(r"\d+", "", name.lower())


# -- RecordIO --


def _recordio_cuts(files: Sequence[File], records: int) -> dict[str, tuple[int, ...]]:
    """Return the offsets at which the shards of RecordIO files begin, by path. A shard has `records` or more; with 0 they are cut by size,
    and a file within the size of one shard is not read.
    """
    size = shards.fitting_size(sum(file.size for file in files))
    large = [file for file in files if records or file.size > size]
    with ThreadPoolExecutor(_CONCURRENT) as pool:
        cuts = pool.map(lambda file: _cut_chunks(source_of(file.path, file.size), size, records), large)
        return {file.path: offsets for file, offsets in zip(large, cuts, strict=True)}


def _cut_chunks(source: Source, size: int, records: int) -> tuple[int, ...]:
    """Return the offsets of the first chunk, and of each one behind `records` or more since the offset before it; with 0 `size` bytes."""
    cuts: list[int] = []
    since = 0  # records behind the last offset
    try:
        for offset, count in recordio.chunks(source.read, source.size, source.place):
            if not cuts or (since >= records if records else offset - cuts[-1] >= size):
                cuts.append(offset)
                since = 0
            since += count
    except DamagedFile as error:
        raise damaged(source, error) from error
    return tuple(cuts)


# -- lines --


def _lines(source: Source, start: int, end: int | None) -> Iterator[bytes]:
    return (line for _, line in _numbered_lines(source, start, end))


def _json_lines(source: Source, start: int, end: int | None) -> Iterator[bytes]:
    return (line for _, line in _numbered_lines(source, start, end) if line.strip())


def _csv(source: Source, *_: int | None) -> Iterator[bytes]:
    return (line for offset, line in quoted(_numbered_lines(source, 0, None)) if offset)


def _numbered_lines(source: Source, start: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    return lines(_reader(source), start, end)


def _reader(source: Source) -> Read:
    """Return a function that reads a file in order, unpacked where it is packed."""
    ending = os.path.splitext(source.name)[1].lower()
    if ending not in _PACKED:
        return source.read
    file = _open_packed(source, ending)

    def read(_: int, size: int) -> bytes:
        try:
            return bytes(file.read(size))
        except Exception as error:  # each module has errors of its own
            raise damaged(source, error) from error

    return read


def _open_packed(source: Source, ending: str) -> Any:
    raw: Any = io.BufferedReader(_Ranged(source), CHUNK)
    return importlib.import_module(_PACKED[ending]).open(raw, "rb")


class _Ranged(io.RawIOBase):
    """A file object that reads a source by ranges."""

    def __init__(self, source: Source) -> None:
        self._source, self._offset = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._offset = offset + (0, self._offset, self._source.size)[whence]
        return self._offset

    def readinto(self, buffer: Any) -> int:
        data = self._source.read(self._offset, len(buffer))
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)


def damaged(source: Source, error: Exception) -> StorageFailed:
    """Return the error for a file that is not what its name says."""
    if isinstance(error, StorageFailed):
        return error
    return StorageFailed(
        f"a file of the input cannot be read: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
        place=source.place,
        mend="see whether the file is whole and of the format that its name says",
        anchor="input-damaged",
    )


# -- bytes --


def _bytes(source: Source, start: int, end: int | None) -> Iterator[bytes]:
    read, offset = _reader(source), start
    while data := read(offset, CHUNK if end is None else min(CHUNK, end - offset)):
        yield data
        offset += len(data)


# -- Parquet --


def row_groups(source: Source) -> int | None:
    """Return the number of row groups of a Parquet file; None where pyarrow is not there to count."""
    return _ask_pyarrow(source, lambda: rows.count(_seekable(source))) if _has_pyarrow() else None


def _parquet(source: Source, start: int, end: int | None) -> Iterator[bytes]:
    if not _has_pyarrow():
        yield from _rows_by_program(source, start, end)
        return
    row_lines = rows.rows(_seekable(source), start, end)
    while (row := _ask_pyarrow(source, lambda: next(row_lines, None))) is not None:
        yield row


def _ask_pyarrow(source: Source, ask: Callable[[], T]) -> T:
    """Call pyarrow and turn its errors into ours."""
    import pyarrow

    try:
        return ask()
    except pyarrow.ArrowException as error:
        raise damaged(source, error) from error


def _has_pyarrow() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def _seekable(source: Source) -> BinaryIO:
    return io.BufferedReader(_Ranged(source), 1024 * 1024)


def _rows_by_program(source: Source, start: int, end: int | None) -> Iterator[bytes]:
    """Yield the rows that the program's own Python prints, of a file that is downloaded for it first."""
    if not source.python:
        raise _no_pyarrow(source)
    with tempfile.TemporaryDirectory(prefix="trainmaster-") as folder:
        path, error_file = Path(folder, "input.parquet"), Path(folder, "told")
        with path.open("wb") as file, writing(folder, source.size):
            for data in _bytes(source, 0, None):
                file.write(data)
        command = [source.python, rows.__file__, str(path), str(start), "" if end is None else str(end)]
        with (
            error_file.open("wb") as errors,
            children.started(command, stdout=subprocess.PIPE, stderr=errors) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                yield line.removesuffix(b"\n")
            status = process.wait()
        if status:
            text = error_file.read_text(errors="replace").strip()
            if "No module named 'pyarrow'" in text:
                raise _no_pyarrow(source)
            raise damaged(source, ValueError(text.splitlines()[-1] if text else f"status {status}"))


def _no_pyarrow(source: Source) -> BadInput:
    return BadInput(
        "Parquet cannot be read without pyarrow",
        place=source.place,
        mend="put pyarrow into the program's environment",
        anchor="no-pyarrow",
    )


FORMATS: dict[str, Format] = {
    "lines": Format(_lines, cuttable=True),
    "jsonl": Format(_json_lines, cuttable=True),
    "csv": Format(_csv),
    BYTES: Format(_bytes, end=b""),
    "parquet": Format(_parquet),
}
