"""The core under arbitrary stimuli: valid and invalid, stale, repeated, out of order, in any state of small jobs of any kind."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trainmaster.core.decide.decisions import REPORTS, decide
from trainmaster.core.decide.drive import Drive
from trainmaster.core.decide.failures import FREE_LIMIT
from trainmaster.core.decide.plan import plan, plan_all
from trainmaster.core.fold.changes import fold
from trainmaster.core.input.audit import audit
from trainmaster.core.machine import phases, stimuli
from trainmaster.core.machine import state as core
from trainmaster.core.machine.actions import Action, Ask, CommitFor, Order, Release, Step
from trainmaster.core.machine.events import EVENTS, Event, decode, encode
from trainmaster.core.machine.reasons import REASONS
from trainmaster.core.machine.snapshot import dump, load
from trainmaster.core.machine.state import State
from trainmaster.simulation.scenes import STRANGE_NAMES, rename_roles

LISTING = {
    "train": {"files": [["data", 8 * 1024, None]], "shards": {"size": 1024, "epochs": 1, "shuffle": True, "seed": 1}}
}
TOLD = ("granted", "refused", "exited", "lost", "warned", "taken")
NUMBERS = (None, None, None, 1, 5)  # of a report; None for the next
ENDED = [
    {"reason": "exit", "status": 0},
    {"reason": "exit", "status": 1},
    {"reason": "exit", "status": 1, "reached": {"value": 0.42, "step": 3}},
    {"reason": "signal", "figures": {"name": "SIGKILL"}},
    {"reason": "out-of-memory", "figures": {"used": 2, "limit": 1}},
    {"reason": "address-in-use"},
    {"reason": "signal", "stopped": True, "figures": {"name": "SIGTERM"}},
    {"reason": "no such reason"},
]


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A small job of any kind."""
    scope = draw(st.sampled_from(("group", "task", "never")))
    worker = _role(draw, scope, draw(st.integers(1, 3)))
    roles = {"worker": worker}
    after: dict[str, str] = {}
    if draw(st.booleans()):
        roles["ps"] = _role(draw, draw(st.sampled_from(("task", "group"))), 1)
        after["ps"] = "running"
    if draw(st.integers(0, 3)) == 0:
        roles["fetch"] = _role(draw, "task", 1)
        after["fetch"] = "succeeded"
    if draw(st.integers(0, 3)) == 0:
        roles["evaluator"] = _role(draw, draw(st.sampled_from(("task", "never"))), 1)
    if after:
        worker["after"] = after
    if draw(st.integers(0, 4)) == 0:
        worker["retry_memory"] = 1.5
    job: dict[str, Any] = {"name": "any", "roles": roles, "gang": draw(st.booleans())}
    job["timeouts"] = {"start": "10m", "job": draw(st.sampled_from(("none", "1h")))}
    if draw(st.booleans()):
        job["outputs"] = {"model": {"url": "memory://out", "from": draw(st.sampled_from(("worker", "worker:0")))}}
    if draw(st.booleans()):
        job["inputs"] = {"train": {"url": "memory://data", "as": "shards", "to": ["worker"]}}
    if draw(st.booleans()):
        job["checkpoint"] = {"path": "ckpt", "url": "memory://ckpt"}
    completion = draw(st.sampled_from(("all", "all", "first", "failures")))
    if completion != "all":
        job["completion"] = {"first": "worker"} if completion == "first" else {"failures": 0.5}
    strange = draw(st.one_of(st.none(), st.permutations(STRANGE_NAMES)))
    return job if strange is None else rename_roles(job, {"worker": strange[0], "fetch": strange[1]})


def _role(draw: st.DrawFn, scope: str, most: int) -> dict[str, Any]:
    replicas: Any = {"min": 1, "max": most} if most > 1 and draw(st.booleans()) else most
    return {
        "command": "true",
        "replicas": replicas,
        "restart": {"scope": scope, "limit": draw(st.integers(0, 2)), "total": draw(st.sampled_from((2, 4, 100)))},
    }


def plain(state: State) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(dump(state)))
    return told


def whole(state: State) -> Any:
    """All of a state, its unsettled tasks too."""
    return plain(state), list(state.unsettled), sorted(state.clock)


class AnyStimuli(RuleBasedStateMachine):
    """A master with nobody around it that could be trusted."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.drive = Drive()
        self.log: list[Event] = []
        self.known: dict[int, dict[str, Any]] = {}  # what the state was after an event
        self.planned: list[Action] = []
        self.told: list[stimuli.Stimulus] = []
        self.numbers: Counter[tuple[str, int]] = Counter()  # reports of each container
        self.reported: dict[tuple[str, int], int] = {}  # container -> its last report that became an event
        self.epoch = 1

    @initialize(job=jobs())
    def submit(self, job: dict[str, Any]) -> None:
        self.take(stimuli.MasterStarted(1), stimuli.Submitted("any-aaaaaa", job))

    # -- telling --

    @property
    def state(self) -> State:
        return self.drive.state

    def take(self, *told: stimuli.Stimulus) -> list[Action]:
        """Tell the core, and hold every event and action that it answers with against its promises."""
        first = len(self.log)
        events, self.planned = self.drive.take(told, self.now)
        self.log += events
        self.told += told
        if events:
            self.known[self.state.n] = plain(self.state)
        for event in self.log[first:]:
            self._check_event(event)
        assert [event.n for event in self.log] == list(range(1, len(self.log) + 1))
        assert all(
            earlier.at <= later.at
            for earlier, later in zip(self.log[first - 1 :], self.log[first:], strict=False)
            if first
        )
        return self.planned

    def _check_event(self, event: Event) -> None:
        data = event.data
        assert event.type in EVENTS
        assert "reason" not in data or event.type in ("refused", "warned") or data["reason"] in REASONS
        if "report" in data:
            key = (data["task"], self.state.tasks[data["task"]].serial)
            assert data["report"] > self.reported.get(key, 0), "a report is taken in once"
            self.reported[key] = data["report"]
        if event.type == "incident" and data["again"]:
            assert data["spent"] <= data["limit"] or not data["costs"]
            role = self.state.role(self.state.tasks[data["cause"]["task"]])
            assert data["total"] <= role.restart.total or not data["costs"]
            assert data["free"] <= FREE_LIMIT
        if event.type == "settled":
            assert data["spent"] >= 0
            assert data["free"] >= 0
        if event.type == "generation-formed":
            assert sorted(data["ranks"].values()) == list(range(len(data["ranks"])))
            counting = [task.key for task in self.state.members(self.state.groups[data["group"]]) if task.counts]
            assert sorted(data["ranks"]) == sorted(counting)

    def task(self, choice: int) -> core.Task:
        tasks = list(self.state.tasks.values())
        return tasks[choice % len(tasks)]

    def report(self, task: core.Task, kind: str, n: int | None = None, attempt: int = 0, **data: Any) -> None:
        key = (task.key, task.serial)
        self.numbers[key] = max(self.numbers[key], task.reported)
        if n is None:
            self.numbers[key] += 1
            n = self.numbers[key]
        self.take(stimuli.Report(task.key, task.serial, n, attempt or task.attempt, kind, data))

    # -- stimuli as they should be --

    @rule(times=st.integers(1, 12))
    def all_goes_well(self, times: int) -> None:
        for _ in range(times):
            if not self.go_on():
                break

    def go_on(self) -> bool:
        """Let the next thing happen as it should; False where only time can bring more."""
        before = len(self.log)
        self.do(self.planned)
        for task in list(self.state.tasks.values()):
            self._go_on_with(task)
        return len(self.log) > before

    def _go_on_with(self, task: core.Task) -> None:
        if task.hold == core.ASKED:
            self.take(stimuli.Granted(task.key, task.serial, f"c/{task.key}/{task.serial}", "node"))
        elif task.hold == core.GRANTED and not task.connected:
            self.take(stimuli.Connected(task.key, task.serial, {"node": "node"}))
        elif task.hold != core.GRANTED:
            return
        elif task.sent.get("leave") and not task.left:
            self.report(task, "left")
        elif task.doomed:
            if task.sent.get("stop") == str(task.attempt):
                self.report(task, "ended", reason="signal", stopped=True, elapsed=1.0)
        elif task.phase == phases.STAGING:
            self.report(task, "ready", address="10.0.0.1", ports={"main": 20000})
        elif task.phase == phases.STARTING and task.sent.get("start") == str(task.attempt):
            self.report(task, "started", pid=1)
        elif task.phase == phases.RUNNING:
            self.report(task, "ended", reason="exit", status=0, elapsed=1.0)
        elif task.phase == phases.EXITED:
            self.report(task, "uploaded", outputs={})
        elif task.phase == phases.COMMITTING and task.sent.get("commit"):
            self.report(task, "committed", outputs={})

    def do(self, actions: list[Action]) -> None:
        """Carry actions out and say so: they are not planned again."""
        together = tuple(action for action in actions if isinstance(action, Ask | Release | Order))
        if together:
            assert not set(together) & set(self.take(stimuli.Did(together)))
        for action in actions:
            if isinstance(action, Step | CommitFor):
                listing = {"listings": LISTING} if action == Step("list-inputs") else {}
                assert action not in self.take(stimuli.Did((action,), listing))

    @rule(seconds=st.sampled_from((0.0, 0.5, 3.0, 11.0, 60.0, 700.0, 4000.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.take(stimuli.Tick())

    # -- stimuli of every kind, at any moment --

    @rule(
        choice=st.integers(0, 9),
        ahead=st.integers(-1, 2),
        kind=st.sampled_from(TOLD),
    )
    def engine_tells(self, choice: int, ahead: int, kind: str) -> None:
        task = self.task(choice)
        serial = max(1, task.serial + ahead)
        self.take(
            {
                "granted": stimuli.Granted(task.key, serial, "c", "other-node"),
                "refused": stimuli.Refused(task.key, serial, "too much")
                if choice == 9
                else stimuli.Waiting("cores", "2", "1"),
                "exited": stimuli.ContainerExited(task.key, serial, -9 if choice % 2 else 1),
                "lost": stimuli.ContainerLost(task.key, serial, "node-lost"),
                "warned": stimuli.Warned(task.key, serial, 30.0, figures={"by": "another"} if choice % 2 else None),
                "taken": stimuli.ContainerExited(task.key, serial, 143, "preempted", {"by": "another"}),
            }[kind]
        )

    @rule(choice=st.integers(0, 9), ahead=st.integers(-1, 1), there=st.booleans())
    def agent_comes_or_goes(self, choice: int, ahead: int, there: bool) -> None:
        task = self.task(choice)
        serial = max(1, task.serial + ahead)
        self.take(stimuli.Connected(task.key, serial, {}) if there else stimuli.Disconnected(task.key, serial))

    @rule(
        choice=st.integers(0, 9), kind=st.sampled_from(sorted(REPORTS)), attempt=st.integers(-1, 1), n=st.sampled_from(NUMBERS),
        how=st.sampled_from(ENDED), mark=st.integers(0, 100),
    )  # fmt: skip
    def agent_reports(
        self, choice: int, kind: str, attempt: int, n: int | None, how: dict[str, Any], mark: int
    ) -> None:
        task = self.task(choice)
        data = {
            "ended": how,
            "ready": {"address": "a"},
            "shards-done": {"input": "train", "ranges": [[mark % 8, mark % 8 + 1 + mark % 2]]},
            "checkpoint": {
                "set": int(self.now),
                "marks": {name: table.marks() for name, table in self.state.shards.items()},
            },
            "saved": {"save": "now"},
            "progress": {"value": mark / 100} if mark % 2 else {"step": mark % 5},
        }.get(kind, {})
        self.report(task, kind, n, max(1, task.attempt + attempt), **data)

    @rule(choice=st.integers(0, 9), want=st.integers(1, 3))
    def program_reads_shards(self, choice: int, want: int) -> None:
        task = self.task(choice)
        for name, table in self.state.shards.items():
            if task.live and not task.doomed:
                ranges = [[number, number + 1] for number in list(table.remaining())[:want]]
                self.report(task, "shards-done", input=name, ranges=ranges)

    @rule(what=st.sampled_from(("kill", "save", "save", "save", "save", "storage", "secrets")), sure=st.integers(0, 3))
    def user_or_shell_tells(self, what: str, sure: int) -> None:
        if what == "save":
            self.take(stimuli.SaveRequested(f"save-{sure}"))
        elif sure == 0:
            self.take(
                {
                    "kill": stimuli.KillRequested("a user"),
                    "storage": stimuli.StorageLost("full"),
                    "secrets": stimuli.SecretsLost(),
                }[what]
            )

    @rule(choice=st.integers(0, 9), action=st.sampled_from(("signal", "dump", "cut")))
    def user_acts(self, choice: int, action: str) -> None:
        self.take(stimuli.UserActed(action, self.task(choice).key, "a user", "SIGUSR1"))

    @rule(back=st.integers(1, 30))
    def something_is_reported_again(self, back: int) -> None:
        if len(self.told) >= back:
            again = self.told[-back]
            if not isinstance(again, stimuli.MasterStarted | stimuli.Did):
                self.take(again)

    @rule(lost=st.integers(0, 8), wrong=st.sampled_from((0.0, 0.0, -5000.0, 5000.0)))
    def master_dies(self, lost: int, wrong: float) -> None:
        """Another takes over with what was durable, on a machine with another clock."""
        durable = max(event.n for event in self.log if EVENTS[event.type].barrier)
        self._take_over(max(durable, len(self.log) - lost), wrong)

    @rule(choice=st.integers(0, 9), lost=st.integers(1, 5), how=st.sampled_from(ENDED))
    def master_dies_while_it_writes(self, choice: int, lost: int, how: dict[str, Any]) -> None:
        """Only the first of the events that a failure brought are on the disk, and nothing was done about them."""
        before, task = len(self.log), self.task(choice)
        if choice % 2:
            self.report(task, "ended", **how)
        else:
            self.take(stimuli.ContainerLost(task.key, task.serial, "node-lost"))
        self._take_over(max(before, len(self.log) - lost), 0.0)

    def _take_over(self, durable: int, wrong: float) -> None:
        self.log = self.log[:durable]
        self.known = {n: known for n, known in self.known.items() if n <= len(self.log)}
        self.drive = Drive(fold(State(), [decode(encode(event)) for event in self.log]))
        self.reported = {(task.key, task.serial): task.reported for task in self.state.tasks.values()}
        self.now += wrong
        self.epoch += 1
        self.take(stimuli.MasterStarted(self.epoch, {str(event.epoch): event.n for event in self.log}))

    # -- what always holds --

    @invariant()
    def plan_is_the_full_comparison(self) -> None:
        before = whole(self.state)
        some, every = plan(self.state, self.now), plan_all(self.state, self.now)
        assert Counter(some) == Counter(every)
        assert whole(self.state) == before

    @invariant()
    def what_is_needed_is_asked_for_and_nothing_else(self) -> None:
        asked = {action.task: action.serial for action in plan_all(self.state, self.now) if isinstance(action, Ask)}
        for task in self.state.tasks.values():
            needs = self.needs_container(task) and task.hold == core.NONE
            assert (task.key in asked) == needs
            assert not needs or asked[task.key] == task.serial + 1

    def needs_container(self, task: core.Task) -> bool:
        state = self.state
        if state.ended is not None or task.phase == phases.COMMITTING:
            return False
        waits = (
            task.final
            or (task.is_spare and not task.grows)
            or task.blocked
            or task.resized
            or not state.groups[task.group].opened
        )
        return task.live or (state.ending is None and not waits)

    @invariant()
    def deciding_changes_nothing(self) -> None:
        if not self.state.id:
            return
        before = whole(self.state)
        for told in (None, stimuli.Tick(), stimuli.KillRequested("a user"), *self.told[-3:]):
            decide(self.state, told, self.now)
        assert whole(self.state) == before

    @invariant()
    def a_snapshot_is_the_state(self) -> None:
        told = plain(self.state)
        assert plain(load(json.loads(json.dumps(told)))) == told

    # -- what holds of it all --

    def teardown(self) -> None:
        if not self.state.id:
            return
        for _ in range(3000):
            if self.drive.closed:
                break
            if not self.go_on():
                self.now = max(self.now, self.drive.wake or self.now + 1.0)
                self.take(stimuli.Tick())
        assert self.drive.closed, f"the job did not end: {self.state.ending}"
        ends = [event.data["reason"] for event in self.log if event.type == "ended"]
        assert len(ends) == 1
        assert sum(event.type == "ending" for event in self.log) == 1
        assert all(task.final and task.hold == core.NONE for task in self.state.tasks.values())
        assert audit(self.log).ok
        self._check_replay()

    def _check_replay(self) -> None:
        """Replaying any prefix gives the state that was; one that goes on from a snapshot ends as the whole log does."""
        read = [decode(encode(event)) for event in self.log]
        assert [attrs.astuple(event) for event in read] == [attrs.astuple(decode(encode(event))) for event in read]
        state = State()
        middle = None
        for event in read:
            fold(state, (event,))
            if event.n in self.known and not state.incomplete:
                assert plain(state) == self.known[event.n]
            if event.n == len(read) // 2:
                middle = json.loads(json.dumps(dump(state)))
        assert middle is not None
        assert "rest" not in read[-1].data
        assert plain(fold(load(middle), read[len(read) // 2 :])) == plain(state)


TestAnyStimuli = AnyStimuli.TestCase
SHORT = 20  # examples, of 40 stimuli each, which take 0.4 s; each run has others
TestAnyStimuli.settings = settings(
    stateful_step_count=40, max_examples=max(SHORT, settings.default.max_examples - 2 * SHORT)
)
