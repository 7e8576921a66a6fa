"""Idempotency keys: of two who submit under one key, the second is given the first one's job.

A key is a file, which holds the job's id and its claim: what tells that job from another one. It is made by a link, so at most one has it.
A key that is damaged does not say whether a job was submitted under it: submitting is refused until its user has looked.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainmaster.client.jobs.backends import backend_of
from trainmaster.client.jobs.places import state_dir
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Job


def key_file(key: str) -> Path:
    import hashlib

    return state_dir() / "keys" / hashlib.sha256(key.encode()).hexdigest()


def same_job(key: str, job: Job, base: Path, engine: str) -> str:
    """Return the job that was submitted under `key` before, or "". Raises BadInput where it is not the same as `job`."""
    name = _submitted_under(key)
    if name:
        _refuse_another(key, name, claim_of(job, base, engine))
    return name


def _submitted_under(key: str) -> str:
    """Return the job that was submitted under `key` before, or "". A submitter that died before the job's master began has submitted
    nothing; on a cluster, one that died before the cluster had the job. Raises BadInput, or EngineFailed, where the cluster cannot be
    asked.
    """
    while name := _holder(key):
        is_submitted = backend_of(name).is_submitted(name)
        if is_submitted:
            return name
        if is_submitted is None:
            time.sleep(0.02)
        else:
            give_up(key, name)
    return ""


def _holder(key: str) -> str:
    """Return the job that has taken `key`, or ""."""
    return _holder_and_claim(key)[0]


def _holder_and_claim(key: str) -> tuple[str, dict[str, Any] | None]:
    """Return the job that has taken `key`, and its claim; "" and None where there is none, None where an earlier version wrote it. Raises
    Damaged.
    """
    from trainmaster.log.documents.files import damaged, parse

    try:
        content = key_file(key).read_bytes()
    except FileNotFoundError:
        return "", None
    name, newline, text = content.partition(b"\n")
    mend = f"see with tm list whether the job of the key {key} was submitted; then remove this file, or use another key"
    if not newline:
        raise damaged(str(key_file(key)), content, mend)
    claim = parse(text, str(key_file(key)), mend) if text.strip() else {}
    return name.decode().strip(), claim if "job" in claim else None


def claim_of(job: Job, base: Path, engine: str) -> dict[str, Any]:
    """Return what tells a job from another one: its description, where its relative paths lead, its engine.

    Secret values are redacted: they may change.
    """
    from trainmaster.client.spec.settings import redacted

    return {"job": redacted(job), "directory": os.path.realpath(base), "engine": engine}


def _rows(claim: Mapping[str, Any]) -> dict[str, str]:
    """Return a claim's values by key, with the defaults of this version for keys that the version that wrote it did not know."""
    from trainmaster.client.spec.settings import explain
    from trainmaster.core.spec.reading import job_from

    rows = {row.key: row.value for row in explain(job_from(claim["job"]), {})}
    return rows | {"--engine": claim["engine"], "directory": claim["directory"]}


def _refuse_another(key: str, name: str, claim: Mapping[str, Any]) -> None:
    """Raise BadInput where the job that has `key` is not the one that is submitted now: its user would take the old one for the new one."""
    earlier = _holder_and_claim(key)[1]
    if earlier is None or claim == earlier:
        return
    try:
        known = _rows(earlier)
    except BadInput:  # written by a later version, with keys that this one does not know
        return
    rows = _rows(claim)
    changed = sorted(path for path in {**rows, **known} if known.get(path) != rows.get(path))
    if not changed:
        return
    first = changed[0]
    others = f", and {len(changed) - 1} more keys" if len(changed) > 1 else ""
    raise BadInput(
        f"the idempotency key {key} belongs to {name}, which is another job",
        place=f"{first}: {rows.get(first, 'none')}, in {name}: {known.get(first, 'none')}{others}",
        mend=f"use another key for this job, or go on with that one: tm attach {name}",
        anchor="key-taken",
    )


def give_up(key: str, name: str) -> None:
    """Free `key` where `name` still has it: of all submitters that waited for that job in vain, the first frees it, and then takes it."""
    import fcntl

    folder = os.open(key_file(key).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if _holder(key) == name:
            key_file(key).unlink()
    finally:
        os.close(folder)


def take(key: str, name: str, claim: Mapping[str, Any]) -> bool:
    """Take `key`; returns whether it is ours from now on."""
    from trainmaster.log.storage import LocalStorage

    path = key_file(key)
    return LocalStorage(path.parent).create(path.name, f"{name}\n{json.dumps(claim)}\n".encode())
