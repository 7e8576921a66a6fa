"""The contract of the pages and the REST interface: a source of facts and a set of actions. Master and `tm ui` hand in the same."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from trainmaster.core.metrics import Series
    from trainmaster.core.timeline import Timeline


Records = AsyncGenerator[Mapping[str, Any], None]  # whoever leaves before the end closes it (contextlib.aclosing)

LIVE = "live"  # the state, in a search, of every job that has not ended


class Facts(Protocol):
    """The facts that can be read of one job."""

    async def changed(self, version: int, within: float) -> int:
        """Wait until the facts are of another version than `version`, at most `within` seconds; return the present version, above 0.

        An event, a sample and a status are each a new version.
        """
        ...

    def description(self) -> Mapping[str, Any]:
        """Return what is known of the job from its beginning: {job, sources, engine, user, application, link, place}.

        `job`: the job file as understood, secrets redacted. `sources`: dotted key -> where its value comes from, of those that are not
        built in. `link`: the address of the engine's own page of the job. `place`: the URL of its storage. Each may be empty.
        """
        ...

    async def timeline(self) -> Timeline:
        """Return the attempts, generations and marks of the job so far. Callers only read it, before they wait again."""
        ...

    async def metrics(
        self, tasks: Collection[str] | None = None, names: Collection[str] | None = None, since: float = 0.0
    ) -> Sequence[Series]:
        """Return what was measured, of some tasks ("" is the whole job) and names, or of all, after a time in seconds since 1970."""
        ...

    def status(self) -> dict[str, Any]:
        """Return the job as `core.machine.report.status` gives it, tasks with their last samples."""
        ...

    def shown_status(self) -> dict[str, Any]:
        """Return the same, shared by readers who ask at about the same time."""
        ...

    def events(self, after: int, follow: bool) -> Records:
        """Yield the events after number `after`; with `follow` those to come too, until the job has ended."""
        ...

    def log(self, task: str, attempt: int | None, offset: int, follow: bool) -> Records:
        """Yield pieces {task, attempt, offset, next, data} of one task's output, of its latest attempt where `attempt` is None.

        `offset` and `next` count bytes printed; `left_out` in a piece says how many are no longer kept. `follow` goes on over attempts.
        """
        ...

    async def stored(self, task: str, attempt: int | None = None) -> tuple[int, int]:
        """Return an attempt (None: the task's latest with output), and how many bytes of its output are stored: it has printed at least
        as many. An attempt of the task `master` is an epoch.
        """
        ...

    def stream(self, after: int, logs: bool, tail: int | None, bare: bool = False) -> Records:
        """Yield {"event"}, {"log"} and {"status"} as they come, {"end"} last. `tail`: bytes of earlier output; None: all.

        `bare`: pieces say how far the output has come, and the reader reads it from the storage itself.
        """
        ...


class Gate(Protocol):
    """The gate decides who sees the page behind the cluster's link. `proxies`: the addresses of the cluster's web proxies."""

    proxies: Collection[str]

    def may_view(self, user: str) -> bool:
        """Tell whether the cluster lets this user see the job; an empty name: the proxy asked nobody."""
        ...


class Acts(Protocol):
    """The actions on one job."""

    async def kill(self, by: str, why: str) -> None: ...

    async def kill_task(self, task: str, by: str, why: str) -> None:
        """End the present attempt of a task. Raises ValueError where it has no container."""
        ...

    async def scale(self, role: str, size: int | None, by: str) -> None:
        """Have the role grow or shrink to `size` members; None: as many as the job's own rules say. Raises ValueError where it cannot."""
        ...

    async def save(self, by: str = "") -> str:
        """Begin a save and return its name."""
        ...

    async def renew(self, tokens: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take newer tokens of a secure cluster; return those that the job has now. Raises ValueError where it takes none."""
        ...

    async def supply(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer a feeder or its driver: see `master.connections.feeders`. Raises ValueError."""
        ...

    async def dump(self, task: str, by: str = "") -> None:
        """Write the stacks of a task's programs into its log."""
        ...

    async def signal(self, task: str, name: str, by: str) -> None:
        """Send a signal, like USR1, to the program of a task. Raises ValueError where it does not run, or for an unknown name."""
        ...

    async def retry(self, by: str) -> str:
        """Submit the job again and return the new job's id. Raises ValueError where this cannot be done from here."""
        ...

    async def cut(self, task: str, seconds: float, by: str) -> None:
        """Cut the link between the master and a task's agent for a while, to see that the job survives. Raises ValueError where it is not
        connected.
        """
        ...


class Links(Protocol):
    """The pages that one job's programs serve, as a proxy of ours shows them."""

    async def has_event_files(self) -> bool:
        """Tell whether the job has left event files, over which TensorBoard can be started. Raises StorageFailed."""
        ...

    async def entry(self, label: str) -> str:
        """Return an address that opens the page once, within a minute; start TensorBoard for a job that has ended.

        Raises Unknown where no program serves such a page, TrainmasterError where TensorBoard does not start.
        """
        ...


class Jobs(Protocol):
    """The jobs that can be read: the master's own one, or all of a storage place."""

    async def find(self, job: str) -> tuple[Facts, Acts | None]:
        """Return the facts of a job and the actions on it; None: nobody may act on it here. Raises Unknown."""
        ...

    async def listing(self, search: str, state: str, user: str, after: str, limit: int) -> Mapping[str, Any]:
        """Return a page of jobs, newest first: {jobs, next, total}.

        A job is {id, name, state, reason, user, engine, submitted, started, ended}. `search` is a part of its id or name, `state` may be
        `LIVE`; an empty text asks for all. `after`: the id that the page before ended with; `next`: the same for the page after, None on
        the last one.
        """
        ...


class Unknown(LookupError):
    """There is no such job, task or attempt."""


@attrs.frozen
class Reader:
    """The reader of a page, and the page's offers. `live`: it gets server-sent events; else it polls."""

    user: str = ""
    may_act: bool = False  # forms have buttons; else they show the command that does the same
    live: bool = True
    csrf: str = ""  # the anti-forgery token of the reader's session
