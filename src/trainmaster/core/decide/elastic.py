"""Decide how the members of an elastic group come and go.

A role with `replicas: {min, max}` begins with the containers that are there. For the tasks beyond those, its *spares*, containers are asked
for all the time; a member that has lost its container is left out where the role's minimum allows that, and is a spare then. The cost of a
change depends on how the task restarts:

- A task that restarts alone joins as soon as its agent is there, until a member of its role has finished, and is left out as soon as its
  container is gone. Nobody else notices.
- In a gang that restarts together each change stops every program. Where the gang restarts anyway, it takes in the spares that are there,
  and leaves out those that have no container once all others are prepared; for a container that may still be granted it waits PATIENCE
  seconds, since taking it in later costs another restart, unless the engine says that there is none. Where the gang runs, growth waits
  until it is worth its cost:

      cost        n members lose RESTART seconds each: their stop, their start, their collectives
      gain        k newcomers bring k s of work a second, until the job ends, or until its gang restarts anyway, when they would have come
                  in for nothing. Nobody knows how long that is. The best guess: a job that has run for t seconds, and restarted r times,
                  goes on for t / (r + 1)
      so          it grows once k x t / (r + 1) >= WORTH x n x RESTART, and `scale.every` after the last change
      the work    that the programs have done since their last checkpoint is lost too. So where the job has a checkpoint, it grows within
                  CALM seconds of a stored set, when that is next to nothing. Where none comes (a program that writes it rarely, a store
                  that fails), the next set is overdue LATE x `checkpoint.every` after the last one; from then on it grows without one, if
                  that pays for the lost work too: k x t / (r + 1) >= WORTH x n x (RESTART + the time since the last set, or since the
                  programs began where that was later). With k / (r + 1) > WORTH x n this holds after a while, at the latest; with less
                  it holds only for a job that was old when it stored its last set

  Autoscaling that gives members back, and the replacement of a straggler, always wait for a set. They bring less than n members do, which
  pays for the lost work only where that is little against the job's age, and then a set came lately.
  A user's `tm scale` is done at once. Newcomers that arrive within GATHER seconds come in together. All programs wait for the last one that
  begins, so newcomers have WARM_UP seconds for the imports of theirs before it stops any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from trainmaster.core.machine.events import Fact
from trainmaster.core.machine.phases import NEW, READY, RUNNING, STAGING, STARTING
from trainmaster.core.machine.state import (
    GRANTED,
    Group,
    State,
    Task,
    elastic_roles,
    has_finished,
    is_divided,
    joins_alone,
    sizes_itself,
)
from trainmaster.core.spec.job import reads

RESTART = 30.0  # s of its work that a program loses when its group restarts: a small one loses less, one of 10,000 GPUs as much
PATIENCE = 10.0  # s that a gang which could go on waits for the container of a lost member
WORTH = 2.0  # how often a growth must bring its cost
CALM = 5.0  # s after a checkpoint set was stored within which nearly nothing would be lost
LATE = 3.0  # times `checkpoint.every` without a set after which none is waited for; the agent says why there is none
WARM_UP = 30.0  # s after a newcomer's arrival that a gang which runs waits for the imports of its program
GATHER = 5.0  # s after a newcomer's arrival in which more of them may come

_YOUNG = (NEW, STAGING, READY, STARTING, RUNNING)  # phases in which an attempt has not come to its end


def scale_fault(state: State, role: str, size: int | None) -> str:
    """Return why the role cannot have `size` members (None: as many as follow from the job's rules), "" where it can."""
    if (known := state.known_job.roles.get(role)) is None:
        return f"there is no role {role}; the job has {', '.join(state.known_job.roles)}"
    if state.ending is not None:
        return "the job is ending"
    group = state.groups[state.tasks[f"{role}:0"].group]
    if role not in elastic_roles(state.known_job, group):
        return f"the members of {role} do not change: that takes replicas: {{min, max}}, scale.grow, and inputs that can be divided anew"
    least, most = known.replicas.min, known.replicas.max
    return (
        ""
        if size is None or least <= size <= most
        else f"{role} has {least} to {most} members (replicas), and cannot have {size}"
    )


def change_members(state: State, group: Group, now: float) -> list[Fact]:
    """Return the next change of the members of a sized group, or the time at which the next one may come."""
    if not group.elastic:
        return []
    return (
        _call_back(state, group)
        or _scale_down(state, group, now)
        or _leave_alone(state, group)
        or _leave_together(state, group, now)
        or _join_alone(state, group)
        or _join_together(state, group, now)
    )


def _call_back(state: State, group: Group) -> list[Fact]:
    """Make a spare a member again where shards were lost with an attempt, and no member is left that would read them."""
    for name in group.elastic:
        if _is_owed(state, name) and _is_alone(state, name) and not _young(state, name):
            spares = [task for task in state.tasks_of(name) if task.is_spare and not task.final]
            return _resized(state, group, joined=spares[:1])
    return []


def _is_owed(state: State, role: str) -> bool:
    """Tell whether shards that the role reads were lost, and are not done again."""
    return any(table.owed and reads(state.known_job, role, name) for name, table in state.shards.items())


def _dispensable(state: State, role: str) -> float:
    """Return how many members a role can go on without: the last one stays while there is work that may have to be done again."""
    tables = [table for name, table in state.shards.items() if reads(state.known_job, role, name)]
    return len(_young(state, role)) - 1 if any(table.owed or table.pending for table in tables) else math.inf


def _young(state: State, role: str) -> list[Task]:
    """Return the members of a role whose attempts have not come to their end."""
    return [task for task in state.members_of(role) if task.phase in _YOUNG and not task.final]


def _scale_down(state: State, group: Group, now: float) -> list[Fact]:
    """Leave out the members beyond the number that is wanted: first those without a container, then those of the highest index. Where no
    user wants that, it waits for a moment at which little is lost. In a role that begins with `start` each member has its own part of the
    work, so the last ones leave, once their programs run and can hand it over; at once where they have not begun.
    """
    left: list[Task] = []
    assert group.sizes is not None
    for role, size in group.requested.items():
        excess = group.sizes[role] - size
        if excess > 0 and (not sizes_itself(state, role) or _is_alone(state, role) or is_calm(state, now)):
            young = _young(state, role)
            excess = int(max(0, min(excess, _dispensable(state, role))))
            if state.known_job.roles[role].replicas.start:
                last = sorted(young, key=lambda task: -task.index)[:excess]
                left += last if all(task.phase == RUNNING or task.attempt == 1 for task in last) else []
            else:
                left += sorted(young, key=lambda task: (task.hold == GRANTED, -task.index))[:excess]
    if not left or group.doomed or any(group.finishing and not joins_alone(state, task) for task in left):
        return []
    return _resized(state, group, left=left, restarts=any(not joins_alone(state, task) for task in left))


def _leave_alone(state: State, group: Group) -> list[Fact]:
    return _resized(state, group, left=_beyond_least(state, group, _lost_alone(state, group)))


def _lost_alone(state: State, group: Group) -> Iterator[Task]:
    """Yield the members without a container that restart alone."""
    for task in _elastic_tasks(state, group):
        if (
            not task.is_spare
            and task.phase == NEW
            and not task.final
            and task.hold != GRANTED
            and joins_alone(state, task)
        ):
            yield task


def _leave_together(state: State, group: Group, now: float) -> list[Fact]:
    """Leave out the members of a gang that have no container, once all others are prepared for its next generation."""
    whole = group.whole
    if not group.forming or group.doomed or group.rewinding or not whole[NEW] or whole[STAGING] or not whole[READY]:
        return []
    lost = [
        task for task in state.members(group) if task.phase == NEW and not task.final and not joins_alone(state, task)
    ]
    left = _beyond_least(state, group, lost)
    if not left or len(left) < len(lost) or any(task.hold == GRANTED for task in lost):
        return []  # too few would be left, or the last is about to be prepared
    at = max(task.since for task in lost) + PATIENCE
    if state.waiting is None and now < at:
        return _planned(state, group, at)
    divided = any(is_divided(state.known_job, name) for name in group.roles)  # the parts are those of the larger group
    return _resized(state, group, left=left, restarts=divided)


def _beyond_least(state: State, group: Group, lost: Iterable[Task]) -> list[Task]:
    """Return those of the tasks that their elastic roles can go on without."""
    assert group.sizes is not None
    sizes, left = dict(group.sizes), []
    for task in lost:
        replicas = state.role(task).replicas
        gone = group.sizes[task.role] - sizes[task.role]
        is_dispensable = sizes[task.role] > replicas.min and gone < _dispensable(state, task.role)
        if task.role in group.elastic and not replicas.start and is_dispensable:
            sizes[task.role] -= 1
            left.append(task)
    return left


def _join_alone(state: State, group: Group) -> list[Fact]:
    """Take in the spares that restart alone, unless their role has finished already."""
    newcomers = [task for task in _elastic_tasks(state, group) if _is_newcomer(task) and joins_alone(state, task)]
    return _resized(state, group, joined=[task for task in newcomers if not has_finished(state, task.role)])


def _join_together(state: State, group: Group, now: float) -> list[Fact]:
    """Take in the spares of a gang when that costs least, or plan when."""
    if not group.arrived or group.finishing:
        return []
    whole = group.whole
    if group.forming and group.doomed:  # it restarts anyway, and nobody is prepared yet
        return _resized(state, group, joined=_newcomers(state, group))
    members = sum(whole.values())
    if group.forming or group.doomed or not members or whole[RUNNING] < members:
        return []
    if (at := _worthwhile(state, group, members, now)) > now:
        return _planned(state, group, at)
    return _resized(state, group, joined=_newcomers(state, group), restarts=True)


def _worthwhile(state: State, group: Group, members: int, now: float) -> float:
    """Return when it is worth its cost to take in the spares that are there; infinity where that takes another checkpoint set."""
    assert group.sizes is not None
    assert group.began is not None
    complete = all(
        group.sizes[name] + group.arrived >= group.requested.get(name, state.known_job.roles[name].replicas.max)
        for name in group.elastic
    )
    at = group.arrived_at + max(0.0 if complete else GATHER, WARM_UP if group.warming_up else 0.0)
    if _is_requested(state, group):
        return at
    # Seconds of the group's age that pay for each one that its members lose.
    price = (1 + group.restarts) * WORTH * members / group.arrived
    at = max(at, group.changed + state.known_job.scale.every, group.began + price * RESTART)
    checkpoint = state.known_job.checkpoint
    if at > now or checkpoint is None or is_calm(state, now):
        return at
    kept = max(group.formed, state.checkpoint_at or 0.0)  # the work from then on would be lost
    at = max(now, kept + LATE * checkpoint.every)
    if at - group.began >= price * (RESTART + at - kept):
        return at
    # Each second adds one to the left side, and the price to the right one.
    return (group.began + price * (RESTART - kept)) / (1 - price) if price < 1 else math.inf


def _is_requested(state: State, group: Group) -> bool:
    """Tell whether a user asked for more members than there are."""
    assert group.sizes is not None
    return any(group.sizes[role] < size and not sizes_itself(state, role) for role, size in group.requested.items())


def is_calm(state: State, now: float) -> bool:
    """Tell whether programs that are stopped lose next to nothing, or nothing is known of that."""
    stored = state.checkpoint_at
    return state.known_job.checkpoint is None or (stored is not None and now <= stored + CALM)


def _is_alone(state: State, role: str) -> bool:
    return joins_alone(state, state.tasks[f"{role}:0"])


def _newcomers(state: State, group: Group) -> list[Task]:
    return [
        task
        for name in group.elastic
        for task in state.tasks_of(name)
        if _is_newcomer(task) and not joins_alone(state, task)
    ]


def _is_newcomer(task: Task) -> bool:
    return task.is_spare and task.grows and task.connected and task.phase == NEW and task.warned is None


def _elastic_tasks(state: State, group: Group) -> Iterator[Task]:
    """Yield the tasks of the group's elastic roles, members and spares."""
    for name in group.elastic:
        yield from state.tasks_of(name)


def _planned(state: State, group: Group, at: float) -> list[Fact]:
    if at == math.inf or state.deadlines.get(("change", str(group.number))) == at:
        return []
    return [("change-planned", {"group": group.number, "due": at})]


def _resized(
    state: State, group: Group, *, joined: Iterable[Task] = (), left: Iterable[Task] = (), restarts: bool = False
) -> list[Fact]:
    """Return the change, or nothing where nobody comes or goes. `restarts`: the other members are stopped, and begin anew with it."""
    assert group.sizes is not None
    sizes = dict(group.sizes)
    fact: dict[str, Any] = {
        "group": group.number, "sizes": sizes, "joined": [task.key for task in joined], "left": [task.key for task in left],
        "restarts": restarts,
    }  # fmt: skip
    for key in fact["joined"]:
        sizes[state.tasks[key].role] += 1
    for key in fact["left"]:
        sizes[state.tasks[key].role] -= 1
    return [("resized", fact)] if fact["joined"] or fact["left"] else []
