"""Initial values of embedding rows, each of which depends on the seed, the table, the id and the column alone.

So every server makes the same row, in whatever order rows are made, and a row that was evicted comes back as it was at first.

*Random bits.* The numbers of a row are those of SplitMix64 (Steele, Lea and Flood: "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014; constants of Vigna's splitmix64.c), whose state begins at mix(key ^ id): that of column j is mix(state + (j + 1) * GOLDEN).
The key is a hash (BLAKE2b) of the seed and the table's name.

*The same bits on every processor.* Normal numbers are made of one uniform number each, by Wichura's AS241 (Applied Statistics 37, 1988),
with a logarithm by its series: additions, multiplications, divisions and square roots of float64 alone, which IEEE 754 rounds in one way.
NumPy's own `log` and `cos` differ in their last bit between processors.

The distributions are those of Keras' initializers of the same names. `deviation` of a truncated normal is that before it is cut, at two
deviations on either side.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from numpy.typing import NDArray

    Doubles = NDArray[numpy.float64]
    Floats = NDArray[numpy.float32]
    Integers = NDArray[numpy.int64]
    Words = NDArray[numpy.uint64]

    class Initializer(Protocol):
        def rows(self, key: int, ids: Integers, dimension: int) -> Floats:
            """Return the rows of the ids, (n, dimension), of the table with this key."""


def table_key(seed: int, table: str) -> int:
    """Return the key of a table's random bits, 64 bits."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{table}".encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Constant:
    """Every number is `value`."""

    value: float = 0.0

    def rows(self, key: int, ids: Integers, dimension: int) -> Floats:
        return numpy.full((len(ids), dimension), self.value, numpy.float32)


def zeros() -> Constant:
    return Constant(0.0)


@dataclass(frozen=True)
class Uniform:
    """Numbers are uniform between `low` and `high`."""

    low: float = -0.05
    high: float = 0.05

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"a uniform initializer needs low <= high, and has {self.low} and {self.high}")

    def rows(self, key: int, ids: Integers, dimension: int) -> Floats:
        return _scaled(_uniform(key, ids, dimension), self.high - self.low, self.low)


@dataclass(frozen=True)
class Normal:
    """Numbers are normal."""

    mean: float = 0.0
    deviation: float = 0.05

    def __post_init__(self) -> None:
        _check_deviation(self.deviation)

    def rows(self, key: int, ids: Integers, dimension: int) -> Floats:
        return _scaled(_normal_quantile(_uniform(key, ids, dimension)), self.deviation, self.mean)


@dataclass(frozen=True)
class TruncatedNormal:
    """Numbers are normal, of those within two deviations of the mean."""

    mean: float = 0.0
    deviation: float = 0.05

    def __post_init__(self) -> None:
        _check_deviation(self.deviation)

    def rows(self, key: int, ids: Integers, dimension: int) -> Floats:
        share = _uniform(key, ids, dimension)
        share *= 1 - 2 * _BELOW_CUT
        share += _BELOW_CUT
        return _scaled(_normal_quantile(share), self.deviation, self.mean)


def glorot_uniform(input_dim: int | None, dimension: int) -> Uniform:
    """Return Glorot's uniform initializer of a table with `input_dim` ids. Raises ValueError where their number has no bound."""
    limit = math.sqrt(6 / _fans(input_dim, dimension))
    return Uniform(-limit, limit)


def glorot_normal(input_dim: int | None, dimension: int) -> TruncatedNormal:
    """Return Glorot's normal initializer of a table with `input_dim` ids. Raises ValueError where their number has no bound."""
    return TruncatedNormal(0.0, math.sqrt(2 / _fans(input_dim, dimension)) / _TRUNCATED_DEVIATION)


def _fans(input_dim: int | None, dimension: int) -> int:
    if input_dim is None:
        raise ValueError(
            "Glorot's initializers scale with the number of ids: give the table an input_dim, or another initializer"
        )
    return input_dim + dimension


def _check_deviation(deviation: float) -> None:
    if not deviation >= 0:
        raise ValueError(f"the deviation of an initializer must not be negative, and is {deviation}")


# -- random bits --

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def _mix(words: Words) -> Words:
    """Mix 64-bit words in place (Stafford's variant 13, as in splitmix64.c), and return them."""
    words ^= words >> numpy.uint64(30)
    words *= numpy.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> numpy.uint64(27)
    words *= numpy.uint64(0x94D049BB133111EB)
    words ^= words >> numpy.uint64(31)
    return words


def _uniform(key: int, ids: Integers, dimension: int) -> Doubles:
    """Return numbers above 0 and below 1, (n, dimension), each an odd multiple of 2**-53."""
    states = _mix(ids.astype(numpy.int64).view(numpy.uint64) ^ numpy.uint64(key))
    increments = numpy.array([(column + 1) * _GOLDEN & _MASK for column in range(dimension)], numpy.uint64)
    words = _mix(states[:, numpy.newaxis] + increments)
    words >>= numpy.uint64(12)
    values = words.astype(numpy.float64)
    values += 0.5
    values *= 2.0**-52
    return values


# -- the normal distribution --

_BELOW_CUT = 0.022750131948179212  # of a normal distribution lies more than two deviations below the mean
_TRUNCATED_DEVIATION = 0.8796256610342398  # of a standard normal distribution that is cut at -2 and 2
_SQRT_HALF = math.sqrt(0.5)

# AS241, PPND16: the coefficients of numerators and denominators, the highest power first.
_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457, 13731.693765509461125,
     1971.5909503065514427, 133.14166789178437745, 3.3871328727963666080),
    (5226.4952788528545610, 28729.085735721942674, 39307.895800092710610, 21213.794301586595867, 5394.1960214247511077,
     687.18700749205790830, 42.313330701600911252, 1.0),
)  # fmt: skip
_TAIL = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.241780725177450611770, 1.27045825245236838258,
     3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 0.0151986665636164571966, 0.148103976427480074590,
     0.689767334985100004550, 1.67638483018380384940, 2.05319162663775882187, 1.0),
)  # fmt: skip
_FAR_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.00124266094738807843860, 0.0265321895265761230930,
     0.296560571828504891230, 1.78482653991729133580, 5.46378491116411436990, 6.65790464350110377720),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
     0.0148753612908506148525, 0.136929880922735805310, 0.599832206555887937690, 1.0),
)  # fmt: skip


def _normal_quantile(share: Doubles) -> Doubles:
    """Return the numbers below which these shares of a standard normal distribution lie."""
    centred = share - 0.5
    squared = 0.180625 - centred * centred
    quantiles: Doubles = _ratio(_CENTRE, squared) * centred
    outer = numpy.abs(centred) > 0.425
    if outer.any():
        low = centred[outer] < 0
        tail = numpy.where(low, share[outer], 1 - share[outer])
        root = numpy.sqrt(-_logarithm(tail))
        values = numpy.where(root <= 5, _ratio(_TAIL, root - 1.6), _ratio(_FAR_TAIL, root - 5))
        quantiles[outer] = numpy.where(low, -values, values)
    return quantiles


def _ratio(coefficients: Sequence[Sequence[float]], values: Doubles) -> Doubles:
    numerator, denominator = (_polynomial(side, values) for side in coefficients)
    return numerator / denominator


def _polynomial(coefficients: Sequence[float], values: Doubles) -> Doubles:
    total = numpy.full_like(values, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= values
        total += coefficient
    return total


def _logarithm(values: Doubles) -> Doubles:
    """Return natural logarithms, right to some 1e-16 of the larger of 1 and the result."""
    mantissas, exponents = numpy.frexp(values)
    small = mantissas < _SQRT_HALF
    mantissas = numpy.where(small, 2 * mantissas, mantissas)
    ratio = (mantissas - 1) / (mantissas + 1)  # at most 0.172: its 23rd power is below 1e-17
    series = _polynomial([2 / (2 * term + 1) for term in range(10, -1, -1)], ratio * ratio) * ratio
    result: Doubles = series + (exponents - small) * math.log(2)
    return result


def _scaled(values: Doubles, factor: float, offset: float) -> Floats:
    values *= factor
    values += offset
    scaled: Floats = values.astype(numpy.float32)
    return scaled
