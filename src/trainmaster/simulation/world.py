"""Simulate the world: one clock, one heap of due events, the job's storage, and the truth.

The world itself keeps the truth, where programs run and outputs are committed, and never reads it off the core: the copies that run, the
commits of each attempt, the records trained on, the durable part of the log. `check` compares the core's state with it.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from trainmaster.core.machine.events import Event, whole

if TYPE_CHECKING:
    from trainmaster.simulation.meetings import Process

Act = Callable[..., Any]

BEGINNING = 1_000_000_000.0  # s since 1970 when every play begins
GRACE = 30.0  # s that an agent runs its program without a master


class Violation(AssertionError):
    """A promise was broken in the world; the message says which, when and for whom."""


@attrs.frozen(slots=True)
class Rule:
    """One habit of the real world. `least` and `most` bound its delay in seconds; `chance` is per event that it applies to."""

    cites: str
    least: float = 0.0
    most: float = 0.0
    chance: float = 1.0


@attrs.define(slots=True)
class Line:
    """The model of one generation: the set that it began from, and every shard in it."""

    began: int | None  # the checkpoint set
    trained: set[tuple[str, int]]


@attrs.define(slots=True)
class Copy:
    """A running program."""

    generation: tuple[int, int] | None  # the (group, generation) that it is a member of; None where it runs for itself
    stranded: float | None = None  # since when it is barred while nobody can stop it


@attrs.define(slots=True)
class Truth:
    """The record of what really happened."""

    running: dict[str, dict[int, Copy]] = attrs.field(factory=dict)  # task -> attempt -> its program
    commits: dict[str, list[int]] = attrs.field(factory=dict)  # task -> attempts that changed its output directory
    writers: set[tuple[str, int]] = attrs.field(factory=set)  # (task, attempt) that put a file into its outputs
    # (input, shard number) -> times a program read it to its end.
    trained: Counter[tuple[str, int]] = attrs.field(factory=Counter)
    # (task, attempt) -> the shards that its program read to their end, (input, number).
    work: dict[tuple[str, int], set[tuple[str, int]]] = attrs.field(factory=dict)
    models: dict[tuple[str, int], set[int]] = attrs.field(
        factory=dict
    )  # (task, attempt) -> what its model had learnt in the end
    # (task, attempt, part) -> the shards whose work it holds, whether the master heard of it or not.
    parts: dict[tuple[str, int, int], set[tuple[str, int]]] = attrs.field(factory=dict)
    # (input, shard number) -> the attempts that failed by themselves while they were reading it.
    failed_on: dict[tuple[str, int], set[tuple[str, int]]] = attrs.field(factory=dict)
    lines: dict[tuple[int, int], Line] = attrs.field(factory=dict)  # (group, generation) -> its model
    # Checkpoint set -> the shards in the model that it holds.
    sets: dict[int, set[tuple[str, int]]] = attrs.field(factory=dict)
    # (task, attempt) -> its program, where programs wait for each other; ended ones too.
    processes: dict[tuple[str, int], Process] = attrs.field(factory=dict)
    met: Counter[str] = attrs.field(factory=Counter)  # what programs waited for -> times they were let through
    starts: int = 0
    turns_checked: int = 0  # that were held against what a new master would decide
    struck: Counter[str] = attrs.field(factory=Counter)  # rule or fault -> times it happened


@attrs.define(slots=True)
class Segment:
    """The log of one epoch: its events, and how many of them a crash leaves."""

    events: list[Event] = attrs.field(factory=list)
    synced: int = 0


class Disk:
    """The job's storage: the epochs' register, decided atomically, and a segment an epoch."""

    def __init__(self) -> None:
        self.epoch = 0
        self.segments: dict[int, Segment] = {}
        self.full_until = 0.0

    def take_epoch(self) -> int:
        self.epoch += 1
        self.segments[self.epoch] = Segment()
        return self.epoch

    def append(self, epoch: int, events: list[Event]) -> None:
        self.segments[epoch].events += events

    def sync(self, epoch: int) -> None:
        segment = self.segments[epoch]
        segment.synced = len(segment.events)

    def crash(self, epoch: int, rng: random.Random) -> None:
        """Lose any part of the unsynced events, from the end: the writer died."""
        segment = self.segments[epoch]
        keep = rng.randint(segment.synced, len(segment.events))
        del segment.events[keep:]

    def seal(self) -> None:
        """Put all events on stable storage, as a new master does with the log that it reads."""
        for segment in self.segments.values():
            segment.synced = len(segment.events)

    def read(self, *, durable: bool = False) -> list[Event]:
        """Return the log as every reader sees it: of each epoch the part that the newest says it has read, and all of the newest.

        An earlier epoch that the newest did not read began to write too late, its own head included. `durable`: only events that no
        crash can lose any more.
        """
        newest = max((epoch for epoch, segment in self.segments.items() if segment.events), default=0)
        if not newest:
            return []
        read = self.segments[newest].events[0].data["read"]
        parts = [(int(epoch), last) for epoch, last in read.items()]
        events = [event for epoch, last in sorted(parts) for event in self.segments[epoch].events if event.n <= last]
        segment = self.segments[newest]
        return events + (segment.events[: segment.synced] if durable else segment.events)


class Clock:
    """The time, of one world or of several that share a cluster, and what is due in it."""

    def __init__(self) -> None:
        self.now = BEGINNING
        self.scheduled = 0
        self._heap: list[tuple[float, int, Act, tuple[Any, ...]]] = []

    def at(self, delay: float, act: Act, *args: Any) -> None:
        self.scheduled += 1
        heapq.heappush(self._heap, (self.now + delay, self.scheduled, act, args))

    def step(self) -> bool:
        """Let the next event happen; return False when none is left."""
        if not self._heap:
            return False
        self.now, _, act, args = heapq.heappop(self._heap)
        act(*args)
        return True


class World:
    """Time and truth of one job. Parts schedule what they do with `at`; `rng` is the only source of chance."""

    def __init__(self, seed: int, clock: Clock | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = clock or Clock()
        self.at, self.step = self.clock.at, self.clock.step
        self.calm = False  # no rule strikes by chance any more
        self.disk = Disk()
        self.truth = Truth()
        self.lost_nodes: set[str] = set()  # nobody reaches them

    @property
    def now(self) -> float:
        return self.clock.now

    @property
    def happened(self) -> int:
        return self.clock.scheduled

    # -- chance --

    def delay(self, rule: Rule) -> float:
        return rule.least + (rule.most - rule.least) * self.rng.random()

    def happens(self, name: str, rules: Mapping[str, Rule]) -> bool:
        """Tell whether the rule strikes now; rules of chance strike no more once it is calm."""
        if self.calm or self.rng.random() >= rules[name].chance:
            return False
        self.truth.struck[name] += 1
        return True

    # -- what programs do, as it really happens --

    def program_starts(self, task: str, attempt: int, generation: tuple[int, int] | None, restored: int | None) -> None:
        copies = self.truth.running.setdefault(task, {})
        for other, copy in copies.items():
            if copy.stranded is None:
                raise Violation(f"{task}: attempt {attempt} starts while attempt {other} still runs and may not")
        if attempt in copies:
            raise Violation(f"{task}: attempt {attempt} was started twice")
        copies[attempt] = Copy(generation)
        self.truth.starts += 1
        if generation is not None:
            self._joins(task, generation, restored)

    def _joins(self, task: str, generation: tuple[int, int], restored: int | None) -> None:
        line = self.truth.lines.get(generation)
        if any(group == generation[0] and number > generation[1] for group, number in self.truth.lines):
            raise Violation(f"{task} starts in generation {generation[1]}, and a later one has begun")
        if line is None:
            self._assert_alone(task, generation)
            self.truth.lines[generation] = Line(
                restored, set(self.truth.sets[restored]) if restored is not None else set()
            )
        elif line.began != restored:
            raise Violation(
                f"{task}: restored set {restored}, and its peers of generation {generation[1]} set {line.began}"
            )

    def _assert_alone(self, task: str, generation: tuple[int, int]) -> None:
        """Check, as a generation's first member starts, that all members of earlier ones have stopped or are barred."""
        for other, copies in self.truth.running.items():
            for attempt, copy in copies.items():
                older = (
                    copy.generation is not None
                    and copy.generation[0] == generation[0]
                    and copy.generation != generation
                )
                if older and copy.stranded is None:
                    raise Violation(
                        f"{task} starts in generation {generation[1]} while attempt {attempt} of {other} runs in {copy.generation}"
                    )

    def program_ends(self, task: str, attempt: int) -> None:
        self.truth.running.get(task, {}).pop(attempt, None)

    def strand(self, task: str, attempt: int) -> None:
        """Bar an attempt whose container the engine gave up, or was asked to end: it stops by itself within the grace."""
        copy = self.truth.running.get(task, {}).get(attempt)
        if copy is not None and copy.stranded is None:
            copy.stranded = self.now
            self.at(GRACE + 1.0, self._check_stopped, task, attempt)

    def _check_stopped(self, task: str, attempt: int) -> None:
        if attempt in self.truth.running.get(task, {}):
            raise Violation(f"{task}: attempt {attempt} runs beyond its agent's grace")

    def trains(self, task: str, attempt: int, shard: tuple[str, int]) -> None:
        """Record that the program read the shard to its end, and its model has learnt it."""
        self.truth.trained[shard] += 1
        self.truth.work.setdefault((task, attempt), set()).add(shard)
        generation = self.truth.running[task][attempt].generation
        if generation is not None:
            self.truth.lines[generation].trained.add(shard)

    def finishes(self, task: str, attempt: int, learnt: set[int]) -> None:
        """Record the shards that the model of a program that has ended well has learnt."""
        self.truth.models[task, attempt] = set(learnt)

    def fails_on(self, task: str, attempt: int, shard: tuple[str, int]) -> None:
        """Record that the program failed by itself while it was reading the shard."""
        self.truth.failed_on.setdefault(shard, set()).add((task, attempt))

    def saves(self, task: str, attempt: int, number: int) -> None:
        """Record that the program wrote checkpoint set `number`: its model as it is now. Parameter servers that are a group of their own
        have what the other groups have trained.
        """
        generation = self.truth.running[task][attempt].generation
        if generation is not None:
            trained = set(self.truth.lines[generation].trained)
            if task.startswith("ps:") and not trained:
                newest = {group: self.truth.lines[group, formed] for group, formed in sorted(self.truth.lines)}
                trained.update(*(line.trained for line in newest.values()))
            self.truth.sets[number] = trained

    def commits(self, task: str, attempt: int) -> None:
        """Record that `attempt` changed an output directory; a second rename of the same attempt finds its work done."""
        done = self.truth.commits.setdefault(task, [])
        if attempt not in done:
            done.append(attempt)
        if len(done) > 1:
            raise Violation(f"{task}: committed by attempts {done}")
        if not any(
            event.type == "committers-named" and [task, attempt] in event.data["attempts"]
            for event in whole(self.disk.read(durable=True))
        ):
            raise Violation(f"{task}: attempt {attempt} committed without being named in the log")
