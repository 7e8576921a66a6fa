"""Jobs of ours on a cluster that were submitted from another machine: this machine knows them from then on, as if submitted here."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainmaster.client.jobs.places import (
    CERTIFICATE_FILE,
    JOB_FILE,
    SITE_FILE,
    TOKEN_FILE,
    client_side,
    job_storage,
    kept,
    state_dir,
)

_FORGOTTEN = "application_0_0000"  # of a job that the cluster has forgotten: it knows nothing of that one either
_ADOPTED: dict[str, Any] = {  # of the site of a job that was submitted elsewhere
    "submitted": int | float,
    "secret_names": list,
}


def adopt(engine: str, wanted: str) -> list[str]:
    """The ids of the jobs of ours on the cluster that `wanted`, an id, its beginning or an application, may mean. Where it is one that this
    machine knows nothing of, this machine knows it from now on, as if it had been submitted here.
    """
    client = client_side(engine)
    found = client.found(wanted)
    if wanted in found or not found:
        found = {wanted: found.get(wanted, _FORGOTTEN)}
    if len(found) == 1:
        [(job, application)] = found.items()
        if not job_storage(job).exists() and (
            (note := client.store().kept(job)) is None or not _adopted(engine, job, application, note)
        ):
            return []
    return sorted(found)


def adopt_all(engine: str, jobs: Mapping[str, str]) -> None:
    """Have this machine know all jobs of ours on the cluster, which it tells of: job -> application."""
    client = client_side(engine)
    for job, application in jobs.items():
        if not job_storage(job).exists() and (note := client.store().kept(job)) is not None:
            _adopted(engine, job, application, note)


def _adopted(engine: str, job: str, application: str, note: Mapping[str, Any]) -> bool:
    """Note a job that the cluster has. In a namespace that others share, anybody may have written it: of its site only what is needed is
    taken, nothing that says what is run or read on this machine.
    """
    import shutil
    import tempfile

    with kept("keep the job", job_storage(job)):
        (state_dir() / "jobs").mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".", dir=state_dir()))  # readable by us alone
        try:
            (draft / TOKEN_FILE).write_text(note["token"])
            (draft / CERTIFICATE_FILE).write_text(note["certificate"])
            site = {name: value for name, value in note["site"].items() if isinstance(value, _ADOPTED.get(name, ()))}
            shared = {"shared": True} if note.get("shared") else {}
            (draft / SITE_FILE).write_text(json.dumps({**site, **shared, "engine": engine, "application": application}))
            (draft / JOB_FILE).write_text(json.dumps(note["job"]))
            if at := note.get("submitted"):  # what has not begun is as old as they are
                for name in (TOKEN_FILE, JOB_FILE):
                    os.utime(draft / name, (at, at))
            with contextlib.suppress(FileExistsError):  # adopted by somebody else meanwhile
                draft.rename(job_storage(job))
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return True
