"""The stimuli of a job: all that can happen to it, as the core sees it.

A stimulus is what a shell observed: a change that the engine reported, a report of an agent, a wish of the user, or time passing. `decide`
turns it into events; a stimulus itself is never stored. Engines give exactly the classes of the first part, whatever their own words for
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from trainmaster.core.plain import Plain

Key: TypeAlias = tuple[str, int]  # of a container, or of the ask for it: its task, and the ask's serial number

# -- what an engine tells (the changes of the engine contract) --


@attrs.frozen(slots=True, eq=False, repr=False)
class Granted(Plain):
    """The engine gave a container for the ask (task, serial)."""

    task: str
    serial: int
    container: str  # the engine's own name for it
    node: str
    devices: tuple[str, ...] = ()  # accelerators, as the engine names them


@attrs.frozen(slots=True, eq=False, repr=False)
class GangGranted(Plain):
    """The engine gave the containers with which a gang begins."""

    grants: tuple[Granted, ...]


@attrs.frozen(slots=True, eq=False, repr=False)
class Refused(Plain):
    """The engine will never grant this ask as it stands."""

    task: str
    serial: int
    detail: str


@attrs.frozen(slots=True, eq=False, repr=False)
class Waiting(Plain):
    """The reason why asks are not granted yet, or granted containers do not start: a resource, asked and free, in the engine's units.

    Without a resource: nothing is waited for any more.
    """

    resource: str
    asked: str
    free: str
    detail: str = ""  # one line for people
    position: int = 0  # place in the queue, 1 is next; 0 unknown


@attrs.frozen(slots=True, eq=False, repr=False)
class ContainerExited(Plain):
    """A container ended, and nothing of it runs any more.

    `reason` is a key of `REASONS` where the engine knows one (`preempted`, `node-lost`, `out-of-memory`, ...), else None.
    """

    task: str
    serial: int
    status: int | None = None
    reason: str | None = None
    figures: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(slots=True, eq=False, repr=False)
class ContainerLost(Plain):
    """The engine gave a container up (its node is gone); what ran in it may still run for a while."""

    task: str
    serial: int
    reason: str = "node-lost"
    figures: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(slots=True, eq=False, repr=False)
class Warned(Plain):
    """The engine will take a container back in `seconds`.

    `figures`: of `reason`, where that alone can end the container now, whatever its engine sees of that later; None where it may live on,
    or end otherwise.
    """

    task: str
    serial: int
    seconds: float
    reason: str = "preempted"
    figures: Mapping[str, Any] | None = None


@attrs.frozen(slots=True, eq=False, repr=False)
class GangOverdue(Plain):
    """Part of a gang has been granted for `seconds`, as long as the engine may keep it from others, and what it needs besides has not."""

    gang: str
    seconds: float


# -- what agents tell --


@attrs.frozen(slots=True, eq=False, repr=False)
class Connected(Plain):
    """An agent's channel opened. `hello` says where it is, which attempt it has and what shards that holds."""

    task: str
    serial: int
    hello: Mapping[str, Any]


@attrs.frozen(slots=True, eq=False, repr=False)
class Disconnected(Plain):
    """An agent's channel closed or fell silent."""

    task: str
    serial: int


@attrs.frozen(slots=True, eq=False, repr=False)
class Report(Plain):
    """A numbered report of an agent about one attempt; `kind` is one of those in `decisions.REPORTS`."""

    task: str
    serial: int
    n: int
    attempt: int
    kind: str
    data: Mapping[str, Any] = attrs.field(factory=dict)


# -- what the user and the master's own shell tell --


@attrs.frozen(slots=True, eq=False, repr=False)
class Submitted(Plain):
    """The job came into being. `job` is the job as understood (JSON form, secrets redacted). `since`: when its user submitted it, in s
    since 1970 by that machine's clock, where a cluster may have let it wait for its first master. `user`: that user. `engine`: where it
    runs.
    """

    id: str
    job: Mapping[str, Any]
    since: float | None = None
    user: str | None = None
    engine: str | None = None


@attrs.frozen(slots=True, eq=False, repr=False)
class MasterStarted(Plain):
    """A master took the epoch `epoch`, having read the log of each earlier epoch up to `read` (epoch -> last event number).

    `before`: the last words of the one before it, where it left any. `boot`: its machine's, `id`, and `at` in seconds since 1970 by the
    clock of this master.
    """

    epoch: int
    read: Mapping[str, int] = attrs.field(factory=dict)
    place: str = ""
    before: str = ""
    boot: Mapping[str, Any] | None = None


@attrs.frozen(slots=True, eq=False, repr=False)
class KillRequested(Plain):
    by: str
    why: str = ""
    reason: str = "killed-by-user"  # or "killed-by-engine": nobody asked for it


@attrs.frozen(slots=True, eq=False, repr=False)
class KillTaskRequested(Plain):
    """A user wants the present attempt of one task to end; it restarts by the rules of its role."""

    task: str
    by: str
    why: str = ""


@attrs.frozen(slots=True, eq=False, repr=False)
class ScaleRequested(Plain):
    """A user wants `size` members of an elastic role; None: as many as the job's own rules say, again."""

    role: str
    size: int | None
    by: str


@attrs.frozen(slots=True, eq=False, repr=False)
class GivenUp(Plain):
    """The job cannot go on, for a reason with its figures: the engine starts no master of it any more, or its framework fails."""

    reason: str
    figures: Mapping[str, Any]


@attrs.frozen(slots=True, eq=False, repr=False)
class SaveRequested(Plain):
    save: str  # its name: the UTC time
    by: str = "a user"


@attrs.frozen(slots=True, eq=False, repr=False)
class UserActed(Plain):
    """A user did something to a task's container that changes nothing of the job: `signal` (`detail` names it), `dump` or `cut`."""

    action: str
    task: str
    by: str
    detail: str = ""


@attrs.frozen(slots=True, eq=False, repr=False)
class FeedEnded(Plain):
    """The feed of a role ends: each rank reads so many rows; None: what there is."""

    role: str
    feed: str
    rows: int | None


@attrs.frozen(slots=True, eq=False, repr=False)
class StorageLost(Plain):
    """The log could not be appended for longer than `timeouts.storage`."""

    detail: str


@attrs.frozen(slots=True, eq=False, repr=False)
class SecretsLost(Plain):
    """Every process that held the job's secrets is gone, and they are kept in no file."""


@attrs.frozen(slots=True, eq=False, repr=False)
class Did(Plain):
    """Actions of `plan` were carried out: orders sent, asks made; or, alone in its batch, a commit or a step was."""

    actions: tuple[Any, ...]
    result: Mapping[str, Any] = attrs.field(factory=dict)  # of a commit or a step
    gave_up: str = ""  # why that was left undone


@attrs.frozen(slots=True, eq=False, repr=False)
class Pace(Plain):
    """The seconds that a task takes for a step or a shard."""

    per: str  # "step", "shard", or "step of its own work"
    seconds: float


@attrs.frozen(slots=True, eq=False, repr=False)
class Rate(Plain):
    """The work of all `size` members of a role a second. `unit`: "steps", "shards", or "" for what the program itself counts."""

    role: str
    size: int
    rate: float
    unit: str


@attrs.frozen(slots=True, eq=False, repr=False)
class Measured(Plain):
    """The master measured how fast programs work (`core.pace`)."""

    paces: Mapping[str, Pace]  # task -> its pace
    rates: Sequence[Rate]  # of the roles that were measured for long enough


@attrs.frozen(slots=True, eq=False, repr=False)
class Tick(Plain):
    """Time passed."""


# The changes that an engine reports by `MasterSide.changes`.
Change: TypeAlias = (
    Granted | GangGranted | Refused | Waiting | ContainerExited | ContainerLost | Warned | GangOverdue | KillRequested
)
Stimulus: TypeAlias = (
    Granted
    | GangGranted
    | Refused
    | Waiting
    | ContainerExited
    | ContainerLost
    | Warned
    | GangOverdue
    | Connected
    | Disconnected
    | Report
    | Submitted
    | MasterStarted
    | KillRequested
    | KillTaskRequested
    | ScaleRequested
    | GivenUp
    | SaveRequested
    | UserActed
    | FeedEnded
    | StorageLost
    | SecretsLost
    | Did
    | Measured
    | Tick
)
