"""Apply events of failures: an attempt that ends, the incident that it belongs to, and how that is settled.

Part of `fold`; `failures` decides, this only takes in what was decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.core.fold.moves import (
    doom,
    drop,
    finalize,
    move,
    renew,
    undoom,
)
from trainmaster.core.input.shards import trusted_words
from trainmaster.core.machine.phases import COMMITTING, ENDED, LIVE, NEW
from trainmaster.core.machine.reasons import final_state, is_from_outside
from trainmaster.core.machine.state import (
    GRANTED,
    Budget,
    Incident,
    Past,
    Reached,
    State,
    Task,
    own_ending,
    unit_of,
    units_of,
)
from trainmaster.core.machine.units import GROUP, ROLE, TASK, Unit, unit_from
from trainmaster.core.states import KILLED

Data = Mapping[str, Any]


def died(state: State, task: Task, data: Data, at: float) -> None:
    """Note why the program failed; the attempt lasts until its agent reports its end."""
    note_reached(state, task, data.get("reached") or {})
    _evidence(state, task, data)


def attempt_ended(state: State, task: Task, data: Data, at: float) -> None:
    """End the current attempt, which failed; the event that doomed it decided what comes next, or a later event will."""
    reason = data["reason"]
    figures = dict(data.get("figures") or {})
    note_reached(state, task, data.get("reached") or {})
    task.past.append(Past(task.attempt, reason, figures, at))
    task.reason, task.figures, task.tail = reason, figures, list(data.get("tail") or ())
    _evidence(state, task, data)
    doomed = task.doomed
    _lose_work(state, task, at)
    move(state, task, ENDED, at)
    state.arm("start", task.key, None)
    if doomed in ("restart", "change", "leave"):
        renew(state, task, at)
    elif doomed == "end":
        finalize(state, task, KILLED if own_ending(state, task) is None else final_state(reason))
    elif doomed == "fail":
        undoom(state, task)
    _hasten(state, unit_of(task), at)


def _lose_work(state: State, task: Task, at: float) -> None:
    """Note that what the attempt made of its shards is not committed."""
    for name, table in state.shards.items():
        if (count := table.lose(task.key, task.attempt)) and state.ending is None:
            state.losses[f"{task.key} work {name} {task.attempt}"] = {
                "what": f"work {name}", "shards": count, "task": task.key, "attempt": task.attempt, "at": at,
                "detail": trusted_words(task.key, task.attempt, count),
            }  # fmt: skip


def note_reached(state: State, task: Task, progress: Data) -> None:
    """Remember the reported progress, where it is the unit's best."""
    for name in ("value", "step"):
        number = progress.get(name)
        best = state.reached.setdefault(unit_of(task), Reached()) if number is not None else Reached()
        if number is not None and (getattr(best, name) is None or number > getattr(best, name)):
            setattr(best, name, number)


def written_off(state: State, data: Data, at: float) -> None:
    task = state.tasks[data["task"]]
    drop(state, task, gone=data.get("gone", True))
    if data["reason"] == "straggling":
        state.groups[task.group].replaced = at
    attempt_ended(state, task, data, at)


def container_ended(state: State, data: Data, at: float) -> None:
    task = state.tasks[data["task"]]
    if data["serial"] == task.serial:
        if data.get("reason"):
            _evidence(state, task, data)
        drop(state, task, gone=data.get("gone", True))
    if data.get("again") is not None:
        task.blocked = True
        state.arm("backoff", Unit(TASK, task.key).text, data["again"])


def incident(state: State, data: Data, at: float) -> None:
    unit, again = unit_from(data["unit"]), data["again"]
    cause = data["cause"]
    _charge(state, unit, data)
    state.incidents[unit] = Incident(unit, at, again, data["costs"], [dict(cause)], data["soon"])
    state.arm("settle", unit.text, at + data["settle"])
    if unit.kind == GROUP:
        group = state.groups[int(unit.name)]
        group.forming, group.finishing = True, False
        group.restarts += again
        group.rewinding = again and state.known_job.checkpoint is not None
    if again:
        state.restarts += 1
    culprit = state.tasks[cause["task"]]
    if data.get("memory_factor"):
        culprit.memory_factor = data["memory_factor"]
        culprit.resized = culprit.hold == GRANTED  # a container that is gone need not be given back for a larger one
    for task in _unit_tasks(state, unit):
        if task.phase in LIVE and task.phase != COMMITTING:
            doom(state, task, "restart" if again else "fail")
        elif task.phase == ENDED and again:
            renew(state, task, at)
        if data["until"] > at:
            task.blocked = True
        state.touch(task)
    if data["until"] > at:
        state.arm("backoff", unit.text, data["until"])
    _hasten(state, unit, at)


def settled(state: State, data: Data, at: float) -> None:
    unit = unit_from(data["unit"])
    state.incidents.pop(unit, None)
    state.arm("settle", unit.text, None)
    _charge(state, unit, data)


def _charge(state: State, unit: Unit, data: Data) -> None:
    """Take over the counts of an incident. Logs written before `quick` and `total` were counted have neither."""
    own = state.budgets.setdefault(unit, Budget())
    budget = state.budgets.setdefault(unit_from(data["budget"]), Budget())  # the same one, where a group restarts
    own.spent += data["spent"] - budget.spent
    budget.spent = data["spent"]
    own.free, own.quick, own.total = data["free"], data.get("quick", own.quick), data.get("total", own.total)


def give_back(state: State, task: Task, keep_total: bool = False) -> None:
    """Give back what the task's unit has spent, and no more: a task that progresses gives back nothing of a peer that always fails."""
    for unit in units_of(task) & state.budgets.keys():
        own, role = state.budgets.pop(unit), Unit(ROLE, task.role)
        if own.spent and role in state.budgets:  # the role's budget has the charges of its other tasks too
            state.budgets[role].spent -= own.spent
            if not state.budgets[role].spent:
                del state.budgets[role]
        if keep_total and own.total:
            state.budgets[unit] = Budget(total=own.total)


def backoff_over(state: State, data: Data, at: float) -> None:
    unit = unit_from(data["unit"])
    state.arm("backoff", unit.text, None)
    tasks = state.members(state.groups[int(unit.name)]) if unit.kind == GROUP else [state.tasks[unit.name]]
    for task in tasks:
        task.blocked = False
        state.touch(task)


def task_failed(state: State, data: Data, at: float) -> None:
    """Fail the unit of a task for good: the task by its reason, its peers because of it."""
    culprit = state.tasks[data["task"]]
    for task in [culprit, *(_unit_tasks(state, unit_of(culprit)) if culprit.whole else ())]:
        if task.final or task.phase == COMMITTING:
            continue
        if task is culprit:
            task.reason, task.figures = data["reason"], dict(data.get("figures") or {})
            finalize(state, task, data["final"])
        else:
            task.reason = task.reason or "peer-failed"
            finalize(state, task, KILLED)
        if task.phase in LIVE:  # prepared, or slower to stop than the cause was to settle
            doom(state, task, "fail")
        elif task.phase == NEW:  # no attempt of it will begin
            move(state, task, ENDED, at)


def _evidence(state: State, task: Task, data: Data) -> None:
    """Keep the evidence of a failure while its incident is open; ends that the master ordered prove nothing."""
    incident = state.incidents.get(unit_of(task))
    if incident is not None and data.get("reason") and not data.get("stopped"):
        figures = data.get("figures") or {}
        incident.evidence.append(
            {"task": task.key, "attempt": data.get("attempt", task.attempt), "reason": data["reason"], "figures": figures,
             "elapsed": data.get("elapsed")}
        )  # fmt: skip


def _hasten(state: State, unit: Unit, at: float) -> None:
    """Settle an incident that ends its unit once all members are over; a death by a signal from outside waits `soon` seconds more."""
    incident = state.incidents.get(unit)
    if incident is None or incident.again:
        return
    if state.groups[int(unit.name)].doomed if unit.kind == GROUP else state.tasks[unit.name].doomed:
        return
    outside = any(is_from_outside(evidence["reason"], evidence["figures"]) for evidence in incident.evidence)
    state.arm("settle", unit.text, max(at, incident.opened + incident.soon) if outside else at)


def _unit_tasks(state: State, unit: Unit) -> list[Task]:
    """Return the members of a unit that are not over."""
    if unit.kind != GROUP:
        return [state.tasks[unit.name]]
    return [task for task in state.members(state.groups[int(unit.name)]) if task.whole and not task.final]
