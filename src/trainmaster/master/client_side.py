"""Masters of a cluster's jobs on the submitter's machine.

There are two: one that runs the whole job from here, where the cluster starts none, and one that only brings the log of a job to its end
whose cluster has ended everything else.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Mapping
from typing import IO, Any

from trainmaster.host.detached import start_master
from trainmaster.host.places import check_owner, job_storage
from trainmaster.log.documents.jobs import read_token

LOCK = "beside.lock"  # in the job's directory: held by its master of the first kind


def run(job: str, engine: str, application: str, payload: Mapping[str, Any]) -> None:
    """Start a master that runs the job from here. Raises BadInput where another user may have made the job."""
    check_owner(job)
    start_master(str(job_storage(job)), {**payload, "engine": engine, "application": application})


def is_running(job: str) -> bool:
    """Return True where a master of the first kind lives on this machine."""
    try:
        with (job_storage(job) / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def lock_alone(lock: IO[str]) -> bool:
    """Lock the file as its master; return False where another one has. A caller of `is_running` has a lock of its own for a moment."""
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(lock, fcntl.LOCK_UN)


def conclude(job: str, kill: Mapping[str, Any]) -> None:
    """Start a master of the second kind. `kill`: by whom the job was ended and why, or for which `reason` with `figures` it failed.

    Raises BadInput where another user may have made the job.
    """
    check_owner(job)
    storage = job_storage(job)
    token = read_token(storage)
    start_master(str(storage), {"token": token, "secrets": {}, "kill": dict(kill), "afterwards": True})
