"""Rows of Python as batches of columns.

A row is a Row of Spark's or a dict, whose fields are the columns; a tuple, whose columns are "0", "1" and so on; or one value, the column
"value". A value is a number, a boolean, text, bytes, a date, a moment, a time, a timedelta, a Decimal, None, an array of NumPy, a list of
these, or a structure: a Row, a dict (a map), an image or a vector of Spark's (see `structures`). Lists of numbers are tensors, and lists of
lists of them too; lists of text and those of columns that are named in `ragged` may have any length.

The first row that has a value decides the type and the shape of its column; whole numbers also fit where fractions are expected, and
booleans in lists of them. A moment
without a time zone stays as it is, one with a zone becomes that of UTC. Decimals have 38 digits, 18 of them after the point, as those that
Spark infers. NumPy is used where it is there.
"""

from __future__ import annotations

from array import array
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from itertools import accumulate, chain
from struct import error as StructError
from struct import pack

from .layout import Column
from .structures import IMAGE, RAGGED, VECTOR, WrongRow, bits, image_column, is_named, tensor, wrong

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from typing import Any

    from .structures import Shape

ROWS = 10_000  # of a batch at most
SIZE = 1024 * 1024  # bytes of a batch, about
DIGITS = 18  # of a decimal after the point
_DECIMAL = f"|V16@38,{DIGITS}"
_CODES = {"<i8": "q", "<f8": "d", "|b1": "B"}
_WORDS = {
    "<i8": "a whole number", "<f8": "a number", "|b1": "a boolean", "text": "text", "bytes": "bytes", "<M8[D]": "a date",
    "<M8[us]": "a moment without a time zone", "<M8[us]@UTC": "a moment with a time zone", "<m8[us]": "a timedelta",
    "<m8[us]@time": "a time of day", _DECIMAL: "a decimal",
}  # fmt: skip


def batches(
    rows: Iterable[Any],
    most: int = ROWS,
    size: int = SIZE,
    ragged: Collection[str] = (),
    zoned: Collection[str] = (),
) -> Iterator[list[Column]]:
    """Yield batches of up to `most` rows and about `size` bytes. Equal rows give equal batches. Raises WrongRow.

    `ragged`: columns that are not made tensors. `zoned`: columns whose moments are those of the local time zone, as Spark gives timestamps.
    """
    buffer: list[Any] = []
    weight = first = 0
    table = Table(ragged, zoned)
    for row in rows:
        own = _weight(row)
        if buffer and (len(buffer) == most or weight + own > size):
            yield table.columns(buffer, first)
            first, weight, buffer = first + len(buffer), 0, []
        buffer.append(row)
        weight += own
    if buffer:
        yield table.columns(buffer, first)


class Table:
    """The columns of a partition: their names, types and shapes, as the first rows had them."""

    def __init__(self, ragged: Collection[str] = (), zoned: Collection[str] = ()) -> None:
        self._ragged, self._zoned = ragged, zoned
        self._names: list[str] | None = None
        self._forms: dict[str, tuple[str, tuple[str, ...]]] = {}  # by column: a form of `_form_of`, and the fields
        self._types: dict[str, tuple[str, Shape]] = {}  # by column: dtype and detail, "text" or "bytes"; and shape

    def columns(self, rows: Sequence[Any], first: int) -> list[Column]:
        """Return rows as columns. `first`: the number of the first row, for messages. Raises WrongRow."""
        split = [_split(row) for row in rows]
        if self._names is None:
            self._names = list(split[0])
        for number, row in enumerate(split, first):
            if list(row) != self._names:
                own = "is null" if rows[number - first] is None else f"has the columns {', '.join(row)}"
                raise WrongRow(f"row {number:,} {own}, and the rows before have the columns {', '.join(self._names)}")
        try:
            return [
                column for name in self._names for column in self._columns(name, [row[name] for row in split], first)
            ]
        except (OverflowError, StructError, UnicodeEncodeError):
            for number, row in enumerate(split, first):
                for name, value in row.items():
                    if (odd := _misfit(value)) is not None:
                        raise wrong(name, number, *odd) from None
            raise

    def _columns(self, name: str, values: list[Any], first: int) -> list[Column]:
        is_ragged = is_named(name, self._ragged)
        if is_ragged:
            values = [_vector(value) if hasattr(value, "toArray") else value for value in values]
        forms = [None if _is_empty(value) else _form_of(value, is_ragged) for value in values]
        if name not in self._forms and (known := next(filter(None, forms), None)):
            self._forms[name] = known
        form, fields = self._forms.get(name, ("lists" if is_ragged and any(map(_is_list, values)) else "value", ()))
        for number, own in enumerate(forms, first):
            if own is not None and own != (form, fields):
                raise wrong(name, number, _form_words(form, fields), _form_words(*own))
        if form == "structure":
            return self._parts(name, {field: [v if v is None else v[field] for v in values] for field in fields}, first)
        if form == "structures":
            parts = {field: [v if v is None else [part[field] for part in v] for v in values] for field in fields}
            return self._parts(name, parts, first)
        if form == "map":
            keys = [value if value is None else list(value) for value in values]
            contents = [value if value is None else list(value.values()) for value in values]
            return [self._lists(f"{name}.key", keys, first), self._lists(f"{name}.value", contents, first)]
        if form == "lists":
            return [self._lists(name, values, first)]
        if form == "image":
            column = image_column(name, values, first, self._types.get(name, ("", None))[1])
            if column.shape:
                self._types[name] = column.dtype, column.shape
            origins = [None if image is None else image[0] for image in values]
            return [column, *self._columns(f"{name}.origin", origins, first)]
        if form == "vector":
            values = [value if value is None else value.toArray() for value in values]
        return [self._column(name, values, first)]

    def _parts(self, name: str, parts: dict[str, list[Any]], first: int) -> list[Column]:
        return [column for field, part in parts.items() for column in self._columns(f"{name}.{field}", part, first)]

    def _column(self, name: str, values: list[Any], first: int) -> Column:
        """Return the column of values of one shape, or of texts."""
        values = self._with_zones(name, values)
        if name not in self._types:
            present = ((number, value) for number, value in enumerate(values, first) if value is not None)
            for number, value in present:
                self._types[name] = _type_of(value, name, number)
                break
        dtype, shape = self._types.get(name, ("<f8", ()))
        if dtype in ("text", "bytes"):
            validity = _validity(values)
            for number, value in enumerate(values, first):
                if value is not None:
                    _check(value, name, number, dtype, ())
            return _leaves(name, dtype, ["" if value is None else value for value in values], validity=validity)
        for number, value in enumerate(values, first):
            if value is not None:
                _check(value, name, number, dtype, shape)
        if any(value is None for value in values) or hasattr(values[0], "tobytes"):
            parts = [None if value is None else _content(value, dtype, shape) for value in values]
            return tensor(name, dtype.partition("@")[0], parts, shape, dtype.partition("@")[2])
        return Column(
            name, dtype.partition("@")[0], _content(values, dtype, (0, *shape)), shape=shape, detail=dtype.partition("@")[2]
        )  # fmt: skip

    def _lists(self, name: str, values: list[Any], first: int) -> Column:
        """Return the column of lists of any length; the place of its shape in `_types` has their depth."""
        if name not in self._types:
            for number, value in enumerate(values, first):
                if (kind := _leaf_type(self._with_zones(name, value), name, number)) is not None:
                    self._types[name] = kind
                    break
        dtype, (depth,) = self._types.get(name, ("<f8", (1,)))
        levels: list[array[int]] = [array("q", [0]) for _ in range(depth)]
        leaves: list[Any] = []
        for number, value in enumerate(values, first):
            parts = [[] if value is None else self._with_zones(name, value)]
            for level in levels:
                if any(not _is_list(part) for part in parts):
                    raise wrong(name, number, f"{depth} levels of lists of {_words(dtype, ())}", "fewer levels")
                for part in parts:
                    level.append(level[-1] + len(part))
                parts = list(chain.from_iterable(part.tolist() if hasattr(part, "tolist") else part for part in parts))
            if not set(map(type, parts)) <= _PLAIN.get(dtype, set()):
                for part in parts:
                    _check(part, name, number, dtype, ())
            leaves += parts
        validity = _validity(values)
        return _leaves(name, dtype, leaves, levels, validity)

    def _with_zones(self, name: str, value: Any) -> Any:
        """Return a moment, or those in lists, as one of UTC, where it is one of the local time zone."""
        if not is_named(name, self._zoned):
            return value
        if isinstance(value, list):
            return [self._with_zones(name, part) for part in value]
        return value.astimezone(UTC) if isinstance(value, datetime) else value


def _leaves(
    name: str, dtype: str, leaves: list[Any], levels: Sequence[Any] = (), validity: bytes | None = None
) -> Column:
    """Return values in lists, or texts, as a column. `levels`: the offsets of the lists."""
    kind, content = "list", b""
    if dtype in ("text", "bytes"):
        parts = [leaf.encode() if isinstance(leaf, str) else bytes(leaf) for leaf in leaves]
        offsets = array("q", accumulate(map(len, parts), initial=0))
        kind, content, levels, dtype = dtype, b"".join(parts), [*levels, offsets], "|u1"
    else:
        content = _content(leaves, dtype, (0,))
    dtype, _, detail = dtype.partition("@")
    return Column(
        name, dtype, content, kind=kind, offsets=levels[0], inner=levels[1:], validity=validity, detail=detail
    )


def _content(value: Any, dtype: str, shape: Shape) -> Any:
    """Return the bytes of a value: lists as deep as the shape is, an array, or a single value."""
    if hasattr(value, "tobytes"):
        return (value if value.dtype.str == dtype else value.astype(dtype)).tobytes()
    lists: Any = [value if shape else [value]]
    for _ in shape[1:]:
        lists = chain.from_iterable(lists)
    if dtype in _CODES:
        content = bytearray()
        for numbers in lists:  # `struct` takes a quarter of the time of `array`
            content += pack(f"{len(numbers)}{_CODES[dtype]}", *numbers)
        return content
    flat = chain.from_iterable(lists)
    if dtype == _DECIMAL:
        return b"".join(_unscaled(number).to_bytes(16, "little", signed=True) for number in flat)
    if "8[" in dtype:
        return array("q", map(_count, flat))
    return b"".join(part.tobytes() for part in flat)  # scalars of NumPy


def _misfit(value: Any) -> tuple[str, str] | None:
    """Return what is expected and what was found for a number or a text in a value that no column has room for; None for any other."""
    if isinstance(value, int):
        return None if -(2**63) <= value < 2**63 else ("whole numbers of 64 bits", str(value))
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return "text that UTF-8 can encode", repr(value[error.start : error.end])
        return None
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next(filter(None, map(_misfit, parts)), None)


def _split(row: Any) -> dict[str, Any]:
    if isinstance(row, dict):
        return row
    if isinstance(row, tuple):
        names = getattr(row, "__fields__", None) or map(str, range(len(row)))
        return dict(zip(names, row, strict=True))
    return {"value": row}


def _form_of(value: Any, is_ragged: bool) -> tuple[str, tuple[str, ...]]:
    """Return what a value is, and its fields."""
    if isinstance(value, dict):
        return ("structure", VECTOR) if isinstance(value, _Vector) else ("map", ())
    if hasattr(value, "toArray"):
        return "vector", ()
    if isinstance(value, list | tuple):
        if fields := tuple(getattr(value, "__fields__", ())):
            return ("image", ()) if fields == IMAGE and not is_ragged else ("structure", fields)
        if fields := tuple(getattr(value[0], "__fields__", ())):
            return "structures", fields
        leaf: Any = value
        while isinstance(leaf, list | tuple) and leaf:
            leaf = leaf[0]
        return ("lists" if is_ragged or isinstance(leaf, str | bytes | bytearray) else "value"), ()
    return ("lists" if is_ragged and _is_list(value) else "value"), ()


def _form_words(form: str, fields: tuple[str, ...]) -> str:
    names = {
        "structure": "a structure",
        "structures": "a list of structures",
        "lists": "a list of any length",
        "value": "a value",
    }
    return names.get(form, f"a {form}") + (f" of {', '.join(fields)}" if fields else "")


class _Vector(dict[str, "Any"]):
    """A vector of Spark's ML as a structure."""


def _vector(vector: Any) -> _Vector:
    is_sparse = hasattr(vector, "indices")
    parts = (0, vector.size, vector.indices, vector.values) if is_sparse else (1, None, None, vector.toArray())
    return _Vector(zip(VECTOR, parts, strict=True))


def _validity(values: list[Any]) -> bytes | None:
    return bits(value is not None for value in values) if any(value is None for value in values) else None


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple) and not value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or getattr(value, "shape", ()) != ()


def _leaf_type(value: Any, name: str, number: int) -> tuple[str, Shape] | None:
    """Return the type of the values within lists, and the depth of these; None where the lists are empty."""
    if not _is_list(value):
        return None if value is None else (_type_of(value, name, number)[0], (0,))
    if hasattr(value, "tolist"):
        return _code_of(value.dtype), (len(value.shape),)
    kinds = [kind for part in value if (kind := _leaf_type(part, name, number)) is not None]
    if not kinds:
        return None
    dtype = "<f8" if {dtype for dtype, _ in kinds} == {"<i8", "<f8"} else kinds[0][0]
    return dtype, (kinds[0][1][0] + 1,)


def _code_of(dtype: Any) -> str:
    """Return the type of the plain values that `tolist` makes of an array."""
    return {"b": "|b1", "f": "<f8"}.get(dtype.kind, "<i8")


def _check(value: Any, name: str, number: int, dtype: str, shape: Shape) -> None:
    """Raise WrongRow where a value has another type or shape."""
    if (type(value) in _PLAIN.get(dtype, ()) and not shape) or (dtype == "<f8" and _is_of_floats(value, shape)):
        return
    if isinstance(value, list | tuple) and not value:
        raise wrong(name, number, _words(dtype, shape), f"an empty list; {RAGGED}")
    own_type, own_shape = _type_of(value, name, number)
    if own_shape != shape or not (own_type == dtype or (dtype == "<f8" and own_type == "<i8")):
        mend = f"; {RAGGED}" if own_shape and shape and own_type == dtype else ""
        raise wrong(name, number, _words(dtype, shape), _words(own_type, own_shape) + mend)


def _is_of_floats(value: Any, shape: Shape) -> bool:
    """Tell at once, of most lists of numbers, that these are floats, whole numbers or booleans, by the type of their sum."""
    if len(shape) != 1 or type(value) is not list or len(value) != shape[0]:
        return False
    try:
        return type(sum(value)) is float
    except TypeError:
        return False


def _type_of(value: Any, name: str, number: int) -> tuple[str, Shape]:
    """Return the type and the shape of a value. Raises WrongRow where a feed cannot carry the value."""
    for kinds, dtype in _TYPES:
        if isinstance(value, kinds):
            if dtype == _DECIMAL:
                _unscaled(value, name, number)
            zone = "@UTC" if isinstance(value, datetime) and value.tzinfo else ""
            return dtype + zone, ()
    if hasattr(value, "dtype") and hasattr(value, "tobytes") and value.dtype.kind in "biufc":
        if 0 in value.shape:
            raise wrong(name, number, "an array with values", f"one of shape {tuple(value.shape)}; {RAGGED}")
        if hasattr(value, "mask"):
            raise wrong(
                name, number, "an array without a mask", "a masked array: fill it, or give its mask as a column"
            )
        return value.dtype.newbyteorder("<").str, tuple(value.shape)
    if isinstance(value, list | tuple) and value:
        types = _part_types(value, name, number)
        if (
            len(types) == 2
            and {dtype for dtype, _ in types} == {"<i8", "<f8"}
            and len({shape for _, shape in types}) == 1
        ):
            types = {("<f8", shape) for _, shape in types}
        if len(types) == 1 and (kind := next(iter(types)))[0] not in ("text", "bytes"):
            return kind[0], (len(value), *kind[1])
        parts = " and ".join(sorted(_words(*kind) for kind in types))
        raise wrong(name, number, "a list of numbers of one shape", f"a list of {parts}")
    kind_words = (
        f"an empty list; {RAGGED}"
        if isinstance(value, list | tuple)
        else "a null"
        if value is None
        else f"an array of {value.dtype}"
        if hasattr(value, "dtype")
        else type(value).__name__
    )
    raise wrong(name, number, "a number, text, bytes, a moment, an array or a list of these", kind_words)


def _part_types(parts: Any, name: str, number: int) -> set[tuple[str, Shape]]:
    plain = set(map(type, parts))
    if plain <= {int, float}:  # long lists are numbers mostly
        return {("<i8" if kind is int else "<f8", ()) for kind in plain}
    return {_type_of(part, name, number) for part in parts}


def _unscaled(value: Any, name: str = "", number: int = 0) -> int:
    """Return a decimal as a whole number of its smallest unit. Raises WrongRow where it has more digits."""
    scaled = value.scaleb(DIGITS, _EXACT) if value.is_finite() else value
    if not value.is_finite() or scaled != scaled.to_integral_value() or abs(scaled) >= 10**38:
        raise wrong(name, number, f"a decimal of 38 digits, {DIGITS} of them after the point", str(value))
    return int(scaled)


def _count(value: Any) -> int:
    """Return the days or microseconds of a date, a moment, a time or a timedelta, as NumPy counts them."""
    if isinstance(value, datetime):
        return (value - (_EPOCH if value.tzinfo else _EPOCH.replace(tzinfo=None))) // _MICROSECOND
    if isinstance(value, date):
        return value.toordinal() - _EPOCH.toordinal()
    if isinstance(value, time):
        value = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
    return int(value // _MICROSECOND)


def _words(dtype: str, shape: Shape) -> str:
    return f"{dtype} of shape {shape}" if shape else _WORDS.get(dtype, dtype)


def _weight(row: Any) -> int:
    """Return about the bytes of a row."""
    if isinstance(row, dict):
        return sum(map(_weight, row.values()))
    if isinstance(row, tuple):
        return sum(map(_weight, row))
    if isinstance(row, str | bytes | bytearray):
        return len(row)
    if isinstance(row, list):
        if row and isinstance(row[0], str | bytes | bytearray | list | tuple | dict):
            return sum(map(_weight, row))
        return len(row) * (_weight(row[0]) if row else 0)
    return int(getattr(row, "nbytes", 8))


_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = Context(prec=76)
_PLAIN: dict[str, set[type]] = {
    "<i8": {int}, "<f8": {int, float}, "|b1": {bool}, "text": {str}, "bytes": {bytes, bytearray}
}  # fmt: skip
_TYPES: tuple[tuple[Any, str], ...] = (  # the first that fits
    (str, "text"), ((bytes, bytearray), "bytes"), (bool, "|b1"), (int, "<i8"), (float, "<f8"), (datetime, "<M8[us]"), (date, "<M8[D]"),
    (time, "<m8[us]@time"), (timedelta, "<m8[us]"), (Decimal, _DECIMAL),
)  # fmt: skip
