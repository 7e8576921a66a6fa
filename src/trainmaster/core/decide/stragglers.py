"""Name the tasks that are much slower than their peers, and replace them where their role asks for that.

A task's pace is the seconds that it takes for a step or a shard (`core.pace` says how it is measured, and of which tasks it cannot be). It
is compared with the median over all tasks of its role that are measured in the same way. There must be LEAST of them: of two, nobody can
say which is slow.

    straggling       once it takes SLOW times the median
    over             once it takes less than FINE times the median; or its attempt ends
    replaced         where `stragglers: replace`: its attempt ends at once and begins anew in another container, at no cost. In one group
                     at most one task each APART seconds, since the others of a group that restarts together are stopped too; and where
                     there is a checkpoint, only within moments of a stored set

Nothing is held against the container's node, or against the shards that the task was reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.core.decide.elastic import is_calm
from trainmaster.core.decide.failures import container_gone
from trainmaster.core.machine.events import Fact
from trainmaster.core.machine.pace_words import pace_words
from trainmaster.core.machine.phases import RUNNING
from trainmaster.core.machine.state import GRANTED, Group, State, Task
from trainmaster.core.machine.stimuli import Pace

LEAST = 3  # tasks
SLOW, FINE = 1.5, 1.2  # times the median
APART = 600.0  # s


def judge(state: State, paces: Mapping[str, Pace]) -> list[Fact]:
    """Return who straggles now and did not before, and whose straggling is over."""
    paces = {
        key: pace for key, pace in paces.items() if state.tasks[key].phase == RUNNING
    }  # others ended in this very turn
    peers: dict[tuple[str, str], list[float]] = {}
    for key, pace in paces.items():
        peers.setdefault((state.tasks[key].role, pace.per), []).append(pace.seconds)
    medians = {alike: sorted(seconds)[len(seconds) // 2] for alike, seconds in peers.items() if len(seconds) >= LEAST}
    facts: list[Fact] = []
    for key, pace in paces.items():
        median = medians.get((state.tasks[key].role, pace.per), 0.0)
        fact: dict[str, Any] = {
            "task": key,
            "seconds": pace.seconds,
            "median": median,
            "per": pace.per,
        }
        if key not in state.stragglers and median and pace.seconds >= SLOW * median:
            facts.append(("straggling", fact))
        elif key in state.stragglers and median and pace.seconds < FINE * median:
            facts.append(("straggling-over", fact))
    return facts


def replace_straggler(state: State, group: Group, now: float) -> list[Fact]:
    """Take a straggler of the group out of its container, where that is asked for and costs little."""
    if not state.stragglers or group.doomed or group.finishing or not _is_time(group, now):
        return []
    for key, figures in state.stragglers.items():
        task = state.tasks[key]
        if task.group == group.number and _may_be_replaced(state, task) and (not task.whole or is_calm(state, now)):
            figures = {"detail": pace_words(figures), "node": task.node}
            return container_gone(state, task, "straggling", figures, now, by_engine=True, gone=False)
    return []


def _is_time(group: Group, now: float) -> bool:
    return group.replaced is None or now >= group.replaced + APART


def _may_be_replaced(state: State, task: Task) -> bool:
    role = state.role(task)
    is_wanted = role.stragglers == "replace" and role.restart.scope != "never"
    return is_wanted and task.phase == RUNNING and task.hold == GRANTED and not task.doomed and not task.final
