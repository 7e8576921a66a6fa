"""Frameworks by name: how a program learns of its peers.

The module `frameworks/<name>.py` is the framework `<name>`; another distribution adds one as an entry point of the
group `trainmaster.frameworks`, which is a module (or an object) that satisfies `contract.Framework`. Nothing is
imported until it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, cast

from trainmaster.core.errors import BadInput, NotFound

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from trainmaster.core.machine.formation import Formation
    from trainmaster.core.spec.job import Job, Role
    from trainmaster.frameworks.contract import Framework, Placement

GROUP = "trainmaster.frameworks"
_NOT_FRAMEWORKS = frozenset({"contract", "launchers", "variables"})


def names() -> list[str]:
    """List the frameworks that exist."""
    return sorted({*_ours(), *_theirs()})


def load(name: str) -> Framework:
    """Return the framework `name`. Raises `NotFound` with the nearest name, `BadInput` where a third party's framework does not import."""
    if name in _ours():
        return cast("Framework", import_module(f"{__name__}.{name}"))
    theirs = _theirs()
    if name in theirs:
        try:
            return cast("Framework", theirs[name].load())
        except (ImportError, AttributeError) as error:
            message = f"framework {name} cannot be loaded: {error}"
            raise BadInput(message, place=f"framework: {name}", anchor="unknown-framework") from error
    raise NotFound(
        f"there is no framework {name!r}",
        place=f"framework: {name}",
        mend=_nearest(name, {*_ours(), *theirs}),
        anchor="unknown-framework",
    )


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


def _ours() -> frozenset[str]:
    return frozenset(module.name for module in iter_modules(__path__)) - _NOT_FRAMEWORKS


def _theirs() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # 20 ms, which a job with a framework of ours does not wait for

    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _nearest(name: str, known: Iterable[str]) -> str:
    from trainmaster.core.nearest import meant

    known = sorted(known)
    near = meant(name, known, {"torch": "pytorch", "tf": "tensorflow", "keras": "tensorflow", "none": "generic"})
    return f"did you mean {near}?" if near else f"the frameworks are: {', '.join(known)}"
