"""The records of TFRecord files, `tf.train.Example`, without TensorFlow, protobuf or classes of a JVM.

An Example (tensorflow/core/example) is in protobuf's wire format: `Example {Features features = 1}`,
`Features {map<string, Feature> feature = 1}`, `Feature {oneof: BytesList 1, FloatList 2, Int64List 3}`, and each list is
`{repeated value = 1}`, packed where it holds numbers.

These functions run in Spark's tasks, where nothing of ours is installed: `dfutil` pickles them by value. So they use the standard library
alone, and the module has no state. Errors of the data are ValueError.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

Feature = tuple[
    str, list[Any]
]  # its kind ("bytes", "float", "int64", or "" for a feature without a list) and its values
NUMBER_OF = {"bytes": 1, "float": 2, "int64": 3}  # the kinds' field numbers in Feature


def encode(features: Sequence[tuple[str, str, Sequence[Any]]]) -> bytes:
    """Return the Example of features, each a name, a kind and its values, in their order."""
    entries = []
    for name, kind, values in features:
        feature = _field(NUMBER_OF[kind], _list_of(kind, values))
        entries.append(_field(1, _field(1, name.encode()) + _field(2, feature)))
    return _field(1, b"".join(entries))


def decode(example: bytes) -> dict[str, Feature]:
    """Return the features of an Example, by name. Raises ValueError where `example` is not an Example."""
    features: dict[str, Feature] = {}
    for body in _messages(example, 1):
        for entry in _messages(body, 1):
            name = b""
            feature: Feature = ("", [])
            for number, _, value in _fields(entry):
                if number == 1:
                    name = _bytes(value)
                elif number == 2:
                    feature = _feature(_bytes(value))
            features[name.decode()] = feature
    return features


def _feature(message: bytes) -> Feature:
    """Read a Feature. With several lists of one kind all values count; with several kinds, the last: protobuf's rules for oneof."""
    kinds = {number: kind for kind, number in NUMBER_OF.items()}
    kind: str = ""
    values: list[Any] = []
    for number, _, content in _fields(message):
        if number in kinds:
            values = values if kinds[number] == kind else []
            kind = kinds[number]
            for field, wire, value in _fields(_bytes(content)):
                if field == 1:
                    values.extend(_values(kind, wire, value))
    return kind, values


def _values(kind: str, wire: int, value: Any) -> Sequence[Any]:
    if kind == "bytes":
        return [_bytes(value)]
    if kind == "float":
        return _little("f", _bytes(value)).tolist()
    numbers = [value] if wire == 0 else _varints(_bytes(value))
    return [number - (1 << 64) if number >= 1 << 63 else number for number in numbers]


def _list_of(kind: str, values: Sequence[Any]) -> bytes:
    if kind == "bytes":
        return b"".join(_field(1, value) for value in values)
    if not values:
        return b""
    if kind == "float":
        return _field(1, _little("f", array("f", values).tobytes()).tobytes())
    return _field(1, b"".join(_varint(value) for value in values))


def _field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    content = bytearray()
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    content.append(number)
    return bytes(content)


def _messages(message: bytes, number: int) -> Iterator[bytes]:
    return (_bytes(value) for field, _, value in _fields(message) if field == number)


def _bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ValueError("the record is not a tf.train.Example: a field has another type")
    return value


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes | int]]:
    """Yield (number, wire type, value) of each field: an int for a varint, else bytes."""
    place = 0
    while place < len(message):
        key, place = _read_varint(message, place)
        wire = key & 7
        if wire == 0:
            value, place = _read_varint(message, place)
            yield key >> 3, wire, value
            continue
        if wire == 2:
            size, place = _read_varint(message, place)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"the record is not a tf.train.Example: wire type {wire}")
        if place + size > len(message):
            raise ValueError("the record is not a tf.train.Example, or is cut short")
        yield key >> 3, wire, message[place : place + size]
        place += size


def _varints(content: bytes) -> list[int]:
    numbers, place = [], 0
    while place < len(content):
        number, place = _read_varint(content, place)
        numbers.append(number)
    return numbers


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    """Return a number and the place after it."""
    number = 0
    for count, byte in enumerate(content[place : place + 10]):
        number |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return number & (1 << 64) - 1, place + count + 1
    raise ValueError("the record is not a tf.train.Example: a number has no end")


def _little(code: str, content: bytes) -> array[Any]:
    """Read little-endian numbers, or write them: it is the same exchange of bytes."""
    try:
        numbers = array(code, content)
    except ValueError as error:
        raise ValueError("the record is not a tf.train.Example: a list of floats is cut short") from error
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
