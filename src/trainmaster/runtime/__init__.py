"""The package that a program may import: its place in the job, its records, and reports to its master.

Everything here is harmless where there is no master: alone, `task()` is the only member of its role, `shards(name)` reads
the whole input, and reports go nowhere. So one program runs under Trainmaster, under another launcher, and
by hand. An absent master makes calls wait, never raise. This package needs the standard library only and imports
nothing else of ours, so that the directory `trainmaster/runtime` alone on a program's path is enough. Its modules `torch_data` and
`tf_data`, which read shards into PyTorch and TensorFlow, import these: the program imports them by name.

    from trainmaster import runtime

    for record in runtime.shards("train", default="data/*.csv"):
        ...
        runtime.progress(step=step, loss=loss)
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .checkpoints import checkpoint
    from .coordination import barrier, lock
    from .inputs import Shard, Shards, commit
    from .reports import Warned, metrics, phase, progress, saved, warning

__all__ = [
    "Shard",
    "Shards",
    "Task",
    "Warned",
    "barrier",
    "checkpoint",
    "commit",
    "lock",
    "metrics",
    "phase",
    "progress",
    "saved",
    "shards",
    "task",
    "warning",
]

_MODULES = dict.fromkeys(("Warned", "metrics", "phase", "progress", "saved", "warning"), "reports")
_MODULES |= {"Shard": "inputs", "Shards": "inputs", "barrier": "coordination", "lock": "coordination"}
_MODULES |= {"checkpoint": "checkpoints", "commit": "inputs"}


def __getattr__(name: str) -> Any:
    """Load a member when it is first used: a program that only calls `task()` pays for nothing else."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    member = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return member


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class Task:
    """The task that this process belongs to.

    `job` is the job's id, `role` and `index` name the task, `attempt` is the number of its attempt, `generation` that of the
    group of tasks, `restarts` how often the job has restarted its programs. `world` is the number of tasks of the
    role, and `peers` has the tasks of all roles: role -> a list of {"address", "ports"} by index. `alone`: no job started
    this process; it is worker 0 of 1 then, in its first attempt.
    """

    __slots__ = ("alone", "attempt", "generation", "index", "job", "peers", "restarts", "role", "world")

    def __init__(self) -> None:
        variable = os.environ.get
        self.job = variable("TRAINMASTER_JOB", "")
        self.role = variable("TRAINMASTER_ROLE", "worker")
        self.index = int(variable("TRAINMASTER_INDEX") or 0)
        self.attempt = int(variable("TRAINMASTER_ATTEMPT") or 1)
        self.generation = int(variable("TRAINMASTER_GENERATION") or 1)
        self.restarts = int(variable("TRAINMASTER_RESTARTS") or 0)
        self.alone = not self.job
        self.peers = _peers(variable("TRAINMASTER_PEERS", ""))
        self.world = max(1, len(self.peers.get(self.role, ())))

    @property
    def key(self) -> str:
        """Return the task as text, as in `worker:0`."""
        return f"{self.role}:{self.index}"

    def __repr__(self) -> str:
        return f"<Task {self.key} of {self.job or 'no job'}, attempt {self.attempt}, generation {self.generation}>"


def task() -> Task:
    """Return the task of this process, by the TRAINMASTER_ variables of its environment."""
    return Task()


def shards(
    name: str,
    *,
    default: str = "",
    epochs: int = 1,
    encoding: str | None = "utf-8",
    errors: str = "surrogateescape",
    batch: int = 10,
    wait: bool = True,
    format: str = "auto",  # noqa: A002  the job file's key
) -> Shards:
    """Return the records of the input `name`: lines as str (bytes where `encoding` is None), rows of Parquet and of tables as dictionaries,
    records of RecordIO and TFRecord as bytes.

    Under a master each record goes to one task, over the epochs of the job file, and in its format. Alone, all of
    TRAINMASTER_INPUT_<NAME>, or of `default` (a file, a directory, a pattern or a table's URL), is read `epochs` times, in the `format`
    that the job file would name. `batch`
    shards are leased at once (None: as many as last a moment, 10 at first). A reader that finds nothing to lease waits
    for the other readers' last shards; with `wait=False` it ends.
    """
    from .inputs import Shards

    return Shards(name, default, epochs, encoding, errors, batch, wait, format)


def _peers(path: str) -> dict[str, Any]:
    if not path:
        return {}
    import json

    with open(path, encoding="utf-8") as file:
        peers = json.load(file)
    return peers if isinstance(peers, dict) else {}
