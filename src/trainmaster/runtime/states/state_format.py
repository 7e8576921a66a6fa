"""State as a tree in JSON and raw buffers: what a set of `checkpoint.save` consists of, in memory and on a disk alike.

    {"v": "1.0", "number": 7, "step": 1200, "size": ..., "tree": ..., "buffers": [[offset, bytes], ...]}

The tree has the structure and all small values. Tensors, arrays and bytes are *leaves*: their bytes are in one file, each from its
offset on. Nothing is pickled, so reading a set runs no code of its writer. An object that is neither plain data, nor an array, nor
something that gives its state (`state_dict` of PyTorch, weights and variables of Keras) is refused with its place in the state.

This module needs the standard library only. PyTorch, NumPy and ml_dtypes are imported where a value of theirs is to be made.
"""

from __future__ import annotations

import ctypes
import math
import re
import sys

from . import gpu_copies

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Keep = tuple[int, Any]  # the address of a leaf's bytes, and the object that keeps them there

VERSION = "1.0"
ALIGNMENT = 4096  # bytes; a leaf begins at a page
_SMALL_ALIGNMENT = 64  # bytes; of leaves smaller than a page
_DTYPE = re.compile(r"[<>=|]?[A-Za-z]\w{0,40}(\[\w{1,10}\])?")
_PLAIN = (bool, int, float, str)


class Leaf:
    """The bytes of one tensor or array. `source()` returns their address; it may copy them from a GPU first.

    `gpu_tensor`: the tensor that may be copied from its GPU to where the bytes shall be, without `source`.
    """

    __slots__ = ("gpu_tensor", "size", "source")

    def __init__(self, size: int, source: Callable[[], Keep], gpu_tensor: Any = None) -> None:
        self.size, self.source, self.gpu_tensor = size, source, gpu_tensor


def pack(step: int, state: Mapping[str, Any]) -> tuple[dict[str, Any], list[Leaf]]:
    """Return the header of `state`, and its leaves in the order of the header's `buffers`. Raises TypeError."""
    leaves: list[Leaf] = []
    tree = _encode(state, leaves, "state")
    buffers, end = [], 0
    for leaf in leaves:
        alignment = ALIGNMENT if leaf.size >= ALIGNMENT else _SMALL_ALIGNMENT
        end = -(-end // alignment) * alignment
        buffers.append([end, leaf.size])
        end += leaf.size
    return {"v": VERSION, "step": int(step), "size": end, "tree": tree, "buffers": buffers}, leaves


def unpack(header: Mapping[str, Any], read: Callable[[int, memoryview], None]) -> Any:
    """Return the state of a header. `read(i, view)` fills `view` with the bytes of buffer `i`. Raises ValueError where they do not fit."""
    check_version(header)

    def size_of(index: int) -> int:
        begin, size = header["buffers"][index]
        if not 0 <= begin <= begin + size <= header["size"]:
            raise ValueError(f"buffer {index} is outside of the state's {header['size']} bytes")
        return int(size)

    def fill(index: int, address: int) -> None:
        if size := size_of(index):
            read(index, view_of(address, size))

    try:
        return _decode(header["tree"], size_of, fill)
    except (TypeError, LookupError, AttributeError, OverflowError, RuntimeError) as error:
        raise ValueError(f"its description is damaged: {error}") from error


def check_version(header: Mapping[str, Any]) -> None:
    """Refuse a header of a newer format. Raises ValueError."""
    if int(str(header["v"]).partition(".")[0]) > int(VERSION.partition(".")[0]):
        raise ValueError(
            f"it has version {header['v']}, and {VERSION} is the newest known here; use a newer Trainmaster"
        )


def view_of(address: int, size: int) -> memoryview:
    """Return the memory at `address` as writable bytes."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


# -- values into the tree --


def _encode(value: Any, leaves: list[Leaf], place: str) -> Any:
    if value is None or type(value) in _PLAIN:
        return value
    encode_special = _encoder(value)
    if encode_special is not None:
        return encode_special(value, leaves, place)
    if isinstance(value, dict):
        pairs = [
            [_encode(key, leaves, place), _encode(item, leaves, f"{place}[{key!r}]")] for key, item in value.items()
        ]
        metadata = getattr(value, "_metadata", None)  # versions of modules, in a state dict of PyTorch
        return {"dict": pairs} if metadata is None else {"dict": pairs, "metadata": _encode(metadata, leaves, place)}
    for kind, name in ((tuple, "tuple"), (list, "list"), (set, "set"), (frozenset, "frozenset")):
        if isinstance(value, kind):
            return {name: [_encode(item, leaves, f"{place}[{i}]") for i, item in enumerate(value)]}
    for plain in _PLAIN:  # a subclass, as of an enumeration
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": _add(leaves, _bytes_leaf(bytes(value)))}
    raise TypeError(
        f"{place} cannot be saved: it is a {type(value).__module__}.{type(value).__qualname__}; save tensors, arrays, numbers, texts, "
        "and lists and dictionaries of them"
    )


def _encoder(value: Any) -> Callable[[Any, list[Leaf], str], Any] | None:
    """Return the function for a value of PyTorch, NumPy or Keras. A program that has not imported these has no such value."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return _encode_tensor
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return _encode_array
    state = state_of(value)
    if state is not value:
        return lambda _, leaves, place: _encode(state, leaves, place)
    if hasattr(value, "numpy") and hasattr(value, "dtype"):  # a tensor or variable of TensorFlow or Keras
        return lambda variable, leaves, place: _encode_array(_as_array(variable), leaves, place)
    return None


def _as_array(value: Any) -> Any:
    import numpy

    return numpy.asarray(value.numpy())


def state_of(value: Any) -> Any:
    """Return what is saved of an object of PyTorch or Keras: its state dict, its weights, its variables. Else the value itself."""
    if isinstance(value, dict | list | tuple | type):
        return value
    if hasattr(value, "get_weights") and hasattr(value, "set_weights"):  # a model or layer of Keras, on PyTorch too
        return list(value.get_weights())
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return value.state_dict()
    if hasattr(value, "variables") and hasattr(value, "apply_gradients"):  # an optimizer of Keras
        return list(value.variables() if callable(value.variables) else value.variables)
    return value


def put_back(target: Any, state: Any, name: str) -> None:
    """Give an object of PyTorch or Keras the state that was saved of it. Raises TypeError, ValueError."""
    if hasattr(target, "get_weights") and hasattr(target, "set_weights"):
        target.set_weights(state)
    elif hasattr(target, "load_state_dict"):
        target.load_state_dict(state)
    elif hasattr(target, "variables") and hasattr(target, "apply_gradients"):
        variables = list(target.variables() if callable(target.variables) else target.variables)
        if len(variables) != len(state):
            raise ValueError(
                f"{name} has {len(variables)} variables, and {len(state)} were saved: call {name}.build(model.trainable_variables) first"
            )
        for variable, saved in zip(variables, state, strict=True):
            variable.assign(saved)
    else:
        raise TypeError(
            f"nothing can be loaded into {name}, a {type(target).__qualname__}: take it from what load() returns"
        )


def _add(leaves: list[Leaf], leaf: Leaf) -> int:
    leaves.append(leaf)
    return len(leaves) - 1


def _bytes_leaf(content: bytes) -> Leaf:
    def source() -> Keep:
        address = ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p).value
        return address or 0, content

    return Leaf(len(content), source)


def _encode_tensor(value: Any, leaves: list[Leaf], place: str) -> Any:
    torch = sys.modules["torch"]
    sharded = type(value).__module__.startswith("torch.distributed")
    if sharded or value.layout != torch.strided or value.is_quantized or value.is_meta:
        kind = "sharded" if sharded else "a meta tensor" if value.is_meta else "sparse or quantized"
        raise TypeError(
            f"{place} cannot be saved: the tensor is {kind}; save a plain one, as of full_tensor() or to_dense()"
        )

    def source() -> Keep:
        plain = value.detach().resolve_conj().resolve_neg()
        plain = plain.cpu().contiguous()
        return plain.data_ptr(), plain

    size, gpu_tensor = value.numel() * value.element_size(), value if gpu_copies.copies_straight(value) else None
    index = _add(leaves, Leaf(size, source, gpu_tensor))
    return {"torch": index, "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}


def _encode_array(value: Any, leaves: list[Leaf], place: str) -> Any:
    numpy = sys.modules["numpy"]
    if hasattr(value, "mask"):
        raise TypeError(f"{place} cannot be saved: it is a masked array; save its `data` and its `mask`")
    array, dtype = numpy.asarray(value), value.dtype
    name = dtype.name if dtype.kind == "V" else dtype.str
    if dtype.hasobject or _numpy_dtype(name) != dtype:
        raise TypeError(f"{place} cannot be saved: its elements are of type {dtype}; save an array of numbers or texts")

    def source() -> Keep:
        plain = array if array.flags.c_contiguous else array.copy(order="C")
        return plain.ctypes.data, plain

    tree = {"numpy": _add(leaves, Leaf(array.nbytes, source)), "dtype": name, "shape": list(array.shape)}
    return {**tree, "scalar": True} if isinstance(value, numpy.generic) else tree


def _numpy_dtype(name: str) -> Any:
    """Return the type of that name, also one of those that TensorFlow and JAX add, as bfloat16. None: there is none."""
    import numpy

    if not _DTYPE.fullmatch(name):  # else NumPy reads it as a list of fields
        return None
    try:
        return numpy.dtype(name)
    except TypeError:
        try:
            import ml_dtypes
        except ImportError:
            return None
        return numpy.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else None


# -- the tree into values --


def _decode(tree: Any, size_of: Callable[[int], int], fill: Callable[[int, int], None]) -> Any:
    """Return the value of a tree. `size_of(i)` returns the bytes of buffer `i`, `fill(i, address)` writes them there."""
    if isinstance(tree, list):
        raise ValueError("a list without a kind")
    if not isinstance(tree, dict):
        return tree
    if "torch" in tree:
        return _decode_tensor(tree, size_of, fill)
    if "numpy" in tree:
        return _decode_array(tree, size_of, fill)
    if "bytes" in tree:
        size = size_of(tree["bytes"])
        content = ctypes.create_string_buffer(size or 1)
        fill(tree["bytes"], ctypes.addressof(content))
        return content.raw[:size]
    if "complex" in tree:
        return complex(*tree["complex"])
    if "dict" in tree:
        pairs = {_decode(key, size_of, fill): _decode(item, size_of, fill) for key, item in tree["dict"]}
        if "metadata" not in tree:
            return pairs
        from collections import OrderedDict

        ordered: Any = OrderedDict(pairs)
        ordered._metadata = _decode(tree["metadata"], size_of, fill)
        return ordered
    for name, kind in (("tuple", tuple), ("list", list), ("set", set), ("frozenset", frozenset)):
        if name in tree:
            return kind(_decode(item, size_of, fill) for item in tree[name])
    raise ValueError(f"a value of unknown kind: {', '.join(map(str, tree))}")


def _shape(tree: Mapping[str, Any], item: int, size: int) -> list[int]:
    """Return the shape of an array whose items have `item` bytes. Raises ValueError where it has not `size` bytes together."""
    shape = tree["shape"]
    is_shape = all(type(length) is int and 0 <= length <= 1 << 40 for length in shape)
    if not (is_shape and item) or math.prod(shape) * item != size:
        raise ValueError(f"an array of shape {shape!r:.100} has not the {size} bytes that were stored")
    return list(shape)


def _decode_tensor(tree: Mapping[str, Any], size_of: Callable[[int], int], fill: Callable[[int, int], None]) -> Any:
    import torch

    dtype = getattr(torch, str(tree["dtype"]), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"PyTorch has no type {tree['dtype']}")
    item = torch.empty((), dtype=dtype).element_size()
    tensor = torch.empty(_shape(tree, item, size_of(tree["torch"])), dtype=dtype)
    fill(tree["torch"], tensor.data_ptr())
    return tensor


def _decode_array(tree: Mapping[str, Any], size_of: Callable[[int], int], fill: Callable[[int, int], None]) -> Any:
    import numpy

    dtype = _numpy_dtype(str(tree["dtype"]))
    if dtype is None or dtype.hasobject:
        raise ValueError(f"NumPy has no type {tree['dtype']} of plain bytes")
    array = numpy.empty(_shape(tree, dtype.itemsize, size_of(tree["numpy"])), dtype=dtype)
    fill(tree["numpy"], array.ctypes.data)
    return array[()] if tree.get("scalar") else array
