"""ElasticDL's `DistributedOptimizer` for PyTorch: an optimizer of the program's, and how many batches its steps have.

The gradients are averaged by the controller that the optimizer is given to (`torch_controller`), whoever makes it.
"""

from __future__ import annotations

import os
from typing import Any

from ..runtime import task
from ..zoo.errors import BadModel


def DistributedOptimizer(
    optimizer: Any,
    named_parameters: Any = None,
    compression: Any = None,
    backward_passes_per_step: int = 1,
    op: Any = None,
    gradient_predivide_factor: float = 1.0,
    global_batch_num_per_step: int | None = None,
    fixed_global_batch_size: bool = False,
) -> Any:
    """Return the optimizer, for `controller.set_broadcast_optimizer`.

    `fixed_global_batch_size`: a step has `global_batch_num_per_step` batches, or WORKER_NUM of the environment, however many workers there
    are; fewer workers add up the gradients of several batches each. Else each worker adds one batch. Other arguments of Horovod's are
    accepted where they change nothing: gradients are averaged as they are. Raises BadModel.
    """
    if compression is not None or op is not None:
        raise BadModel("gradients are averaged as they are", mend="leave out compression and op")
    optimizer.fixed_global_batch_size = fixed_global_batch_size
    optimizer.global_batch_num_per_step = 0
    if fixed_global_batch_size:
        optimizer.global_batch_num_per_step = global_batch_num_per_step or _workers()
    return optimizer


def _workers() -> int:
    """Return how many workers the job is to have. All must take the same number, also those that come when there are fewer."""
    number = os.environ.get("WORKER_NUM", "1" if task().alone else "")
    if not number.isdecimal() or not int(number):
        raise BadModel(
            f"the number of batches of a step is not known: WORKER_NUM is {number or 'not set'}",
            mend="give the role env: {WORKER_NUM: N}, or say global_batch_num_per_step=N",
        )
    return int(number)
