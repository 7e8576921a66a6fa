"""Plant faults for the checks to find: were one of them in our code, the world must report it.

Each is planted where a real one could be, outside the core's pure functions: in an agent, or in what a master does with the core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from trainmaster.core.decide.drive import Drive
from trainmaster.core.fold.changes import fold
from trainmaster.core.machine.actions import Action
from trainmaster.core.machine.events import Event
from trainmaster.core.machine.phases import UPLOADED
from trainmaster.core.machine.stimuli import Stimulus
from trainmaster.core.rendezvous import Place, Rendezvous
from trainmaster.simulation.agent import Agent
from trainmaster.simulation.master import SimulatedMaster
from trainmaster.simulation.network import Link


class SkippingAgent(Agent):
    """An agent that reports shards as done that its program did not read."""

    def shard_read(self, attempt: int, name: str, number: int) -> None:
        if number % 7 == 3 and self.running == attempt and self.alive:
            self.report("shards-done", attempt, input=name, ranges=[[number, number + 1]])
            self._read_shards(attempt)
        else:
            super().shard_read(attempt, name, number)


class DoublingDrive(Drive):
    """A drive that takes some reports of shards in twice."""

    def take(self, stimuli: Iterable[Stimulus], now: float) -> tuple[list[Event], list[Action]]:
        events, actions = super().take(stimuli, now)
        for event in [event for event in events if event.type == "shards-done" and event.n % 5 == 0]:
            mark = self.state.shards[event.data["input"]].mark
            data = {**event.data, "mark": mark + len(event.data["ranges"])}
            again = Event(self.state.n + 1, event.at, event.epoch, event.type, data)
            fold(self.state, (again,))
            events.append(again)
        return events, actions


class SlanderingAgent(Agent):
    """An agent that names another shard than the one on which its program failed."""

    def report(self, kind: str, attempt: int, **data: Any) -> None:
        if kind == "shards-begun":
            data = {"begun": [[1, name, max(0, number - 1), elapsed] for _, name, number, elapsed in data["begun"]]}
        super().report(kind, attempt, **data)


class LateAgent(Agent):
    """An agent that commits its upload although it was cut off or refused, and never named."""

    def die(self, status: int) -> None:
        if self.alive and self.course.phase == UPLOADED and not self.course.is_stopped:
            self.world.at(1.0, self.world.commits, self.container.task, self.attempt)
        super().die(status)


class KeptRows(Rendezvous):
    """A rendezvous that drops nobody who has died."""

    def take(self, task: str, role: str, rows: Iterable[Any], rounds: Mapping[str, int], is_new: bool) -> set[Place]:
        return super().take(task, role, rows, rounds, is_new) if rows else set()

    def forget(self, task: str) -> set[Place]:
        return set()


class KeepingMaster(SimulatedMaster):
    """A master that does not drop dead members."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.turns.coordination._rendezvous = KeptRows()


class HastyMaster(SimulatedMaster):
    """A master that takes what a program holds for free as soon as its agent is away."""

    def closed(self, agent: Agent, link: Link) -> None:
        self.coordinate(agent, link, {"attempt": agent.attempt, "waits": []})
        super().closed(agent, link)


class EchoingMaster(SimulatedMaster):
    """A master that hears some messages of waits a second time, later."""

    def coordinate(self, agent: Agent, link: Link, message: dict[str, Any]) -> None:
        super().coordinate(agent, link, message)
        if self.world.rng.random() < 0.1:
            self.world.at(self.world.rng.uniform(0.0, 10.0), super().coordinate, agent, link, message)


@attrs.frozen
class Plant:
    agent: type[Agent] = Agent
    drive: type[Drive] = Drive
    master: type[SimulatedMaster] = SimulatedMaster


PLANTS: dict[str, Plant] = {
    "": Plant(),
    "lose-record": Plant(agent=SkippingAgent),
    "double-record": Plant(drive=DoublingDrive),
    "accuse-wrongly": Plant(agent=SlanderingAgent),
    "late-commit": Plant(agent=LateAgent),
    "keep-member": Plant(master=KeepingMaster),
    "free-lock": Plant(master=HastyMaster),
    "hear-twice": Plant(master=EchoingMaster),
}
