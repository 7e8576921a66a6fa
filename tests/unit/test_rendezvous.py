"""Rounds form, break at once and form again, whatever is lost, doubled or restarted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from agent_channels import Channels
from scripted import Script, job, role

from trainmaster.agent.link.waits import Waits
from trainmaster.core.coordination import Coordination
from trainmaster.core.machine.actions import Step
from trainmaster.core.machine.stimuli import Did, Report, ScaleRequested
from trainmaster.master.turn import Turn, Turns


def started(least: int = 2, most: int = 3, **more: Any) -> Script:
    script = Script(job(worker=role({"min": least, "max": most}, scope="task", **more)))
    script.start(*(task.key for task in script.state.tasks.values()))
    return script


class Master:
    """The rendezvous of a scripted job. What is pushed is heard at once, and kept as words: `worker:0 opened 1 rank 0 of 3`."""

    def __init__(self, script: Script, expected: tuple[str, ...] = ()) -> None:
        self.script, self.coordination = script, Coordination(expected)
        self.rows: dict[str, dict[int, list[Any]]] = {}
        self.rounds: dict[str, dict[str, int]] = {}  # the newest of each attempt, as its agent says
        self.members: list[list[Any]] = []
        self.ids = itertools.count(1)

    def join(self, task: str, step: int = 0, *, agreed: bool = False, copy: int = 0, after: Any = None) -> list[str]:
        """The process of a task joins: anew where it is in a round. `after`: (round, rank, size) that it was in, as its agent says."""
        rows = self.rows.setdefault(task, {})
        before = [number for number, row in rows.items() if row[3] == copy]
        number, rank, size = after or (
            (rows[before[0]][6], rows[before[0]][7]["rank"], rows[before[0]][7]["size"]) if before else (0, 0, 0)
        )
        for old in before:
            del rows[old]
        more = {"payload": f"port of {task}", "step": step, "rank": rank, "size": size, "agreed": agreed}
        rows[next(self.ids)] = [0, "rendezvous", "elastic", copy, False, 0.0, number, more]
        return self.tell(task)

    def tell(self, task: str, is_new: bool = False) -> list[str]:
        rows = [[number, *row[1:]] for number, row in self.rows.get(task, {}).items()]
        anew = {"passed": {}, "rounds": self.rounds.get(task, {})} if is_new else {}
        message: dict[str, Any] = {"attempt": self.script.task(task).attempt, "waits": rows}
        return self.heard(self.coordination.take(self.script.state, task, message | anew))

    def die(self, task: str) -> list[str]:
        """The process ends; its agent lives."""
        self.rows[task] = {}
        return self.tell(task)

    def lose(self, task: str) -> list[str]:
        return self.heard(self.coordination.lose(self.script.state, task))

    def follow(self, events: list[Any]) -> list[str]:
        return self.heard(self.coordination.follow(self.script.state, events))

    def heard(self, pushes: Mapping[str, Any]) -> list[str]:
        words = []
        for task, push in pushes.items():
            for number, count, rank, members, _ in push.get("opened", ()):
                row = self.rows[task][number]
                row[4], row[6] = True, count
                row[7] |= {"rank": rank, "size": len(members)}
                self.members = members
                words.append(f"{task} opened {count} rank {rank} of {len(members)}")
            words += [f"{task} {word} {count}" for word in ("broken", "wanted") for _, count in push.get(word, ())]
        return sorted(words)


def opened(number: int, *tasks: int) -> list[str]:
    return sorted(f"worker:{task} opened {number} rank {rank} of {len(tasks)}" for rank, task in enumerate(tasks))


def formed(script: Script | None = None) -> Master:
    """A round of three."""
    master = Master(script or started())
    assert master.join("worker:2") == []
    assert master.join("worker:0") == []
    assert master.join("worker:1") == opened(1, 0, 1, 2)
    return master


def test_the_first_round_has_all_that_run() -> None:
    master = formed()
    assert [row[:2] for row in master.members] == [["worker:0", 0], ["worker:1", 0], ["worker:2", 0]]
    assert [row[3:] for row in master.members] == [[f"port of worker:{index}", 0, True] for index in range(3)]


def test_who_is_still_prepared_is_not_waited_for() -> None:
    script = Script(job(gang=False, worker=role({"min": 2, "max": 3}, scope="task")))
    script.start("worker:0", "worker:1")
    master = Master(script)
    assert master.join("worker:1") == []
    assert master.join("worker:0") == opened(1, 0, 1)
    script.start("worker:2")
    assert master.join("worker:2") == ["worker:0 wanted 1", "worker:1 wanted 1"]
    assert master.join("worker:0", 4, agreed=True) == []
    assert master.join("worker:1", 4, agreed=True) == opened(2, 0, 1, 2)
    assert [row[4:] for row in master.members] == [[4, False], [4, False], [0, True]]


def test_a_death_breaks_the_round_and_survivors_keep_their_order() -> None:
    master = formed()
    assert master.die("worker:1") == ["worker:0 broken 1", "worker:2 broken 1"]
    assert master.tell("worker:0") == [], "it is told once"
    assert master.join("worker:2", 7) == []
    assert master.join("worker:0", 6) == opened(2, 0, 2)
    assert master.follow(master.script.fail("worker:1")) == []
    master.script.start("worker:1")
    assert master.join("worker:1") == ["worker:0 wanted 2", "worker:2 wanted 2"]
    assert master.join("worker:0", 7, agreed=True) == []
    assert master.join("worker:2", 7, agreed=True) == opened(3, 0, 2, 1)
    assert [row[5] for row in master.members] == [False, False, True]


def test_a_member_that_joins_anew_breaks_the_round_for_the_others() -> None:
    master = formed()
    assert master.join("worker:0", 3) == ["worker:1 broken 1", "worker:2 broken 1"]
    assert master.join("worker:1", 3) == []
    assert master.join("worker:2", 3) == opened(2, 0, 1, 2)


def test_a_death_while_they_leave_by_agreement_breaks_the_round() -> None:
    master = formed()
    assert master.join("worker:0", 3, agreed=True) == ["worker:1 wanted 1", "worker:2 wanted 1"]
    assert master.die("worker:2") == ["worker:1 broken 1"]
    assert master.join("worker:1", 2) == opened(2, 0, 1)


def test_the_rest_forms_a_round_without_a_member_whose_agent_is_silent() -> None:
    master = formed()
    assert master.lose("worker:2") == ["worker:0 broken 1", "worker:1 broken 1"]
    assert master.join("worker:0", 5) == []
    assert master.join("worker:1", 5) == opened(2, 0, 1)
    assert master.tell("worker:2", is_new=True) == ["worker:2 broken 1"]
    assert master.join("worker:2", 5) == ["worker:0 wanted 2", "worker:1 wanted 2"]
    master.join("worker:0", 9, agreed=True)
    assert master.join("worker:1", 9, agreed=True) == opened(3, 0, 1, 2)
    assert [row[5] for row in master.members] == [False, False, True]


def test_there_is_no_round_below_the_least_unless_the_others_are_done() -> None:
    master = formed(started(3, 3, limit=0))
    master.die("worker:1")
    assert master.join("worker:0", 5) == []
    assert master.join("worker:2", 5) == []
    script = master.script
    events = script.report("worker:1", "ended", reason="exit", status=0)
    assert master.follow(events) == opened(2, 0, 2)


def test_a_member_that_is_being_stopped_is_out() -> None:
    master = formed()
    script = master.script
    assert master.follow(script.take(ScaleRequested("worker", 2, "me"))) == ["worker:0 broken 1", "worker:1 broken 1"]
    assert master.join("worker:0") == []
    assert master.join("worker:2") == []
    assert master.join("worker:1") == opened(2, 0, 1)


def test_a_task_comes_with_all_its_copies() -> None:
    master = Master(started(2, 2, processes=2))
    assert master.join("worker:0", copy=0) == []
    assert master.join("worker:0", copy=1) == []
    assert master.join("worker:1", copy=1) == []
    assert len(master.join("worker:1", copy=0)) == 4
    assert [row[:2] for row in master.members] == [["worker:0", 0], ["worker:0", 1], ["worker:1", 0], ["worker:1", 1]]


def test_a_copy_that_has_ended_is_not_waited_for() -> None:
    master = Master(started(2, 2, processes=2))
    for task, copy in (("worker:0", 0), ("worker:0", 1), ("worker:1", 0), ("worker:1", 1)):
        master.join(task, copy=copy)
    master.rows["worker:0"] = {number: row for number, row in master.rows["worker:0"].items() if row[3]}
    assert len(master.tell("worker:0")) == 3, "broken for those who are left"
    assert master.join("worker:1", 7, copy=0) == master.join("worker:0", 7, copy=1) == []
    assert len(master.join("worker:1", 7, copy=1)) == 3
    assert [row[:2] for row in master.members] == [["worker:0", 1], ["worker:1", 0], ["worker:1", 1]]


@pytest.mark.parametrize("is_new", [False, True])
def test_a_copy_whose_link_breaks_after_its_fellow_has_ended_comes_back(is_new: bool) -> None:
    master = Master(started(2, 2, processes=2))
    for task, copy in (("worker:0", 0), ("worker:0", 1), ("worker:1", 0), ("worker:1", 1)):
        master.join(task, copy=copy)
    master.die("worker:0")
    for copy in range(2):
        assert master.join("worker:1", 7, copy=copy) == []
    if is_new:  # another master hears of the round by the agents alone
        master.coordination = Coordination(("worker:0", "worker:1"))
        assert master.tell("worker:1", is_new=True) == []
        master.rounds["worker:0"] = {"elastic": 1}
        assert master.tell("worker:0", is_new=True) == []
    assert len(master.join("worker:0", 7, copy=1)) == 3
    assert [row[:2] + row[5:] for row in master.members] == [
        ["worker:1", 0, False], ["worker:1", 1, False], ["worker:0", 1, True],
    ]  # fmt: skip


def test_after_all_were_lost_everybody_is_waited_for_again() -> None:
    master = formed()
    for index in (0, 1, 2):
        master.die(f"worker:{index}")
        master.follow(master.script.fail(f"worker:{index}"))
    master.script.start("worker:0", "worker:1", "worker:2")
    assert master.join("worker:1") == []
    assert master.join("worker:0") == []
    assert master.join("worker:2") == opened(2, 0, 1, 2)
    assert all(row[5] for row in master.members)


def test_a_message_of_an_attempt_that_is_over_counts_nothing() -> None:
    master = formed()
    master.die("worker:1")
    master.follow(master.script.fail("worker:1"))
    late = {"attempt": 1, "waits": [[9, "rendezvous", "elastic", 0, False, 0.0, 1, {"payload": "", "step": 9}]]}
    assert master.coordination.take(master.script.state, "worker:1", late) == {}
    master.join("worker:0", 5)
    assert master.join("worker:2", 5) == opened(2, 0, 2)


def test_who_waits_says_for_whom() -> None:
    master = Master(started(2, 3))
    master.join("worker:1")
    waits = lambda: master.coordination.waits(master.script.state)  # noqa: E731
    assert waits() == {
        "worker:1": "waits for its peers: 1 of at least 2 are there, worker:0 and worker:2 have not come"
    }
    master.join("worker:2")
    assert set(waits().values()) == {"waits for its peers: 2 of 3 are there, worker:0 has not come"}
    master.join("worker:0")
    assert waits() == {}, "the round has opened"
    master.join("worker:2", agreed=True)
    assert waits() == {"worker:2": "waits for its peers: worker:0 and worker:1 are still in round 1"}
    master.lose("worker:0")
    master.lose("worker:1")
    assert waits() == {
        "worker:2": "waits for its peers: 1 of at least 2 are there, worker:0 and worker:1 have not come"
    }


def test_who_waits_for_a_task_with_several_processes_says_how_many_have_come() -> None:
    master = Master(started(2, 2, processes=2))
    master.join("worker:0", copy=1)
    text = "waits for its peers: 0 of at least 2 are there, worker:0 (1 of 2 processes) and worker:1 have not come"
    assert master.coordination.waits(master.script.state) == {"worker:0": text}


# -- another master --


def follower(before: Master) -> Master:
    master = Master(before.script, ("worker:0", "worker:1", "worker:2"))
    master.rows, master.ids = before.rows, before.ids
    return master


def test_a_new_master_leaves_a_whole_round_alone() -> None:
    master = follower(formed())
    for index in range(3):
        assert master.tell(f"worker:{index}", is_new=True) == []
    assert master.join("worker:1", 4) == ["worker:0 broken 1", "worker:2 broken 1"]


def test_who_waits_for_a_new_master_says_for_whom_that_waits() -> None:
    before = formed()
    before.die("worker:0")
    before.join("worker:2", 4)
    master = follower(before)
    master.tell("worker:2", is_new=True)
    text = "waits until the new master has heard from worker:0 and worker:1"
    assert master.coordination.waits(master.script.state) == {"worker:2": text}


def test_a_new_master_breaks_a_round_that_is_not_whole_any_more() -> None:
    before = formed()
    before.rows["worker:1"].clear()
    master = follower(before)
    assert master.tell("worker:0", is_new=True) == []
    assert master.tell("worker:2", is_new=True) == []
    assert master.tell("worker:1", is_new=True) == ["worker:0 broken 1", "worker:2 broken 1"]
    assert master.join("worker:2", 4) == []
    assert master.join("worker:0", 4) == opened(2, 0, 2)


def test_a_new_master_does_not_wait_for_a_task_that_is_over() -> None:
    before = formed()
    master = follower(before)
    master.tell("worker:0", is_new=True)
    master.tell("worker:2", is_new=True)
    assert master.follow(master.script.fail("worker:1")) == ["worker:0 broken 1", "worker:2 broken 1"]


def test_numbers_and_order_go_on_under_a_new_master() -> None:
    before = formed()
    before.die("worker:0")
    before.join("worker:2", 4)
    master = follower(before)
    master.tell("worker:1", is_new=True)
    master.tell("worker:2", is_new=True)
    assert master.tell("worker:0", is_new=True) == ["worker:1 broken 1"]
    assert master.join("worker:1", 4) == opened(2, 1, 2)


def test_numbers_of_a_training_go_on_after_all_its_members_were_lost_with_their_master() -> None:
    inputs = {"train": {"url": "memory://data", "as": "shards"}}
    script = Script(job(worker=role(2, scope="task"), inputs=inputs))
    listing = {"train": {"files": [["data", 4096, None]], "shards": {"size": 1024}}}
    script.take(Did((Step("list-inputs"),), {"listings": listing}))
    script.start("worker:0", "worker:1")
    script.report("worker:0", "state-begun", training="elastic", round=4, step=2)
    master = Master(script)
    assert master.join("worker:0") == []
    assert master.join("worker:1") == opened(5, 0, 1)


@pytest.mark.parametrize(
    "row",
    [[1, "rendezvous", "a", 0, False, 0.0, 0], [1, "rendezvous", "", 0, False, 0.0, 0, {"payload": "", "step": 0}],
     [1, "rendezvous", "a", -1, False, 0.0, 0, {"payload": "", "step": 0}],
     [1, "rendezvous", "a", 0, False, 0.0, 0, {"payload": "x" * 1025, "step": 0}],
     [1, "rendezvous", "a", 0, False, 0.0, 0, {"payload": "", "step": True}],
     [1, "rendezvous", "a", 0, True, 0.0, 1, {"payload": "", "step": 0, "rank": 2, "size": 2}],
     [1, "rendezvous", "a", 0, False, 0.0, 0, 5]],
)  # fmt: skip
def test_what_is_not_of_its_form_is_refused(row: list[Any]) -> None:
    script = started()
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        Coordination().take(script.state, "worker:0", {"attempt": 1, "waits": [row]})


# -- while a turn is written --


def test_a_round_that_opens_while_its_turn_is_written_is_not_over_before() -> None:
    turns, waits, heard = being_written()
    at_once = turns[0].coordinate("worker:1", {"attempt": 1, "waits": []})  # its process dies
    for pushes in (at_once, *turns[1].pushes):
        waits.answered(pushes.get("worker:0", {}))
    assert heard == ["opened 1", "broken 1"]


def test_an_agent_that_comes_back_while_a_turn_is_written_is_in_the_round_that_it_hears_of() -> None:
    turns, waits, heard = being_written()
    turns[0].lose("worker:0")
    waits.tell(anew=True)
    for pushes in turns[1].pushes:
        waits.answered(pushes.get("worker:0", {}))
    assert heard == []
    turns[0].perform(turns[1])
    rejoined = row_of(2, after=1, rank=1, size=2)
    waits.answered(turns[0].coordinate("worker:1", {"attempt": 1, "waits": [rejoined]})["worker:0"])
    assert heard == ["opened 2"]


def row_of(number: int, after: int = 0, rank: int = 0, size: int = 0) -> list[Any]:
    return [
        number,
        "rendezvous",
        "elastic",
        0,
        False,
        0.0,
        after,
        {"payload": "", "step": 0, "rank": rank, "size": size},
    ]


def being_written() -> tuple[tuple[Turns, Turn], Waits, list[str]]:
    """Two processes wait; the failure of a third one has opened their round in a turn that is not written yet. What the first one hears."""
    turns, heard = Turns(started().drive), []

    class Waiter:
        def reply(self, request: int, answer: Mapping[str, Any]) -> None:
            heard.append(f"opened {answer['round']}")

        def send(self, frame: Mapping[str, Any]) -> None:
            heard.append(f"{frame['op']} {frame['round']}")

    waits = Waits(lambda message: turns.coordinate("worker:0", message) and None, lambda: 0.0)
    waits.begin(1)
    waits.join(Waiter(), 1, "elastic", 0, {"payload": "", "step": 0, "agreed": False})
    assert turns.coordinate("worker:1", {"attempt": 1, "waits": [row_of(1)]}) == {}
    assert turns.coordinate("worker:2", {"attempt": 1, "waits": []}) == {}
    serial, reported = turns.state.tasks["worker:2"].serial, turns.state.tasks["worker:2"].reported
    turns.tell(Report("worker:2", serial, reported + 1, 1, "ended", {"reason": "exit", "status": 1, "elapsed": 1.0}))
    turn = turns.take(2000.0)
    assert [sorted(pushes) for pushes in turn.pushes] == [["worker:0", "worker:1"]]
    return (turns, turn), waits, heard


# -- everything at once --


class World(Channels):
    def __init__(self, seed: int) -> None:
        self.rounds: dict[int, list[Any]] = {}
        super().__init__(seed, started(2, 3, processes=2))
        self.processes = [Process(self, task, copy) for task in self.agents for copy in range(2)]

    def cut(self, task: str) -> None:
        super().cut(task)
        self.push(self.coordination.lose(self.script.state, task))

    def push(self, pushes: Mapping[str, Any]) -> None:
        for task, push in pushes.items():
            if self.connected[task]:
                self.down[task].append(push)

    def step(self, calm: bool = False) -> None:
        task, chance = self.rng.choice([*self.agents]), self.rng.random()
        if not calm and chance < 0.01:
            self.restart()
        elif not calm and chance < 0.04:
            self.cut(task)
        elif not calm and chance < 0.05:
            self.rng.choice(self.processes).begin_anew()
        elif not self.connected[task]:
            self.connected[task] = True
            self.agents[task].tell(anew=True)
        elif chance < 0.4 and self.up[task]:
            self.push(self.coordination.take(self.script.state, task, self.up[task].popleft()))
        elif chance < 0.7 and self.down[task]:
            self.agents[task].answered(self.down[task].popleft())
        else:
            self.rng.choice(self.processes).act()


class Process:
    """A program that trains: a step needs all members of its round in it; now and then the round changes."""

    def __init__(self, world: World, task: str, copy: int) -> None:
        self.world, self.task, self.waits, self.copy = world, task, world.agents[task], copy
        self.requests = itertools.count(1)
        self.round = self.rank = self.size = self.newest = self.done = 0
        self.is_waiting = self.is_broken = self.is_wanted = False

    def reply(self, request: int, answer: Mapping[str, Any]) -> None:
        assert self.is_waiting
        self.round, self.rank, members = answer["round"], answer["rank"], answer["members"]
        assert members == self.world.rounds.setdefault(self.round, members), "two rounds of one number"
        assert members[self.rank][:2] == [self.task, self.copy]
        assert self.round > self.newest, "numbers grow"
        self.newest, self.size, self.done = self.round, len(members), self.done + 1
        self.is_waiting = self.is_broken = self.is_wanted = False

    def send(self, frame: Mapping[str, Any]) -> None:
        if frame["round"] == self.round:
            self.is_broken |= frame["op"] == "broken"
            self.is_wanted |= frame["op"] == "wanted"

    def begin_anew(self) -> None:
        """The process closes its connection, and opens another one later."""
        self.waits.left(self)
        self.round, self.is_waiting = 0, False

    def act(self) -> None:
        if self.is_waiting:
            return
        if not self.round or self.is_broken or self.world.rng.random() < 0.02:
            self.join(False)
        elif self.is_wanted:
            fellows = [process for process in self.world.processes if process.round == self.round]
            if len(fellows) == self.size and not any(process.is_broken for process in fellows):
                for process in fellows:
                    process.join(True)

    def join(self, agreed: bool) -> None:
        self.round, self.is_waiting = 0, True
        more = {"payload": "", "step": self.newest, "agreed": agreed}
        assert self.waits.join(self, next(self.requests), "elastic", self.copy, more) == ""


def test_rounds_form_again_whatever_happens(seeds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(seed: int) -> None:
        world = World(seed)
        for _ in range(600):
            world.step()
        for has_ended in (False, True) if seed % 4 == 0 else (False,):
            if has_ended:  # one copy of a task, for good
                ended = world.processes.pop(world.rng.randrange(len(world.processes)))
                ended.begin_anew()
                next(process for process in world.processes if process.task == ended.task).begin_anew()
            before = max(process.newest for process in world.processes)
            for _ in range(3000):
                world.step(calm=True)
            assert min(process.newest for process in world.processes) > before + 1, f"seed {seed}: they are stuck"

    for seed in seeds(60):
        asyncio.run(main(seed))
