"""The course of a job agrees with the state that the same events make, whatever happened to the job."""

from __future__ import annotations

import json
from collections.abc import Iterable

from trainmaster.core.machine.events import Event
from trainmaster.core.machine.state import State, Task
from trainmaster.core.states import SUCCEEDED
from trainmaster.core.timeline import Attempt, Timeline
from trainmaster.simulation.__main__ import play

# Growth, masters that die while they write, a lost log, attempts that never began.
CHOSEN = [91, 144, 168, 313, 350, 790, 946, 2246, 1963192171]


def course(events: Iterable[Event]) -> Timeline:
    timeline = Timeline()
    for event in events:
        timeline.take(event)
    return timeline


def agree(timeline: Timeline, state: State) -> None:
    assert timeline.n == state.n
    assert timeline.at == state.at
    for task in state.tasks.values():
        for past in task.past:
            attempt = timeline.attempts[task.key, past.attempt]
            assert attempt.ended == past.ended, task.key
            if past.attempt != task.attempt:  # else the settled cause of its failure replaced its own reason
                assert (attempt.reason, attempt.figures) == (past.reason, past.figures), task.key
        agree_on_present(timeline.attempts.get((task.key, task.attempt)), task)
        if timeline.latest.get(task.key, 0) > task.attempt:  # asked for when its unit was about to fail for good
            assert timeline.attempts[task.key, task.attempt + 1].staging is None, task.key
    for group in state.groups:
        formed = [generation.generation for generation in timeline.generations if generation.group == group.number]
        assert (formed or [0])[-1] == group.generation
        assert formed == sorted(formed)
    assert timeline.counts["restart"] == state.restarts
    assert [epoch.epoch for epoch in timeline.epochs][-1] == state.epoch


def agree_on_present(attempt: Attempt | None, task: Task) -> None:
    if attempt is None or attempt.staging is None:
        assert task.started is None, task.key
        return
    assert attempt.started == task.started, task.key
    assert attempt.reason == task.reason, task.key
    assert (attempt.state == SUCCEEDED) == (task.state == SUCCEEDED), task.key
    assert attempt.ended is None or attempt.ended >= (attempt.started or attempt.staging), task.key
    if not task.past or task.past[-1].attempt != task.attempt:  # else a container may have come after its end
        assert attempt.node == task.node, task.key


def test_a_timeline_agrees_with_the_state(seeds) -> None:
    for seed in (*CHOSEN, *seeds(30)):
        played = play(seed)
        agree(course(played.master.log), played.master.state)


def test_events_with_wrong_fields_and_unknown_ones_never_raise() -> None:
    """Each field of each event is once missing, and once of every other shape."""
    log = play(2246).master.log
    wrong = [None, "x", -1, 1.5, True, [], [[]], [["worker:0"]], {}, {"a": []}, 10**400]
    timeline = Timeline()
    seen = set()
    for event in log:
        if event.type not in seen:
            seen.add(event.type)
            for name in event.data:
                without = {key: value for key, value in event.data.items() if key != name}
                timeline.take(Event(event.n, event.at, event.epoch, event.type, without))
                for value in wrong:
                    timeline.take(Event(event.n, event.at, event.epoch, event.type, {**without, name: value}))
        timeline.take(event)
    timeline.take(Event(len(log) + 1, log[-1].at, 1, "of-a-newer-version", {"task": []}))
    assert timeline.n == len(log) + 1
    assert json.dumps([mark.text for mark in timeline.marks])
    assert all(isinstance(attempt.words, str) for attempt in timeline.attempts.values())
