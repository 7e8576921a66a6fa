"""Frameworks by name: how a program learns of its peers.

The module `frameworks/<name>.py` is the framework `<name>`; another package adds one as an entry point of the group
`trainmaster.frameworks`, which is a module (or an object) that satisfies `contract.Framework`. Nothing is imported
until it is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, cast

from trainmaster import plugins
from trainmaster.core.errors import NotFound

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from trainmaster.core.machine.formation import Formation
    from trainmaster.core.spec.job import Job, Role
    from trainmaster.frameworks.contract import Framework, Placement

_NOT_FRAMEWORKS = frozenset({"added", "contract", "launchers", "variables"})


def names() -> list[str]:
    """List the frameworks that exist."""
    return sorted(built_in() | plugins.names(plugins.FRAMEWORKS))


@functools.cache
def built_in() -> frozenset[str]:
    """Return the names of those that are part of Trainmaster."""
    return frozenset(module.name for module in iter_modules(__path__)) - _NOT_FRAMEWORKS


def load(name: str) -> Framework:
    """Return the framework `name`. Raises `NotFound` with the nearest name, `PluginFailed` where another package's cannot be used."""
    if name in built_in():
        return cast("Framework", import_module(f"{__name__}.{name}"))
    return _added(name)


def entry_point(name: str) -> EntryPoint | None:
    """Return the entry point by which another package adds the framework `name`; None where there is none, or it is one of ours."""
    return None if name in built_in() else plugins.entry_point(plugins.FRAMEWORKS, name)


def ports(job: Job, role: Role) -> list[str]:
    """Return the names of all ports that each task of `role` reserves: those that the role declares, then the framework's own."""
    return list(dict.fromkeys([*role.ports, *load(job.framework).ports(role, job)]))


def placement(name: str, formation: Formation, task: str) -> Placement:
    """Return what the framework `name`, and all frameworks alike, tell the programs of `task`."""
    from attrs import evolve

    from trainmaster.frameworks import variables

    own = load(name).environment(formation, task)
    common = variables.environment(formation, task)
    count = formation.by_task[task].copies
    copies = own.copies if len(own.copies) == count else own.copies * count
    return evolve(
        own,
        env=common.env | own.env,
        copies=[shared | special for shared, special in zip(common.copies, copies, strict=True)],
        files=common.files | own.files,
        paths=common.paths | own.paths,
        defaults=common.defaults | own.defaults,
    )


@functools.cache  # a master of many tasks asks for it again and again
def _added(name: str) -> Framework:
    from trainmaster.frameworks.added import Added

    if (point := entry_point(name)) is not None:
        return Added(point)
    raise NotFound(
        f"there is no framework {name!r}", place=f"framework: {name}", mend=_nearest(name, names()), anchor="unknown-framework"
    )  # fmt: skip


def _nearest(name: str, known: Iterable[str]) -> str:
    from trainmaster.core.nearest import meant

    known = sorted(known)
    near = meant(name, known, {"torch": "pytorch", "tf": "tensorflow", "keras": "tensorflow", "none": "generic"})
    return f"did you mean {near}?" if near else f"the frameworks are: {', '.join(known)}"
