"""Adopt our jobs on a cluster that were submitted from another machine: this machine then knows them as if they were submitted here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trainmaster.client.jobs.places import (
    CERTIFICATE_FILE,
    JOB_FILE,
    SITE_FILE,
    TOKEN_FILE,
    client_side,
    job_draft,
    job_storage,
    keep_draft,
    storage_errors,
)
from trainmaster.log.documents import files as documents
from trainmaster.log.storage import Damaged

_FORGOTTEN = "application_0_0000"  # of a job that the cluster has forgotten: no cluster knows this application
_ADOPTED: dict[str, Any] = {  # of the site of a job that was submitted elsewhere
    "submitted": int | float,
    "secret_names": list,
    "sources": dict,
    "user": str,
}


def adopt(engine: str, name: str) -> list[str]:
    """Return the ids of our jobs on the cluster that `name`, an id, the beginning of one or an application, may mean. Where that is one
    job, which this machine does not know, this machine knows it from now on, as if it had been submitted here.
    """
    client = client_side(engine)
    applications = client.find_jobs(name)
    if name in applications or not applications:
        applications = {name: applications.get(name, _FORGOTTEN)}
    if len(applications) == 1:
        [(job, application)] = applications.items()
        if not job_storage(job).exists():
            if (note := client.store().job_access(job)) is None:
                return []
            _note_job(engine, job, application, note)
    return sorted(applications)


def adopt_all(engine: str, jobs: Mapping[str, str]) -> None:
    """Have this machine know all our jobs on the cluster. `jobs`: job -> application, as the cluster lists them. Raises Damaged, where the
    cluster's note on a job is, once all others are known.
    """
    client = client_side(engine)
    failure = None
    for job, application in jobs.items():
        try:
            if not job_storage(job).exists() and (note := client.store().job_access(job)) is not None:
                _note_job(engine, job, application, note)
        except Damaged as error:
            failure = error
    if failure is not None:
        raise failure


def _note_job(engine: str, job: str, application: str, note: Mapping[str, Any]) -> None:
    """Note a job that the cluster has. In a namespace that others share, anybody may have written it: of its site only the needed fields
    are taken, and none that says what is run or read on this machine.
    """
    with storage_errors("keep the job", job_storage(job)), job_draft() as draft:
        (draft / TOKEN_FILE).write_text(note["token"])
        (draft / CERTIFICATE_FILE).write_text(note["certificate"])
        site = {name: value for name, value in note["site"].items() if isinstance(value, _ADOPTED.get(name, ()))}
        shared = {"shared": True} if note.get("shared") else {}
        cluster = {"engine": engine, "application": application, "link": client_side(engine).link(application)}
        documents.write(draft / SITE_FILE, {**site, **shared, **cluster})
        documents.write(draft / JOB_FILE, note["job"])
        if at := note.get("submitted"):  # a job that has not begun is as old as these files
            for name in (TOKEN_FILE, JOB_FILE):
                os.utime(draft / name, (at, at))
        keep_draft(draft, job)  # another process may have adopted it meanwhile
