"""The status of a job as users read it: plain data for `tm status`, pages and programs. It adds no facts, only words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from trainmaster.core.input.shards import failed_words, place_words
from trainmaster.core.machine.failure_words import error_line
from trainmaster.core.machine.formation import bracketed
from trainmaster.core.machine.pace_words import advice_words, pace_words, speed_words
from trainmaster.core.machine.phases import NEW, READY, RUNNING, STARTING
from trainmaster.core.machine.reasons import advice, words
from trainmaster.core.machine.state import (
    ASKED,
    CHECKPOINT,
    FILES,
    GRANTED,
    PROMISE,
    SHARD,
    WORK,
    Group,
    Scaling,
    State,
    Task,
    loss_kind,
    role_size,
    size_of,
    sizes_itself,
)
from trainmaster.core.machine.units import GROUP, TASK, unit_from
from trainmaster.core.spec.quantities import format_seconds
from trainmaster.core.states import (
    BACKING_OFF,
    ENDING,
    HELD,
    KILLED,
    LEFT,
    PENDING,
    QUEUED,
    STAGING,
    SUCCEEDED,
    TO_JOIN,
    WAITING,
)

NOT_STARTED = "had not started"


def job_state(state: State) -> str:
    """Return the job's state, of JOB_STATES."""
    if state.ended is not None:
        return str(state.ended["state"])
    if state.ending is not None:
        return ENDING
    return RUNNING if any(group.generation for group in state.groups) else PENDING


def status(state: State, now: float = 0.0) -> dict[str, Any]:
    """Return the status of the job as JSON-able data. `now`: in s since 1970, where the job goes on; else it is as at its last event."""
    job = state.known_job
    return {
        "job": state.id,
        "name": job.name,
        "framework": job.framework,
        "state": job_state(state),
        "submitted": state.submitted,
        "at": state.at,
        "ended": state.ended.get("at") if state.ended else None,
        "epoch": state.epoch,
        "events": state.n,
        "restarts": state.restarts,
        "reason": end_reason(state),
        "phase": phase(state, now),
        "waiting": waiting(state),
        "tasks": [task_status(state, task) for task in state.tasks.values() if is_shown(task)],
        "former": [_former(state, task) for task in state.tasks.values() if not is_shown(task) and task.past],
        "outputs": {name: output.url for name, output in job.outputs.items()},
        "checkpoint": state.checkpoint,
        "saves": [{**save, "left": list(save["left"])} for save in state.saves],
        "links": links(state),
        "shards": {name: table.figures for name, table in state.shards.items()},
        "scaling": {role: _scaling(state, role, seen) for role, seen in state.scaling.items() if seen.rates},
        "losses": losses(state),
        "gave_up": [f"{step}: {why}" for step, why in state.steps.items() if why],
    }


def job_progress(status: Mapping[str, Any]) -> float | None:
    """Return how much of the job is done, of 0 to 1: of its shards, else the mean of its tasks; None where nothing tells it.

    Each task has the `progress` that it last reported. Tasks that the job no longer has do not count.
    """
    if status["state"] == SUCCEEDED:
        return 1.0
    if shards := status.get("shards", {}).values():
        total = sum(figures["total"] for figures in shards)
        return sum(figures["done"] + figures.get("aside", 0) for figures in shards) / total if total else None
    values = [
        1.0 if task["state"] == SUCCEEDED else task.get("progress")
        for task in status["tasks"]
        if task.get("counts", True)
    ]
    known = [value for value in values if isinstance(value, int | float)]
    return sum(known) / len(values) if known else None


def _scaling(state: State, role: str, seen: Scaling) -> dict[str, Any]:
    """Return what is known of the sizes of an elastic role, with the change that is advised, in words too."""
    members, least, most = (
        role_size(state, role),
        state.known_job.roles[role].replicas.min,
        state.known_job.roles[role].replicas.max,
    )
    known = {size: rate for size, (rate, _) in sorted(seen.rates.items(), key=lambda row: int(row[0]))}
    speeds = ", ".join(f"{size} made {speed_words(rate, seen.unit)}" for size, rate in known.items())
    text = f"{members} of {least} to {most}; {speeds}{'; a user chose the number' if seen.by_user else ''}"
    if seen.advice is not None:
        text += f"; {advice_words(role, members, seen.advice)}"
    return {
        "members": members,
        "rates": known,
        "unit": seen.unit,
        "by_user": seen.by_user,
        "advice": seen.advice,
        "words": text,
    }


def losses(state: State) -> list[dict[str, Any]]:
    """List what the job did not keep: what attempts printed, checkpoints that were not stored, with the newest set there is, files that
    outputs and checkpoints do not have, and shards whose records were left out.
    """
    rows = [_loss(row) for row in state.losses.values() if not _is_made_good(state, row)]
    checkpoint, newest = state.known_job.checkpoint, (state.checkpoint or {}).get("set")
    is_unreported = checkpoint is not None and newest is None and not any(row["kind"] == CHECKPOINT for row in rows)
    if checkpoint is not None and is_unreported and job_state(state) == SUCCEEDED:
        detail = f"nothing was written at {checkpoint.path}"
        rows.append({"kind": CHECKPOINT, "detail": detail, "task": "", "attempt": 0, "at": state.at})
    for table in state.shards.values() if job_state(state) == SUCCEEDED else ():
        if table.owed:
            detail = (
                f"{table.owed:,} shards were lost with attempts that had not committed, and nobody has done them again"
            )
            rows.append(
                {"kind": WORK, "of": f"work {table.name}", "detail": detail, "task": "", "attempt": 0, "at": state.at}
            )
    aside = [_set_aside(state, row) for table in state.shards.values() for row in table.set_aside]
    return [row | ({"set": newest} if row["kind"] == CHECKPOINT else {}) for row in rows] + aside


def _set_aside(state: State, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loss of the records of a shard that was set aside."""
    task, attempt = row["failed"][-1]
    detail = f"{place_words(row)}: set aside, since {failed_words(row['failed'])} failed on it"
    return {"kind": SHARD, "of": row["input"], "detail": detail, "task": task, "attempt": attempt, "at": row["at"],
            **{name: row[name] for name in ("number", "path", "start", "end")}}  # fmt: skip


def _loss(row: Mapping[str, Any]) -> dict[str, Any]:
    kind = loss_kind(row["what"])
    return {
        "kind": kind,
        **{name: row[name] for name in row if name != "what"},
        **({"of": row["what"]} if kind in (FILES, PROMISE, WORK) else {}),
    }


def _is_made_good(state: State, row: Mapping[str, Any]) -> bool:
    """Tell whether a later attempt has committed the output that lacked files."""
    task = state.tasks[row["task"]]
    return loss_kind(row["what"]) == FILES and task.final == SUCCEEDED and bool(row["attempt"] < task.attempt)


def links(state: State) -> dict[str, str]:
    """Return label -> address of every page whose program runs."""
    addresses = {}
    for label, link in state.known_job.links.items():
        task = state.tasks.get(f"{link.role}:{link.index}")
        if task is not None and task.phase == RUNNING and link.port in task.ports:
            addresses[label] = f"{link.scheme}://{bracketed(task.address)}:{task.ports[link.port]}{link.path}"
    return addresses


def end_reason(state: State) -> dict[str, Any] | None:
    """Return the reason for the job's end: reason, words, advice, and the first failing task with its last lines."""
    end = state.ending
    if end is None:
        return None
    report = {"reason": end["reason"], "state": end["state"], "figures": end.get("figures", {})}
    figures = {**end.get("figures", {}), "job": state.id}
    if "task" in end:
        task = end["task"]
        figures |= {"task": task, "role": task.split(":")[0]}
        tail = end.get("tail") or state.tasks[task].tail  # known later where the job ended first
        report |= {
            "task": task,
            "attempt": end.get("attempt"),
            "tail": tail,
            "error": error_line(end["reason"], tail),
        }
    return report | {"words": words(end["reason"], figures), "advice": advice(end["reason"], figures)}


def task_status(state: State, task: Task) -> dict[str, Any]:
    report: dict[str, Any] = {
        "task": task.key,
        "role": task.role,
        "index": task.index,
        "state": task.state,
        "phase": _task_phase(state, task),
        "attempt": task.attempt,
        "node": task.node if is_placed(task) else "",
        "container": task.container if is_placed(task) else "",
        "since": task.since,
        "started": task.started,
        "restarts": task.attempt - 1,
        "counts": task.counts,
    }
    if task.reason:
        figures = {**task.figures, "task": task.key, "role": task.role}
        report |= {
            "reason": task.reason,
            "words": _end_words(task, figures),
            "tail": task.tail,
            "error": error_line(task.reason, task.tail),
        }
    if (straggling := state.stragglers.get(task.key)) is not None:
        report["straggling"] = {**straggling, "words": pace_words(straggling)}
    if task.trouble is not None:
        report["trouble"] = task.trouble
    if task.past:
        report["past"] = [{"attempt": past.attempt, "reason": past.reason, "words": words(past.reason, past.figures), "ended": past.ended}
                          for past in task.past]  # fmt: skip
    return report


def _end_words(task: Task, figures: Mapping[str, Any]) -> str:
    """Say how a task ended. One whose job ended before it began did not end by the job's reason."""
    has_begun = task.final != KILLED or task.started is not None or task.attempt > 1
    return words(task.reason, figures) if has_begun else NOT_STARTED


def _former(state: State, task: Task) -> dict[str, Any]:
    """Return the status of a task that the job no longer has: that of its last attempt."""
    report = task_status(state, task)
    *past, last = report["past"]
    return {**report, **last, "state": LEFT, "phase": LEFT, "since": last["ended"], "past": past}


def all_tasks(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tasks of a job's status, and those that the job had and no longer has."""
    return [*status["tasks"], *status.get("former", ())]


def is_placed(task: Task) -> bool:
    """Tell whether the task has a container, or had one to its end; otherwise `node` and `container` are those of its last one."""
    return bool(task.final) or task.hold == GRANTED


def is_shown(task: Task) -> bool:
    """Tell whether users see the task: a member, or a spare that has something."""
    return not task.is_spare or task.live or (not task.final and task.hold == GRANTED)


def _task_phase(state: State, task: Task) -> str:
    """Return the phase of the task, of TASK_PHASES: it is finer than its state."""
    if task.final:
        return task.final
    if task.phase != NEW:
        return task.phase
    if task.is_spare:
        return TO_JOIN
    if task.blocked:
        return BACKING_OFF
    if task.hold == ASKED:
        return QUEUED
    return HELD if task.hold == GRANTED else WAITING


def phase(state: State, now: float = 0.0) -> str:
    """Describe the progress of the whole job in one line, with figures."""
    if state.ended is not None or state.ending is not None:
        return job_state(state)
    members = [task for group in state.groups if group.opened for task in state.members(group)]
    granted = sum(task.hold == GRANTED for task in members)
    ready = sum(task.phase in (READY, STARTING) for task in members)
    counts = Counter(task.state for task in members)
    if set(counts) - {PENDING, STAGING}:
        running = f"{counts.pop(RUNNING, 0)} of {len(members)} running"
        parts = [running, *(f"{count} {word}" for word, count in counts.items())] if counts else ["running"]
        return ", ".join(
            [
                *parts,
                *(f"{group.arrived} to join{_joining(state, group, now)}" for group in state.groups if group.arrived),
            ]
        )
    if granted < len(members):
        return f"granted {granted}/{len(members)}"
    return f"starting 0/{len(members)}" if ready == len(members) else f"staged {ready}/{len(members)}"


def _joining(state: State, group: Group, now: float) -> str:
    """Say what the spares wait for whose agents are there."""
    if (due := state.deadlines.get(("change", str(group.number)))) is not None:
        left = format_seconds(round(max(0.0, due - max(state.at, now))))
        needs_set = state.known_job.checkpoint is not None and not group.requested
        return f" in {left} at the earliest, once a checkpoint set is stored" if needs_set else f" in {left}"
    return " once a checkpoint set is stored" if state.known_job.checkpoint is not None and not group.forming else ""


def waiting(state: State) -> str:
    """Describe the things that the job waits for, with figures; "" while it waits for nothing."""
    if state.ended is not None:
        return ""
    wait = state.waiting
    if wait is not None:
        place = f", place {wait['position']} in the queue" if wait.get("position") else ""
        return (
            wait.get("detail") or f"waiting for {wait['resource']}: asked {wait['asked']}, free {wait['free']}{place}"
        )
    for kind, key in state.deadlines:
        if kind == "backoff":
            unit = unit_from(key)
            if unit.kind == TASK and state.tasks[unit.name].is_spare:
                continue
            names = ", ".join(state.groups[int(unit.name)].roles) if unit.kind == GROUP else unit.name
            return f"{names} waits out a back-off"
    for group in state.groups:
        for role in group.roles if not group.opened else ():
            for other, condition in state.known_job.roles[role].after.items():
                return (
                    f"{role} waits for {other} to have {condition}"
                    if condition == "succeeded"
                    else f"{role} waits for {other}"
                )
        if group.opened and group.sizes is None:
            missing = {role: size_of(state, group, role) - group.granted[role] for role in group.roles}
            return "waiting for containers: " + ", ".join(
                f"{count} x {role}" for role, count in missing.items() if count > 0
            )
        for role in group.requested if group.opened else ():
            missing_spares = sum(task.grows and task.hold == ASKED for task in state.tasks_of(role))
            if missing_spares and not sizes_itself(state, role):
                return f"waiting for containers: {missing_spares} x {role}, for which tm scale asked"
    return ""
