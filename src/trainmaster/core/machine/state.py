"""The state of a job: the fold of its events, and nothing else.

A *task* has one current attempt, in a phase, and at most one container, in a hold; the two live apart, for a container may carry several
attempts of its task, and an attempt that waits needs no container. Tasks that start together are a *group*: it is sized (which tasks are
its members, the others are *spares*), forms generations, and may restart as a whole; members of an elastic role come and go. A *unit* is
what restarts together: a group for roles of scope `group`, else one task; an *incident* is one failure of a unit until its root cause is
settled; a *budget* counts what restarts cost.

`fold` changes a state in place while folding; everyone else only reads. `unsettled` names the tasks for which `plan` may have
something to do, `deadlines` when time itself becomes a stimulus.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import Any

import attrs

from trainmaster.core import states
from trainmaster.core.input.shards import OUTPUTS, PROGRAM, ShardTable
from trainmaster.core.machine.events import Event
from trainmaster.core.machine.orders import WHEN_ASKED, WHEN_STOPPED
from trainmaster.core.machine.phases import FINISHED, LIVE, NEW, READY, STAGING, STARTING
from trainmaster.core.machine.units import GROUP, ROLE, TASK, Unit
from trainmaster.core.plain import Plain
from trainmaster.core.spec.dependencies import stages
from trainmaster.core.spec.job import HADOOP, STATIC_INPUTS, Job, Role, uses, writes

# Holds of a container.
NONE, ASKED, GRANTED = "none", "asked", "granted"
BARRED = "barred"  # written off by us: to be released, its agent refused

HANGS = frozenset({"stalled", "hung-after-peer-finished"})  # reasons of an attempt's end: its processes did not go on
# Troubles by which something of the job is not kept: what its programs printed, a checkpoint, files of an output or of a checkpoint.
LOG, CHECKPOINT, FILES = "log", "checkpoint", "files"
PROMISE = "promise"  # a trouble too: the cluster has not kept what a container was promised
SHARD = "shard"  # a loss that is not a trouble: a shard was set aside
WORK = "work"  # another one: the work on shards that an attempt reported is kept only if its program has stored it


@attrs.define(slots=True, eq=False, repr=False)
class Past(Plain):
    """An attempt that ended."""

    attempt: int
    reason: str
    figures: dict[str, Any]
    ended: float


@attrs.define(slots=True, eq=False, repr=False)
class Task(Plain):
    """One member of a role."""

    key: str
    role: str
    index: int
    group: int
    whole: bool  # restarts with its group
    counts: bool
    serves: bool
    commits: bool  # has outputs
    final: str = ""  # its final state, once there is one
    is_spare: bool = False  # no member of its group now
    grows: bool = False  # a spare for which a container is asked, to become a member
    # its current attempt
    attempt: int = 1
    phase: str = NEW
    doomed: str = ""  # the attempt must stop: "restart", "change" (of members), "leave", "end" or "fail"
    blocked: bool = False  # waits out a back-off
    since: float = 0.0  # when the phase was entered
    staged: float = 0.0  # the part of its data that was there when the limit of its start was last moved
    started: float | None = None
    address: str = ""
    ports: dict[str, int] = attrs.field(factory=dict)
    devices: int = 0
    restored: int | None = None  # the checkpoint set that its attempt found
    outputs: dict[str, Any] = attrs.field(factory=dict)
    parts: list[dict[str, Any]] = attrs.field(
        factory=list
    )  # {attempt, part, outputs}: those committed, of all attempts
    reason: str = ""
    figures: dict[str, Any] = attrs.field(factory=dict)
    tail: list[str] = attrs.field(factory=list)
    begun: list[list[Any]] = attrs.field(
        factory=list
    )  # [attempt, [[process, input, shard, elapsed], ...]]: what programs were reading when they ended; of the last two attempts
    # its container
    serial: int = 0
    hold: str = NONE
    container: str = ""
    node: str = ""
    connected: bool = False
    used: bool = False  # an attempt has begun in it
    left: bool = False
    warmed_up: bool = False  # its agent has made the template for a spare's program, or knows that it will not make one
    warned: dict[str, Any] | None = None
    trouble: dict[str, Any] | None = None  # what last went wrong beside the program
    sent: dict[str, str] = attrs.field(factory=dict)  # verb -> what was sent to the present connection
    acts: list[list[Any]] = attrs.field(
        factory=list
    )  # [number, verb, detail, by]: what users want of the running program
    reported: int = 0  # the last report of the present container taken in
    memory_factor: float = 1.0
    resized: bool = False  # its next attempt needs another container: of another size, or as this one is to go
    past: list[Past] = attrs.field(factory=list)

    @property
    def live(self) -> bool:
        """Tell whether the current attempt has something that can run or must be stopped."""
        return self.phase in LIVE

    @property
    def state(self) -> str:
        """Return its state, of TASK_STATES."""
        if self.final:
            return self.final
        if self.phase in (STAGING, READY, STARTING):
            return states.STAGING
        return states.RUNNING if self.phase in LIVE else states.PENDING


@attrs.define(slots=True, eq=False, repr=False)
class Group(Plain):
    """Roles whose tasks start together."""

    number: int
    roles: list[str]
    gang: bool
    sizes: dict[str, int] | None = None  # members of each role, once sized
    elastic: list[str] = attrs.field(factory=list)  # the roles whose members come and go, once sized
    requested: dict[str, int] = attrs.field(factory=dict)  # role -> the members that a user wants
    began: float | None = None  # when its first generation was formed
    formed: float = 0.0  # when its present generation was
    restarts: int = 0  # as a whole, after failures
    changed: float = 0.0  # when its members last changed
    changes: int = 0  # how often they have
    arrived: int = 0  # spares whose agents are there
    warming_up: int = 0  # those of them that make a template for their program
    arrived_at: float = 0.0  # when the last of them came
    replaced: float | None = None  # when a straggler was last taken out of its container
    opened: bool = False  # what its roles wait for has succeeded
    generation: int = 0
    forming: bool = True  # the next generation is not formed yet
    finishing: bool = False  # a member has finished, its peers are given a time
    rewinding: bool = False  # its next attempts go back to a checkpoint set, not named yet
    set: int | None = None  # the checkpoint set that its attempts begin from
    ranks: dict[str, int] = attrs.field(factory=dict)
    granted: Counter[str] = attrs.field(factory=Counter)  # role -> containers held
    whole: Counter[str] = attrs.field(factory=Counter)  # phase -> counting members that restart with the group
    single: Counter[str] = attrs.field(factory=Counter)  # phase -> members that restart alone
    doomed: int = 0  # members being stopped


@attrs.define(slots=True, eq=False, repr=False)
class Budget(Plain):
    """The cost of a unit's restarts since it got further; of a role, the cost of all its tasks."""

    spent: int = 0  # restarts at the program's fault
    free: int = 0  # restarts in a row at nobody's cost
    quick: int = 0  # failures in a row at the program's fault, each soon after its start
    total: int = 0  # as `spent`, but a checkpoint or a part of the outputs gives nothing of it back


@attrs.define(slots=True, eq=False, repr=False)
class Reached(Plain):
    """The most progress that a unit's programs have reported: a value of 0 to 1, a step."""

    value: float | None = None
    step: float | None = None


@attrs.define(slots=True, eq=False, repr=False)
class Scaling(Plain):
    """The facts that the size of an elastic role is decided by."""

    by_user: bool = False  # a user has asked for a size
    unit: str = ""  # of its work
    rates: dict[str, list[float]] = attrs.field(factory=dict)  # size -> [work a second, when it was last measured]
    measured: int = 0  # measurements in a row at its present size
    given_back: int = 0  # how often it was made smaller because the last members brought too little
    advice: dict[str, Any] | None = None  # the change that is advised


@attrs.define(slots=True, eq=False, repr=False)
class Incident(Plain):
    """One failure of a unit, until its root cause is settled."""

    unit: Unit
    opened: float
    again: bool  # a restart was decided
    costs: bool
    evidence: list[dict[str, Any]]
    soon: float = 1.0  # s that a death by an outside signal waits for the engine's word before it is final


@attrs.define(slots=True, eq=False, repr=False)
class State(Plain):
    """A job as its events tell it."""

    id: str = ""
    job: Job | None = None
    submitted: float = 0.0
    n: int = 0  # the last event folded
    at: float = 0.0
    epoch: int = 0
    takeover_at: float = 0.0  # when this epoch's master took over
    boot: dict[str, Any] | None = None  # its machine's: id, and when by its clock
    takeovers: int = 0  # masters in a row that lived shortly and brought the job on by nothing
    incomplete: list[Event] = attrs.field(factory=list)  # of a decision whose last event is not here yet
    tasks: dict[str, Task] = attrs.field(factory=dict)
    groups: list[Group] = attrs.field(factory=list)
    running: Counter[str] = attrs.field(factory=Counter)  # role -> tasks whose program has started
    done: Counter[str] = attrs.field(factory=Counter)  # role -> tasks succeeded
    over: Counter[str] = attrs.field(factory=Counter)  # role -> tasks with any final state
    failures: int = 0  # tasks that failed for good and matter: they count, serve, or are waited for as the first
    first_failed: str = ""  # the first of them
    budgets: dict[Unit, Budget] = attrs.field(factory=dict)
    reached: dict[Unit, Reached] = attrs.field(factory=dict)
    incidents: dict[Unit, Incident] = attrs.field(factory=dict)
    scaling: dict[str, Scaling] = attrs.field(factory=dict)  # role -> what was seen of its sizes
    stragglers: dict[str, dict[str, Any]] = attrs.field(
        factory=dict
    )  # task -> figures, while it is much slower than its peers
    listings: dict[str, Any] | None = None  # input -> what was listed; None until listed
    restarts: int = 0
    strays: dict[tuple[str, int], None] = attrs.field(factory=dict)  # granted, and not wanted any more
    waiting: dict[str, Any] | None = None
    refused: dict[str, Any] | None = None
    checkpoint: dict[str, Any] | None = None  # the newest whole set
    checkpoint_at: float | None = None  # when this job last stored one
    shards: dict[str, ShardTable] = attrs.field(factory=dict)  # input -> what of it is done
    losses: dict[str, dict[str, Any]] = attrs.field(
        factory=dict
    )  # what of which task -> output or a checkpoint not kept
    saves: list[dict[str, Any]] = attrs.field(factory=list)
    kill: dict[str, Any] | None = None
    timed_out: bool = False
    ending: dict[str, Any] | None = None  # state, reason, cause, once the end is decided
    leaving: bool = False  # all programs are over: agents store logs and leave
    ended: dict[str, Any] | None = None
    steps: dict[str, str] = attrs.field(factory=dict)  # step -> "" or what it gave up on
    unsettled: dict[str, None] = attrs.field(factory=dict)  # tasks, in the order in which they were touched
    deadlines: dict[tuple[str, str], float] = attrs.field(factory=dict)
    # A heap over deadlines, stale entries included.
    clock: list[tuple[float, tuple[str, str]]] = attrs.field(factory=list)

    # -- reading --

    @property
    def known_job(self) -> Job:
        assert self.job is not None, "the log begins with `submitted`"
        return self.job

    def role(self, task: Task) -> Role:
        return self.known_job.roles[task.role]

    def members(self, group: Group) -> Iterator[Task]:
        """Yield the members of a group; all tasks of its roles while it is not sized."""
        for name in group.roles:
            yield from self.members_of(name)

    def members_of(self, role: str) -> Iterator[Task]:
        for task in self.tasks_of(role):
            if not task.is_spare:
                yield task

    def tasks_of(self, role: str) -> Iterator[Task]:
        """Yield the tasks of a role, members and spares, by index."""
        for index in range(self.known_job.roles[role].replicas.max):
            yield self.tasks[f"{role}:{index}"]

    def admits(self, key: str, serial: int) -> bool:
        """Tell whether an agent of (task, serial) may take part: its container is the task's present one, or the next asked for."""
        task = self.tasks.get(key)
        if task is None or self.steps.get("unregister") is not None:
            return False
        return (
            (serial == task.serial and task.hold == GRANTED)
            or (serial == task.serial + 1 and task.hold == NONE)
            or (serial == task.serial and task.hold == ASKED)
        )

    def next_deadline(self) -> float | None:
        """Return the time that is next a stimulus; None where there is none."""
        while self.clock and self.deadlines.get(self.clock[0][1]) != self.clock[0][0]:
            heapq.heappop(self.clock)
        return self.clock[0][0] if self.clock else None

    def due(self, now: float) -> Iterator[tuple[str, str]]:
        """Yield the deadlines that have passed, earliest first. Callers mostly take only the first, which is the head of the heap."""
        if not self.clock or self.clock[0][0] > now:
            return
        at, head = self.clock[0]
        if self.deadlines.get(head) == at:
            yield head
        else:
            head = ("", "")
        yield from (
            key for at, key in sorted((at, key) for key, at in self.deadlines.items() if at <= now) if key != head
        )

    # -- for fold --

    def arm(self, kind: str, key: str, at: float | None) -> None:
        """Set, move or (None) clear a deadline."""
        if at is None:
            self.deadlines.pop((kind, key), None)
        else:
            self.deadlines[kind, key] = at
            heapq.heappush(self.clock, (at, (kind, key)))

    def touch(self, task: Task) -> None:
        self.unsettled[task.key] = None


def size_of(state: State, group: Group, role: str) -> int:
    """Return the number of members of `role` that the group has, or asks for while it is not sized."""
    if group.sizes is not None:
        return group.sizes[role]
    return first_size(state.known_job, group, role)


def elastic_roles(job: Job, group: Group) -> list[str]:
    """Return the roles whose members come and go. Files that are divided once cannot be divided anew for a task that joins alone."""
    if not job.scale.grow:
        return []
    together = {name for name in group.roles if group.gang and job.roles[name].restart.scope == "group"}
    return [
        name
        for name in group.roles
        if job.roles[name].replicas.elastic and (name in together or not is_divided(job, name))
    ]


def is_divided(job: Job, role: str) -> bool:
    """Tell whether each task of the role reads a part of some input that is divided when a generation forms."""
    return any(
        input_.split != "whole" and (input_.as_ in STATIC_INPUTS or input_.format.startswith(HADOOP))
        for input_ in uses(job, role)
    )


def first_size(job: Job, group: Group, role: str) -> int:
    """Return the number of members that the role begins with where there is room: its least one where it grows by what each is seen to
    bring.
    """
    replicas = job.roles[role].replicas
    return replicas.least if job.scale.auto == "on" and role in elastic_roles(job, group) else replicas.most


def sizes_itself(state: State, role: str) -> bool:
    """Tell whether the number of the role's members follows from what they bring: no user has asked for another."""
    job = state.known_job
    return (
        job.scale.auto == "on" and not job.roles[role].replicas.start and not state.scaling.get(role, Scaling()).by_user
    )


def role_size(state: State, role: str) -> int:
    """Return the number of members of `role` in its group."""
    return size_of(state, state.groups[state.tasks[f"{role}:0"].group], role)


def has_finished(state: State, role: str) -> bool:
    """Tell whether a member of the role is over, or its program has ended well: there is no work for newcomers."""
    return state.over[role] > 0 or any(task.phase in FINISHED for task in state.members_of(role))


def unfinished(state: State, role: str) -> list[Task]:
    """Return the members of a role that are not over, and whose programs have not ended well."""
    return [task for task in state.members_of(role) if not task.final and task.phase not in FINISHED]


def joins_alone(state: State, task: Task) -> bool:
    """Tell whether the task becomes a member, and stops being one, without its peers being stopped."""
    return not (task.whole and state.groups[task.group].gang)


def warms_up(state: State, task: Task) -> bool:
    """Tell whether a spare's agent should make a template for its program: its peers would wait for each import of a cold start."""
    role = state.role(task)
    if not role.warm or role.prepare:  # what that command installs may be imported
        return False
    return task.is_spare and not task.warmed_up and not joins_alone(state, task)


def pattern_of(state: State, task: Task) -> Task | None:
    """Return a member of the spare's role that is in the generation; None before the first one."""
    ranks = state.groups[task.group].ranks
    return next((member for member in state.members_of(task.role) if member.key in ranks), None)


def group_unit(number: int) -> Unit:
    return Unit(GROUP, str(number))


def unit_of(task: Task) -> Unit:
    """Return the unit of tasks that restart together with `task`."""
    return group_unit(task.group) if task.whole else Unit(TASK, task.key)


def budget_of(task: Task) -> Unit:
    """Return the unit whose budget limits the task's costly restarts."""
    return group_unit(task.group) if task.whole else Unit(ROLE, task.role)


def units_of(task: Task) -> set[Unit]:
    """Return the units whose budgets progress of the task gives back; its own unit counts containers lost before an attempt began."""
    return {unit_of(task), Unit(TASK, task.key)}


def own_ending(state: State, task: Task) -> dict[str, Any] | None:
    """Return the end of the job where this task is the cause."""
    return state.ending if state.ending is not None and state.ending.get("task") == task.key else None


def newest_round(state: State, training: str) -> int:
    """Return the newest round that a training has begun by the log; 0 where it tells of none."""
    return max((table.trainings.of(training).round for table in state.shards.values()), default=0)


def has_hung(state: State, task: Task) -> bool:
    """Tell whether the task's unit is being stopped because a member hung."""
    incident = state.incidents.get(unit_of(task))
    return incident is not None and any(evidence["reason"] in HANGS for evidence in incident.evidence)


def gets_further(state: State, task: Task, value: float | None, step: float | None) -> bool:
    """Tell whether the value or the step is beyond the best that any program of the task's unit has ever reported."""
    best = state.reached.get(unit_of(task), Reached())
    return (value is not None and (best.value is None or value > best.value)) or (
        step is not None and (best.step is None or step > best.step)
    )


def signal_fields(task: Task, number: str) -> dict[str, str]:
    """Return the fields of the order to send the signal that is a task's user act of this number."""
    return next(({"signal": name, "by": by} for act, _, name, by in task.acts if number == str(act)), {})


def loss_kind(subject: str) -> str:
    """Return the kind of loss of a trouble, "" where nothing is lost. The subject of lost files is `output NAME` or `checkpoint sets`,
    that of a promise `promise NAME`, that of work `work INPUT`.
    """
    if subject.startswith("promise "):
        return PROMISE
    if subject.startswith("work "):
        return WORK
    if subject.startswith("output ") or subject == "checkpoint sets":
        return FILES
    return subject if subject in (LOG, CHECKPOINT) else ""


def populate(state: State, job: Job) -> None:
    """Make the tasks and groups of a job just submitted."""
    state.job = job
    stage = stages(job.roles)
    for number in range(max(stage.values()) + 1):
        roles = [name for name in job.roles if stage[name] == number]
        state.groups.append(Group(number, roles, job.gang is not False))
    for name, role in job.roles.items():
        scope = role.restart.scope
        for index in range(role.replicas.max):
            key = f"{name}:{index}"
            task = Task(
                key, name, index, stage[name], whole=scope == "group", counts=role.counts, serves=role.serves,
                commits=bool(outputs_of(job, name, index)),
            )  # fmt: skip
            state.tasks[key] = task
            (state.groups[task.group].whole if task.whole else state.groups[task.group].single)[NEW] += 1
            state.unsettled[key] = None
    for group in state.groups:
        if not group.gang and not (job.scale.grow and any(job.roles[name].replicas.elastic for name in group.roles)):
            group.sizes = {name: job.roles[name].replicas.most for name in group.roles}
        group.opened = group.number == 0
        for name in [name for name in group.roles if first_size(job, group, name) < job.roles[name].replicas.max]:
            group.requested[name] = first_size(job, group, name)
            for task in list(state.tasks_of(name))[group.requested[name] :]:
                task.is_spare = True
                (group.whole if task.whole else group.single)[NEW] -= 1


def keeper(state: State, task: Task) -> str:
    """Return who keeps what the task makes of its shards, where its program does not say; "": a checkpoint, or the servers of its group.

    The outputs of tasks that restart together hold the work of all of them.
    """
    job, group = state.known_job, state.groups[task.group]
    if task.whole and job.checkpoint is not None:
        return ""
    if not task.whole and any(job.roles[name].serves for name in group.roles):
        return ""
    together = [name for name in group.roles if job.roles[name].restart.scope == "group"] if task.whole else []
    return OUTPUTS if task.commits or any(writes(job, name) for name in together) else PROGRAM


def commits_parts(state: State, task: Task) -> str:
    """Return when the task's outputs are committed in parts, as `core.machine.orders` says it; "": never.

    The files of tasks that restart together are of all of them, so that the agent of one cannot tell when they are whole.
    """
    job = state.known_job
    reads = any(input_.as_ == "shards" for input_ in uses(job, task.role))
    if not (reads and task.commits) or (task.whole and job.checkpoint is not None):
        return ""
    return WHEN_STOPPED if not task.whole and keeper(state, task) == OUTPUTS else WHEN_ASKED


def keeper_of(job: Job, role: str) -> str:
    """Return who keeps what the first task of a role makes of its shards, as `keeper` does."""
    state = State()
    populate(state, job)
    return keeper(state, state.tasks[f"{role}:0"])


def outputs_of(job: Job, role: str, index: int) -> dict[str, Any]:
    """Return the outputs that one task uploads: by default every task of a counting role, else those `from` names."""
    outputs = {}
    for name, output in job.outputs.items():
        source = output.from_
        default = job.roles[role].counts
        if (not source and default) or source in (role, f"{role}:{index}"):
            outputs[name] = output
    return outputs
