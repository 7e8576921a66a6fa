"""Charge a failure and decide what it leads to: restart at once, settle the cause afterwards.

Restarts in a row back off where they follow quick failures, or are free. A program that somebody killed after it had run for a moment is
not such a failure. One that a user asked us to end is not one either. Both begin again at once, however often.

When an attempt ends badly its unit restarts at once, charged by the first reported reason. Later reports within `SETTLE` seconds (the
engine's word, the death of a peer that explains an error) may show another root cause; `settle` then corrects the budget. Where no
restart is left, the unit is stopped and settled first, and what was charged wrongly brings a restart after all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from trainmaster.core.decide.limits import GROWTH_BACKOFF, SETTLE, SOON, UNTIMED
from trainmaster.core.decide.poison import shard_failure
from trainmaster.core.machine.events import Fact
from trainmaster.core.machine.phases import COMMITTING, LIVE, NEW
from trainmaster.core.machine.reasons import REASONS, final_state, is_from_outside, is_lasting, is_reason, words
from trainmaster.core.machine.state import GRANTED, Budget, Incident, State, Task, budget_of, own_ending, unit_of
from trainmaster.core.machine.units import TASK, Unit

FREE_LIMIT = 20  # free restarts in a row without any progress
FREE_RUN = 300.0  # s of running that break such a row, for programs that report no progress
SAME_MEMORY = 1  # restarts after out-of-memory, without progress and with no more memory than before
LONGEST_WAIT = 300.0  # s of the longest back-off
QUICK_RUN = 30.0  # s; a program that fails sooner after its start fails quickly
QUICK_KILL = (
    0.5  # s; the same of a program that somebody killed: it has not failed, but may come to nothing time after time
)
QUICK_FIRST = 0.25  # s of back-off after the second quick failure in a row; each later one doubles it

Figures = Mapping[str, Any]


def attempt_over(state: State, task: Task, data: Mapping[str, Any], now: float) -> list[Fact]:
    """Return the facts of an agent's report that the current attempt ended, and not well."""
    reason, figures = _reason_and_figures(data)
    if task.phase == COMMITTING and not task.doomed:
        return commit_failed(
            task,
            data.get("figures") or {"detail": reason},
            "commit-refused" if reason == "commit-refused" else "commit-failed",
        )
    fact = {"reason": reason, "figures": figures, "elapsed": data.get("elapsed", 0.0), "stopped": bool(data.get("stopped")),
            "tail": list(data.get("tail") or ()), **_reached(data)}  # fmt: skip
    if task.doomed and fact["stopped"]:
        fact["reason"] = _STOPPED[task.doomed]
        fact["figures"] = {**figures, "by": state.kill["by"]} if state.kill else figures
        if task.doomed == "end" and state.ending is not None:
            fact |= _end_of_stopped(state.ending)
    if (end := own_ending(state, task)) is not None:
        fact |= {name: end[name] for name in ("reason", "figures")}
    facts: list[Fact] = [("attempt-ended", fact)]
    return facts if task.doomed or task.final else facts + failure(state, task, reason, figures, fact["elapsed"], now)


# Why an attempt must stop -> the reason of its end.
_STOPPED = {
    "end": "not-needed",
    "restart": "peer-failed",
    "fail": "peer-failed",
    "change": "members-changed",
    "leave": "members-changed",
}


def program_died(state: State, task: Task, data: Mapping[str, Any], now: float) -> list[Fact]:
    """Return the facts of an agent's report that the program failed, sent before its attempt ends: the last set of its checkpoint is still
    stored, and a restart begins from that. Peers are stopped at once, and the reason is known in time to be found the root cause.
    """
    reason, figures = _reason_and_figures(data)
    facts: list[Fact] = [
        ("died", {"reason": reason, "figures": figures, "elapsed": data.get("elapsed", 0.0), **_reached(data)})
    ]
    return (
        facts
        if task.doomed or task.final
        else facts + failure(state, task, reason, figures, facts[0][1]["elapsed"], now)
    )


def _reason_and_figures(data: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the reason and the figures of an end as an agent reports it."""
    reason = data.get("reason")
    figures = {**(data.get("figures") or {})}
    if data.get("status") is not None:
        figures.setdefault("status", data["status"])
    return str(reason) if is_reason(reason) and reason != "succeeded" else "container-exited", figures


def _reached(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the best progress of an attempt that ended, as its agent reports it; later attempts are compared with it."""
    return {"reached": dict(data["reached"])} if data.get("reached") else {}


def _end_of_stopped(ending: Mapping[str, Any]) -> dict[str, Any]:
    """Return why a task is stopped as its job ends: that the job is complete, that another task failed, else the job's own reason."""
    if ending["state"] == "succeeded":
        return {"reason": "not-needed"}
    if "task" in ending or ending["reason"] == "dependency-failed":
        return {"reason": "peer-failed"}
    return {name: ending[name] for name in ("reason", "figures")}


def commit_failed(task: Task, figures: Figures, reason: str = "commit-failed") -> list[Fact]:
    """Fail a named committer that could not commit; its peers may have committed, so nothing restarts."""
    facts = {"task": task.key, "attempt": task.attempt, "reason": reason, "figures": dict(figures)}
    return [
        ("attempt-ended", facts),
        ("task-failed", {"task": task.key, "reason": reason, "figures": dict(figures), "final": final_state(reason)}),
    ]


def container_gone(
    state: State, task: Task, reason: str, figures: Figures, now: float, *, by_engine: bool = False, gone: bool = True
) -> list[Fact]:
    """Return the facts of a container that ended or was given up.

    `by_engine`: the engine itself named the reason. `gone`: the engine holds it no more; else it is to be released.
    """
    overhead = state.role(task).resources.overhead
    if reason == "out-of-memory" and by_engine and overhead < figures.get("limit", 0):
        figures = {**figures, "overhead": overhead}  # the engine's limit is of the whole container
    if task.phase not in LIVE or (task.phase == COMMITTING and not task.doomed):
        word = {"reason": reason, "figures": dict(figures), "attempt": task.attempt} if by_engine else {}
        later = {"again": now + GROWTH_BACKOFF} if task.is_spare and task.grows and state.ending is None else {}
        ended: Fact = ("container-ended", {"task": task.key, "serial": task.serial, "gone": gone, **word, **later})
        return [ended, *(_lost_early(state, task, reason, figures, now) if _expected(state, task) else [])]
    fact = {
        "task": task.key,
        "attempt": task.attempt,
        "serial": task.serial,
        "reason": reason,
        "figures": dict(figures),
        "gone": gone,
    }
    if task.doomed and not by_engine:
        fact["stopped"] = True
    facts: list[Fact] = [("attempt-written-off", fact)]
    return (
        facts
        if task.doomed or task.final
        else facts + failure(state, task, reason, figures, 0.0 if by_engine else UNTIMED, now)
    )


def _expected(state: State, task: Task) -> bool:
    """Tell whether the first attempt was still to begin in the task's container; the end of a used one belongs to the failure before."""
    idle = task.used or task.blocked or task.resized or task.left or task.is_spare or task.final
    return task.phase == NEW and task.hold == GRANTED and not idle and state.ending is None


def _lost_early(state: State, task: Task, reason: str, figures: Figures, now: float) -> list[Fact]:
    """Ask for another container where one was lost before an attempt began in it, and stop no peer. Where the reason costs no restart, no
    scope forbids that; but the asks back off, and have an end, as free restarts do.
    """
    facts: list[Fact] = []
    unit = Unit(TASK, task.key)
    if (before := state.incidents.get(unit)) is not None:
        facts = _settlement(state, before)
    counts = _counts(facts[0][1]) if facts else _counted(state, task, unit)
    cause = {"task": task.key, "attempt": task.attempt, "reason": reason, "figures": dict(figures), "elapsed": UNTIMED}
    if REASONS[reason].restart_costs:
        return [*facts, _restart(state, task, unit, cause, counts, now)]
    counts["free"] += 1
    if counts["free"] > FREE_LIMIT:
        cause = {**cause, "reason": "no-progress", "figures": {"restarts": FREE_LIMIT, "job": state.id}}
    return [*facts, _restart_after(state, task, unit, cause, counts, now)]


def failure(state: State, task: Task, reason: str, figures: Figures, elapsed: float, now: float) -> list[Fact]:
    """Return the facts that follow when an attempt of `task` failed by itself."""
    if state.ending is not None:
        return []
    cause = {"task": task.key, "attempt": task.attempt, "reason": reason, "figures": dict(figures), "elapsed": elapsed}
    unit = unit_of(task)
    counts = _counted(state, task, unit)
    facts: list[Fact] = []
    before = state.incidents.get(unit)
    if before is not None:  # of an earlier generation: the new failure ends the time for settling it
        facts = _settlement(state, before)
        counts = _counts(facts[0][1])
    ran = 0.0 if task.started is None else now - task.started
    if ran >= FREE_RUN:
        counts["free"] = 0
    if ran >= _quick_within(cause):
        counts["quick"] = 0
    return [*facts, _restart(state, task, unit, cause, counts, now)]


def _quick_within(cause: Mapping[str, Any]) -> float:
    """Return the seconds of running within which an end by `cause` is a quick failure."""
    return QUICK_KILL if is_from_outside(cause["reason"], cause["figures"]) else QUICK_RUN


def _restart(state: State, task: Task, unit: Unit, cause: dict[str, Any], counts: dict[str, int], now: float) -> Fact:
    restart, growth = state.role(task).restart, state.role(task).retry_memory
    costs = REASONS[cause["reason"]].restart_costs
    needs_memory = cause["reason"] == "out-of-memory"
    limit = min(restart.limit, SAME_MEMORY) if needs_memory and not growth else restart.limit
    counted = _counted_by(cause["reason"])
    for name in counted:
        counts[name] += 1
    within = counts["free"] <= FREE_LIMIT if not costs else counts["spent"] <= limit
    if not costs and not within:
        cause = {**cause, "reason": "no-progress", "figures": {"restarts": FREE_LIMIT, "job": state.id}}
    if costs and within and counts["total"] > restart.total:
        within = False
        last = words(cause["reason"], {**cause["figures"], "task": task.key, "role": task.role})
        figures = {"restarts": restart.total, "last": last, "job": state.id}
        cause = {**cause, "reason": "restarts-exhausted", "figures": figures}
    again = within and restart.scope != "never" and not is_lasting(cause["reason"], cause["figures"])
    seed = f"{state.id}/{unit.text}/{task.attempt}"
    wait = backoff(counts["quick"], seed, QUICK_FIRST) if costs else backoff(counts["free"] if counted else 0, seed)
    fact: dict[str, Any] = {
        "unit": unit.text, "budget": budget_of(task).text, "cause": cause, "costs": costs, **counts, "limit": limit,
        "again": again, "until": now + wait if again else now, "generation": state.groups[task.group].generation,
        "settle": SETTLE, "soon": SOON,
    }  # fmt: skip
    if again and needs_memory and growth:
        fact["memory_factor"] = round(task.memory_factor * growth, 4)
    return "incident", fact


def _counted_by(reason: str) -> Sequence[str]:
    """Return the counts that a restart for this reason adds to; none where a user ended the attempt, which is not a failure."""
    if REASONS[reason].restart_costs:
        return ("spent", "quick", "total")
    return () if reason == "killed-by-user" else ("free",)


def _counted(state: State, task: Task, unit: Unit) -> dict[str, int]:
    """Return the counts of the restarts that `unit` has had, and those that are charged to its budget."""
    budget, own = state.budgets.get(budget_of(task), Budget()), state.budgets.get(unit, Budget())
    return {"spent": budget.spent, "free": own.free, "quick": own.quick, "total": own.total}


def _counts(fact: Mapping[str, Any]) -> dict[str, int]:
    return {name: fact[name] for name in ("spent", "free", "quick", "total")}


def backoff(count: int, seed: str, first: float = 1.0) -> float:
    """Return the seconds before the `count`-th restart in a row: 0, then `first` doubling up to 5 min, each within 25 % by the seed."""
    if count <= 1:
        return 0.0
    spread = int.from_bytes(blake2b(f"{seed}/{count}".encode(), digest_size=4).digest(), "big") / 2**32
    doubled = first * 2.0 ** min(count - 2, 60)
    return float(min(LONGEST_WAIT, doubled) * (0.75 + 0.5 * spread))


def settle(state: State, incident: Incident, now: float) -> list[Fact]:
    """Return the facts that close an incident: its root cause, and what follows where no restart had been left."""
    facts = _settlement(state, incident)
    if incident.again:
        return facts
    cause = facts[0][1]["cause"]
    task = state.tasks[cause["task"]]
    if not REASONS[cause["reason"]].restart_costs and incident.costs and state.role(task).restart.scope != "never":
        # The charge was wrong: the restart that it had used up is there again.
        return [*facts, _restart_after(state, task, incident.unit, cause, _counts(facts[0][1]), now)]
    failed = {"task": task.key, "attempt": cause["attempt"], "reason": cause["reason"], "figures": cause["figures"],
              "final": final_state(cause["reason"])}  # fmt: skip
    return [*facts, ("task-failed", failed)]


def _restart_after(
    state: State, task: Task, unit: Unit, cause: dict[str, Any], counts: Mapping[str, int], now: float
) -> Fact:
    wait = backoff(counts["free"], f"{state.id}/{unit.text}/{task.attempt}")
    return "incident", {
        "unit": unit.text, "budget": budget_of(task).text, "cause": cause, "costs": False, **counts,
        "limit": state.role(task).restart.limit, "again": counts["free"] <= FREE_LIMIT, "until": now + wait,
        "generation": state.groups[task.group].generation, "settle": SETTLE, "soon": SOON,
    }  # fmt: skip


def _settlement(state: State, incident: Incident) -> list[Fact]:
    root = min(incident.evidence, key=_nearness)
    task = state.tasks[root["task"]]
    costs = REASONS[root["reason"]].restart_costs
    counts = _counted(state, task, incident.unit)
    if incident.costs and not costs:
        charged = min(1, state.budgets.get(incident.unit, Budget()).spent)  # 0 where progress gave it back meanwhile
        corrected = {"spent": counts["spent"] - charged, "free": counts["free"] + len(_counted_by(root["reason"]))}
        counts = {name: max(0, count - 1) for name, count in counts.items()} | corrected
    elif costs and not incident.costs and root["reason"] != "no-progress":
        counts = {name: count + 1 for name, count in counts.items()} | {"free": max(0, counts["free"] - 1)}
    if costs and is_from_outside(root["reason"], root["figures"]) and (root["elapsed"] or 0.0) >= QUICK_KILL:
        counts["quick"] = min(1, counts["quick"])  # as if it had been reported before the errors of its peers
    fact = {"unit": incident.unit.text, "budget": budget_of(task).text, "cause": root, "costs": costs, **counts}
    return [("settled", fact), *shard_failure(state, root)]


def _nearness(evidence: Mapping[str, Any]) -> tuple[int, float]:
    """Rank evidence by its nearness to the root cause: the engine's word, deaths, errors, consequences; the earlier the nearer."""
    elapsed = evidence["elapsed"]
    return REASONS[evidence["reason"]].rank, UNTIMED if elapsed is None else elapsed
