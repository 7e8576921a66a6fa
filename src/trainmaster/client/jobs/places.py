"""The client keeps these files of a job on this machine, beside its storage.

`jobs/<id>` in the state directory holds the job as it was understood, its token, readable by the user alone, and, unless `storage:` names
another place, the storage itself. The master's socket is in the runtime directory.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainmaster.core.errors import TrainmasterError
from trainmaster.host.places import (
    CERTIFICATE_FILE,
    JOB_FILE,
    SITE_FILE,
    TOKEN_FILE,
    job_storage,
    runtime_dir,
    state_dir,
)

DRAFT = re.compile(r"\.[0-9a-f]{16}")  # the name of a directory that becomes a job's
URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_LONGEST = 40  # characters of the name in an id: paths of sockets are short
BEGIN = 30.0  # s that a master has, on a busy machine, from its job being submitted to its first event
UPLOADED = 330.0  # s that a submission to a cluster may take, where no lock tells whether it goes on
LONGEST_ID = _LONGEST + len("-k3x7qa")

__all__ = [
    "CERTIFICATE_FILE",
    "DRAFT",
    "JOB_FILE",
    "LONGEST_ID",
    "SITE_FILE",
    "TOKEN_FILE",
    "URL",
    "absolute",
    "beginning",
    "client_side",
    "engine_of",
    "in_id",
    "job_draft",
    "job_ids",
    "job_storage",
    "keep_draft",
    "master_socket",
    "site_of",
    "state_dir",
    "storage_errors",
    "submitting",
]


def master_socket(job: str) -> Path:
    return runtime_dir() / job / "master.sock"


def site_of(job: str) -> dict[str, Any]:
    """Return the facts that submit noted about the job's place; {} where they are not known. Where they are damaged, a job of this machine
    has those of its log. Raises Damaged for a job on a cluster: nothing else names its application.
    """
    from trainmaster.engines import registry
    from trainmaster.log.documents.jobs import known_site, read_site
    from trainmaster.log.storage import Damaged

    try:
        return read_site(job_storage(job))
    except Damaged:
        known = known_site(job_storage(job))
        if known and registry.is_on_this_machine(known["engine"]):
            return known
        raise
    except OSError:
        return {}


def engine_of(job: str) -> str:
    """Return the engine that the job is on."""
    from trainmaster.engines.registry import DEFAULT

    return str(site_of(job).get("engine") or DEFAULT)


def client_side(engine: str) -> Any:
    """Return an engine's client side, `OnThisMachine` or `OnCluster` as its capabilities say. Raises BadInput where there is none."""
    from trainmaster.engines import registry

    return registry.client_side(engine)


def absolute(url: str, base: Path) -> str:
    """Return a URL, or a path relative to `base`, as one that means the same anywhere on this machine."""
    if URL.match(url):
        from trainmaster.data.formats import tables

        return tables.absolute(url, str(base)) if tables.is_table(url) else url
    return os.path.normpath(base / os.path.expanduser(url)) + "/" * (url.endswith("/") and url != "/")


def all_absolute(url: str | Sequence[str], base: Path) -> str | tuple[str, ...]:
    """Return the URL, or URLs, of an input with absolute paths."""
    return absolute(url, base) if isinstance(url, str) else tuple(absolute(one_url, base) for one_url in url)


def in_id(name: str) -> str:
    """Return a job's name as its ids begin: in the letters that paths, hosts and containers allow, and cut short."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST].rstrip("-")


def job_ids() -> list[str]:
    """Return the jobs that this machine knows, in no order."""
    with storage_errors("read the jobs", state_dir() / "jobs"):
        try:
            return [entry.name for entry in os.scandir(state_dir() / "jobs") if entry.is_dir() and entry.name[0] != "."]
        except FileNotFoundError:
            return []


@contextmanager
def job_draft() -> Iterator[Path]:
    """Make a directory, readable by us alone, that becomes a job's by renaming it: nobody sees half of a job. Remove it otherwise.

    `tm prune` removes what processes that were killed have left.
    """
    draft = state_dir() / "jobs" / f".{os.urandom(8).hex()}"
    draft.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft.mkdir(mode=0o700)
    try:
        yield draft
    finally:
        if draft.exists():
            import shutil

            shutil.rmtree(draft, ignore_errors=True)


def keep_draft(draft: Path, job: str) -> bool:
    """Make a draft the directory of `job`; False where there is one already, which is left alone."""
    try:
        draft.rename(job_storage(job))
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise
    return True


@contextmanager
def storage_errors(doing: str, place: Path) -> Iterator[None]:
    """Turn an OSError about the files that this machine keeps into ours: it says what failed, `doing`, and at which place."""
    try:
        yield
    except TrainmasterError:  # it says so itself
        raise
    except OSError as error:
        from trainmaster.log.storage import storage_failed

        failure = storage_failed(doing, str(place), error)
        if failure.anchor == "storage-failed":
            failure.mend += ", or set TRAINMASTER_STATE_DIR to another place"
        raise failure from error


def beginning(job: str, within: float = BEGIN) -> bool:
    """Tell whether the job was submitted so lately that its master may not have begun, and no process of it is known to be dead."""
    try:
        lately = time.time() - (job_storage(job) / TOKEN_FILE).stat().st_mtime < within
    except FileNotFoundError:
        return False
    return lately and not _died(job)


def _died(job: str) -> bool:
    """Return True where all processes that were marked as this job's on this machine are dead."""
    from trainmaster.host import processes

    marks = processes.marks(job)
    return bool(marks) and not any(mark.process.alive for mark in marks)


def master_trouble(job: str) -> str:
    """Return what the newest master on this machine waits for, as its log ends with it: before the first event it answers nobody. "" where
    the log does not end so.
    """
    try:
        newest = max((job_storage(job) / "logs" / "master").glob("[0-9]*.log"), key=lambda path: int(path.stem))
        lines = newest.read_text(errors="replace").splitlines()
    except (OSError, ValueError):  # there is none
        return ""
    warnings = itertools.takewhile(lambda line: " WARNING " in line, reversed(lines))
    waits = next((line for line in warnings if " WARNING waits for " in line), "")
    return f"its master {waits.partition(' WARNING ')[2]}" if waits else ""


def submitting(job: str) -> bool:
    """Tell whether the job's submitter lives, and is not done: until then it has locked the job's token."""
    import fcntl

    try:
        with open(job_storage(job) / TOKEN_FILE) as token:
            fcntl.flock(token, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:  # a file system without locks
        return beginning(job, UPLOADED)
    return False
