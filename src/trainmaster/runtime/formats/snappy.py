"""Snappy: blocks, and the stream format that Go's library writes around them (github.com/google/snappy, format_description.txt and
framing_format.txt).

A block is the length of its content as a varint, then elements: literal bytes, or copies of bytes that were written before. A stream is
a sequence of frames: a type (1 byte), a length (3 bytes) and a body, which holds a masked CRC-32C and a block of at most 64 KiB, packed or
not.

pyarrow packs and unpacks blocks where the environment has it. Without it blocks are unpacked in Python, and none are packed.
Errors of the data are ValueError.
"""

from __future__ import annotations

import functools

from .crc32c import masked_crc32c

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BLOCK = 65536  # bytes: the most content of a frame
_LARGEST_RATIO = 22  # of content to block: 3 bytes copy 64 at most
_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_checksum = functools.cache(masked_crc32c)
_PACKED, _PLAIN, _FIRST_SKIPPABLE = 0x00, 0x01, 0x80  # types of frames


def unpack_block(packed: bytes) -> bytes:
    """Return the content of a block. Raises ValueError where `packed` is not a block."""
    size, place = _read_size(packed)
    if (arrow := _arrow()) is None:
        return _unpack_elements(packed, place, size)
    try:
        return bytes(arrow.decompress(packed, decompressed_size=size, codec="snappy", asbytes=True))
    except OSError as error:  # how pyarrow names a damaged block
        raise ValueError(str(error)) from error


def unpack_stream(packed: bytes) -> bytes:
    """Return the content of a stream. Raises ValueError for anything else. Checksums are not compared: that of the chunk covers them."""
    content, place = [], 0
    while place < len(packed):
        kind = packed[place]
        end = place + 4 + int.from_bytes(packed[place + 1 : place + 4], "little")
        if place + 4 > len(packed) or end > len(packed):
            raise ValueError("a frame of Snappy is cut short")
        if kind == _PACKED:
            content.append(unpack_block(packed[place + 8 : end]))
        elif kind == _PLAIN:
            content.append(packed[place + 8 : end])
        elif kind < _FIRST_SKIPPABLE:
            raise ValueError(f"a frame of Snappy has the unknown type {kind}")
        place = end
    return b"".join(content)


def pack_stream(content: bytes) -> bytes:
    """Return the content as a stream. Raises ImportError where there is no pyarrow."""
    import pyarrow

    checksum, frames = _checksum(), [_IDENTIFIER]
    for start in range(0, len(content), _BLOCK):
        block = content[start : start + _BLOCK]
        packed = pyarrow.compress(block, codec="snappy", asbytes=True)
        kind, body = (_PACKED, packed) if len(packed) < len(block) else (_PLAIN, block)
        frames += [bytes((kind,)), (len(body) + 4).to_bytes(3, "little"), checksum(block).to_bytes(4, "little"), body]
    return b"".join(frames)


def _arrow() -> Any:
    """Return pyarrow, or None where it is not installed, or has no Snappy."""
    try:
        import pyarrow
    except ImportError:
        return None
    return pyarrow if pyarrow.Codec.is_available("snappy") else None


def _read_size(packed: bytes) -> tuple[int, int]:
    """Return the size of a block's content, and the place of its first element."""
    size = 0
    for count, byte in enumerate(packed[:5]):
        size |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            if size > _LARGEST_RATIO * len(packed):
                raise ValueError(f"a block of Snappy of {len(packed):,} bytes cannot hold {size:,}")
            return size, count + 1
    raise ValueError("a block of Snappy has no length")


def _unpack_elements(packed: bytes, place: int, size: int) -> bytes:
    content = bytearray()
    while place < len(packed):
        tag = packed[place]
        place += 1
        if tag & 3 == 0:  # a literal
            length = (tag >> 2) + 1
            if length > 60:
                width = length - 60
                length = int.from_bytes(packed[place : place + width], "little") + 1
                place += width
            if place + length > len(packed):
                raise ValueError("a block of Snappy is cut short")
            content += packed[place : place + length]
            place += length
            continue
        if tag & 3 == 1:
            length, width = (tag >> 2 & 7) + 4, 1
            distance = (tag >> 5) << 8 | int.from_bytes(packed[place : place + 1], "little")
        else:
            length, width = (tag >> 2) + 1, 2 if tag & 3 == 2 else 4
            distance = int.from_bytes(packed[place : place + width], "little")
        place += width
        if not 0 < distance <= len(content):
            raise ValueError("a block of Snappy copies from before its beginning")
        start = len(content) - distance
        source = bytes(content[start : start + length])
        content += source if distance >= length else (source * (length // distance + 1))[:length]
    if len(content) != size:
        raise ValueError(f"a block of Snappy has {len(content)} bytes, and should have {size}")
    return bytes(content)
