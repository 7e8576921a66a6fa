"""The orders of a master to its agents, as messages: the verbs, and the fields of each.

`ORDERS` is the table that the master, its agents and the documents share. Master and agent may be of different versions, so an agent
ignores fields that it does not know, and takes one that was left out, where it may be, as empty. An order without a required field, or
with one of another shape, is a fault of ours: `order_fields` raises BadOrder, which names all that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

from trainmaster.core.machine.fields import wrong_fields

# When a program's outputs are committed in parts (the field `parts` of `start`): when it asks, or also when it is stopped.
WHEN_ASKED, WHEN_STOPPED = "asked", "stopped"
HEAD = frozenset({"type", "epoch", "attempt", "verb", "id"})  # the fields of each order

# verb -> name -> shape, as in the table of events.
ORDERS: Mapping[str, Mapping[str, str]] = {
    "prepare": {
        "workdir": "text", "cwd": "text?", "archive": "text or none?", "archives": "list?", "cache": "list?", "env": "map?",
        "ports": "map?", "inputs": "map?", "outputs": "map?", "prepare": "text, list or none?", "stop": "map?", "checkpoint": "map?",
    },
    "start": {
        "command": "text or list", "env": "map?", "defaults": "map?", "threads": "whole?", "copies": "list?", "files": "map?",
        "contents": "map?", "stop": "map?", "memory": "whole or none?", "stall": "seconds or none?", "warm": "map?",
        "feeds": "map?", "parts": "text?",
    },
    # To a spare of a gang: make a template for the program that it may be ordered to start. `changing`: the variables of a generation.
    "warm-up": {
        "workdir": "text", "cwd": "text?", "archive": "text or none?", "archives": "list?", "cache": "list?", "env": "map?",
        "outputs": "map?", "stop": "map?", "command": "text or list", "defaults": "map?", "threads": "whole?", "changing": "list?",
        "warm": "map?",
    },
    # `over`: nothing of the job is committed any more.
    "stop": {"signal": "text?", "grace": "seconds?", "stacks": "flag?", "over": "flag?"},
    "commit": {"outputs": "map?"},
    "save": {"id": "text"},
    "warn": {"seconds": "seconds?", "reason": "text?", "figures": "map?", "why": "text?", "signal": "text or none?"},
    "peer-finished": {"limit": "seconds or none?"},
    "signal": {"signal": "text?", "by": "text?"},
    "dump": {},
    "leave": {},
}  # fmt: skip
USERS_VERBS = frozenset({"signal", "dump"})  # by which users act on a running program
_EMPTY: Mapping[str, type] = {"text?": str, "map?": dict, "list?": list}  # of a field that is left out; else it is None


class BadOrder(ValueError):
    """An order that does not have the fields of its verb."""


def order_message(epoch: int, attempt: int, verb: str, id: str = "", **fields: Any) -> dict[str, Any]:  # noqa: A002  the field's name
    """Return an order as it is sent."""
    return {"type": "order", "epoch": epoch, "attempt": attempt, "verb": verb, "id": id, **fields}


def order_fields(order: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields of an order's verb, empty where they were left out. Raises BadOrder, and KeyError where the verb is unknown."""
    shapes = ORDERS[order["verb"]]
    if wrong := wrong_fields(shapes, order):
        raise BadOrder(f"a malformed order to {order['verb']}: {', '.join(wrong)}")
    return {name: order[name] if name in order else _EMPTY.get(shape, NoneType)() for name, shape in shapes.items()}


def order_faults(order: Mapping[str, Any]) -> list[str]:
    """Return the mistakes in the fields of one of our orders: missing, of another shape, or unknown to its verb."""
    shapes = ORDERS[order["verb"]]
    unknown = [f"{name} is unknown" for name in order if name not in shapes and name not in HEAD]
    return [f"{order['verb']}: {text}" for text in (*unknown, *wrong_fields(shapes, order))]
