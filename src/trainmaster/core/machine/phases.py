"""The life of an attempt as a table: its phases, and the events that bring it from one into the next.

    new -> staging -> ready -> starting -> running -> exited -> uploaded -> committing -> done
     ^          any of these -> ended
     +--------------------------+   the task's next attempt

An event about one attempt that finds it in another phase than these raises and changes nothing (`check_event`), and so does any change of a
phase to one that cannot follow (`check_transition`). The documents are made from the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NEW = "new"  # nothing ordered yet
STAGING = "staging"  # ordered to prepare
READY = "ready"  # prepared; waits for its generation
STARTING = "starting"  # a member of a formed generation
RUNNING = "running"  # its program runs
EXITED = "exited"  # its program ended well; outputs upload
UPLOADED = "uploaded"  # nothing left but to commit
COMMITTING = "committing"  # named as the committer
DONE = "done"
ENDED = "ended"  # ended otherwise

LIVE = frozenset({STAGING, READY, STARTING, RUNNING, EXITED, UPLOADED, COMMITTING})
READING = frozenset({STARTING, RUNNING})  # its program may run: it may hold shards and report them
STARTED = frozenset({RUNNING, EXITED, UPLOADED, COMMITTING, DONE})
FINISHED = frozenset({EXITED, UPLOADED, COMMITTING, DONE})  # its program ended well
# In order; `ended` may follow any but `done`.
PHASES = (NEW, STAGING, READY, STARTING, RUNNING, EXITED, UPLOADED, COMMITTING, DONE, ENDED)

_LIVE = tuple(phase for phase in PHASES if phase in LIVE)

# (event, the phases that an attempt may be in before it, the phases that it may be in afterwards)
TRANSITIONS: Sequence[tuple[str, Sequence[str], Sequence[str]]] = (
    ("ordered", (NEW,), (STAGING,)),  # to prepare
    ("ready", (NEW, STAGING), (READY,)),  # new, here and below: the note that it was ordered was lost with a master
    ("generation-formed", (READY,), (STARTING,)),
    ("member-joined", (READY,), (STARTING,)),
    ("started", (STARTING,), (RUNNING,)),
    ("exited", (STARTING, RUNNING), (EXITED, UPLOADED)),  # uploaded: a task without outputs
    ("uploaded", (EXITED,), (UPLOADED,)),
    ("committers-named", (UPLOADED,), (COMMITTING, DONE)),
    ("output-committed", (COMMITTING,), (DONE,)),
    ("commits-abandoned", (COMMITTING,), (ENDED,)),
    ("attempt-ended", (NEW, *_LIVE), (ENDED,)),
    ("attempt-written-off", _LIVE, (ENDED,)),
    ("task-failed", (NEW,), (ENDED,)),
    ("incident", (ENDED,), (NEW,)),  # it restarts; where it was stopped for that, the next attempt follows as it ends
)
_NEXT: Mapping[str, frozenset[str]] = {
    phase: frozenset(after for _, before, afters in TRANSITIONS if phase in before for after in afters)
    for phase in PHASES
}

# These name several attempts, or a unit, and move none that is in another phase by now; each of the others is about one attempt.
OF_SEVERAL = frozenset(
    {"ordered", "generation-formed", "committers-named", "commits-abandoned", "task-failed", "incident"}
)
_EXPECTED: Mapping[str, frozenset[str]] = {
    event: frozenset(before) for event, before, _ in TRANSITIONS if event not in OF_SEVERAL
}


class IllegalTransition(Exception):
    """An event that brings an attempt into a phase which cannot follow its present one: a fault of ours, or a damaged log."""


def check_event(event: str, task: str, phase: str) -> None:
    """Raise IllegalTransition where an event about one attempt cannot find it in this phase."""
    if event in _EXPECTED and phase not in _EXPECTED[event]:
        raise IllegalTransition(f"{task} is {phase}, where {event} cannot come")


def check_transition(task: str, before: str, after: str) -> None:
    """Raise IllegalTransition where `after` cannot follow `before`."""
    if after not in _NEXT[before]:
        raise IllegalTransition(f"{task} is {before}, and {after} cannot follow that")
