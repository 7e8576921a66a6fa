"""The actions that `plan` has the master carry out next: plain data, each safe to carry out twice."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from trainmaster.core.plain import Plain


@attrs.frozen(slots=True, eq=False, repr=False)
class Ask(Plain):
    """Have the engine grant a container to `task`; `serial` numbers the asks of a task."""

    task: str
    serial: int


@attrs.frozen(slots=True, eq=False, repr=False)
class Release(Plain):
    """Give the container (or the pending ask) of (task, serial) back to the engine."""

    task: str
    serial: int


@attrs.frozen(slots=True, eq=False, repr=False)
class Order(Plain):
    """Send an order to the agent of (task, serial) about one attempt. Idempotent by (attempt, verb, id)."""

    task: str
    serial: int
    attempt: int
    verb: str  # one of `orders.ORDERS`
    id: str = ""


@attrs.frozen(slots=True, eq=False, repr=False)
class CommitFor(Plain):
    """Commit the uploaded output of an attempt in place of its agent, which is gone."""

    task: str
    attempt: int


@attrs.frozen(slots=True, eq=False, repr=False)
class Step(Plain):
    """Do one step of the job's beginning or end: `list-inputs`, `prune-saves:SAVE`, or one of `plan.CLOSING`."""

    name: str


Action: TypeAlias = Ask | Release | Order | CommitFor | Step
