"""Trainmaster runs deep-learning programs, unchanged, on the machines a team already has.

    job = trainmaster.Job(name="digits", framework="pytorch", roles={"worker": {"command": "python train.py", "replicas": 2}})
    run = trainmaster.submit(job)
    run.wait()

Everything here is loaded when it is first used. `trainmaster.aio` has the same for programs with an event loop. The programs of a job may
import `trainmaster.runtime`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take this as true; importing `typing` would cost more than this whole module
if TYPE_CHECKING:
    from typing import Any

    from trainmaster.client import aio as aio
    from trainmaster.client.api import Job as Job
    from trainmaster.client.api import JobWarning as JobWarning
    from trainmaster.client.api import Run as Run
    from trainmaster.client.api import attach as attach
    from trainmaster.client.api import jobs as jobs
    from trainmaster.client.api import logs as logs
    from trainmaster.client.api import status as status
    from trainmaster.client.api import submit as submit
    from trainmaster.client.api import wait as wait
    from trainmaster.client.watch.results import Event as Event
    from trainmaster.client.watch.results import Listed as Listed
    from trainmaster.client.watch.results import Status as Status
    from trainmaster.core.errors import BadInput as BadInput
    from trainmaster.core.errors import EngineFailed as EngineFailed
    from trainmaster.core.errors import JobFailed as JobFailed
    from trainmaster.core.errors import NotFound as NotFound
    from trainmaster.core.errors import TrainmasterError as TrainmasterError

__version__ = "0.1.0"

_MODULE_OF = {
    **dict.fromkeys(
        ("Job", "JobWarning", "Run", "submit", "attach", "wait", "logs", "status", "jobs"), "trainmaster.client.api"
    ),
    **dict.fromkeys(("Event", "Listed", "Status"), "trainmaster.client.watch.results"),
    **dict.fromkeys(
        ("TrainmasterError", "BadInput", "NotFound", "JobFailed", "EngineFailed"), "trainmaster.core.errors"
    ),
}
__all__ = ["BadInput", "EngineFailed", "Event", "Job", "JobFailed", "JobWarning", "Listed", "NotFound", "Run", "Status", "TrainmasterError",
           "aio", "attach", "jobs", "logs", "status", "submit", "wait"]  # fmt: skip


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "aio":
        return import_module("trainmaster.client.aio")
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'trainmaster' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
