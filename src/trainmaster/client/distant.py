"""A job on a cluster: what differs from one on this machine before its master runs there.

Its programs see nothing of this machine: each task has a directory of its own, filled from `files`, inputs and outputs are on storage
that every node reaches, and so is the job's own. What this machine keeps of it (`jobs/<id>`) is the job, its token, its certificate and its
place.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from trainmaster.client.ahead import certified, runtime
from trainmaster.client.places import JOB_FILE, SITE_FILE, TOKEN_FILE, client_of, job_storage, kept, site_of, state_dir
from trainmaster.core.errors import BadInput, EngineFailed, NotFound, StorageFailed, TrainmasterError
from trainmaster.core.job import COPIED, Job, Role
from trainmaster.core.threads import CORES, MACHINE
from trainmaster.engines.contract import Shipped, reached
from trainmaster.interrupts import heard, undisturbed
from trainmaster.log.index import note_unseen
from trainmaster.log.storage import local_path
from trainmaster.master import launch

if TYPE_CHECKING:
    from trainmaster.client.secrets import Values

_FORGOTTEN = "application_0_0000"  # of a job that the cluster has forgotten: it knows nothing of that one either
BROKEN_OFF = "its submission was broken off"
CERTIFICATE, ENVIRONMENT = "certificate", "environment"
_ADOPTED: dict[str, Any] = {
    "submitted": int | float,
    "secret_names": list,
}  # of the site of a job that was submitted elsewhere
_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def adapted(job: Job, engine: str) -> Job:
    """The job as it is on a cluster. Raises BadInput where it names a place of this machine alone."""
    from trainmaster.client.carried import rerouted
    from trainmaster.client.submit import in_pods

    for place, url in _places(job):
        if not _URL.match(url):
            shared = ", or write file://PATH where every node has that path" if place != "storage" else ""
            raise BadInput(
                f"{url} is a path of this machine, and the nodes of {engine} do not see it", place=f"{place}: {url}",
                mend=f"put it on storage that they reach (hdfs://, s3://){shared}", anchor="not-on-the-cluster",
            )  # fmt: skip
    if job.storage and not in_pods(job.storage, engine):
        _check_is_mounted(job.storage)
    roles = {name: _with_own_cores(attrs.evolve(role, workdir=COPIED)) for name, role in job.roles.items()}
    storage = job.storage or client_of(engine).store(job).jobs
    return rerouted(attrs.evolve(job, roles=roles, storage=storage), carried(job), engine)


def _check_is_mounted(storage: str) -> None:
    """Raise BadInput where a storage is a path that this machine does not have: commands here read the job's events from it."""
    path = local_path(storage)
    if path is not None and not os.path.isdir(path):
        raise BadInput(
            f"{path} is no directory of this machine, and commands here read the job's events from it", place=f"storage: {storage}",
            mend="name a mounted directory that this machine shares with every node, or storage that all reach (hdfs://, s3://)",
            anchor="not-on-the-cluster",
        )  # fmt: skip


def _with_own_cores(role: Role) -> Role:
    """The role with the threads that fit its own cores: the others of a node belong to other jobs."""
    return attrs.evolve(role, threads=CORES) if role.threads == MACHINE else role


def carried(job: Job) -> dict[str, str]:
    """inputs.NAME, outputs.NAME -> URL, of those that are paths of this machine."""
    named = {f"inputs.{name}": given.url for name, given in job.inputs.items()}
    named |= {f"outputs.{name}": made.url for name, made in job.outputs.items()}
    return {key: url for key, url in named.items() if not _URL.match(url)}


def _places(job: Job) -> Iterator[tuple[str, str]]:
    yield from ((f"cache[{number}]", url) for number, url in enumerate(job.cache))
    if job.checkpoint is not None and job.checkpoint.url:
        yield "checkpoint.url", job.checkpoint.url
    if job.storage:
        yield "storage", job.storage


def start(
    engine: str, name: str, job: Job, values: Values, token: str, warn: Callable[[str, str], object]
) -> None:  # fmt: skip
    """Start the job's master there; `site.json` says afterwards where it is. `warn(text, key)`: say what is doubtful about a key, or
    about the job ("").
    """
    from trainmaster.client.secrets import of_stores
    from trainmaster.client.submit import at_once

    certificate, key = certified()
    site, files = shipped(job, site_of(name))
    if site.get("carried"):
        from trainmaster.client.carried import carry

        with heard():
            carry(job, site["carried"], engine)
    secret = {"token": token, "key": key, "secrets": values, "stores": of_stores(job, os.environ)}
    folder = job_storage(name)
    (folder / CERTIFICATE).write_text(certificate)
    client = client_of(engine, at_once)

    def ours(without: Collection[str] = ()) -> Path:
        return runtime(state_dir() / "runtime", without)

    told = client.submit(name, job, site, secret, certificate, files, ours)
    masters, warnings = told.pop("beside", None), told.pop("warnings", ())
    try:
        _note(folder, {**site, **told, "beside": masters is not None})
        if masters is not None:
            launch.beside(name, engine, told["application"], masters)
    except BaseException:  # nobody would find it any more
        with undisturbed():
            client.end(told["application"])
        raise
    with contextlib.suppress(OSError):  # nobody reads: the job is on its way all the same
        for key, text in warnings:
            warn(text, key)
        if (tokens := told.get("tokens")) and not _renewed(job):
            from trainmaster.client.renewal import warning

            warn(warning(name, tokens), "")


def begun(job: str) -> bool:
    """Whether the engine has a job whose submitter died before that was noted; it is noted now. Raises BadInput, or EngineFailed, where the
    engine cannot be asked.
    """
    site = site_of(job)
    application = client_of(site["engine"]).found(job).get(job)
    if application is None:
        return False
    _note(job_storage(job), {**site, "application": application})
    return True


def _note(folder: Path, site: Mapping[str, Any]) -> None:
    draft = folder / f".{secrets.token_hex(8)}.{SITE_FILE}"  # several may find out the same at once
    draft.write_text(json.dumps(dict(site)))
    os.replace(draft, folder / SITE_FILE)


def _renewed(job: Job) -> bool:
    """Whether its tokens are its submitter's concern no more: its master gets newer ones, or it ends before."""
    return job.timeouts.job is not None or any("kerberos" in settings for settings in job.engines.values())


def shipped(job: Job, site: Mapping[str, Any]) -> tuple[dict[str, Any], list[Shipped]]:
    """`site` with the names that this machine's files have in a container, and these files.

    What a container finds there by its engine is told as `brought:NAME` (see `data.cached`).
    """
    told, files = dict(site), []
    brings = client_of(site["engine"]).brings
    if archive := site.get("archive"):
        files.append(Shipped("files.tar.gz", Path(archive)))
        told["archive"] = "files.tar.gz"
    archives = []
    for number, given in enumerate(site.get("archives") or ()):
        path, _, alias = given.partition("#")
        if not _URL.match(path):
            local = Path(path)
            same = next((one.name for one in files if one.path == local), "")
            if not same:  # of one file under two names a container has one (seen with Hadoop 3.4.2)
                files.append(Shipped(f"archive-{number}-{local.name}", local))
            given = f"{same or f'archive-{number}-{local.name}'}#{alias or local.name.partition('.')[0]}"
        archives.append(_brought(given, f"archive-{number}", brings, files))
    if archives:
        told["archives"] = archives
    told["cache"] = [_brought(given, f"cache-{number}", brings, files) for number, given in enumerate(job.cache)]
    wanted = job.environment
    if wanted.path:
        told["environment"] = wanted.path
    elif wanted.archive or site.get("environment"):
        url = wanted.archive if _URL.match(wanted.archive) else ""
        local = Path("" if url else wanted.archive or site["environment"])
        files.append(Shipped(ENVIRONMENT, local, url, unpacked=True, own=True))
        told["environment"] = ENVIRONMENT
    return told, files


def _brought(given: str, name: str, brings: Callable[[str], bool], files: list[Shipped]) -> str:
    """`given`, URL#NAME, as agents are told of it; where the engine brings it, under `name`, that is one more of `files`."""
    url, _, alias = given.partition("#")
    if not brings(url):
        return given
    from trainmaster.data.cached import ARCHIVES, BROUGHT, plain

    same = next((one.name for one in files if one.url == url and not one.own), "")
    if not same:  # as above
        files.append(Shipped(name, url=url, unpacked=url.endswith(ARCHIVES)))
    name = same or name
    return f"{BROUGHT}{name}#{alias or plain(os.path.basename(url))}"


def adopt(engine: str, wanted: str) -> list[str]:
    """The ids of the jobs of ours on the cluster that `wanted`, an id, its beginning or an application, may mean. Where it is one that this
    machine knows nothing of, this machine knows it from now on, as if it had been submitted here.
    """
    client = client_of(engine)
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
    client = client_of(engine)
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
            (draft / CERTIFICATE).write_text(note["certificate"])
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


def connection(job: str, token: str) -> socket.socket:
    """A connection to the job's master, under TLS. Raises OSError where none can be had."""
    from trainmaster.agent.channel import trusting
    from trainmaster.client.connect import CONNECT, unix
    from trainmaster.log.epochs import read_master
    from trainmaster.log.storage import place_of, storage_for

    folder = job_storage(job)
    record = read_master(storage_for(place_of(folder)), token)
    if record is None:
        raise FileNotFoundError("no master has said where it is")
    if record.addresses[0].startswith("unix:"):  # of one that only concludes, here
        return unix(record.addresses[0].removeprefix("unix:"))
    site = site_of(job)
    reach = reached if site.get("beside") else client_of(site["engine"]).reach
    plain = reach(site["application"], record.addresses[0], CONNECT)
    plain.settimeout(CONNECT)  # a master listens before it answers, which it does once its first line is written
    secured: socket.socket = trusting((folder / CERTIFICATE).read_text()).wrap_socket(plain)
    return secured


def taken_up(job: str) -> bool:
    """Start the master again of a job that has it beside its client, where it is gone and the job is not over; whether it was started."""
    site = site_of(job)
    if not site.get("beside") or not _is_ours(job) or launch.is_beside(job):
        return False
    told = client_of(site["engine"]).beside(site["application"])
    if told is None:
        return False
    launch.beside(job, site["engine"], site["application"], told)
    return True


def fate(job: str) -> str:
    """What the engine says became of the job's master: `running`, `ended`, `failed`, `killed`, `removed`, or `unknown`."""
    return _fate(job)[0]


def _fate(job: str) -> tuple[str, str]:
    """The same, and what the engine says of it. One that is being submitted is on its way to run."""
    from trainmaster.client.connect import submitting

    if "application" not in site_of(job):
        if submitting(job):
            return "running", ""
        if not begun(job):
            return "unknown", BROKEN_OFF
    site = site_of(job)
    found, why = client_of(site["engine"]).fate_of(site["application"])
    if found == "submitting":
        return ("removed", why) if _begun_to_write(job) else ("running", "")
    return str(found), str(why)


def _begun_to_write(job: str) -> bool:
    """Whether the job has had a master, which has written its first line."""
    from trainmaster.client.connect import Past

    try:
        return bool(Past(job).state().n)
    except NotFound:
        return False


def waits(job: str) -> str:
    """What the job waits for while its master does not answer, as the engine tells it; "" where that does not answer either."""
    from trainmaster.client.connect import submitting

    site = site_of(job)
    if "application" not in site:
        return "it is being submitted" if submitting(job) else f"{BROKEN_OFF}, and it is ended now"
    if site.get("beside"):
        return f"its master was on the submitter's machine and is gone; there, this takes the job up: tm attach {job}"
    try:
        return str(client_of(site["engine"]).waits(site["application"], _described(job)))
    except TrainmasterError:
        return ""


def _described(job: str) -> Job:
    from trainmaster.core.reading import job_from

    return job_from(json.loads((job_storage(job) / JOB_FILE).read_bytes()))


def _is_ours(job: str) -> bool:
    """Tell whether a master may act for the job on this machine, as this user. It never may for a job that was found in a shared namespace,
    which anybody can have written, nor for one in another user's directory.
    """
    from trainmaster.engines.local.places import check_owner

    try:
        check_owner(job)
    except BadInput:
        return False
    return not site_of(job).get("shared")


def _is_unseen(job: str) -> bool:
    """Tell whether the job's log is at a path where this machine sees no events: the nodes may have another directory there."""
    from trainmaster.client.connect import Past

    if local_path(_described(job).storage) is None or site_of(job).get("beside"):
        return False
    try:
        return not Past(job).state().n
    except NotFound:
        return True


def gone(job: str) -> TrainmasterError | None:
    """Return what is to be said of a job that is over on its cluster and tells nothing here: somebody has deleted it, and its history with
    it, or its log is at a path of the nodes.
    """
    found, why = _fate(job)
    if found != "running" and "application" in site_of(job) and _is_unseen(job):
        storage, fate = _described(job).storage, waits(job)
        note_unseen(str(job_storage(job)), fate)
        return StorageFailed(
            f"{job} is unreadable: {fate}, and it has no events in {storage} of this machine", place=f"storage: {storage}",
            mend="see whether this machine has the directory mounted that the nodes wrote to; forget the job: tm remove --here " + job,
            anchor="job-unreadable",
        )  # fmt: skip
    if found != "unknown" or not _removed(job):
        return None
    return NotFound(
        f"{job} is no more: {why}",
        mend="tm list calls it removed; to run it again: tm retry " + job,
        anchor="job-removed",
    )


def before(job: str) -> dict[str, Any]:
    """The status of a job whose master has not written anything yet; where none will, its end is begun. NotFound where it was deleted."""
    from trainmaster.client.connect import ENDING
    from trainmaster.core.report import status
    from trainmaster.core.state import State, populate

    if (error := gone(job)) is not None:
        raise error
    ended = conclude(job) and "application" in site_of(job)
    waiting = f"{ENDING} by its cluster" if ended else waits(job)
    state = State(id=job)
    populate(state, _described(job))
    return {**status(state), "submitted": (job_storage(job) / TOKEN_FILE).stat().st_mtime, "waiting": waiting}


def conclude(job: str, kill: Mapping[str, Any] | None = None) -> bool:
    """Where the engine has ended all of the job and its log has not: have it ended. Whether that was begun.

    A master of ours does that, as this user; of a job that is not ours the submitter's next command does it. A log that this machine does
    not see may have an end already.
    """
    from trainmaster.client.connect import Past, live
    from trainmaster.core.plan import closed
    from trainmaster.master.launch import conclude as begin

    if not _is_ours(job):
        return False
    site = site_of(job)
    found, why = _fate(job)
    if found == "running" or live(job) is not None or (found == "unknown" and _removed(job)):
        return False
    if "application" in site and _is_unseen(job):
        return False
    try:
        if closed(Past(job).state()):
            return False
    except NotFound:  # its master never wrote
        pass
    client = client_of(site["engine"])
    if kill is None:
        given_up = client.given_up(site["application"]) if found == "failed" else None
        kill = {"reason": given_up[0], "figures": given_up[1]} if given_up else {"by": site["engine"], "why": why}
    begin(job, kill)
    if found in ("failed", "removed"):  # what is left of it there
        client.end(site["application"])
    return True


def _removed(job: str) -> bool:
    """Whether somebody has deleted the job from its cluster, and its log with it: then there is nothing to write an end into."""
    return _described(job).storage.startswith("configmaps://") and "application" in site_of(job)


def end(job: str, by: str, why: str) -> None:
    """Have the engine end all of the job, then its log. NotFound where the job was deleted."""
    if (error := gone(job)) is not None:
        raise error
    if _fate(job)[0] == "running":
        site = site_of(job)
        if "application" not in site:
            raise EngineFailed(
                f"{job} is being submitted", mend="end the command that does, or try again", anchor="job-submitting"
            )
        client_of(site["engine"]).end(site["application"])
    conclude(job, {"by": by, "why": why})
