"""What the client keeps of a job on this machine, beside its storage.

`jobs/<id>` in the state directory holds the job as it was understood, its token, readable by the user alone, and, unless `storage:` names
another place, the storage itself. The master's socket is in the runtime directory.
"""

from __future__ import annotations

import os
from pathlib import Path

from trainmaster.engines.local.places import job_storage, runtime_dir, state_dir

JOB_FILE, TOKEN_FILE = "job.json", "token"

__all__ = ["JOB_FILE", "TOKEN_FILE", "job_ids", "job_storage", "master_socket", "state_dir"]


def master_socket(job: str) -> Path:
    return runtime_dir() / job / "master.sock"


def job_ids() -> list[str]:
    """The jobs that this machine knows, in no order."""
    try:
        return [entry.name for entry in os.scandir(state_dir() / "jobs") if entry.is_dir()]
    except FileNotFoundError:
        return []
