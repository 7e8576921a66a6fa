"""The course of a job: who ran where and when, what readers look for, and how large it grows."""

from __future__ import annotations

import tracemalloc
from typing import Any

from trainmaster.core import timeline as course
from trainmaster.core.machine.events import Event
from trainmaster.core.timeline import Generation, Timeline


class Log:
    """A log that is told to a timeline as it is written."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.at = 1_000.0

    def tell(self, kind: str, **data: Any) -> None:
        self.at += 1.0
        self.timeline.take(Event(self.timeline.n + 1, self.at, 1, kind, data))

    def run(self, task: str, attempt: int, serial: int, node: str) -> None:
        self.tell("asked", tasks=[[task, serial]])
        self.tell("granted", task=task, serial=serial, container=f"c{serial}", node=node, devices=[0])
        self.tell("agent-connected", task=task, serial=serial, node=node, address="a", container=f"c{serial}")
        self.tell("ordered", verb="prepare", tasks=[[task, serial, attempt, "1"]])
        self.tell("ready", task=task, attempt=attempt, report=1, address="a")
        self.tell("generation-formed", group=0, generation=attempt, members=[[task, attempt]], ranks={task: 0})
        self.tell("started", task=task, attempt=attempt, report=2, pid=7, elapsed=None)

    def restart(self, task: str, again: bool = True, **cause: Any) -> None:
        self.tell(
            "incident", unit=task, budget="role:worker", cause={"task": task, "reason": "exit", "figures": {"status": 1}, **cause},
            costs=True, spent=1, free=0, limit=3, again=again, until=0.0, generation=1,
        )  # fmt: skip

    def texts(self, kind: str) -> list[str]:
        return [mark.text for mark in self.timeline.marks if mark.kind == kind]


def test_an_attempt_has_its_times_place_and_end() -> None:
    log = Log()
    log.run("worker:0", 1, 1, "n1")
    log.tell("attempt-ended", task="worker:0", attempt=1, report=3, reason="exit", figures={"status": 2}, elapsed=1.0)
    log.restart("worker:0")
    log.tell("container-ended", task="worker:0", serial=1, gone=True)
    log.run("worker:0", 2, 2, "n2")
    log.tell("exited", task="worker:0", attempt=2, report=3, elapsed=1.0)
    log.tell("committers-named", group=0, attempts=[["worker:0", 2]])
    first, second = log.timeline.attempts.values()
    assert (first.node, first.container, first.devices, first.generation, first.rank) == ("n1", "c1", ["0"], 1, 0)
    assert (first.began, first.granted, first.staging, first.ready, first.started, first.ended) == (
        1001.0, 1002.0, 1004.0, 1005.0, 1007.0, 1008.0,
    )  # fmt: skip
    assert (first.state, first.words) == ("failed", "exited with status 2")
    assert (second.state, second.node, second.exited, second.ended) == ("succeeded", "n2", 1018.0, 1019.0)
    assert log.timeline.generations == [
        Generation(0, 1, 1006.0, {"worker:0": 0}), Generation(0, 2, 1016.0, {"worker:0": 0}),
    ]  # fmt: skip
    assert log.texts("restart") == ["worker:0 exited with status 1; it starts again (restart 1 of 3)"]


def test_a_next_attempt_in_the_same_container_has_its_place() -> None:
    log = Log()
    log.run("worker:0", 1, 1, "n1")
    log.tell("attempt-ended", task="worker:0", attempt=1, report=3, reason="exit", figures={"status": 2}, elapsed=1.0)
    log.tell("ordered", verb="prepare", tasks=[["worker:0", 1, 2, "2"]])
    assert log.timeline.attempts["worker:0", 2].node == "n1"
    assert log.timeline.attempts["worker:0", 2].state == "staging"


def test_the_mark_of_a_restart_names_the_settled_cause() -> None:
    log = Log()
    log.restart("worker:0")
    log.tell("checkpoint-saved", task="worker:0", attempt=1, report=9, set=3, files=2, bytes=2048)
    cause = {"task": "worker:1", "reason": "signal", "figures": {"name": "SIGKILL"}}
    log.tell("settled", unit="worker:0", budget="role:worker", cause=cause, costs=True, spent=1, free=0)
    assert log.texts("restart") == ["worker:1 was killed by SIGKILL; it starts again (restart 1 of 3)"]
    assert log.texts("checkpoint") == ["checkpoint set 3 is whole: 2 files, 2 KiB"]


def test_marks_of_masters_users_saves_sizes_troubles_and_the_end() -> None:
    log = Log()
    log.tell("master-started", read={}, place="host:1")
    log.tell("scale-requested", role="worker", size=4, by="anna")
    log.tell("scale-requested", role="worker", size=None, by="anna")
    log.tell("resized", group=0, sizes={"worker": 4}, joined=["worker:3"], left=[], restarts=False)
    log.tell("save-requested", save="2026", by="user")
    log.tell("saved", task="worker:0", attempt=1, save="2026", files=0, bytes=0, gave_up="the disk is full")
    log.tell("warned", task="worker:0", seconds=15.0, reason="preempted", figures={"by": "queue prod"})
    log.tell("trouble", task="worker:0", attempt=1, what="log", detail="no room")
    log.tell("user-acted", by="anna", action="signal", task="worker:0", attempt=1, detail="SIGUSR1")
    figures = {"by": "anna", "why": "slow"}
    log.tell(
        "attempt-written-off",
        task="worker:0",
        attempt=1,
        serial=1,
        reason="killed-by-user",
        figures=figures,
        gone=False,
    )
    log.tell("kill-requested", by="anna", why="no use")
    log.tell("ending", state="killed", reason="killed-by-user", figures={"by": "anna"})
    log.tell("ended", state="killed", reason="killed-by-user", figures={}, gave_up="")
    assert [(mark.kind, mark.text) for mark in log.timeline.marks] == [
        ("master", "master 1 started at host:1"),
        ("user", "anna asked for 4 x worker"),
        ("user", "anna left the number of worker to the job's own rules"),
        ("resize", "the group goes on with 4 x worker: worker:3 joined"),
        ("save", "save 2026 was asked for by user"),
        ("trouble", "worker:0 could not store save 2026: the disk is full"),
        ("preemption", "worker:0 will be taken back in 15 s: it gave way to queue prod"),
        ("trouble", "worker:0 goes on, but log: no room"),
        ("user", "anna sent SIGUSR1 to the program of worker:0"),
        ("user", "worker:0 was killed by anna: slow"),
        ("user", "anna asked to kill the job: no use"),
        ("end", "the job is ending: was killed by anna"),
        ("end", "the job ended: killed"),
    ]


def test_a_decision_that_a_dying_master_left_incomplete_counts_for_nothing() -> None:
    log = Log()
    log.tell("kill-requested", by="anna", why="", rest=1)
    log.tell("master-started", read={}, place="")
    assert not log.texts("user")
    log.tell("kill-requested", by="anna", why="", rest=1)
    assert not log.texts("user")
    log.tell("ending", state="killed", reason="killed-by-user", figures={})
    assert log.texts("user") == ["anna asked to kill the job"]


def test_a_log_whose_beginning_was_dropped_leaves_a_hole() -> None:
    log = Log()
    log.tell("started", task="worker:0", attempt=7, report=2, pid=7, elapsed=None)
    assert log.timeline.attempts["worker:0", 7].state == "running"


def test_marks_of_one_kind_are_thinned_and_counted() -> None:
    log = Log()
    log.restart("worker:0")
    for number in range(30_000):  # a checkpoint set each minute for three weeks
        log.tell("checkpoint-saved", task="worker:0", attempt=1, report=number, set=number)
    kept = [mark.n for mark in log.timeline.marks if mark.kind == "checkpoint"]
    assert course.MARKS / 2 <= len(kept) <= course.MARKS
    assert (kept[0], kept[-1]) == (2, 30_001)
    assert log.timeline.counts == {"restart": 1, "checkpoint": 30_000}
    assert len(log.texts("restart")) == 1


def test_the_text_of_a_mark_is_cut() -> None:
    log = Log()
    log.tell("kill-requested", by="anna", why="x" * 100_000)
    assert len(log.timeline.marks[0].text) == course.TEXT


def test_old_attempts_are_forgotten_and_counted(monkeypatch) -> None:
    monkeypatch.setattr(course, "ATTEMPTS", 50)
    monkeypatch.setattr(course, "MEMBERS", 20)
    log = Log()
    for number in range(1, 201):
        log.run("worker:0", number, number, "n1")
        log.tell("attempt-ended", task="worker:0", attempt=number, report=3, reason="exit", figures={}, elapsed=1.0)
    timeline = log.timeline
    assert len(timeline.attempts) <= 50
    assert len(timeline.attempts) + timeline.forgotten == 200
    assert max(number for _, number in timeline.attempts) == 200
    assert len(timeline.generations) == 20


def test_a_thousand_tasks_of_which_a_hundred_failed_are_small() -> None:
    """One group of 1,000 forms, a hundred of it fail and it forms again: under 3 MiB (seen: 1.6)."""
    tasks = [f"worker:{index}" for index in range(1_000)]
    tracemalloc.start()
    try:
        log = Log()
        for attempt in (1, 2):
            log.tell("asked", tasks=[[task, attempt] for task in tasks])
            for index, task in enumerate(tasks):
                place = {"container": f"container_{attempt}_{index:06}", "node": f"node-{index % 50}:8041"}
                log.tell("granted", task=task, serial=attempt, **place, devices=[index % 8])
                log.tell("ready", task=task, attempt=attempt, report=1, address="a")
            members = [[task, attempt] for task in tasks]
            ranks = {task: rank for rank, task in enumerate(tasks)}
            log.tell("generation-formed", group=0, generation=attempt, members=members, ranks=ranks)
            for task in tasks:
                log.tell("started", task=task, attempt=attempt, report=2, pid=7, elapsed=1.0)
            for task in tasks[:100] if attempt == 1 else ():
                figures = {"status": 1}
                log.tell("attempt-ended", task=task, attempt=1, report=3, reason="exit", figures=figures, elapsed=1.0)
            for task in tasks[100:] if attempt == 1 else ():
                log.tell("attempt-ended", task=task, attempt=1, report=3, reason="peer-failed", figures={}, elapsed=1.0)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(log.timeline.attempts) == 2_000
    assert size < 3 * 2**20
