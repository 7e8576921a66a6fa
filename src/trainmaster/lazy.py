"""Load modules that a library imports for a rare case only when one of their attributes is first used.

attrs builds twenty classes of validators, and imports `inspect` (which imports ast and dis) for signatures. asyncio imports TLS. websockets
imports `importlib.metadata` (with email, zipfile and csv) to know its version while it is being developed, and `urllib.request` (with
http.client) to find a proxy. protobuf imports the messages written in Python next to those in C. `subprocess` imports `locale`, `shutil`
what unpacks, and `traceback` and `linecache` what shows source text. Together they are a fifth of what is imported before the first program
starts. `importlib.util.LazyLoader` would not do: until Python 3.12 the very statement `import` loads what it made lazy.
"""

from __future__ import annotations

import sys
import urllib  # noqa: F401  an empty package, which must be loaded before its lazy modules
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

SELDOM = (
    "attr.validators", "attrs.validators", "inspect", "ssl", "asyncio.sslproto", "importlib.metadata", "urllib.request",
    "google.protobuf.internal.python_message", "bz2", "lzma", "locale", "textwrap", "tokenize", "copy",
)  # fmt: skip
_READ_OF_ALL = ("__file__", "__warningregistry__")  # by code that goes through all modules and uses none


def lazily(names: Iterable[str] = SELDOM) -> None:
    """Put off loading these modules from their import to the first use of an attribute. Those that are loaded already stay as they are."""
    for name in names:
        if name not in sys.modules:
            sys.modules[name] = _placeholder(name)


def _placeholder(name: str) -> ModuleType:
    module = ModuleType(name)
    package, _, last = name.rpartition(".")
    if package in sys.modules:  # `import` does so for a module that it loads, but not for one that is loaded already
        setattr(sys.modules[package], last, module)

    def load(attribute: str) -> Any:
        if attribute in _READ_OF_ALL:
            raise AttributeError(attribute)
        if sys.modules.get(name) is module:
            del sys.modules[name]
            vars(module).update(vars(import_module(name)))
            del module.__getattr__
        return getattr(import_module(name), attribute)  # which waits for another thread that is loading it

    vars(module)["__getattr__"] = load  # PEP 562
    return module
