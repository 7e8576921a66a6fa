"""The table of events: what is a barrier, what is folded, and what readers of another version see."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from scripted import Script, job, role

from trainmaster.core.decide.drive import needs_barrier
from trainmaster.core.errors import BadInput
from trainmaster.core.fold.changes import _CHANGES, fold
from trainmaster.core.machine import stimuli
from trainmaster.core.machine.events import EVENTS, VERSION, Event, decode, encode, whole
from trainmaster.core.machine.phases import OF_SEVERAL, PHASES, TRANSITIONS, IllegalTransition
from trainmaster.core.machine.snapshot import dump
from trainmaster.core.machine.state import State

EVENT = Event(7, 1_700_000_000.25, 2, "granted", {"task": "worker:0", "node": "größe-1"})

# What must be on stable storage before anybody acts on it.
MUST_BE_BARRIERS = {
    "submitted", "master-started", "inputs-listed", "sized", "generation-formed", "member-joined", "attempt-written-off",
    "committers-named", "output-committed", "incident", "settled", "task-failed", "shards-done", "shards-returned",
    "checkpoint-saved", "rewound", "kill-requested", "ending", "ended",
}  # fmt: skip


def test_barriers() -> None:
    assert {kind for kind in MUST_BE_BARRIERS if not EVENTS[kind].barrier} == set()
    assert needs_barrier([EVENT]) is False
    assert needs_barrier([EVENT, attrs.evolve(EVENT, type="ended")]) is True


def test_every_type_is_folded_and_none_other() -> None:
    assert set(_CHANGES) == set(EVENTS)


def test_a_line_of_the_log() -> None:
    line = encode(EVENT)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "v": VERSION, "n": 7, "at": 1_700_000_000.25, "epoch": 2, "type": "granted", "task": "worker:0", "node": "größe-1",
    }  # fmt: skip
    assert decode(line) == decode(line.decode()) == EVENT


def test_half_a_character_of_some_program_survives() -> None:
    event = attrs.evolve(EVENT, data={"tail": ["\ud83d"]})
    assert decode(encode(event)) == event


def altered(**fields: object) -> str:
    return json.dumps({**json.loads(encode(EVENT)), **fields})


def test_fields_and_minor_versions_that_are_not_known_are_kept() -> None:
    event = decode(altered(v="1.9", more={"a": 1}))
    assert event.data["more"] == {"a": 1}


def test_a_higher_major_version_is_refused_naming_both() -> None:
    with pytest.raises(BadInput, match=r"version 2\.0.* 1\.x"):
        decode(altered(v="2.0"))


@pytest.mark.parametrize(
    "line", ["", "{}", "[]", "null", "{", '{"v": "1.0"}', "garbage", '{"v":"1.0","n":1,"at":2}', "[" * 100_000]
)
def test_what_is_no_event_is_an_error(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (json's own, or ours)
        decode(line)


@pytest.mark.parametrize("at", ["x", None, -1, 1e300, float("inf"), float("nan")])
def test_an_event_at_a_time_that_no_calendar_has_is_no_event(at: Any) -> None:
    with pytest.raises(ValueError, match="not an event"):
        decode(altered(at=at))


def test_an_event_of_a_type_that_is_not_known_changes_only_the_position() -> None:
    script = Script(job(worker=role(2)))
    before = dump(script.state)
    fold(script.state, [Event(script.state.n + 1, script.now, 1, "from-the-future", {"task": "worker:0"})])
    assert dump(script.state) == {**before, "n": before["n"] + 1}


def test_folding_is_the_same_from_lines() -> None:
    script = Script(job(worker=role(2, "group")))
    script.start("worker:0", "worker:1")
    script.fail("worker:0")
    read = fold(State(), [decode(encode(event)) for event in script.log])
    assert dump(read) == dump(script.state)


# -- decisions that a master died in the middle of --


def torn(*facts: tuple[str, dict[str, object]]) -> list[Event]:
    """A job that runs, a decision torn by its writer's death, and what the next master wrote."""
    script = Script(job(worker=role()))
    script.start("worker:0")
    return [*script.log, *(Event(script.state.n + 1 + i, script.now, 2, *fact) for i, fact in enumerate(facts))]


HALF = ("incident", {"rest": 1, "unit": "worker:0", "budget": "role:worker", "spent": 1, "free": 0, "generation": 1, "again": True,
                     "costs": True, "until": 0.0, "cause": {"task": "worker:0", "attempt": 1, "reason": "exit"}})  # fmt: skip
STARTED = {"read": {}, "place": ""}


@pytest.mark.parametrize("ends", [False, True])
def test_half_a_decision_never_counts(ends: bool) -> None:
    """Nor where the next master's first word is itself one of two: that it was one master too many, and that the job ends."""
    ending = ("ending", {"state": "failed", "reason": "master-failed", "figures": {}})
    begun = [("master-started", STARTED | {"rest": 1}), ending] if ends else [("master-started", STARTED)]
    events = torn(HALF, *begun)
    state = fold(State(), events)
    assert state.restarts == 0
    assert (state.ending is not None) == ends
    assert [event.type for event in whole(events)][-1 - ends :] == [kind for kind, _ in begun]
    assert "incident" not in [event.type for event in whole(events)]


# -- the table of phases --

FIELDS: dict[str, dict[str, Any]] = {  # of events that bring an attempt into another phase
    "ready": {"address": ""}, "generation-formed": {"group": 0, "generation": 1, "members": [["worker:0", 1]], "ranks": {}},
    "member-joined": {"group": 0, "generation": 1, "rank": 0}, "started": {"pid": 1, "elapsed": None}, "exited": {"elapsed": None},
    "uploaded": {"outputs": {}}, "output-committed": {"outputs": {}}, "attempt-ended": {"reason": "exit", "figures": {}},
    "attempt-written-off": {"serial": 1, "reason": "exit", "figures": {}, "gone": True},
}  # fmt: skip


@pytest.mark.parametrize("event", [event for event, _, _ in TRANSITIONS if event not in OF_SEVERAL])
@pytest.mark.parametrize("phase", PHASES)
def test_a_transition_that_is_not_in_the_table_raises_and_changes_nothing(event: str, phase: str) -> None:
    script = Script(job(worker=role()))
    script.grant("worker:0")
    state, task = script.state, script.task("worker:0")
    task.phase = phase
    _, before, _ = next(row for row in TRANSITIONS if row[0] == event)
    fact = Event(state.n + 1, state.at, 1, event, {"task": "worker:0", "attempt": 1, "report": 99, **FIELDS[event]})
    unchanged = json.dumps(dump(state))
    if phase in before:
        fold(state, [fact])
        assert task.phase != phase
    else:
        with pytest.raises(IllegalTransition, match=f"worker:0 is {phase}"):
            fold(state, [fact])
        state.incomplete.clear()
        assert json.dumps(dump(state)) == unchanged


def test_what_older_logs_do_not_say_is_what_their_versions_did() -> None:
    """A log of version 1.0 names no limits: they stood in its code."""
    script = Script(job(worker=role(), timeouts={"grace": "30s"}))
    script.start("worker:0")
    script.fail("worker:0")
    script.take(stimuli.Disconnected("worker:0", script.task("worker:0").serial))
    script.take(stimuli.MasterStarted(2))
    added = {"takeovers", "lease", "limit", "settle", "soon"}
    older = [attrs.evolve(event, data={k: v for k, v in event.data.items() if k not in added}) for event in script.log]
    assert older != script.log
    replayed, present = (dump(fold(State(), events)) for events in (older, script.log))
    assert replayed.pop("takeovers") == 1, "a master that was killed counted, too"
    present.pop("takeovers", None)
    assert replayed == present
