"""How the files of an input become records.

A format says two things: whether a file of it can be cut anywhere, and how the records of a piece are read. A record
is bytes, without the line end that stands behind it. Adding a format is a row in `FORMATS`.

    lines     text; cut by Hadoop's rule (core.records)
    jsonl     the same, blank lines left out
    csv       the first record of each file is its header and left out; never cut, for quotes may hold line ends
    bytes     chunks of the file as they are; nothing is put behind them
    parquet   a row as a JSON object; a piece counts row groups; needs pyarrow, here or in the program's environment

`auto` goes by the file's ending: Parquet for .parquet, lines for all others, .csv too, since only the user knows
whether there is a header. Compressed files (.gz, .bz2, .xz) are unpacked on the way and never cut.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import attrs

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.input import shards
from trainmaster.core.input.records import Read, lines, quoted
from trainmaster.core.input.splits import Listing, Piece
from trainmaster.core.spec.job import Input
from trainmaster.data.formats import rows
from trainmaster.data.store.stores import Store, local_path, store_for
from trainmaster.data.store.transfer import CHUNK, retried, writing
from trainmaster.host import children

T = TypeVar("T")

_PACKED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma"}


@attrs.frozen(slots=True)
class Source:
    """A file to be read. `python` is the program's interpreter, asked where ours lacks a library."""

    store: Store
    name: str
    size: int
    python: str = ""

    @property
    def place(self) -> str:
        return f"{self.store.url}/{self.name}"

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes, tried again where that may help; none behind the end."""
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        return retried("read an input", self.place, lambda: self.store.read(self.name, offset, size))


@attrs.frozen(slots=True)
class Format:
    """`records(source, start, end)`: of the piece; `end` None for the whole file. `end` stands behind each record."""

    records: Callable[[Source, int, int | None], Iterator[bytes]]
    cuttable: bool = False
    end: bytes = b"\n"


def source_of(path: str, size: int, python: str = "") -> Source:
    """The file at a path or URL."""
    folder, _, name = (local_path(path) or path).rpartition("/")
    return Source(store_for(folder or "/"), name, size, python)


def format_of(name: str, path: str) -> Format:
    """The format of a file of an input with `format: name`. Raises BadInput for a name that is none."""
    if name in ("", "auto"):
        name = "parquet" if path.lower().endswith(".parquet") else "lines"
    return FORMATS[known(name)]


def known(name: str, key: str = "format") -> str:
    """`name`, a format; at submit too, with the `key` that names it. Raises BadInput for one that is none."""
    if name not in ("", "auto") and name not in FORMATS:
        raise BadInput(
            f"{name} is no format of records",
            place=f"{key}: {name}",
            mend=f"one of auto, {', '.join(FORMATS)}",
            anchor="unknown-format",
        )
    return name


def cuttable(name: str, path: str) -> bool:
    """Whether the records of a file can be dealt by ranges of its bytes."""
    return format_of(name, path).cuttable and not path.lower().endswith(tuple(_PACKED))


def records(piece: Piece, size: int, name: str = "auto", python: str = "") -> Iterator[bytes]:
    """The records of a piece of a file of `size` bytes."""
    return format_of(name, piece.path).records(source_of(piece.path, size, python), piece.start, piece.end)


def shard_files(given: Input, listing: Listing) -> list[shards.File]:
    """The files of a listing as shards are cut from: Parquet files with their number of row groups, where pyarrow is there to count."""
    found = []
    for file in listing.files:
        groups = None
        if format_of(given.format, file.path) is FORMATS["parquet"]:
            groups = row_groups(source_of(file.path, file.size))
        found.append(shards.File(file.path, file.size, groups))
    return found


# -- lines --


def _lines(source: Source, start: int, end: int | None) -> Iterator[bytes]:
    return (line for _, line in _numbered(source, start, end))


def _json_lines(source: Source, start: int, end: int | None) -> Iterator[bytes]:
    return (line for _, line in _numbered(source, start, end) if line.strip())


def _csv(source: Source, *_: int | None) -> Iterator[bytes]:
    return (line for offset, line in quoted(_numbered(source, 0, None)) if offset)


def _numbered(source: Source, start: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    return lines(_unpacked(source), start, end)


def _unpacked(source: Source) -> Read:
    """Reading a file in order, unpacked where it is packed."""
    ending = os.path.splitext(source.name)[1].lower()
    if ending not in _PACKED:
        return source.read
    file = _opened(source, ending)

    def read(_: int, size: int) -> bytes:
        try:
            return bytes(file.read(size))
        except Exception as error:  # each module has errors of its own
            raise damaged(source, error) from error

    return read


def _opened(source: Source, ending: str) -> Any:
    raw: Any = io.BufferedReader(_Ranged(source), CHUNK)
    return importlib.import_module(_PACKED[ending]).open(raw, "rb")


class _Ranged(io.RawIOBase):
    """A file read by ranges."""

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
    """A file that is not what its name says."""
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
    read, offset = _unpacked(source), start
    while data := read(offset, CHUNK if end is None else min(CHUNK, end - offset)):
        yield data
        offset += len(data)


# -- Parquet --


def row_groups(source: Source) -> int | None:
    """How many row groups a Parquet file has; None where nothing here can tell."""
    return _asked(source, lambda: rows.count(_seekable(source))) if _has_pyarrow() else None


def _parquet(source: Source, start: int, end: int | None) -> Iterator[bytes]:
    if not _has_pyarrow():
        yield from _printed(source, start, end)
        return
    found = rows.rows(_seekable(source), start, end)
    while (row := _asked(source, lambda: next(found, None))) is not None:
        yield row


def _asked(source: Source, ask: Callable[[], T]) -> T:
    """What pyarrow says, its complaints as ours."""
    import pyarrow

    try:
        return ask()
    except pyarrow.ArrowException as error:
        raise damaged(source, error) from error


def _has_pyarrow() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def _seekable(source: Source) -> BinaryIO:
    return io.BufferedReader(_Ranged(source), 1024 * 1024)


def _printed(source: Source, start: int, end: int | None) -> Iterator[bytes]:
    """The rows as the program's own Python prints them, of a file that is brought here for it."""
    if not source.python:
        raise _no_pyarrow(source)
    with tempfile.TemporaryDirectory(prefix="trainmaster-") as folder:
        path, told = Path(folder, "input.parquet"), Path(folder, "told")
        with path.open("wb") as file, writing(folder, source.size):
            for data in _bytes(source, 0, None):
                file.write(data)
        command = [source.python, rows.__file__, str(path), str(start), "" if end is None else str(end)]
        with told.open("wb") as errors, children.started(command, stdout=subprocess.PIPE, stderr=errors) as process:
            assert process.stdout is not None
            for line in process.stdout:
                yield line.removesuffix(b"\n")
            status = process.wait()
        if status:
            text = told.read_text(errors="replace").strip()
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
    "bytes": Format(_bytes, end=b""),
    "parquet": Format(_parquet),
}
