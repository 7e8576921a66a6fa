"""Removing jobs that are over, and what jobs have left in caches.

A job is removed with all that is its own: its directory on this machine, its storage wherever that is (events, logs, checkpoints without a
`url`), what its cluster keeps of it, and its idempotency key. Inputs, outputs, and checkpoints that have a `url` stay. A job that runs, or
may run, is refused. A job that is found in a shared namespace can be written by anybody, and name a place that is not its own: its storage
is removed only where the job's master has signed.

Caches hold what many jobs share, by its content: on this machine `files`, `runtime`, `environments` and `cache` of the state directory, on
HDFS `files`, `runtime` and `inputs` of `.trainmaster`. An entry of this machine is touched whenever a job begins with it, so whatever was
last used before the oldest job that goes on was submitted is used by none. HDFS cannot tell when a file was last used, and touching it
would break containers that YARN brings it to: entries there go only while no job of ours runs on that cluster.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from trainmaster.client.jobs.listing import headlines
from trainmaster.client.jobs.places import (
    DRAFT,
    beginning,
    client_side,
    engine_of,
    job_storage,
    site_of,
    state_dir,
    storage_errors,
)
from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.engines.registry import goes_with_cluster, is_mount
from trainmaster.log.documents.jobs import place_of, read_token
from trainmaster.log.epochs import read_master
from trainmaster.log.index import Headline, headline
from trainmaster.log.storage import local_path, storage_failed, storage_for

CACHES = ("files", "runtime", "environments", "cache")
_MARGIN = 3600.0  # seconds that the submission of a job may take, and clocks of file systems may differ


@attrs.frozen(slots=True)
class Cached:
    """One entry of a cache: its path or URL, its bytes, and when it was last used (on HDFS: put there)."""

    place: str
    size: int
    used: float
    engine: str = ""  # whose cluster has it; "": this machine


def places(job: str) -> list[str]:
    """Return where the job has something of its own, as `remove` removes it. Raises BadInput where it is not over."""
    _refuse_unless_over(job)
    folder, storage = str(job_storage(job)), _own_storage(job)
    owned = [folder, *([storage] if storage else [])]
    application = site_of(job).get("application")
    return [*owned, f"{engine_of(job)}: {application}"] if application else owned


def remove(job: str) -> None:
    """Remove a job that is over; what fails can be tried again. Raises BadInput where it is not over, StorageFailed, EngineFailed."""
    _refuse_unless_over(job)
    storage = _own_storage(job)  # found while the job's token and its cluster's objects are there
    if (application := site_of(job).get("application")) is not None:
        client_side(engine_of(job)).forget(job, application)
    if storage and not goes_with_cluster(storage, engine_of(job)):
        _remove_storage(storage)
    elif not storage and site_of(job).get("shared"):
        place = place_of(str(job_storage(job)))
        print(
            f"{job} was not submitted here, and nothing shows that {place} is its own: that stays",
            file=sys.stderr,
            flush=True,
        )
    forget(job)


def place_here(job: str) -> str:
    """Return the directory on this machine of a job whose cluster or storage is elsewhere. Raises BadInput where all of the job is here."""
    folder = str(job_storage(job))
    if "application" in site_of(job):
        return folder
    if local_path(place_of(folder)) is not None:
        raise BadInput(
            f"all of {job} is on this machine", mend=f"leave out --here: tm remove {job}", anchor="job-not-over"
        )
    if client_side(engine_of(job)).application_state(job)[0] == "running":
        raise BadInput(
            f"{job} has processes on this machine, so it is not removed",
            mend=f"end it: tm kill {job}",
            anchor="job-not-over",
        )
    return folder


def forget(job: str) -> None:
    """Remove a job from this machine alone, whatever it does on its cluster."""
    folder = job_storage(job)
    with storage_errors("remove the job", folder):
        for key in (state_dir() / "keys").glob("*"):
            if key.read_bytes().partition(b"\n")[0].strip() == job.encode():
                key.unlink(missing_ok=True)
        gone = folder.with_name(
            f".{job}.removed"
        )  # at once for whoever lists; what an interrupted call left goes with the next one
        with contextlib.suppress(FileNotFoundError):
            folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _own_storage(job: str) -> str:
    """Return the place outside of the job's directory that is its own and is removed with it; "" where there is none."""
    folder = str(job_storage(job))
    place = place_of(folder)
    if place == folder or is_mount(place, engine_of(job)):
        return ""
    may_be_anothers = site_of(job).get("shared") and not goes_with_cluster(place, engine_of(job))
    return "" if may_be_anothers and not _is_signed(job, place) else place


def _is_signed(job: str, place: str) -> bool:
    """Tell whether a place has the record of the job's master, signed with the job's token."""
    try:
        token = read_token(job_storage(job))
        return bool(token) and read_master(storage_for(place), token) is not None
    except BadInput:
        return False


def _remove_storage(place: str) -> None:
    from trainmaster.data.store.stores import store_for

    try:
        store_for(place).remove("")
    except OSError as error:
        raise (
            error if isinstance(error, TrainmasterError) else storage_failed("remove the job", place, error)
        ) from error


def _refuse_unless_over(job: str) -> None:
    from trainmaster.client.jobs.sweep import is_abandoned

    line = headline(str(job_storage(job)), Headline(job), {})
    if is_abandoned(job) and (line.ended is not None or (not line.n and not line.lost and not beginning(job))):
        return
    state = f"cannot be read: {line.unreadable}" if line.lost else line.state if line.ended is None else "ending"
    raise BadInput(
        f"{job} is not over, so it is not removed", place=f"its state: {state}",
        mend=f"end it: tm kill {job}   or wait: tm wait {job}", anchor="job-not-over",
    )  # fmt: skip


def ended_before(limit: float, kept: int | None = None) -> list[Headline]:
    """Return the jobs that ended before a time, and those beyond the `kept` that ended last; the oldest first."""
    ended = sorted((job for job in headlines() if job.ended is not None), key=lambda job: job.ended or 0.0)
    spare = len(ended) - kept if kept is not None else 0
    return [job for number, job in enumerate(ended) if number < spare or (job.ended or 0.0) < limit]


def unused_since(limit: float, engines: Sequence[str] = ()) -> Iterator[Cached]:
    """Yield entries of caches that nobody has used since a time, and that no job needs: of this machine, and of clusters."""
    running = [job for job in headlines() if job.ended is None]
    oldest = min((job.submitted or 0.0 for job in running), default=time.time())
    yield from (entry for entry in _local(state_dir()) if entry.used < min(limit, oldest - _MARGIN))
    for engine in engines:
        if not any(engine_of(job.id) == engine for job in running):
            yield from (
                Cached(url, size, put, engine) for url, size, put in client_side(engine).caches() if put < limit
            )


def _local(state: Path) -> Iterator[Cached]:
    """Yield the entries of this machine's caches, and what submitters that were killed have written of jobs."""
    for folder in (*CACHES, "jobs"):
        with contextlib.suppress(FileNotFoundError):
            for entry in sorted(os.scandir(state / folder), key=lambda entry: entry.name):
                is_cached = not entry.name.startswith(".") and not entry.name.endswith(".lock")
                if DRAFT.fullmatch(entry.name) if folder == "jobs" else is_cached:
                    yield Cached(entry.path, _size(entry), entry.stat(follow_symlinks=False).st_mtime)


def _size(entry: os.DirEntry[str]) -> int:
    if not entry.is_dir(follow_symlinks=False):
        return entry.stat(follow_symlinks=False).st_size
    paths = (os.path.join(folder, name) for folder, _, names in os.walk(entry.path) for name in names)
    return sum(os.lstat(path).st_size for path in paths)


def clear(entry: Cached) -> bool:
    """Remove an entry of a cache. Return False where somebody has used it meanwhile."""
    if entry.engine:
        client_side(entry.engine).clear(entry.place)
        return True
    path = Path(entry.place)
    with storage_errors("clear a cache", path), contextlib.suppress(FileNotFoundError), _environment_lock(path):
        if path.lstat().st_mtime > entry.used:
            return False
        (shutil.rmtree if path.is_dir() else os.unlink)(path)
    return True


@contextlib.contextmanager
def _environment_lock(path: Path) -> Iterator[None]:
    """Keep others from making an environment meanwhile."""
    with contextlib.ExitStack() as stack:
        if path.parent.name == "environments":
            lock = stack.enter_context(path.with_suffix(".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
