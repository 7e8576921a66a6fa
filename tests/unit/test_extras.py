"""The extras of the package bring what their engines need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from trainmaster.engines.runtime_archive import DISTRIBUTIONS

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def packages(extra: str) -> set[str]:
    """Return the names of the packages that an extra installs, also through other extras of ours."""
    names: set[str] = set()
    for requirement in EXTRAS[extra]:
        if ours := re.match(r"trainmaster\[(.*)\]", requirement):
            names.update(*(packages(other) for other in ours[1].split(",")))
        else:
            names.add(re.split(r"[^\w.-]", requirement)[0])
    return names


def test_each_extra_of_users_has_one_line_in_the_page_about_installing() -> None:
    page = (Path(__file__).parents[2] / "docs" / "install.md").read_text()
    rows = re.findall(r"^\| .* \| `pip install '\.\[(\w+)\]'`", page, re.MULTILINE)
    assert sorted(rows) == sorted(EXTRAS.keys() - {"audit", "dev", "docs", "examples", "release"})


def test_an_engine_s_extra_brings_what_its_containers_need() -> None:
    optional = {name for extra in EXTRAS for name in packages(extra)}
    for engine in ("yarn", "spark"):
        assert optional & set(DISTRIBUTIONS) <= packages(engine)
