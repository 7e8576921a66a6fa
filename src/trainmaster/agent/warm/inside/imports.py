"""Name the imports of a program from its libraries, by reading its files and those of its own modules that they import.

A statement that surely runs when the program begins counts: at the top of a file, in a class, in `try`. One in a function, or below `if`,
counts only where the running program has mapped a file of that package, as each compiled package shows. The statements are in the order in
which the program runs them. A module on the program's own path belongs to the program: it is read here, and never imported by a template.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder


def find(form: str, target: str, folder: str, mapped: Sequence[str]) -> list[bytes]:
    """Return why the program must start cold (b"": it need not), the number of packages of its own, and the statements."""
    program = _Program(folder, mapped)
    if form == "module":
        program.enter(target, True, main=True)
    else:
        program.read(target, "", True, main=True)
    if program.uses("tensorflow"):
        return [b"it uses TensorFlow", b"0"]
    statements = list(program.statements)
    if program.uses("torch"):
        statements.append("import torch._dynamo")  # making an optimizer imports it, with hundreds of modules
    return [b"", str(len(program.packages)).encode(), *[statement.encode() for statement in statements]]


class _Program:
    def __init__(self, folder: str, mapped: Sequence[str]) -> None:
        self._own = [folder] + [entry for entry in sys.path if not _is_library(entry)]
        self._libraries = [entry for entry in sys.path if _is_library(entry)]
        self._mapped = mapped
        self._files: set[tuple[str, bool]] = set()
        self.statements: dict[str, None] = {}  # in order
        self.packages: set[str] = set()  # those from a site-packages

    def uses(self, package: str) -> bool:
        return package in self.packages or self._is_mapped(package)

    def _is_mapped(self, package: str) -> bool:
        starts = tuple(
            os.path.join(os.path.realpath(entry), package) + end for entry in self._libraries for end in "/."
        )
        return any(path.startswith(starts) for path in self._mapped)

    def enter(self, name: str, certain: bool, main: bool = False) -> bool:
        """Read the program's own module of this dotted name, and the packages above it. Return whether it is the program's own."""
        places, parts = self._own, name.split(".")
        for depth, part in enumerate(parts):
            last = depth == len(parts) - 1
            for place in places:
                path = os.path.join(place, part)
                if os.path.isfile(path + "/__init__.py"):
                    self.read(path + "/__init__.py", ".".join(parts[: depth + 1]), certain)
                    if last and main:
                        self.read(path + "/__main__.py", name, certain, main)
                    places = [path]
                    break
                if os.path.isfile(path + ".py"):
                    self.read(path + ".py", ".".join(parts[:depth]), certain, main and last)
                    return True
            else:
                return depth > 0
        return True

    def read(self, path: str, package: str, certain: bool, main: bool = False) -> None:
        if (path, certain) in self._files or (path, True) in self._files:
            return
        self._files.add((path, certain))
        try:
            with open(path, "rb") as file:
                tree = ast.parse(file.read())
        except (OSError, SyntaxError, ValueError):
            return
        self._walk(tree.body, package, certain, main)

    def _walk(self, nodes: Sequence[ast.stmt], package: str, certain: bool, main: bool) -> None:
        for node in nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node, package, certain)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._walk(node.body, package, False, main)
            elif isinstance(node, ast.If):
                begins = main and ast.dump(node.test) == _IS_MAIN
                self._walk(node.body, package, certain and begins, main)
                self._walk(node.orelse, package, False, main)
            elif isinstance(node, (ast.For, ast.While)):
                self._walk(node.body + node.orelse, package, False, main)
            elif isinstance(node, ast.Try):
                self._walk(node.body + node.orelse + node.finalbody, package, certain, main)
                for handler in node.handlers:
                    self._walk(handler.body, package, False, main)
            elif isinstance(node, (ast.ClassDef, ast.With)):
                self._walk(node.body, package, certain, main)

    def _import(self, node: ast.Import | ast.ImportFrom, package: str, certain: bool) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if not self.enter(alias.name, certain):
                    self._add(alias.name, ast.Import([alias]), certain)
            return
        module = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if package else []
            module = ".".join(above + ([module] if module else []))
        if not module:
            return
        if self.enter(module, certain):
            for alias in node.names:
                self.enter(module + "." + alias.name, certain)
        elif not node.level and module != "__future__":
            self._add(module, node, certain)

    def _add(self, name: str, node: ast.Import | ast.ImportFrom, certain: bool) -> None:
        package = name.partition(".")[0]
        if not certain and not self._is_mapped(package):
            return
        spec = None if package in sys.builtin_module_names else PathFinder.find_spec(package, self._libraries)
        if spec is None:
            return
        places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
        if any("-packages" in place for place in places):
            self.packages.add(package)
        self.statements[ast.unparse(node)] = None


_IS_MAIN = ast.dump(ast.parse("__name__ == '__main__'", mode="eval").body)


def _is_library(path: str) -> bool:
    standard = os.path.dirname(os.__file__)
    return path == standard or path.startswith(standard + os.sep) or "-packages" in path
