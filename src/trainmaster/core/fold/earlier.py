"""Supply the fields that events of earlier versions lack, with the numbers that those versions assumed.

An event carries all that its future depends on, so that a later version replays a log alike. Before version 1.1 these numbers stood in
the code, with the values below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.core.machine.events import Event
from trainmaster.core.machine.reasons import final_state
from trainmaster.core.machine.state import State

_SHORT_LIFE = 30.0
_LIMITS = {"stop": 125.0, "commit": 1800.0}


def _master_started(state: State, event: Event) -> dict[str, Any]:
    return {"takeovers": state.takeovers + 1 if event.at - state.takeover_at < _SHORT_LIFE else 1, "lease": 7.0}


def _agent_disconnected(state: State, event: Event) -> dict[str, Any]:
    return {"lease": 7.0}


def _ordered(state: State, event: Event) -> dict[str, Any]:
    limit = _LIMITS.get(event.data["verb"])
    return {} if limit is None else {"limit": limit}


def _incident(state: State, event: Event) -> dict[str, Any]:
    return {"settle": 10.0, "soon": 1.0}


def _step_done(state: State, event: Event) -> dict[str, Any]:
    return {"limit": 60.0} if event.data["step"] == "leave" else {}


def _task_failed(state: State, event: Event) -> dict[str, Any]:
    return {"final": final_state(event.data["reason"])}


_LACKED: Mapping[str, Callable[[State, Event], dict[str, Any]]] = {
    "master-started": _master_started,
    "agent-disconnected": _agent_disconnected,
    "ordered": _ordered,
    "incident": _incident,
    "step-done": _step_done,
    "task-failed": _task_failed,
}


def completed(state: State, event: Event) -> Mapping[str, Any]:
    """Return the fields of an event, with those that it would have if it were written now."""
    lacked = _LACKED.get(event.type)
    return event.data if lacked is None else {**lacked(state, event), **event.data}
