"""Prints which of the named modules of one package cannot be the first that a process imports, and why.

Where no module imports another in a circle, the order of imports makes no difference. So all modules are imported in one process, which
notes who imports whom while it is being imported; then each module of a circle is imported in a process of its own.
"""

import builtins
import importlib
import os
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from typing import Any

# What many modules import is there before each process begins.
import cryptography.x509  # noqa: F401
import google.protobuf  # noqa: F401
import yaml  # noqa: F401

PACKAGE = sys.argv[1].partition(".")[0]
imports: dict[str, set[str]] = {}  # a module -> those that must be there, at least in part, for its own import


def above(module: str) -> Iterator[str]:
    """A module and the packages that it is in."""
    while module:
        yield module
        module = module.rpartition(".")[0]


def note(names: list[str]) -> None:
    """Note that these are imported for the module that is being imported: the innermost frame of a module's body is of it."""
    wanted = [name for name in names if name.partition(".")[0] == PACKAGE and name in sys.modules]
    frame = sys._getframe(2) if wanted else None
    while frame and (frame.f_code.co_name != "<module>" or frame.f_globals.get("__name__") not in imports):
        frame = frame.f_back
    if frame:
        imports[frame.f_globals["__name__"]].update(*map(above, wanted))


def noting_import(name: str, variables: Any = None, names: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    try:
        return plain_import(name, variables, names, fromlist, level)
    finally:
        package = resolve_name("." * level + name, variables["__package__"]) if level else name
        note([package, *(f"{package}.{part}" for part in fromlist or ())])


def noting_import_module(name: str, package: str | None = None) -> Any:
    try:
        return plain_import_module(name, package)
    finally:
        note([resolve_name(name, package)])


def reached(module: str) -> set[str]:
    """All that a module imports, directly or not."""
    found: set[str] = set()
    ahead = [module]
    while ahead:
        more = imports.get(ahead.pop(), set()) - found  # one that is not listed lacks its framework
        found |= more
        ahead.extend(more)
    return found


def import_first(module: str) -> None:
    """Import it in a process that has nothing of the package, and print what goes wrong."""
    if not (child := os.fork()):
        try:
            __import__(module)
        except BaseException as error:  # noqa: BLE001
            print(f"{module}: {error}", flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(f"{module}: its process was killed", flush=True)


def modules_in_circles(modules: list[str]) -> list[str]:
    for module in modules:
        imports[module] = {*above(module)} - {module}
    for module in modules:
        plain_import(module)
    for module in modules:
        imports[module].discard(module)
    return [module for module in modules if module in reached(module)]


if __name__ == "__main__":
    plain_import, plain_import_module = builtins.__import__, importlib.import_module
    ours, theirs = os.pipe()
    if not os.fork():
        builtins.__import__, importlib.import_module = noting_import, noting_import_module
        os.write(theirs, " ".join(modules_in_circles(sys.argv[1:])).encode())
        os._exit(0)
    os.close(theirs)
    with open(ours) as pipe:
        circular = pipe.read().split()
    for module in circular:
        import_first(module)
    if os.wait()[1]:
        print("a module cannot be imported, whichever is first", flush=True)
