"""The initial rows of tables, of what Keras's initializers and PyTorch's modules say."""

from __future__ import annotations

import math
from typing import Any

from ...ps.initializers import Constant, Normal, TruncatedNormal, Uniform
from ..errors import BadModel

_CUT = 0.87962566103423978  # the deviation of a standard normal distribution that is cut at -2 and 2
NAMES = "RandomUniform, RandomNormal, TruncatedNormal, VarianceScaling (Glorot, He, Lecun), Zeros, Ones, Constant"


def of_keras(initializer: Any, input_dim: int | None, dimension: int, name: str) -> tuple[Any, int]:
    """Return the initializer of a table's rows, and its seed. `name`: of the layer, for the error. Raises BadModel."""
    kind = type(initializer).__name__
    config = initializer.get_config() if hasattr(initializer, "get_config") else {}
    seed = getattr(initializer, "_init_seed", None)
    seed = seed if isinstance(seed, int) else 0  # without a seed Keras draws one, and workers would differ
    if kind == "RandomUniform":
        return Uniform(config["minval"], config["maxval"]), seed
    if kind == "RandomNormal":
        return Normal(config["mean"], config["stddev"]), seed
    if kind == "TruncatedNormal":
        return TruncatedNormal(config["mean"], config["stddev"]), seed
    if kind in ("Zeros", "Ones"):
        return Constant(float(kind == "Ones")), seed
    if kind == "Constant" and isinstance(config["value"], int | float):
        return Constant(float(config["value"])), seed
    if all(hasattr(initializer, part) for part in ("scale", "mode", "distribution")):
        return _scaled(initializer, input_dim, dimension, name), seed
    raise BadModel(f"the rows of {name} cannot begin with {kind}", mend=f"use one of {NAMES}")


def deviation_of(initializer: Any) -> tuple[float, float]:
    """Return the mean and the deviation of the numbers that an initializer makes."""
    if isinstance(initializer, Constant):
        return initializer.value, 0.0
    if isinstance(initializer, Uniform):
        return (initializer.low + initializer.high) / 2, (initializer.high - initializer.low) / math.sqrt(12)
    cut = _CUT if isinstance(initializer, TruncatedNormal) else 1.0
    return initializer.mean, initializer.deviation * cut


def are_initial(values: Any, initializer: Any) -> bool:
    """Tell whether many numbers, an array, look like what an initializer makes, and not like what was learned or loaded."""
    mean, deviation = deviation_of(initializer)
    error = 6 * deviation / math.sqrt(values.size) + 1e-6
    return abs(float(values.mean()) - mean) <= error and abs(float(values.std()) - deviation) <= error


def _scaled(initializer: Any, input_dim: int | None, dimension: int, name: str) -> Any:
    if input_dim is None and initializer.mode != "fan_out":
        raise BadModel(
            f"the initializer of {name} scales with the number of ids, which has no bound",
            mend="give the layer an input_dim, or another initializer",
        )
    fan_in, fan_out = float(input_dim or 0), float(dimension)
    fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[initializer.mode]
    variance = initializer.scale / max(1.0, fan)
    if initializer.distribution == "uniform":
        limit = math.sqrt(3 * variance)
        return Uniform(-limit, limit)
    if initializer.distribution == "untruncated_normal":
        return Normal(0.0, math.sqrt(variance))
    return TruncatedNormal(0.0, math.sqrt(variance) / _CUT)
