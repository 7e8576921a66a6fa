"""Goodput of a large job under failures at the rate of the Llama 3 run: a gang against an elastic group, simulated.

    python benchmarks/goodput.py [--tasks 10000] [--days 5] [--quick]

The master's turns, the agents' course and every order and event are the real ones, on a simulated clock. Programs are unmodified: each
change stops all of them, and they begin again from their checkpoint. The costs of a change, and their sources:

failures       419 unexpected interruptions in 54 days on 16,384 GPUs (The Llama 3 Herd of Models, table 5), scaled to the number of tasks
detection      the time of the engine and the agents here: an exit is reported within 2 s
replacement    3 minutes from a lost container to the next one
start          30 s: programs, and collectives at that size (MegaScale, NSDI '24: under 30 s for more than 10,000 GPUs)
checkpoint     a set each 5 minutes, 2 s of which stop training; what came after the last set is done again

Goodput: the time of all tasks that went into steps which were kept, of all time of all tasks. The second table has the same failures with
other costs, on 1,000 tasks at the rate of the large job: what matters is how often the whole job stops, not how large it is.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from attrs import frozen

from trainmaster.core.machine.phases import RUNNING
from trainmaster.simulation.agent import Habits
from trainmaster.simulation.engine import Engine
from trainmaster.simulation.faults import KillAgent
from trainmaster.simulation.play import Play, Scene
from trainmaster.simulation.scenes import DAY

STOPS, DAYS, GPUS = 419, 54, 16_384
LOOKS = 5.0  # s between two looks at what runs


@frozen
class Costs:
    """The costs of a stop, in s."""

    replacement: float = 180.0
    start: float = 30.0
    every: float = 300.0  # between checkpoint sets
    save: float = 2.0  # of training, for each set


class SlowEngine(Engine):
    """An engine that takes a while for a replacement."""

    replacement = 0.0

    def _grant(self, key: tuple[str, int]) -> None:
        if key[1] > 1 and key not in self._late:
            self._late.add(key)
            self.world.at(self.replacement, self._grant, key)
        else:
            super()._grant(key)

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._late: set[tuple[str, int]] = set()
        self.world.calm = True  # nothing goes wrong except the failures of the run


class Meter:
    """The part of the time that was kept: it is credited when a checkpoint set is stored."""

    def __init__(self, play: Play, tasks: int, costs: Costs) -> None:
        self.play, self.tasks, self.costs = play, tasks, costs
        self.kept = 0.0  # s of one task
        self._generation, self._since = 0, math.inf
        play.world.at(LOOKS, self._look)

    def _look(self) -> None:
        state = self.play.master.state
        group, now = state.groups[0] if state.groups else None, self.play.world.now
        if group is not None and group.sizes is not None:
            members = group.sizes["worker"]
            if group.forming or group.whole[RUNNING] < members:
                self._since = math.inf
            elif group.generation != self._generation or self._since == math.inf:
                self._generation, self._since = group.generation, now + self.costs.start
            stored = state.checkpoint_at or 0.0
            if stored > self._since:
                self.kept += members * max(0.0, stored - self._since - self.costs.save)
                self._since = stored
        self.play.world.at(LOOKS, self._look)


def goodput(tasks: int, rate_tasks: int, days: float, elastic: bool, costs: Costs, seed: int) -> tuple[float, int]:
    """Return the goodput in percent, and how many failures there were. `rate_tasks`: the size of the job whose failures it has."""
    replicas: Any = {"min": tasks * 9 // 10, "max": tasks} if elastic else tasks
    job = {
        "name": "large", "gang": True, "checkpoint": {"path": "ckpt", "url": "memory://ckpt"}, "timeouts": {"job": "none"},
        "roles": {"worker": {"command": "true", "replicas": replicas, "restart": {"scope": "group", "limit": 3}}},
    }  # fmt: skip
    habits = Habits(
        runs=(math.inf, math.inf),
        progresses=False,
        ignores_term=0.0,
        staging=(1.0, 5.0),
        saves_every=costs.every,
        savers=1,
    )
    play = Play(Scene(job, habits, nodes=tasks * 4, until=days * DAY), seed, engine=SlowEngine)
    play.engine.replacement = costs.replacement
    # Both ways have the same failures at the same moments.
    chance, at, every, failures = random.Random(seed), 0.0, DAY / (STOPS / DAYS * rate_tasks / GPUS), 0
    while (at := at + chance.expovariate(1 / every)) < days * DAY:
        play.world.at(at, KillAgent().strike, play)
        failures += 1
    meter = Meter(play, tasks, costs)
    play.run()
    return 100 * meter.kept / (tasks * days * DAY), failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--days", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="the small job alone, for one day")
    options = parser.parse_args()
    gc.set_threshold(200_000, 20, 100)
    if not options.quick:
        print("| tasks, days | failures | gang | elastic |\n|---|---|---|---|")
        both = [
            goodput(options.tasks, options.tasks, options.days, elastic, Costs(), options.seed)
            for elastic in (False, True)
        ]
        print(
            f"| {options.tasks:,}, {options.days:g} | {both[0][1]} | {both[0][0]:.2f} % | {both[1][0]:.2f} % |\n",
            flush=True,
        )
    days = 1.0 if options.quick else 30.0
    print(
        f"1,000 tasks, {days:g} days, the failures of {options.tasks:,}:\n\n| costs | gang | elastic |\n|---|---|---|"
    )
    for name, costs in {
        "as above": Costs(),
        "a set each minute": Costs(every=60.0, save=0.2),
        "a set each 15 minutes": Costs(every=900.0),
        "start 2 minutes": Costs(start=120.0),
        "replacement 10 minutes": Costs(replacement=600.0),
        "a set costs 10 s": Costs(save=10.0),
    }.items():
        both = [goodput(1_000, options.tasks, days, elastic, costs, options.seed) for elastic in (False, True)]
        print(f"| {name} | {both[0][0]:.2f} % | {both[1][0]:.2f} % |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
