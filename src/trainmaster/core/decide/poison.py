"""Find the shards that keep killing their readers, and set them aside.

An agent tells, before the end of a program, which shards its processes were in the middle of (`shards-begun`). A failure counts against
one of these once its incident is settled, and then only where

- the attempt is the root cause, by a reason that is the program's fault: a peer that died of another's death accuses nothing;
- the process that read the shard ended within `WINDOW` of the attempt's end, and before all others of the attempt that were reading;
- it was in the middle of this shard alone.

So a shard is accused by what was seen, never by a guess. A death that nobody saw (the agent died too, a restarted master lost the note)
accuses nothing: a shard may then be set aside later, or not at all. `inputs.NAME.poison` different attempts set it aside, with a barrier;
leases see to it that these are of different tasks where there are others. Failures that are not settled yet count for leases (`pending`),
and where they are enough the shard is withheld until they are: else another attempt, and its restart, would be spent on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.core.machine.events import Fact
from trainmaster.core.machine.reasons import PROGRAM, REASONS
from trainmaster.core.machine.state import State

WINDOW = 5.0  # s between the end of a process that read a shard and the end of its attempt: an interpreter's end takes a while
ROWS = 64  # processes of one attempt whose shards are noted


def known_rows(state: State, begun: Any) -> list[list[Any]]:
    """Return the rows of an agent's report, [process, input, shard, elapsed], that are of their form and about shards that are not over."""
    rows = [row for row in begun if isinstance(row, list) and len(row) == 4] if isinstance(begun, list) else []
    return [
        [process, name, number, elapsed]
        for process, name, number, elapsed in rows
        if type(process) is int and type(number) is int and type(elapsed) in (int, float)
        and isinstance(name, str) and name in state.shards and not state.shards[name].is_over(number)
    ][:ROWS]  # fmt: skip


def shard_failure(state: State, root: Mapping[str, Any]) -> list[Fact]:
    """Return the facts about a shard that follow from the root cause of a settled failure."""
    accused = _accused(state, root)
    if accused is None:
        return []
    name, number = accused
    table, limit = state.shards[name], state.known_job.inputs[name].poison
    shard = table.shard(number)
    place = {
        "input": name,
        "number": number,
        "path": shard.path,
        "kind": shard.kind,
        "start": shard.start,
        "end": shard.end,
    }
    attempt = [root["task"], root["attempt"]]
    failed = [*(other for other in table.failed(number) if other != attempt), attempt]
    facts: list[Fact] = [
        ("shard-failed", {**place, "task": attempt[0], "attempt": attempt[1], "failures": len(failed), "limit": limit})
    ]
    if len(failed) >= limit:
        facts.append(("shard-set-aside", {**place, "ranges": table.rest_of(number).to_json(), "failed": failed}))
    return facts


def pending(state: State, name: str) -> tuple[dict[int, set[str]], set[int]]:
    """Return what failures that are not settled yet accuse of an input: shard -> the tasks that failed on it; and the shards of these that
    are set aside if all of them are found to be root causes.
    """
    attempts: dict[int, set[tuple[str, int]]] = {}
    for incident in state.incidents.values():
        for evidence in incident.evidence:
            accused = _accused(state, evidence)
            if accused is not None and accused[0] == name:
                attempts.setdefault(accused[1], set()).add((evidence["task"], evidence["attempt"]))
    tasks = {number: {task for task, _ in failed} for number, failed in attempts.items()}
    enough = set()
    for number, failed in attempts.items():
        settled = {(task, attempt) for task, attempt in state.shards[name].failed(number)}
        if len(failed | settled) >= state.known_job.inputs[name].poison:
            enough.add(number)
    return tasks, enough


def _accused(state: State, evidence: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the (input, shard) that the evidence of a failure accuses."""
    reason, elapsed = REASONS[evidence["reason"]], evidence.get("elapsed")
    if elapsed is None or not (reason.fault == PROGRAM and reason.restart_costs):
        return None
    task = state.tasks[evidence["task"]]
    begun = next((rows for attempt, rows in task.begun if attempt == evidence["attempt"]), ())
    late = [row for row in begun if abs(row[3] - elapsed) <= WINDOW]
    first = min(late, key=lambda row: row[3], default=None)
    shards = {(row[1], row[2]) for row in late if first is not None and row[0] == first[0]}
    if len(shards) != 1:
        return None
    name, number = shards.pop()
    if state.known_job.inputs[name].poison == 0 or state.shards[name].is_over(number):
        return None
    return name, number
