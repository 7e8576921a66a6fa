"""A framework of another package: its faults are named as its own, where it is loaded and where it is used."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any

from trainmaster import plugins
from trainmaster.core.machine.formation import Formation
from trainmaster.core.spec.job import Job, Role
from trainmaster.frameworks.contract import Placement

_FUNCTIONS = {"ports": ("role", "job"), "environment": ("formation", "task")}


class Added:
    """The framework of an entry point. Raises PluginFailed where it has not the shape of one, or fails."""

    def __init__(self, point: EntryPoint) -> None:
        self._point, self._framework = point, plugins.load(point)
        for name, parameters in _FUNCTIONS.items():
            function = getattr(self._framework, name, None)
            if not callable(function):
                raise plugins.failed(point, f"{point.value} has no function {name}")
            try:
                inspect.signature(function).bind(*parameters)
            except TypeError:
                must = f"{name}({', '.join(parameters)})"
                raise plugins.failed(point, f"the function {name} must take two parameters: {must}") from None

    def ports(self, role: Role, job: Job) -> Sequence[str]:
        names = self._call("ports", role, job)
        if isinstance(names, str) or not isinstance(names, Sequence) or not _are_texts(names):
            raise plugins.failed(self._point, f"ports returned {names!r}, and must return a list of names")
        return names

    def environment(self, formation: Formation, task: str) -> Placement:
        placement = self._call("environment", formation, task)
        if not isinstance(placement, Placement):
            raise plugins.failed(self._point, f"environment returned {placement!r}, and must return a Placement")
        for table in (placement.env, *placement.copies, placement.paths, placement.defaults):
            if not isinstance(table, Mapping) or not _are_texts([*table, *table.values()]):
                raise plugins.failed(self._point, f"environment returned {table!r}, and variables must be text")
        if not isinstance(placement.files, Mapping) or not all(map(_is_text_file, placement.files.values())):
            raise plugins.failed(
                self._point, f"environment returned files {placement.files!r}, and each must be bytes of UTF-8"
            )
        if not isinstance(placement.store, str):
            raise plugins.failed(self._point, f"environment returned store {placement.store!r}, and it must be text")
        if (returned := len(placement.copies)) not in (1, count := formation.by_task[task].copies):
            raise plugins.failed(self._point, f"environment returned variables of {returned} copies, not of {count}")
        return placement

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._framework, name)(*arguments)
        except Exception as error:  # code of somebody else's may raise anything
            raise plugins.failed(self._point, f"{name} raised {plugins.words(error)}") from error


def _is_text_file(content: object) -> bool:
    try:
        return isinstance(content, bytes) and content.decode() is not None
    except UnicodeDecodeError:
        return False


def _are_texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)
