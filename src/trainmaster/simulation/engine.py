"""Simulate an engine: it grants late, in part or never; loses containers and nodes; preempts; sends changes twice and late.

`RULES` lists how it misbehaves, each row with the real behaviour it imitates.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from trainmaster.core.machine.stimuli import ContainerExited, ContainerLost, Granted, Refused, Stimulus, Waiting, Warned
from trainmaster.simulation.world import Rule, Violation, World

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
    "refuse": Rule("an ask above the cluster's maximum: YARN throws InvalidResourceRequestException", 0.01, 1.0),
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
    "released-ask": Rule(
        "what is given back before it was granted has ended at once, for the engine's own master side"
    ),
    "released-ends": Rule(
        "a released container is stopped by TERM, then KILL after 250 ms (YARN) or a grace (Kubernetes)", 0.01, 0.5
    ),
}


@attrs.define(slots=True)
class Container:
    task: str
    serial: int
    node: str
    name: str
    ended: bool = False
    given_up: bool = False
    released: bool = False
    end_reason: str = ""  # why the engine took it back
    crossed: bool = False  # granted although its ask had just been withdrawn

    @property
    def index(self) -> int:
        return int(self.task.rpartition(":")[2])


class Engine:
    """The engine grants containers on simulated nodes: calls `start` with each, `stop` to end it, `strand` when it is barred."""

    def __init__(self, world: World, nodes: int, start: Callable[[Container], None], stop: Callable[[Container], None],
                 strand: Callable[[Container], None]) -> None:  # fmt: skip
        self.world, self.nodes = world, nodes
        self._start, self._stop, self._strand = start, stop, strand
        self.tell: Callable[[Stimulus], None] = lambda stimulus: None
        self.asks: dict[tuple[str, int], None] = {}
        self.containers: dict[tuple[str, int], Container] = {}
        self.held = 0  # containers that have not ended and were not given up
        self.epoch = 0
        self.closed_until = 0.0  # grants nothing before
        self.crowded_until = 0.0  # grants no more than `room` containers before
        self.room = 0
        self.refuses = False  # the next ask
        self.over = False

    def _delay(self, rule: str) -> float:
        self.world.truth.struck[rule] += 1
        return self.world.delay(RULES[rule])

    def _least(self, rule: str) -> float:
        """Return the delay of a rule that leaves nothing to chance."""
        self.world.truth.struck[rule] += 1
        return RULES[rule].least

    @property
    def live(self) -> list[Container]:
        return [container for container in self.containers.values() if not container.ended and not container.given_up]

    # -- the contract --

    def open(self, epoch: int) -> list[Granted]:
        """Let a master of `epoch` take part; refuse earlier ones from now on. Return the containers that are held for the job."""
        self.epoch = epoch
        return [Granted(container.task, container.serial, container.name, container.node) for container in self.live]

    def ask(self, epoch: int, asks: list[tuple[str, int]]) -> None:
        """Take the whole set of asks; withdraw those no longer in it. Report the state of a container that exists, or is over, again."""
        if epoch < self.epoch:
            return
        open_asks: dict[tuple[str, int], None] = {}
        for key in asks:
            if key in self.containers:
                self._tell_state(self.containers[key])
                continue
            open_asks[key] = None
            if key not in self.asks:
                late = self.world.happens("grant-late", RULES)
                self.world.at(self.world.delay(RULES["grant-late"]) if late else self._delay("grant"), self._grant, key)
        for key in self.asks:
            if key not in open_asks and key not in self.containers:
                self._withdraw(key)
        self.asks = open_asks

    def _withdraw(self, key: tuple[str, int]) -> None:
        if self.world.happens("grant-withdrawn", RULES):
            self.world.at(self.world.delay(RULES["grant-withdrawn"]), self._give, key, True)

    def _grant(self, key: tuple[str, int]) -> None:
        if key not in self.asks or key in self.containers:
            return
        if self.refuses:
            self.refuses = False
            del self.asks[key]
            self.world.at(self._delay("refuse"), self.tell, Refused(*key, "more than any node has"))
            return
        crowded = self.world.now < self.crowded_until and self.held >= self.room
        if self.world.now < self.closed_until or crowded:
            self.tell(Waiting("containers", "1", "0"))
            self.world.at(self._delay("grant") + 1.0, self._grant, key)
            return
        if not self._give(key):
            self.world.at(self._delay("grant"), self._grant, key)

    def _give(self, key: tuple[str, int], crossed: bool = False) -> bool:
        """Start a container for `key` on some node; return False where that node is lost."""
        node = f"node-{self.world.rng.randrange(self.nodes)}"
        if node in self.world.lost_nodes:
            return False
        self.asks.pop(key, None)
        if key in self.containers or self.over:
            return True
        container = Container(key[0], key[1], node, f"c/{key[0]}/{key[1]}")
        container.crossed = crossed
        self.containers[key] = container
        self.held += 1
        granted = Granted(key[0], key[1], container.name, node)
        self.tell(granted)
        if self.world.happens("grant-twice", RULES):
            self.world.at(self.world.delay(RULES["grant-twice"]), self._tell_again, granted)
        self._start(container)
        return True

    def _tell_again(self, grant: Granted) -> None:
        if not self.containers[grant.task, grant.serial].ended:
            self.tell(grant)

    def _tell_state(self, container: Container) -> None:
        if container.given_up:
            self.tell(ContainerLost(container.task, container.serial, "node-lost", {"node": container.node}))
        elif container.ended:
            self.tell(ContainerExited(container.task, container.serial, -9))
        else:
            self.tell(Granted(container.task, container.serial, container.name, container.node))

    def release(self, epoch: int, task: str, serial: int) -> None:
        if epoch < self.epoch:
            return
        container = self.containers.get((task, serial))
        if self.asks.pop((task, serial), self) is None and container is None:
            self._withdraw((task, serial))
        if container is None:
            self.world.at(self._least("released-ask"), self.tell, ContainerExited(task, serial, None, "not-needed"))
        if container is not None and not container.ended:
            container.released = True
            self._strand(container)
            self.world.at(self._delay("released-ends"), self._stop, container)

    def unregister(self, epoch: int) -> None:
        """End the job: forget the asks that an earlier master left. Containers must have been given back.

        A container whose grant crossed with its withdrawal may not be known to the master yet; it is taken back, as a ResourceManager does.
        """
        if epoch < self.epoch:
            return
        for container in self.live:
            if container.crossed and not container.released:
                self.release(epoch, container.task, container.serial)
        if names := [container.name for container in self.live if not container.released]:
            raise Violation(f"containers are held when the job is unregistered: {names[:5]}")
        self.asks, self.over = {}, True

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
        if self.world.happens("exit-lost", RULES):
            return
        self.world.at(self._delay("exit-told"), self._tell_newest, exit_)
        if self.world.happens("exit-twice", RULES):
            self.world.at(self._delay("exit-told") + self.world.delay(RULES["exit-twice"]), self._tell_newest, exit_)

    def _tell_newest(self, stimulus: Stimulus) -> None:
        self.tell(stimulus)

    def lose(self, container: Container) -> None:
        """Stop the container's node from answering; the engine gives the container up after its expiry."""
        self.world.at(self._delay("node-lost-told"), self._give_up, container)

    def _give_up(self, container: Container) -> None:
        if container.ended or container.given_up:
            return
        container.given_up = True
        self.held -= 1
        self._strand(container)
        self.tell(ContainerLost(container.task, container.serial, "node-lost", {"node": container.node}))

    def preempt(self, container: Container) -> None:
        notice = self._delay("preempt")
        if self.world.happens("preempt-warned", RULES):
            self.tell(Warned(container.task, container.serial, notice))
        self.world.at(notice, self._take, container)

    def _take(self, container: Container) -> None:
        if not container.ended and not container.given_up:
            container.end_reason = "preempted"
            self._stop(container)
