"""What a failure costs and leads to: scopes, budgets, back-off, and how the root cause is settled."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted import Script, job, role

from trainmaster.core.decide.drive import PASSED_A_TURN
from trainmaster.core.decide.failures import FREE_LIMIT, FREE_RUN, LONGEST_WAIT, QUICK_KILL, QUICK_RUN, backoff
from trainmaster.core.decide.limits import SETTLE
from trainmaster.core.fold.changes import fold
from trainmaster.core.machine import stimuli
from trainmaster.core.machine.actions import Ask, Order, Release, Step
from trainmaster.core.machine.events import Event, decode, encode
from trainmaster.core.machine.reasons import words
from trainmaster.core.machine.snapshot import dump, load
from trainmaster.core.machine.state import State
from trainmaster.core.machine.units import Unit, unit_from

PAIR = ("worker:0", "worker:1")


def running(scope: str = "group", limit: int = 3, tasks: int = 2, **more: Any) -> Script:
    script = Script(job(worker=role(tasks, scope, limit), **more))
    script.start(*[f"worker:{index}" for index in range(tasks)])
    return script


# -- scopes --


@pytest.mark.parametrize(
    ("scope", "attempts", "stopped"),
    [("group", [2, 2], ["worker:1"]), ("task", [2, 1], []), ("never", [1, 1], ["worker:1"])],
)
def test_scope_says_what_restarts(scope: str, attempts: list[int], stopped: list[str]) -> None:
    script = running(scope)
    script.fail("worker:0")
    if scope == "never":
        script.tick(10.0)  # nothing restarts, so its cause is settled first
    assert [order.task for order in script.planned if isinstance(order, Order) and order.verb == "stop"] == stopped
    script.stopped(*stopped)
    assert [script.task(key).attempt for key in PAIR] == attempts
    assert (script.state.ending is not None) == (scope == "never")


@pytest.mark.parametrize("scope", ["group", "task"])
@pytest.mark.parametrize("reason", ["command-not-found", "not-executable", "cannot-go-on"])
def test_what_would_end_so_again_is_not_started_again(scope: str, reason: str) -> None:
    script = running(scope, tasks=1)
    script.fail("worker:0", reason=reason)
    script.tick(SETTLE)
    assert script.state.ending is not None
    assert script.task("worker:0").attempt == 1


def test_a_restarted_group_forms_the_next_generation_with_its_ranks() -> None:
    script = running()
    first = script.last("generation-formed")
    script.fail("worker:1")
    script.stopped("worker:0")
    assert script.count("generation-formed") == 1
    script.ready(*PAIR)
    second = script.last("generation-formed")
    assert (first["generation"], second["generation"]) == (1, 2)
    assert first["ranks"] == second["ranks"] == {"worker:0": 0, "worker:1": 1}
    assert second["members"] == [["worker:0", 2], ["worker:1", 2]]


def test_peers_of_a_program_that_failed_stop_at_once_and_all_begin_from_the_set_that_it_still_stores() -> None:
    script = running(checkpoint={"path": "ckpt"})
    script.report("worker:0", "died", reason="signal", figures={"name": "SIGKILL"}, elapsed=5.0)
    assert {order.task for order in script.planned if order.verb == "stop"} == {*PAIR}
    assert script.last("incident")["cause"]["reason"] == "signal"
    script.report("worker:1", "ended", reason="exit", status=1, elapsed=5.1)
    script.tick(11.0)  # storing takes longer than a cause is looked for
    assert script.last("settled")["cause"]["task"] == "worker:0"
    script.report("worker:0", "checkpoint", set=4, files=1, bytes=1, marks={})
    assert script.count("rewound") == 0
    script.report("worker:0", "ended", reason="signal", figures={"name": "SIGKILL"}, elapsed=5.0)
    assert script.last("rewound")["set"] == 4
    assert {(order.task, order.verb) for order in script.planned} == {("worker:0", "prepare"), ("worker:1", "prepare")}
    assert [script.task(key).past[-1].reason for key in PAIR] == ["signal", "exit"]
    assert script.state.restarts == 1


def test_a_death_told_late_is_the_cause_though_its_set_is_still_stored() -> None:
    script = running(limit=0, checkpoint={"path": "ckpt"})
    script.fail("worker:1", elapsed=5.1)
    script.report("worker:0", "died", reason="signal", figures={"name": "SIGKILL"}, elapsed=5.0)
    script.tick(11.0)
    assert (script.last("task-failed")["task"], script.last("ending")["reason"]) == ("worker:0", "signal")


def test_a_program_that_failed_for_good_is_over_when_its_set_is_stored() -> None:
    script = running("task", limit=0, tasks=1, checkpoint={"path": "ckpt"})
    script.report("worker:0", "died", reason="exit", status=1, elapsed=5.0)
    assert script.count("task-failed") == 0
    script.report("worker:0", "checkpoint", set=1, files=1, bytes=1, marks={})
    script.report("worker:0", "ended", reason="exit", status=1, elapsed=5.0)
    assert script.last("ending")["reason"] == "exit"
    assert (script.count("incident"), script.state.checkpoint["set"]) == (1, 1)


def test_nobody_is_prepared_before_all_of_the_last_generation_have_stopped() -> None:
    script = running()
    script.fail("worker:0")
    assert [(order.task, order.verb) for order in script.planned] == [("worker:1", "stop")]
    script.stopped("worker:1")
    assert {(order.task, order.verb) for order in script.planned} == {("worker:0", "prepare"), ("worker:1", "prepare")}


def test_a_task_that_restarts_alone_takes_its_old_place() -> None:
    script = running("task")
    script.fail("worker:1")
    script.ready("worker:1")
    joined = script.last("member-joined")
    assert (joined["task"], joined["attempt"], joined["generation"], joined["rank"]) == ("worker:1", 2, 1, 1)
    assert script.count("generation-formed") == 1


# -- budgets --


@pytest.mark.parametrize("scope", ["group", "task"])
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_limit_restarts_at_the_programs_fault(scope: str, limit: int) -> None:
    script = running(scope, limit, tasks=1)
    for spent in range(1, limit + 1):
        script.fail("worker:0", after=20.0)
        assert script.last("incident")["spent"] == spent
        assert script.last("incident")["again"]
        script.start("worker:0")
    script.fail("worker:0", after=20.0)
    script.tick(10.0)
    assert script.state.restarts == limit
    assert script.last("task-failed")["reason"] == "exit"
    assert script.last("ending")["state"] == "failed"


def test_one_budget_for_all_tasks_of_a_role() -> None:
    script = running("task", limit=2)
    for key in (*PAIR, "worker:0"):
        script.fail(key, after=20.0)
        if script.last("incident")["again"]:
            script.start(key)
    assert script.last("incident")["spent"] == 3
    assert not script.last("incident")["again"]


def test_progress_gives_the_budget_back() -> None:
    script = running("group", limit=1, tasks=1)
    for step in range(5):
        script.fail("worker:0", after=40.0)
        assert script.last("incident")["spent"] == 1
        script.start("worker:0")
        script.report("worker:0", "progress", value=0.1 * step)
        assert script.last("progressed")["value"] == 0.1 * step
    assert script.state.budgets == {}
    script.report("worker:0", "progress", value=0.6)
    assert script.count("progressed") == 5, "an event only where it gives something back"


@pytest.mark.parametrize("scope", ["group", "task"])
@pytest.mark.parametrize("name", ["value", "step"])
def test_the_same_progress_before_each_failure_gives_no_budget_back(scope: str, name: str) -> None:
    script = running(scope, limit=3)
    best = {"value": 0.42, "step": 42}[name]
    while script.state.ending is None:
        script.report("worker:0", "progress", **{name: best})
        script.report("worker:0", "ended", reason="exit", status=1, elapsed=1.0, reached={name: best})
        if scope == "group" and script.last("incident")["again"]:
            script.stopped("worker:1")
        script.tick(10.0)
        if script.state.ending is None:
            script.start(*(PAIR if scope == "group" else ("worker:0",)))
        assert script.state.restarts <= 3
    assert script.state.restarts == 3
    assert script.state.ending["reason"] == "exit"


def test_only_progress_beyond_the_best_of_the_whole_group_gives_its_budget_back() -> None:
    script = running("group", limit=1)
    script.report("worker:1", "ended", reason="exit", status=1, elapsed=1.0, reached={"value": 0.5})
    script.stopped("worker:0")
    script.start(*PAIR)
    script.report("worker:0", "progress", value=0.4)
    assert script.count("progressed") == 0, "its peer was further"
    script.report("worker:0", "progress", metrics={"loss": 0.1})
    assert script.count("progressed") == 0
    script.report("worker:0", "progress", value=0.6)
    assert (script.count("progressed"), script.state.budgets) == (1, {})


def test_a_peer_that_gets_further_gives_nothing_back_of_a_task_that_always_fails() -> None:
    script = running("task", limit=2)
    for step in range(1, 4):
        script.report("worker:1", "progress", step=step)
        script.report("worker:0", "progress", value=0.42)
        script.report("worker:0", "ended", reason="exit", status=1, elapsed=1.0, reached={"value": 0.42})
        assert script.last("incident")["spent"] == step
        script.tick(400.0)
        if script.state.ending is None:
            script.start("worker:0")
    assert (script.state.restarts, script.last("ending")["reason"]) == (2, "exit")


def test_a_task_that_gets_further_gives_back_what_it_spent_of_its_roles_budget() -> None:
    script = running("task", limit=3)
    script.fail("worker:0", after=20.0)
    script.fail("worker:1", after=20.0)
    script.start(*PAIR)
    script.report("worker:1", "progress", value=0.5)
    script.fail("worker:0", after=20.0)
    assert script.last("incident")["spent"] == 2
    script.start("worker:0")
    script.report("worker:0", "progress", value=0.5)
    assert script.state.budgets.get(Unit("role", "worker")) is None


@pytest.mark.parametrize("reports", [True, False])
def test_checkpoint_sets_stored_before_each_failure_do_not_keep_a_job_for_ever(reports: bool) -> None:
    restart = {"scope": "group", "limit": 2, "total": 7}
    script = Script(job(worker={**role(), "restart": restart}, checkpoint={"path": "ckpt"}))
    reached = {"reached": {"value": 0.42}} if reports else {}
    sets = 0
    while script.state.ending is None:
        script.start("worker:0")
        sets += 1
        script.report("worker:0", "checkpoint", set=sets, files=1, bytes=1, marks={})
        script.report("worker:0", "ended", reason="exit", status=1, elapsed=1.0, **reached)
        script.tick(400.0)
    # The set of the first attempt after a failure is stored by a program whose progress is known.
    assert script.state.restarts == (2 if reports else 7)
    assert script.state.ending["reason"] == ("exit" if reports else "restarts-exhausted")


def test_parts_that_are_committed_before_each_failure_do_not_keep_a_job_for_ever() -> None:
    """A program that always fails at one shard, and commits another one in each attempt."""
    listing = {"train": {"files": [["data", 40 * 1024, None]], "shards": {"size": 1024}}}
    script = Script(
        job(
            worker={**role(), "restart": {"scope": "task", "limit": 2, "total": 7}},
            inputs={"train": {"url": "memory://data", "as": "shards"}}, outputs={"rows": {"url": "memory://rows"}},
        )
    )  # fmt: skip
    script.take(stimuli.Did((Step("list-inputs"),), {"listings": listing}))
    shards = 0
    while script.state.ending is None:
        script.start("worker:0")
        shards += 1
        script.report("worker:0", "shards-done", input="train", ranges=[[shards, shards + 1]])
        script.report("worker:0", "part", number=1, outputs={}, kept={"train": [[shards, shards + 1]]})
        script.report("worker:0", "ended", reason="exit", status=1, elapsed=1.0)
        script.tick(400.0)
    assert (script.state.restarts, script.state.ending["reason"]) == (7, "restarts-exhausted")


def test_quick_failures_back_off_and_a_long_run_ends_the_row() -> None:
    script = running("task", limit=50, tasks=1)
    waits = []
    for number in range(14):
        script.fail("worker:0", after=QUICK_RUN if number == 12 else 1.0)
        waits.append(script.last("incident")["until"] - script.now)
        assert script.task("worker:0").blocked == (waits[-1] > 0)
        script.tick(waits[-1])
        script.start("worker:0")
    assert waits[0] == 0.0
    for number, wait in enumerate(waits[1:12]):
        expected = min(LONGEST_WAIT, 0.25 * 2.0**number)
        assert 0.75 * expected <= wait <= 1.25 * expected
    assert (waits[12], 0.75 * 0.25 <= waits[13] <= 1.25 * 0.25) == (0.0, True)


KILLED = {"reason": "signal", "figures": {"name": "SIGKILL"}}


@pytest.mark.parametrize(
    ("ran", "how", "waits"),
    [
        (QUICK_KILL, KILLED, False),
        (QUICK_KILL - 0.1, KILLED, True),
        (QUICK_RUN - 0.1, {"reason": "signal", "figures": {"name": "SIGSEGV"}}, True),
    ],
)
def test_a_program_that_somebody_kills_begins_again_at_once(ran: float, how: dict[str, Any], waits: bool) -> None:
    script = running("group", limit=50, tasks=1)
    for number in range(5):
        script.report("worker:0", "ended", elapsed=ran, after=ran, **how)
        assert (script.last("incident")["until"] > script.now) == (waits and number > 0)
        script.tick(10.0)
        script.start("worker:0")


def test_the_error_of_a_peer_that_is_reported_first_makes_no_kill_a_quick_failure() -> None:
    script = running("group", limit=50)
    for _ in range(5):
        script.now += 5.0
        script.fail("worker:0", status=1, elapsed=5.1)
        assert script.last("incident")["quick"] <= 2
        script.report("worker:1", "ended", elapsed=5.0, **KILLED)
        script.tick(1.0)
        script.start(*PAIR)
    script.tick(SETTLE)
    assert (script.last("settled")["cause"]["task"], script.last("settled")["quick"]) == ("worker:1", 1)


def test_attempts_that_a_user_ends_begin_again_at_once_however_often() -> None:
    script = running("task", limit=0, tasks=1)
    for _ in range(FREE_LIMIT + 2):
        script.take(stimuli.KillTaskRequested("worker:0", "ada", ""))
        assert (script.last("incident")["until"], script.last("incident")["free"]) == (script.now, 0)
        script.grant("worker:0")
        script.start("worker:0")
    assert script.state.ending is None


# -- names of roles --


@pytest.mark.parametrize("name", ["group", "role", "task", "master", "0", "a.b-c_d"])
@pytest.mark.parametrize("scope", ["group", "task"])
def test_a_role_may_be_named_as_a_unit_is(name: str, scope: str) -> None:
    """A role named `group` ended the job as `master-failed`: its tasks were taken for the number of a group."""
    script = Script(job(**{name: role(2, scope, 1)}))
    pair = (f"{name}:0", f"{name}:1")
    script.grant(*pair)
    script.exited(pair[0])  # before an attempt began in it
    script.tick(5.0)
    script.start(*pair)
    script.fail(pair[0])
    if scope == "group":
        script.stopped(pair[1])
    script.tick(10.0)
    script.start(*(pair if scope == "group" else pair[:1]))
    script.fail(pair[0])
    script.tick(10.0)
    assert (script.state.ending["reason"], script.state.restarts) == ("exit", 2)
    replayed = fold(State(), [decode(encode(event)) for event in script.log])
    assert dump(replayed) == dump(script.state) == dump(load(json.loads(json.dumps(dump(script.state)))))


def test_units_are_told_apart_by_their_text() -> None:
    units = [
        Unit(kind, name)
        for kind, names in {"group": ("0", "1"), "role": ("group", "role", "task", "0"),
                            "task": ("group:0", "role:0", "task:0", "0:0", "worker:1")}.items()
        for name in names
    ]  # fmt: skip
    assert len({unit.text for unit in units}) == len(units)
    assert [unit_from(unit.text) for unit in units] == units
    assert [unit_from(text) for text in ("group:3", "role:ps", "worker:1")] == [
        Unit("group", "3"), Unit("role", "ps"), Unit("task", "worker:1"),
    ]  # fmt: skip


def test_a_log_of_before_replays_as_it_was() -> None:
    """Without `quick`, `total` and `refunds`: each progress gave the budget back, and each set."""
    script = running("group", limit=3, tasks=1, checkpoint={"path": "ckpt"})
    script.fail("worker:0")
    fact = {"task": "worker:0", "attempt": 1, "report": 9}
    cause = {"task": "worker:0", "attempt": 1, "reason": "exit", "figures": {}, "elapsed": 1.0}
    old = {"unit": "group:0", "budget": "group:0", "cause": cause, "costs": True, "spent": 2, "limit": 3, "free": 0, "again": True,
           "until": 0.0, "generation": 1}  # fmt: skip
    for kind, data in (("progressed", {"value": 0.42}), ("checkpoint-saved", {"set": 1})):
        script.state.budgets.clear()
        for spent in (1, 2):
            n = script.state.n + 1
            fold(script.state, [Event(n, script.now, 1, "incident", {**old, "spent": spent})])
            assert script.state.budgets[Unit("group", "0")].spent == spent
            fold(script.state, [Event(n + 1, script.now, 1, kind, {**fact, **data})])
            assert script.state.budgets == {}


def test_one_root_cause_costs_one() -> None:
    script = running("group", tasks=3)
    script.fail("worker:0", elapsed=5.0)
    script.fail("worker:1", elapsed=5.1)
    script.fail("worker:2", elapsed=5.2)
    assert script.count("incident") == 1
    assert script.state.restarts == 1
    script.tick(10.0)
    assert script.last("settled")["spent"] == 1


# -- free restarts --


def test_what_is_not_the_programs_fault_is_free_backs_off_and_ends() -> None:
    script = running("group", limit=0, tasks=1)
    waits = []
    for free in range(1, FREE_LIMIT + 1):
        script.exited("worker:0", "preempted", 143)
        incident = script.last("incident")
        assert (incident["free"], incident["spent"], incident["again"]) == (free, 0, True)
        waits.append(incident["until"] - script.now)
        blocked = incident["until"] > script.now
        assert script.task("worker:0").blocked == blocked
        assert not blocked or not any(isinstance(action, Ask) for action in script.planned)
        script.tick(LONGEST_WAIT * 1.25 if blocked else 0.0)
        script.start("worker:0")
    assert waits[0] == 0.0
    for number, wait in enumerate(waits[1:]):
        assert min(LONGEST_WAIT, 2.0**number) * 0.75 <= wait <= min(LONGEST_WAIT, 2.0**number) * 1.25
    script.exited("worker:0", "preempted", 143)
    script.tick(10.0)
    assert script.last("ending")["reason"] == "no-progress"


def test_back_off_differs_by_its_seed_alone() -> None:
    assert backoff(1, "a") == 0.0
    assert backoff(5, "a") == backoff(5, "a") != backoff(5, "b")


def test_a_long_run_breaks_the_row() -> None:
    script = running("group", tasks=1)
    for _ in range(FREE_LIMIT + 5):
        script.tick(FREE_RUN)
        script.exited("worker:0", "node-lost")
        assert script.last("incident")["free"] == 1
        script.start("worker:0")


# -- settling --


def test_the_engines_word_refunds() -> None:
    script = running()
    script.fail("worker:0", "signal", name="SIGKILL")
    assert (script.last("incident")["costs"], script.last("incident")["spent"]) == (True, 1)
    script.exited("worker:0", "preempted", 143, by="another")
    script.tick(10.0)
    settled = script.last("settled")
    assert (settled["cause"]["reason"], settled["costs"], settled["spent"], settled["free"]) == (
        "preempted",
        False,
        0,
        1,
    )


def test_a_death_beats_an_error_told_earlier() -> None:
    script = running()
    script.fail("worker:1", elapsed=3.0)  # lost its peer, and said so first
    script.fail("worker:0", "signal", name="SIGSEGV", elapsed=4.0)
    script.tick(10.0)
    assert script.last("settled")["cause"]["task"] == "worker:0"
    assert script.last("settled")["cause"]["reason"] == "signal"


@pytest.mark.parametrize(("first", "second", "cause"), [(5.0, 4.0, "worker:1"), (4.0, 5.0, "worker:0")])
def test_elapsed_times_order_errors_of_a_kind(first: float, second: float, cause: str) -> None:
    script = running()
    script.fail("worker:0", elapsed=first)
    script.fail("worker:1", elapsed=second)
    script.tick(10.0)
    assert script.last("settled")["cause"]["task"] == cause


def test_a_free_cause_told_first_is_charged_when_a_death_at_fault_follows() -> None:
    script = running()
    script.fail("worker:1", "address-in-use", elapsed=3.0)
    assert script.last("incident")["spent"] == 0
    script.fail("worker:0", "out-of-memory", elapsed=2.0)
    script.tick(10.0)
    assert (script.last("settled")["spent"], script.last("settled")["free"]) == (1, 0)


def test_what_is_reported_too_late_changes_nothing() -> None:
    script = running()
    script.fail("worker:0", "signal", name="SIGKILL")
    script.tick(10.0)
    assert script.last("settled")["spent"] == 1
    script.exited("worker:0", "preempted", 143)
    script.tick(10.0)
    assert script.count("settled") == 1


def test_with_no_restart_left_the_cause_is_settled_before_the_end() -> None:
    script = running(limit=0)
    script.fail("worker:1", elapsed=3.0)
    assert script.state.ending is None
    script.fail("worker:0", "out-of-memory", elapsed=4.0, used=2**30, limit=2**29)
    ending = script.last("ending")
    assert (ending["task"], ending["reason"]) == ("worker:0", "out-of-memory")
    assert ending["words"] == "used 1 GiB of 512 MiB and was killed"


def test_a_restart_that_was_charged_wrongly_is_there_again() -> None:
    script = running(limit=0, tasks=1)
    script.fail("worker:0", "signal", name="SIGKILL")
    assert not script.last("incident")["again"]
    script.exited("worker:0", "preempted", 143)
    script.tick(1.0)
    assert script.last("settled")["costs"] is False
    assert script.last("incident")["again"]
    assert script.state.ending is None
    assert script.task("worker:0").attempt == 2


def test_a_second_failure_settles_the_first() -> None:
    script = running()
    script.fail("worker:0")
    script.stopped("worker:1")
    script.ready(*PAIR)
    script.ask()
    script.report("worker:0", "started", pid=1)
    script.fail("worker:0")
    assert [event.type for event in script.log if event.type in ("incident", "settled")] == [
        "incident",
        "settled",
        "incident",
    ]
    assert script.last("incident")["spent"] == 2


def test_more_memory_after_out_of_memory() -> None:
    script = Script(job(worker=role(1, "task", retry_memory=1.5)))
    script.start("worker:0")
    script.fail("worker:0", "out-of-memory")
    assert script.task("worker:0").memory_factor == 1.5
    assert [action.verb for action in script.planned] == ["leave"], "its container is too small"
    script.ask()
    script.report("worker:0", "left")
    assert script.planned == [Release("worker:0", 1)]
    script.ask()
    assert script.planned == [Ask("worker:0", 2)]


def test_a_container_that_is_to_go_gets_no_other_attempt() -> None:
    script = Script(job(worker=role(1, "task", 1)))
    script.start("worker:0")
    script.take(stimuli.Warned("worker:0", 1, 30.0))
    script.report("worker:0", "ended", reason="exit", status=1, elapsed=1.0)
    assert [action.verb for action in script.planned] == ["leave"]
    script.ask()
    script.exited("worker:0", "preempted", None, by="another")
    assert script.planned == [Ask("worker:0", 2)]
    script.tick(SETTLE)
    assert script.last("settled")["cause"]["reason"] == "preempted"
    assert script.task("worker:0").attempt == 2
    script.start("worker:0")


@pytest.mark.parametrize("first", ["warned", "left"])
def test_another_container_is_asked_for_once_an_agent_has_left_whose_container_is_taken_back(first: str) -> None:
    """Kubernetes tells of no container before the last one of its pod has ended: with a sidecar that was 18 s later."""
    script = Script(job(worker=role(1, "task", 1)))
    script.start("worker:0")
    warned = stimuli.Warned("worker:0", 1, 30.0, "killed-by-engine", {"detail": "it was evicted"})
    if first == "warned":
        script.take(warned)
        assert script.state.admits("worker:0", 1)
        script.report("worker:0", "left")
    else:
        script.report("worker:0", "left")
        assert not script.count("attempt-written-off"), "why it has left is not known yet"
        script.take(warned)
    assert not script.state.admits("worker:0", 1)
    assert script.planned == [Release("worker:0", 1)]
    script.ask()
    assert script.planned == [Ask("worker:0", 2)]
    script.start("worker:0")
    script.take(stimuli.ContainerExited("worker:0", 1, 143, "killed-by-engine", {"detail": "it was evicted"}))
    script.tick(SETTLE)
    cause = script.last("settled")["cause"]
    assert (cause["reason"], cause["figures"]["detail"]) == ("killed-by-engine", "it was evicted")
    assert script.task("worker:0").attempt == 2
    assert script.task("worker:0").phase == "running"


def test_a_warning_of_what_may_not_come_leaves_an_agent_that_has_left_to_its_engine() -> None:
    """YARN takes a warning back, and ends the container by something else: why, it alone knows."""
    script = Script(job(worker=role(1, "task", 1)))
    script.start("worker:0")
    script.take(stimuli.Warned("worker:0", 1, 30.0))
    script.report("worker:0", "left")
    assert not script.count("attempt-written-off")
    script.exited("worker:0", "out-of-memory", 143, used=2, limit=1)
    assert script.last("incident")["cause"]["reason"] == "out-of-memory"


# -- written-off attempts --


def test_a_written_off_attempt_is_barred() -> None:
    script = running("task", outputs={"model": {"url": "memory://out"}})
    serial = script.task("worker:0").serial
    script.take(stimuli.ContainerLost("worker:0", serial))
    assert script.last("attempt-written-off")["attempt"] == 1
    assert not script.state.admits("worker:0", serial)
    before = len(script.log)
    for kind in ("ended", "uploaded", "committed", "checkpoint", "shards-done", "progress"):
        script.take(stimuli.Report("worker:0", serial, 99, 1, kind, {"reason": "exit", "status": 0}))
    script.take(stimuli.Connected("worker:0", serial, {}))
    script.take(stimuli.ContainerLost("worker:0", serial))
    assert len(script.log) == before
    script.start("worker:0")
    script.succeed("worker:0")
    assert script.last("committers-named")["attempts"] == [["worker:0", 2]]


def test_an_attempt_that_is_not_named_commits_nothing() -> None:
    script = running("group", outputs={"model": {"url": "memory://out"}})
    script.succeed("worker:0")
    script.report("worker:0", "committed", outputs={})
    assert script.count("committers-named") == script.count("output-committed") == 0
    script.succeed("worker:1")
    assert script.last("committers-named")["attempts"] == [["worker:0", 1], ["worker:1", 1]]


def test_reports_are_taken_once_and_in_their_place() -> None:
    script = running("task", tasks=1)
    old = stimuli.Report("worker:0", 1, 1, 1, "ready", {"address": "a"})
    assert script.take(old) == []
    assert script.take(stimuli.Report("worker:0", 1, 50, 1, "uploaded", {})) == [], "its program has not ended"
    assert script.take(stimuli.Report("worker:0", 1, 50, 2, "ended", {"reason": "exit", "status": 0})) == []
    assert script.take(stimuli.Report("worker:0", 2, 50, 1, "ended", {"reason": "exit", "status": 0})) == []
    assert script.take(stimuli.Report("worker:9", 1, 50, 1, "ended", {})) == []
    assert script.take(stimuli.Report("worker:0", 1, 50, 1, "no such kind", {})) == []


@pytest.mark.parametrize("scope", ["task", "group"])
def test_an_attempt_that_failed_unknown_to_the_next_master_is_followed_by_another(scope: str) -> None:
    script = Script(job(worker=role(1, scope)))
    script.grant("worker:0")
    assert script.planned == [Order("worker:0", 1, 1, "prepare", "1")], "it is sent, and the note of that is lost"
    failed = stimuli.Report("worker:0", 1, 1, 1, "ended", {"reason": "staging-failed", "elapsed": 1.0})
    script.take(stimuli.MasterStarted(2))
    script.take(stimuli.Connected("worker:0", 1, {}), failed)
    assert script.last("attempt-ended")["reason"] == "staging-failed"
    assert script.planned == [Order("worker:0", 1, 2, "prepare", "2")]
    script.exited("worker:0")
    assert script.count("incident") == 1, "the container had served an attempt: its end belongs to that failure"


# -- time --


def test_an_agent_out_of_reach_is_written_off_after_its_grace() -> None:
    script = running("task", timeouts={"grace": "30s"})
    script.take(stimuli.Disconnected("worker:0", 1))
    script.tick(30.0 + 10.0 + 5.0 + 1.9)  # its grace, its program's, the time of a kill, and nearly 2 s
    assert script.count("attempt-written-off") == 0
    script.tick(0.2)
    assert script.last("attempt-written-off")["reason"] == "unreachable"
    assert script.planned == [Release("worker:0", 1)], "the engine may hold it still"


def test_an_agent_that_comes_back_in_time_goes_on() -> None:
    script = running("task")
    script.take(stimuli.Disconnected("worker:0", 1))
    script.tick(40.0)
    script.take(stimuli.Connected("worker:0", 1, {}))
    script.tick(1000.0)
    assert script.count("attempt-written-off") == 0


@pytest.mark.parametrize("phase", ["new", "staging", "starting"])
def test_a_start_takes_no_longer_than_it_may(phase: str) -> None:
    script = Script(job(worker=role(1, "task"), timeouts={"start": "2m"}))
    script.ask()
    script.take(stimuli.Granted("worker:0", 1, "c", "node"))
    if phase != "new":
        script.take(stimuli.Connected("worker:0", 1, {}))
        script.ask()
    if phase == "starting":
        script.tick(100.0)
        script.ready("worker:0")
    assert script.task("worker:0").phase == phase
    script.tick(119.0)
    assert script.task("worker:0").hold == "granted"
    script.tick(2.0)
    assert script.task("worker:0").hold == "barred"
    assert phase == "new" or script.last("attempt-written-off")["reason"] == "start-timeout"


def test_staging_that_reports_is_waited_for() -> None:
    script = Script(job(worker=role(1, "task"), timeouts={"start": "2m"}))
    script.grant("worker:0")
    script.ask()
    for done in range(1, 10):
        script.report("worker:0", "staging", done=done, total=10, after=100.0)
    assert script.task("worker:0").phase == "staging"


def test_a_download_that_trickles_is_not_waited_for_and_its_reports_are_no_events() -> None:
    script = Script(job(worker=role(1, "task", 0), timeouts={"start": "2m"}))
    script.grant("worker:0")
    script.ask()
    for second in range(119):
        script.report("worker:0", "staging", done=400 + second, total=10_000_000, after=1.0)
    assert (script.count("staging"), script.task("worker:0").phase) == (0, "staging")
    script.tick(2.0)
    assert script.last("attempt-written-off")["reason"] == "start-timeout"


def test_a_long_download_moves_the_limit_of_its_start_by_few_events() -> None:
    script = Script(job(worker=role(1, "task", 0), timeouts={"start": "2m"}))
    script.grant("worker:0")
    script.ask()
    for second in range(1000):
        script.report("worker:0", "staging", done=second + 1, total=1000, after=1.0)
    assert script.task("worker:0").phase == "staging"
    assert 8 <= script.count("staging") <= 16


def test_many_agents_that_are_given_up_together_are_so_in_turns() -> None:
    tasks = 3 * PASSED_A_TURN
    script = Script(job(worker=role(tasks, "task")))
    keys = [f"worker:{index}" for index in range(tasks)]
    script.start(*keys)
    script.take(*(stimuli.Disconnected(key, 1) for key in keys))
    script.now += 60.0
    turns = []
    while script.drive.wake is not None and script.drive.wake <= script.now and len(turns) < 10:
        turns.append(sum(event.type == "attempt-written-off" for event in script.tick()))
    assert turns == [PASSED_A_TURN] * 3
    assert [script.task(key).attempt for key in keys] == [2] * tasks


def test_who_stopped_for_want_of_a_master_says_how_long_none_answered() -> None:
    script = running("task", tasks=1)
    script.exited("worker:0", "no-master", 78)
    cause = script.last("incident")["cause"]
    assert words(cause["reason"], cause["figures"]) == "was stopped since no master answered for 30 s"
    assert not script.last("incident")["costs"]


def test_a_container_that_is_lost_before_its_attempt_begins_backs_off_and_ends() -> None:
    script = Script(job(worker=role(1, "never")))
    waits = []
    while script.state.ending is None:
        script.grant("worker:0")
        script.exited("worker:0", status=70)
        before = script.now
        while not any(isinstance(action, Ask) for action in script.planned) and script.state.ending is None:
            script.tick(max(0.0, script.drive.wake - script.now))
        waits.append(script.now - before)
    assert script.state.ending["reason"] == "no-progress"
    assert len(waits) == 21
    assert waits[0] == 0.0
    assert 0.7 < waits[1] < 1.3
    assert 200 < waits[19] < 400
    assert script.count("attempt-ended") + script.count("attempt-written-off") == 0


def test_a_container_that_is_lost_before_the_next_attempt_of_a_lost_one_begins_counts_too() -> None:
    script = running("task", tasks=1)
    script.exited("worker:0", "node-lost", None)
    script.grant("worker:0")
    script.exited("worker:0", status=70)
    assert script.count("incident") == 2
    assert script.state.budgets[Unit("task", "worker:0")].free == 2


def test_a_container_that_is_lost_early_stops_no_peer_and_progress_forgets_it() -> None:
    script = Script(job(worker=role(2, "group")))
    for _ in range(3):
        script.ask()
        script.grant("worker:0")
        script.exited("worker:0")
        script.tick(5.0)
    script.start("worker:0", "worker:1")
    assert (script.task("worker:1").attempt, script.count("generation-formed")) == (1, 1)
    assert script.state.budgets[Unit("task", "worker:0")].free == 3
    script.report("worker:0", "progress", progress=0.5)
    assert not script.state.budgets


def test_a_container_that_cannot_be_set_up_has_as_many_restarts_as_a_failing_program() -> None:
    script = Script(job(worker=role(2, "group", 2)))
    script.grant("worker:1")
    for serial in range(1, 4):
        script.ask()
        script.grant("worker:0")
        script.exited("worker:0", reason="localization-failed")
        assert script.last("incident")["spent"] == serial
        script.tick(4.0)  # the back-off of the last one
    script.tick(SETTLE)
    assert script.state.ending["reason"] == "localization-failed"
    assert script.count("incident") == 3


def lost_early_for_good(script: Script, key: str) -> None:
    """Lose each container of the task before an attempt begins in it, until the task fails."""
    task = script.task(key)
    while not task.final:
        script.exited(key, status=70)
        while task.hold != "granted" and not task.final:
            script.tick(0.0 if script.drive.wake is None else max(0.0, script.drive.wake - script.now))
            script.ask()
            if task.hold == "asked":
                script.grant(key)


@pytest.mark.parametrize("sized", [True, False])
def test_a_gang_does_not_wait_for_a_watcher_that_failed_for_good(sized: bool) -> None:
    """Its container was lost each time before an attempt began."""
    script = Script(job(worker=role(2, "group"), evaluator=role()))
    script.grant("evaluator:0", *(PAIR if sized else ()))
    if sized:
        script.ready(*PAIR)
    lost_early_for_good(script, "evaluator:0")
    script.start(*PAIR)
    script.succeed(*PAIR)
    assert script.state.ending["reason"] == "succeeded"


def test_who_failed_before_the_gang_was_sized_and_is_none_of_it_counts_for_no_member() -> None:
    script = Script(job(worker=role({"min": 2, "max": 4}), completion={"failures": 1.0}))
    script.grant("worker:3")
    lost_early_for_good(script, "worker:3")
    script.grant("worker:0")
    assert script.count("sized") == 0
    script.start(*PAIR)
    assert script.last("sized")["sizes"] == {"worker": 2}
    script.succeed("worker:0")
    assert script.state.ending is None
    script.succeed("worker:1")
    assert script.state.ending["state"] == "succeeded"


def test_who_is_prepared_alone_does_not_wait_for_a_group_that_failed_for_good() -> None:
    script = Script(job(worker=role(2, "group", 0), helper=role(), completion={"failures": 0.7}))
    script.start(*PAIR, "helper:0")
    script.exited("helper:0")
    script.grant("helper:0")
    script.fail("worker:0")
    script.stopped("worker:1")
    script.tick(SETTLE)
    assert [script.task(key).final for key in PAIR] == ["failed", "killed"]
    script.start("helper:0")
    script.succeed("helper:0")
    assert script.state.ending["state"] == "succeeded"


def test_a_peer_that_stops_slowly_is_stopped_though_the_cause_was_settled_before() -> None:
    """Also where its agent was out of reach meanwhile."""
    script = Script(job(worker=role(2, "group", 0), helper=role(), completion={"failures": 0.7}))
    script.start(*PAIR, "helper:0")
    script.take(stimuli.Disconnected("worker:1", 1))
    script.fail("worker:0")
    script.tick(SETTLE)
    assert script.task("worker:1").final == "killed"
    script.take(stimuli.Connected("worker:1", 1, {}))
    assert Order("worker:1", 1, 1, "stop", "1") in script.planned


def test_peers_of_a_task_whose_container_never_lasted_are_stopped() -> None:
    script = Script(job(worker=role(2, "group"), helper=role(), completion={"failures": 0.7}))
    script.grant(*PAIR, "helper:0")
    script.exited("worker:0", status=70)
    script.ready("worker:1", "helper:0")
    script.grant("worker:0")
    lost_early_for_good(script, "worker:0")
    assert script.planned == [Order("worker:1", 1, 1, "stop", "1")]
    script.stopped("worker:1")
    script.start("helper:0")
    script.succeed("helper:0")
    assert script.state.ending["state"] == "succeeded"


def test_more_memory_when_the_engine_ended_the_container_too() -> None:
    script = Script(job(worker=role(1, retry_memory=1.5)))
    script.start("worker:0")
    script.exited("worker:0", "out-of-memory", 137, used=1, limit=1)
    assert script.task("worker:0").memory_factor == 1.5
    assert script.planned == [Ask("worker:0", 2)]


def test_an_agent_that_never_stops_its_program_is_written_off() -> None:
    script = Script(job(worker=role(1)))
    script.start("worker:0")
    script.take(stimuli.KillRequested("me"))
    script.ask()
    script.tick(3600.0)
    assert script.last("attempt-written-off")["reason"] == "unreachable"
    assert script.state.ended["state"] == "killed"


def test_an_order_that_came_too_late_is_waited_for_by_nobody() -> None:
    """The attempt ended while the order was on its way, and what was sent is written down after that."""
    script = Script(job(worker=role(2), ps=role(1)))
    script.start("worker:0", "worker:1", "ps:0")
    script.take(stimuli.KillRequested("me"))
    (order,) = [action for action in script.planned if isinstance(action, Order) and action.task == "worker:0"]
    script.fail("worker:0")
    script.take(stimuli.Did((order,)))
    assert ("stop", "worker:0") not in script.state.deadlines


def test_an_agent_that_never_commits_fails_the_task() -> None:
    script = Script(job(worker=role(1), outputs={"model": {"url": "memory://out"}}))
    script.start("worker:0")
    script.succeed("worker:0")
    script.ask()
    script.take(stimuli.KillRequested("me"))
    script.tick(60.0)
    assert script.state.ended is None
    script.tick(3600.0)
    assert "did not answer" in script.last("task-failed")["figures"]["detail"]
    script.tick(3600.0)
    assert script.state.ended is not None


@pytest.mark.parametrize(("growth", "again"), [(None, [True, False]), (1.5, [True, True])])
def test_the_same_memory_is_tried_once_more_and_then_no_more(growth: float | None, again: list[bool]) -> None:
    script = Script(job(worker=role(1, "task", retry_memory=growth)))
    script.start("worker:0")
    started_again = []
    for _ in range(2):
        script.fail("worker:0", "out-of-memory", used=2**30, limit=2**30)
        started_again.append(script.last("incident")["again"])
        script.tick(SETTLE)
        if growth:
            script.ask()
            script.report("worker:0", "left")
            script.ask()
            script.start("worker:0")
        elif script.state.ending is None:
            script.ready("worker:0")
            script.ask()
            script.report("worker:0", "started", pid=1)
    assert started_again == again
