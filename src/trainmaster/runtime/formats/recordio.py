"""RecordIO files: chunks of records, as ElasticDL's and PaddlePaddle's users have them.

    from trainmaster.runtime.formats import recordio

    with recordio.Writer("train.recordio") as writer:
        writer.write(b"any bytes")

A file is a sequence of chunks, and a chunk a header of five numbers (32 bits, little-endian) and a body. The body, once unpacked, is a
sequence of records: the length (32 bits, little-endian) and the bytes. A file can be cut between any two chunks. A record's identity is the
offset of its chunk and its place in it.

The header begins with the number 0x01020304. Three libraries wrote three layouts of the rest:

| library | the header's other numbers | checksum of the body | not packed, Snappy, gzip |
|---|---|---|---|
| `recordio`, `pyrecordio` (Go inside) | checksum, compressor, size, records | CRC-32 | 0, 1 (stream), 2 |
| Paddle Fluid (C++) | records, checksum, compressor, size | CRC-32 | 0, 1 (stream), 2 |
| github.com/elasticdl/pyrecordio (Python, C++) | records, checksum, compressor, size | CRC-32C | 1, 2 (block), 3 |

The first is what ElasticDL reads, and what `Writer` writes. All three are read. The third number tells the layouts apart: no body is as
short as 3 bytes, and no compressor has a larger number. The checksum tells the last two apart.
"""

from __future__ import annotations

import functools
import gzip
import os
import struct
import zlib
from typing import NamedTuple

from . import DamagedFile
from .crc32c import crc32c_function
from .snappy import pack_stream, unpack_block, unpack_stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike
    from types import TracebackType
    from typing import BinaryIO

MAGIC = 0x01020304
CHUNK = 1024 * 1024  # bytes of records in a chunk
_HEADER = struct.Struct("<5I")
_LENGTH = struct.Struct("<I")
_LARGEST_COMPRESSOR = 3
_BLOCK = 64 * 1024  # bytes read at once in search of headers
_gzip = functools.partial(gzip.compress, mtime=0)  # the same records, the same file
_crc32c = functools.cache(crc32c_function)
_PACKERS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, bytes),
    "snappy": (1, pack_stream),
    "gzip": (2, _gzip),
}
_UNPACKERS: dict[int, Callable[[bytes], bytes]] = {0: bytes, 1: unpack_stream, 2: gzip.decompress}
_UNPACKERS_OF_CRC32C: dict[int, Callable[[bytes], bytes]] = {1: bytes, 2: unpack_block, 3: gzip.decompress}


def is_head(head: bytes) -> bool:
    """Tell whether bytes begin a chunk."""
    return head.startswith(MAGIC.to_bytes(4, "little"))


class _Header(NamedTuple):
    """A chunk's header. `size`: bytes of the body, as it is stored."""

    checksum: int
    compressor: int
    size: int
    records: int
    is_records_first: bool


def records(file: BinaryIO, name: str, start: int, end: int) -> Iterator[bytes]:
    """Yield the records of the chunks in the bytes [start, end) of a file, where `start` and `end` are borders of chunks.

    Raises DamagedFile, with `name` and the offset of the chunk.
    """
    offset = start
    while offset < end:
        file.seek(offset)
        header = _parse_header(file.read(_HEADER.size), name, offset, end)
        body = bytes(file.read(header.size))  # files of obstore have bytes of a kind of their own
        yield from _unpack_records(_unpack_body(body, header, name, offset), header.records, name, offset)
        offset += _HEADER.size + header.size


def chunk_offsets(read: Callable[[int, int], bytes], size: int, name: str) -> Iterator[int]:
    """Yield the offsets of the chunks of a file, as `chunks` does."""
    return (offset for offset, _ in chunks(read, size, name))


def chunks(read: Callable[[int, int], bytes], size: int, name: str) -> Iterator[tuple[int, int]]:
    """Yield the offsets of the chunks of a file of `size` bytes, each with its number of records. `read(offset, size)` returns up to
    `size` bytes of it.

    Headers alone are looked at. Raises DamagedFile, with `name` and the offset.
    """
    offset, block, block_offset = 0, b"", 0
    while offset < size:
        if offset + _HEADER.size > block_offset + len(block):
            block, block_offset = read(offset, _BLOCK), offset
        place = offset - block_offset
        header = _parse_header(block[place : place + _HEADER.size], name, offset, size)
        yield offset, header.records
        offset += _HEADER.size + header.size


class Writer:
    """A writer of a RecordIO file in the layout of `recordio` and `pyrecordio`. Not to be used by several threads.

    `compressor`: none, snappy, which needs pyarrow, or gzip, which `pyrecordio` writes too, but hangs when it reads it. `chunk`: the bytes
    of records after which a chunk is written; a reader unpacks a chunk at once. The file is there once `close` returned, and complete then;
    an exception that leaves the `with` block leaves no file.
    """

    def __init__(self, path: str | PathLike[str], *, compressor: str = "none", chunk: int = CHUNK) -> None:
        if compressor not in _PACKERS:
            raise ValueError(f"compressor {compressor} is unknown: one of {', '.join(_PACKERS)}")
        self._compressor, self._pack = _PACKERS[compressor]
        self._limit = chunk
        self._records: list[bytes] = []
        self._size = 0
        self._path = os.fspath(path)
        # A pipe or a device is written directly. No input holds a name that begins with a point.
        folder, name = os.path.split(self._path)
        is_file = os.path.isfile(self._path) or not os.path.lexists(self._path)
        self._draft = os.path.join(folder, f".{name}.part") if is_file else self._path
        self._file = open(self._draft, "wb")  # noqa: SIM115  closed by `close`

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not self._file.closed:
            self._file.close()
            if self._draft != self._path:
                os.unlink(self._draft)

    def write(self, record: bytes) -> None:
        """Append a record."""
        if self._records and self._size + len(record) > self._limit:
            self._write_chunk()
        self._records += [_LENGTH.pack(len(record)), record]
        self._size += len(record)

    def close(self) -> None:
        """Write the last chunk, and close the file."""
        if not self._file.closed:
            self._write_chunk()
            self._file.close()
            if self._draft != self._path:
                os.replace(self._draft, self._path)

    def _write_chunk(self) -> None:
        if not self._records:
            return
        body = self._pack(b"".join(self._records))
        self._file.write(_HEADER.pack(MAGIC, zlib.crc32(body), self._compressor, len(body), len(self._records) // 2))
        self._file.write(body)
        self._records, self._size = [], 0


def _parse_header(content: bytes, name: str, offset: int, end: int) -> _Header:
    """Return the header of the chunk at `offset`, whose body ends at `end` at the latest."""
    if len(content) < _HEADER.size or offset + _HEADER.size > end:
        raise DamagedFile(f"{name} is cut short: the chunk at byte {offset:,} has no whole header")
    magic, *numbers = _HEADER.unpack(content)
    if magic != MAGIC:
        raise DamagedFile(f"{name} is not a RecordIO file, or is damaged: no chunk begins at byte {offset:,}")
    if numbers[2] <= _LARGEST_COMPRESSOR:
        count, checksum, compressor, size = numbers
        header = _Header(checksum, compressor, size, count, True)
    else:
        checksum, compressor, size, count = numbers
        header = _Header(checksum, compressor, size, count, False)
        if header.compressor not in _UNPACKERS:
            raise DamagedFile(f"{name}: the chunk at byte {offset:,} has the unknown compressor {header.compressor}")
    if offset + _HEADER.size + header.size > end:
        missing = offset + _HEADER.size + header.size - end
        raise DamagedFile(f"{name} is cut short: the chunk at byte {offset:,} lacks its last {missing:,} bytes")
    return header


def _unpack_body(body: bytes, header: _Header, name: str, offset: int) -> bytes:
    """Return a chunk's records as they follow each other, once its checksum was compared."""
    unpackers = _UNPACKERS
    if len(body) < header.size:
        raise DamagedFile(f"{name} is cut short in the chunk at byte {offset:,}")
    if zlib.crc32(body) != header.checksum:
        if not header.is_records_first or _crc32c()(body) != header.checksum:
            raise DamagedFile(f"{name} is damaged: the checksum of the chunk at byte {offset:,} does not match")
        unpackers = _UNPACKERS_OF_CRC32C
    if header.compressor not in unpackers:
        raise DamagedFile(f"{name}: the chunk at byte {offset:,} has the unknown compressor {header.compressor}")
    try:
        return unpackers[header.compressor](body)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise DamagedFile(f"{name}: the chunk at byte {offset:,} cannot be unpacked: {error}") from error


def _unpack_records(content: bytes, count: int, name: str, offset: int) -> Iterator[bytes]:
    place = 0
    for number in range(count):
        end = place + _LENGTH.size
        end += _LENGTH.unpack_from(content, place)[0] if end <= len(content) else 0
        if end > len(content):
            raise DamagedFile(f"{name} is damaged: record {number:,} of the chunk at byte {offset:,} has no end")
        yield content[place + _LENGTH.size : end]
        place = end
    if place != len(content):
        raise DamagedFile(
            f"{name} is damaged: the chunk at byte {offset:,} has more than the {count:,} records that its header counts"
        )
