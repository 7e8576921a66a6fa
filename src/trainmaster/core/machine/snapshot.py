"""A state as plain JSON-able data and back: `load(dump(state))` is the same state.

A snapshot spares a restarted master the fold of a long log; it contains only facts of the events up to `n`. So it leaves out which tasks
were settled: after `load` none is, which costs one full comparison. Fields that have their default are left out too. A field that a later
version does not know makes `load` fail, and the whole log is folded instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from trainmaster.core.input.shards import ShardTable
from trainmaster.core.machine.events import Event
from trainmaster.core.machine.state import Budget, Group, Incident, Past, Reached, Scaling, State, Task
from trainmaster.core.machine.units import unit_from
from trainmaster.core.spec.reading import job_from, job_to


def dump(state: State) -> dict[str, Any]:
    """Return the state after the events up to `state.n` as plain data. The two share parts: write it out before the next event."""
    return _plain(state)


def load(data: Mapping[str, Any]) -> State:
    """Return the state that `dump` wrote. Raises TypeError, KeyError or ValueError on data that no `dump` of this version wrote."""
    state: State = _load_instance(State, data)
    state.unsettled = dict.fromkeys(state.tasks)
    for (kind, key), at in list(state.deadlines.items()):
        state.arm(kind, key, at)
    return state


def _plain(instance: Any) -> dict[str, Any]:
    data = {}
    special = _SPECIAL.get(type(instance), {})
    for name, default in _DEFAULTS[type(instance)]:
        value = getattr(instance, name)
        if value == default or (name in special and special[name] is None):
            continue
        data[name] = special[name][0](value) if name in special else value
    return data


def _load_instance(of: type[Any], data: Mapping[str, Any]) -> Any:
    special = _SPECIAL.get(of, {})
    return of(**{name: special[name][1](value) if name in special else value for name, value in data.items()})


Conversion = tuple[Callable[[Any], Any], Callable[[Any], Any]]  # to plain data, and back


def _each(of: type[Any]) -> Conversion:
    return lambda values: [_plain(instance) for instance in values], lambda rows: [
        _load_instance(of, instance) for instance in rows
    ]


def _by_name(of: type[Any]) -> Conversion:
    return (
        lambda values: {name: _plain(instance) for name, instance in values.items()},
        lambda plain: {name: _load_instance(of, instance) for name, instance in plain.items()},
    )


def _by_unit(of: type[Any]) -> Conversion:
    return (
        lambda values: {unit.text: _plain(value) for unit, value in values.items()},
        lambda plain: {unit_from(text): _load_instance(of, value) for text, value in plain.items()},
    )


_COUNTS: Conversion = (dict, Counter)
_PAIRS: Conversion = (lambda keys: [list(key) for key in keys], lambda rows: {tuple(row): None for row in rows})
_TIMES: Conversion = (
    lambda times: [[*key, at] for key, at in times.items()],
    lambda rows: {(kind, key): at for kind, key, at in rows},
)
_EVENTS: Conversion = (
    lambda events: [[event.n, event.at, event.epoch, event.type, dict(event.data)] for event in events],
    lambda rows: [Event(*row) for row in rows],
)
_SHARDS: Conversion = (
    lambda tables: {name: table.snapshot() for name, table in tables.items()},
    lambda plain: {name: ShardTable.from_snapshot(table) for name, table in plain.items()},
)


def _default(field: attrs.Attribute[Any]) -> Any:
    factory = getattr(field.default, "factory", None)
    return field.default if factory is None else factory()


_DEFAULTS = {
    of: [(field.name, _default(field)) for field in attrs.fields(of)]
    for of in (State, Task, Past, Group, Budget, Reached, Incident, Scaling)
}

# Fields with a form of their own; None: left out.
_SPECIAL: dict[type[Any], dict[str, Any]] = {
    State: {
        "job": (job_to, job_from), "incomplete": _EVENTS, "tasks": _by_name(Task), "groups": _each(Group),
        "running": _COUNTS, "done": _COUNTS, "over": _COUNTS,
        "budgets": _by_unit(Budget), "reached": _by_unit(Reached), "incidents": _by_unit(Incident),
        "scaling": _by_name(Scaling),
        "strays": _PAIRS, "shards": _SHARDS, "deadlines": _TIMES,
        "unsettled": None, "clock": None,
    },
    Task: {"past": _each(Past)},
    Incident: {"unit": (lambda unit: unit.text, unit_from)},
    Group: {"granted": _COUNTS, "whole": _COUNTS, "single": _COUNTS},
}  # fmt: skip
