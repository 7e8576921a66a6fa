"""Simulate the agent and its program: the real course of an attempt and the real outbox, with the clock handed in.

An agent obeys the highest epoch it has seen, numbers its reports and sends them again until they are acknowledged, and stops its program
when it was cut off beyond its grace. An agent whose program has ended waits longer for a master that must learn of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from trainmaster.agent.attempt.course import Course
from trainmaster.agent.link.outbox import Outbox
from trainmaster.agent.link.waits import Waits
from trainmaster.core.input.ranges import RangeSet
from trainmaster.core.input.shards import MEMBERS
from trainmaster.core.machine.orders import WHEN_STOPPED, order_faults
from trainmaster.core.machine.phases import COMMITTING, DONE, EXITED, NEW, READY, RUNNING, STAGING, STARTING, UPLOADED
from trainmaster.simulation.engine import Container
from trainmaster.simulation.meetings import Process
from trainmaster.simulation.network import RULES, Link, Master
from trainmaster.simulation.steps import EVERY, Steps
from trainmaster.simulation.world import BEGINNING, GRACE, Violation, World

STAY = 100.0  # s without a master, for an agent whose program has ended; within a play's SETTLED
STALL = 1800.0  # s without progress after which an agent ends its program
WELL = {"reason": "exit", "status": 0}

# How programs fail, each as often as the others.
FAILURES: tuple[dict[str, Any], ...] = (
    {"reason": "exit", "status": 1},
    {"reason": "signal", "figures": {"name": "SIGSEGV"}},
    {"reason": "out-of-memory", "figures": {"used": 2**30, "limit": 2**30}},
    {"reason": "address-in-use", "figures": {"detail": "main"}},
)


@attrs.frozen(slots=True)
class Habits:
    """The habits of programs under one seed."""

    runs: tuple[float, float] = (20.0, 200.0)  # s of work in all, least and most; may have no end
    fails: float = 0.0  # chance that an attempt fails by itself
    hangs: float = 0.0  # chance that it does not come to an end
    ignores_term: float = 0.1  # chance that a stop takes the whole grace
    progresses: bool = True
    staging: tuple[float, float] = (0.0, 5.0)
    tells_staging: float = 1.0  # s after which an agent that still stages reports that half of it is there
    misses: float = 0.0  # chance that staging fails
    saves_every: float = 0.0  # s between checkpoint sets; 0 for none
    full_disk: float = 0.0  # chance that a checkpoint set does not fit on its disk
    savers: float = math.inf  # only tasks of a lower index store sets
    commits: float = 0.5  # s that a commit takes at most
    misses_upload: float = 0.0  # chance that the outputs of an attempt cannot be uploaded
    idle_writers: float = 0.0  # chance that an attempt puts nothing into its outputs
    parts: float = (
        0.0  # chance that the outputs are committed in a part, after each shard and once a program is stopped
    )
    stillborn: float = 0.0  # chance that an agent dies before it is heard of
    poison: frozenset[int] = frozenset()  # shards that kill their readers
    tells_begun: bool = False  # whether agents tell which shard a program was reading when it failed
    deaf: float = 0.0  # chance that an agent hears of a stop, and does nothing
    reads: tuple[float, float] = (0.1, 2.0)  # s that the program works on a shard
    warms_up: tuple[float, float] = (2.0, 2.0)  # s until the template of a spare's program is made
    steps: Steps | None = None  # how fast programs work that report their steps
    trains: bool = False  # programs of a rendezvous train: the work on their shards is in the state of all members
    meets: str = ""  # what programs wait for together (`core.waits`); "": for nothing


class Agent:
    """The supervisor in one container."""

    def __init__(
        self, world: World, container: Container, habits: Habits,
        find: Callable[[Agent], Master | None], ended: Callable[[Agent, int], None],
    ) -> None:  # fmt: skip
        self.world, self.container, self.habits = world, container, habits
        self.key = (container.task, container.serial)
        self._find, self._ended = find, ended
        self.alive = True
        self.link: Link | None = None
        self.unreachable_until = 0.0
        self.epoch = 0
        self.course = Course(0)  # of the newest attempt
        self.running = 0  # attempt whose program runs
        self.reading: list[int] = []  # shard numbers leased and not reported yet
        self._parts, self._uncommitted = (
            0,
            RangeSet(),
        )  # of the attempt; and the shards that it has read since the last part
        self._begun: list[list[Any]] = []  # the shard that the program was reading when it failed, as a report tells it
        self._reached: dict[str, Any] = {}  # the best progress of the running program
        self._began = self._step = 0.0  # of a program that reports its steps
        self._allowed = ""  # when its outputs are committed in parts
        self._restored: int | None = None  # the checkpoint set that was put in place
        self._env: Mapping[str, Any] = {}  # the environment of the running program
        self._obeyed: set[tuple[int, str, str]] = set()  # orders carried out
        self._outbox = Outbox()
        self._sends_at = 0.0  # when the next report that waited is sent
        self._unacknowledged: dict[int, int] = {}  # number of a report -> the shard that was done
        self.waits = Waits(self._send_waits, lambda: world.now)
        self.process: Process | None = None  # the running program, where it waits for others
        self.silent_since = world.now
        world.at(world.rng.uniform(0.02, 0.5), self.connect)
        if habits.stillborn and world.rng.random() < habits.stillborn:
            world.at(0.01, self.die, 70)

    # -- the channel --

    def connect(self) -> None:
        if not self.alive or self.link is not None:
            return
        if self.world.now - self.silent_since > (STAY if self._holds_end() else GRACE):
            self._give_in()
            return
        master = self._find(self) if self.world.now >= self.unreachable_until else None
        refused = "nobody" if master is None else self._open(master)
        if refused == "written-off":
            self._give_in()
        elif refused:
            self.world.truth.struck["reconnect"] += 1
            self.world.at(self.world.delay(RULES["reconnect"]), self.connect)

    def _open(self, master: Master) -> str:
        self.world.truth.struck["frame"] += 1
        link = Link(self.world, self, master)
        self.link = link
        refused = master.accept(self, link)
        if refused:
            self.link, link.open = None, False
            return refused
        self.epoch = max(self.epoch, master.epoch)
        self._outbox.connected(0)  # all that was not acknowledged is sent again
        self._send()
        if self.habits.meets:
            self.waits.tell(anew=True)
        return ""

    def cut_off(self, link: Link, notice: float) -> None:
        """Begin the grace at the cut, since the last acknowledged ping was sent before it."""
        if self.link is link:
            self.link = None
            self.silent_since = self.world.now
            self.world.at(self.world.rng.uniform(0.0, notice), self.connect)
            self.world.at(GRACE + 0.001, self._check_grace)

    def hear_waits(self, link: Link, push: Mapping[str, Any]) -> None:
        """Take in what the master says to programs that wait. A connection is not read any more once the next one is open."""
        if self.link is link or self.link is None:
            self.waits.answered(push)

    def _check_grace(self) -> None:
        silence = self.world.now - self.silent_since
        if self.alive and self.link is None and silence >= (STAY if self._holds_end() else GRACE):
            self._give_in()

    def _holds_end(self) -> bool:
        kept = self._outbox.holds("ended") or self._outbox.holds("committed")
        return not self.running and (kept or self.course.is_finished(program_runs=False))

    def _give_in(self) -> None:
        """Stop the program and go: the agent was cut off beyond the grace, or refused."""
        self.die(1)

    def die(self, status: int) -> None:
        """End the agent, and its program with it."""
        if not self.alive:
            return
        self.alive = False
        self.stop_program()
        if self.link is not None:
            self.link.cut()
        self._ended(self, status)

    @property
    def attempt(self) -> int:
        return self.course.number

    def report(self, kind: str, attempt: int, **data: Any) -> None:
        self._outbox.add(kind, attempt, data)
        self._send()

    def _send(self) -> None:
        if not self.alive or self.link is None or not self.link.open:
            return
        while (report := self._outbox.next(self.world.now)) is not None:
            self.link.send_up(report)
        due = self._outbox.due(self.world.now)
        if due is not None and self._sends_at <= self.world.now:
            self._sends_at = self.world.now + due
            self.world.at(due, self._send)

    def _send_waits(self, message: dict[str, Any]) -> None:
        if self.alive and self.link is not None and self.link.open:
            self.link.send_waits(message)

    def holds_report(self, kind: str) -> bool:
        """Tell whether a report of this kind is not acknowledged yet."""
        return self._outbox.holds(kind)

    def acknowledged(self, n: int) -> None:
        self._outbox.acknowledge(n)
        self._unacknowledged = {number: shard for number, shard in self._unacknowledged.items() if number > n}

    def holds(self) -> list[list[int]]:
        """Return the shards that the agent leased and whose end no master has acknowledged."""
        return [[number, number + 1] for number in sorted({*self._unacknowledged.values(), *self.reading})]

    # -- orders --

    def obey(self, message: Mapping[str, Any]) -> None:
        if wrong := order_faults(message):
            raise Violation(f"a malformed order: {wrong}")
        if message["epoch"] < self.epoch:
            return
        self.epoch = message["epoch"]
        key = (message["attempt"], message["verb"], message["id"])
        if key not in self._obeyed and message["attempt"] >= self.attempt:
            self._obeyed.add(key)
            if (act := _VERBS.get(message["verb"])) is not None:
                act(self, message["attempt"], message)

    def _course(self, attempt: int) -> Course:
        """Return the course of an attempt that is not over before the newest one; a new attempt ends those before it."""
        if attempt > self.attempt:
            self.stop_program()
            self.course, self._unacknowledged = Course(attempt), {}
        return self.course

    def _prepare(self, attempt: int, order: Mapping[str, Any]) -> None:
        course = self._course(attempt)
        if not course.enter(STAGING):
            return
        self._restored = order["checkpoint"]["set"]
        seconds = self.world.rng.uniform(*self.habits.staging)
        if seconds > self.habits.tells_staging:
            self.world.at(self.habits.tells_staging, self._staging, course)
        self.world.at(seconds, self._prepared, course)

    def _warm_up(self, attempt: int, order: Mapping[str, Any]) -> None:
        self.world.at(self.world.rng.uniform(*self.habits.warms_up), self._warmed_up, self._course(attempt))

    def _warmed_up(self, course: Course) -> None:
        if self.alive and course is self.course and course.phase == NEW and not course.is_stopped:
            self.report("warmed-up", course.number, why="warm")

    def _staging(self, course: Course) -> None:
        if self.alive and course is self.course and course.phase == STAGING and not course.is_stopped:
            self.report("staging", course.number, done=1, total=2)

    def _prepared(self, course: Course) -> None:
        if not self.alive or course is not self.course or course.is_stopped:
            return
        if self.habits.misses and self.world.rng.random() < self.habits.misses:
            course.end()
            figures = {"detail": "the storage is busy"}
            self.report("ended", course.number, reason="staging-failed", figures=figures, elapsed=1.0)
        elif course.enter(READY):
            self.report("ready", course.number, address=self.container.node, ports={"main": 20000 + self._outbox.last})

    def _start(self, attempt: int, order: Mapping[str, Any]) -> None:
        course = self._course(attempt)
        if not course.enter(STARTING):
            return
        self.running, self._env, self.reading, self._begun = attempt, order["env"], [], []
        self._parts, self._uncommitted, self._allowed = 0, RangeSet(), order.get("parts", "")
        self.world.program_starts(self.container.task, attempt, self._env.get("generation"), self._restored)
        course.launch()
        course.enter(RUNNING)
        self.report("started", attempt, pid=1)
        if self.habits.meets:
            self.waits.begin(attempt)
            self.process = Process(self, attempt, self.habits.meets)
        rng, habits = self.world.rng, self.habits
        if habits.hangs and rng.random() < habits.hangs:
            self.world.at(STALL, self.end_program, attempt, {"reason": "stalled", "figures": {"seconds": STALL}})
        elif self._env.get("input"):
            self.world.at(0.01, self._read_shards, attempt)
        elif habits.runs[0] < math.inf:
            self.world.at(rng.uniform(*habits.runs), self._program_over, attempt)
        if habits.progresses:
            self.world.at(rng.uniform(5, 15), self._progress, attempt)
        if habits.steps is not None:
            self._began, self._step = self.world.now, 0.0
            self.world.at(EVERY, self._make_steps, attempt, habits.steps)
        if habits.saves_every and self._env.get("marks") and self.container.index < habits.savers:
            self.world.at(habits.saves_every, self._checkpoint, attempt)

    def _stop(self, attempt: int, order: Mapping[str, Any]) -> None:
        if self.habits.deaf and self.world.rng.random() < self.habits.deaf:
            return
        course = self._course(attempt)  # perhaps of an attempt that was never heard of before
        stores = course.phase == RUNNING and not self.running
        if not course.stop(is_reclaimed=False, has_died=stores) or stores:
            return  # what is stored ends by itself
        slow = self.running and self.world.rng.random() < self.habits.ignores_term
        self.world.at(order["grace"] if slow else self.world.rng.uniform(0.0, 0.1), self._stopped, course)

    def _stopped(self, course: Course) -> None:
        if self.alive and course is self.course and course.end():
            ran = bool(self.running)
            is_between = ran and not self.reading and bool(self._uncommitted)
            if is_between and self._allowed == WHEN_STOPPED and self.world.rng.random() < self.habits.parts:
                self._commit_part()
            self.stop_program()
            stop_fields = course.end_fields(False if ran else None) or {}
            self.report(
                "ended", course.number, reason="signal", figures={"name": "SIGTERM"}, elapsed=1.0, **stop_fields
            )

    def _peer_finished(self, attempt: int, order: Mapping[str, Any]) -> None:
        self.world.at(order["limit"], self._hung, attempt, order["limit"])

    def _hung(self, attempt: int, limit: float) -> None:
        if self.habits.hangs:
            self.end_program(attempt, {"reason": "hung-after-peer-finished", "figures": {"seconds": limit}})

    def _commit(self, attempt: int, order: Mapping[str, Any]) -> None:
        course = self._course(attempt)
        if course.enter(COMMITTING):
            self.world.at(self.world.rng.uniform(0.0, self.habits.commits), self._committed, course)

    def _committed(self, course: Course) -> None:
        """Report the commit; a stop that comes meanwhile waits for it, and does not report it."""
        if self.alive and not course.is_over:
            self.world.commits(self.container.task, course.number)
            if course.enter(DONE):
                self.report("committed", course.number, outputs={})

    def _save(self, attempt: int, order: Mapping[str, Any]) -> None:
        if self.running == attempt:
            self.report("warned", attempt, what="log", detail="its disk was full for a while")
            self.report("saved", attempt, save=order["id"], files=1, bytes=1)

    def _signal(self, attempt: int, order: Mapping[str, Any]) -> None:
        self.end_program(attempt, {"reason": "killed-by-user", "figures": {"sent": order["signal"], "by": order["by"]}})

    def _leave(self, attempt: int, order: Mapping[str, Any]) -> None:
        if not self.running:
            self.report("left", attempt)

    # -- the program --

    def _progress(self, attempt: int) -> None:
        if self.running == attempt and self.alive:
            self.report("progress", attempt, progress=0.5)  # each attempt gets as far as the one before
            self._reached = {"reached": {"value": 0.5}}
            self.world.at(30.0, self._progress, attempt)

    def _make_steps(self, attempt: int, steps: Steps) -> None:
        if self.running == attempt and self.alive:
            now, running = self.world.now, sum(map(bool, self.world.truth.running.values()))
            advance = steps.made(self.container.task, self.container.node, now - self._began, running, now - BEGINNING)
            self._step += advance
            if advance:
                self.report("progress", attempt, step=int(self._step))
                self._reached = {"reached": {"step": int(self._step)}}
            self.world.at(EVERY, self._make_steps, attempt, steps)

    def _read_shards(self, attempt: int) -> None:
        """Lease a shard, work on it, report it; end well when the input is at its end."""
        if self.running != attempt or not self.alive:
            return
        name = self._env["input"]
        link = None if self.process is not None and self.process.has_no_state else self.link
        leased = link.master.lease(self, name) if link is not None and link.open else None
        if leased == -1:
            self._program_over(attempt)
        elif leased is None:
            self.world.at(self.world.rng.uniform(0.1, 1.0), self._read_shards, attempt)
        else:
            self.reading = [leased]
            seconds = self.world.rng.uniform(*self.habits.reads)
            if leased in self.habits.poison:
                self.world.at(seconds, self._poisoned, attempt)
            else:
                self.world.at(seconds, self.shard_read, attempt, name, leased)

    def _poisoned(self, attempt: int) -> None:
        self.end_program(attempt, self.world.rng.choice(FAILURES[:3]))

    def shard_read(self, attempt: int, name: str, number: int) -> None:
        if self.running == attempt and self.alive:
            if self.habits.trains and self.process is not None:
                self.process.hand = (name, number)  # it counts with the step that it is in
                return
            self.trained(attempt, name, number)

    def trained(self, attempt: int, name: str, number: int) -> None:
        """Report the shard that the program has done, and read on."""
        if self.running == attempt and self.alive:
            self.world.trains(self.container.task, attempt, (name, number))
            self.reading = []
            ranges = [[number, number + 1]]
            state = (
                {"kept_by": MEMBERS, "states": [[*self.process.mark, ranges]]}
                if self.process and self.habits.trains
                else {}
            )
            self.report("shards-done", attempt, input=name, ranges=ranges, **state)
            self._unacknowledged[self._outbox.last] = number
            self._uncommitted.add(number, number + 1)
            if self._allowed and self.habits.parts and self.world.rng.random() < self.habits.parts:
                self._commit_part()
            self._read_shards(attempt)

    def _commit_part(self) -> None:
        """Commit what was read since the last part. The report is not heard of where the agent is lost on the way."""
        self._parts += 1
        name, shards, self._uncommitted = self._env["input"], self._uncommitted, RangeSet()
        self.world.truth.parts[self.container.task, self.running, self._parts] = {(name, number) for number in shards}
        self.report("part", self.running, number=self._parts, outputs={}, kept={name: shards.to_json()})

    def _checkpoint(self, attempt: int) -> None:
        if self.running == attempt and self.alive:
            if self.habits.full_disk and self.world.rng.random() < self.habits.full_disk:
                self.world.truth.struck["set-does-not-fit"] += 1
                self.report("warned", attempt, what="checkpoint", detail="the disk is full")
            else:
                number = int(self.world.now * 1000)
                self.report("checkpoint", attempt, set=number, files=1, bytes=1, marks=self._env["marks"]())
                self.world.saves(self.container.task, attempt, number)
            self.world.at(self.habits.saves_every, self._checkpoint, attempt)

    def _program_over(self, attempt: int) -> None:
        if self.running == attempt and self.alive:
            if self.process is not None and self.process.must_stay:
                self.world.at(1.0, self._program_over, attempt)
                return
            if self.habits.trains and self.process is not None:
                self.world.finishes(self.container.task, attempt, self.process.state or set())
            fails = self.world.rng.random() < self.habits.fails
            self.end_program(attempt, self.world.rng.choice(FAILURES) if fails else WELL)

    def end_program(self, attempt: int, how: dict[str, Any]) -> None:
        """End the running program by itself (or by a fault)."""
        if self.running != attempt or not attempt or not self.alive:
            return
        course = self.course
        if course.is_stopped:
            self._stopped(course)
            return
        if self.habits.tells_begun and self.reading and how is not WELL:
            name = self._env["input"]
            self.world.fails_on(self.container.task, attempt, (name, self.reading[0]))
            self._begun = [[1, name, self.reading[0], 1.0]]
        self.stop_program()
        course.end_program()
        how, self._reached = {**how, **self._reached} if how is not WELL else how, {}
        if how is not WELL and self._env.get("marks"):
            self.report("died", attempt, elapsed=1.0, **how)
            self.world.at(self.world.rng.uniform(0.0, 15.0), self._stored, course, how)
        elif how is not WELL:
            self._stored(course, how)
        elif course.enter(EXITED):
            self.report("ended", attempt, elapsed=1.0, **how)
            self.world.at(self.world.rng.uniform(0.0, 1.0), self._uploaded, course)

    def _stored(self, course: Course, how: dict[str, Any]) -> None:
        """Report the end of a failed program, once the rest of its checkpoint is stored."""
        if self.alive and course.end():
            if self._begun:
                self.report("shards-begun", course.number, begun=self._begun)
            self.report("ended", course.number, elapsed=1.0, **how, **(course.end_fields(is_well=False) or {}))

    def _uploaded(self, course: Course) -> None:
        if self.habits.misses_upload and self.world.rng.random() < self.habits.misses_upload:
            self._stored(course, {"reason": "upload-failed", "figures": {"detail": "the disk is full"}})
        elif self.alive and course is self.course and course.enter(UPLOADED):
            self.report("uploaded", course.number, outputs=self._written(course.number))

    def _written(self, attempt: int) -> dict[str, Any]:
        """Return the report on the output `model`, drawn apart from all else."""
        task, chance = self.container.task, self.habits.idle_writers
        writes = not chance or random.Random(f"idle writers {task} {attempt}").random() >= chance
        if writes:
            self.world.truth.writers.add((task, attempt))
        return {"model": {"files": int(writes), "bytes": 0}} if chance else {}

    def stop_program(self) -> None:
        if self.running:
            self.world.program_ends(self.container.task, self.running)
            self.running, self.reading = 0, []
            if self.process is not None:
                self.process.end()
                self.process = None


_VERBS: dict[str, Callable[[Agent, int, Mapping[str, Any]], None]] = {
    "prepare": Agent._prepare,
    "warm-up": Agent._warm_up,
    "start": Agent._start,
    "stop": Agent._stop,
    "peer-finished": Agent._peer_finished,
    "commit": Agent._commit,
    "save": Agent._save,
    "signal": Agent._signal,
    "dump": lambda agent, attempt, order: None,
    "leave": Agent._leave,
}
