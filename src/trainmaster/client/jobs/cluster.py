"""Jobs whose containers are on a cluster.

This machine keeps of a job (`jobs/<id>`) its description, its token, its certificate and its place: the *application*, by which its engine
knows it, is noted there once the engine has it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trainmaster import frameworks
from trainmaster.client.jobs.backend import CONNECT, Warn
from trainmaster.client.jobs.past import Facts, Past, described
from trainmaster.client.jobs.places import (
    CERTIFICATE_FILE,
    SITE_FILE,
    TOKEN_FILE,
    URL,
    client_side,
    engine_of,
    job_storage,
    site_of,
    state_dir,
    submitting,
)
from trainmaster.client.jobs.this_machine import connect_to
from trainmaster.core.errors import BadInput, EngineFailed, NotFound, StorageFailed, TrainmasterError
from trainmaster.core.spec.job import Job
from trainmaster.engines.contract import OnCluster, connect_directly
from trainmaster.engines.registry import goes_with_cluster
from trainmaster.interrupts import heard, undisturbed
from trainmaster.log.documents import files as documents
from trainmaster.log.documents.jobs import read_token
from trainmaster.log.storage import Damaged, local_path
from trainmaster.master import client_side as masters

BROKEN_OFF = "its submission was broken off"
ENDING = "it has not written its end, which is done now: its processes were ended by its cluster"


class Cluster:
    on_this_machine = False
    patience = 3.0  # s: a cluster ends a job without a word to us, and is asked for it
    looks = 1

    def __init__(self, engine: str) -> None:
        self.engine = engine

    @property
    def _client(self) -> OnCluster:
        client: OnCluster = client_side(self.engine)
        return client

    # -- submitting --

    def prepare(self) -> None:
        from trainmaster.client.submit.ahead import begin

        begin(self.engine)

    def place(self, job: Job) -> Job:
        from trainmaster.client.submit.for_cluster import adapted

        return adapted(job, self.engine)

    def check(self, job: Job) -> None:
        from trainmaster.client.submit.requests import requests

        client = self._client
        client.check(job, requests(job))
        archive = "" if job.environment.path else job.environment.archive
        if URL.match(archive) and not client.fetches(archive):
            from trainmaster.client.spec.environment import environment_error

            problem = f"{self.engine} brings an archive that is a file of this machine"
            raise environment_error("archive", archive, problem, "fetch it, and name its path")
        if job.network.interface:
            from trainmaster.host.network.interfaces import check

            check(job.network.interface)

    def ship(
        self, described: Job, job: Job, base: Path, environ: Mapping[str, str]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Find what this machine has for the nodes: inputs, the places of outputs, the archive of a Python with required packages."""
        from trainmaster.client.submit.carried import carried_paths

        facts: dict[str, Any] = {"carried": carried_paths(described, base), "submitted": round(time.time(), 3)}
        environment = job.environment
        if environment.requirements and not environment.path and not environment.archive:
            from trainmaster.client.submit.portable import archive

            facts["environment"] = str(archive(Path(environment.requirements), environ))
        return facts, dict(environ)

    def record(self, name: str, payload: Mapping[str, Any]) -> None:
        """Do nothing: the cluster keeps all of it."""

    def start(self, name: str, job: Job, payload: Mapping[str, Any], *, fork: bool, warn: Warn) -> None:
        from trainmaster.client.spec.secrets import of_stores
        from trainmaster.client.submit.ahead import certificate_and_key, runtime
        from trainmaster.client.submit.for_cluster import shipped
        from trainmaster.client.submit.requests import at_once
        from trainmaster.engines.contract import Submission

        certificate, key = certificate_and_key()
        site, files = shipped(job, site_of(name))
        if site.get("carried"):
            from trainmaster.client.submit.carried import carry

            with heard():
                carry(job, site["carried"], self.engine)
        folder, client = job_storage(name), self._client
        (folder / CERTIFICATE_FILE).write_text(certificate)
        secret = {
            "token": payload["token"],
            "key": key,
            "secrets": payload["secrets"],
            "stores": of_stores(job, os.environ),
        }

        def runtime_archive(without: Collection[str] = ()) -> Path:
            return runtime(state_dir() / "runtime", self.engine, without, frameworks.entry_point(job.framework))

        submission = Submission(name, job, site, secret, certificate, files, at_once(job), runtime_archive)
        submitted = client.submit(submission)
        try:
            on_client = submitted.master is not None
            facts = {"link": client.link(submitted.application, job), **submitted.facts, "beside": on_client}
            documents.write(folder / SITE_FILE, {**site, "application": submitted.application, **facts})
            if submitted.master is not None:
                masters.run(name, self.engine, submitted.application, submitted.master)
        except BaseException:  # nobody would find the job any more
            with undisturbed():
                client.end(submitted.application)
            raise
        with contextlib.suppress(OSError):  # nobody reads the warnings: the job is on its way all the same
            for job_key, text in submitted.warnings:
                warn(text, job_key)
            if (tokens := submitted.facts.get("tokens")) and not _renews_itself(job):
                from trainmaster.client.jobs.tokens import warning

                warn(warning(name, tokens), "")

    # -- afterwards --

    def connect(self, job: str, token: str) -> socket.socket:
        """Connect under TLS."""
        from trainmaster.log.documents.jobs import place_of, read_certificate
        from trainmaster.log.epochs import read_master
        from trainmaster.log.storage import storage_for
        from trainmaster.runtime.network.pinned import trusting

        folder = job_storage(job)
        record = read_master(storage_for(place_of(folder)), token)
        if record is None:
            raise FileNotFoundError("no master has said where it is")
        if record.addresses[0].startswith("unix:"):  # of a master that only ends the log, on this machine
            return connect_to(record.addresses[0].removeprefix("unix:"))
        site, address = site_of(job), record.addresses[0]
        if site.get("beside"):  # its master is on the submitter's machine
            plain = connect_directly(address, CONNECT)
        elif "application" not in site:  # its master is quicker than its submit, which is about to note how to reach it
            raise FileNotFoundError("its submit is not over yet")
        else:
            plain = self._client.reach(site["application"], address, CONNECT)
        plain.settimeout(CONNECT)  # a master listens at once, and answers when its first line is written
        secured: socket.socket = trusting(read_certificate(folder)).wrap_socket(plain)
        return secured

    def reach_task(self, job: str, container: str, address: str) -> socket.socket:
        return self._client.reach_task(site_of(job)["application"], container, address, CONNECT)

    def is_submitted(self, job: str) -> bool | None:
        if "application" in site_of(job):
            return True
        return None if submitting(job) else self._has_application(job)

    def status_before(self, job: str) -> Facts | None:
        """Begin the end of a job whose master will never write anything."""
        from trainmaster.core.machine.report import status
        from trainmaster.core.machine.state import State, populate

        if (error := self.gone(job)) is not None:
            raise error
        ended = self._conclude(job) and "application" in site_of(job)
        waiting = ENDING if ended else self.waiting_reason(job)
        state = State(id=job)
        populate(state, described(job))
        return {**status(state), "submitted": (job_storage(job) / TOKEN_FILE).stat().st_mtime, "waiting": waiting}

    def standstill(self, job: str) -> str | None:
        return ENDING if self._conclude(job) else self.waiting_reason(job)

    def waiting_reason(self, job: str) -> str:
        site = site_of(job)
        if "application" not in site:
            return "it is being submitted" if submitting(job) else f"{BROKEN_OFF}, and it is ended now"
        if site.get("beside"):
            if masters.is_running(job):
                return "its master does not answer yet"
            return (
                f"its master was on the submitter's machine and is gone; there, this takes the job up: tm attach {job}"
            )
        try:
            return self._client.waiting_reason(site["application"], described(job))
        except TrainmasterError:
            return ""

    def is_abandoned(self, job: str) -> bool:
        return self._application_state(job)[0] != "running"

    def is_unbegun(self, job: str) -> bool:
        site = site_of(job)
        return "application" in site and not site.get("beside") and not _has_events(job)

    def resume(self, job: str) -> bool:
        return self._restart_master(job) or self._conclude(job)

    def end(self, job: str, by: str, why: str) -> None:
        if (error := self.gone(job)) is not None:
            raise error
        if self._application_state(job)[0] == "running":
            site = site_of(job)
            if "application" not in site:
                raise EngineFailed(
                    f"{job} is being submitted", mend="end the command that does, or try again", anchor="job-submitting"
                )
            self._client.end(site["application"])
        self._conclude(job, {"by": by, "why": why})

    def gone(self, job: str) -> TrainmasterError | None:
        """Return an error where the job was deleted with its history, or where its log is at a path of the nodes."""
        state, why = self._application_state(job)
        if state != "running" and "application" in site_of(job) and _is_unseen(job):
            from trainmaster.log.index import note_unseen

            storage, waiting = described(job).storage, self.waiting_reason(job)
            note_unseen(str(job_storage(job)), waiting)
            return StorageFailed(
                f"{job} is unreadable: {waiting}, and it has no events in {storage} of this machine", place=f"storage: {storage}",
                mend="see whether this machine has the directory mounted that the nodes wrote to; forget the job: tm remove --here "
                + job, anchor="job-unreadable",
            )  # fmt: skip
        if state != "unknown" or not _is_removed(job):
            return None
        return NotFound(
            f"{job} is no more: {why}",
            mend="tm list calls it removed; to run it again: tm retry " + job,
            anchor="job-removed",
        )

    # -- inside --

    def _has_application(self, job: str) -> bool:
        """Tell whether the engine has a job whose submitter died before that was noted; it is noted now. Raises BadInput, or EngineFailed,
        where the engine cannot be asked.
        """
        application = self._client.find_jobs(job).get(job)
        if application is None:
            return False
        documents.write(job_storage(job) / SITE_FILE, {**site_of(job), "application": application})
        return True

    def _application_state(self, job: str) -> tuple[str, str]:
        """Return what the engine says became of the job's master. One that is being submitted is on its way to run."""
        if "application" not in site_of(job):
            if submitting(job):
                return "running", ""
            if not self._has_application(job):
                return "unknown", BROKEN_OFF
        state, why = self._client.application_state(site_of(job)["application"])
        if state == "submitting":
            return ("removed", why) if _has_events(job) else ("running", "")
        return state, why

    def _restart_master(self, job: str) -> bool:
        """Start the master again where it ran beside the job's client and is gone, and the job is not over."""
        site = site_of(job)
        if not site.get("beside") or not _is_ours(job) or masters.is_running(job):
            return False
        payload = self._client.master_payload(site["application"])
        if payload is None:
            return False
        masters.run(job, self.engine, site["application"], payload)
        return True

    def _conclude(self, job: str, kill: Mapping[str, Any] | None = None) -> bool:
        """Have the log of a job ended where the engine has ended all of the job. Returns whether that was begun.

        A master of ours does that, as this user; where the job is not ours, the submitter's next command does it. A log that this machine
        does not see may have an end already.
        """
        from trainmaster.core.decide.plan import closed

        if not _is_ours(job):
            return False
        site = site_of(job)
        state, why = self._application_state(job)
        if state == "running" or self._answers(job) or (state == "unknown" and _is_removed(job)):
            return False
        if "application" in site and _is_unseen(job):
            return False
        with contextlib.suppress(NotFound):  # the master never wrote an event
            if closed(Past(job).state()):
                return False
        client = self._client
        if kill is None:
            given_up = client.failure_reason(site["application"]) if state == "failed" else None
            kill = {"by": self.engine, "why": why, "as": client.killed_as}
            kill = {"reason": given_up[0], "figures": given_up[1]} if given_up else kill
        masters.conclude(job, kill)
        if state in ("failed", "removed"):  # what is left of the job there
            client.end(site["application"])
        return True

    def _answers(self, job: str) -> bool:
        try:
            token = read_token(job_storage(job))
            if not token:  # the job was found on its cluster when it was over, and has no token
                return False
            self.connect(job, token).close()
        except (OSError, Damaged):
            return False
        return True


def _renews_itself(job: Job) -> bool:
    """Tell whether nobody must renew the job's tokens: its master gets newer ones, or the job ends before."""
    return job.timeouts.job is not None or any("kerberos" in settings for settings in job.engines.values())


def _has_events(job: str) -> bool:
    try:
        return bool(Past(job).state().n)
    except NotFound:
        return False


def _is_ours(job: str) -> bool:
    """Tell whether a master may act for the job on this machine, as this user. It never may for a job that was found in a shared namespace,
    which anybody can have written, nor for one in another user's directory.
    """
    from trainmaster.host.places import check_owner

    try:
        check_owner(job)
    except BadInput:
        return False
    return not site_of(job).get("shared")


def _is_unseen(job: str) -> bool:
    """Tell whether the job's log is at a path where this machine sees no events: the nodes may have another directory there, unless that is
    the cluster's own place for jobs.
    """
    storage, site = described(job).storage, site_of(job)
    if local_path(storage) is None or site.get("beside") or _has_events(job):
        return False
    return bool(storage != client_side(site["engine"]).store(described(job)).jobs)


def _is_removed(job: str) -> bool:
    """Tell whether somebody has deleted the job from its cluster, and its log with it: then there is nothing to write an end into."""
    return goes_with_cluster(described(job).storage, engine_of(job)) and "application" in site_of(job)
