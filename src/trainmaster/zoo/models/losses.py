"""The value that a model file's loss returns: a number, a number for each example, or a dictionary or list of these for several outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import BadModel
from ..model_file import ModelFile, place_of


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of a loss; the name is "loss" where there is one alone."""
    if isinstance(value, dict):
        yield from ((str(name), part) for name, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"loss_{number}", part) for number, part in enumerate(value))
    else:
        yield "loss", value


def check(value: Any, size: int, model_file: ModelFile) -> None:
    """Raise BadModel where a loss has another shape than a number or one for each of `size` examples."""
    for name, part in parts_of(value):
        shape = getattr(part, "shape", None)
        if isinstance(part, int | float):
            continue
        if shape is None:
            fault = "returns nothing" if part is None else f"returns a {type(part).__name__}"
        elif (numbers := math.prod(map(int, shape))) in (1, size) and (numbers == 1 or int(shape[0]) == size):
            continue
        else:
            fault = f"returns the shape {tuple(int(length) for length in shape)} for a batch of {size}"
        of_output = "" if name == "loss" else f" for {name}"
        raise BadModel(
            f"the loss {fault}{of_output}: a number or one for each example is due",
            place=place_of(model_file.path, model_file.loss),
            mend="take the mean over the other axes, or give logits and labels of equal shapes",
        )


def total(value: Any, mean: Callable[[Any], Any]) -> tuple[Any, dict[str, Any]]:
    """Return the sum of a loss's means, and these by name where there are several."""
    means = {name: mean(part) for name, part in parts_of(value)}
    first, *others = means.values()
    for other in others:
        first = first + other
    return first, means if others else {}
