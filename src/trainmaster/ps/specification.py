"""The definition of what servers hold: dense parameters, tables, the optimizer, and how pushes become updates.

It is plain JSON on wires and in files.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field

import numpy

from . import initializers, optimizers
from .tables.table import LARGEST, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

    Plain = dict[str, Any]

_OPTIMIZERS: Plain = {
    kind.__name__: kind for kind in (optimizers.SGD, optimizers.Adam, optimizers.Adagrad, optimizers.FTRL)
}
_INITIALIZERS: Plain = {
    kind.__name__: kind
    for kind in (initializers.Constant, initializers.Uniform, initializers.Normal, initializers.TruncatedNormal)
}


class BadDefinition(ValueError):
    """A definition that no server can hold, or another one than the servers have."""


@dataclass(frozen=True)
class TableSpec:
    """An embedding table. With `input_dim` its ids are 0 to `input_dim` - 1, else any int64.

    `evict_unused`: seconds after which a row that nobody pulled or pushed is removed (None: never); it comes back as it was at first. A
    server that comes back does not know of pulls since its last checkpoint.
    """

    dimension: int
    initializer: Any = field(default_factory=initializers.Uniform)
    input_dim: int | None = None
    seed: int = 0
    evict_unused: float | None = None

    def __post_init__(self) -> None:
        _check_whole(self, "dimension", "seed", *(() if self.input_dim is None else ("input_dim",)))
        if self.evict_unused is not None and not (_is_float(self.evict_unused) and self.evict_unused > 0):
            raise BadDefinition(f"evict_unused must be above 0 s, and is {self.evict_unused!r}")


@dataclass(frozen=True)
class Updates:
    """How pushes become versions.

    The mean of `grads_to_wait` pushes makes one version. A push is refused as stale where more than `tolerance` versions were made since
    its pull; None: no push is (asynchronous). `is_modulated`: the learning rate is divided by the staleness. `clip_norm`: the largest norm
    of all gradients of a push together. A checkpoint is made every `checkpoint_steps` versions (0: when asked), and the newest
    `keep_checkpoints` are kept (0: all).
    """

    grads_to_wait: int = 1
    tolerance: int | None = 0
    is_modulated: bool = False
    clip_norm: float | None = None
    checkpoint_steps: int = 0
    keep_checkpoints: int = 0

    def __post_init__(self) -> None:
        _check_whole(self, "grads_to_wait", "checkpoint_steps", "keep_checkpoints")
        if self.grads_to_wait < 1:
            raise BadDefinition(f"grads_to_wait must be at least 1, and is {self.grads_to_wait}")
        if self.tolerance is not None and self.tolerance < 0:
            raise BadDefinition(f"the tolerance must not be negative, and is {self.tolerance}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise BadDefinition(f"clip_norm must be above 0, and is {self.clip_norm}")
        if self.checkpoint_steps < 0 or self.keep_checkpoints < 0:
            raise BadDefinition("checkpoint_steps and keep_checkpoints must not be negative")


@dataclass(frozen=True)
class Definition:
    """All that the servers hold together. `dense`: the shape of each parameter, of float32."""

    dense: Mapping[str, tuple[int, ...]]
    tables: Mapping[str, TableSpec]
    optimizer: Any
    updates: Updates

    def to_plain(self) -> Plain:
        return {
            "dense": {name: list(shape) for name, shape in sorted(self.dense.items())},
            "tables": {
                name: {**_fields(spec), "initializer": _named(spec.initializer)}
                for name, spec in sorted(self.tables.items())
            },
            "optimizer": _named(self.optimizer),
            "updates": _fields(self.updates),
        }

    def difference(self, other: Definition) -> str:
        """Return the first place where two definitions differ, with both values; "": nowhere."""
        return _difference("", self.to_plain(), other.to_plain())

    def conflict(self, other: Definition) -> str:
        """Return the first place where another definition cannot go on with this one's values, with both; "": nowhere.

        Parameters, tables and the optimizer's slots must agree. Its numbers, how pushes become versions, and how long rows live may differ.
        """
        return _difference("", self._lasting(), other._lasting())

    def _lasting(self) -> Plain:
        plain = self.to_plain()
        for spec in plain["tables"].values():
            del spec["evict_unused"]
        optimizer = {"name": plain["optimizer"]["name"], "slots": dict(self.optimizer.slots)}
        return {"dense": plain["dense"], "tables": plain["tables"], "optimizer": optimizer}

    def make_table(self, name: str) -> Table:
        spec = self.tables[name]
        return Table(name, spec.dimension, spec.initializer, self.optimizer, seed=spec.seed, input_dim=spec.input_dim)


def definition_of(plain: Any) -> Definition:
    """Return the definition out of its plain form. Raises BadDefinition."""
    try:
        tables = {
            str(name): TableSpec(**{**spec, "initializer": _made(_INITIALIZERS, spec["initializer"], "initializer")})
            for name, spec in plain["tables"].items()
        }
        definition = Definition(
            {str(name): tuple(map(int, shape)) for name, shape in plain["dense"].items()},
            tables,
            optimizer_of(plain["optimizer"]),
            Updates(**plain["updates"]),
        )
        for name in tables:
            definition.make_table(name)
    except BadDefinition:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadDefinition(f"no definition of tables and parameters: {error}") from None
    return definition


def optimizer_of(plain: Any) -> Any:
    """Return an optimizer: one of `optimizers`, or made of {"name": "Adam", "learning_rate": 0.01, ...}. Raises BadDefinition."""
    return _made(_OPTIMIZERS, plain, "optimizer")


def values_of(dense: Mapping[str, Any]) -> dict[str, NDArray[numpy.float32]]:
    """Return initial values as float32, in C's order."""
    return {name: numpy.array(value, numpy.float32, order="C") for name, value in dense.items()}


def _made(kinds: Plain, plain: Any, place: str) -> Any:
    if type(plain) in kinds.values():
        return plain
    if not isinstance(plain, dict) or plain.get("name") not in kinds:
        raise BadDefinition(f"no {place}: {plain!r}; the names are {', '.join(kinds)}")
    kind = kinds[plain["name"]]
    options = {name: value for name, value in plain.items() if name != "name"}
    known = {entry.name: entry.default for entry in dataclasses.fields(kind) if entry.init}
    if unknown := set(options) - set(known):
        raise BadDefinition(f"{place} {plain['name']} has no {', '.join(sorted(unknown))}; it has {', '.join(known)}")
    for name, value in options.items():
        if _is_float(known[name]) and not _is_float(value):
            raise BadDefinition(f"{name} of {place} {plain['name']} must be a number, and is {value!r}")
    try:
        return kind(**options)
    except (TypeError, ValueError) as error:
        raise BadDefinition(f"{place} {plain['name']}: {error}") from None


def _is_float(value: Any) -> bool:
    """Tell whether a value is a number that a float32 can be."""
    is_number = isinstance(value, (int, float, numpy.floating, numpy.integer))
    return is_number and bool(abs(value) <= LARGEST)


def _check_whole(record: Any, *names: str) -> None:
    for name in names:
        if not isinstance(value := getattr(record, name), (int, numpy.integer)):
            raise BadDefinition(f"{name} must be a whole number, and is {value!r}")


def _named(choice: Any) -> Plain:
    names = [entry.name for entry in dataclasses.fields(choice) if entry.init]
    return {"name": type(choice).__name__, **{name: getattr(choice, name) for name in names}}


def _fields(record: Any) -> Plain:
    return {entry.name: getattr(record, entry.name) for entry in dataclasses.fields(record)}


def _difference(place: str, ours: Any, theirs: Any) -> str:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in sorted({*ours, *theirs}):
            if text := _difference(f"{place}.{name}" if place else name, ours.get(name), theirs.get(name)):
                return text
        return ""
    return "" if ours == theirs else f"{place}: {json.dumps(ours)}, and {json.dumps(theirs)}"
