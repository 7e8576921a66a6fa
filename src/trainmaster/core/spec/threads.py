"""The number of threads that the libraries of a program use, and the variables that set it.

A numeric library starts one thread for each core of the machine. Programs that share a machine then have several threads for each core, and
they wait for each other: two workers of PyTorch on two cores made 20 steps a second where one thread each makes 275. So each program gets
its share of the cores:

    threads: cores      the task's cores / its copies of the program
    threads: machine    the machine's cores / the tasks that run at once on it, other jobs' too / the copies of each: where no `cores` are
                        asked for, on this machine
    threads: 4          4 for each copy

The share is at least 1, and rounded down. A variable stays as it is where the user has set it, or
has set a more general one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.core.machine.state import State

CORES, MACHINE = "cores", "machine"
# A library's variable -> the more general one that the library reads where its own is not set. Neither TensorFlow's pool nor that of XLA,
# which JAX computes with, is one of OpenMP. In jaxlib 0.10 one thread works where PJRT_NPROC is 1, and one per core where only
# OMP_NUM_THREADS is 1.
VARIABLES = {
    "OMP_NUM_THREADS": "",
    "MKL_NUM_THREADS": "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS": "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS": "",
    "PJRT_NPROC": "NPROC",
}
_ROUNDING = 1e-9  # cores are fractions, as 0.1 x 30


def thread_count(threads: int | str, cores: float, copies: int, machine_cores: float, tasks: int) -> int:
    """Return the threads of one copy. `tasks`: the number of tasks that share the machine's cores."""
    if not isinstance(threads, str):
        return threads
    share = cores if threads == CORES else machine_cores / max(1, tasks)
    return max(1, int(share / copies + _ROUNDING))


def tasks_at_once(state: State) -> int:
    """Count the tasks of the job that run, or will run as soon as they have a container, except those that idle."""
    opened = {group.number for group in state.groups if group.opened}
    return sum(
        task.group in opened and not task.final and not task.is_spare and not state.role(task).idles
        for task in state.tasks.values()
    )


def thread_variables(count: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set in a program with `environ`."""
    return {name: str(count) for name, general in VARIABLES.items() if name not in environ and general not in environ}
