"""The order in which roles start.

`after` is a graph over roles with two kinds of edges. A role that waits for another to be *running* starts with it, a moment later: both
belong to one stage, whose tasks form one generation. A role that waits for another to have *succeeded* belongs to a later stage. Roles stop
in the opposite order.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainmaster.core.spec.job import SUCCEEDED, Role


def stages(roles: Mapping[str, Role]) -> dict[str, int]:
    """Return the stage of each role: 0, or one above the last role that must succeed first. Without gaps; `after` must have no cycle."""
    stage: dict[str, int] = {}
    for name in start_order(roles):
        waits = roles[name].after.items()
        stage[name] = max((stage[other] + (condition == SUCCEEDED) for other, condition in waits), default=0)
    return stage


def start_order(roles: Mapping[str, Role]) -> list[str]:
    """Return all roles, each behind those it comes after, otherwise in the order of `roles`."""
    order: dict[str, None] = {}

    def place(name: str) -> None:
        if name not in order:
            for other in roles[name].after:
                place(other)
            order[name] = None

    for name in roles:
        place(name)
    return list(order)


def cycle(after: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a cycle in "role -> those it comes after", beginning and ending with the same role; [] where there is none."""
    settled: set[str] = set()
    path: list[str] = []

    def walk(name: str) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in settled:
            return []
        path.append(name)
        for other in after.get(name, {}):
            if circle := walk(other):
                return circle
        settled.add(path.pop())
        return []

    return next((circle for name in after if (circle := walk(name))), [])
