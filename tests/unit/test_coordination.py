"""Barriers open when everybody has come, and a lock has one holder, whatever is lost, doubled or restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from agent_channels import Channels
from scripted import Script, job, role

from trainmaster.agent.link import waits as waits_of_agent
from trainmaster.agent.link.waits import Waits
from trainmaster.core.coordination import Coordination

BARRIER, LOCK = "barrier", "lock"


def started(replicas: Any = 3, scope: str = "group", **more: Any) -> Script:
    script = Script(job(worker=role(replicas, scope=scope, **more)))
    script.start(*(task.key for task in script.state.tasks.values()))
    return script


class Master:
    """The barriers and locks of a scripted job, and who was let through."""

    def __init__(self, script: Script, expected: tuple[str, ...] = ()) -> None:
        self.script, self.coordination = script, Coordination(expected)
        self.rows: dict[str, list[list[Any]]] = {}

    def come(
        self, task: str, number: int, kind: str = BARRIER, name: str = "b", copy: int = 0, **more: Any
    ) -> list[str]:
        row = [number, kind, name, copy, more.get("holds", False), more.get("age", 0.0), more.get("after")]
        return self.tell(task, [*self.rows.get(task, []), row], passed=more.get("passed"))

    def tell(self, task: str, rows: list[list[Any]], passed: Any = None, attempt: int | None = None) -> list[str]:
        self.rows[task] = rows
        message = {"attempt": attempt or self.script.task(task).attempt, "waits": rows}
        if passed is not None:
            message["passed"] = passed
        return through(self.coordination.take(self.script.state, task, message))

    def follow(self, events: list[Any]) -> list[str]:
        return through(self.coordination.follow(self.script.state, events))


def through(pushes: Mapping[str, Any]) -> list[str]:
    return sorted(f"{task}/{number}" for task, push in pushes.items() for number, _ in push["over"])


# -- barriers --


def test_a_barrier_opens_when_everybody_has_come_and_can_be_used_again() -> None:
    master = Master(started())
    for number, after in ((1, None), (2, 1), (3, 2)):
        assert master.come("worker:0", number, after=after) == []
        assert master.come("worker:1", number, after=after) == []
        assert master.come("worker:2", number, after=after) == [f"worker:{index}/{number}" for index in range(3)]
        for index in range(3):
            assert master.tell(f"worker:{index}", []) == []


def test_who_waits_at_a_barrier_or_for_a_lock_says_for_whom() -> None:
    master = Master(started(6))
    master.come("worker:3", 1, name="begin")
    waits = lambda: master.coordination.waits(master.script.state)  # noqa: E731
    assert waits() == {
        "worker:3": "waits at the barrier begin: 1 of 6 are there, worker:0, worker:1, worker:2 and 2 more have not come"
    }
    master.come("worker:0", 1, LOCK, "x")
    master.come("worker:1", 1, LOCK, "x")
    master.come("worker:1", 2, name="begin")
    assert waits()["worker:1"] == (
        "waits at the barrier begin: 2 of 6 are there, worker:0, worker:2, worker:4 and worker:5 have not come; "
        "waits for the lock x, which worker:0 holds"
    )
    assert "worker:0" not in waits(), "it holds the lock"


def test_every_copy_counts_once() -> None:
    master = Master(started(2, processes=2))
    assert master.come("worker:0", 1, copy=0) == []
    assert master.come("worker:0", 2, copy=0) == [], "another thread of the same process"
    assert master.come("worker:1", 1, copy=0) == []
    assert master.come("worker:1", 2, copy=1) == []
    assert len(master.come("worker:0", 3, copy=1)) == 5


def test_names_and_roles_without_ranks_are_apart() -> None:
    script = Script(job(worker=role(1), evaluator=role(1, counts=False)))
    script.start("worker:0", "evaluator:0")
    master = Master(script)
    assert master.come("evaluator:0", 1) == ["evaluator:0/1"]
    assert master.come("worker:0", 1) == ["worker:0/1"]


@pytest.mark.parametrize("how", ["fails", "succeeds"])
def test_a_member_that_is_over_is_waited_for_no_longer(how: str) -> None:
    script = Script(job(worker=role(2, limit=0), completion={"failures": 0.9}))
    script.start("worker:0", "worker:1")
    master = Master(script)
    assert master.come("worker:0", 1) == []
    events = script.fail("worker:1") if how == "fails" else script.report("worker:1", "ended", reason="exit", status=0)
    assert master.follow(events) == ["worker:0/1"]


def test_a_member_that_restarts_alone_is_waited_for_from_its_next_start_on() -> None:
    script = started(2, scope="task")
    master = Master(script)
    assert master.follow(script.fail("worker:1")) == []
    assert master.come("worker:0", 1) == ["worker:0/1"]
    master.tell("worker:0", [])
    script.start("worker:1")
    assert master.come("worker:0", 2) == []
    assert master.come("worker:1", 1) == ["worker:0/2", "worker:1/1"]


def test_nobody_is_let_through_where_the_group_restarts() -> None:
    script = started(2)
    master = Master(script)
    assert master.come("worker:0", 1) == []
    assert master.follow(script.fail("worker:1")) == []
    assert master.follow(script.stopped("worker:0") or []) == []
    assert master.come("worker:0", 1) == []


def test_a_member_that_was_never_there_yet_is_waited_for() -> None:
    script = Script(job(worker=role(2), gang=False))
    script.start("worker:0")
    master = Master(script)
    assert master.come("worker:0", 1) == []
    script.start("worker:1")
    assert master.come("worker:1", 1) == ["worker:0/1", "worker:1/1"]


def test_a_wait_that_is_given_up_does_not_count() -> None:
    master = Master(started(2))
    master.come("worker:0", 1)
    assert master.tell("worker:0", []) == []
    assert master.come("worker:1", 1) == []
    assert master.come("worker:0", 2) == ["worker:0/2", "worker:1/1"]


# -- locks --


def test_a_lock_has_one_holder_and_the_first_come_is_served_first() -> None:
    master = Master(started())
    assert master.come("worker:2", 1, LOCK) == ["worker:2/1"]
    assert master.come("worker:0", 1, LOCK) == []
    assert master.come("worker:1", 1, LOCK) == []
    assert master.come("worker:1", 2, LOCK, "another") == ["worker:1/2"]
    assert master.tell("worker:2", []) == ["worker:0/1"]
    assert master.tell("worker:0", []) == ["worker:1/1"]


def test_a_lock_is_freed_when_its_holders_attempt_is_over() -> None:
    script = started(2, scope="task")
    master = Master(script)
    assert master.come("worker:1", 1, LOCK) == ["worker:1/1"]
    assert master.come("worker:0", 1, LOCK) == []
    assert master.follow(script.fail("worker:1")) == ["worker:0/1"]
    assert master.come("worker:1", 1, LOCK) == [], "what is over gets nothing"


def test_an_answer_that_was_not_heard_is_given_again() -> None:
    master = Master(started(1))
    assert master.come("worker:0", 1, LOCK) == ["worker:0/1"]
    rows = master.rows["worker:0"]
    assert master.tell("worker:0", rows) == [], "it is on its way"
    assert master.tell("worker:0", rows, passed={}) == ["worker:0/1"], "on a new connection"
    assert master.tell("worker:0", [[*rows[0][:4], True, 1.0, None]], passed={}) == []


# -- another master --


def test_a_new_master_answers_nobody_until_everybody_has_spoken() -> None:
    script = started(3, scope="task")
    master = Master(script, ("worker:0", "worker:1", "worker:2"))
    assert master.come("worker:0", 4, LOCK, age=2.0) == []
    assert master.come("worker:1", 7, LOCK, age=3.0) == []
    assert master.follow(script.fail("worker:2")) == ["worker:1/7"], "it waited the longest"
    assert master.tell("worker:1", []) == ["worker:0/4"]


def test_a_new_master_knows_a_holder_by_its_word() -> None:
    master = Master(started(2), ("worker:0", "worker:1"))
    assert master.come("worker:0", 4, LOCK, age=9.0) == []
    assert master.come("worker:1", 7, LOCK, holds=True) == []
    assert master.tell("worker:1", []) == ["worker:0/4"]


@pytest.mark.parametrize(("before", "after"), [({"b": 3}, 2), ({"b": 1}, None)])
def test_who_did_not_hear_that_a_barrier_had_opened_follows(before: dict[str, int], after: int | None) -> None:
    master = Master(started(2), ("worker:0", "worker:1"))
    assert master.tell("worker:0", [], passed=before) == []
    assert master.come("worker:1", 5, after=after) == ["worker:1/5"]
    master.tell("worker:1", [])
    assert master.come("worker:0", 6, after=before["b"]) == []
    assert master.come("worker:1", 6, after=before["b"]) == ["worker:0/6", "worker:1/6"]


@pytest.mark.parametrize(
    "message",
    [{"waits": [[1]]}, {"waits": [["1", LOCK, "a", 0, False, 0.0, None]]}, {"waits": [[1, "other", "a", 0, False, 0, None]]},
     {"waits": 5}, {"passed": {"a": "b"}}, {"passed": 5}, {"waits": [[1, LOCK, "", 0, False, 0, None]]}],
)  # fmt: skip
def test_what_is_not_of_its_form_is_refused(message: dict[str, Any]) -> None:
    script = started(1)
    with pytest.raises((ValueError, TypeError, LookupError)):
        Coordination().take(script.state, "worker:0", {"attempt": 1, **message})


# -- everything at once --


class World(Channels):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, started(3, processes=2))
        self.processes = [Process(self, task, copy) for task in self.agents for copy in range(2)]

    def step(self, calm: bool = False) -> None:
        task = self.rng.choice([*self.agents])
        chance = self.rng.random()
        if not calm and chance < 0.02:
            self.restart()
        elif not calm and chance < 0.06:
            self.cut(task)
        elif not self.connected[task]:
            self.connected[task] = True
            self.agents[task].tell(anew=True)
        elif chance < 0.4 and self.up[task]:
            pushes = self.coordination.take(self.script.state, task, self.up[task].popleft())
            for other, push in pushes.items():
                if self.connected[other]:
                    self.down[other].append(push)
        elif chance < 0.7 and self.down[task]:
            self.agents[task].answered(self.down[task].popleft())
        else:
            self.rng.choice(self.processes).act()

    def check(self) -> None:
        assert sum(process.holds for process in self.processes) <= 1, "a lock has two holders"
        least = min(process.arrived for process in self.processes)
        assert all(process.passed <= least for process in self.processes), "somebody passed before all had come"


class Process:
    """A program that meets the others, takes a lock, and so on. A wait may time out; then it is begun again."""

    def __init__(self, world: World, task: str, copy: int) -> None:
        self.world, self.waits, self.copy = world, world.agents[task], copy
        self.arrived = self.passed = self.locked = 0
        self.connection: Any = None
        self.waits_for, self.holds = "", False

    def reply(self, request: int, answer: Mapping[str, Any]) -> None:
        if self.waits_for == BARRIER:
            self.passed += 1
        else:
            self.holds, self.locked = True, self.locked + 1
        self.waits_for = ""

    def act(self) -> None:
        if self.holds:
            self.holds = False
            self.waits.left(self)
        elif not self.waits_for:
            self.waits_for = BARRIER if self.arrived <= self.locked else LOCK
            self.arrived += self.waits_for == BARRIER
            self.waits.add(self, 1, self.waits_for, "name", self.copy)
        elif self.waits_for == LOCK and self.world.rng.random() < 0.1:
            self.waits_for = ""
            self.waits.left(self)


def test_nobody_is_released_wrongly_and_nobody_waits_for_ever(seeds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(seed: int) -> None:
        world = World(seed)
        for _ in range(600):
            world.step()
            world.check()
        before = min(process.passed for process in world.processes)
        for _ in range(4000):
            world.step(calm=True)
            world.check()
        assert min(process.passed for process in world.processes) > before + 1, f"seed {seed}: they are stuck"
        assert min(process.locked for process in world.processes) > 1

    for seed in seeds(60):
        asyncio.run(main(seed))


def test_an_agent_that_has_forgotten_rounds_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits_of_agent, "PASSED", 2)

    async def main() -> None:
        script, sent = started(1), []
        waits, coordination = Waits(sent.append, lambda: 0.0), Coordination()
        waits.begin(1)
        heard: list[int] = []

        class Waiter:
            def reply(self, request: int, answer: Mapping[str, Any]) -> None:
                heard.append(request)

        for request, name in enumerate(("a", "b", "c", "a", "d", "b")):
            waits.add(Waiter(), request, BARRIER, name, 0)
            while sent:
                for push in coordination.take(script.state, "worker:0", sent.pop(0)).values():
                    waits.answered(push)
            assert heard == [*range(request + 1)]

    asyncio.run(main())


def test_a_lock_with_the_name_of_a_rendezvous_ends_alone() -> None:
    script, sent, heard = started(1), [], []
    waits, coordination = Waits(sent.append, lambda: 0.0), Coordination()

    class Waiter:
        def reply(self, request: int, answer: Mapping[str, Any]) -> None:
            heard.append(request)

        def send(self, frame: Mapping[str, Any]) -> None:
            heard.append(frame)

    def exchange() -> list[Any]:
        while sent:
            for push in coordination.take(script.state, "worker:0", sent.pop(0)).values():
                waits.answered(push)
        return heard

    member, holder = Waiter(), Waiter()
    waits.begin(1)
    waits.join(member, 1, "elastic", 0, {"payload": "", "step": 0, "agreed": False})
    assert exchange() == [1]
    waits.add(holder, 2, LOCK, "elastic", 0)
    assert exchange() == [1, 2]
    waits.left(holder)
    assert exchange() == [1, 2], "the round is whole"
