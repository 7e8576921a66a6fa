"""CRC-32C, the checksum of TFRecord files, of Snappy's stream format, and of some RecordIO files.

Packages that compute it in C are used where the environment has one; otherwise Python does it, at about 20 MB/s. The module has no state:
Spark's tasks get it pickled by value.
"""

from __future__ import annotations

import sys
from array import array
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def crc32c_function() -> Callable[[bytes], int]:
    """Return a function that computes CRC-32C: of a package that has it in C, if there is one, else in Python."""
    for module, name in (("google_crc32c", "value"), ("crc32c", "crc32c")):
        try:
            return getattr(import_module(module), name)  # type: ignore[no-any-return]
        except ImportError:
            continue
    return crc32c_in_python()


def masked_crc32c() -> Callable[[bytes], int]:
    """Return a function that computes the masked checksum: CRC-32C, rotated right by 15 bits, plus 0xA282EAD8."""
    crc32c = crc32c_function()

    def checksum(content: bytes) -> int:
        crc = crc32c(content)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    return checksum


def crc32c_in_python() -> Callable[[bytes], int]:
    """Return a function that computes CRC-32C by tables, two bytes a step."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    wide_table = []
    for word in range(65536):
        crc = table[word & 0xFF] ^ word >> 8
        wide_table.append(table[crc & 0xFF] ^ crc >> 8)

    def crc32c(content: bytes) -> int:
        words = array("H", content[: len(content) & ~1])
        if sys.byteorder == "big":
            words.byteswap()
        crc = 0xFFFFFFFF
        for word in words:
            crc = wide_table[(crc ^ word) & 0xFFFF] ^ crc >> 16
        if len(content) & 1:
            crc = table[(crc ^ content[-1]) & 0xFF] ^ crc >> 8
        return crc ^ 0xFFFFFFFF

    return crc32c
