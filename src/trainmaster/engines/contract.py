"""The contract of an engine: all that an engine is, and no other file says more.

An engine grants containers that run one given thing, our agent, and takes them back. Ranks, data, restarts, completion and elasticity are
not its concern. It has four parts, which an `Engine` names and which are loaded when they are needed:

    Capabilities    what differs between engines for everything outside their folders
    ClientSide      runs where a job is submitted: checks, submits, finds, reaches and ends jobs. An engine whose containers are processes
                    of the submitter's machine is `OnThisMachine`, any other one `OnCluster`
    ContainerSide   runs first thing in a container: what its agent, or the job's master, was given there
    MasterSide      runs inside the job's master: asks for containers, and tells what becomes of them, in the stimuli of the core

`registry` has a line for each engine; another package adds one by an entry point of the group `trainmaster.engines`.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import attrs

from trainmaster.core.machine.stimuli import (
    ContainerExited,
    ContainerLost,
    GangOverdue,
    Granted,
    KillRequested,
    Refused,
    Waiting,
    Warned,
)
from trainmaster.core.plain import Plain

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


# Who sees that a program used more memory than it may: the agent, by a control group that it makes for the program; the kernel, as the
# control group of the whole container tells; or the engine alone, which ends the container.
BY_AGENT, BY_KERNEL, BY_ENGINE = "agent", "kernel", "engine"


@attrs.frozen(slots=True, eq=False, repr=False)
class Capabilities(Plain):
    """The differences between engines that anything outside their folders may look at."""

    on_this_machine: bool = False  # containers are processes of the submitter's machine, with his files and variables
    own_network: bool = False  # the network devices that a container sees are its own
    memory_limit: str = BY_ENGINE
    mounts: bool = (
        False  # file:// URLs of a job are paths of its containers, of which the submitter's machine knows nothing
    )
    dry_run_objects: bool = False  # `tm run --dry-run` prints what submitting would create
    application_id: str = ""  # regular expression of the names that the engine's own tools give to a job
    without_storage: str = ""  # the warning for a job that names no storage


@attrs.frozen(slots=True, eq=False, repr=False)
class Engine(Plain):
    """One engine. Its parts are named "module:attribute", so that who needs one does not load the others."""

    name: str
    client_side: str  # a class without parameters: ClientSide
    container_side: str = ""  # a module: ContainerSide
    capabilities: Capabilities = attrs.field(factory=Capabilities)
    is_configured: str = ""  # a function that tells whether this machine is configured for a cluster of it
    checks: str = ""  # a function that yields the findings of `tm doctor`

    def load(self, part: str) -> Any:
        """Return a part by its field's name."""
        module, _, name = getattr(self, part).partition(":")
        return getattr(import_module(module), name) if name else import_module(module)


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
    """The engine as the submitting side uses it. Everything blocks. An *application* is the engine's own name of a job that it has."""

    def check(self, job: Any, requests: Sequence[Request]) -> None:
        """Raise BadInput where the job can never run here, naming asked, largest and key. `requests`: its containers, at its largest."""
        ...

    def brings(self, url: str) -> bool:
        """Return True where containers get the file at `url` without our doing."""
        ...

    def free(self) -> Sequence[Free]:
        """Return what is free on each node."""
        ...

    def queues(self) -> Sequence[Queue]:
        """Return the queues; none where the engine has none."""
        ...

    def fate(self, application: str) -> tuple[str, str]:
        """Return what became of a job's master, and what the engine says of that.

        `running` while it runs or will; `submitting` where the engine may not have been asked yet; else `ended`, `failed`, `killed`,
        `removed` where it never will run, or `unknown` to the engine.
        """
        ...

    def end(self, application: str) -> None:
        """End all of a job whose master does not answer, and wait until that is done."""
        ...


class OnThisMachine(ClientSide, Protocol):
    """The client side of an engine whose jobs are processes of this machine. A job's application is its id."""

    def prepare(self) -> None:
        """Begin to start what a submit needs, while the command line is read. Called before there is a thread or a loop."""
        ...

    def start(self, storage: str, payload: Mapping[str, Any], *, fork: bool) -> None:
        """Start the master of the job whose storage is a directory. `payload`: token, secrets, environ, allowance. `fork`: out of us."""
        ...

    def keep(self, storage: Path, environ: Mapping[str, str], allowance: Mapping[str, Any]) -> None:
        """Write down what a job needs of its submitter if it loses all its processes."""
        ...

    def orphans(self) -> Sequence[str]:
        """Return the jobs that have lost all their processes, once what those left behind is cleared away."""
        ...

    def resume(self, job: str, kill: Mapping[str, str] | None = None) -> bool:
        """Start a master for a job that lost all its processes; False where its storage is gone. `kill`: it ends the job at once."""
        ...


@attrs.frozen(slots=True, eq=False, repr=False)
class Submission(Plain):
    """A job on its way to a cluster."""

    job_id: str
    job: Any
    site: Mapping[str, Any]  # what submit found out about the job's place
    secret: Mapping[str, Any]  # token, key, secrets by role, stores: variables that open object stores
    certificate: str  # of the master, PEM
    files: Sequence[Shipped]
    requests: Sequence[Request]  # that the first master will ask for at once
    runtime: Callable[
        [Collection[str]], Path
    ]  # finds or makes the runtime archive, without the packages that are named


@attrs.frozen(slots=True, eq=False, repr=False)
class Submitted(Plain):
    """A job that a cluster has."""

    application: str
    facts: Mapping[str, Any] = attrs.field(factory=dict)  # what else is kept of the job's place
    master: Mapping[str, Any] | None = None  # what a master on this machine is told, where the cluster starts none
    warnings: Sequence[tuple[str, str]] = ()  # (key of the job, what the cluster did otherwise)


class ClusterStore(Protocol):
    """Where a cluster keeps jobs of ours, and data that came with them."""

    jobs: str  # the URL below which jobs without `storage` have theirs
    inputs: str
    outputs: str

    def private(self, kind: str) -> str:
        """Make the folder `inputs` or `outputs`, which nobody else reads; returns its URL."""
        ...

    def kept(self, job: str) -> dict[str, Any] | None:
        """Return how a job is reached that was submitted from another machine: job, site, token, certificate; None where there is none."""
        ...


class OnCluster(ClientSide, Protocol):
    """The client side of an engine whose containers are on other machines."""

    place: str  # where the cluster is, for people

    def store(self, job: Any = None) -> ClusterStore: ...

    def submit(self, submission: Submission) -> Submitted:
        """Start the job's master; where that fails, or is interrupted, nothing of it is left."""
        ...

    def found(self, wanted: str) -> dict[str, str]:
        """Return job -> application of our jobs that `wanted` may mean: the beginning of an id, or an application. "": all."""
        ...

    def reach(self, application: str, address: str, within: float) -> socket.socket:
        """Return a connection to the job's master. Raises OSError without one, BadInput without the right."""
        ...

    def waits(self, application: str, job: Any) -> str:
        """Say what a job waits for whose master does not answer."""
        ...

    def given_up(self, application: str) -> tuple[str, dict[str, Any]]:
        """Return why a job `failed`: the reason, and its figures."""
        ...

    def master_payload(self, application: str) -> Mapping[str, Any] | None:
        """Return what a master is told that takes up a job on this machine; None where there is nothing to take up."""
        ...

    def newer_tokens(self, job: Any) -> dict[str, Any]:
        """Fetch tokens for a job that runs, as its master takes them. Raises BadInput where its cluster has none."""
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

    def objects(self, job: Any, requests: Sequence[Request]) -> list[dict[str, Any]]:
        """Return what submitting would create, where the engine's `dry_run_objects` says so; without secrets."""
        ...


AgentSpec = Callable[
    [Request, Sequence[str]], Mapping[str, Any]
]  # (request, its devices) -> what the container's agent is given


class Tokens(Protocol):
    """What containers have on a secure cluster in the place of their owner's ticket; it ends, and newer ones take its place."""

    heed: list[Callable[[], None]]  # called when there are newer ones

    def bring(self, newer: Mapping[str, Any]) -> dict[str, Any]:
        """Take newer ones, in the engine's own form; returns what the job has now, for people. Raises ValueError."""
        ...

    def told(self) -> dict[str, Any] | None:
        """Return what agents may not have yet."""
        ...

    def status(self) -> dict[str, Any]: ...

    async def keep(self) -> None:
        """Get newer ones in time, where that can be, until cancelled."""


class MasterContainer(Protocol):
    """The container in which a job's master runs, or the place of one beside the client."""

    address: str  # the host that others reach it by
    port: int  # 0: any
    agents: Mapping[str, Any]  # what else agents are given
    begun_again: bool  # whether the cluster begins anew what ends in it
    proxies: Collection[str]  # addresses of the cluster's own web proxies, which are shown a bare page
    tokens: Tokens | None

    def engine(self, job: Any, spec: AgentSpec, page: Callable[[], str]) -> MasterSide:
        """Return the engine as this job's master uses it. `page` says where the job's page is, once it is."""
        ...

    def may_view(self, user: str) -> bool:
        """Tell whether a reader whom the cluster's proxy names may see the page."""
        ...

    def leave(self) -> None:
        """The job is over: remove from the cluster what was only for its life. The container goes with all that it holds."""


class ContainerSide(Protocol):
    """A module: what was given to a container, taken up by the process that begins there."""

    def agent(self) -> dict[str, Any]:
        """Return the spec of this container's agent (see `agent.main`)."""
        ...

    def master(self) -> tuple[str, dict[str, Any], MasterContainer]:
        """Return the job's directory in this container, what its master is told, and the container as the master uses it."""
        ...

    def beside(self, application: str, payload: Mapping[str, Any]) -> MasterContainer:
        """Return the place of a master on its client's machine (see `OnCluster.master_payload`)."""
        ...


def reached(application: str, address: str, within: float) -> socket.socket:
    """Connect to a job's master at `address`, host:port, where that is reached directly. Raises OSError where there is none."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), within)
