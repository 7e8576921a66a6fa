"""The course of an attempt: what may follow what, and whose end it is."""

from __future__ import annotations

from itertools import product

import pytest

from trainmaster.agent.attempt.course import Course
from trainmaster.core.machine.phases import (
    COMMITTING,
    DONE,
    ENDED,
    EXITED,
    NEW,
    READY,
    RUNNING,
    STAGING,
    STARTING,
    UPLOADED,
)

WAY = (STAGING, READY, STARTING, RUNNING, EXITED, UPLOADED, COMMITTING, DONE)


def at(phase: str) -> Course:
    course = Course(1)
    for step in WAY[: WAY.index(phase) + 1] if phase != NEW else ():
        assert course.enter(step)
    return course


@pytest.mark.parametrize(("phase", "step"), [*product((NEW, *WAY), WAY)])
def test_a_phase_follows_the_one_before_it_alone(phase: str, step: str) -> None:
    course = at(phase)
    follows = WAY[(NEW, *WAY).index(phase) :][:1] == (step,)
    assert course.enter(step) == follows
    assert course.phase == (step if follows else phase)


@pytest.mark.parametrize("phase", [NEW, *WAY])
def test_what_is_stopped_goes_no_further_and_ends_once(phase: str) -> None:
    course = at(phase)
    assert course.stop(is_reclaimed=False, has_died=False) == (phase != DONE)
    assert not course.stop(is_reclaimed=True, has_died=True)
    assert not any(course.enter(step) for step in WAY)
    assert course.end() == (phase != DONE)
    assert not course.end()
    assert course.phase == (DONE if phase == DONE else ENDED)


@pytest.mark.parametrize(
    ("stopped", "reclaimed", "died", "is_well", "fields"),
    [
        (False, False, False, False, {}),
        (True, False, False, False, {"stopped": True}),
        (True, False, False, None, {"stopped": True}),
        (True, False, True, False, {}),  # it failed in the moment in which it was stopped
        (True, False, True, True, {"stopped": True}),
        (True, True, False, False, None),  # the engine says why
        (True, True, True, False, {}),
    ],
)
def test_whose_end_it_is(
    stopped: bool, reclaimed: bool, died: bool, is_well: bool | None, fields: dict[str, bool] | None
) -> None:
    course = at(RUNNING)
    if stopped:
        course.stop(reclaimed, died)
    course.end_program()
    course.end()
    assert course.end_fields(is_well) == fields
    assert course.failed_alone(is_well=False) == (not stopped or died)


def test_a_program_that_is_ended_for_its_own_fault_is_not_stopped_by_the_order_that_comes_meanwhile() -> None:
    course = at(RUNNING)
    course.end_program()  # it has stalled
    assert course.stop(is_reclaimed=False, has_died=False)
    assert course.failed_alone(is_well=False)
    assert course.end_fields(is_well=False) == {}


@pytest.mark.parametrize(("phase", "finished"), [(READY, False), (RUNNING, True), (UPLOADED, True), (DONE, False)])
def test_what_is_finished_and_not_over(phase: str, finished: bool) -> None:
    assert at(phase).is_finished(program_runs=False) == finished
