"""Members of elastic groups come and go."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import Script, job, role

from trainmaster.core.decide.elastic import CALM, GATHER, LATE, PATIENCE, RESTART, WARM_UP, WORTH, scale_fault
from trainmaster.core.machine import stimuli
from trainmaster.core.machine.actions import Ask, Order, Release
from trainmaster.core.machine.formation import formation
from trainmaster.core.machine.report import status

ELASTIC = {"min": 2, "max": 4}


def gang(begin: int = 2, *, warm: bool = False, **more: Any) -> Script:
    """Return an elastic gang whose first members run, with asks for the others under way."""
    script = Script(job(worker=role(ELASTIC, "group", warm=warm), **more))
    script.start(*[f"worker:{index}" for index in range(begin)])
    return script


def running(script: Script) -> list[str]:
    return [task.key for task in script.state.tasks.values() if task.phase == "running"]


def rejoin(script: Script, *keys: str) -> None:
    """Have the members that run stop, and all of these be started."""
    script.stopped(*running(script))
    script.start(*keys)


def wait_until_worthwhile(script: Script) -> None:
    due = script.last("change-planned")["due"]
    script.tick(due - script.now)


# -- growth of a gang --


def test_it_asks_for_what_it_may_grow_by_and_does_not_wait_for_that() -> None:
    script = gang()
    assert [task.key for task in script.state.tasks.values() if task.hold == "asked"] == ["worker:2", "worker:3"]
    script.take(stimuli.Waiting("cores", "1", "0"))
    assert status(script.state)["waiting"] == ""
    assert [row["task"] for row in status(script.state)["tasks"]] == ["worker:0", "worker:1"]


def test_it_grows_once_that_is_worth_what_it_costs() -> None:
    script = gang(scale={"every": "0s"})
    script.grant("worker:2", "worker:3")
    assert script.last("change-planned")["due"] == script.state.groups[0].began + WORTH * 2 * RESTART / 2
    wait_until_worthwhile(script)
    assert script.last("resized") == {
        "group": 0, "sizes": {"worker": 4}, "joined": ["worker:2", "worker:3"], "left": [], "restarts": True,
    }  # fmt: skip
    assert {action.task for action in script.planned if isinstance(action, Order) and action.verb == "stop"} == {
        "worker:0",
        "worker:1",
    }
    rejoin(script, "worker:0", "worker:1", "worker:2", "worker:3")
    assert script.last("generation-formed")["ranks"] == {f"worker:{index}": index for index in range(4)}
    assert {event.data["reason"] for event in script.log if event.type == "attempt-ended"} == {"members-changed"}
    assert script.count("incident") == 0
    assert script.state.restarts == 0


def test_one_that_often_restarts_grows_when_it_does() -> None:
    script = gang(scale={"every": "0s"})
    for _ in range(2):
        script.fail("worker:0")
        script.stopped("worker:1")
        script.start("worker:0", "worker:1")
    script.grant("worker:2", "worker:3")
    assert script.last("change-planned")["due"] == script.state.groups[0].began + 3 * WORTH * 2 * RESTART / 2


def test_one_that_has_just_changed_does_not_change_again_for_a_while() -> None:
    script = gang(scale={"every": "10m"})
    script.grant("worker:2", "worker:3")
    assert status(script.state)["phase"] == "running, 2 to join in 10 m"
    assert status(script.state, script.now + 60.0)["phase"] == "running, 2 to join in 9 m"
    wait_until_worthwhile(script)
    assert script.now - script.state.submitted >= 600.0


def test_newcomers_that_arrive_together_come_in_together() -> None:
    script = gang(scale={"every": "0s"})
    script.tick(1000.0)
    script.grant("worker:2")
    assert script.count("resized") == 0
    assert script.last("change-planned")["due"] == script.now + GATHER
    script.tick(1.0)
    script.grant("worker:3")
    assert script.last("resized")["joined"] == ["worker:2", "worker:3"]


def warm_ups(script: Script) -> list[str]:
    return [action.task for action in script.planned if isinstance(action, Order) and action.verb == "warm-up"]


def test_newcomers_do_their_imports_before_any_program_is_stopped() -> None:
    script = gang(warm=True, scale={"every": "0s"})
    script.tick(1000.0)
    script.grant("worker:2", "worker:3")
    assert warm_ups(script) == ["worker:2", "worker:3"]
    script.ask()
    assert warm_ups(script) == []  # both have heard of it
    script.report("worker:2", "warmed-up", why="warm")
    assert script.last("change-planned")["due"] == script.now + WARM_UP
    script.report("worker:3", "warmed-up", why="cold: no plain Python program")
    assert script.last("resized")["joined"] == ["worker:2", "worker:3"]
    assert script.state.groups[0].warming_up == 0


def test_newcomers_whose_imports_take_too_long_begin_with_them() -> None:
    script = gang(warm=True, scale={"every": "0s"})
    script.tick(1000.0)
    script.grant("worker:2", "worker:3")
    script.tick(WARM_UP)
    assert script.last("resized")["joined"] == ["worker:2", "worker:3"]
    script.report("worker:2", "warmed-up", why="warm")
    assert script.count("warmed-up") == 0
    script.stopped("worker:0", "worker:1")
    script.start("worker:0", "worker:1", "worker:2", "worker:3")
    assert script.count("generation-formed") == 2


def test_a_gang_that_restarts_anyway_does_not_wait_for_imports() -> None:
    script = gang(warm=True)
    script.grant("worker:2")
    script.fail("worker:0")
    assert script.last("resized")["joined"] == ["worker:2"]


def test_newcomers_that_are_there_before_the_first_generation_hear_then_what_theirs_will_be() -> None:
    script = Script(job(worker=role(ELASTIC, "group")))
    script.grant("worker:0", "worker:1")
    script.grant("worker:2")
    assert warm_ups(script) == []
    script.start("worker:0", "worker:1")
    script.ask()
    assert script.task("worker:2").sent == {"warm-up": "1"}


def test_a_newcomer_that_lost_its_container_makes_another_template() -> None:
    script = gang(warm=True)
    script.grant("worker:2")
    script.report("worker:2", "warmed-up", why="warm")
    script.take(stimuli.ContainerLost("worker:2", script.task("worker:2").serial))
    assert script.state.groups[0].arrived == script.state.groups[0].warming_up == 0
    script.tick(60.0)  # its back-off
    script.grant("worker:2")
    assert warm_ups(script) == ["worker:2"]


def test_one_with_a_checkpoint_grows_when_a_set_has_just_been_stored() -> None:
    script = gang(scale={"every": "0s"}, checkpoint={"path": "c", "url": "memory://c"})
    script.tick(1000.0)
    script.grant("worker:2", "worker:3")
    script.tick(1000.0)
    assert script.count("resized") == 0
    assert status(script.state)["phase"] == "running, 2 to join once a checkpoint set is stored"
    script.report("worker:0", "checkpoint", set=1)
    assert script.count("resized") == 1
    script.stopped("worker:0", "worker:1")
    assert script.last("rewound")["set"] == 1


def test_a_set_that_was_stored_long_ago_does_not_do() -> None:
    script = gang(scale={"every": "0s"}, checkpoint={"path": "c", "url": "memory://c"})
    script.report("worker:0", "checkpoint", set=1)
    script.tick(CALM + 1000.0)
    script.grant("worker:2", "worker:3")
    assert script.count("resized") == 0


def checkpointed(most: int, every: float) -> Script:
    """Return a gang of 2 to `most` members that has a checkpoint. Two of them run."""
    checkpoint = {"path": "c", "url": "memory://c", "every": f"{every:g}s"}
    script = Script(
        job(worker=role({"min": 2, "max": most}, "group", warm=False), scale={"every": "0s"}, checkpoint=checkpoint)
    )
    script.start("worker:0", "worker:1")
    return script


def grant_all(script: Script) -> None:
    script.grant(*[task.key for task in script.state.tasks.values() if task.is_spare])


@pytest.mark.parametrize("every", [300.0, 10.0])
def test_one_whose_sets_do_not_come_grows_once_that_pays_for_the_lost_work_too(every: float) -> None:
    script = checkpointed(8, every)
    grant_all(script)
    wait_until_worthwhile(script)
    assert script.count("resized") == 0
    age = script.last("change-planned")["due"] - script.state.groups[0].began
    enough = 60.0  # 6 newcomers x 60 s of age = WORTH x 2 members x (RESTART + 60 s of work)
    assert 6 * enough == pytest.approx(WORTH * 2 * (RESTART + enough))
    assert age == pytest.approx(max(LATE * every, enough))
    wait_until_worthwhile(script)
    assert len(script.last("resized")["joined"]) == 6
    assert script.last("resized")["restarts"]


def test_an_old_job_whose_store_fails_grows_while_little_was_lost_against_its_age() -> None:
    script = checkpointed(4, 10.0)
    script.tick(10000.0)
    script.report("worker:0", "checkpoint", set=1)
    script.tick(CALM + 1.0)
    grant_all(script)
    assert script.last("change-planned")["due"] == script.state.checkpoint_at + LATE * 10.0
    wait_until_worthwhile(script)
    assert script.count("resized") == 1


def test_work_that_an_earlier_restart_has_lost_is_not_charged_again() -> None:
    script = checkpointed(8, 10.0)
    script.tick(10000.0)
    script.fail("worker:0")
    script.stopped("worker:1")
    script.start("worker:0", "worker:1")
    grant_all(script)
    assert script.last("change-planned")["due"] == script.now + LATE * 10.0
    wait_until_worthwhile(script)
    assert len(script.last("resized")["joined"]) == 6


def test_one_that_restarts_anyway_takes_in_who_is_there() -> None:
    script = gang()
    script.grant("worker:2")
    script.fail("worker:0")
    assert script.last("resized")["joined"] == ["worker:2"]
    assert not script.last("resized")["restarts"]
    script.stopped("worker:1")
    script.start("worker:0", "worker:1", "worker:2")
    assert len(running(script)) == 3


def test_one_that_comes_to_its_end_grows_no_more() -> None:
    script = gang(scale={"every": "0s"})
    script.report("worker:0", "ended", reason="exit", status=0)
    script.tick(1000.0)
    script.grant("worker:2", "worker:3")
    script.tick(1000.0)
    assert script.count("resized") == 0
    script.report("worker:1", "ended", reason="exit", status=0)
    script.ask()
    for key in ("worker:2", "worker:3"):
        script.report(key, "left")
    assert script.state.ending["state"] == "succeeded"


def test_growth_that_is_refused_ends_nothing() -> None:
    script = gang()
    script.take(stimuli.Refused("worker:2", 1, "too large"), stimuli.Refused("worker:3", 1, "too large"))
    assert script.state.ending is None
    script.ask()
    assert [task.key for task in script.state.tasks.values() if task.hold == "asked"] == []


def test_growth_that_is_lost_is_asked_for_again_later() -> None:
    script = gang()
    script.grant("worker:2")
    script.take(stimuli.ContainerExited("worker:2", 1, -9))
    assert script.count("incident") == 0
    assert not [action for action in script.planned if isinstance(action, Ask)]
    script.tick(31.0)
    assert [action.task for action in script.planned if isinstance(action, Ask)] == ["worker:2"]
    assert status(script.state)["waiting"] == ""


# -- members that are lost --


def lose(script: Script, key: str) -> None:
    script.take(stimuli.ContainerLost(key, script.task(key).serial))
    script.stopped(*[other for other in running(script) if other != key])


def test_one_goes_on_without_a_member_that_it_gets_no_container_for() -> None:
    script = gang(4)
    lose(script, "worker:1")
    script.take(stimuli.Waiting("cores", "1", "0", "worker:1 waits for 1 core"))
    assert status(script.state)["waiting"]
    script.ready("worker:0", "worker:2", "worker:3")
    assert script.last("resized")["left"] == ["worker:1"]
    assert script.last("generation-formed")["ranks"] == {"worker:0": 0, "worker:2": 1, "worker:3": 2}
    assert status(script.state)["waiting"] == ""
    formed = formation(script.state, script.state.groups[0])
    assert {peer.task: peer.place for peer in formed.peers} == {"worker:0": 0, "worker:2": 1, "worker:3": 2}
    assert script.task("worker:1").hold == "asked"  # it may come back


def test_a_container_that_may_still_come_is_waited_for_a_while() -> None:
    script = gang(3)
    lose(script, "worker:1")
    script.ready("worker:0", "worker:2")
    assert script.count("resized") == 0
    script.tick(PATIENCE)
    assert script.last("resized")["left"] == ["worker:1"]


def test_one_that_is_granted_in_time_stays_a_member() -> None:
    script = gang(3)
    lose(script, "worker:1")
    script.ready("worker:0", "worker:2")
    script.grant("worker:1")
    script.ready("worker:1")
    assert script.count("resized") == 0
    assert script.last("generation-formed")["generation"] == 2
    assert len(script.last("generation-formed")["members"]) == 3


def test_one_below_its_least_waits_and_says_so() -> None:
    script = gang(2)
    lose(script, "worker:1")
    script.ready("worker:0")
    script.take(stimuli.Waiting("cores", "1", "0", "worker:1 waits for 1 core"))
    script.tick(1000.0)
    assert script.count("resized") == 0
    assert status(script.state)["waiting"] == "worker:1 waits for 1 core"


def test_files_are_divided_anew_among_those_who_are_left() -> None:
    script = gang(3, inputs={"train": {"url": "memory://data", "as": "list", "split": "again"}})
    assert script.count("sized") == 1
    script.take(stimuli.Did(tuple(action for action in script.planned), {"listings": {"train": {"files": []}}}))
    script.start("worker:0", "worker:1", "worker:2")
    lose(script, "worker:2")
    script.take(stimuli.Waiting("cores", "1", "0"))
    script.ready("worker:0", "worker:1")
    assert script.last("resized")["restarts"]
    script.stopped("worker:0", "worker:1")
    script.start("worker:0", "worker:1")
    assert sorted(running(script)) == ["worker:0", "worker:1"]


# -- tasks that restart alone --


def test_tasks_that_restart_alone_join_as_they_come() -> None:
    script = Script(job(worker=role({"min": 1, "max": 3}), gang=False))
    script.start("worker:0")
    script.start("worker:2")
    assert sorted(running(script)) == ["worker:0", "worker:2"]
    assert script.last("resized") == {
        "group": 0,
        "sizes": {"worker": 2},
        "joined": ["worker:2"],
        "left": [],
        "restarts": False,
    }
    script.succeed("worker:0")
    script.grant("worker:1")
    assert script.count("resized") == 1  # its peers come to their end
    script.succeed("worker:2")
    assert script.state.ending["state"] == "succeeded"


@pytest.mark.parametrize("scope", ["task", "group"])
def test_none_joins_while_what_a_finished_program_has_made_is_stored(scope: str) -> None:
    script = Script(job(worker=role({"min": 1, "max": 2}, scope), gang=False, outputs={"model": "memory://out"}))
    script.start("worker:0")
    script.report("worker:0", "ended", reason="exit", status=0, elapsed=1.0)
    script.grant("worker:1")
    script.report("worker:0", "uploaded", outputs={})
    assert script.task("worker:0").phase == "committing"
    script.report("worker:0", "committed", outputs={})
    assert script.count("resized") == 0
    assert script.state.ending["state"] == "succeeded"


def test_the_job_does_not_wait_for_one_that_lost_its_container() -> None:
    script = Script(job(worker=role({"min": 1, "max": 2}), gang=False))
    script.start("worker:0")
    script.start("worker:1")
    script.take(stimuli.ContainerExited("worker:0", 1, None, "preempted"))
    assert script.last("resized")["left"] == ["worker:0"]
    script.ask()
    assert script.task("worker:0").hold == "asked"
    script.succeed("worker:1")
    assert script.state.ending["state"] == "succeeded"


def test_divided_files_keep_tasks_that_restart_alone_at_their_size() -> None:
    inputs = {"train": {"url": "memory://data", "as": "list", "split": "again"}}
    script = Script(job(worker=role({"min": 1, "max": 3}), gang=False, inputs=inputs))
    assert script.last("sized") == {"group": 0, "sizes": {"worker": 3}, "elastic": []}


# -- what users ask for --


def test_a_user_may_have_less_at_once() -> None:
    script = gang(4)
    script.take(stimuli.ScaleRequested("worker", 2, "a user"))
    assert script.last("resized")["left"] == ["worker:3", "worker:2"]
    rejoin(script, "worker:0", "worker:1")
    script.ask()
    assert {order.task for order in script.planned if isinstance(order, Order | Release)} <= {"worker:2", "worker:3"}
    for key in ("worker:2", "worker:3"):
        script.report(key, "left")
    script.ask()
    assert script.task("worker:2").hold == "none"
    assert script.task("worker:3").hold == "none"
    script.tick(1000.0)
    assert not [action for action in script.planned if isinstance(action, Ask)]


def test_members_with_a_part_of_their_own_leave_from_the_last_one_once_they_run() -> None:
    script = Script(job(table=role({"min": 1, "max": 4, "start": 3}, "task", limit=9)))
    script.start("table:0", "table:1", "table:2")
    script.take(stimuli.ContainerLost("table:1", script.task("table:1").serial))
    script.fail("table:2")
    script.take(stimuli.ScaleRequested("table", 2, "a user"))
    assert script.count("resized") == 0
    script.start("table:1", "table:2")
    assert script.last("resized")["left"] == ["table:2"]


def test_a_user_may_have_more_without_waiting_for_its_worth() -> None:
    script = gang(scale={"every": "1h"})
    script.take(stimuli.ScaleRequested("worker", 3, "a user"))
    assert status(script.state)["waiting"] == "waiting for containers: 1 x worker, for which tm scale asked"
    script.grant("worker:2")
    assert status(script.state)["waiting"] == ""
    assert script.last("resized")["joined"] == ["worker:2"]
    assert script.task("worker:3").hold == "none"
    assert len([task for task in script.state.tasks.values() if not task.is_spare]) == 3


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("worker", 1, "worker has 2 to 4 members (replicas), and cannot have 1"),
        ("worker", 5, "cannot have 5"),
        ("nobody", 2, "there is no role nobody; the job has worker, ps"),
        ("ps", 2, "the members of ps do not change"),
        ("worker", 3, ""),
    ],
)
def test_what_no_role_can_have_is_refused(name: str, size: int, words: str) -> None:
    script = Script(job(worker=role(ELASTIC, "group"), ps=role(1)))
    assert words in scale_fault(script.state, name, size)
    script.take(stimuli.ScaleRequested(name, size, "a user"))
    assert script.count("scale-requested") == (not words)


def test_a_user_may_end_one_attempt() -> None:
    script = gang()
    script.take(stimuli.KillTaskRequested("worker:1", "a user", "it is slow"))
    assert script.last("attempt-written-off")["reason"] == "killed-by-user"
    assert not script.last("incident")["costs"]
    assert Release("worker:1", 1) in script.planned
    script.stopped("worker:0")
    script.start("worker:0", "worker:1")
    assert status(script.state)["tasks"][1]["past"][0]["words"] == "was killed by a user: it is slow"


def test_an_attempt_that_is_none_cannot_be_ended() -> None:
    script = gang()
    for key in ("worker:3", "worker:9"):
        assert not script.take(stimuli.KillTaskRequested(key, "a user"))


# -- a role whose size changes when asked alone --


def asked(script: Script) -> list[str]:
    script.ask()
    return [task.key for task in script.state.tasks.values() if task.hold == "asked"]


@pytest.mark.parametrize("auto", ["off", "on"])
def test_a_role_with_a_start_begins_with_it_and_changes_when_asked_alone(auto: str) -> None:
    script = Script(job(table=role({"min": 1, "max": 4, "start": 2}, "task"), scale={"auto": auto, "every": "0s"}))
    script.grant("table:0")
    assert script.state.groups[0].sizes is None  # its least number is no beginning
    script.start("table:1", "table:0")
    assert running(script) == ["table:0", "table:1"]
    assert not asked(script)
    script.take(stimuli.ScaleRequested("table", 3, "user"))
    assert asked(script) == ["table:2"]
    script.grant("table:2")
    assert script.last("resized")["sizes"] == {"table": 3}
    script.take(stimuli.ScaleRequested("table", 1, "user"))
    assert script.last("resized")["sizes"] == {"table": 1}
    script.take(stimuli.ScaleRequested("table", None, "user"))
    assert script.state.groups[0].requested == {"table": 2}


def test_a_member_of_a_role_with_a_start_is_not_left_out_when_its_container_is_lost() -> None:
    script = Script(job(table=role({"min": 1, "max": 4, "start": 2}, "task")))
    script.start("table:0", "table:1")
    script.take(stimuli.ContainerLost("table:1", 1, "node-lost", {}))
    assert script.state.groups[0].sizes == {"table": 2}
    assert asked(script) == ["table:1"]
