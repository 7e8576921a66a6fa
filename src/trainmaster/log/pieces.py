"""Pieces of stored output: cut anywhere by their size, and then so that no character is."""

from __future__ import annotations


def whole_characters(data: bytes) -> bytes:
    """`data` without a UTF-8 character cut off at its end, where what is left is not empty."""
    for back in range(1, min(4, len(data))):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:  # the first byte of a character of 2 to 4 bytes
            return data[:-back] if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else data
        if byte & 0x80 == 0:
            break
    return data
