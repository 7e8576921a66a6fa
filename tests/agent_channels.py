"""A world of agents and their channels to a master, for tests of what programs wait for in random orders of faults."""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import Any

from scripted import Script

from trainmaster.agent.link.waits import Waits
from trainmaster.core.coordination import Coordination
from trainmaster.core.machine.phases import READING


class Channels:
    """Tasks of two processes each, the real waits of their agents, channels that lose messages, and masters that follow each other."""

    def __init__(self, seed: int, script: Script) -> None:
        self.rng, self.script = random.Random(seed), script
        self.up: dict[str, deque[Any]] = {}
        self.down: dict[str, deque[Any]] = {}
        self.agents: dict[str, Waits] = {}
        self.connected: dict[str, bool] = {}
        ticks = itertools.count()
        for task in self.script.state.tasks:
            self.agents[task] = Waits(lambda message, task=task: self.send(task, message), lambda: next(ticks) / 1000)
            self.agents[task].begin(1)
            self.connected[task] = False
        self.restart()

    def send(self, task: str, message: Any) -> None:
        if self.connected[task]:
            self.up[task].append(message)

    def restart(self) -> None:
        self.coordination = Coordination(task.key for task in self.script.state.tasks.values() if task.phase in READING)
        for task in self.agents:
            self.cut(task)

    def cut(self, task: str) -> None:
        self.connected[task], self.up[task], self.down[task] = False, deque(), deque()
