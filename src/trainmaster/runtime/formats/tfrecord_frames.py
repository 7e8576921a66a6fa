"""The frames of TFRecord files, without TensorFlow.

A file is a sequence of frames. A frame is the record's length (8 bytes), the checksum of these 8 bytes (4), the record, and its checksum
(4); numbers are little-endian, and a checksum is a masked CRC-32C (tensorflow/core/lib/io/record_writer.h), which is handed in. A
record may hold bytes that look like frames, so a file can only be read from its beginning.

Spark's tasks get this module by value, where nothing of ours is installed: it has no state, and needs the standard library alone.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

HEAD, FOOT = 12, 4  # bytes before and behind a record


def frame(record: bytes, checksum: Callable[[bytes], int]) -> bytes:
    """Return a record in the form that it has in a TFRecord file."""
    length = len(record).to_bytes(8, "little")
    return b"".join((length, checksum(length).to_bytes(4, "little"), record, checksum(record).to_bytes(4, "little")))


def is_head(head: bytes, checksum: Callable[[bytes], int]) -> bool:
    """Tell whether bytes are a length with its checksum."""
    return len(head) == HEAD and checksum(head[:8]) == int.from_bytes(head[8:], "little")


def records(file: BinaryIO, name: str, size: int | None, checksum: Callable[[bytes], int]) -> Iterator[bytes]:
    """Yield the records of a file of `size` bytes, None where nobody knows. Raises ValueError, with `name`, the number of a record and the
    offset of its frame, where the file is damaged or cut short.
    """
    offset = number = 0
    while head := bytes(file.read(HEAD)):  # files of obstore have bytes of a kind of their own
        place = f"record {number:,}, at byte {offset:,}"
        if len(head) == HEAD and not is_head(head, checksum):
            raise ValueError(f"{name} is not a TFRecord file, or is damaged: {place}")
        length = int.from_bytes(head[:8], "little") if len(head) == HEAD else 0
        end = offset + HEAD + length + FOOT
        content = bytes(file.read(length + FOOT)) if size is None or end <= size else b""
        if len(content) < length + FOOT:
            raise ValueError(f"{name} is cut short: {place}")
        record = content[:length]
        if checksum(record) != int.from_bytes(content[length:], "little"):
            raise ValueError(f"{name} is damaged: the checksum of {place}, does not match")
        yield record
        offset, number = end, number + 1
