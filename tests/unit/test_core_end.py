"""How a job ends: completion rules, reasons in their order, and the order of the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted import Script, job, role

from trainmaster.core.decide.limits import COMMIT, SETTLE
from trainmaster.core.errors import BadInput
from trainmaster.core.machine import stimuli
from trainmaster.core.machine.actions import CommitFor, Order, Release, Step
from trainmaster.core.machine.phases import LIVE
from trainmaster.core.machine.report import end_reason, status
from trainmaster.core.machine.snapshot import dump, load
from trainmaster.core.spec.reading import job_from, job_to

OUT = {"model": {"url": "memory://out"}}


def ending(script: Script) -> tuple[str, str] | None:
    return (script.state.ending["state"], script.state.ending["reason"]) if script.state.ending else None


# -- completion --


@pytest.mark.parametrize(
    ("completion", "succeed", "fail", "end"),
    [
        ("all", ["worker:0", "worker:1"], [], None),
        ("all", ["worker:0", "worker:1", "worker:2", "worker:3"], [], ("succeeded", "succeeded")),
        ("all", ["worker:0"], ["worker:1"], ("failed", "exit")),
        ({"first": "worker"}, [], [], None),
        ({"first": "worker"}, ["worker:2"], [], ("succeeded", "succeeded")),
        ({"first": "worker"}, [], ["worker:2"], ("failed", "exit")),
        ({"failures": 0.5}, ["worker:0"], ["worker:1"], None),
        ({"failures": 0.5}, ["worker:0", "worker:1"], ["worker:2", "worker:3"], ("succeeded", "succeeded")),
        ({"failures": 0.5}, ["worker:0"], ["worker:1", "worker:2", "worker:3"], ("failed", "too-many-failures")),
        ({"failures": 0.0}, [], ["worker:3"], ("failed", "too-many-failures")),
    ],
)  # fmt: skip
def test_completion_rules(completion: Any, succeed: list[str], fail: list[str], end: tuple[str, str] | None) -> None:
    script = Script(job(worker=role(4, "never"), gang=False, completion=completion))
    script.start(*[f"worker:{index}" for index in range(4)])
    script.succeed(*succeed)
    for key in fail:
        script.fail(key)
        script.tick(SETTLE)
    assert ending(script) == end
    if end is not None:
        script.close()
        assert script.count("ended") == script.count("ending") == 1
        assert script.last("ended")["reason"] == end[1]


NANS: dict[str, Any] = {"step": 7, "metrics": {"accuracy": 0.5, "loss": "nan"}}


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize(("scope", "counts"), [("group", True), ("task", False)])
def test_with_stop_on_nan_a_metric_that_is_not_a_number_ends_the_job_and_nothing_restarts(
    scope: str, counts: bool, stopped: bool
) -> None:
    script = Script(job(worker=role(2, scope, counts=counts), main=role(1), stop_on="nan"))
    script.start("worker:0", "worker:1", "main:0")
    script.report("worker:1", "progress", step=6, metrics={"loss": 1e9})
    assert ending(script) is None
    script.report("worker:1", "progress", **NANS)
    assert ending(script) == ("failed", "not-a-number")
    script.report("worker:0", "progress", **NANS)  # the first is the cause
    script.report("worker:1", "ended", reason="exit", status=0, elapsed=1.0, stopped=stopped, tail=["loss nan"])
    script.close()
    assert script.count("ending") == script.count("ended") == 1
    assert script.count("incident") == 0
    assert {key: (task.attempt, task.final, task.reason) for key, task in script.state.tasks.items()} == {
        "worker:0": (1, "killed", "peer-failed"),
        "worker:1": (1, "failed", "not-a-number"),
        "main:0": (1, "killed", "peer-failed"),
    }
    reason = end_reason(script.state) or {}
    assert (reason["task"], reason["tail"]) == ("worker:1", ["loss nan"])
    assert reason["words"] == "reported loss = nan at step 7, and stop_on is nan"


def test_without_stop_on_a_metric_that_is_not_a_number_ends_nothing() -> None:
    script = Script(job(worker=role(1)))
    script.start("worker:0")
    assert script.report("worker:0", "progress", **NANS) == []


@pytest.mark.parametrize(
    ("required", "writers", "end"),
    [
        ("all", [0, 1], ("succeeded", "succeeded")),
        ("any", [1], ("succeeded", "succeeded")),
        ("any", [], ("failed", "nothing-written")),
        ("none", [], ("succeeded", "succeeded")),
    ],
)
def test_an_output_that_some_tasks_do_not_write(required: str, writers: list[int], end: tuple[str, str]) -> None:
    """`any` is judged once all tasks have ended, over those that succeeded; the failure names the output and the key."""
    script = Script(job(worker=role(2), outputs={"model": {"url": "memory://out", "required": required}}))
    script.start("worker:0", "worker:1")
    for index in range(2):
        script.report(f"worker:{index}", "ended", reason="exit", status=0, elapsed=1.0)
        written = {"files": 1, "bytes": 9, "id": f"{index}"} if index in writers else {"files": 0, "bytes": 0}
        script.report(f"worker:{index}", "uploaded", outputs={"model": written})
    script.close()
    assert ending(script) == end
    if end[1] == "nothing-written":
        reason = end_reason(script.state) or {}
        assert reason["words"] == "no task wrote a file of output model"
        assert reason["advice"] == "write to ./model; if that is usual, set outputs.model.required: none"


def test_what_was_lost_is_in_the_status() -> None:
    script = Script(job(worker=role(2), checkpoint="ckpt"))
    script.start("worker:0", "worker:1")
    script.report("worker:0", "warned", what="checkpoint", detail="nobody answers")
    script.report("worker:0", "warned", what="its storage is away", detail="for a moment")
    script.report("worker:1", "warned", what="log", bytes=7, detail="7 bytes of its output could not be written")
    assert [(loss["kind"], loss["task"]) for loss in status(script.state)["losses"]] == [
        ("checkpoint", "worker:0"), ("log", "worker:1"),
    ]  # fmt: skip
    script.report("worker:0", "checkpoint", set=3)
    assert [(loss["kind"], loss["task"]) for loss in status(script.state)["losses"]] == [("log", "worker:1")]
    assert status(load(json.loads(json.dumps(dump(script.state)))))["losses"] == status(script.state)["losses"]


def test_a_checkpoint_that_nobody_wrote_is_named_once_the_job_succeeded() -> None:
    script = Script(job(worker=role(), checkpoint="ckpt"))
    script.start("worker:0")
    assert status(script.state)["losses"] == []
    script.succeed("worker:0")
    script.close()
    (loss,) = status(script.state)["losses"]
    assert (loss["kind"], loss["set"], loss["detail"]) == ("checkpoint", None, "nothing was written at ckpt")


def test_roles_that_do_not_count_are_not_waited_for() -> None:
    script = Script(job(worker=role(), evaluator=role(), ps=role()))
    script.start("worker:0", "evaluator:0", "ps:0")
    script.succeed("worker:0")
    assert ending(script) == ("succeeded", "succeeded")


def test_a_role_that_serves_ends_the_job_when_it_fails_for_good() -> None:
    script = Script(job(worker=role(), ps=role(1, "task", 0)))
    script.start("worker:0", "ps:0")
    script.fail("ps:0")
    script.tick(SETTLE)
    assert ending(script) == ("failed", "exit")
    assert script.state.ending["task"] == "ps:0"


def test_a_watcher_that_fails_does_not() -> None:
    script = Script(job(worker=role(), evaluator=role(1, "never")))
    script.start("worker:0", "evaluator:0")
    script.fail("evaluator:0")
    script.tick(SETTLE)
    assert ending(script) is None


def test_who_had_not_begun_when_the_job_succeeded_was_not_needed() -> None:
    script = Script(
        job(worker=role(1, "task", after={"chief": "succeeded"}), chief=role(1, "task"), completion={"first": "chief"})
    )
    script.start("chief:0")
    script.succeed("chief:0")
    assert script.state.ending is not None
    assert (script.task("worker:0").final, script.task("worker:0").reason) == ("killed", "not-needed")


def test_a_watcher_whose_success_is_waited_for_ends_the_job_when_it_fails_for_good() -> None:
    script = Script(job(worker=role(), evaluator=role(1, "never"), completion={"first": "evaluator"}))
    script.start("worker:0", "evaluator:0")
    script.succeed("worker:0")
    script.fail("evaluator:0")
    script.tick(SETTLE)
    assert ending(script) == ("failed", "exit")


def test_who_waits_for_a_role_that_failed_never_starts() -> None:
    fetch, worker = role(1, "never", counts=False), role(after={"fetch": "succeeded"})
    script = Script(job(fetch=fetch, worker=worker))
    script.start("fetch:0")
    script.fail("fetch:0")
    script.tick(SETTLE)
    assert ending(script) == ("failed", "dependency-failed")


@pytest.mark.parametrize("begun", [True, False])
def test_who_waits_for_a_role_to_run_that_failed_never_starts(begun: bool) -> None:
    """Those that run already go on, for as long as none has to start again."""
    script = Script(job(gang=False, evaluator=role(1, "never"), worker=role(after={"evaluator": "running"})))
    script.start("evaluator:0")
    if begun:
        script.start("worker:0")
    else:
        script.grant("worker:0")
    script.fail("evaluator:0")
    script.tick(SETTLE)
    if begun:
        assert ending(script) is None
        script.fail("worker:0")
    assert ending(script) == ("failed", "dependency-failed")


@pytest.mark.parametrize(
    ("told", "end"),
    [
        (stimuli.KillRequested("a user"), ("killed", "killed-by-user")),
        (
            stimuli.KillRequested("spark", "its SparkContext was stopped", "killed-by-engine"),
            ("killed", "killed-by-engine"),
        ),
        (stimuli.StorageLost("the disk is full"), ("failed", "storage-lost")),
        (stimuli.SecretsLost(), ("failed", "secrets-lost")),
        (stimuli.Refused("worker:0", 1, "12 GiB"), ("failed", "refused")),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
def test_what_ends_a_job_at_any_time(told: stimuli.Stimulus, end: tuple[str, str], begun: bool) -> None:
    script = Script(job(worker=role(2, "group")))
    script.ask()
    if begun and not isinstance(told, stimuli.Refused):
        script.start("worker:0", "worker:1")
    script.take(told)
    assert ending(script) == end
    script.close()
    assert script.last("ended")["reason"] == end[1]
    assert all(task.final == "killed" for task in script.state.tasks.values())
    assert script.take(told, stimuli.KillRequested("another")) == [], "it has ended already"


def test_a_job_has_its_time() -> None:
    script = Script(job(worker=role(), timeouts={"job": "1h"}))
    script.start("worker:0")
    script.tick(3599.0)
    assert ending(script) is None
    script.tick(1.0)
    assert ending(script) == ("failed", "job-timeout")
    script.report("worker:0", "ended", reason="signal", figures={"name": "SIGTERM"}, stopped=True)
    assert script.state.tasks["worker:0"].reason == "job-timeout", "no peer of it had failed"


def test_inputs_that_are_not_there_end_it_before_anything_is_staged() -> None:
    script = Script(job(worker=role(), inputs={"train": {"url": "memory://none"}}))
    assert Step("list-inputs") in script.planned
    script.grant("worker:0")
    assert not [order for order in script.planned if isinstance(order, Order)]
    script.take(stimuli.Did((Step("list-inputs"),), {"missing": {"name": "train", "detail": "nothing matches"}}))
    assert ending(script) == ("failed", "input-missing")


@pytest.mark.parametrize("told", [{"missing": {"name": "train", "detail": "nothing matches"}}, {"listings": {}}])
def test_inputs_that_are_listed_too_late_change_no_end(told: dict[str, Any]) -> None:
    script = Script(job(worker=role(), inputs={"train": {"url": "memory://none"}}))
    script.take(stimuli.KillRequested("a user"))
    script.take(stimuli.Did((Step("list-inputs"),), told))
    assert script.count("ending") == 1
    script.close()
    assert script.last("ended")["reason"] == "killed-by-user"


# -- the order of the end --


def test_what_ends_at_once_with_a_kill_begins_no_more() -> None:
    """As where an engine was told to end all of the job, and its master hears of both afterwards."""
    script = Script(job(worker=role(2)))
    script.start("worker:0", "worker:1")
    exits = [stimuli.ContainerExited(f"worker:{i}", 1, None, "killed-by-engine") for i in range(2)]
    script.take(stimuli.MasterStarted(2), stimuli.KillRequested("an administrator"), *exits)
    assert script.count("incident") == 0
    assert [task["attempt"] for task in status(script.state)["tasks"]] == [1, 1]
    assert script.last("ended")["state"] == "killed"


@pytest.mark.parametrize("is_reported", [True, False])
def test_what_is_ordered_to_prepare_while_the_job_begins_to_end_is_stopped(is_reported: bool) -> None:
    script = Script(job(worker=role()))
    script.grant("worker:0")
    (order,) = script.planned
    assert isinstance(order, Order)
    assert order.verb == "prepare"
    script.take(stimuli.KillRequested("alice", ""), *([stimuli.Did((order,))] if is_reported else ()))
    script.report("worker:0", "ready", address="10.0.0.1")
    assert script.close()[:2] == ["stop worker:0", "leave worker:0"]
    assert script.now == 1000.0


def test_the_order_of_the_end() -> None:
    script = Script(job(worker=role(2, "group", after={"ps": "running"}), ps=role(), evaluator=role(), outputs=OUT))
    script.start("ps:0", "worker:0", "worker:1", "evaluator:0")
    script.succeed("worker:0", "worker:1")
    steps = script.close()
    order = ["commit worker:0", "stop evaluator:0", "stop ps:0", "leave ps:0", "release ps:0", "store-logs", "outputs"]
    assert sorted(order, key=steps.index) == order
    assert steps[-2:] == ["unregister", "remove-staging"]
    types = [event.type for event in script.log]
    chain = ["committers-named", "output-committed", "ending", "left", "ended"]
    assert sorted(chain, key=types.index) == chain
    assert script.last("ended")["gave_up"] == ""


def test_servers_restart_with_the_group_that_knows_their_addresses_and_are_not_waited_for() -> None:
    workers = ("worker:0", "worker:1")
    script = Script(job(worker=role(2, "group", after={"ps": "running"}), ps=role(1, "group"), outputs=OUT))
    script.start("ps:0", *workers)
    script.fail("ps:0")
    assert {order.task for order in script.planned if isinstance(order, Order) and order.verb == "stop"} == {*workers}
    script.stopped(*workers)
    script.tick(SETTLE)
    script.start("ps:0", *workers)
    assert sorted(script.last("generation-formed")["members"]) == [["ps:0", 2], ["worker:0", 2], ["worker:1", 2]]
    script.succeed("worker:0")
    assert {order.task for order in script.planned if isinstance(order, Order)} == {"worker:1"}, "its peer has finished"
    script.succeed("worker:1")
    steps = script.close()
    order = ["commit worker:0", "stop ps:0", "leave ps:0", "outputs"]
    assert sorted(order, key=steps.index) == order
    assert script.state.ending["state"] == "succeeded"


def test_containers_are_released_before_it_is_unregistered() -> None:
    script = Script(job(worker=role()))
    script.start("worker:0")
    script.take(stimuli.KillRequested("a user"))
    script.stopped("worker:0")
    script.ask()
    script.report("worker:0", "left")
    assert script.count("ended") == 1
    held = [action for action in script.planned if isinstance(action, Release)]
    for step in ("store-logs", "outputs"):
        script.take(stimuli.Did((Step(step),)))
    assert Step("unregister") not in script.planned
    script.take(stimuli.Did(tuple(held)))
    assert script.planned == [Step("unregister")]


def test_servers_stop_after_those_they_serve() -> None:
    script = Script(job(worker=role(after={"ps": "running"}), ps=role()))
    script.start("ps:0", "worker:0")
    script.take(stimuli.KillRequested("a user"))
    assert [action for action in script.planned if isinstance(action, Order)] == [Order("worker:0", 1, 1, "stop", "1")]
    script.stopped("worker:0")
    assert Order("ps:0", 1, 1, "stop", "1") in script.planned


def test_a_server_that_started_behind_those_it_serves_stops_before_them() -> None:
    script = Script(job(worker=role(), ps=role(after={"worker": "running"}), scheduler=role(after={"ps": "running"})))
    script.start("worker:0", "ps:0", "scheduler:0")
    script.take(stimuli.KillRequested("a user"))
    for key in ("scheduler:0", "ps:0", "worker:0"):
        assert [(order.task, order.verb) for order in script.planned if isinstance(order, Order)] == [(key, "stop")]
        script.stopped(key)
    script.close()


def test_an_agent_that_does_not_leave_is_not_waited_for_for_ever() -> None:
    script = Script(job(worker=role()))
    script.start("worker:0")
    script.succeed("worker:0")
    script.ask()
    script.tick(59.0)
    assert script.count("ended") == 0
    script.tick(1.0)
    assert "worker:0" in script.last("ended")["gave_up"]


@pytest.mark.parametrize("there", [True, False])
def test_outputs_are_committed_though_an_agent_is_gone(there: bool) -> None:
    """What was uploaded is the master's to commit."""
    script = Script(job(worker=role(2, "group"), outputs=OUT))
    script.start("worker:0", "worker:1")
    script.succeed("worker:0", "worker:1")
    script.exited("worker:1")
    script.ask()
    script.report("worker:0", "committed", outputs={})
    assert CommitFor("worker:1", 1) in script.planned
    if there:
        script.take(stimuli.Did((CommitFor("worker:1", 1),), {"model": {"files": 1}}))
        assert ending(script) == ("succeeded", "succeeded")
    else:
        script.take(stimuli.Did((CommitFor("worker:1", 1),), {}, "the storage is away"))
        assert ending(script) == ("failed", "commit-failed")


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("ending_already", [True, False])
def test_no_commit_is_waited_for_once_the_log_is_lost(there: bool, ending_already: bool) -> None:
    script = Script(job(worker=role(), outputs=OUT))
    script.start("worker:0")
    script.succeed("worker:0")
    assert script.task("worker:0").phase == "committing"
    if not there:
        script.exited("worker:0")
    if ending_already:
        script.take(stimuli.KillRequested("me"))
    script.take(stimuli.StorageLost("the disk is full"))
    assert not any(isinstance(action, CommitFor) for action in script.planned)
    script.close()
    assert script.last("ended")["reason"] == ("killed-by-user" if ending_already else "storage-lost")


def test_a_master_that_starts_on_an_ended_log_only_finishes_the_list() -> None:
    script = Script(job(worker=role()))
    script.start("worker:0")
    script.succeed("worker:0")
    script.ask()
    script.report("worker:0", "left")
    assert script.count("ended") == 1
    script.take(stimuli.MasterStarted(2))
    assert not any(isinstance(action, Order) for action in script.planned)
    assert not any(task.phase in LIVE for task in script.state.tasks.values())
    assert script.close()[-2:] == ["unregister", "remove-staging"]
    assert script.count("ended") == 1


def test_the_master_commits_in_the_place_of_a_lost_agent_for_as_long_as_it_takes() -> None:
    script = Script(job(worker=role(), outputs=OUT))
    script.start("worker:0")
    script.succeed("worker:0")
    script.ask()
    script.exited("worker:0")
    assert script.planned == [CommitFor("worker:0", 1)]
    script.tick(2 * COMMIT)
    assert script.count("task-failed") == 0
    script.take(stimuli.Did((CommitFor("worker:0", 1),), {"model": {"files": 1}}))
    assert ending(script) == ("succeeded", "succeeded")


# -- what users read of it --


def test_the_first_failure_is_what_users_read() -> None:
    script = Script(job(worker=role(2, "group", 0)))
    script.start("worker:0", "worker:1")
    script.report("worker:1", "ended", reason="exit", status=3, elapsed=1.0, tail=["Traceback", "ValueError: no"])
    script.fail("worker:0", elapsed=2.0)
    found = end_reason(script.state)
    assert found is not None
    assert (found["task"], found["words"], found["tail"]) == (
        "worker:1",
        "exited with status 3",
        ["Traceback", "ValueError: no"],
    )
    assert "tm logs" in found["advice"]
    assert status(script.state)["state"] == "ending"


def test_who_does_not_count_is_no_member_that_the_group_waits_for() -> None:
    """The defaults of a framework that forms one group: its evaluator watches, and is stopped in the end."""
    data = {
        "name": "x",
        "framework": "pytorch",
        "roles": {name: {"command": "true"} for name in ("worker", "evaluator")},
    }
    script = Script(job_to(job_from(data)))
    script.start("worker:0", "evaluator:0")
    script.succeed("worker:0")
    assert script.state.ending["state"] == "succeeded"
    assert [(order.task, order.verb) for order in script.planned if isinstance(order, Order)] == [
        ("evaluator:0", "stop")
    ]
    data["roles"]["evaluator"]["restart"] = "group"
    with pytest.raises(BadInput, match="neither counts nor serves"):
        job_from(data)


def test_the_first_to_succeed_waits_for_no_peer() -> None:
    outputs = {"model": {"url": "memory://out", "from": "chief"}}
    script = Script(
        job(chief=role(1, "group"), worker=role(2, "group"), completion={"first": "chief"}, outputs=outputs)
    )
    script.start("chief:0", "worker:0", "worker:1")
    script.succeed("worker:0")
    assert script.count("committers-named") == 0
    script.succeed("chief:0")
    assert script.last("committers-named")["attempts"] == [["chief:0", 1]]
    script.ask()
    script.report("chief:0", "committed", outputs={})
    assert script.state.ending["state"] == "succeeded"


def test_masters_that_die_of_the_job_end_it() -> None:
    """One after the other, each soon after it began; work that is done between them starts the count anew."""
    script, words = Script(job(worker=role(1))), "KeyError: 'x'"
    for epoch in range(2, 15):
        script.take(stimuli.MasterStarted(epoch, before=words), after=1.0)
    script.start("worker:0")
    for epoch in range(15, 34):
        script.take(stimuli.MasterStarted(epoch, before=words), after=1.0)
    script.take(stimuli.MasterStarted(34, before=words), after=60.0)
    assert script.state.ending is None
    for epoch in range(35, 55):
        assert script.state.ending is None
        script.take(stimuli.MasterStarted(epoch, before=words), after=1.0)
    assert ending(script) == ("failed", "master-failed")
    assert script.last("ending")["figures"] == {"masters": 20, "detail": words}


def test_masters_that_are_killed_or_deleted_end_no_job() -> None:
    """They leave no words: what killed them is not what the job has them do."""
    script = Script(job(worker=role(1)))
    for epoch in range(2, 60):
        script.take(stimuli.MasterStarted(epoch), after=1.0)
    assert script.state.ending is None


def test_logs_that_could_not_be_stored_are_named() -> None:
    script = Script(job(worker=role(2)))
    script.start("worker:0", "worker:1")
    script.succeed("worker:0")
    script.report("worker:0", "left", gave_up="the log could not be stored within 20 s: nobody answers")
    script.succeed("worker:1")
    script.close()
    assert status(script.state)["state"] == "succeeded"
    assert status(script.state)["gave_up"] == [
        "logs of worker:0: the log could not be stored within 20 s: nobody answers"
    ]


def test_a_task_that_never_ran_did_not_exit() -> None:
    script = Script(job(worker=role(1, "never", after={"prep": "succeeded"}), prep=role(1, "never")))
    script.start("prep:0")
    script.fail("prep:0")
    script.tick(SETTLE)
    script.close()
    words = {row["task"]: row["words"] for row in status(script.state)["tasks"]}
    assert words == {"prep:0": "exited with status 1", "worker:0": "had not started"}
