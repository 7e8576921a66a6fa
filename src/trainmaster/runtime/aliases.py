"""Modules of ours under the names of other systems, by a table: `{"tensorflowonspark.TFNode": "trainmaster.spark.TFNode"}`.

An alias package has a folder and an `__init__.py`, so it is imported only where its directory is on the path. The modules in it have no
files: `serve` adds their names to those that can be imported. Each is the very module that the table names, so classes are the same under
both names, and what is pickled names ours. The packages between (`elasticai_api.common`) are made from the names.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any


def serve(table: Mapping[str, str]) -> None:
    """Have each name of the table import its module. Serving a table again changes nothing."""
    if not any(isinstance(finder, _Aliases) and finder.table is table for finder in sys.meta_path):
        sys.meta_path.append(_Aliases(table))


class _Aliases(MetaPathFinder, Loader):
    def __init__(self, table: Mapping[str, str]) -> None:
        self.table = table

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname in self.table:
            return ModuleSpec(fullname, self)
        is_package = path is not None and any(name.startswith(f"{fullname}.") for name in self.table)
        return ModuleSpec(fullname, self, is_package=True) if is_package else None

    def exec_module(self, module: ModuleType) -> None:
        for alias, name in self.table.items() if module.__name__ in self.table else ():
            if f"{alias}.".startswith(f"{module.__name__}."):  # names below it too, which nothing looks for in a module
                sys.modules[alias] = import_module(name)
