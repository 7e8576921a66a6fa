"""Results of rows, as bytes: columns of numbers, text and bytes, so that nothing is unpickled.

    lengths of the next two (8 bytes each) | lengths of the buffers, header (both JSON) | buffers, each from a multiple of 64 bytes on

A result is a number, a boolean, text, bytes, None, an array of NumPy, or a tuple, list or dict of such; it comes back as what it was,
but that a scalar of NumPy becomes Python's, and a tensor (anything with `numpy()`) an array. The header is a *node*: what values there
are, how many, and the nodes of what they have in them.

    [int | float | bool, count]                         one buffer
    [text | bytes, count]                               lengths, then all bytes
    [none, count]                                       no buffer
    [array, count, dtype, shape]                        one buffer
    [row, count, [a node for each place]]               tuples of one length: a node for all values at the same place
    [list, count, node]                                 lengths, then the values of all
    [mixed, count, [nodes]]                             of each value the number of its node

A dict is [map, count, node of its keys, node of its values]: keys and values are lists.
"""

from __future__ import annotations

import json
import os
import struct
from array import array
from itertools import chain

from .layout import ALIGNMENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from .channel import Channel

    Node = list[Any]

_LENGTH = struct.Struct("<Q")
_CODES = {"int": "q", "float": "d", "bool": "b"}
_SCALARS = {bool: "bool", int: "int", float: "float", str: "text", bytes: "bytes", type(None): "none"}


def pack(results: Sequence[Any]) -> list[Any]:
    """Return results as parts of bytes. Raises TypeError for one that is of no kind of these."""
    buffers: list[Any] = []
    header = json.dumps(_pack(list(results), buffers), separators=(",", ":")).encode()
    lengths = json.dumps([memoryview(buffer).nbytes for buffer in buffers]).encode()
    parts: list[Any] = [_LENGTH.pack(len(lengths)), _LENGTH.pack(len(header)), lengths, header]
    end = 2 * _LENGTH.size + len(lengths) + len(header)
    for buffer in buffers:
        parts += [bytes(-end % ALIGNMENT), buffer]
        end += -end % ALIGNMENT + memoryview(buffer).nbytes
    return parts


def unpack(content: bytes) -> list[Any]:
    """Return the results. Arrays are views of the content. Raises ValueError for other bytes than those of `pack`."""
    try:
        return _unpacked(memoryview(content))
    except (StopIteration, RuntimeError, LookupError, TypeError, OverflowError, struct.error) as error:
        raise ValueError(f"these bytes are not results: {error}") from error


def _unpacked(memory: memoryview) -> list[Any]:
    first, second = _LENGTH.unpack_from(memory)[0], _LENGTH.unpack_from(memory, _LENGTH.size)[0]
    begin = 2 * _LENGTH.size
    lengths = json.loads(bytes(memory[begin : begin + first]))
    end = begin + first + second
    node = json.loads(bytes(memory[begin + first : end]))
    buffers = []
    for length in lengths:
        end += -end % ALIGNMENT
        buffers.append(memory[end : end + length])
        end += length
    return _unpack(node, iter(buffers))


def send(channel: Channel, partition: tuple[int, int], results: Sequence[Any]) -> None:
    """Send results to the owner of a ring, for the feeder of this partition."""
    file = os.memfd_create("trainmaster-results", os.MFD_CLOEXEC)
    try:
        with open(file, "wb", closefd=False) as writer:
            writer.writelines(pack(results))
        channel.send_file({"op": "answer", "number": partition, "rows": len(results)}, file)
    finally:
        os.close(file)


def _pack(values: list[Any], buffers: list[Any]) -> Node:
    types = set(map(type, values))
    if len(types) == 1 and (name := _SCALARS.get(next(iter(types)))) is not None:  # as most results
        return _pack_kind((name,), values, buffers)
    kinds = [_kind(value) for value in values]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    if len(numbers) == 1:
        return _pack_kind(kinds[0], values, buffers)
    buffers.append(array("i", map(numbers.__getitem__, kinds)))
    groups: list[list[Any]] = [[] for _ in numbers]
    for kind, value in zip(kinds, values, strict=True):
        groups[numbers[kind]].append(value)
    nodes = [_pack_kind(kind, group, buffers) for kind, group in zip(numbers, groups, strict=True)]
    return ["mixed", len(values), nodes]


def _kind(value: Any) -> tuple[Any, ...]:
    """Return what has one node: a name, and for arrays type and shape. Raises TypeError."""
    if (name := _SCALARS.get(type(value))) is not None:
        return (name,)
    if isinstance(value, tuple):
        return "row", len(value)
    if isinstance(value, list):
        return ("list",)
    if isinstance(value, dict):
        return ("map",)
    if isinstance(value, str):
        return ("text",)
    if isinstance(value, bytes | bytearray | memoryview):
        return ("bytes",)
    is_masked = hasattr(value, "mask")
    if hasattr(value, "dtype") and hasattr(value, "tobytes") and value.dtype.kind in "biufc" and not is_masked:
        return ("array", value.dtype.str, value.shape) if value.shape else ("scalar",)
    if hasattr(value, "numpy"):
        return ("tensor",)
    kind = (
        "a masked array"
        if is_masked
        else f"an array of {value.dtype}"
        if hasattr(value, "dtype")
        else type(value).__name__
    )
    raise TypeError(
        f"a result is {kind}: it must be a number, text, bytes, None, an array of numbers, or a tuple, list or dict of such"
    )


def _pack_kind(kind: tuple[Any, ...], values: list[Any], buffers: list[Any]) -> Node:
    name, count = kind[0], len(values)
    if name in _CODES:
        buffers.append(_array(_CODES[name], values))
    elif name in ("text", "bytes"):
        parts = [value.encode() if name == "text" else bytes(value) for value in values]
        buffers += [array("q", map(len, parts)), b"".join(parts)]
    elif name == "array":
        buffers.append(b"".join(value.tobytes() for value in values))
        return [name, count, *kind[1:]]
    elif name == "scalar":
        return _pack([value.item() for value in values], buffers)
    elif name == "tensor":
        return _pack([value.numpy() for value in values], buffers)
    elif name == "row":
        places = zip(*values, strict=True) if kind[1] else ()
        return [name, count, [_pack(list(place), buffers) for place in places]]
    elif name == "map":
        keys = _pack([list(value) for value in values], buffers)
        return [name, count, keys, _pack([list(value.values()) for value in values], buffers)]
    elif name == "list":
        buffers.append(array("q", map(len, values)))
        return [name, count, _pack(list(chain.from_iterable(values)), buffers)]
    return [name, count]


def _array(code: str, values: list[Any]) -> array[Any]:
    try:
        return array(code, values)
    except OverflowError as error:
        raise TypeError("a result is a whole number of more than 64 bits: make it text") from error


def _unpack(node: Node, buffers: Iterator[memoryview]) -> list[Any]:
    name, count, *details = node
    if name in _CODES:
        return _numbers(_CODES[name], next(buffers)) if name != "bool" else [n != 0 for n in next(buffers)]
    if name in ("text", "bytes"):
        ends, content = _ends(next(buffers)), next(buffers)
        parts = (content[first:end] for first, end in ends)
        return [str(part, "utf-8") for part in parts] if name == "text" else [bytes(part) for part in parts]
    if name == "none":
        return [None] * count
    if name == "array":
        return list(_arrays(details[0], details[1], count, next(buffers)))
    if name == "row":
        places = [_unpack(place, buffers) for place in details[0]]
        return list(zip(*places, strict=True)) if places else [()] * count
    if name == "map":
        keys, contents = (_unpack(part, buffers) for part in details)
        return [dict(zip(*pair, strict=True)) for pair in zip(keys, contents, strict=True)]
    if name == "list":
        ends = _ends(next(buffers))
        values = _unpack(details[0], buffers)
        return [values[first:end] for first, end in ends]
    numbers = _numbers("i", next(buffers))
    groups = [iter(_unpack(group, buffers)) for group in details[0]]
    return [next(groups[number]) for number in numbers]


def _numbers(code: str, buffer: memoryview) -> list[Any]:
    numbers = array(code)
    numbers.frombytes(buffer)
    return numbers.tolist()


def _ends(buffer: memoryview) -> list[tuple[int, int]]:
    """Return where each value begins and ends, of their lengths."""
    pairs, end = [], 0
    for length in _numbers("q", buffer):
        pairs.append((end, end + length))
        end += length
    return pairs


def _arrays(dtype: str, shape: list[int], count: int, buffer: memoryview) -> Any:
    import numpy

    return numpy.frombuffer(buffer, dtype).reshape(count, *shape)
