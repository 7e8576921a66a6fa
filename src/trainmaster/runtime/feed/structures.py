"""The columns that structures of Spark's become: a field b of a structure a is the column "a.b"; images and vectors are tensors.

| value | column |
|---|---|
| a structure | one for each field, "a.b", null where the structure is |
| a map | "a.key" and "a.value", lists |
| a list of structures | a list for each field, "a.b" |
| an image of Spark's (`spark.read.format("image")`) | "a": its bytes, height x width x channels; and "a.origin" |
| a vector of Spark's ML, dense or sparse | "a": its numbers |

A column that is named in `ragged` is not made a tensor: its lists may have any length, an image or a vector is a structure as any other,
so a sparse vector has the columns "a.size", "a.indices" and "a.values".
"""

from __future__ import annotations

from array import array

from .layout import Column

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any

    Shape = tuple[int, ...]

IMAGE = ("origin", "height", "width", "nChannels", "mode", "data")
VECTOR = ("type", "size", "indices", "values")
RAGGED = "where rows differ so, name the column in `ragged`"
_DEPTH = 8  # OpenCV's mode is depth + 8 * (channels - 1), and a depth of 0 is one byte


class WrongRow(ValueError):
    """A row does not fit the rows before it."""


def wrong(name: str, number: int, expected: str, present: str) -> WrongRow:
    return WrongRow(f"row {number:,}, column {name!r}: expected {expected}, found {present}")


def is_named(name: str, names: Collection[str]) -> bool:
    """Tell whether a column, or a structure that it is in, is among the names."""
    return any(name == other or name.startswith(f"{other}.") for other in names)


def image_column(name: str, images: Sequence[Any], first: int, shape: Shape | None) -> Column:
    """Return images, each the values of IMAGE or None, as a column. `shape`: of all, None: that of the first. Raises WrongRow."""
    parts: list[Any] = []
    for number, image in enumerate(images, first):
        if image is None:
            parts.append(None)
            continue
        _, height, width, channels, mode, data = image
        own = (height, width, channels)
        if mode % _DEPTH or height < 1 or len(data) != height * width * channels:
            present = f"{len(data):,} bytes of mode {mode}, height {height}, width {width} and {channels} channels"
            raise wrong(name, number, "an image with a byte for each channel of a pixel", present)
        shape = shape or own
        if own != shape:
            raise wrong(name, number, f"an image of shape {shape}", f"one of shape {own}; {RAGGED}")
        parts.append(data)
    return tensor(name, "|u1", parts, shape or ())


def vector_column(name: str, vectors: Sequence[Any], first: int, shape: Shape | None) -> Column:
    """Return vectors, each the values of VECTOR or None, as a column of their numbers. Raises WrongRow as `image_column`."""
    parts: list[Any] = []
    for number, vector in enumerate(vectors, first):
        if vector is None:
            parts.append(None)
            continue
        kind, size, indices, values = vector
        if kind == 0:  # sparse
            numbers = array("d", bytes(8 * size))
            for index, value in zip(indices, values, strict=True):
                numbers[index] = value
        else:
            numbers = array("d", values)
        shape = shape or (len(numbers),)
        if shape != (len(numbers),):
            raise wrong(name, number, f"a vector of {shape[0]} numbers", f"one of {len(numbers)}; {RAGGED}")
        parts.append(numbers)
    return tensor(name, "<f8", parts, shape or ())


def tensor(name: str, dtype: str, parts: Sequence[Any], shape: Shape, detail: str = "") -> Column:
    """Return rows of one shape as a column; each is an object with its bytes, or None."""
    size = next((memoryview(part).nbytes for part in parts if part is not None), 0)
    if not size and any(part is not None for part in parts):
        raise WrongRow(f"column {name!r}: expected rows with values, found empty ones; {RAGGED}")
    if not size:  # nulls alone: their shape is not known
        size, shape, dtype = 8, (), "<f8"
    validity = bits(part is not None for part in parts) if any(part is None for part in parts) else None
    values = b"".join(bytes(size) if part is None else memoryview(part).cast("B") for part in parts)
    return Column(name, dtype, values, shape=shape, validity=validity, detail=detail)


def bits(flags: Any) -> bytes:
    """Return flags as bits, the lowest first."""
    text = "".join("1" if flag else "0" for flag in flags)
    return int(text[::-1] or "0", 2).to_bytes((len(text) + 7) // 8, "little")
