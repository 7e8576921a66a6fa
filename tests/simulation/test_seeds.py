"""Small jobs of every kind through storms of faults: whatever happens in which order, the world's promises hold."""

from __future__ import annotations

import pytest

from trainmaster.simulation.__main__ import play

# Seeds that failed once, each with a fault of ours that is mended.
REGRESSIONS = [
    7, 16, 55, 58, 129, 146, 160, 171, 184, 296, 525, 778, 2726,
    5993, 7069, 8839, 11018, 14465, 103048, 302915, 305010, 311812, 358720286, 1118126080, 3002046, 4002234, 1118203938, 1118207350,
    41000398, 1100898598, 1551803912, 994204787, 8000124,
]  # fmt: skip


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_seed_that_failed_once_passes(seed: int) -> None:
    play(seed)


def test_random_seeds(seeds) -> None:
    for seed in seeds(200):
        play(seed)


@pytest.mark.full
def test_more_random_seeds(seeds) -> None:
    for seed in seeds(2_000):
        play(seed)


@pytest.mark.soak
def test_many_random_seeds(seeds) -> None:
    for seed in seeds(50_000):
        play(seed)


@pytest.mark.soak
def test_what_is_decided_in_a_hundred_thousand_turns_follows_from_the_log_alone(seeds) -> None:
    turns = 0
    for seed in seeds(10_000):
        turns += play(10 * seed).world.truth.turns_checked  # these seeds have each turn checked
        if turns >= 100_000:
            break
    assert turns >= 100_000
