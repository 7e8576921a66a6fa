"""The simulated world itself: it finds what is planted, uses all that it has, and plays a seed twice alike."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

from trainmaster.client.events import event_line
from trainmaster.core.events import EVENTS, encode
from trainmaster.simulation import engine, network
from trainmaster.simulation.__main__ import play
from trainmaster.simulation.faults import ALL, FATAL
from trainmaster.simulation.play import Play
from trainmaster.simulation.scenes import gang_day, independent_day, random_scene
from trainmaster.simulation.world import Violation

SOME = range(1_000, 1_060)  # a plant is found among these, and nothing without one

FOUND = {
    "lose-record": "counted and never read",
    "double-record": "counted a second time",
    "late-commit": "committed",
}


def violations(plant: str) -> list[str]:
    found = []
    for seed in SOME:
        try:
            play(seed, plant)
        except Violation as violation:
            found.append(str(violation))
    return found


@pytest.mark.parametrize("plant", FOUND)
def test_a_planted_fault_is_found(plant: str) -> None:
    found = violations(plant)
    assert found, "the world did not see it"
    assert all(FOUND[plant] in told for told in found)


def test_the_same_seeds_pass_with_nothing_planted() -> None:
    assert violations("") == []


@pytest.fixture(scope="module")
def played() -> list[Play]:
    return [play(seed) for seed in (*range(500), 4002234)]  # the last: a log is lost while a commit is waited for


def test_every_rule_and_every_fault_strikes(played: list[Play]) -> None:
    struck = sum((one.world.truth.struck for one in played), Counter())
    faults = {type(fault).__name__ for fault in ALL + FATAL}
    assert {*engine.RULES, *network.RULES, *faults} - struck.keys() == set()


def test_every_type_of_event_comes_about(played: list[Play]) -> None:
    assert EVENTS.keys() - {event.type for one in played for event in one.master.log} == set()


def test_events_are_told_in_words_with_what_is_in_them(played: list[Play]) -> None:
    lines = {event.type: event_line(json.loads(encode(event))) for one in played for event in one.master.log}
    wordless = {kind: line for kind, line in lines.items() if "?" in line}
    assert not wordless


def test_jobs_end_in_every_way(played: list[Play]) -> None:
    reasons = Counter(one.master.state.ending["reason"] for one in played)
    wanted = {
        "succeeded",
        "killed-by-user",
        "storage-lost",
        "refused",
        "job-timeout",
        "too-many-failures",
        "signal",
        "exit",
        "out-of-memory",
    }
    assert wanted - reasons.keys() == set()
    assert reasons["succeeded"] > 100


def test_elastic_roles_begin_with_what_is_granted(played: list[Play]) -> None:
    sizes = [
        (event.data["sizes"]["worker"], one.scene.job["roles"]["worker"]["replicas"]["max"])
        for one in played
        if isinstance(one.scene.job["roles"]["worker"]["replicas"], dict)
        for event in one.master.log
        if event.type == "sized" and "worker" in event.data["sizes"]
    ]
    assert any(size < most for size, most in sizes)
    assert any(size == most for size, most in sizes)


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
    assert "submitted" in again.stdout


@pytest.mark.parametrize("day", [independent_day, gang_day])
def test_a_small_day(day) -> None:
    outcome = Play(day(40), 1).run()
    assert outcome.seconds >= 86_400
    assert outcome.restarts > 0
    assert outcome.state == "running"


def test_scenes_are_made_of_their_seed_alone() -> None:
    assert random_scene(5) == random_scene(5)
