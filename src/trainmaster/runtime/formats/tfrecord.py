"""TFRecord files, without TensorFlow.

`tfrecord_frames` says what a file is. A record's identity is the offset of its frame, in a packed file that of the unpacked one.

A file may be packed by gzip, as TensorFlow's `compression_type="GZIP"` does, whatever its name is: its first bytes are then no length with
its checksum, but gzip's.
"""

from __future__ import annotations

import functools
import gzip
import zlib

from . import DamagedFile
from . import tfrecord_frames as frames
from .crc32c import masked_crc32c

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_GZIP = b"\x1f\x8b"
_checksum = functools.cache(masked_crc32c)


def is_head(head: bytes) -> bool:
    """Tell whether bytes are the length of a first record, with its checksum."""
    return frames.is_head(head[: frames.HEAD], _checksum())


def records(file: BinaryIO, name: str, size: int) -> Iterator[bytes]:
    """Yield the records of a file of `size` bytes. Raises DamagedFile, with `name`, the number of a record and the offset of its frame."""
    checksum = _checksum()
    file.seek(0)
    head = bytes(file.read(frames.HEAD))
    file.seek(0)
    is_packed = head.startswith(_GZIP) and not frames.is_head(head, checksum)
    try:
        if not is_packed:
            yield from frames.records(file, name, size, checksum)
            return
        with gzip.open(file, "rb") as unpacked:
            yield from frames.records(unpacked, name, None, checksum)  # type: ignore[arg-type]
    except ValueError as error:
        raise DamagedFile(str(error)) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedFile(f"{name} cannot be unpacked: {error}") from error
