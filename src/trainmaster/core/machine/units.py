"""Units: tasks that restart together, and the tasks that share one budget of restarts.

A unit is a group (its members of scope `group`), one task, or a role (whose tasks restart alone and share a budget). A user may give a role
any name, `group` and `role` too, so the text alone does not identify a unit: it has a kind. As text, in events and snapshots, a group
is `group:N`, a role `role:NAME`, and a task its key, `worker:0`; a key that could be read as one of the others is written `task:KEY`.
"""

from __future__ import annotations

from typing import NamedTuple

GROUP, ROLE, TASK = "group", "role", "task"


class Unit(NamedTuple):
    """A unit. `name`: the number of a group, the name of a role, the key of a task."""

    kind: str
    name: str

    @property
    def text(self) -> str:
        """Return the unit as events have it; `unit_from` reads it."""
        ambiguous = self.name.partition(":")[0] in (GROUP, ROLE)
        return self.name if self.kind == TASK and not ambiguous else f"{self.kind}:{self.name}"


def unit_from(text: str) -> Unit:
    """Return the unit that `text` names. Keys of tasks have one colon, so `task:` with another colon is not a key of a role `task`."""
    kind, _, name = text.partition(":")
    if kind in (GROUP, ROLE) or (kind == TASK and ":" in name):
        return Unit(kind, name)
    return Unit(TASK, text)
