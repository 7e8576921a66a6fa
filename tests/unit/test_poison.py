"""A shard on which programs keep failing is set aside, by what was seen alone, and is named wherever somebody looks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted import Script, job, role

from trainmaster.core.input.audit import audit
from trainmaster.core.input.shards import Options, ShardTable
from trainmaster.core.machine.actions import Step
from trainmaster.core.machine.events import encode
from trainmaster.core.machine.report import status
from trainmaster.core.machine.snapshot import dump, load
from trainmaster.core.machine.stimuli import Did
from trainmaster.master.turn import Turns
from trainmaster.words.events import event_line
from trainmaster.words.text import loss_lines, shard_figures

SHARDS = {"size": 1024}
DATA = {"url": "memory://data", "as": "shards"}


def scripted(roles: dict[str, Any], shards: dict[str, Any] = SHARDS, **options: Any) -> Script:
    script = Script(job(inputs={"train": {**DATA, **options}}, **roles))
    script.take(
        Did((Step("list-inputs"),), {"listings": {"train": {"files": [["data", 4096, None]], "shards": shards}}})
    )
    return script


def alone(limit: int = 9, **options: Any) -> Script:
    return scripted({"worker": role(1, limit=limit)}, **options)


def fail_on(script: Script, task: str, *rows: list[Any], elapsed: float = 1.0, settled: bool = True) -> None:
    """Start the task, where it does not run, and fail it in the middle of shards."""
    if script.task(task).phase != "running":
        script.take(after=1000.0)
        script.start(task)
    script.report(task, "shards-begun", begun=[list(row) for row in rows])
    script.fail(task, elapsed=elapsed)
    if settled:
        script.take(after=11.0)


def row(shard: int, process: int = 1, elapsed: float = 1.0, name: str = "train") -> list[Any]:
    return [process, name, shard, elapsed]


def aside(script: Script) -> list[int]:
    return [event.data["number"] for event in script.log if event.type == "shard-set-aside"]


# -- what accuses --


def test_three_attempts_that_fail_on_a_shard_set_it_aside() -> None:
    script = alone()
    for _ in range(3):
        assert aside(script) == []
        fail_on(script, "worker:0", row(1))
    assert aside(script) == [1]
    assert script.state.shards["train"].figures == {"done": 0, "total": 4, "aside": 1}
    assert 1 not in script.state.shards["train"].remaining()
    assert load(json.loads(json.dumps(dump(script.state)))).shards["train"].figures["aside"] == 1


@pytest.mark.parametrize(
    "rows",
    [
        [row(1), row(2)],  # in the middle of both
        [row(2, process=7, elapsed=0.5), row(1, process=8)],  # another process ended first
        [row(1, elapsed=60.0)],  # it ended long before or after
        [row(1, name="other")],
        [row(99)],
        ["nonsense", [1, "train", "1", 1.0], [None, "train", 1, 1.0]],
    ],
)
def test_nothing_else_accuses_a_shard(rows: list[Any]) -> None:
    script = alone()
    for _ in range(4):
        script.take(after=1000.0)
        script.start("worker:0")
        script.report("worker:0", "shards-begun", begun=rows)
        script.fail("worker:0")
        script.take(after=11.0)
    assert 1 not in aside(script)


def test_only_the_root_cause_accuses() -> None:
    script = scripted({"worker": role(2, scope="group", limit=9)}, poison=1)
    script.start("worker:0", "worker:1")
    script.report("worker:1", "shards-begun", begun=[row(2)])
    script.fail("worker:1", elapsed=2.0)
    script.report("worker:0", "shards-begun", begun=[row(1)])
    script.fail("worker:0", "signal", elapsed=3.0, name="SIGSEGV")
    script.take(after=11.0)
    assert aside(script) == [1], "a death beats the error of a peer"


def test_a_failure_that_is_not_the_programs_accuses_nothing() -> None:
    script = alone(poison=1)
    script.start("worker:0")
    script.report("worker:0", "shards-begun", begun=[row(1)])
    script.report("worker:0", "ended", reason="address-in-use", elapsed=1.0)
    script.take(after=11.0)
    assert aside(script) == []


def test_no_shard_is_set_aside_where_the_job_does_not_want_it() -> None:
    script = alone(poison=0)
    for _ in range(5):
        fail_on(script, "worker:0", row(1))
    assert aside(script) == []
    assert script.count("shard-failed") == 0


def test_the_same_part_of_the_data_is_set_aside_in_every_epoch() -> None:
    script = alone(shards={"size": 1024, "epochs": 3, "shuffle": True, "seed": 5}, poison=2)
    table = ShardTable.make([("data", 4096)], Options(size=1024, epochs=3, shuffle=True, seed=5), name="train")
    same = [number for number in range(12) if table.index(number) == table.index(6)]
    fail_on(script, "worker:0", row(same[0]))
    fail_on(script, "worker:0", row(same[1]))
    assert list(script.state.shards["train"]._aside) == same


# -- who gets it --


def test_a_suspect_is_leased_alone_after_all_others_and_rather_to_another_task() -> None:
    script = scripted({"worker": role(2, limit=9)})
    script.start("worker:0", "worker:1")
    fail_on(script, "worker:0", row(0))
    script.take(after=1000.0)
    script.start("worker:0")
    turns = Turns(script.drive)
    for task, attempt in (("worker:0", 2), ("worker:1", 1)):
        turns.hold(task, attempt, {})

    def leased(task: str, attempt: int) -> list[int]:
        return [row[0] for row in turns.lease(task, attempt, "train", 10)["shards"]]

    assert leased("worker:1", 1) == [1]
    assert leased("worker:0", 2) == [2]
    assert leased("worker:0", 2) == [3]
    assert leased("worker:0", 2) == [], "the other may take it"
    assert leased("worker:1", 1) == [0]
    turns.lease("worker:1", 1, "train", 0, [[0, 1]])
    asks = next(n for n in range(10) if leased("worker:0", 2) == [0])
    assert 0 < asks < 9, "a task that has failed on it is not kept waiting for ever"


def test_a_suspect_is_withheld_until_the_failure_that_may_set_it_aside_is_settled() -> None:
    script = alone()
    fail_on(script, "worker:0", row(0))
    fail_on(script, "worker:0", row(0))
    script.take(after=1000.0)
    script.start("worker:0")
    script.report("worker:0", "shards-done", input="train", ranges=[[1, 4]], records=[1, 1, 1])
    fail_on(script, "worker:0", row(0), settled=False)
    script.take(after=3.0)
    script.start("worker:0")
    turns = Turns(script.drive)
    turns.hold("worker:0", 4, {})
    answer = turns.lease("worker:0", 4, "train", 10)
    assert (answer["shards"], answer["end"]) == ([], False)
    turns.take(script.now + 11.0)
    answer = turns.lease("worker:0", 4, "train", 10)
    assert (answer["shards"], answer["end"]) == ([], True)


# -- who is told --


def test_it_is_named_in_status_events_and_audit() -> None:
    script = alone(poison=2)
    fail_on(script, "worker:0", row(1))
    fail_on(script, "worker:0", row(1))
    lines = [event_line(json.loads(encode(event))) for event in script.log]
    assert any(
        "data, bytes 1,024 to 2,048 of train was set aside, since worker:0 twice failed on it" in line for line in lines
    )
    facts = status(script.state)
    assert loss_lines(facts) == [
        "  lost: records of input train: data, bytes 1,024 to 2,048: set aside, since worker:0 twice failed on it"
    ]
    assert (facts["losses"][0]["kind"], facts["losses"][0]["of"], facts["losses"][0]["start"]) == (
        "shard",
        "train",
        1024,
    )
    assert shard_figures(facts["shards"]["train"]) == "0 of 4 shards done, 1 set aside"
    script.take(after=1000.0)
    script.start("worker:0")
    script.report("worker:0", "shards-done", input="train", ranges=[[0, 4]], records=[5, 6, 7, 8])
    verdict = audit(script.log, {"train": ShardTable.make([("data", 4096)], Options(size=1024), name="train")})
    assert script.state.shards["train"].finished
    assert (verdict.ok, verdict.complete, verdict.inputs[0].missing, verdict.inputs[0].counted) == (True, False, (), 3)
    assert "  set aside, not counted: data, bytes 1,024 to 2,048: worker:0 twice failed on it" in verdict.lines()


def test_an_audit_finds_a_shard_that_was_set_aside_and_counted() -> None:
    script = alone(poison=1)
    fail_on(script, "worker:0", row(1))
    done = {"input": "train", "ranges": [[1, 2]], "records": [5], "mark": 1, "task": "worker:0", "attempt": 2}
    late = script.log[-1].__class__(len(script.log) + 1, script.now, 1, "shards-done", done)
    assert "set aside before" in audit([*script.log, late]).inputs[0].faults[0]
