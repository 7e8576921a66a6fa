"""A state as plain JSON-able data and back: `load(dump(state))` is the same state.

A snapshot spares a restarted master the fold of a long log; it says nothing that the events up to `n` do not. So what is no consequence of
events is left out: shard leases (agents tell them anew), and which tasks were settled (after `load` none is, which costs one full
comparison). Fields that have their default are left out too; one that a later version does not know makes `load` fail, and the whole log
is folded instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from trainmaster.core.input.shards import ShardTable
from trainmaster.core.machine.events import Event
from trainmaster.core.machine.state import Budget, Group, Incident, Past, Reached, State, Task
from trainmaster.core.machine.units import unit_from
from trainmaster.core.spec.reading import job_from, job_to


def dump(state: State) -> dict[str, Any]:
    """All that the events up to `state.n` have made. Parts of it are the state's own: write it out before the state moves on."""
    return _plain(state)


def load(data: Mapping[str, Any]) -> State:
    """The state that `dump` was given. Raises TypeError, KeyError or ValueError on what no `dump` of this version wrote."""
    state: State = _made(State, data)
    state.unsettled = dict.fromkeys(state.tasks)
    for (kind, key), at in list(state.deadlines.items()):
        state.arm(kind, key, at)
    return state


def _plain(one: Any) -> dict[str, Any]:
    told = {}
    special = _SPECIAL.get(type(one), {})
    for name, default in _DEFAULTS[type(one)]:
        value = getattr(one, name)
        if value == default or (name in special and special[name] is None):
            continue
        told[name] = special[name][0](value) if name in special else value
    return told


def _made(of: type[Any], data: Mapping[str, Any]) -> Any:
    special = _SPECIAL.get(of, {})
    return of(**{name: special[name][1](value) if name in special else value for name, value in data.items()})


Way = tuple[Callable[[Any], Any], Callable[[Any], Any]]  # to plain data, and back


def _each(of: type[Any]) -> Way:
    return lambda values: [_plain(one) for one in values], lambda told: [_made(of, one) for one in told]


def _by_name(of: type[Any]) -> Way:
    return (
        lambda values: {name: _plain(one) for name, one in values.items()},
        lambda told: {name: _made(of, one) for name, one in told.items()},
    )


def _by_unit(of: type[Any]) -> Way:
    return (
        lambda values: {unit.text: _plain(value) for unit, value in values.items()},
        lambda plain: {unit_from(text): _made(of, value) for text, value in plain.items()},
    )


_COUNTS: Way = (dict, Counter)
_PAIRS: Way = (lambda keys: [list(key) for key in keys], lambda told: {tuple(key): None for key in told})
_TIMES: Way = (
    lambda times: [[*key, at] for key, at in times.items()],
    lambda told: {(kind, key): at for kind, key, at in told},
)
_EVENTS: Way = (
    lambda events: [[event.n, event.at, event.epoch, event.type, dict(event.data)] for event in events],
    lambda told: [Event(*one) for one in told],
)
_SHARDS: Way = (
    lambda tables: {name: table.snapshot() for name, table in tables.items()},
    lambda told: {name: ShardTable.from_snapshot(table) for name, table in told.items()},
)


def _default(field: attrs.Attribute[Any]) -> Any:
    factory = getattr(field.default, "factory", None)
    return field.default if factory is None else factory()


_DEFAULTS = {
    of: [(field.name, _default(field)) for field in attrs.fields(of)]
    for of in (State, Task, Past, Group, Budget, Reached, Incident)
}

# Fields whose form differs; None: left out.
_SPECIAL: dict[type[Any], dict[str, Any]] = {
    State: {
        "job": (job_to, job_from), "held": _EVENTS, "tasks": _by_name(Task), "groups": _each(Group), "running": _COUNTS, "done": _COUNTS,
        "over": _COUNTS,
        "budgets": _by_unit(Budget), "reached": _by_unit(Reached), "incidents": _by_unit(Incident),
        "strays": _PAIRS, "shards": _SHARDS, "deadlines": _TIMES,
        "unsettled": None, "clock": None,
    },
    Task: {"past": _each(Past)},
    Incident: {"unit": (lambda unit: unit.text, unit_from)},
    Group: {"granted": _COUNTS, "whole": _COUNTS, "single": _COUNTS},
}  # fmt: skip
