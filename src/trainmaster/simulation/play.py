"""Play one job under one seed: the world's parts put together, a storm of faults, and the checks at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from trainmaster.core.machine.stimuli import KillRequested, SaveRequested, Stimulus, Submitted
from trainmaster.simulation.agent import Agent, Habits
from trainmaster.simulation.checks import check
from trainmaster.simulation.engine import Container, Engine
from trainmaster.simulation.faults import Fault
from trainmaster.simulation.master import SimulatedMaster
from trainmaster.simulation.plants import PLANTS
from trainmaster.simulation.world import GRACE, Clock, Violation, World

SETTLED = 120.0  # s after the end of the job within which everything in the world must be over
NODE_BACK = 60.0  # s until the place of a lost node is taken by another


@attrs.frozen
class Outcome:
    """The outcome of one play."""

    seed: int
    state: str
    reason: str
    events: int
    starts: int
    restarts: int
    seconds: float  # of the world
    happened: int


@attrs.frozen
class Scene:
    """A job and the world it runs in."""

    job: Mapping[str, Any]
    habits: Habits = attrs.field(factory=Habits)
    faults: Sequence[Fault] = ()
    fault_every: float = 30.0  # s, mean
    stormy: float = 600.0  # s with faults
    nodes: int = 8
    shards: int = 0
    skewed: float = 0.0  # s by which masters' clocks are wrong at most
    kill_at: float | None = None
    save_at: float | None = None
    wishes: Sequence[tuple[float, Stimulus]] = ()  # what users ask for, and when
    longest: float = 7 * 86400.0  # s of the world within which every job must end
    until: float | None = None  # end the play here, whatever the job does
    plant: str = ""  # a fault of ours, by its name in `PLANTS`


class Play:
    """The parts of one play. `run` plays it to its end and returns its outcome, or raises Violation."""

    def __init__(
        self, scene: Scene, seed: int, clock: Clock | None = None, engine: Callable[..., Engine] = Engine
    ) -> None:
        """`clock` and `engine`: of a cluster that several plays share."""
        self.scene, self.world, self.plant = scene, World(seed, clock), PLANTS[scene.plant]
        self.engine = engine(self.world, scene.nodes, self._start_agent, self._stop_agent, self._strand)
        self.agents: dict[tuple[str, int], Agent] = {}
        self.over = False
        self.listing: dict[str, Any] = {}
        if scene.shards:
            options = {"size": 1024, "epochs": 1, "shuffle": seed % 2 == 1, "seed": seed}
            self.listing = {"train": {"files": [["data", scene.shards * 1024, None]], "shards": options}}
        self.masters: list[SimulatedMaster] = []
        self._begun = self.world.now
        self._start_master()
        if scene.faults:
            self.world.at(self.world.rng.expovariate(1 / scene.fault_every), self._strike)
        if scene.kill_at is not None:
            self.world.at(scene.kill_at, lambda: self.master.tell(KillRequested("a user")))
        if scene.save_at is not None:
            self.world.at(scene.save_at, lambda: self.master.tell(SaveRequested("now")))
        for at, wish in scene.wishes:
            self.world.at(at, lambda wish=wish: self.master.tell(wish))

    # -- parts --

    @property
    def master(self) -> SimulatedMaster:
        return self.masters[-1]

    def _start_master(self) -> None:
        past = self.world.disk.read()
        if self.engine.over and not any(event.type == "ended" for event in past):
            self.over = True  # a master whose storage was lost unregistered the job: no engine starts another one
        if self.over:
            return
        known = any(event.type == "submitted" for event in past)
        submitted = None if known else Submitted("sim-000000", self.scene.job)
        skew = self.world.rng.uniform(-self.scene.skewed, self.scene.skewed) if self.scene.skewed else 0.0
        self.masters.append(
            self.plant.master(
                self.world, self.engine, self.listing, submitted, self._job_over, skew=skew, drive=self.plant.drive
            )
        )

    def _job_over(self) -> None:
        self.over = True

    def _start_agent(self, container: Container) -> None:
        agent = self.plant.agent(self.world, container, self.scene.habits, self._find_master, self._agent_ended)
        self.agents[agent.key] = agent

    def _find_master(self, agent: Agent) -> SimulatedMaster | None:
        """Return the master that an agent finds in the record: the newest; now and then an agent still reads the old record."""
        living = [master for master in self.masters[-2:] if master.alive]
        if not living or agent.container.node in self.world.lost_nodes:
            return None
        return living[0] if len(living) > 1 and self.world.rng.random() < 0.3 else living[-1]

    def _strand(self, container: Container) -> None:
        agent = self._agent_in(container)
        if agent is not None and agent.running:
            self.world.strand(container.task, agent.running)

    def _agent_in(self, container: Container) -> Agent | None:
        """Return the agent of a container; None where it has ended, or another container with the same key has it."""
        agent = self.agents.get(container.key)
        return agent if agent is not None and agent.container is container else None

    def _agent_ended(self, agent: Agent, status: int) -> None:
        del self.agents[agent.key]
        self.engine.ended(agent.container, status)

    def _stop_agent(self, container: Container) -> None:
        """Have the container end; nothing happens where its node does not answer, or it has ended already."""
        agent = self._agent_in(container)
        if agent is not None and container.node not in self.world.lost_nodes:
            agent.die(143)

    # -- faults --

    def _strike(self) -> None:
        if self.world.now - self._begun < self.scene.stormy and not self.over:
            fault = self.world.rng.choice(self.scene.faults)
            if fault.strike(self):
                self.world.truth.struck[type(fault).__name__] += 1
            self.world.at(self.world.rng.expovariate(1 / self.scene.fault_every), self._strike)
        else:
            self.world.calm = True
            self._revive()

    def _revive(self) -> None:
        """Start a master where none lives."""
        if not self.over and not self.master.alive:
            self._start_master()

    def any_agent(self, running: bool = False) -> Agent | None:
        living = [agent for agent in self.agents.values() if agent.running] if running else list(self.agents.values())
        return self.world.rng.choice(living) if living else None

    def cut(self, agent: Agent, seconds: float) -> None:
        agent.unreachable_until = max(agent.unreachable_until, self.world.now + seconds)
        if agent.link is not None:
            agent.link.cut()
            self.world.at(GRACE + 1.0, self._check_grace, agent, agent.silent_since)

    def _check_grace(self, agent: Agent, since: float) -> None:
        if agent.running and agent.link is None and agent.silent_since == since:
            raise Violation(f"{agent.container.task}: attempt {agent.running} runs beyond its agent's grace")

    def kill_master(self, back: float) -> bool:
        was_alive = self.master.alive
        if was_alive:
            self.master.crash()
        self.world.at(back, self._revive)
        return was_alive

    def replace_master(self) -> None:
        self._start_master()

    def lose_node(self, node: str, lives_on: bool) -> bool:
        if node in self.world.lost_nodes:
            return False
        self.world.lost_nodes.add(node)
        for agent in [agent for agent in self.agents.values() if agent.container.node == node]:
            self.engine.lose(agent.container)
            self.cut(agent, 1e9)
            if not lives_on:
                agent.die(-9)
        self.world.at(NODE_BACK, self.world.lost_nodes.discard, node)
        return True

    # -- the play --

    def run(self) -> Outcome:
        limit = self._begun + (self.scene.longest if self.scene.until is None else self.scene.until)
        while not self.over and self.world.step():
            if self.world.now > limit:
                if self.scene.until is not None:
                    return self._outcome()
                raise Violation(
                    f"the job has not ended after {self.scene.longest:.0f} s: {self.master.state.ending or 'not even ending'}"
                )
        if not self.over:
            raise Violation("nothing is left to happen, and the job has not ended")
        end = self.world.now
        while self.world.now < end + SETTLED and self.world.step():
            pass
        self.verify()
        return self._outcome(end)

    def verify(self) -> None:
        """Hold the end of the job against the truth. Raises Violation."""
        last = next(master for master in reversed(self.masters) if master.wrote)
        check(self.world, self.engine, last.log, last.state, dict.fromkeys(self.listing, self.scene.shards))

    def _outcome(self, end: float | None = None) -> Outcome:
        state = self.master.state
        ending = state.ending or {"state": "running", "reason": ""}
        return Outcome(
            self.world.seed, ending["state"], ending["reason"], state.n, self.world.truth.starts, state.restarts,
            (end or self.world.now) - self._begun, self.world.happened,
        )  # fmt: skip
