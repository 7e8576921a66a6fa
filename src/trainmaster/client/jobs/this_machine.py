"""Jobs whose containers are processes of this machine."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.client.jobs.backend import CONNECT, Warn
from trainmaster.client.jobs.past import Facts
from trainmaster.client.jobs.places import beginning, client_side, job_storage, master_socket, master_trouble
from trainmaster.core.errors import TrainmasterError
from trainmaster.engines.contract import OnThisMachine, connect_directly

if TYPE_CHECKING:  # not needed before the template of agents is forked, which a first line waits for
    from trainmaster.core.spec.job import Job


class ThisMachine:
    on_this_machine = True
    patience = 0.8
    looks = 2  # a job that is being ended by force has nobody for a moment

    def __init__(self, engine: str) -> None:
        self.engine = engine

    @property
    def _client(self) -> OnThisMachine:
        client: OnThisMachine = client_side(self.engine)
        return client

    # -- submitting --

    def prepare(self) -> None:
        self._client.prepare()

    def place(self, job: Job) -> Job:
        return job

    def check(self, job: Job) -> None:
        from trainmaster.client.submit.requests import requests

        self._client.check(job, requests(job))

    def ship(
        self, described: Job, job: Job, base: Path, environ: Mapping[str, str]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Activate the job's environment in the submitter's variables. Raises BadInput where a program cannot be executed."""
        from trainmaster.client.spec.commands import check_commands
        from trainmaster.core.spec.job import Environment

        programs = dict(environ)
        if job.environment != Environment():
            from trainmaster.client.spec.environment import activated

            programs = activated(job.environment, base, programs)
        check_commands(job, base, programs)
        return {}, programs

    def record(self, name: str, payload: Mapping[str, Any]) -> None:
        if not payload["secrets"]:  # a job with secrets cannot go on once no process has them any more
            self._client.keep(job_storage(name), payload["environ"], payload["allowance"])

    def start(self, name: str, job: Job, payload: Mapping[str, Any], *, fork: bool, warn: Warn) -> None:
        self._client.start(str(job_storage(name)), payload, fork=fork)

    # -- afterwards --

    def connect(self, job: str, token: str) -> socket.socket:
        return connect_to(str(master_socket(job)))

    def reach_task(self, job: str, container: str, address: str) -> socket.socket:
        return connect_directly(address, CONNECT)

    def is_submitted(self, job: str) -> bool | None:
        if (job_storage(job) / "logs").exists():
            return True
        return None if beginning(job) else False

    def status_before(self, job: str) -> Facts | None:
        return None

    def standstill(self, job: str) -> str | None:
        if not self.is_abandoned(job):
            return None
        return f"no process of it is left, and it has not ended; submit it again: tm retry {job}"

    def waiting_reason(self, job: str) -> str:
        return master_trouble(job)

    def is_abandoned(self, job: str) -> bool:
        return self._client.application_state(job)[0] != "running"

    def is_unbegun(self, job: str) -> bool:
        return False

    def resume(self, job: str) -> bool:
        return job in self._client.orphans() and self._client.resume(job)

    def end(self, job: str, by: str, why: str) -> None:
        from trainmaster.interrupts import postponing

        client = self._client
        with postponing():  # a Ctrl-C in the middle would leave the master stopped, or a job that no master ends
            client.end(job)
            client.orphans()  # clears what the dead left in the job's runtime folder, before the new master begins there
            client.resume(job, {"by": by, "why": why})

    def gone(self, job: str) -> TrainmasterError | None:
        return None


def connect_to(path: str) -> socket.socket:
    """Return a connection to a Unix socket."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        opened.settimeout(CONNECT)
        opened.connect(path)
    except BaseException:
        opened.close()
        raise
    return opened
