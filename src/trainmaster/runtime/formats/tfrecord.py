"""TFRecord files, without TensorFlow.

A file is a sequence of frames. A frame is the record's length (8 bytes), the checksum of these 8 bytes (4), the record, and its checksum
(4); numbers are little-endian, and a checksum is a masked CRC-32C (tensorflow/core/lib/io/record_writer.h). A record may hold bytes that
look like frames, so a file can only be read from its beginning. A record's identity is the offset of its frame, in a packed file that of
the unpacked one.

A file may be packed by gzip, as TensorFlow's `compression_type="GZIP"` does, whatever its name is: its first bytes are then no length with
its checksum, but gzip's.
"""

from __future__ import annotations

import functools
import gzip
import struct
import zlib

from . import DamagedFile
from .crc32c import masked_crc32c

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_HEAD = struct.Struct("<QI")
_FOOT = struct.Struct("<I")
_GZIP = b"\x1f\x8b"
_checksum = functools.cache(masked_crc32c)


def records(file: BinaryIO, name: str, size: int) -> Iterator[bytes]:
    """Yield the records of a file of `size` bytes. Raises DamagedFile, with `name`, the number of a record and the offset of its frame."""
    file.seek(0)
    head = bytes(file.read(_HEAD.size))
    file.seek(0)
    if not head.startswith(_GZIP) or _is_head(head):
        yield from _plain_records(file, name, size)
        return
    try:
        with gzip.open(file, "rb") as unpacked:
            yield from _plain_records(unpacked, name, None)  # type: ignore[arg-type]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedFile(f"{name} cannot be unpacked: {error}") from error


def _is_head(head: bytes) -> bool:
    return len(head) == _HEAD.size and _checksum()(head[:8]) == _HEAD.unpack(head)[1]


def _plain_records(file: BinaryIO, name: str, size: int | None) -> Iterator[bytes]:
    offset = number = 0
    while head := bytes(file.read(_HEAD.size)):  # files of obstore have bytes of a kind of their own
        place = f"record {number:,}, at byte {offset:,}"
        if len(head) == _HEAD.size and not _is_head(head):
            raise DamagedFile(f"{name} is no TFRecord file, or is damaged: {place}")
        length = _HEAD.unpack(head)[0] if len(head) == _HEAD.size else 0
        end = offset + _HEAD.size + length + _FOOT.size
        content = bytes(file.read(length + _FOOT.size)) if size is None or end <= size else b""
        if len(content) < length + _FOOT.size:
            raise DamagedFile(f"{name} is cut short: {place}")
        record = content[:length]
        if _checksum()(record) != _FOOT.unpack(content[length:])[0]:
            raise DamagedFile(f"{name} is damaged: the checksum of {place}, does not match")
        yield record
        offset, number = end, number + 1
