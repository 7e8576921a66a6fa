"""What a failure costs and leads to: restart at once, settle the cause afterwards.

When an attempt ends badly its unit restarts at once, charged by the reason told first. What else is told within `SETTLE` seconds (the
engine's word, the death of a peer that explains an error) may show another root cause; `settle` then corrects the budget. Where no
restart is left, the unit is stopped and settled first, and what was charged wrongly brings a restart after all.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from trainmaster.core.events import Fact
from trainmaster.core.incidents import UNTIMED
from trainmaster.core.reasons import REASONS, is_reason
from trainmaster.core.state import COMMITTING, GRANTED, LIVE, NEW, Budget, Incident, State, Task, budget_of, unit_of

FREE_LIMIT = 20  # free restarts in a row without any progress
FREE_RUN = 300.0  # s of running that break such a row, for programs that report no progress
FREE_LONGEST = 300.0  # s of the longest back-off

Figures = Mapping[str, Any]


def attempt_over(state: State, task: Task, data: Mapping[str, Any], now: float) -> list[Fact]:
    """The facts of an agent's word that the current attempt ended, and not well."""
    reason, figures = _told(data)
    if task.phase == COMMITTING and not task.doomed:
        return commit_failed(
            task,
            data.get("figures") or {"detail": reason},
            "commit-refused" if reason == "commit-refused" else "commit-failed",
        )
    fact = {"reason": reason, "figures": figures, "elapsed": data.get("elapsed", 0.0), "stopped": bool(data.get("stopped")),
            "tail": list(data.get("tail") or ())}  # fmt: skip
    if task.doomed and fact["stopped"]:
        fact["reason"] = {"end": "not-needed", "restart": "peer-failed", "fail": "peer-failed"}[task.doomed]
        fact["figures"] = {**figures, "by": state.kill["by"]} if state.kill else figures
        if task.doomed == "end" and state.ending is not None:
            fact["reason"] = _end_reason(state)
    facts: list[Fact] = [("attempt-ended", fact)]
    return facts if task.doomed or task.final else facts + failure(state, task, reason, figures, fact["elapsed"], now)


def program_died(state: State, task: Task, data: Mapping[str, Any], now: float) -> list[Fact]:
    """The facts of an agent's word that the program failed, told before its attempt ends: the last set of its checkpoint is still stored,
    and a restart begins from that. Peers are stopped at once, and what it failed by is there in time to be found the root cause.
    """
    reason, figures = _told(data)
    facts: list[Fact] = [("died", {"reason": reason, "figures": figures, "elapsed": data.get("elapsed", 0.0)})]
    return (
        facts
        if task.doomed or task.final
        else facts + failure(state, task, reason, figures, facts[0][1]["elapsed"], now)
    )


def _told(data: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Reason and figures of an end as an agent tells it."""
    reason = data.get("reason")
    figures = {**(data.get("figures") or {})}
    if data.get("status") is not None:
        figures.setdefault("status", data["status"])
    return str(reason) if is_reason(reason) and reason != "succeeded" else "container-exited", figures


def _end_reason(state: State) -> str:
    """Why the end stops a task: the kill itself, or that the job is over."""
    assert state.ending is not None
    if state.ending["state"] == "killed":
        return "killed-by-user"
    return "not-needed" if state.ending["state"] == "succeeded" else "peer-failed"


def commit_failed(task: Task, figures: Figures, reason: str = "commit-failed") -> list[Fact]:
    """A named committer could not commit; its peers may have, so nothing restarts."""
    facts = {"task": task.key, "attempt": task.attempt, "reason": reason, "figures": dict(figures)}
    return [
        ("attempt-ended", facts),
        ("task-failed", {"task": task.key, "reason": reason, "figures": dict(figures)}),
    ]


def container_gone(
    state: State, task: Task, reason: str, figures: Figures, now: float, *, told: bool = False, gone: bool = True
) -> list[Fact]:
    """The facts of a container that ended or was given up.

    `told`: the engine itself named the reason. `gone`: the engine holds it no more; else it is to be released.
    """
    if task.phase not in LIVE or (task.phase == COMMITTING and not task.doomed):
        word = {"reason": reason, "figures": dict(figures), "attempt": task.attempt} if told else {}
        ended: Fact = ("container-ended", {"task": task.key, "serial": task.serial, "gone": gone, **word})
        return [ended, *(_lost_early(state, task, reason, figures, now) if _expected(state, task) else [])]
    fact = {
        "task": task.key,
        "attempt": task.attempt,
        "serial": task.serial,
        "reason": reason,
        "figures": dict(figures),
        "gone": gone,
    }
    if task.doomed and not told:
        fact["stopped"] = True
    facts: list[Fact] = [("attempt-written-off", fact)]
    return (
        facts
        if task.doomed or task.final
        else facts + failure(state, task, reason, figures, 0.0 if told else UNTIMED, now)
    )


def _expected(state: State, task: Task) -> bool:
    """Whether the first attempt was still to begin in the task's container; what ends one that was used belongs to the failure before."""
    idle = task.used or task.blocked or task.resized or task.left or task.out or task.final
    return task.phase == NEW and task.hold == GRANTED and not idle and state.ending is None


def _lost_early(state: State, task: Task, reason: str, figures: Figures, now: float) -> list[Fact]:
    """A container was lost before an attempt began in it. Nothing restarts, so no scope forbids another one, and no peer is stopped; but it
    backs off, and has an end, as free restarts do.
    """
    facts: list[Fact] = []
    if (before := state.incidents.get(task.key)) is not None:
        facts = _settlement(state, before)
    told = facts[0][1] if facts else {"spent": _spent(state, task), "free": state.budgets.get(task.key, Budget()).free}
    cause = {"task": task.key, "attempt": task.attempt, "reason": reason, "figures": dict(figures), "elapsed": UNTIMED}
    counted = {"spent": told["spent"], "free": told["free"] + 1}
    if counted["free"] > FREE_LIMIT:
        cause = {**cause, "reason": "no-progress", "figures": {"restarts": FREE_LIMIT, "job": state.id}}
    return [*facts, _restart_after(state, task, task.key, cause, counted, now)]


def failure(state: State, task: Task, reason: str, figures: Figures, elapsed: float, now: float) -> list[Fact]:
    """What follows when an attempt of `task` failed by itself."""
    if state.ending is not None:
        return []
    cause = {"task": task.key, "attempt": task.attempt, "reason": reason, "figures": dict(figures), "elapsed": elapsed}
    unit = unit_of(task)
    spent, free = _spent(state, task), _free(state, task, now)
    facts: list[Fact] = []
    before = state.incidents.get(unit)
    if before is not None:  # of an earlier generation: the new failure ends the time for settling it
        facts = _settlement(state, before)
        spent, free = facts[0][1]["spent"], min(free, facts[0][1]["free"])
    return [*facts, _restart(state, task, unit, cause, spent, free, now)]


def _restart(state: State, task: Task, unit: str, cause: dict[str, Any], spent: int, free: int, now: float) -> Fact:
    restart = state.role(task).restart
    costs = REASONS[cause["reason"]].restart_costs
    if costs:
        spent += 1
        again = spent <= restart.limit
    else:
        free += 1
        again = free <= FREE_LIMIT
        if not again:
            cause = {**cause, "reason": "no-progress", "figures": {"restarts": FREE_LIMIT, "job": state.id}}
    again = again and restart.scope != "never"
    until = now if costs or not again else now + backoff(free, f"{state.id}/{unit}/{task.attempt}")
    fact: dict[str, Any] = {
        "unit": unit, "budget": budget_of(task), "cause": cause, "costs": costs, "spent": spent, "limit": restart.limit, "free": free,
        "again": again, "until": until, "generation": state.groups[task.group].generation,
    }  # fmt: skip
    more = state.role(task).retry_memory
    if again and cause["reason"] == "out-of-memory" and more:
        fact["memory_factor"] = round(task.memory_factor * more, 4)
    return "incident", fact


def _spent(state: State, task: Task) -> int:
    return state.budgets.get(budget_of(task), Budget()).spent


def _free(state: State, task: Task, now: float) -> int:
    if task.started is not None and now - task.started >= FREE_RUN:
        return 0
    return state.budgets.get(unit_of(task), Budget()).free


def backoff(free: int, seed: str) -> float:
    """Seconds before the `free`-th free restart in a row: 0, then 1 s doubling up to 5 min, each within 25 % by the seed."""
    if free <= 1:
        return 0.0
    spread = int.from_bytes(blake2b(f"{seed}/{free}".encode(), digest_size=4).digest(), "big") / 2**32
    return float(min(FREE_LONGEST, 2.0 ** (free - 2)) * (0.75 + 0.5 * spread))


def settle(state: State, incident: Incident, now: float) -> list[Fact]:
    """The facts that close an incident: its root cause, and what follows where no restart had been left."""
    facts = _settlement(state, incident)
    if incident.again:
        return facts
    cause = facts[0][1]["cause"]
    task = state.tasks[cause["task"]]
    if not REASONS[cause["reason"]].restart_costs and incident.costs and state.role(task).restart.scope != "never":
        # The charge was wrong: the restart that it had used up is there again.
        return [*facts, _restart_after(state, task, incident.unit, cause, facts[0][1], now)]
    failed = {"task": task.key, "attempt": cause["attempt"], "reason": cause["reason"], "figures": cause["figures"]}
    return [*facts, ("task-failed", failed)]


def _restart_after(
    state: State, task: Task, unit: str, cause: dict[str, Any], settled: Mapping[str, Any], now: float
) -> Fact:
    free = settled["free"]
    again = free <= FREE_LIMIT
    return "incident", {
        "unit": unit, "budget": budget_of(task), "cause": cause, "costs": False, "spent": settled["spent"],
        "limit": state.role(task).restart.limit, "free": free, "again": again, "generation": state.groups[task.group].generation,
        "until": now + backoff(free, f"{state.id}/{unit}/{task.attempt}"),
    }  # fmt: skip


def _settlement(state: State, incident: Incident) -> list[Fact]:
    root = min(incident.evidence, key=_nearness)
    task = state.tasks[root["task"]]
    costs = REASONS[root["reason"]].restart_costs
    spent, free = _spent(state, task), state.budgets.get(incident.unit, Budget()).free
    if incident.costs and not costs:
        spent, free = max(0, spent - 1), free + 1
    elif costs and not incident.costs and root["reason"] != "no-progress":
        spent, free = spent + 1, max(0, free - 1)
    return [
        (
            "settled",
            {
                "unit": incident.unit,
                "budget": budget_of(task),
                "cause": root,
                "costs": costs,
                "spent": spent,
                "free": free,
            },
        )
    ]


def _nearness(evidence: Mapping[str, Any]) -> tuple[int, float]:
    """How near to the root cause: the engine's word, then deaths, then errors, then consequences; the earlier the nearer."""
    return REASONS[evidence["reason"]].rank, evidence["elapsed"]
