"""Two jobs on a cluster that fits one and a half, and a job beside a serving load that rises and falls: gang against elastic, simulated.

    python benchmarks/elastic_cluster.py [--seeds 3] [--picture FILE.svg]

Masters, agents, orders and events are the real ones, on a simulated clock (see `trainmaster.simulation`); slots are granted and taken back
by the local engine's own rule (`engines.local.queue`). The peer is ElasticDL, whose published figures of the same settings are shown next
to ours: 6 slots and 2 jobs of 4, 24 and 2 of 13, 320 and 2 of 175, the second submitted 120 s after the first. A job is an amount of work,
cut into shards; a program takes 3 to 6 s from its container to its first record.

Three ways: *gang*, all workers or none; *restarts*, an unmodified program whose group restarts from its checkpoint (a set each 20 s) with
each change; *alone*, workers that read shards and come and go by themselves.

mean use    programs that run, of all slots, from the first submit to the last end
could use   the same, of the slots that the jobs there were could have used
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from trainmaster.core.containers import Request
from trainmaster.core.machine.stimuli import Warned
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.local.engine import NOTICE
from trainmaster.engines.local.queue import Ask, Hold, grant, reclaim
from trainmaster.host.machine import Capacity
from trainmaster.master.orders import Orders
from trainmaster.simulation.agent import Habits
from trainmaster.simulation.engine import Container, Engine
from trainmaster.simulation.play import Play, Scene
from trainmaster.simulation.world import Clock, World

SHARD = 2.0  # s of one worker's work
GRANTED = 0.05  # s from an ask to a grant where there is room
SECOND = 120.0  # s after the first job's submit
HABITS = Habits(staging=(3.0, 6.0), ignores_term=0.0, reads=(SHARD, SHARD), progresses=False)
# Slots, workers of each of two jobs, seconds that a job takes with all of them, and ElasticDL's mean use: gang and elastic.
SIZES = ((6, 4, 450.0, "62.1 %", "77.6 %"), (24, 13, 360.0, "51.3 %", "72.8 %"), (320, 175, 600.0, "-", "-"))
WAYS = ("gang", "restarts", "alone")


class Slots:
    """The slots of one cluster, each for one container, shared by jobs."""

    def __init__(self, clock: Clock, number: int) -> None:
        self.clock, self.capacity = clock, Capacity(float(number), 2**60)
        self.engines: dict[str, SlotEngine] = {}
        self.holds: list[Hold] = []
        self._is_due = False

    def stir(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.clock.at(GRANTED, self._serve)

    def _serve(self) -> None:
        self._is_due = False
        asks = [
            Ask(name, request, place, order)
            for place, (name, engine) in enumerate(self.engines.items())
            for order, request in enumerate(engine.requests())
        ]
        granted = grant(self.capacity, self.holds, asks)
        self.holds += granted
        for hold in granted:
            self.engines[hold.job].begin((hold.request.task, hold.request.serial))
        asks = [ask for ask in asks if not any(hold.request is ask.request for hold in granted)]
        for hold, taker in reclaim(self.capacity, self.holds, asks):
            self.holds[self.holds.index(hold)] = attrs.evolve(hold, yields_to=taker)
            self.engines[hold.job].give_way((hold.request.task, hold.request.serial))

    def free(self, job: str, container: Container) -> None:
        key = container.task, container.serial
        self.holds = [hold for hold in self.holds if (hold.job, hold.request.task, hold.request.serial) != (job, *key)]
        self.stir()


class SlotEngine(Engine):
    """The engine of one job on shared slots."""

    def __init__(self, slots: Slots, name: str, world: World, *rest: Any) -> None:
        super().__init__(world, *rest)
        self.slots, self.name, self.play, self._known = slots, name, None, {}
        self.asked = world.now
        self.granted: float | None = None  # when its first container was
        world.calm = True  # nothing goes wrong by chance
        slots.engines[name] = self

    def requests(self) -> list[Request]:
        orders = Orders(job_from(self.play.scene.job), {})
        state = self.play.master.state
        return [self._known.setdefault(key, orders.request(state, *key)) for key in self.asks]

    def ask(self, epoch: int, asks: list[tuple[str, int]]) -> None:
        self.asks = {key: None for key in asks if key not in self.containers}
        self._known = {}
        self.slots.stir()

    def begin(self, key: tuple[str, int]) -> None:
        self.granted = self.granted or self.world.now
        assert self._give(key)

    def ended(self, container: Container, status: int) -> None:
        super().ended(container, status)
        self.slots.free(self.name, container)

    def give_way(self, key: tuple[str, int]) -> None:
        self.tell(Warned(*key, NOTICE))
        self.world.at(NOTICE, self._take, self.containers[key])


@attrs.define
class Wanted:
    """A job as it is submitted: its name, when, what its workers may be, its work in s of one worker, its priority."""

    name: str
    at: float
    replicas: Any
    work: float
    way: str
    priority: int = 0


class Run:
    """Jobs on shared slots, played to their end."""

    def __init__(self, slots: int, jobs: Sequence[Wanted], seed: int) -> None:
        self.clock, self.jobs, self.total = Clock(), jobs, slots
        self.slots = Slots(self.clock, slots)
        self.plays: dict[str, Play] = {}
        self.ends: dict[str, float] = {}
        self.used = self.usable = self.seconds = 0.0
        self.running: list[list[int]] = []  # each second: programs that run, by job
        began = self.clock.now
        for number, job in enumerate(jobs):
            self.clock.at(job.at, self._submit, job, seed * 100 + number)
        self.clock.at(1.0, self._sample)
        while len(self.ends) < len(jobs) and self.clock.step():
            pass
        for play in self.plays.values():
            while self.clock.now < began + max(self.ends.values()) + 120.0 and self.clock.step():
                pass
            play.verify()

    def _submit(self, job: Wanted, seed: int) -> None:
        self.plays[job.name] = play = Play(
            scene(job), seed, self.clock, lambda *parts: SlotEngine(self.slots, job.name, *parts)
        )
        play.engine.play = play

    def _sample(self) -> None:
        """Count each second what runs and what could."""
        if len(self.ends) == len(self.jobs):
            return
        for job in self.jobs:
            play = self.plays.get(job.name)
            if play is None or job.name in self.ends:
                continue
            if play.over:
                self.ends[job.name] = self.seconds
        living = [job for job in self.jobs if job.name in self.plays and job.name not in self.ends]
        running = [
            sum(map(len, self.plays[job.name].world.truth.running.values())) if job in living else 0
            for job in self.jobs
        ]
        self.running.append(running)
        self.seconds += 1.0
        self.used += sum(running)
        self.usable += min(self.total, sum(largest(job) for job in living))
        self.clock.at(1.0, self._sample)


def largest(job: Wanted) -> int:
    return job.replicas["max"] if isinstance(job.replicas, dict) else job.replicas


def scene(job: Wanted) -> Scene:
    scope = "task" if job.way == "alone" else "group"
    role = {"command": "true", "replicas": job.replicas, "restart": {"scope": scope}, "resources": {"cores": 1}}
    data: dict[str, Any] = {
        "name": job.name, "roles": {"worker": role}, "gang": job.way != "alone", "priority": job.priority,
        "inputs": {"train": {"url": "memory://data", "as": "shards"}}, "scale": {"every": "20s"},
    }  # fmt: skip
    saves = 0.0
    if job.way == "restarts":
        data["checkpoint"] = {"path": "ckpt", "url": "memory://ckpt", "every": "20s"}
        saves = 20.0
    return Scene(data, attrs.evolve(HABITS, saves_every=saves), shards=round(job.work / SHARD))


def two_jobs(slots: int, workers: int, seconds: float, way: str, seed: int) -> Run:
    replicas: Any = workers if way == "gang" else {"min": 1, "max": workers}
    return Run(slots, [Wanted(f"job-{n}", n * SECOND, replicas, seconds * workers, way) for n in range(2)], seed)


def beside_serving(way: str, seed: int) -> Run:
    """8 slots: a serving load of 2, 6, then 2 slots of a higher priority, for 300 s each, and a job that may use the rest."""
    rest = Wanted("training", 0.0, {"min": 1, "max": 8}, 900.0 * 8 - 300.0 * (2 + 6 + 2), way)
    serving = [Wanted("base", 0.0, 2, 2 * 900.0, "gang", 9), Wanted("peak", 300.0, 4, 4 * 300.0, "gang", 9)]
    return Run(8, [*serving, rest], seed)


def _corners(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the (second, count) where a count changes, both ends of each step."""
    corners = [(0, counts[0])]
    for at, (before, count) in enumerate(itertools.pairwise(counts), 1):
        corners += [(at, before), (at, count)] if count != before else []
    return [*corners, (len(counts), counts[-1])]


def picture(runs: dict[str, Run], path: Path) -> None:
    """Draw what runs over time, a panel for each way: the jobs above each other, of all slots."""
    width, height, gap, colours = 720, 110, 40, ("#3b6ea8", "#d98e32", "#6a9a4f")
    longest = max(len(run.running) for run in runs.values())
    parts = []
    for number, (way, run) in enumerate(runs.items()):
        top = gap + number * (height + gap)
        x, y = width / longest, height / run.total
        parts.append(f'<text x="0" y="{top - 8}">{way}: all ended after {max(run.ends.values()):.0f} s</text>')
        parts.append(f'<rect x="0" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>')
        for job, colour in zip(range(len(run.jobs)), colours, strict=False):
            below = [sum(counts[:job]) for counts in run.running]
            above = [sum(counts[: job + 1]) for counts in run.running]
            edge = [*_corners(below), *reversed(_corners(above))]
            points = " ".join(f"{at * x:.1f},{top + height - count * y:.1f}" for at, count in edge)
            parts.append(f'<polygon points="{points}" fill="{colour}"/>')
    size = f'width="{width}" height="{gap + len(runs) * (height + gap)}"'
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13" fill="#777">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def table(name: str, runs: Sequence[Run], theirs: str = "") -> None:
    def middle(values: Sequence[float], form: str = ".1f", unit: str = " %") -> str:
        return f"{statistics.median(values):{form}}{unit} ({min(values):{form}} to {max(values):{form}})"

    use = middle([100 * run.used / (run.total * run.seconds) for run in runs])
    could = middle([100 * run.used / run.usable for run in runs])
    seconds = [run.plays[run.jobs[1].name].engine for run in runs]
    waited = middle([engine.granted - engine.asked for engine in seconds], ".1f", " s")
    ended = middle([max(run.ends.values()) for run in runs], ".0f", " s")
    print(f"| {name} | {use} | {could} | {waited} | {ended} | {theirs} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--largest", type=int, default=320, help="leave larger clusters out")
    parser.add_argument("--picture", type=Path, help="draw the run on 24 slots into this SVG, and nothing else")
    options = parser.parse_args()
    if options.picture is not None:
        picture({way: two_jobs(*SIZES[1][:3], way, options.seed) for way in WAYS}, options.picture)
        return 0
    seeds = range(options.seed, options.seed + options.seeds)
    print(
        "| cluster, way | mean use | of what it could use | the second has waited | all ended after | ElasticDL's mean use |"
    )
    print("|---|---|---|---|---|---|")
    for (slots, workers, seconds, gang, elastic), way in itertools.product(SIZES, WAYS):
        if slots <= options.largest:
            runs = [two_jobs(slots, workers, seconds, way, seed) for seed in seeds]
            table(f"{slots} slots, 2 jobs of {workers}, {way}", runs, gang if way == "gang" else elastic)
    for way in WAYS[1:]:
        table(f"8 slots, serving 2-6-2 beside training, {way}", [beside_serving(way, seed) for seed in seeds], "96.5 %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
