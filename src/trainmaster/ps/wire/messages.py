"""Messages, on a wire and in files: a prefix, a short header of JSON, and arrays as they are. Nothing is pickled.

    prefix    magic, version of the protocol, flags, CRC-32 (in files), bytes of the header, bytes of the payload; little-endian
    header    one JSON object; its "arrays" are [name, type, shape] of each array, in the order of the payload
    payload   the arrays in C's order, little-endian; each begins at a multiple of 64 bytes

With the flag SHARED the payload is in memory that both ends have, and the message ends after the header. The place of each array follows
from the arrays before it, so no message can name a place outside of its payload. Types are those of `_TYPES`; whatever else comes, or is
larger than the limits, is `Malformed`.
"""

from __future__ import annotations

import json
import struct
import zlib

import numpy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]
    Header = dict[str, Any]

PROTOCOL = 1  # both ends must have the same
PREFIX = struct.Struct("<4sHHIIQ")
SHARED = 1  # a flag
HEADER_LIMIT = 4 * 2**20  # bytes
PAYLOAD_LIMIT = 2**33  # bytes
STRANGER_LIMIT = 4096  # bytes of the header of whoever has not shown the token; a payload they may not send
BAD, NOT_FINITE, MOVED, AGAIN = "bad", "not-finite", "moved", "again"  # kinds of errors
_MAGIC = b"TMPS"
_TYPES = ("f4", "f2", "i8", "u4")
_ALIGNMENT = 64


class Malformed(ValueError):
    """These bytes are not a message of this protocol."""


class Prefix:
    """The sizes of a message that comes."""

    __slots__ = ("checksum", "header", "is_shared", "payload")

    def __init__(self, content: bytes | bytearray | memoryview, header_limit: int, payload_limit: int) -> None:
        magic, version, flags, self.checksum, self.header, self.payload = PREFIX.unpack(content)
        if magic != _MAGIC:
            raise Malformed("these are not messages of a parameter server")
        if version != PROTOCOL:
            raise Malformed(f"version {version} of the protocol, here it is {PROTOCOL}")
        if self.header > header_limit or self.payload > payload_limit:
            raise Malformed(
                f"a message of {self.header:,} + {self.payload:,} bytes, over the limit of {header_limit:,} + {payload_limit:,}"
            )
        self.is_shared = bool(flags & SHARED)


def parts_of(arrays: Arrays) -> tuple[list[list[Any]], list[tuple[int, NDArray[Any]]], int]:
    """Return the description of arrays for a header, each with its place in the payload, and the payload's size in bytes."""
    names, parts, end = [], [], 0
    for name, array in arrays.items():
        array = numpy.asarray(array, order="C")  # ascontiguousarray makes an array of what has no dimension
        kind = array.dtype.str[1:]
        if kind not in _TYPES:
            raise TypeError(f"an array of {array.dtype} cannot be sent: {name}")
        names.append([name, kind, list(array.shape)])
        parts.append((end, array))
        end = _aligned(end + array.nbytes)
    return names, parts, end


def head_of(header: Header, payload: int, flags: int = 0, checksum: int = 0) -> bytes:
    """Return prefix and header of a message whose payload has so many bytes."""
    content = json.dumps(header, separators=(",", ":")).encode()
    return PREFIX.pack(_MAGIC, PROTOCOL, flags, checksum, len(content), payload) + content


def buffers(header: Header, arrays: Arrays, is_checked: bool = False) -> list[bytes | memoryview]:
    """Return a message as the buffers to write one after another. `is_checked`: with a CRC-32 of header and payload."""
    names, parts, size = parts_of(arrays)
    header = {**header, "arrays": names}
    payload: list[bytes | memoryview] = []
    end = 0
    for begin, array in parts:
        if begin > end:
            payload.append(bytes(begin - end))
        if array.nbytes:
            payload.append(bytes_of(array))
        end = begin + array.nbytes
    if size > end:
        payload.append(bytes(size - end))
    checksum = 0
    if is_checked:
        checksum = zlib.crc32(json.dumps(header, separators=(",", ":")).encode())
        for part in payload:
            checksum = zlib.crc32(part, checksum)
    return [head_of(header, size, 0, checksum), *payload]


def parse_header(content: bytes | bytearray | memoryview) -> Header:
    try:
        header = json.loads(bytes(content))
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the header is not JSON: {error}") from None
    if not isinstance(header, dict) or not isinstance(header.get("arrays", []), list):
        raise Malformed("the header is not an object with arrays")
    return header


def parse_arrays(header: Header, payload: memoryview) -> dict[str, NDArray[Any]]:
    """Return the arrays of a message, as views of its payload."""
    arrays: dict[str, NDArray[Any]] = {}
    begin = 0
    for description in header.get("arrays", []):
        name, kind, shape = _described(description)
        count = 1
        for length in shape:
            count *= length
        size = count * int(kind[1:])
        if begin + size > len(payload):
            raise Malformed(f"array {name} ends outside of the payload's {len(payload):,} bytes")
        try:
            arrays[name] = numpy.frombuffer(payload[begin : begin + size], f"<{kind}").reshape(shape)
        except ValueError:  # no numbers, in more dimensions than NumPy can count
            raise Malformed(f"array {name} cannot have the shape {shape}") from None
        begin = _aligned(begin + size)
    return arrays


def bytes_of(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(numpy.uint8).data


def _described(description: Any) -> tuple[str, str, Sequence[int]]:
    if isinstance(description, list) and len(description) == 3:
        name, kind, shape = description
        is_shape = isinstance(shape, list) and len(shape) <= 32
        is_shape = is_shape and all(type(length) is int and 0 <= length < 2**40 for length in shape)
        if isinstance(name, str) and kind in _TYPES and is_shape:
            return name, kind, shape
    raise Malformed(f"no description of an array: {description!r:.200}")


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
