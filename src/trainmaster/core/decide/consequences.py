"""Derive the facts that follow from the state alone: no single stimulus states them.

Each rule looks at counters that `fold` keeps, so that a job of ten thousand tasks is not walked for every report.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainmaster.core.decide import failures
from trainmaster.core.decide.elastic import change_members
from trainmaster.core.decide.limits import COMMIT, LEAVE
from trainmaster.core.decide.stragglers import replace_straggler
from trainmaster.core.fold.saving import has_time_to_save, save_name
from trainmaster.core.machine.events import Fact
from trainmaster.core.machine.phases import COMMITTING, DONE, ENDED, NEW, READY, STAGING, STARTING, UPLOADED
from trainmaster.core.machine.ranks import Member, assign
from trainmaster.core.machine.reasons import words
from trainmaster.core.machine.state import (
    GRANTED,
    Group,
    State,
    Task,
    elastic_roles,
    group_unit,
    role_size,
    size_of,
    unfinished,
)
from trainmaster.core.machine.units import unit_from
from trainmaster.core.spec.job import reads
from trainmaster.core.spec.quantities import format_seconds
from trainmaster.core.states import SUCCEEDED

PARTIAL_BACKOFF = 30.0  # s before a gang that was granted in part asks again


def advance(state: State, now: float) -> list[Fact]:
    """Return the next facts that follow from the state at `now`; none when nothing more does."""
    if not state.id or state.ended is not None:
        return []
    facts = _deadlines(state, now)
    if state.ending is not None:
        return facts or _towards_end(state)
    facts = facts or _give_back(state)
    for group in state.groups:
        facts = facts or _group(state, group, now)
    return facts or _end(state)


def _give_back(state: State) -> list[Fact]:
    """Return the shards whose work was lost with an attempt that ended before it had committed its outputs: one attempt's of one input, for
    each such fact has the mark after the one before.
    """
    for table in state.shards.values():
        for task in table.lost:
            return [("shards-returned", table.give_back(task))]
    return []


# -- time --


def _deadlines(state: State, now: float) -> list[Fact]:
    for kind, key in state.due(now):
        if facts := _PASSED[kind](state, key, now):
            return facts
    return []


def _job_passed(state: State, key: str, now: float) -> list[Fact]:
    return [("job-timed-out", {"seconds": state.known_job.timeouts.job})]


def _gone_passed(state: State, key: str, now: float) -> list[Fact]:
    """Write off the container of an agent that is out of reach longer than its own grace allows it to run its program."""
    task = state.tasks[key]
    figures = {"seconds": state.known_job.timeouts.grace, "node": task.node}
    return failures.container_gone(state, task, "unreachable", figures, now, gone=False)


def _start_passed(state: State, key: str, now: float) -> list[Fact]:
    task = state.tasks[key]
    limit = state.known_job.timeouts.start
    waits = {NEW: "its agent did not report", STAGING: "it was still staging", STARTING: "its program did not start"}
    figures = {"seconds": limit, "detail": waits.get(task.phase, task.phase)}
    return failures.container_gone(state, task, "start-timeout", figures, now, gone=False)


def _stop_passed(state: State, key: str, now: float) -> list[Fact]:
    """Write off the container of a connected agent that was ordered to stop its program and has not reported its end."""
    task = state.tasks[key]
    figures = {"seconds": state.role(task).stop.grace, "node": task.node}
    return failures.container_gone(state, task, "unreachable", figures, now, gone=False)


def _commit_passed(state: State, key: str, now: float) -> list[Fact]:
    return failures.commit_failed(
        state.tasks[key], {"detail": f"its agent did not answer within {format_seconds(COMMIT)}"}
    )


def _gang_passed(state: State, key: str, now: float) -> list[Fact]:
    group = state.groups[int(key)]
    return [
        (
            "grants-returned",
            {"group": group.number, "seconds": state.known_job.timeouts.start, "until": now + PARTIAL_BACKOFF},
        )
    ]


def _backoff_passed(state: State, key: str, now: float) -> list[Fact]:
    return [("backoff-over", {"unit": key})]


def _settle_passed(state: State, key: str, now: float) -> list[Fact]:
    incident = state.incidents.get(unit_from(key))
    return [] if incident is None else failures.settle(state, incident, now)


def _leave_passed(state: State, key: str, now: float) -> list[Fact]:
    late = [task.key for task in state.tasks.values() if task.hold == GRANTED and task.connected and not task.left]
    return [*_end_of(state, f"logs of {', '.join(late[:5])}" if late else "")]


def _change_passed(state: State, key: str, now: float) -> list[Fact]:
    return [("change-planned", {"group": int(key), "due": None})]


def _save_passed(state: State, key: str, now: float) -> list[Fact]:
    if not has_time_to_save(state):
        return [("save-put-off", {})]
    return [("save-requested", {"save": save_name(state, now), "by": "schedule"})]


_PASSED = {
    "save": _save_passed,
    "job": _job_passed,
    "gone": _gone_passed,
    "start": _start_passed,
    "stop": _stop_passed,
    "commit": _commit_passed,
    "gang": _gang_passed,
    "backoff": _backoff_passed,
    "settle": _settle_passed,
    "leave": _leave_passed,
    "change": _change_passed,
}


# -- groups --


def _group(state: State, group: Group, now: float) -> list[Fact]:
    if not group.opened:
        return _open(state, group)
    if group.sizes is None:
        return _size_group(state, group)
    if facts := change_members(state, group, now) or replace_straggler(state, group, now):
        return facts
    if group.rewinding and not group.doomed:
        return _rewind(state, group)
    if group.gang:
        return _form(state, group) or _rejoin(state, group) or _commit(state, group)
    return _rejoin(state, group) or _commit(state, group)


def _open(state: State, group: Group) -> list[Fact]:
    """Open a later group once all the roles that its roles wait for have succeeded."""
    jobs = state.known_job.roles
    for name in group.roles:
        for dependency, condition in jobs[name].after.items():
            if condition == "succeeded" and state.done[dependency] < role_size(state, dependency):
                return []
    return [("step-done", {"step": f"open:{group.number}", "gave_up": ""})]


def _size_group(state: State, group: Group) -> list[Fact]:
    """Name the members once every role has its least number of containers: those granted then. Failed tasks are not waited for. Tasks
    that start one by one need no container to be members: of an elastic role the least number are.
    """
    sizes = {}
    elastic = elastic_roles(state.known_job, group)
    for name in group.roles:
        replicas = state.known_job.roles[name].replicas
        if not group.gang:
            sizes[name] = replicas.least if name in elastic else replicas.most
            continue
        available, most = group.granted[name] + state.over[name], size_of(state, group, name)
        if available < replicas.least:
            return []
        sizes[name] = most if available >= most else _prefix(state, name)
        if sizes[name] < replicas.least:
            return []
    return [("sized", {"group": group.number, "sizes": sizes, "elastic": elastic})]


def _prefix(state: State, role: str) -> int:
    """Count the tasks of a role, from index 0 on, that hold a container or are over: indexes have no gaps."""
    size = 0
    while (task := state.tasks.get(f"{role}:{size}")) is not None and (task.hold == GRANTED or task.final):
        size += 1
    return size


def _form(state: State, group: Group) -> list[Fact]:
    """Form the group's next generation once all members are prepared, except those that are over for good."""
    single, whole = group.single, group.whole
    over = 0 if group_unit(group.number) in state.incidents else whole[ENDED] + whole[DONE]
    waiting = single[NEW] + single[STAGING] + sum(whole.values()) - whole[READY] - over
    if not group.forming or group.doomed or waiting or not (single[READY] or whole[READY]):
        return []
    tasks = list(state.members(group))
    fact: dict[str, Any] = {
        "group": group.number,
        "generation": 1 + max(other.generation for other in state.groups),
        "members": [[task.key, task.attempt] for task in tasks if task.phase == READY],
        "ranks": ranks(state, tasks, group.ranks),
    }
    return [("generation-formed", fact)]


def ranks(state: State, tasks: list[Task], previous: dict[str, int]) -> dict[str, int]:
    """Return the rank of the container of each counting task (GROUP_RANK), by task."""
    members = [Member(task.key, task.role, task.index, task.node, 1, task.counts) for task in tasks if task.counts]
    return {rank.task: rank.group_rank for rank in assign(members, previous or None)}


def _rewind(state: State, group: Group) -> list[Fact]:
    """Name the set that is restored, now that all that ran has stopped; return the shards that were done since its first byte changed.

    Where the programs of all that read an input have ended well, nobody would do its shards again, and what was made of them is in their
    outputs. So these stay done, and that the group goes on without them is a loss; servers, which nobody needs now, do not begin anew
    unless a reader does.
    """
    saved = state.checkpoint or {}
    rewound: dict[str, Any] = {"group": group.number, "set": saved.get("set")}
    facts: list[Fact] = [("rewound", rewound)]
    for name, table in state.shards.items():
        payload = table.restore((saved.get("marks") or {}).get(name, []), saved.get("set"))
        if payload["ranges"] and _is_read(state, name):
            facts.append(("shards-returned", payload))
        elif payload["ranges"] and all(state.known_job.roles[role].serves for role in group.roles):
            return []
        elif payload["ranges"]:
            count = sum(end - first for first, end in payload["ranges"])
            rewound["without"] = {**rewound.get("without", {}), name: count}
    return facts


def _is_read(state: State, name: str) -> bool:
    return any(reads(state.known_job, role, name) and unfinished(state, role) for role in state.known_job.roles)


def _rejoin(state: State, group: Group) -> list[Fact]:
    """Give a member that starts or restarts alone its old place in the generation."""
    if group.single[READY] + (0 if group.gang else group.whole[READY]) == 0 or (group.gang and group.forming):
        return []
    facts: list[Fact] = []
    generation = 1 + max(other.generation for other in state.groups) if group.forming else group.generation
    for task in state.members(group):
        is_ready = task.phase == READY and not task.doomed
        if is_ready and not (task.whole and group.gang) and _knows_its_role(state, task):
            rank = group.ranks.get(task.key, task.index)
            fact = {
                "task": task.key,
                "attempt": task.attempt,
                "group": group.number,
                "generation": generation,
                "rank": rank,
            }
            facts.append(("member-joined", fact))
    return facts


def _knows_its_role(state: State, task: Task) -> bool:
    """Tell whether the task may start: those that serve the others must find each other, so all of them are reached first."""
    return not state.role(task).serves or all(peer.address or peer.final for peer in state.members_of(task.role))


def _commit(state: State, group: Group) -> list[Fact]:
    """Name committers: of members that restart alone at once, of the others when all that count have ended well."""
    attempts: list[list[Any]] = []
    if group.single[UPLOADED]:
        for task in state.members(group):
            if not task.whole and task.phase == UPLOADED and not task.doomed and not task.final:
                attempts.append([task.key, task.attempt])
    if group.whole[UPLOADED] and not group.doomed:
        everyone = _have_ended_well(state, group)
        first = state.known_job.completion.first  # its success ends the job, so it waits for no other role
        attempts += [
            [task.key, task.attempt]
            for task in (state.members(group) if everyone or first else ())
            if task.whole and task.phase == UPLOADED and (everyone or task.role == first)
        ]
    return [("committers-named", {"group": group.number, "attempts": attempts})] if attempts else []


def _have_ended_well(state: State, group: Group) -> bool:
    """Tell whether each member that restarts with the group and counts has uploaded, or is done: one that came back for lost shards uploads
    after its peers. Those that serve them may still run.
    """
    running = sum(group.whole.values()) - group.whole[UPLOADED] - group.whole[DONE]
    if running > sum(size_of(state, group, name) for name in group.roles if state.known_job.roles[name].serves):
        return False  # the usual answer, without a look at each
    return all(task.phase in (UPLOADED, DONE) for task in state.members(group) if task.whole and task.counts)


# -- the end --


def _end(state: State) -> list[Fact]:
    """Return the first reason, in this order, why the job ends now."""
    if state.kill is not None:
        why = state.kill.get("why", "")
        if "reason" in state.kill:
            return [_ending("killed", state.kill["reason"], {"detail": why})]
        return [_ending("killed", "killed-by-user", {"by": state.kill["by"], "why": why})]
    if state.timed_out:
        return [_ending("failed", "job-timeout", {"seconds": state.known_job.timeouts.job})]
    if state.refused is not None:
        return [_ending("failed", "refused", state.refused)]
    completion = state.known_job.completion
    if completion.first:
        if state.done[completion.first]:
            return [_success(state, {})]
    elif completion.failures is not None:
        return _independent(state, completion.failures) or _starved(state)
    elif state.over and _all_done(state) and not _leaves_with_work(state):
        return [_success(state, {})]
    if state.first_failed:
        task = state.tasks[state.first_failed]
        return [_ending("failed", task.reason, task.figures, task)]
    return _starved(state)


def _counting(state: State) -> Iterator[tuple[str, int]]:
    for name, role in state.known_job.roles.items():
        if role.counts:
            yield name, role_size(state, name)


def _all_done(state: State) -> bool:
    sizes = list(_counting(state))
    return bool(sizes) and all(state.done[name] >= size for name, size in sizes)


def _leaves_with_work(state: State) -> bool:
    """Tell whether a task that is being left out has done shards whose work it has not committed: they will be returned."""
    return any(state.tasks[key].is_spare for table in state.shards.values() for key in table.pending)


def _independent(state: State, allowed: float) -> list[Fact]:
    """End a job of independent tasks. The fraction `allowed` of them may fail."""
    tasks = sum(size for _, size in _counting(state))
    figures = {"failed": state.failures, "tasks": tasks}
    if state.failures > allowed * tasks:
        return [_ending("failed", "too-many-failures", figures, state.tasks[state.first_failed])]
    over = sum(state.over[name] for name, _ in _counting(state))
    is_over = over >= tasks and not _leaves_with_work(state)
    return [_success(state, figures if state.failures else {})] if is_over else []


def _success(state: State, figures: Any) -> Fact:
    """End the job well, or fail it for an output that one task had to write and none did."""
    for name, output in state.known_job.outputs.items():
        tasks = state.tasks.values()
        committed = [task.outputs for task in tasks if task.final == SUCCEEDED]
        committed += [part["outputs"] for task in tasks for part in task.parts]
        if output.required == "any" and not any((outputs.get(name) or {}).get("files") for outputs in committed):
            return _ending("failed", "nothing-written", {"name": name, "path": output.local or name})
    return _ending("succeeded", "succeeded", figures)


def _starved(state: State) -> list[Fact]:
    """Fail the job where a role can never start: a task of a role that it waits for is over without success."""
    for name, role in state.known_job.roles.items():
        for dependency, condition in role.after.items():
            failed = state.over[dependency] > state.done[dependency]
            if failed and (_to_start(state, name) if condition == "running" else not _group_of(state, name).opened):
                return [_ending("failed", "dependency-failed", {"role": dependency})]
    return []


def _group_of(state: State, role: str) -> Group:
    return state.groups[state.tasks[f"{role}:0"].group]


def _to_start(state: State, role: str) -> bool:
    """Tell whether a task of the role has still to start, for the first time or again."""
    return state.running[role] + state.over[role] - state.done[role] < role_size(state, role)


def _ending(final: str, reason: str, figures: Any, cause: Task | None = None) -> Fact:
    fact: dict[str, Any] = {"state": final, "reason": reason, "figures": dict(figures)}
    if cause is not None:
        fact |= {
            "task": cause.key,
            "attempt": cause.attempt,
            "tail": cause.tail,
            "words": words(reason, {**figures, "task": cause.key}),
        }
    return "ending", fact


def _towards_end(state: State) -> list[Fact]:
    """Return the next fact of the end: programs are over, agents store their logs and leave, then `ended`."""
    if not state.leaving:
        if any(group.doomed or group.whole[COMMITTING] + group.single[COMMITTING] for group in state.groups):
            return []
        return [("step-done", {"step": "leave", "gave_up": "", "limit": LEAVE})]
    if any(task.hold == GRANTED and task.connected and not task.left for task in state.tasks.values()):
        return []
    return _end_of(state, "")


def _end_of(state: State, gave_up: str) -> list[Fact]:
    assert state.ending is not None
    outcome = {name: state.ending[name] for name in ("state", "reason", "figures")}
    return [("ended", {**outcome, "gave_up": gave_up})]
