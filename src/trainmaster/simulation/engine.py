"""Simulate an engine: it grants late, in part or never; loses containers and nodes; preempts; shows things twice, late or not at all.

`RULES` lists how it misbehaves, each row with the real behaviour it imitates; `KINDS` the ways in which the real engines differ. The book
between it and a master is the real one (`core.containers`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import attrs

from trainmaster.core.containers import GOING, GONE, PLACED, RUNNING, Deletion, End, Habits, Request, Seen, is_growth
from trainmaster.core.machine.stimuli import Change, ContainerExited, ContainerLost, Key, Waiting, Warned
from trainmaster.simulation.world import Rule, World

RULES: dict[str, Rule] = {
    "grant": Rule(
        "YARN allocates on NodeManager heartbeats, 1 s apart by default; a pod is bound in some 100 ms", 0.01, 1.5
    ),
    "grant-late": Rule("a full queue: containers come when another application ends", 5.0, 120.0, 0.05),
    "grant-twice": Rule("YARN can allocate more than was asked when asks cross an allocation", 0.0, 0.5, 0.02),
    "grant-withdrawn": Rule(
        "an allocation on its way comes although its ask was withdrawn (AMRMClient)",
        0.0,
        1.0,
        0.5,
    ),
    "deny": Rule("an API server or its quota refuses a pod for now", 0.01, 1.0, 0.03),
    "deny-wrongly": Rule("the answer of a call that was carried out is lost", 0.0, 0.0, 0.5),
    "refuse": Rule("an ask above the cluster's maximum: YARN throws InvalidResourceRequestException", 0.01, 1.0),
    "start": Rule(
        "a NodeManager starts a container within its call; the template forks one in milliseconds", 0.01, 0.5
    ),
    "start-failed": Rule("a NodeManager that is away or full refuses to start a container", 0.01, 5.0, 0.02),
    "seen-twice": Rule("a watch that begins again shows what it has shown before", 0.1, 5.0, 0.05),
    "exit-told": Rule(
        "a NodeManager's completed containers ride on its next heartbeat to the ResourceManager", 0.01, 2.0
    ),
    "exit-twice": Rule(
        "after an RM restart or a watch's relist, completed containers are reported again", 0.1, 5.0, 0.1
    ),
    "exit-lost": Rule(
        "an exit is reported once, to a master that dies before it has noted it (YARN)",
        0.0,
        0.0,
        0.03,
    ),
    "node-lost-told": Rule(
        "YARN gives a silent node up after 600 s; Kubernetes after 50 s and 300 s of toleration",
        20.0,
        600.0,
    ),
    "preempt": Rule("a pod's deletion grace is 30 s; YARN's preemption waits 15 s before the kill", 0.05, 15.0),
    "preempt-warned": Rule(
        "YARN's preemption message and Kubernetes' DisruptionTarget come first, except for a node in need",
        0.0,
        0.0,
        0.7,
    ),
    "going-told": Rule("a release rides on the next beat; a deleted pod has a deletion time at once", 0.01, 1.0),
    "released-ends": Rule(
        "a released container is stopped by TERM, then KILL after 250 ms (YARN) or a grace (Kubernetes)", 0.01, 0.5
    ),
}


@attrs.frozen
class Kind:
    """The ways of one real engine. `starts`: its masters start a container that has its place. `rules`: those that it does not know."""

    name: str
    habits: Habits
    starts: bool
    unknown: frozenset[str] = frozenset()
    forgets: bool = False  # it may be restarted, and knows no asks then


KINDS = (
    Kind("yarn", Habits(2.0, None, 10.0), True, frozenset({"deny"}), True),
    Kind("kubernetes", Habits(2.0, 300.0, 20.0, 15.0), False, frozenset({"grant-twice", "start-failed"})),
    Kind("spark", Habits(), False, frozenset({"deny", "grant-twice", "grant-withdrawn", "start-failed"})),
    Kind("local", Habits(), True, frozenset({"deny", "grant-twice", "grant-withdrawn", "start-failed"})),
)


@attrs.define(slots=True, eq=False)
class Container:
    request: Request
    node: str
    name: str
    is_running: bool = False
    ended: bool = False
    given_up: bool = False
    released: bool = False
    end_reason: str = ""  # why the engine took it back

    @property
    def key(self) -> Key:
        return self.request.key

    @property
    def task(self) -> str:
        return self.request.task

    @property
    def serial(self) -> int:
        return self.request.serial

    @property
    def index(self) -> int:
        return self.request.index

    def seen(self, phase: str = "", end: End | None = None) -> Seen:
        return Seen(self.key, phase or (RUNNING if self.is_running else PLACED), self.name, self.node, end=end)


class Master:
    """A listener to an engine: a master, or nobody."""

    def see(self, *seen: Seen) -> None: ...

    def deny(self, key: Key) -> None: ...

    def refuse(self, key: Key, why: str) -> None: ...

    def forget(self) -> None: ...

    def report(self, *changes: Change) -> None: ...


class Engine:
    """The engine grants containers on simulated nodes: calls `start` with each, `stop` to end it, `strand` when it is barred."""

    def __init__(self, world: World, nodes: int, start: Callable[[Container], None], stop: Callable[[Container], None],
                 strand: Callable[[Container], None], kind: Kind | None = None) -> None:  # fmt: skip
        self.world, self.nodes = world, nodes
        self.kind = KINDS[world.seed % len(KINDS)] if kind is None else kind
        self._begin, self._stop, self._strand = start, stop, strand
        self.master = Master()
        self.asks: dict[Key, Request] = {}
        self.containers: dict[str, Container] = {}
        self._numbers = itertools.count()
        self.held = 0  # containers that have not ended and were not given up
        self.epoch = 0
        self.closed_until = 0.0  # grants nothing before
        self.crowded_until = 0.0  # grants no more than `room` containers before
        self.room = 0
        self.refuses = False  # the next ask
        self.over = False

    def _happens(self, rule: str) -> bool:
        return rule not in self.kind.unknown and self.world.happens(rule, RULES)

    def _delay(self, rule: str) -> float:
        self.world.truth.struck[rule] += 1
        return self.world.delay(RULES[rule])

    @property
    def live(self) -> list[Container]:
        return [container for container in self.containers.values() if not container.ended and not container.given_up]

    def of(self, key: Key) -> Container | None:
        """Return the container of a key, of several the first."""
        return next((container for container in self.containers.values() if container.key == key), None)

    # -- the contract --

    def open(self, epoch: int, master: Master) -> list[Seen]:
        """Let a master of `epoch` take part; refuse earlier ones from now on. Return the containers that are held for the job."""
        self.epoch, self.master = epoch, master
        return [container.seen() for container in self.live]

    def create(self, epoch: int, requests: Sequence[Request]) -> None:
        for request in requests if epoch == self.epoch else ():
            key = request.key
            if self._happens("deny"):
                self.world.at(self.world.delay(RULES["deny"]), self._deny, key, epoch)
                if not self._happens("deny-wrongly"):
                    continue
            if key in self.asks:
                continue
            if living := [container for container in self.live if container.key == key and not container.released]:
                self._show(living)
                continue
            self.asks[key] = request
            late = self._happens("grant-late")
            self.world.at(self.world.delay(RULES["grant-late"]) if late else self._delay("grant"), self._grant, key)

    def _deny(self, key: Key, epoch: int) -> None:
        if epoch == self.epoch:
            self.master.deny(key)

    def start(self, epoch: int, requests: Sequence[Request]) -> None:
        keys = {request.key for request in requests if epoch == self.epoch}
        for container in self.live if keys else ():
            if container.key in keys and not (container.is_running or container.released):
                failed = self._happens("start-failed")
                self.world.at(self._delay("start-failed" if failed else "start"), self._start, container, failed)

    def _start(self, container: Container, failed: bool) -> None:
        if container.ended or container.given_up or container.released:
            return
        if failed or container.node in self.world.lost_nodes:
            container.end_reason = "localization-failed"
            self.ended(container, 1)
        else:
            self._run(container)
            self._show([container])

    def delete(self, epoch: int, deletions: Sequence[Deletion]) -> None:
        for deletion in deletions if epoch == self.epoch else ():
            container = self.containers.get(deletion.id)
            if container is not None:
                self._release(container)
            elif not deletion.id:
                request = self.asks.pop(deletion.key, None)
                if request is not None and self._happens("grant-withdrawn"):
                    self.world.at(self.world.delay(RULES["grant-withdrawn"]), self._give_late, request)
                self.master.see(Seen(deletion.key, GONE, ""))

    def _release(self, container: Container) -> None:
        if container.ended or container.released:
            return
        container.released = True
        self._strand(container)
        self.world.at(self._delay("going-told"), self._show, [container], GOING)
        end = self._stop if container.is_running else self._vanish
        self.world.at(self._delay("released-ends"), end, container)

    def _vanish(self, container: Container) -> None:
        self.ended(container, 0)

    def unregister(self, epoch: int) -> None:
        """End the job: take back what is left of it, as a ResourceManager does."""
        if epoch < self.epoch:
            return
        self.asks, self.over = {}, True
        for container in self.live:
            self._release(container)

    # -- grants --

    def _grant(self, key: Key) -> None:
        request = self.asks.get(key)
        if request is None:
            return
        if self.refuses:
            self.refuses = False
            del self.asks[key]
            self.world.at(self._delay("refuse"), self.master.refuse, key, "more than any node has")
            return
        unit = self._unit(request)
        needed = sum(not is_growth(member) for member in unit) or 1
        crowded = self.world.now < self.crowded_until and self.held + needed > self.room
        if self.world.now < self.closed_until or crowded:
            self.master.report(Waiting("containers", "1", "0"))
            self.world.at(self._delay("grant") + 1.0, self._grant, key)
            return
        if self.world.now < self.crowded_until:
            unit = unit[: self.room - self.held]
        containers = [container for member in unit if (container := self._give(member)) is not None]
        self._show(containers)
        if key in self.asks:
            self.world.at(self._delay("grant"), self._grant, key)

    def _unit(self, request: Request) -> list[Request]:
        """Return what is granted at once with a request, what is needed first."""
        if not request.gang or self.kind.habits.settled:
            return [request]
        gang = [ask for ask in self.asks.values() if ask.gang == request.gang]
        return sorted(gang, key=is_growth)

    def _give_late(self, request: Request) -> None:
        if (container := self._give(request)) is not None:
            self._show([container])

    def _give(self, request: Request) -> Container | None:
        """Place a container on some node; return None where that node is lost."""
        node = f"node-{self.world.rng.randrange(self.nodes)}"
        if node in self.world.lost_nodes or self.over:
            return None
        self.asks.pop(request.key, None)
        container = Container(request, node, f"c/{request.task}/{request.serial}/{next(self._numbers)}")
        self.containers[container.name] = container
        self.held += 1
        if not self.kind.starts:
            self._run(container)
        elif self._happens("grant-twice"):
            self.world.at(self.world.delay(RULES["grant-twice"]), self._give_again, request)
        return container

    def _give_again(self, request: Request) -> None:
        node = f"node-{self.world.rng.randrange(self.nodes)}"
        if not self.over and node not in self.world.lost_nodes:
            container = Container(request, node, f"c/{request.task}/{request.serial}/{next(self._numbers)}")
            self.containers[container.name] = container
            self.held += 1
            self._show([container])

    def _run(self, container: Container) -> None:
        container.is_running = True
        self._begin(container)

    def _show(self, containers: Sequence[Container], phase: str = "") -> None:
        sights = [container.seen(phase) for container in containers if not container.ended]
        if sights:
            self.master.see(*sights)
            if self._happens("seen-twice"):
                self.world.at(self.world.delay(RULES["seen-twice"]), self._see, sights)

    def _see(self, sights: Sequence[Seen]) -> None:
        self.master.see(*sights)

    # -- what happens to containers --

    def ended(self, container: Container, status: int) -> None:
        """End the container: nothing of it runs any more; the master hears of that a little later, perhaps twice."""
        if container.ended:
            return
        container.ended = True
        if container.given_up:
            return
        self.held -= 1
        exit_ = ContainerExited(container.task, container.serial, status, container.end_reason or None)
        if self._happens("exit-lost"):
            return
        sight = container.seen(GONE, exit_)
        self.world.at(self._delay("exit-told"), self._see, [sight])
        if self._happens("exit-twice"):
            self.world.at(self._delay("exit-told") + self.world.delay(RULES["exit-twice"]), self._see, [sight])

    def lose(self, container: Container) -> None:
        """Stop the container's node from answering; the engine gives the container up after its expiry."""
        self.world.at(self._delay("node-lost-told"), self._give_up, container)

    def _give_up(self, container: Container) -> None:
        if container.ended or container.given_up:
            return
        container.given_up = True
        self.held -= 1
        self._strand(container)
        lost = ContainerLost(container.task, container.serial, "node-lost", {"node": container.node})
        self._see([container.seen(GONE, lost)])

    def preempt(self, container: Container) -> None:
        notice = self._delay("preempt")
        if self._happens("preempt-warned"):
            self.master.report(Warned(container.task, container.serial, notice))
        self.world.at(notice, self._take, container)

    def _take(self, container: Container) -> None:
        if not container.ended and not container.given_up:
            container.end_reason = "preempted"
            self._stop(container)

    def restart(self) -> None:
        """Lose the memory of asks, and what was granted and not started, as a ResourceManager does that is killed."""
        self.asks = {}
        for container in self.live:
            if not container.is_running:
                container.ended = True
                self.held -= 1
        self.master.forget()
