"""Engines and frameworks that other packages add: each is an entry point of its group, under its own name.

A package that is installed here may be missing, broken or of another shape. Then one error names the package and the entry point, wherever
that is noticed: at submit, or in a master on a cluster, to which the runtime archive brings the package's files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainmaster.core.errors import BadInput

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENGINES, FRAMEWORKS = "trainmaster.engines", "trainmaster.frameworks"
_KINDS = {ENGINES: "engine", FRAMEWORKS: "framework"}
_METADATA = ("entry_points.txt", "METADATA")  # by which the package is found, and named


class PluginFailed(BadInput):
    """An engine or a framework of another package cannot be used."""


def names(group: str) -> set[str]:
    """Return the names of all that packages add to the group."""
    from importlib.metadata import entry_points  # 20 ms, which a job without plug-ins does not wait for

    return {point.name for point in entry_points(group=group)}


def entry_point(group: str, name: str) -> EntryPoint | None:
    """Return the entry point by which a package adds this name to the group; None where none does."""
    from importlib.metadata import entry_points

    return next(iter(entry_points(group=group, name=name)), None)


def load(point: EntryPoint) -> Any:
    """Return what the entry point leads to. Raises PluginFailed where its package does not import."""
    try:
        return point.load()
    except Exception as error:  # importing a package of somebody else's may raise anything
        raise failed(point, words(error)) from error


def words(error: Exception) -> str:
    """Return an error of a package in words."""
    return f"{type(error).__name__}: {error}"


def failed(point: EntryPoint, why: str) -> PluginFailed:
    """Return the error for what the entry point leads to."""
    kind = _KINDS[point.group]
    return PluginFailed(
        f"the {kind} {point.name} cannot be used: {why}", place=f"package {package(point)}, entry point {point.value}",
        mend="correct or remove this package", anchor=f"{kind}-package",
    )  # fmt: skip


def package(point: EntryPoint) -> str:
    """Return the name and the version of the entry point's package."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.module


def files(point: EntryPoint | None) -> Iterator[tuple[str, str]]:
    """Yield (name below the path of modules, path) of the files by which another machine has the entry point too."""
    if point is None or point.dist is None:
        return
    import importlib.util

    top = point.module.partition(".")[0]
    spec = importlib.util.find_spec(top)  # of an editable installation no metadata list the package's files
    if spec is not None and spec.submodule_search_locations:
        for folder in spec.submodule_search_locations:
            yield from package_files(top, folder)
    elif spec is not None and spec.origin:
        yield os.path.basename(spec.origin), spec.origin
    for file in point.dist.files or ():
        if file.name in _METADATA:
            yield str(file), str(file.locate())


def package_files(package: str, place: str, without: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield the files of an installed package, except some of its own packages."""
    for folder, folders, names in os.walk(place):
        folders[:] = [name for name in folders if name != "__pycache__" and (folder != place or name not in without)]
        for name in names:
            path = os.path.join(folder, name)
            yield f"{package}{path.removeprefix(place)}", path
