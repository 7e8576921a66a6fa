"""How tasks that start together are sized, formed, started and stopped."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import Script, job, role

from trainmaster.core.decide.consequences import PARTIAL_BACKOFF
from trainmaster.core.machine import stimuli
from trainmaster.core.machine.actions import Ask, Order, Release, Step
from trainmaster.core.machine.phases import LIVE
from trainmaster.core.machine.report import status
from trainmaster.core.machine.state import Task
from trainmaster.core.states import PENDING, RUNNING, STAGING, TASK_PHASES
from trainmaster.core.timeline import Timeline
from trainmaster.web.pages.drawing import Range
from trainmaster.web.pages.job import spans
from trainmaster.words.text import task_rows

ELASTIC = {"min": 2, "max": 4}


@pytest.mark.parametrize(
    ("granted", "size"),
    [
        ([], None),
        ([0], None),
        ([0, 1], 2),
        ([1, 2], None),  # indexes have no gaps
        ([0, 2, 3], None),
        ([0, 1, 3], 2),
        ([0, 1, 2], 3),
        ([0, 1, 2, 3], 4),
    ],
)
def test_a_gang_starts_with_what_is_granted_once_the_least_is(granted: list[int], size: int | None) -> None:
    script = Script(job(worker=role(ELASTIC, "group")))
    script.ask()
    script.take(*[stimuli.Granted(f"worker:{index}", 1, "c", "node") for index in granted])
    assert (script.count("sized") and script.last("sized")["sizes"]["worker"]) == (size or 0)
    if size is not None:
        spares = [f"worker:{index}" for index in range(size, 4)]
        assert [task.key for task in script.state.tasks.values() if task.is_spare] == spares
        assert not [action for action in script.planned if isinstance(action, Release)]  # they may come in later


def test_one_that_must_not_grow_stays_at_its_size_and_what_comes_later_goes_back() -> None:
    script = Script(job(worker=role(ELASTIC, "group"), scale={"grow": False}))
    script.ask()
    script.take(stimuli.Granted("worker:0", 1, "c", "n"), stimuli.Granted("worker:1", 1, "c", "n"))
    script.ask()
    script.take(stimuli.Granted("worker:2", 1, "c", "n"))
    assert script.count("stray") == 1
    assert script.planned == [Release("worker:2", 1)]
    script.ask()
    assert script.planned == []


def test_a_gang_granted_in_part_gives_it_back_and_asks_again() -> None:
    script = Script(job(worker=role(2, "group"), timeouts={"start": "10m"}))
    script.grant("worker:0")
    script.tick(599.0)
    assert script.count("grants-returned") == 0
    script.tick(1.0)
    assert script.count("grants-returned") == 1
    script.ask()
    script.report("worker:0", "left")
    script.ask()
    assert script.task("worker:0").hold == script.task("worker:1").hold == "none"
    assert script.planned == []
    script.tick(PARTIAL_BACKOFF)
    assert {action.task for action in script.planned if isinstance(action, Ask)} == {"worker:0", "worker:1"}


def test_tasks_that_are_no_gang_start_as_they_are_granted() -> None:
    script = Script(job(worker=role(2), gang=False))
    script.start("worker:0")
    assert script.task("worker:1").hold == "asked"


def test_no_member_starts_before_all_are_prepared() -> None:
    script = Script(job(worker=role(3, "group")))
    script.grant("worker:0", "worker:1", "worker:2")
    script.ready("worker:0", "worker:2")
    assert script.count("generation-formed") == 0
    assert not [order for order in script.planned if isinstance(order, Order) and order.verb == "start"]
    script.ready("worker:1")
    assert script.last("generation-formed")["ranks"] == {"worker:0": 0, "worker:1": 1, "worker:2": 2}
    assert {order.task for order in script.planned if isinstance(order, Order)} == {"worker:0", "worker:1", "worker:2"}


def test_ranks_put_neighbours_together_and_count_only_those_that_count() -> None:
    script = Script(job(worker=role(4, "group"), ps=role()))
    script.ask()
    nodes = {"worker:0": "a", "worker:1": "b", "worker:2": "a", "worker:3": "b", "ps:0": "a"}
    for key, node in nodes.items():
        script.grant(key, node=node)
    script.ready(*nodes)
    assert script.last("generation-formed")["ranks"] == {"worker:0": 0, "worker:2": 1, "worker:1": 2, "worker:3": 3}


def test_roles_start_in_the_order_of_after() -> None:
    script = Script(job(worker=role(after={"ps": "running"}), ps=role(2)))
    script.grant("ps:0", "ps:1", "worker:0")
    script.ready("ps:0", "ps:1", "worker:0")
    assert {order.task for order in script.planned if isinstance(order, Order)} == {"ps:0", "ps:1"}
    script.ask()
    script.report("ps:0", "started")
    assert script.planned == []
    script.report("ps:1", "started")
    assert [order.task for order in script.planned if isinstance(order, Order)] == ["worker:0"]


def test_those_that_serve_start_once_all_of_their_role_were_reached() -> None:
    """So each finds the others in its file of peers; one that comes back waits for nobody."""
    script = Script(job(worker=role(), ps=role(2), gang=False))
    script.grant("ps:0", "ps:1", "worker:0")
    script.ready("ps:0", "worker:0")
    assert [order.task for order in script.planned if isinstance(order, Order)] == ["worker:0"]
    script.ask()
    script.ready("ps:1")
    assert {order.task for order in script.planned if isinstance(order, Order)} == {"ps:0", "ps:1"}
    script.ask()
    script.report("ps:0", "started")
    script.report("ps:1", "started")
    script.fail("ps:1")
    script.tick(60.0)
    script.ready("ps:1")
    assert [order.task for order in script.planned if isinstance(order, Order)] == ["ps:1"]


def test_who_waits_for_a_role_to_succeed_asks_for_nothing_before() -> None:
    script = Script(job(fetch=role(), worker=role(2, "group", after={"fetch": "succeeded"})))
    assert script.planned == [Ask("fetch:0", 1)]
    script.start("fetch:0")
    script.succeed("fetch:0")
    assert {action.task for action in script.planned if isinstance(action, Ask)} == {"worker:0", "worker:1"}


def test_nothing_is_prepared_before_the_inputs_are_listed() -> None:
    script = Script(job(worker=role(), inputs={"train": {"url": "memory://data"}}))
    script.grant("worker:0")
    assert script.planned == [Step("list-inputs")]
    script.take(stimuli.Did((Step("list-inputs"),), {"listings": {"train": {"files": [["a", 1, None]]}}}))
    assert script.planned == [Order("worker:0", 1, 1, "prepare", "1")]


def test_once_a_member_has_finished_its_peers_are_given_a_time() -> None:
    script = Script(job(worker=role(2, "group")))
    script.start("worker:0", "worker:1")
    script.succeed("worker:0")
    assert Order("worker:1", 1, 1, "peer-finished", "1") in script.planned


def test_a_save_is_ordered_of_those_that_write_outputs() -> None:
    script = Script(job(worker=role(2, "group"), outputs={"model": {"url": "memory://out", "from": "worker:0"}}))
    script.start("worker:0", "worker:1")
    script.take(stimuli.SaveRequested("2030-01-01"))
    assert script.planned == [Order("worker:0", 1, 1, "save", "2030-01-01")]
    script.ask()
    script.report("worker:0", "saved", save="2030-01-01", files=2, bytes=10)
    assert script.state.saves[0]["tasks"]["worker:0"]["files"] == 2


def test_nobody_waits_for_a_save_of_a_task_that_is_over() -> None:
    script = Script(job(worker=role(2), outputs={"model": {"url": "memory://out"}}))
    script.start("worker:0", "worker:1")
    for name in ("2030-01-01", "2030-01-02"):
        script.take(stimuli.SaveRequested(name))
    script.fail("worker:0")
    assert [list(save["left"]) for save in script.state.saves] == [["worker:1"]] * 2


def test_a_save_that_failed_is_reported_as_that_and_takes_no_other_s_place() -> None:
    outputs = {"model": {"url": "memory://out", "from": "worker:0"}}
    script = Script(job(worker=role(2, "group"), outputs=outputs, saves={"keep": 1}))
    script.start("worker:0", "worker:1")
    for name, figures in (("2030-01-01", {"files": 2, "bytes": 10}), ("2030-01-02", {"gave_up": "the disk is full"})):
        script.take(stimuli.SaveRequested(name))
        script.ask()
        script.report("worker:0", "saved", save=name, **figures)
    assert Step("prune-saves:2030-01-02") in script.planned
    script.take(stimuli.Did((Step("prune-saves:2030-01-02"),)))
    told = [(save["save"], list(save["tasks"]), list(save["failed"])) for save in status(script.state)["saves"]]
    assert told == [("2030-01-01", ["worker:0"], []), ("2030-01-02", [], ["worker:0"])]
    script.take(stimuli.SaveRequested("2030-01-03"))
    script.ask()
    script.report("worker:0", "saved", save="2030-01-03", files=1, bytes=1)
    script.take(stimuli.Did((Step("prune-saves:2030-01-03"),)))
    assert [save["save"] for save in status(script.state)["saves"]] == ["2030-01-03"]


def test_a_save_that_is_asked_for_while_old_ones_are_removed_is_still_told() -> None:
    script = Script(job(worker=role(1), outputs={"model": {"url": "memory://out"}}, saves={"keep": 1}))
    script.start("worker:0")
    for name in ("2030-01-01", "2030-01-02"):
        script.take(stimuli.SaveRequested(name))
        script.ask()
        script.report("worker:0", "saved", save=name, files=1, bytes=1)
    script.take(stimuli.SaveRequested("2030-01-03"))
    script.ask()
    script.take(stimuli.Did((Step("prune-saves:2030-01-02"),)))
    assert [(save["save"], list(save["left"])) for save in script.state.saves] == [
        ("2030-01-02", []),
        ("2030-01-03", ["worker:0"]),
    ]


def test_old_saves_are_removed_once_at_a_time() -> None:
    script = Script(job(worker=role(1), outputs={"model": {"url": "memory://out"}}, saves={"keep": 1}))
    script.start("worker:0")
    pruned = []
    for name in ("2030-01-01", "2030-01-02", "2030-01-03", "2030-01-04"):
        script.take(stimuli.SaveRequested(name))
        script.ask()
        script.report("worker:0", "saved", save=name, files=1, bytes=1)
        pruned.append([action for action in script.planned if isinstance(action, Step)])
    assert pruned == [[], *[[Step("prune-saves:2030-01-02")]] * 3]
    script.take(stimuli.Did((Step("prune-saves:2030-01-02"),)))
    assert Step("prune-saves:2030-01-03") in script.planned


def test_the_schedule_waits_for_a_save_that_is_being_made() -> None:
    outputs = {"model": {"url": "memory://out"}}
    script = Script(job(worker=role(1), outputs=outputs, saves={"every": "10s"}))
    script.start("worker:0")
    script.tick(11)
    (first,) = script.state.saves
    script.ask()
    script.tick(11)
    assert [save["save"] for save in script.state.saves] == [first["save"]]
    script.report("worker:0", "saved", save=first["save"], files=1, bytes=1)
    script.tick(11)
    assert [save["save"] == first["save"] for save in script.state.saves] == [True, False]


def test_a_new_master_repeats_what_may_be_lost() -> None:
    script = Script(job(worker=role(2, "group")))
    script.grant("worker:0", "worker:1")
    script.ask()
    script.take(stimuli.MasterStarted(2))
    assert script.planned == [], "its agents are not connected yet"
    script.take(stimuli.Connected("worker:0", 1, {}))
    assert script.planned == [Order("worker:0", 1, 1, "prepare", "1")]


def test_an_ask_that_a_dead_master_made_is_made_again() -> None:
    script = Script(job(worker=role()))
    script.ask()
    script.take(stimuli.MasterStarted(2))
    assert script.planned == [Ask("worker:0", 1)]


def test_a_group_goes_back_to_one_checkpoint_and_returns_what_came_after() -> None:
    listing = {"train": {"files": [["data", 4096, None]], "shards": {"size": 1024}}}
    given = {"train": {"url": "memory://data", "as": "shards"}}
    script = Script(job(worker=role(2, "group"), inputs=given, checkpoint={"path": "ckpt", "url": "memory://ckpt"}))
    script.take(stimuli.Did((Step("list-inputs"),), {"listings": listing}))
    script.start("worker:0", "worker:1")
    table = script.state.shards["train"]
    first, second = 0, 1
    script.report("worker:0", "shards-done", input="train", ranges=[[first, first + 1]])
    script.report("worker:0", "checkpoint", set=1, files=1, bytes=1, marks={"train": table.marks()})
    script.report("worker:1", "shards-done", input="train", ranges=[[second, second + 1]])
    script.fail("worker:0")
    assert script.count("rewound") == 0, "the others run still"
    script.stopped("worker:1")
    assert script.last("rewound")["set"] == 1
    assert script.last("shards-returned")["ranges"] == [[second, second + 1]]
    assert script.state.groups[0].set == 1


LISTING = {"train": {"files": [["data", 4096, None]], "shards": {"size": 1024}}}  # four shards


def reading(**worker: Any) -> Script:
    """Two workers that read shards."""
    given = {"train": {"url": "memory://data", "as": "shards"}}
    outputs = {"rows": {"url": "memory://rows"}}
    script = Script(job(worker=role(2, "task", **worker), inputs=given, outputs=outputs))
    script.take(stimuli.Did((Step("list-inputs"),), {"listings": LISTING}))
    script.start("worker:0", "worker:1")
    return script


def test_a_part_of_the_outputs_keeps_the_shards_that_it_holds() -> None:
    script = reading()
    part = {"rows": {"files": 1, "bytes": 5, "id": "j.worker-0.1.1.1"}}
    script.report("worker:0", "shards-done", input="train", ranges=[[0, 2]])
    script.report("worker:1", "shards-done", input="train", ranges=[[2, 3]])
    script.report("worker:0", "part", number=1, outputs=part, kept={"train": [[0, 1], [2, 3]]})
    assert script.last("part-committed")["kept"] == {"train": [[0, 1]]}, "not what another has done"
    assert script.report("worker:0", "part", number=1, outputs=part, kept={"train": [[1, 2]]}) == [], "it came twice"
    assert script.report("worker:0", "part", number=2, outputs=part, kept={"train": "all"}) == []
    script.report("worker:0", "part", number=3, outputs=part, kept={"train": [[0, 1], [3, 4]]})
    assert script.last("part-committed")["kept"] == {}, "kept before, and never done"
    script.fail("worker:0")
    assert script.last("shards-returned")["ranges"] == [[1, 2]]
    assert [kept["part"] for kept in script.state.tasks["worker:0"].parts] == [1, 3]


def test_no_part_is_committed_once_the_job_ends() -> None:
    script = reading()
    script.report("worker:0", "shards-done", input="train", ranges=[[0, 1]])
    script.take(stimuli.KillRequested("a user", ""))
    assert script.report("worker:0", "part", number=1, outputs={}, kept={"train": [[0, 1]]}) == []


def test_a_training_that_begins_anew_gives_back_what_only_its_members_had() -> None:
    script = reading()
    for task, ranges in (("worker:0", [[0, 2]]), ("worker:1", [[2, 3]])):
        in_state(script, task, 1, 1, ranges)
    begin(script, "worker:1", 2, 7, lost=True, restored=True)
    assert script.count("shards-returned") == 0, "from a checkpoint of its own: the program alone knows what is in it"
    begin(script, "worker:1", 3, 0, lost=True)
    assert script.last("shards-returned")["ranges"] == [[0, 3]]
    begin(script, "worker:0", 4, 0, lost=True)
    assert script.count("shards-returned") == 1, "nothing is left to give back"


def in_state(script: Script, task: str, number: int, step: int, ranges: list[list[int]]) -> None:
    """Report shards that are in the state of a step, in a round of a training."""
    states = [["elastic", number, step, ranges]]
    script.report(task, "shards-done", input="train", ranges=ranges, kept_by="members", states=states)


def begin(script: Script, task: str, number: int, step: int, *, lost: bool = False, restored: bool = False) -> None:
    begun = {"training": "elastic", "round": number, "step": step, "lost": lost, "restored": restored}
    script.report(task, "state-begun", **begun)


def test_what_only_the_member_that_was_a_step_ahead_had_is_read_again() -> None:
    """Its step was complete, and it was lost before any other had that sum, or its state."""
    script = reading()
    begin(script, "worker:0", 1, 0)
    in_state(script, "worker:1", 1, 1, [[0, 1]])
    in_state(script, "worker:0", 1, 2, [[1, 2]])
    begin(script, "worker:0", 2, 2)
    assert script.count("shards-returned") == 0, "the round begins with the state that has all"
    begin(script, "worker:1", 3, 1)
    assert script.last("shards-returned")["ranges"] == [[1, 2]]
    in_state(script, "worker:1", 3, 2, [[1, 2]])
    begin(script, "worker:1", 4, 2)
    assert script.count("shards-returned") == 1


def test_a_state_that_is_far_behind_has_all_read_again() -> None:
    """The master that knew of the rounds between is lost, with the members of them."""
    script = reading()
    begin(script, "worker:0", 1, 0)
    for step, ranges in ((1, [[0, 1]]), (2, [[1, 2]]), (3, [[2, 3]])):
        in_state(script, "worker:0", 1, step, ranges)
    begin(script, "worker:1", 2, 1)
    assert script.last("shards-returned")["ranges"] == [[0, 3]]


def test_what_only_the_state_of_a_round_had_that_nobody_took_is_read_again() -> None:
    """Its source was cut off before any other had that state, and its report of the shard came after the next round had begun."""
    script = reading()
    begin(script, "worker:0", 1, 0)
    begin(script, "worker:0", 2, 5)
    begin(script, "worker:1", 3, 4)
    in_state(script, "worker:0", 1, 5, [[1, 2]])
    assert script.last("shards-returned")["ranges"] == [[1, 2]]


def test_a_round_that_was_over_before_its_beginning_was_heard_of_begins_nothing() -> None:
    """The member with its state was cut off, a step ahead of those that went on without it: its shard was counted, and in no state."""
    script = reading()
    begin(script, "worker:0", 1, 0)
    begin(script, "worker:1", 3, 4)
    begin(script, "worker:0", 2, 5)
    assert script.count("state-begun") == 2
    in_state(script, "worker:0", 1, 5, [[1, 2]])
    assert script.last("shards-returned")["ranges"] == [[1, 2]]


def test_what_is_reported_of_a_state_that_the_others_went_on_without_is_read_again() -> None:
    script = reading()
    begin(script, "worker:0", 1, 0)
    begin(script, "worker:1", 2, 4)
    in_state(script, "worker:0", 1, 4, [[0, 1]])
    assert script.count("shards-returned") == 0, "the others had completed that step"
    in_state(script, "worker:0", 1, 5, [[1, 2]])
    assert script.last("shards-returned")["ranges"] == [[1, 2]]
    assert script.state.shards["train"].remaining().to_json() == [[1, 4]]


def test_a_checkpoint_without_its_set_is_no_report_of_ours() -> None:
    script = Script(job(worker=role(), checkpoint={"path": "ckpt"}))
    script.start("worker:0")
    for _ in range(2):
        assert script.report("worker:0", "checkpoint", files=1) == []


# -- clocks --


@pytest.mark.parametrize("wrong", [-3600.0, 0.0])
def test_a_clock_that_is_behind_delays_nothing(wrong: float) -> None:
    """A successor on a machine whose clock is an hour behind: times of events do not fall, and back-offs end when they should."""
    script = Script(job(worker=role(1, "task")))
    script.start("worker:0")
    script.exited("worker:0", "preempted")
    script.start("worker:0")
    script.exited("worker:0", "preempted")
    assert script.task("worker:0").blocked
    begun = script.log[-1].at
    script.drive = type(script.drive)(script.state)
    script.now += wrong
    script.take(stimuli.MasterStarted(2))
    assert script.drive.wake is not None
    assert script.now < script.drive.wake <= script.now + 1.25
    script.now = script.drive.wake
    script.tick()
    assert not script.task("worker:0").blocked
    assert begun <= script.log[-1].at <= begun + 1.25


@pytest.mark.parametrize("scope", ["group", "task"])
def test_a_job_begins_from_the_set_that_an_earlier_one_left(scope: str) -> None:
    script = Script(job(worker=role(2, scope), checkpoint={"path": "ckpt", "url": "memory://ckpt"}))
    assert script.planned[0] == Step("list-inputs")
    script.grant("worker:0", "worker:1")
    assert not [action for action in script.planned if isinstance(action, Order)]
    script.take(stimuli.Did((Step("list-inputs"),), {"listings": {}, "checkpoint": {"set": 7, "marks": {}}}))
    assert {(order.task, order.verb) for order in script.planned} == {("worker:0", "prepare"), ("worker:1", "prepare")}
    assert (script.state.checkpoint["set"], script.state.groups[0].set) == (7, 7)


def test_what_was_waited_for_is_waited_for_no_more() -> None:
    """What is granted may still wait, for an image as an instance; only the engine knows when that is over."""
    script = Script(job(worker=role(1)))
    script.ask()
    script.grant("worker:0")
    nothing = stimuli.Waiting("", "", "")
    assert not [event for event in script.take(nothing) if event.type == "waiting"]
    script.take(stimuli.Waiting("image x", "worker:0", "", "n1 is fetching image x"))
    assert status(script.state)["waiting"] == "n1 is fetching image x"
    script.take(nothing)
    assert status(script.state)["waiting"] == ""
    assert not [event for event in script.take(nothing) if event.type == "waiting"]


def test_what_an_engine_may_keep_no_longer_of_a_gang_is_given_back_and_asked_for_again() -> None:
    script = Script(job(worker=role(2, "group")))
    script.ask()
    overdue = stimuli.GangOverdue("group-0", 5.0)
    assert not script.take(overdue)  # nothing is granted
    script.grant("worker:0")
    script.take(overdue)
    assert script.last("grants-returned")["seconds"] == 5.0
    assert Order("worker:0", 1, 1, "leave", "1") in script.planned
    script.take(stimuli.ContainerExited("worker:0", 1), stimuli.ContainerExited("worker:1", 1))
    script.tick(PARTIAL_BACKOFF)
    assert {action.task for action in script.planned if isinstance(action, Ask)} >= {"worker:0", "worker:1"}
    assert not script.take(stimuli.GangOverdue("group-7", 5.0))


def test_a_task_has_one_word_for_its_state_in_status_phase_table_and_timeline() -> None:
    script = Script(job(worker=role(3), gang=False))
    script.start("worker:0")
    script.grant("worker:1")
    script.ask()
    timeline = Timeline()
    for event in script.log:
        timeline.take(event)
    report = status(script.state)
    assert [task["state"] for task in report["tasks"]] == [RUNNING, STAGING, PENDING]
    assert report["phase"] == f"1 of 3 {RUNNING}, 1 {STAGING}, 1 {PENDING}"
    shown = [line.split()[1] for line in task_rows(report)[1:]]
    assert shown == [RUNNING, STAGING, PENDING]
    drawn = {task: spans([attempt], Range(1000.0, 2000.0))[-1] for (task, _), attempt in timeline.attempts.items()}
    assert [drawn[f"worker:{index}"].kind for index in range(2)] == [RUNNING, STAGING]


def test_every_phase_belongs_to_its_state() -> None:
    """The table that documents phases is the one that tasks follow."""
    for phase in LIVE:
        task = Task("worker:0", "worker", 0, 0, False, True, False, False, phase=phase)
        assert phase in TASK_PHASES[task.state]
