"""The contract of an engine: all that the rest of the code knows of engines is in this file.

An engine grants containers that run one program, our agent, and takes them back. Ranks, data, restarts, completion and elasticity are not
its concern. It has four parts, which an `Engine` names and which are loaded when they are needed:

    Capabilities    what differs between engines for everything outside their folders
    ClientSide      runs where a job is submitted: checks, submits, finds, reaches and ends jobs. An engine whose containers are processes
                    of the submitter's machine is `OnThisMachine`, any other one `OnCluster`
    ContainerSide   runs first in a container: reads what the engine put there for the agent, or for the job's master
    MasterSide      runs inside the job's master: has containers created and deleted, and tells what it sees of them

`registry` has a line for each engine; another package adds one by an entry point of the group `trainmaster.engines`. The runtime archive
brings that package into the containers of its jobs: all of it, and nothing else that it may need.

An engine's classes inherit from these protocols, and cannot be instantiated while a method that is abstract here is missing. A method that
only some engines need does here what suits the others.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.core.plain import Plain
from trainmaster.engines.statuses import BY_ENGINE

if TYPE_CHECKING:  # `tm` loads this module before it forks
    from trainmaster.core.containers import Deletion, Habits, Request, Seen
    from trainmaster.engines.containers import Containers


@attrs.frozen(slots=True, eq=False, repr=False)
class Shipped(Plain):
    """A file that each container of a cluster gets, as `name` in its directory.

    It is the submitter's file at `path`, or, where there is a `url`, one that the cluster has. `unpacked`: the container gets an archive's
    contents. `own`: on each node the file belongs to the user alone, who may change it there.
    """

    name: str
    path: Path = Path()
    url: str = ""
    unpacked: bool = False
    own: bool = False


@attrs.frozen(slots=True, eq=False, repr=False)
class Free(Plain):
    """One node's resources, all of them and the free part. Memory in bytes."""

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
    """A queue of the cluster. Memory in bytes.

    `share` and `most` are parts of its parent: its own share, and the share it may grow to. `used` is the part of its own share that is in
    use, which may be more than 1. `masters` is the part of the queue that masters may use. `labels`: those of the nodes that it may use,
    `*` for all.
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


@attrs.frozen(slots=True, eq=False, repr=False)
class Capabilities(Plain):
    """The differences between engines that anything outside their folders may look at."""

    on_this_machine: bool = False  # containers are processes of the submitter's machine, with his files and variables
    images: bool = False  # containers may run in an image
    own_network: bool = False  # the network devices that a container sees are its own
    memory_limit: str = BY_ENGINE  # or BY_AGENT, BY_KERNEL (`statuses`)
    mounts: bool = False  # file:// URLs of a job are paths of its containers, unknown to the submitter's machine
    dry_run_objects: bool = False  # `tm run --dry-run` prints what submitting would create
    own_storage: str = ""  # the beginning of storage URLs that the job's cluster keeps among its own objects
    application_id: str = ""  # regular expression of the names that the engine's own tools give to a job
    without_storage: str = ""  # the warning for a job that names no storage


@attrs.frozen(slots=True, eq=False, repr=False)
class Engine(Plain):
    """One engine. Its parts are named "module:attribute", so that a caller who needs one does not load the others."""

    name: str
    client_side: str  # a class without parameters: ClientSide
    master_side: str = ""  # of an engine on this machine: a function of the job's id, the agents' specs, and the template of agents, if any
    container_side: str = ""  # a module: ContainerSide
    capabilities: Capabilities = attrs.field(factory=Capabilities)
    is_configured: str = ""  # a function that tells whether this machine is configured for a cluster of it
    checks: str = ""  # a function that yields the findings of `tm doctor`

    def load(self, part: str) -> Any:
        """Return a part by its field's name."""
        module, _, name = getattr(self, part).partition(":")
        return getattr(import_module(module), name) if name else import_module(module)


class MasterSide(Protocol):
    """The engine as the master of one job uses it. It translates: what is to be done is decided by the book (`core.containers`).

    `containers.see` takes what the engine sees of each container, as often as it likes. It creates, starts and
    deletes in its own time, trying as often as it takes; the same order again changes nothing.
    """

    habits: Habits

    @abstractmethod
    async def open(self, epoch: int, containers: Containers) -> Sequence[Seen]:
        """Take part as the master of this epoch; return what there is of the job. Earlier epochs are refused from now on."""
        ...

    @abstractmethod
    def create(self, requests: Sequence[Request]) -> None:
        """Begin to have containers created. Each is seen, or denied, or refused."""
        ...

    def start(self, requests: Sequence[Request]) -> None:
        """Begin to start containers that were seen to be placed. Each is seen to run, or gone."""
        return

    @abstractmethod
    def delete(self, deletions: Sequence[Deletion]) -> None:
        """Begin to take containers back: each one's agent is asked to end and, if it does not, killed. Each is seen to be gone."""
        ...

    @abstractmethod
    async def free(self) -> Sequence[Free]:
        """Return what the engine could still grant, by node."""
        ...

    def tasks_of_others(self) -> int:
        """Return how many tasks of other jobs share the machine's cores now, where all tasks are on one."""
        return 0

    @abstractmethod
    async def close(self, state: str) -> None:
        """Tell the engine the job's final state; all that is left of the job goes with it."""
        ...


class ClientSide(Protocol):
    """The engine as the submitting side uses it. Everything blocks. An *application* is the engine's own name of a job that it has."""

    @abstractmethod
    def check(self, job: Any, requests: Sequence[Request]) -> None:
        """Raise BadInput where the job can never run here. The error names the amount asked for, the largest that there is, and the key.

        `requests`: all the job's containers, at its largest size.
        """
        ...

    def fetches(self, url: str) -> bool:
        """Return True where containers get the file at `url` without our doing."""
        return False

    @abstractmethod
    def free(self) -> Sequence[Free]:
        """Return what is free on each node."""
        ...

    def queues(self) -> Sequence[Queue]:
        """Return the queues; none where the engine has none."""
        return ()

    @abstractmethod
    def application_state(self, application: str) -> tuple[str, str]:
        """Return what became of a job's master, and what the engine says of that.

        `running`: the master runs, or will run. `submitting`: the engine may not have been asked yet. `resumable`: all processes of a job
        on this machine are gone before its end. Else `ended`, `failed` or `killed`; `removed`: the master will never run; `unknown`: the
        engine does not know the job.
        """
        ...

    @abstractmethod
    def end(self, application: str) -> None:
        """End all of a job whose master does not answer, and wait until that is done."""
        ...


class OnThisMachine(ClientSide, Protocol):
    """The client side of an engine whose jobs are processes of this machine. A job's application is its id."""

    @abstractmethod
    def prepare(self) -> None:
        """Begin to start what a submit needs, while the command line is read. Called before there is any thread or event loop."""
        ...

    @abstractmethod
    def start(self, storage: str, payload: Mapping[str, Any], *, fork: bool) -> None:
        """Start the master of the job whose storage is a directory. `payload`: token, secrets, environ, allowance.

        `fork`: fork the master from this process.
        """
        ...

    @abstractmethod
    def keep(self, storage: Path, environ: Mapping[str, str], allowance: Mapping[str, Any]) -> None:
        """Save what the job needs of its submitter, should it lose all its processes."""
        ...

    def forget(self, storage: Path) -> None:
        """Remove what `keep` saved: the job has ended."""
        return

    @abstractmethod
    def orphans(self) -> Sequence[str]:
        """Clear away what dead processes left behind, and return the jobs that have lost all their processes."""
        ...

    @abstractmethod
    def resume(self, job: str, kill: Mapping[str, str] | None = None) -> bool:
        """Start a master for a job that lost all its processes; return False where its storage is gone. `kill`: the master ends the job."""
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
    requests: Sequence[Request]  # those that the first master will make at once
    runtime: Callable[
        [Collection[str]], Path
    ]  # finds or makes the runtime archive, without the packages that are named


@attrs.frozen(slots=True, eq=False, repr=False)
class Submitted(Plain):
    """A job that a cluster has."""

    application: str
    facts: Mapping[str, Any] = attrs.field(factory=dict)  # more that is kept about the job's place
    master: Mapping[str, Any] | None = None  # the payload of a master on this machine, where the cluster starts none
    warnings: Sequence[tuple[str, str]] = ()  # (key of the job, what the cluster did otherwise)


class ClusterStore(Protocol):
    """The place where a cluster keeps our jobs, and the data that came with them."""

    @property
    def jobs(self) -> str:
        """Return the URL below which jobs without `storage` have theirs; commands of this machine read it."""
        ...

    @property
    def inputs(self) -> str: ...

    @property
    def outputs(self) -> str: ...

    def private(self, kind: str) -> str:
        """Make the folder `inputs` or `outputs`, which nobody else reads; returns its URL."""
        ...

    def job_access(self, job: str) -> dict[str, Any] | None:
        """Return how to reach a job that was submitted from another machine: job, site, token, certificate; None where there is none."""
        ...


class OnCluster(ClientSide, Protocol):
    """The client side of an engine whose containers are on other machines."""

    killed_as: str = (
        "killed-by-user"  # the reason of a job whose fate is `killed`: mostly a user asked the engine for it
    )

    @property
    @abstractmethod
    def place(self) -> str:
        """Return where the cluster is, for people."""
        ...

    @abstractmethod
    def store(self, job: Any = None) -> ClusterStore: ...

    @abstractmethod
    def submit(self, submission: Submission) -> Submitted:
        """Start the job's master; where that fails, or is interrupted, remove all traces of the job."""
        ...

    @abstractmethod
    def find_jobs(self, prefix: str) -> dict[str, str]:
        """Return the jobs of ours that `prefix` may mean, job -> application: the beginning of an id, or an application; "" means all."""
        ...

    def reach(self, application: str, address: str, within: float) -> socket.socket:
        """Return a connection to the job's master. Raises OSError without one, BadInput without the right."""
        return connect_directly(address, within)

    def reach_task(self, application: str, container: str, address: str, within: float) -> socket.socket:
        """Return a connection to what a task's program serves at `address`. Raises OSError without one, BadInput without the right."""
        return self.reach(application, address, within)

    def waiting_reason(self, application: str, job: Any) -> str:
        """Describe what a job waits for while its master does not answer."""
        return "its cluster has it as {}: {}".format(*self.application_state(application))

    def failure_reason(self, application: str) -> tuple[str, dict[str, Any]]:
        """Return why the engine gave a job up (fate `failed`): the reason, and its figures."""
        return "master-failed", {"detail": self.application_state(application)[1]}

    def master_payload(self, application: str) -> Mapping[str, Any] | None:
        """Return the payload of a master that takes up the job on this machine; None where there is nothing to take up."""
        return None

    def newer_tokens(self, job: Any) -> dict[str, Any]:
        """Fetch new tokens for a running job, in the form that its master accepts. Raises BadInput where its cluster has none."""
        raise BadInput("jobs of this cluster have no tokens that end", place=self.place, anchor="tokens")

    @abstractmethod
    def forget(self, job_id: str, application: str) -> None:
        """Remove all that the engine keeps of a job that is over, except its storage. Do nothing where the engine keeps nothing of it."""
        ...

    def caches(self) -> Sequence[tuple[str, int, float]]:
        """List what the engine keeps for many jobs of ours: URL, bytes, and when it was put there."""
        return ()

    def clear(self, url: str) -> None:
        """Remove one entry of `caches`."""
        raise BadInput(f"{url} is in no cache of ours", anchor="storage-path")

    def link(self, application: str, job: Any = None) -> str:
        """Return the address of the engine's own page of a job, "" where it has none. An engine that has one also writes it as `link` into
        the site that the job's master gets. `job`: None where somebody else may have written it.
        """
        return ""

    def objects(self, job: Any, requests: Sequence[Request]) -> list[dict[str, Any]]:
        """Return what submitting would create, where the engine's `dry_run_objects` says so; without secrets."""
        return []


# (request, its devices) -> the spec of the container's agent
AgentSpec: TypeAlias = "Callable[[Request, Sequence[str]], Mapping[str, Any]]"


class Tokens(Protocol):
    """The tokens that containers on a secure cluster use instead of their owner's ticket. Tokens expire and are replaced by newer ones."""

    listeners: list[Callable[[], None]]  # called when there are newer tokens

    @abstractmethod
    def accept(self, newer: Mapping[str, Any]) -> dict[str, Any]:
        """Accept newer tokens, in the engine's own form; return a description, for people, of those the job has now. Raises ValueError."""
        ...

    @abstractmethod
    def unshared(self) -> dict[str, Any] | None:
        """Return the tokens that agents may not have yet."""
        ...

    @abstractmethod
    def status(self) -> dict[str, Any]: ...

    async def keep(self) -> None:
        """Renew the tokens in time, where that is possible, until cancelled."""


class MasterContainer(Protocol):
    """The container in which a job's master runs, or the place of a master on the client's machine."""

    address: str  # the host under which others reach the master
    port: int = 0  # 0: any
    agents: Mapping[str, Any] = MappingProxyType({})  # more for the specs of agents
    begun_again: bool = False  # whether the cluster restarts what ends in the container
    proxies: Collection[str] = ()  # addresses of the cluster's own web proxies, which get read-only pages
    tokens: Tokens | None = None

    @abstractmethod
    def engine(self, job: Any, spec: AgentSpec, page: Callable[[bool], str]) -> MasterSide:
        """Return the engine as this job's master uses it. `page(ended)` returns the address of the job's page, once there is one; with
        `ended` that of its history, which outlasts the master.
        """
        ...

    def may_view(self, user: str) -> bool:
        """Tell whether `user`, as the cluster's proxy names the reader, may see the page."""
        return False

    def leave(self) -> None:
        """Remove from the cluster, at the end of the job, what the job alone needed. The container goes with all that it holds."""
        return


class ContainerSide(Protocol):
    """A module by which the first process of a container reads what the engine put there for it."""

    def agent(self) -> dict[str, Any]:
        """Return the spec of this container's agent: what the `AgentSpec` gave, and what only the container knows (see `agent.main`)."""
        ...

    def master(self) -> tuple[str, dict[str, Any], MasterContainer]:
        """Return the job's directory in this container, the master's payload, and the container as the master uses it.

        The directory's name is the job's id, and it has `job.json` and `site.json`. The payload: `Submission.secret`, and `certificate`.
        """
        ...

    def client_side_master(self, application: str, payload: Mapping[str, Any]) -> MasterContainer:
        """Return the place of a master on its client's machine. Needed where `OnCluster.master_payload` or `Submitted.master` gives one."""
        ...


def connect_directly(address: str, within: float) -> socket.socket:
    """Connect to a job's master at `address`, host:port, without its engine's help. Raises OSError where that cannot be reached."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), within)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a request goes out in two pieces
    return connection
