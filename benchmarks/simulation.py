"""Two simulated days: the core drives 10,000 tasks that restart alone, and 1,000 tasks of one group, 1 % of them failing an hour.

    python benchmarks/simulation.py [--runs 3] [--quick]

Nothing is skipped: every grant, connection, report, order and restart of the day is played through the core as a master would, faults
included (agents and nodes die, containers are preempted, networks are cut). There is no peer: nobody else plays a day of a job. `--quick`
plays half an hour of each instead, once.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import attrs

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from trainmaster.simulation.play import Outcome, Play, Scene
from trainmaster.simulation.scenes import DAY, gang_day, independent_day

LIMIT = 60.0  # s for a day
QUICK = DAY / 48
DAYS: dict[str, Callable[[], Scene]] = {
    "10,000 tasks, scope task": independent_day,
    "1,000 tasks, scope group": gang_day,
}


def play(scene: Scene, seed: int) -> tuple[float, Outcome]:
    """Wall-clock seconds of one play, and what came of it."""
    began = time.perf_counter()
    outcome = Play(scene, seed).run()
    return time.perf_counter() - began, outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--quick", action="store_true", help="half an hour instead of a day, once")
    options = parser.parse_args()
    gc.set_threshold(200_000, 20, 100)  # a day keeps millions of objects, none of them garbage
    met = True
    for name, make in DAYS.items():
        scene = attrs.evolve(make(), until=QUICK) if options.quick else make()
        seeds = range(options.seed, options.seed + (1 if options.quick else options.runs))
        played = [play(scene, seed) for seed in seeds]
        times = [seconds for seconds, _ in played]
        events, starts = (sum(getattr(outcome, what) for _, outcome in played) for what in ("events", "starts"))
        print(
            f"{name}: {(scene.until or DAY) / 3600:g} h in {min(times):.1f} / {statistics.median(times):.1f} / {max(times):.1f} s"
            f" (min / median / max), seeds {seeds[0]} to {seeds[-1]}; {events / sum(times):,.0f} events/s,"
            f" {events // len(played):,} events and {starts // len(played):,} starts each",
            flush=True,
        )
        met = met and statistics.median(times) < LIMIT
    print(
        f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB; wanted: each day < {LIMIT:.0f} s"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
