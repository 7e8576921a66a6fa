"""Updates parameters by Keras' own optimizers: `keras_updates.py CASES RESULTS`.

CASES is a JSON list of cases: the optimizer's class, its options, the initial values, and for each step the gradients and the learning
rate. The optimizer "clip" scales gradients by their global norm instead. RESULTS gets the values after each step.
"""

import json
import sys
from typing import Any

import keras
import numpy


def results(name: str, options: dict[str, Any], values: Any, gradients: list[Any], rates: list[float]) -> list[Any]:
    if name == "clip":
        clipped = keras.src.optimizers.base_optimizer.clip_by_global_norm(
            [keras.ops.convert_to_tensor(numpy.array(gradient, "f4")) for gradient in gradients], options["limit"]
        )
        return [keras.ops.convert_to_numpy(gradient).tolist() for gradient in clipped]
    variable = keras.Variable(numpy.array(values, "f4"))
    optimizer = getattr(keras.optimizers, name)(**options)
    after = []
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.learning_rate = rate
        optimizer.apply([keras.ops.convert_to_tensor(numpy.array(gradient, "f4"))], [variable])
        after.append(keras.ops.convert_to_numpy(variable.value).tolist())
    return after


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        cases = json.load(file)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump([results(*case) for case in cases], file)
