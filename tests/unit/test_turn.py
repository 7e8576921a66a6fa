"""A master's turns: only the present attempt leases shards, and what it leases is in no event before it is read."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import Script, job, role

from trainmaster.core.fold.changes import fold
from trainmaster.core.machine.actions import Step
from trainmaster.core.machine.snapshot import dump, load
from trainmaster.core.machine.state import State
from trainmaster.core.machine.stimuli import Did, Report
from trainmaster.master.turn import Turns

LISTING = {"train": {"files": [["data", 8192, None]], "shards": {"size": 1024}}}


@pytest.fixture
def script() -> Script:
    """Two programs that read eight shards, restarted alone."""
    given = {"train": {"url": "memory://data", "as": "shards"}}
    script = Script(job(worker=role(2), inputs=given))
    script.take(Did((Step("list-inputs"),), {"listings": LISTING}))
    script.start("worker:0", "worker:1")
    return script


def begun(script: Script) -> Turns:
    """The turns of a master whose agents are connected."""
    turns = Turns(script.drive)
    for task in script.state.tasks:
        turns.hold(task, 1, {})
    return turns


def report(turns: Turns, task: str, ranges: Any, attempt: int = 1) -> list[Any]:
    """The ranges that a report of done shards brought onto the log."""
    present = turns.state.tasks[task]
    data = {"input": "train", "ranges": ranges, "records": [1] * sum(end - first for first, end in ranges)}
    turns.tell(Report(task, present.serial, present.reported + 1, attempt, "shards-done", data))
    return [event.data["ranges"] for event in turns.take(2000.0).events if event.type == "shards-done"]


def numbers(answer: Any) -> list[int]:
    return [row[0] for row in answer["shards"]]


def test_a_report_counts_once_and_only_for_the_task_that_holds_the_shards(script: Script) -> None:
    turns = begun(script)
    assert numbers(turns.lease("worker:0", 1, "train", 3)) == [0, 1, 2]
    assert report(turns, "worker:1", [[0, 3]]) == []
    assert report(turns, "worker:0", [[1, 2]]) == [[[1, 2]]]
    assert report(turns, "worker:0", [[0, 5]]) == [[[0, 1], [2, 3]]]
    assert report(turns, "worker:0", [[0, 3]]) == []
    assert turns.lease("worker:0", 1, "other", 1)["unknown"] is True


def test_only_the_present_attempt_whose_program_may_run_leases(script: Script) -> None:
    turns = begun(script)
    assert numbers(turns.lease("worker:0", 2, "train", 1)) == []
    assert numbers(turns.lease("worker:0", 1, "train", 1)) == [0]
    turns.tell(Report("worker:0", 1, 10, 1, "ended", {"reason": "exit", "status": 1, "elapsed": 1.0}))
    turns.take(2000.0)
    assert numbers(turns.lease("worker:0", 1, "train", 1)) == []
    assert report(turns, "worker:0", [[0, 1]]) == []
    assert numbers(turns.lease("worker:1", 1, "train", 1)) == [0], "free again"
    assert turns.hold("worker:0", 1, {"train": [[3, 4]]}) == {"train": [[3, 4]]}


def test_a_new_master_leases_nothing_until_each_running_task_has_named_its_shards(script: Script) -> None:
    before = begun(script)
    assert numbers(before.lease("worker:0", 1, "train", 2)) == [0, 1]
    assert report(before, "worker:0", [[0, 1]]) == [[[0, 1]]]
    script.drive.state = load(dump(script.state))
    after = Turns(script.drive)
    assert after.hold("worker:0", 1, {"train": [[0, 2]]}) == {"train": [[0, 1]]}
    assert numbers(after.lease("worker:0", 1, "train", 1)) == []
    assert after.hold("worker:1", 1, {}) == {}
    assert numbers(after.lease("worker:1", 1, "train", 1)) == [2]


def test_the_state_of_a_job_is_the_same_whatever_is_leased(script: Script) -> None:
    turns = begun(script)
    before = dump(script.state)
    assert numbers(turns.lease("worker:0", 1, "train", 3)) == [0, 1, 2]
    turns.hold("worker:1", 1, {"train": [[4, 5]]})
    assert dump(script.state) == before


def test_a_snapshot_that_names_barred_attempts_loads(script: Script) -> None:
    """Tables of earlier versions had them beside the done shards."""
    data = dump(script.state)
    data["shards"]["train"]["off"] = {"worker:0": 1}
    assert dump(load(data)) == dump(script.state)
    assert dump(fold(State(), script.log)) == dump(script.state)
