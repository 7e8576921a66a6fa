"""What an engine must do.

An engine grants containers that run one given thing, our agent, and takes them back. Ranks, data, restarts, completion and elasticity are
not its concern. The client side runs where a job is submitted, the master side inside the master; both speak the stimuli of the core.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from trainmaster.core.plain import Plain
from trainmaster.core.stimuli import (
    ContainerExited,
    ContainerLost,
    GangOverdue,
    Granted,
    KillRequested,
    Refused,
    Waiting,
    Warned,
)

Change = Granted | Refused | Waiting | ContainerExited | ContainerLost | Warned | GangOverdue | KillRequested


@attrs.frozen(slots=True, eq=False, repr=False)
class Request(Plain):
    """One container asked for. Memory is what the container gets (the program's plus the overhead), in bytes."""

    task: str
    serial: int
    role: str
    index: int
    memory: int
    cores: float
    gpus: int = 0
    priority: int = 0  # of the role; higher first
    gang: str = ""  # requests of one gang name are granted together, or none
    least: int = 0  # of this role in this gang: enough to begin with (replicas.min); 0: all of them
    nodes: Mapping[str, Any] = attrs.field(factory=dict)  # labels, exclude
    program_memory: int = 0  # the program's own part of `memory`, bytes
    extended: Mapping[str, int] = attrs.field(factory=dict)  # other resources that the engine counts, by its names
    hosts: tuple[str, ...] = ()  # that hold most of the task's data, the most first: a wish


@attrs.frozen(slots=True, eq=False, repr=False)
class Holder(Plain):
    """A container that a restarted master finds the engine already holds for it."""

    task: str
    serial: int
    container: str
    node: str


@attrs.frozen(slots=True, eq=False, repr=False)
class Shipped(Plain):
    """A file that each container of a cluster gets, under `name` in its directory: the submitter's at `path`, or, where there is a `url`,
    one that the cluster has. `unpacked`: an archive's contents. `own`: the user's alone on each node, who may change it there.
    """

    name: str
    path: Path = Path()
    url: str = ""
    unpacked: bool = False
    own: bool = False


@attrs.frozen(slots=True, eq=False, repr=False)
class Free(Plain):
    """What one node has and what of it is free. Memory in bytes."""

    node: str
    cores: float
    memory: int
    gpus: int
    free_cores: float
    free_memory: int
    free_gpus: int
    labels: Mapping[str, str] = attrs.field(factory=dict)
    extended: Mapping[str, int] = attrs.field(factory=dict)  # other resources that are counted, by name
    free_extended: Mapping[str, int] = attrs.field(factory=dict)


@attrs.frozen(slots=True, eq=False, repr=False)
class Queue(Plain):
    """A queue of the cluster. Shares are parts of the whole (of its parent's): `share` is its own, `most` what it may grow to, `used`
    what of its own it has in use, which may be more than 1; `masters` is the part of it that masters may have. `labels`: of nodes that it
    may use, `*` for all. Memory in bytes.
    """

    name: str
    share: float
    most: float
    used: float
    memory: int
    free_memory: int
    running: int
    pending: int
    open: bool = True
    masters: float = 1.0
    labels: tuple[str, ...] = ()


class MasterSide(Protocol):
    """The engine as the master of one job uses it. Everything is idempotent: asks are absolute, keyed by (task, serial)."""

    async def open(self, epoch: int) -> Sequence[Holder]:
        """Take part as the master of this epoch; returns the containers still held for the job. Earlier epochs are refused from now on."""
        ...

    async def ask(self, requests: Sequence[Request]) -> None:
        """State the whole set of asks not granted yet; one that is no longer in it is withdrawn.

        An ask whose container was granted already, to this master or one before it, is answered by what became of it: `Granted` again,
        or `ContainerExited`.
        """
        ...

    async def release(self, task: str, serial: int) -> None:
        """Take a container (or ask) back; its agent is told to go and, if it does not, ended. A `ContainerExited` follows."""
        ...

    def changes(self) -> AsyncIterator[Change]:
        """What happens to asks and containers, in the order in which it happened; that the engine itself has ended the job."""
        ...

    async def free(self) -> Sequence[Free]:
        """What the engine could still grant."""
        ...

    async def close(self, state: str) -> None:
        """The job is over: give everything back and tell the engine the job's final state."""
        ...


class ClientSide(Protocol):
    """The engine as the submitting side uses it."""

    inherits_environment: bool  # whether programs begin with their submitter's variables

    def check(self, job: Any) -> None:
        """Raise BadInput where the job can never run here, naming asked, largest and key."""
        ...

    def free(self) -> Sequence[Free]:
        """The nodes, and what is free on each."""
        ...

    def queues(self) -> Sequence[Queue]:
        """The queues; none where the engine has none."""
        ...

    def find(self, job_id: str) -> str | None:
        """The handle `engine://place/job-id`, or None."""
        ...

    def jobs(self) -> Sequence[str]:
        """The ids of the jobs the engine knows."""
        ...

    def kill(self, job_id: str) -> None:
        """End a job whose master does not answer."""
        ...

    def forget(self, job_id: str, application: str) -> None:
        """Remove all that the engine keeps of a job that is over, but for its storage. Nothing where there is nothing of it."""
        ...

    def caches(self) -> Sequence[tuple[str, int, float]]:
        """List what the engine keeps for many jobs of ours: URL, bytes, and when it was put there."""
        ...

    def clear(self, url: str) -> None:
        """Remove one entry of `caches`."""
        ...

    def fate(self, job_id: str) -> str:
        """What became of a job whose master is gone: `running`, `resumable`, `ended` or `unknown`, as the engine sees it."""
        ...


def reached(application: str, address: str, within: float) -> socket.socket:
    """A connection to a job's master at `address`, host:port, where that is reached directly. Raises OSError where there is none."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), within)
