"""What the client keeps of a job on this machine, beside its storage.

`jobs/<id>` in the state directory holds the job as it was understood, its token, readable by the user alone, and, unless `storage:` names
another place, the storage itself. The master's socket is in the runtime directory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainmaster.engines.local.places import job_storage, runtime_dir, state_dir

JOB_FILE, SITE_FILE, TOKEN_FILE = "job.json", "site.json", "token"
_LONGEST = 40  # characters of the name in an id: paths of sockets are short
LONGEST_ID = _LONGEST + len("-k3x7qa")

__all__ = [
    "JOB_FILE",
    "LONGEST_ID",
    "SITE_FILE",
    "TOKEN_FILE",
    "client_of",
    "engine_of",
    "in_id",
    "job_ids",
    "job_storage",
    "kept",
    "master_socket",
    "site_of",
    "state_dir",
]


def master_socket(job: str) -> Path:
    return runtime_dir() / job / "master.sock"


def site_of(job: str) -> dict[str, Any]:
    """What submit found out about the job's place; {} where that is not known."""
    try:
        found: dict[str, Any] = json.loads((job_storage(job) / SITE_FILE).read_bytes())
        return found
    except (OSError, ValueError):
        return {}


def engine_of(job: str) -> str:
    """The engine that the job is on."""
    return str(site_of(job).get("engine") or "local")


def client_of(engine: str, requests: Callable[[Any], Any] = lambda job: ()) -> Any:
    """The engine's `ClientSide`."""
    if engine == "yarn":
        from trainmaster.engines.yarn.client import YarnClient

        return YarnClient(requests)
    if engine == "kubernetes":
        from trainmaster.engines.kubernetes.client import KubernetesClient

        return KubernetesClient(requests)
    from trainmaster.engines.local.client import LocalClient

    return LocalClient(requests)


def in_id(name: str) -> str:
    """A job's name as its ids begin: in the letters that paths, hosts and containers allow, and cut short."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST].rstrip("-")


def job_ids() -> list[str]:
    """The jobs that this machine knows, in no order."""
    with kept("read the jobs", state_dir() / "jobs"):
        try:
            return [entry.name for entry in os.scandir(state_dir() / "jobs") if entry.is_dir()]
        except FileNotFoundError:
            return []


@contextmanager
def kept(doing: str, place: Path) -> Iterator[None]:
    """What cannot be done to what this machine keeps is told in words: `doing`, and to which place."""
    try:
        yield
    except OSError as error:
        from trainmaster.log.storage import storage_failed

        failure = storage_failed(doing, str(place), error)
        if failure.anchor == "storage-failed":
            failure.mend += ", or set TRAINMASTER_STATE_DIR to another place"
        raise failure from error
