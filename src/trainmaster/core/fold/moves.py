"""Make the moves that several events share: a phase entered, a task doomed, renewed, dropped or made final.

Every counter of a group follows its members here, and every task that may have something to do is noted as unsettled.
"""

from __future__ import annotations

from trainmaster.core.machine.phases import LIVE, NEW, RUNNING, STARTED, check_transition
from trainmaster.core.machine.state import (
    BARRED,
    GRANTED,
    NONE,
    Group,
    State,
    Task,
    joins_alone,
    size_of,
    warms_up,
)
from trainmaster.core.machine.units import TASK, Unit
from trainmaster.core.states import KILLED, SUCCEEDED


def move(state: State, task: Task, phase: str, at: float) -> None:
    """Bring the attempt into `phase` and adjust every counter. Raises IllegalTransition; then nothing has changed."""
    check_transition(task.key, task.phase, phase)
    before, task.phase, task.since = task.phase, phase, at
    group = state.groups[task.group]
    if not task.is_spare:
        counts = group.whole if task.whole else group.single
        counts[before] -= 1
        counts[phase] += 1
    task.used = task.used or phase in LIVE or before == NEW
    if phase not in LIVE:
        state.arm("stop", task.key, None)
        state.arm("commit", task.key, None)
    if before == RUNNING:
        for save in state.saves:
            save["left"].pop(task.key, None)
    if (before in STARTED) != (phase in STARTED):
        state.running[task.role] += 1 if phase in STARTED else -1
        if state.running[task.role] == size_of(state, group, task.role):
            touch_dependents(state, task.role)
    state.touch(task)


def doom(state: State, task: Task, why: str) -> None:
    if not task.doomed:
        state.groups[task.group].doomed += 1
    task.doomed = why
    state.touch(task)


def undoom(state: State, task: Task) -> None:
    if not task.doomed:
        return
    group = state.groups[task.group]
    group.doomed -= 1
    task.doomed = ""
    if not group.doomed:  # members of the next generation wait for this
        for peer in state.members(group):
            state.touch(peer)


def connect(state: State, task: Task, connected: bool) -> None:
    """Note whether the task's agent is there."""
    _count_arrived(state, task, -1)
    task.connected = connected
    _count_arrived(state, task, 1)


def warm_up(state: State, task: Task) -> None:
    """Note that the agent has made what template it can."""
    _count_arrived(state, task, -1)
    task.warmed_up = True
    _count_arrived(state, task, 1)


def _count_arrived(state: State, task: Task, change: int) -> None:
    """Add `change` to the counts of its gang, where the task is a spare whose agent is there."""
    if task.is_spare and task.connected and not joins_alone(state, task):
        group = state.groups[task.group]
        group.arrived += change
        group.warming_up += change if warms_up(state, task) else 0


def become_spare(state: State, task: Task) -> None:
    """Take the task out of its group; what runs of it is to stop."""
    group = state.groups[task.group]
    (group.whole if task.whole else group.single)[task.phase] -= 1
    task.is_spare = True
    task.blocked = ("backoff", Unit(TASK, task.key).text) in state.deadlines
    _count_arrived(state, task, 1)
    state.stragglers.pop(task.key, None)
    if task.phase in LIVE:
        doom(state, task, "leave")
    state.touch(task)


def become_member(state: State, task: Task) -> None:
    group = state.groups[task.group]
    _count_arrived(state, task, -1)
    task.is_spare = task.grows = False
    (group.whole if task.whole else group.single)[task.phase] += 1
    state.touch(task)


def seek_spares(state: State, group: Group) -> None:
    """Choose the spares for which containers are asked: as many as the elastic roles have room for, the lowest indexes first."""
    for name in group.elastic:
        room = group.requested.get(name, state.known_job.roles[name].replicas.max) - size_of(state, group, name)
        for task in state.tasks_of(name):
            if task.is_spare:
                task.grows = room > 0
                room -= 1
                state.touch(task)


def touch_dependents(state: State, role: str) -> None:
    for name, other in state.known_job.roles.items():
        if role in other.after:
            touch_role(state, name)


def touch_role(state: State, role: str) -> None:
    for index in range(state.known_job.roles[role].replicas.max):
        state.unsettled[f"{role}:{index}"] = None


def renew(state: State, task: Task, at: float) -> None:
    """Begin the task's next attempt, in another container where this one will be taken back."""
    undoom(state, task)
    state.stragglers.pop(task.key, None)
    if task.hold == GRANTED and task.warned is not None:
        task.resized = True
    task.attempt += 1
    task.started, task.outputs, task.reason, task.figures, task.tail = None, {}, "", {}, []
    task.warned, task.acts = None, []
    move(state, task, NEW, at)
    state.arm("start", task.key, None)


def drop(state: State, task: Task, *, gone: bool = True) -> None:
    """Take the container from the task; where the engine may still hold it (not `gone`) it must be released."""
    if task.hold == GRANTED:
        state.groups[task.group].granted[task.role] -= 1
    task.hold = NONE if gone else BARRED
    connect(state, task, False)
    task.container, task.left, task.sent, task.warned = "", False, {}, None
    task.resized = task.used = task.warmed_up = False
    state.arm("gone", task.key, None)
    state.arm("start", task.key, None)
    state.arm(
        "commit", task.key, None
    )  # the agent's deadline: where a commit is still due, the master commits in its place
    state.touch(task)


def finalize(state: State, task: Task, final: str) -> None:
    """Give the task its final state, once."""
    undoom(state, task)
    state.stragglers.pop(task.key, None)
    if task.final:
        return
    task.final = final
    if task.is_spare:
        state.touch(task)
        return
    state.over[task.role] += 1
    state.arm("start", task.key, None)
    if final == SUCCEEDED:
        state.done[task.role] += 1
    elif final != KILLED and (task.counts or task.serves or task.role == state.known_job.completion.first):
        state.failures += 1
        state.first_failed = state.first_failed or task.key
    if state.ending is not None and state.over[task.role] == size_of(state, state.groups[task.group], task.role):
        for name in state.known_job.roles:
            touch_role(state, name)
    state.touch(task)
