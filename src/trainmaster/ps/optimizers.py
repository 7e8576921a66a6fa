"""Optimizers: SGD with momentum, Adam, AdamW, Adagrad and FTRL, on dense parameters and on rows of embedding tables.

An optimizer is plain data. Its *slots* are what it remembers of each number, by name, each with its initial value. `apply` is its formula:
it changes arrays of values and slots in place. `update_dense` applies it to a whole parameter, `update_rows` to some rows of a table: both
are the same formula, a piece that fits a core's cache at a time.

*Conventions.* Keras' and PyTorch's optimizers of one name differ where `convention` says so; the default is Keras'. Numbers are float32,
and what depends on the step alone is computed in float64, as PyTorch does.

| optimizer | "keras" | "torch" |
|---|---|---|
| SGD with momentum | the velocity holds the learning rate of its time | the learning rate is applied to the velocity |
| Adam, AdamW | epsilon is added before the bias of the velocity is corrected | after it |
| Adagrad | epsilon is added below the root | beside the root |

*Rows.* Rows without a gradient are left alone: neither their slots decay, nor they themselves by AdamW's weight decay. So works
`torch.optim.SparseAdam` (which adds epsilon as Keras does). Keras applies the dense formula to the whole table, which costs its size each
step. The two agree where each step touches all rows.

*Steps.* Adam corrects its bias by the step of the whole training (the first is 1), not by a count of each row's own updates. Keras
(`iterations`) and SparseAdam (`step`) do the same. So a row is the same on each server, needs no counter, and can be moved and saved as
its numbers alone. A row that is touched late makes a first move of up to (1 - beta_1) / sqrt(1 - beta_2) learning rates, 3.2 by default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy

from .tables.arena import Places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Protocol

    from numpy.typing import NDArray

    from .tables.arena import Arena

    Floats = NDArray[numpy.float32]
    Integers = NDArray[numpy.int64]

    class Optimizer(Protocol):
        @property
        def learning_rate(self) -> float: ...

        @property
        def slots(self) -> Mapping[str, float]:
            """The initial value of each slot."""

        def apply(
            self, values: Floats, gradients: Floats, slots: Sequence[Floats], step: int, learning_rate: float
        ) -> None:
            """Change `values` and `slots`, in the order of `self.slots`, in place. All arrays have one shape."""


KERAS, TORCH = "keras", "torch"
_PIECE = 2**15  # numbers of each array that are updated at once


@dataclass(frozen=True)
class SGD:
    """Gradient descent, with momentum where `momentum` is above 0."""

    learning_rate: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False
    convention: str = KERAS

    def __post_init__(self) -> None:
        _check(self, momentum=(0 <= self.momentum <= 1, "must be from 0 to 1"))

    @property
    def slots(self) -> dict[str, float]:
        return {"momentum": 0.0} if self.momentum else {}

    def apply(
        self, values: Floats, gradients: Floats, slots: Sequence[Floats], step: int, learning_rate: float
    ) -> None:
        is_torch = self.convention == TORCH
        change = gradients * (1.0 if is_torch else -learning_rate)
        if self.momentum:
            (velocity,) = slots
            velocity *= self.momentum
            velocity += change
            if self.nesterov:
                change += velocity * self.momentum
            else:
                change[...] = velocity
        if is_torch:
            change *= -learning_rate
        values += change


@dataclass(frozen=True)
class Adam:
    """Kingma and Ba, 2015. `weight_decay`: decoupled from the gradient (AdamW, Loshchilov and Hutter, 2019)."""

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float = 0.0
    convention: str = KERAS

    def __post_init__(self) -> None:
        is_share = "must be at least 0 and below 1"
        _check(
            self,
            beta_1=(0 <= self.beta_1 < 1, is_share),
            beta_2=(0 <= self.beta_2 < 1, is_share),
            epsilon=(self.epsilon >= 0, _NOT_NEGATIVE),
            weight_decay=(self.weight_decay >= 0, _NOT_NEGATIVE),
        )

    @property
    def slots(self) -> dict[str, float]:
        return {"momentum": 0.0, "velocity": 0.0}

    def apply(
        self, values: Floats, gradients: Floats, slots: Sequence[Floats], step: int, learning_rate: float
    ) -> None:
        momentum, velocity = slots
        correction = math.sqrt(1 - self.beta_2**step)
        epsilon = self.epsilon * correction if self.convention == TORCH else self.epsilon
        if self.weight_decay:
            values *= 1 - learning_rate * self.weight_decay
        change = gradients - momentum
        change *= 1 - self.beta_1
        momentum += change
        numpy.multiply(gradients, gradients, out=change)
        change -= velocity
        change *= 1 - self.beta_2
        velocity += change
        numpy.sqrt(velocity, out=change)
        change += epsilon
        numpy.divide(momentum, change, out=change)
        change *= learning_rate * correction / (1 - self.beta_1**step)
        values -= change


def adamw(learning_rate: float = 0.001, weight_decay: float = 0.004, **options: Any) -> Adam:
    """Return Adam with a weight decay: by default Keras' (PyTorch's is 0.01)."""
    return Adam(learning_rate, weight_decay=weight_decay, **options)


@dataclass(frozen=True)
class Adagrad:
    """Duchi, Hazan and Singer, 2011. PyTorch's defaults: a learning rate of 0.01, an initial accumulator of 0, an epsilon of 1e-10."""

    learning_rate: float = 0.001
    initial_accumulator: float = 0.1
    epsilon: float = 1e-7
    convention: str = KERAS

    def __post_init__(self) -> None:
        _check(
            self,
            initial_accumulator=(self.initial_accumulator >= 0, _NOT_NEGATIVE),
            epsilon=(self.epsilon >= 0, _NOT_NEGATIVE),
        )

    @property
    def slots(self) -> dict[str, float]:
        return {"accumulator": self.initial_accumulator}

    def apply(
        self, values: Floats, gradients: Floats, slots: Sequence[Floats], step: int, learning_rate: float
    ) -> None:
        (accumulator,) = slots
        change = gradients * gradients
        accumulator += change
        if self.convention == TORCH:
            numpy.sqrt(accumulator, out=change)
            change += self.epsilon
        else:
            numpy.add(accumulator, self.epsilon, out=change)
            numpy.sqrt(change, out=change)
        numpy.divide(gradients, change, out=change, where=change != 0)  # 0 / 0: no gradient yet, and no change
        change *= learning_rate
        values -= change


@dataclass(frozen=True)
class FTRL:
    """McMahan et al., 2013, as Keras has it. `l1`, `l2` and `l2_shrinkage` are strengths of regularization."""

    learning_rate: float = 0.001
    learning_rate_power: float = -0.5
    initial_accumulator: float = 0.1
    l1: float = 0.0
    l2: float = 0.0
    l2_shrinkage: float = 0.0
    beta: float = 0.0
    convention: str = field(default=KERAS, init=False)

    def __post_init__(self) -> None:
        strengths = {name: (getattr(self, name) >= 0, _NOT_NEGATIVE) for name in ("l1", "l2", "l2_shrinkage", "beta")}
        _check(
            self,
            learning_rate=(self.learning_rate > 0, "must be above 0"),
            learning_rate_power=(self.learning_rate_power <= 0, "must not be above 0"),
            initial_accumulator=(self.initial_accumulator >= 0, _NOT_NEGATIVE),
            **strengths,
        )

    @property
    def slots(self) -> dict[str, float]:
        return {"accumulator": self.initial_accumulator, "linear": 0.0}

    def apply(
        self, values: Floats, gradients: Floats, slots: Sequence[Floats], step: int, learning_rate: float
    ) -> None:
        accumulator, linear = slots
        before = self._power(accumulator)
        accumulator += gradients * gradients
        strength = self._power(accumulator)
        linear += gradients
        if self.l2_shrinkage:
            linear += 2 * self.l2_shrinkage * values
        before -= strength
        before /= learning_rate
        before *= values
        linear += before
        strength /= learning_rate
        strength += 2 * self.l2 + self.beta / learning_rate
        numpy.clip(linear, -self.l1, self.l1, out=values)
        values -= linear
        numpy.divide(values, strength, out=values, where=strength != 0)  # 0 / 0: no gradient yet, and no value

    def _power(self, accumulator: Floats) -> Floats:
        power: Floats = (
            numpy.sqrt(accumulator) if self.learning_rate_power == -0.5 else accumulator**-self.learning_rate_power
        )
        return power


_NOT_NEGATIVE = "must not be negative"


def _check(optimizer: Any, **rules: tuple[bool, str]) -> None:
    """Raise ValueError where a field breaks its rule; those of all optimizers are checked too."""
    rules = {
        "learning_rate": (optimizer.learning_rate >= 0, _NOT_NEGATIVE),
        "convention": (optimizer.convention in (KERAS, TORCH), f"must be {KERAS!r} or {TORCH!r}"),
        **rules,
    }
    for name, (is_kept, rule) in rules.items():
        if not is_kept:
            raise ValueError(f"{name} of {type(optimizer).__name__} {rule}, and is {getattr(optimizer, name)!r}")


def update_dense(
    optimizer: Optimizer,
    values: Floats,
    gradients: Floats,
    slots: Sequence[Floats],
    step: int,
    learning_rate: float | None = None,
) -> None:
    """Update a whole parameter and its slots in place; arrays of one shape, in C's order. `learning_rate` replaces the optimizer's own."""
    rate = optimizer.learning_rate if learning_rate is None else learning_rate
    for array in (values, *slots):
        if array.shape != gradients.shape or not array.flags.c_contiguous:
            raise ValueError(
                f"values, slots and gradients need one shape, in C's order: {array.shape}, {gradients.shape}"
            )
    flat, flat_gradients, flat_slots = values.reshape(-1), gradients.reshape(-1), [slot.reshape(-1) for slot in slots]
    for begin in range(0, flat.size, _PIECE):
        piece = slice(begin, begin + _PIECE)
        optimizer.apply(flat[piece], flat_gradients[piece], [slot[piece] for slot in flat_slots], step, rate)


def update_rows(
    optimizer: Optimizer,
    arenas: Sequence[Arena],
    rows: Integers,
    gradients: Floats,
    step: int,
    learning_rate: float | None = None,
    keep: Callable[[Integers, Sequence[Floats]], None] | None = None,
) -> None:
    """Update n rows of a table by gradients of (n, dimension). The rows must differ from each other, and ascend.

    `arenas`: that of the values, then those of the slots; all have equally many rows a block. `keep` gets rows and what each arena
    has of them before these change.
    """
    rate = optimizer.learning_rate if learning_rate is None else learning_rate
    length = max(1, _PIECE // arenas[0].width)
    for begin in range(0, len(rows), length):
        places = Places(rows[begin : begin + length], arenas[0].block_rows, is_sorted=True)
        values, *slots = numbers = [arena.read(places) for arena in arenas]
        if keep is not None:
            keep(rows[begin : begin + length], numbers)
        optimizer.apply(values, gradients[begin : begin + length], slots, step, rate)
        for arena, written in zip(arenas, numbers, strict=True):
            arena.write(places, written)


def clip_by_global_norm(gradients: Sequence[Floats], limit: float) -> list[Floats]:
    """Return the gradients, scaled down so that the norm of all of them together is at most `limit`, as Keras and TensorFlow do it.

    Gradients of one row that came in several parts must be summed before. Raises FloatingPointError where the norm is not finite.
    """
    norm = global_norm(gradients)
    if not math.isfinite(norm):
        raise FloatingPointError(f"the global norm of the gradients is {norm}")
    if norm <= limit:
        return list(gradients)
    scale = limit / norm
    return [gradient * numpy.float32(scale) for gradient in gradients]


def global_norm(gradients: Sequence[Floats]) -> float:
    """Return the square root of the sum of all squares, summed in float64."""
    return math.sqrt(sum(float(numpy.square(gradient, dtype=numpy.float64).sum()) for gradient in gradients))


def stale_learning_rate(learning_rate: float, staleness: int) -> float:
    """Return the learning rate for a gradient that was computed `staleness` versions ago: divided by max(1, staleness)."""
    return learning_rate / max(1, staleness)
