"""A framework's contract: the ports that each task needs, and how a formed generation is described to the programs.

A framework is a module with these two functions and a docstring for its users, to which the reference adds the rows of its table VARIABLES,
where it has one. It is a plain mapping: it opens nothing and starts nothing. The variables that the programs of every framework see are
added by `frameworks.placement` from `frameworks.variables`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from trainmaster.core.machine.formation import Formation
from trainmaster.core.plain import Plain
from trainmaster.core.spec.job import Job, Role


@attrs.frozen(slots=True, eq=False, repr=False)
class Placement(Plain):
    """The environment of one task's programs.

    `env` is for every copy; `copies` has the other variables of each copy, in order of LOCAL_RANK (one entry a copy). `defaults` are set
    only where the program's environment does not have them. `files` are written by the agent into a directory of the attempt, and `paths`
    are variables that name such a file: variable -> file name. `store` is where the first program serves the others (host:port), which
    begin a moment later where that saves them a wait; "" for the first one, and where there is none.
    """

    env: dict[str, str] = attrs.field(factory=dict)
    copies: list[dict[str, str]] = attrs.field(factory=lambda: [{}])
    files: dict[str, bytes] = attrs.field(factory=dict)
    paths: dict[str, str] = attrs.field(factory=dict)
    defaults: dict[str, str] = attrs.field(factory=dict)
    store: str = ""


class Framework(Protocol):
    """A framework's module."""

    __doc__: str | None

    def ports(self, role: Role, job: Job) -> Sequence[str]:
        """Return the names of the ports that each task of `role` reserves for the framework, beside those that the role declares."""
        ...

    def environment(self, formation: Formation, task: str) -> Placement:
        """Return what the programs of `task` get besides the variables that all frameworks have."""
        ...


def texts(values: Mapping[str, object]) -> dict[str, str]:
    """Return the values as an environment has them."""
    return {name: str(value) for name, value in values.items()}
