"""The simulated world itself: it finds what is planted, uses all that it has, and plays a seed twice alike."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice, pairwise

import pytest

from trainmaster.core.machine.events import EVENTS, encode
from trainmaster.core.waits import BARRIER, LOCK, RENDEZVOUS
from trainmaster.simulation import engine, network
from trainmaster.simulation.__main__ import play
from trainmaster.simulation.faults import ALL, FATAL
from trainmaster.simulation.play import Play
from trainmaster.simulation.scenes import gang_day, independent_day, random_scene
from trainmaster.simulation.world import Violation
from trainmaster.words.events import event_line

pytestmark = pytest.mark.xdist_group("plays")  # which are made once

SOME = range(1_000, 1_060)  # a plant is found among these, and nothing without one

FOUND = {
    "lose-record": "counted and never read",
    "double-record": "counted a second time",
    "late-commit": "committed",
}


def violations(plant: str, seeds: Iterable[int] = SOME) -> list[str]:
    return [*each_violation(plant, seeds)]


def each_violation(plant: str, seeds: Iterable[int]) -> Iterator[str]:
    for seed in seeds:
        try:
            play(seed, plant)
        except Violation as violation:
            yield str(violation)


@pytest.mark.parametrize("plant", FOUND)
def test_a_planted_fault_is_found(plant: str) -> None:
    found = violations(plant)
    assert found, "the world did not see it"
    assert all(FOUND[plant] in told for told in found)


def test_a_shard_that_is_accused_wrongly_is_found() -> None:
    poisonous = [seed for seed in range(500) if random_scene(seed).habits.poison]
    found = violations("accuse-wrongly", poisonous)
    assert found, "the world did not see it"
    assert all("failed on it" in message for message in found)


@pytest.mark.parametrize(
    ("plant", "kind", "told"),
    [
        ("keep-member", RENDEZVOUS, "waits for ever|has no program|has been away"),
        ("hear-twice", RENDEZVOUS, "waits for ever|does not wait"),
        ("hear-twice", BARRIER, "waits for ever|has not come to it"),
        ("free-lock", LOCK, "holds the lock"),
    ],
)
def test_programs_that_are_let_through_wrongly_or_never_are_found(plant: str, kind: str, told: str) -> None:
    seeds = (seed for seed in count() if random_scene(seed).habits.meets == kind)
    found = next(each_violation(plant, islice(seeds, 60)), "the world did not see it")
    assert re.search(told, found), found


def test_the_same_seeds_pass_with_nothing_planted() -> None:
    assert violations("") == []


class Plays:
    """Plays of 500 seeds, of one in which a log is lost while a commit is waited for, of one with a straggler, of one whose number of
    workers is advised, and of one that restarts too often, each made when it is first looked at.
    """

    def __init__(self) -> None:
        self._made: list[Play] = []
        self._seeds = iter((2246, 946, 950, 3024, *range(500)))

    def __iter__(self) -> Iterator[Play]:
        yield from self._made
        for seed in self._seeds:
            self._made.append(play(seed))
            yield self._made[-1]


@pytest.fixture(scope="module")
def plays() -> Plays:
    return Plays()


def never(wanted: Iterable[str], plays: Plays, of: Callable[[Play], Iterable[str]]) -> set[str]:
    """What of all that is wanted no play has."""
    missing = set(wanted)
    for one in plays:
        missing.difference_update(of(one))
        if not missing:
            break
    return missing


def test_every_rule_and_every_fault_strikes(plays: Plays) -> None:
    faults = {type(fault).__name__ for fault in ALL + FATAL}
    wanted = {*engine.RULES, *network.RULES, *faults, "set-does-not-fit"}
    assert not never(wanted, plays, lambda one: one.world.truth.struck)


def test_the_clock_jumps_by_far_between_two_masters_forward_and_back(plays: Plays) -> None:
    def jumps(one: Play) -> Iterable[str]:
        for earlier, later in pairwise(one.masters):
            if abs(later.skew - earlier.skew) > 1800.0:
                yield "forward" if later.skew > earlier.skew else "back"

    assert not never({"forward", "back"}, plays, jumps)


# The simulated world has no feeders: `unit/test_feeding.py` plays what is decided for them, `unit/test_feed_jobs.py` has their words.
# It has no programs that count their records: `unit/test_record_numbers.py`.
FED = {"feed-read", "feed-ended", "input-counted"}


def test_every_type_of_event_comes_about_and_is_told_in_words_with_what_is_in_it(plays: Plays) -> None:
    lines: dict[str, str] = {}

    def types(one: Play) -> Iterable[str]:
        told = {event.type: event_line(json.loads(encode(event))) for event in one.master.log}
        lines.update(told)
        return told

    assert not never(EVENTS.keys() - FED, plays, types)
    assert not {kind: line for kind, line in lines.items() if "?" in line}


def test_jobs_end_in_every_way(plays: Plays) -> None:
    wanted = {
        "succeeded",
        "killed-by-user",
        "storage-lost",
        "refused",
        "job-timeout",
        "too-many-failures",
        "nothing-written",
        "signal",
        "exit",
        "out-of-memory",
        "restarts-exhausted",
    }
    assert not never(wanted, plays, lambda one: [one.master.state.ending["reason"]])
    ends = Counter(one.master.state.ending["reason"] for one in islice(plays, 50))
    assert ends["succeeded"] > 10


def test_elastic_roles_begin_with_what_is_granted(plays: Plays) -> None:
    def sizes(one: Play) -> Iterable[str]:
        wanted = one.scene.job["roles"].get("worker", {}).get("replicas")
        for event in one.master.log:
            if isinstance(wanted, dict) and event.type == "sized" and "worker" in event.data["sizes"]:
                yield "fewer" if event.data["sizes"]["worker"] < wanted["max"] else "all"

    assert not never({"fewer", "all"}, plays, sizes)


def test_programs_wait_for_each_other_in_every_way(plays: Plays) -> None:
    assert not never({RENDEZVOUS, BARRIER, LOCK}, plays, lambda one: one.world.truth.met)


def test_a_seed_plays_alike_each_time() -> None:
    first, second = play(42), play(42)
    assert first.master.log == second.master.log


def test_a_failing_seed_says_how_to_play_it_again() -> None:
    command = violations("double-record")[0].partition("again with: python ")[2].split()
    again = subprocess.run(
        [sys.executable, *command, "--plant", "double-record"], capture_output=True, text=True, timeout=60
    )
    assert again.returncode == 1
    assert "counted a second time" in again.stdout
    assert "shards-done" in again.stdout, "it shows the events"


@pytest.mark.parametrize("day", [independent_day, gang_day])
def test_a_small_day(day) -> None:
    outcome = Play(day(40), 1).run()
    assert outcome.seconds >= 86_400
    assert outcome.restarts > 0
    assert outcome.state == "running"


def test_scenes_are_made_of_their_seed_alone() -> None:
    assert random_scene(5) == random_scene(5)
