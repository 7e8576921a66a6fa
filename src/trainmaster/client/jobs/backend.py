"""Two forms of one object: the client's way to jobs of this machine, and to jobs of a cluster.

Everything in the client that depends on where a job runs is a method of `Backend`; the rest is the same for all. Which form an engine has
is its capability `on_this_machine`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainmaster.client.jobs.past import Facts
from trainmaster.core.errors import TrainmasterError

if TYPE_CHECKING:
    from trainmaster.core.spec.job import Job

CONNECT = 5.0  # s that a living master has for accepting a connection

Warn = Callable[[str, str], object]  # called with a text and the key of the job that it is about, or ""


class Backend(Protocol):
    engine: str
    on_this_machine: bool  # programs have the submitter's files, and their output can be read at once
    patience: float  # s without a master until a look whether any process of the job is left, and between two looks
    looks: int  # in a row that must have seen none

    # -- submitting, in this order --

    def prepare(self) -> None:
        """Begin what takes long, while the command line is read. Called before there is a thread or a loop."""

    def place(self, job: Job) -> Job:
        """Return the job as it is there. Raises BadInput where it names a place that is not seen there."""
        ...

    def check(self, job: Job) -> None:
        """Raise BadInput where the job can never run there."""

    def ship(
        self, described: Job, job: Job, base: Path, environ: Mapping[str, str]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the facts about the job's place, and the variables of its programs. `described`: the job as its user wrote it."""
        ...

    def record(self, name: str, payload: Mapping[str, Any]) -> None:
        """Write down the parts of `payload`, which its master is given and no file keeps, that the job needs later."""

    def start(self, name: str, job: Job, payload: Mapping[str, Any], *, fork: bool, warn: Warn) -> None:
        """Start the master. `fork`: it may be forked out of us. `warn`: called with what is done otherwise than a key of the job says."""

    # -- afterwards --

    def connect(self, job: str, token: str) -> socket.socket:
        """Return a connection to the job's master. Raises OSError where none can be had."""
        ...

    def reach_task(self, job: str, container: str, address: str) -> socket.socket:
        """Return a connection to what a task's program serves at `address`, host:port. Raises OSError where none can be had."""
        ...

    def is_submitted(self, job: str) -> bool | None:
        """Tell whether the job runs or ran; None while it is being submitted. False: its submission was broken off."""
        ...

    def status_before(self, job: str) -> Facts | None:
        """Return the status of a job that has no events, None where it is about to have some. Raises NotFound where it was deleted."""
        ...

    def standstill(self, job: str) -> str | None:
        """Say what a job waits for that has neither ended nor a master that answers; None where its log says that."""
        ...

    def waiting_reason(self, job: str) -> str:
        """Say what a job waits for while its master does not answer; "" where that is not known."""
        ...

    def is_abandoned(self, job: str) -> bool:
        """Tell whether nothing of the job lives where it runs."""
        ...

    def is_unbegun(self, job: str) -> bool:
        """Tell whether the job waits for its first master, so that there is none to be asked for anything."""
        ...

    def resume(self, job: str) -> bool:
        """Start a master where nobody is left who would; returns whether that was done."""
        ...

    def end(self, job: str, by: str, why: str) -> None:
        """End all of a job, whatever its master says, and have its log ended."""

    def gone(self, job: str) -> TrainmasterError | None:
        """Return the error of a job that is over and of which nothing can be read any more; None for any other job."""
        ...
