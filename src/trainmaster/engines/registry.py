"""The list of engines: one line each. Another package adds an engine by an entry point of the group `trainmaster.engines`, which names an
`Engine` under the engine's own name.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainmaster import plugins
from trainmaster.core.errors import BadInput
from trainmaster.engines.contract import Engine

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DEFAULT = "local"
BUILT_IN = {  # name -> the package whose ENGINE it is
    "local": "trainmaster.engines.local",
    "yarn": "trainmaster.engines.yarn",
    "kubernetes": "trainmaster.engines.kubernetes",
    "spark": "trainmaster.engines.spark",
}


@functools.cache
def engine(name: str, place: str = "") -> Engine:
    """Return the engine of this name. Raises BadInput where there is none, or its package cannot be loaded.

    `place`: where it was named, if not by `--engine`.
    """
    if name in BUILT_IN:
        built_in: Engine = import_module(BUILT_IN[name]).ENGINE
        return built_in
    if (point := entry_point(name)) is not None:
        return _added(point)
    raise BadInput(
        f"there is no engine {name!r}", place=place or f"--engine {name}", mend=f"engines: {', '.join(names())}", anchor="unknown-engine"
    )  # fmt: skip


def client_side(name: str) -> Any:
    """Return an engine's client side, `OnThisMachine` or `OnCluster` as its capabilities say. Raises BadInput where there is none."""
    described = engine(name)
    try:
        return described.load("client_side")()
    except (AttributeError, ImportError, TypeError) as error:
        if (point := entry_point(name)) is None:
            raise
        raise plugins.failed(point, plugins.words(error)) from error


def _added(point: EntryPoint) -> Engine:
    """Return the engine that another package adds. Raises BadInput where its entry point does not lead to one."""
    added = plugins.load(point)
    if not isinstance(added, Engine):
        raise plugins.failed(point, f"{point.value} is of the type {type(added).__name__}, and must be an Engine")
    if added.name != point.name:
        raise plugins.failed(point, f"its entry point is named {point.name}, its Engine {added.name}")
    return added


def entry_point(name: str) -> EntryPoint | None:
    """Return the entry point by which another package adds the engine of this name; None where there is none, or the engine is built in."""
    return None if name in BUILT_IN else plugins.entry_point(plugins.ENGINES, name)


def is_on_this_machine(name: str) -> bool:
    """Tell whether the engine's containers are processes of the submitter's machine."""
    return engine(name).capabilities.on_this_machine


def is_mount(url: str, name: str) -> bool:
    """Tell whether a URL of a job, or a path, is in the engine's containers, where this machine cannot look."""
    scheme, separator, _ = url.partition("://")
    return engine(name).capabilities.mounts and (not separator or scheme.lower() in ("file", "local"))


def goes_with_cluster(storage: str, name: str) -> bool:
    """Tell whether a job's storage is among the objects that the engine's cluster has of the job, and removes with it."""
    scheme = engine(name).capabilities.own_storage
    return bool(scheme) and storage.startswith(scheme)


def names() -> list[str]:
    """Return the names of all engines, those of other packages last."""
    return [*BUILT_IN, *sorted(plugins.names(plugins.ENGINES) - {*BUILT_IN})]


def usable() -> Iterator[Engine]:
    """Yield all engines except those of packages that cannot be used: `tm doctor` names these."""
    for name in names():
        with contextlib.suppress(BadInput):
            yield engine(name)


def configured() -> list[str]:
    """Return the engines whose clusters this machine is configured for."""
    return [engine.name for engine in usable() if engine.is_configured and engine.load("is_configured")()]
