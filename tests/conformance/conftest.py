"""Each test that takes `engine` is there once for each engine that has what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.engines import ENGINES, Engine
from hadoop import revived

ON_HADOOP = ("yarn",)
MARKS = {"yarn": pytest.mark.xdist_group("hadoop")}


def _needs(of: pytest.Metafunc | pytest.Item) -> list[str]:
    found = of.definition if isinstance(of, pytest.Metafunc) else of
    return [name for mark in found.iter_markers("needs") for name in mark.args]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" not in metafunc.fixturenames:
        return
    brief = metafunc.definition.get_closest_marker("brief") is not None
    rows = []
    for name, row in ENGINES.items():
        if not any(need in row.lacks for need in _needs(metafunc)):
            marks = [MARKS[name]] if name in MARKS else []
            rows.append(pytest.param(name, marks=marks if brief or not marks else [*marks, pytest.mark.full]))
    metafunc.parametrize("engine", rows, indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    for name, row in ENGINES.items():
        for need in _needs(request.node):
            if need in row.lacks:  # for the end of the run: see tests/conftest.py
                request.node.user_properties.append(("not on", f"{name}: {row.lacks[need]}"))
    if request.param in ON_HADOOP:
        request.getfixturevalue("on_hadoop")
        revived(request.getfixturevalue("hadoop"))
    folder = tmp_path / "place"
    folder.mkdir()
    made = ENGINES[request.param](folder)
    try:
        yield made
    finally:
        made.close()
