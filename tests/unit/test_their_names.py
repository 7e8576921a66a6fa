"""The public names of the systems that users come from, as `docs/names` lists them, are in our alias packages."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainmaster

ROOT = Path(__file__).parents[2]
ALIASES = Path(trainmaster.__file__).parent
TABLES = sorted((ROOT / "docs" / "names").glob("*.py"))

# Prints for each name, as "module name", its parameters (null: it has none), or the name of the error where it cannot be had.
PROGRAM = """
import importlib, inspect, json, re, sys

def parameters(module, name):
    try:
        value = owner = importlib.import_module(module)
        for part in name.split("."):
            owner, value = value, getattr(value, part, None)
            if value is None and not (inspect.isclass(owner) and re.search(rf"self\\.{part}\\b", inspect.getsource(owner))):
                getattr(owner, part)
    except (ImportError, AttributeError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        return f"{type(error).__name__} {missing or ''}"
    return list(inspect.signature(value).parameters) if callable(value) and not isinstance(value, type(importlib)) else None

names = json.load(sys.stdin)
print(json.dumps({f"{module} {name}": parameters(module, name) for module, name in names}))
"""


@functools.cache
def names_of(table: Path) -> dict[str, dict[str, str]]:
    spec = importlib.util.spec_from_file_location(table.stem, table)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names: dict[str, dict[str, str]] = module.NAMES
    return names


@functools.cache
def present(table: Path) -> dict[str, Any]:
    """Return what a program finds that has the aliases on its path, and pyspark behind it."""
    pyspark = Path(sys.prefix).glob("spark-3*/lib/python3*/site-packages")
    path = [*ALIASES.glob("*/alias"), *pyspark]
    names = [(module, name.partition("(")[0]) for module, known in names_of(table).items() for name in known]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path += {list(map(str, path))}\n{PROGRAM}"], input=json.dumps(names), text=True,
        capture_output=True, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("table", "module"), [(table, module) for table in TABLES for module in names_of(table)], ids=lambda part: getattr(part, "stem", part)
)  # fmt: skip
def test_the_alias_has_the_names_that_the_table_says(table: Path, module: str) -> None:
    for name, status in names_of(table)[module].items():
        bare, _, arguments = name.partition("(")
        value = present(table)[f"{module} {bare}"]
        kind, _, reason = status.partition(": ")
        assert kind in ("same", "differs", "not here"), name
        assert bool(reason) == (kind != "same"), name
        if isinstance(value, str) and value.startswith("ModuleNotFoundError"):
            package = value.split()[1].partition(".")[0]
            if package not in {known.partition(".")[0] for known in names_of(table)}:
                continue  # a framework that is not installed leaves its module out
        assert isinstance(value, str) == (kind == "not here"), f"{name}: {value}"
        if kind == "not here" or "(" not in name:
            continue
        own = [known for known in value if known != "self"]
        original = [known.strip() for known in arguments.rstrip(")").split(",") if known.strip()]
        assert own[: len(original)] == original, name
