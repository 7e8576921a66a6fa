"""The scripts that pages load: where they come from, and how much a reader downloads."""

from __future__ import annotations

import gzip

import browser
import pytest

from trainmaster.engines import runtime_archive

pytestmark = pytest.mark.xdist_group("browser")

LIMIT = 120_000  # bytes, gzipped


def test_all_scripts_together_are_small() -> None:
    scripts = sorted(browser.STATIC.rglob("*.js"))
    assert "uPlot.iife.min.js" in [script.name for script in scripts]
    sizes = {script.name: len(gzip.compress(script.read_bytes(), mtime=0)) for script in scripts}
    assert sum(sizes.values()) <= LIMIT, sizes


def test_the_licence_of_each_package_is_beside_its_scripts() -> None:
    packages = [line.partition("@")[0] for line in (browser.VENDOR / "VERSIONS").read_text().splitlines()]
    assert packages == ["htmx.org", "uplot"]
    assert all("ermission" in (browser.VENDOR / f"{package}.LICENSE").read_text() for package in packages)


def test_containers_get_the_pages() -> None:
    names = {name for name, _ in runtime_archive.files()}
    assert {f"trainmaster/web/pages/static/vendor/{path.name}" for path in browser.VENDOR.iterdir()} <= names
