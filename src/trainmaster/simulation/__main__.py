"""`python -m trainmaster.simulation`: play seeds, print each that fails, and play one again with its trace."""

from __future__ import annotations

import argparse
import sys
import time

from trainmaster.simulation.plants import PLANTS
from trainmaster.simulation.play import Play
from trainmaster.simulation.scenes import random_scene
from trainmaster.simulation.world import BEGINNING, Violation


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trainmaster.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one seed, with its log")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to play")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--plant", default="", choices=PLANTS, help="a fault of ours that the checks must find")
    options = parser.parse_args()
    if options.seed is not None:
        return play_again(options.seed, options.plant)
    failed = 0
    began = time.perf_counter()
    for seed in range(options.first, options.first + options.seeds):
        try:
            play(seed, options.plant)
        except Violation as violation:
            failed += 1
            print(violation, flush=True)
    print(f"{options.seeds} seeds from {options.first}, {failed} failed, {time.perf_counter() - began:.1f} s")
    return 1 if failed else 0


def play(seed: int, plant: str = "") -> Play:
    """Play one random scene to its end. Raises Violation, naming the seed."""
    played = Play(random_scene(seed, plant), seed)
    try:
        played.run()
    except Violation as violation:
        raise Violation(
            f"seed {seed}: {violation}; again with: python -m trainmaster.simulation --seed {seed}"
        ) from violation
    return played


def play_again(seed: int, plant: str) -> int:
    played = Play(random_scene(seed, plant), seed)
    print(played.scene)
    try:
        outcome = played.run()
    except Violation as violation:
        for event in played.world.disk.read()[-200:]:
            print(
                f"{event.at - BEGINNING:10.3f} {event.n:5} e{event.epoch} {event.type:20} {dict(event.data) if event.n > 2 else ''}"
            )
        print(f"seed {seed}: {violation} (at {played.world.now - BEGINNING:.3f})")
        return 1
    print(outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main())
