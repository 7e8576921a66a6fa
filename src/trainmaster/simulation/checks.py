"""Check the end of a job against the world's own truth and against the log as its readers see it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.core.decide.failures import FREE_LIMIT
from trainmaster.core.fold.changes import fold
from trainmaster.core.input.audit import audit
from trainmaster.core.input.ranges import RangeSet
from trainmaster.core.input.shards import OUTPUTS
from trainmaster.core.machine.events import EVENTS, Event, decode, encode, faults, whole
from trainmaster.core.machine.reasons import REASONS
from trainmaster.core.machine.report import losses
from trainmaster.core.machine.snapshot import dump
from trainmaster.core.machine.state import State, joins_alone, unit_of, warms_up
from trainmaster.core.states import SUCCEEDED
from trainmaster.simulation.engine import Engine
from trainmaster.simulation.world import Violation, World


def check(world: World, engine: Engine, events: list[Event], living: State, shards: Mapping[str, int]) -> None:
    """Raise Violation at the first promise that was broken.

    `events`: the job's log; `living`: the state of the last master; `shards`: the number of shards of each input.
    """
    _check_log(events)
    _check_end(events)
    _check_budgets(events, living)
    _check_members(events, living)
    _check_nothing_left(world, engine)
    _check_replay(events, living)
    _check_shards(world, events, living, shards)
    if living.ending is not None and living.ending["state"] == SUCCEEDED:
        _check_commits(world, living)
        _check_required(world, living)


def _check_log(events: list[Event]) -> None:
    if [event.n for event in events] != list(range(1, len(events) + 1)):
        raise Violation("the log that readers see has gaps or doubles")
    if any(later.at < event.at for event, later in itertools.pairwise(events)):
        raise Violation("the times of events fall")
    if unknown := {event.type for event in events} - EVENTS.keys():
        raise Violation(f"the log has events of no known type: {unknown}")
    if wrong := [fault for event in events for fault in faults(event)]:
        raise Violation(f"events have other fields than their table says: {wrong[:5]}")


def _check_end(events: list[Event]) -> None:
    ends = [event for event in events if event.type == "ended"]
    if len(ends) != 1 or ends[0].data["reason"] not in REASONS:
        raise Violation(f"the job ended {len(ends)} times: {[event.data for event in ends]}")
    reasons = [
        event.data["reason"]
        for event in events
        if event.type in ("attempt-ended", "attempt-written-off", "task-failed")
    ]
    if strange := set(reasons) - REASONS.keys():
        raise Violation(f"reasons out of no table: {strange}")


def _check_budgets(events: list[Event], living: State) -> None:
    """Check that no restart exceeded its budget, as readers of the log see the costs; only progress gave any back."""
    best: dict[str, float] = {}  # by unit
    charged: Counter[str] = Counter()  # by unit, restarts at its programs' fault since it got further
    totals: Counter[str] = Counter()  # the same, since it reported progress
    for event in events:
        data = event.data
        unit = data.get("unit") or (unit_of(living.tasks[data["task"]]).text if "task" in data else "")
        if event.type == "progressed":
            reached = (
                data["step"] if data["value"] is None else data["value"]
            )  # programs of one job report the same of the two
            if reached <= best.get(unit, -1.0):
                raise Violation(f"{data['task']} reported {reached} again, which gave its budget back")
            best[unit], charged[unit], totals[unit] = reached, 0, 0
        elif (event.type == "checkpoint-saved" and data["refunds"]) or (
            event.type == "part-committed" and data["kept"]
        ):
            charged[unit] = 0
        elif event.type == "settled" and not data["costs"]:
            charged[unit], totals[unit] = max(0, charged[unit] - 1), max(0, totals[unit] - 1)
        elif event.type == "incident" and data["again"]:
            charged[unit] += data["costs"]
            totals[unit] += data["costs"]
            restart = living.role(living.tasks[data["cause"]["task"]]).restart
            is_over = max(data["spent"], charged[unit]) > data["limit"] or totals[unit] > restart.total
            if data["free"] > FREE_LIMIT or (data["costs"] and is_over):
                raise Violation(f"a restart beyond its budget: {dict(data)}")


def _check_members(events: list[Event], living: State) -> None:
    """Check that each change of members leaves as many as their roles allow, all of whose generations are numbered apart."""
    roles = living.known_job.roles
    members: dict[int, set[str]] = {}
    for event in events:
        data = event.data
        if event.type == "sized":
            members[data["group"]] = {
                f"{role}:{index}" for role, size in data["sizes"].items() for index in range(size)
            }
        elif event.type == "resized":
            present, joined, left = members[data["group"]], set(data["joined"]), set(data["left"])
            if joined & present or not left <= present:
                raise Violation(f"members join twice, or strangers leave: {dict(data)}, of {sorted(present)}")
            present |= joined
            present -= left
            sizes = Counter(key.partition(":")[0] for key in present)
            if sizes != Counter(data["sizes"]) or not all(
                roles[role].replicas.min <= size <= roles[role].replicas.max for role, size in sizes.items()
            ):
                raise Violation(f"a group of {sizes} is reported as {data['sizes']}")
        elif event.type == "generation-formed" and (
            strangers := {key for key, _ in data["members"]} - members[data["group"]]
        ):
            raise Violation(f"{strangers} are not members of generation {data['generation']}")
    for group in living.groups:
        arrived = [
            task
            for name in group.roles
            for task in living.tasks_of(name)
            if task.is_spare and task.connected and not joins_alone(living, task)
        ]
        counts = len(arrived), sum(warms_up(living, task) for task in arrived)
        if counts != (group.arrived, group.warming_up):
            raise Violation(
                f"group {group.number} counts {group.arrived} spares that are there, {group.warming_up} warming up, of {counts}"
            )


def _check_nothing_left(world: World, engine: Engine) -> None:
    if running := {task: list(copies) for task, copies in world.truth.running.items() if copies}:
        raise Violation(f"programs still run after the end: {running}")
    if (names := [container.name for container in engine.live]) or engine.asks:
        raise Violation(f"containers are still held after the end: {names[:5]}, asked: {list(engine.asks)[:5]}")


def _check_replay(events: list[Event], living: State) -> None:
    """Check that a reader of the log knows the master's whole state."""
    read, known = plain(fold(State(), [decode(encode(event)) for event in events])), plain(living)
    for key in read.keys() | known.keys():
        if read.get(key) != known.get(key):
            raise Violation(
                f"the log tells another state than the master had: {key} is {read.get(key)}, and was {known.get(key)}"
            )


def plain(state: State) -> dict[str, Any]:
    """Return a state in the form in which states are compared."""
    fields: dict[str, Any] = json.loads(json.dumps(dump(state)))
    return fields


def _check_commits(world: World, state: State) -> None:
    """Check that each counting task of a job that succeeded has committed once."""
    if not _all_must_succeed(state):
        return
    for task in state.tasks.values():
        if task.counts and not task.is_spare and task.commits and len(world.truth.commits.get(task.key, [])) != 1:
            raise Violation(f"{task.key} succeeded with commits {world.truth.commits.get(task.key)}")


def _check_required(world: World, state: State) -> None:
    """Check that some task wrote each output of which one must, in a job that succeeded."""
    wrote = any((task.key, task.attempt) in world.truth.writers for task in state.tasks.values())
    if not wrote and any(output.required == "any" for output in state.known_job.outputs.values()):
        raise Violation("the job succeeded, and nobody wrote the output that one task had to write")


def _all_must_succeed(state: State) -> bool:
    completion = state.known_job.completion
    return not completion.first and not completion.failures


def _check_shards(world: World, events: list[Event], state: State, totals: Mapping[str, int]) -> None:
    """Check that every record was counted once and trained on at least once, in the last generation's model, whatever the faults."""
    audited = audit(events, state.shards)
    if not audited.ok:
        raise Violation(f"the audit finds faults: {[input_.faults for input_ in audited.inputs]}")
    succeeded = state.ending is not None and state.ending["state"] == SUCCEEDED
    for name, total in totals.items():
        counted, aside = counted_shards(events, name), _set_aside(world, events, state, name)
        if both := [number for number in counted if number in aside]:
            raise Violation(f"input {name}: shards {both[:5]} were set aside and counted")
        if doubled := [number for number, times in Counter(counted).items() if times > 1]:
            raise Violation(f"input {name}: shards {doubled[:5]} were counted twice")
        if succeeded and _all_must_succeed(state) and len(counted) + len(aside) != total:
            raise Violation(
                f"input {name}: {total - len(counted) - len(aside)} shards were neither counted nor set aside"
            )
        if skipped := [number for number in counted if world.truth.trained[name, number] == 0]:
            raise Violation(f"input {name}: shards {skipped[:5]} were counted and never read")
        for (key, attempt), known in world.truth.models.items() if succeeded else ():
            if missing := [number for number in counted if number not in known]:
                raise Violation(
                    f"input {name}: shards {missing[:5]} were counted, and attempt {attempt} of {key} ended with a model without"
                )
        if succeeded and _all_must_succeed(state):
            _check_work(world, events, state, name)
        if succeeded and state.known_job.checkpoint is not None and state.known_job.gang:
            learnt: set[tuple[str, int]] = set()
            # A generation of tasks that restart alone makes no model: the model of the last generation that made one is kept.
            for group in state.groups:
                if formed := [number for owner, number in world.truth.lines if owner == group.number]:
                    learnt |= world.truth.lines[group.number, max(formed)].trained
            forgotten = [number for number in counted if (name, number) not in learnt]
            named = sum(row.get("shards", 0) for row in losses(state) if row.get("of") == f"work {name}")
            if len(forgotten) > named:
                raise Violation(
                    f"input {name}: shards {forgotten[:5]} were counted, and are not in the model that was kept"
                )


def _check_work(world: World, events: Sequence[Event], state: State, name: str) -> None:
    """Check that what was made of each shard that counted is in a committed output once, where outputs keep it."""
    done: dict[int, tuple[str, int, str]] = {}
    holders: Counter[int] = Counter()  # shard -> committed outputs that hold what was made of it
    in_parts: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for event in whole(events):
        if event.type == "part-committed":
            key, attempt = event.data["task"], event.data["attempt"]
            part = world.truth.parts[key, attempt, event.data["part"]]
            in_parts.setdefault((key, attempt), set()).update(part)
            holders.update(number for input_, number in part if input_ == name)
        if event.type in ("shards-done", "shards-returned") and event.data["input"] == name:
            for number in RangeSet.from_json(event.data["ranges"]):
                done.pop(number, None)
                if event.type == "shards-done":
                    done[number] = event.data["task"], event.data["attempt"], event.data.get("kept_by", "")
    for (key, attempt), work in world.truth.work.items():
        task = state.tasks[key]
        if task.commits and attempt in world.truth.commits.get(key, ()):
            rest = work - in_parts.get((key, attempt), set())
        elif not task.commits and (task.final, task.attempt) == (SUCCEEDED, attempt):
            rest = work  # the outputs of the others of its group hold it
        else:
            continue
        holders.update(number for input_, number in rest if input_ == name)
    for number, (key, attempt, kept_by) in done.items():
        if kept_by == OUTPUTS and holders[number] != 1:
            raise Violation(
                f"input {name}: shard {number} was counted for attempt {attempt} of {key}, and {holders[number]} committed outputs hold "
                "what was made of it"
            )


def _set_aside(world: World, events: Sequence[Event], state: State, name: str) -> set[int]:
    """Return the shards that a reader of the log finds set aside. Check that as many attempts as must had really failed on each."""
    aside: set[int] = set()
    for event in whole(events):
        if event.type != "shard-set-aside" or event.data["input"] != name:
            continue
        really = world.truth.failed_on.get((name, event.data["number"]), set())
        failed = {(task, attempt) for task, attempt in event.data["failed"]}
        if not failed <= really or len(failed) < state.known_job.inputs[name].poison:
            raise Violation(
                f"input {name}: shard {event.data['number']} was set aside for {failed}; {really} failed on it"
            )
        aside |= set(RangeSet.from_json(event.data["ranges"]))
    return aside


def counted_shards(events: Sequence[Event], name: str) -> list[int]:
    """Return the shard numbers that a reader of the log counts as done, with repetitions, along the sets that were restored."""
    counted: list[int] = []
    for event in whole(events):
        if event.type not in ("shards-done", "shards-returned") or event.data["input"] != name:
            continue
        if event.type == "shards-done":
            counted += [number for first, end in event.data["ranges"] for number in range(first, end)]
        else:
            returned = RangeSet.from_json(event.data["ranges"])
            counted = [number for number in counted if number not in returned]
    return counted
