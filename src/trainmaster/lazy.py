"""Modules that a library imports for a case that seldom comes: loaded when something of theirs is first used.

websockets, for one, imports `importlib.metadata` (and by it email, zipfile and csv) to know its version while it is being developed, and
`urllib.request` (and by it http.client) to find a proxy: together a tenth of what a master and an agent import before their first program
starts. `importlib.util.LazyLoader` would not do: until Python 3.12 the very statement `import` loads what it made lazy.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from typing import Any


def lazily(name: str) -> None:
    """Have the module `name` run when something of it is first used, instead of when it is imported; it may be loaded already."""
    spec = None if name in sys.modules else find_spec(name)
    if spec is None or spec.loader is None:
        return
    module, loader = module_from_spec(spec), spec.loader

    def load(attribute: str) -> Any:
        if "__getattr__" in vars(module):
            del module.__getattr__
            loader.exec_module(module)
        return getattr(module, attribute)

    vars(module)["__getattr__"] = load  # PEP 562
    sys.modules[name] = module
    package, _, last = name.rpartition(".")
    if package:
        setattr(sys.modules[package], last, module)  # as an import does
