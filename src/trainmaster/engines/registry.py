"""The list of engines: one line each. Another package adds an engine by an entry point of the group `trainmaster.engines`, which names an
`Engine` under the engine's own name.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from trainmaster.core.errors import BadInput
from trainmaster.engines.contract import Engine

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DEFAULT = "local"
BUILT_IN = {  # name -> the package whose ENGINE it is
    "local": "trainmaster.engines.local",
    "yarn": "trainmaster.engines.yarn",
    "kubernetes": "trainmaster.engines.kubernetes",
}
GROUP = "trainmaster.engines"


@functools.cache
def engine(name: str, place: str = "") -> Engine:
    """Return the engine of this name. Raises BadInput where there is none, or its package cannot be loaded.

    `place`: where it was named, if not by `--engine`.
    """
    if name in BUILT_IN:
        built_in: Engine = import_module(BUILT_IN[name]).ENGINE
        return built_in
    if (point := entry_point(name)) is not None:
        try:
            added: Engine = point.load()
        except Exception as error:
            raise BadInput(
                f"the engine {name} cannot be loaded from {point.value}: {error}", place=place,
                mend="repair or uninstall the package that adds it", anchor="unknown-engine",
            ) from error  # fmt: skip
        return added
    raise BadInput(
        f"there is no engine {name!r}", place=place or f"--engine {name}", mend=f"engines: {', '.join(names())}", anchor="unknown-engine"
    )  # fmt: skip


def entry_point(name: str) -> EntryPoint | None:
    """Return the entry point by which another package adds the engine of this name; None where there is none, or the engine is built in."""
    if name in BUILT_IN:
        return None
    from importlib.metadata import entry_points

    return next(iter(entry_points(group=GROUP, name=name)), None)


def is_on_this_machine(name: str) -> bool:
    """Tell whether the engine's containers are processes of the submitter's machine."""
    return engine(name).capabilities.on_this_machine


def is_mount(url: str, name: str) -> bool:
    """Tell whether a URL of a job, or a path, is one of the engine's containers, of which this machine knows nothing."""
    scheme, separator, _ = url.partition("://")
    return engine(name).capabilities.mounts and (not separator or scheme.lower() in ("file", "local"))


def goes_with_cluster(storage: str, name: str) -> bool:
    """Tell whether a job's storage is among the objects that the engine's cluster has of the job, and removes with it."""
    scheme = engine(name).capabilities.own_storage
    return bool(scheme) and storage.startswith(scheme)


def names() -> list[str]:
    """Return the names of all engines, those of other packages last."""
    from importlib.metadata import entry_points

    return [*BUILT_IN, *sorted({point.name for point in entry_points(group=GROUP)} - {*BUILT_IN})]


def engines() -> Iterator[Engine]:
    """Yield all engines, but for those that cannot be loaded: they are in nobody's way, and `tm doctor` shows them."""
    for name in names():
        with contextlib.suppress(BadInput):
            yield engine(name)


def configured() -> list[str]:
    """Return the engines whose clusters this machine is configured for."""
    return [known.name for known in engines() if known.is_configured and known.load("is_configured")()]
