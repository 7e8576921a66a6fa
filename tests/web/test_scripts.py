"""The scripts that pages load: where they come from, and how much a reader downloads."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tarfile
from pathlib import Path

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


RENDER = """
import sys; sys.path.insert(0, sys.argv[1])
import markupsafe
from trainmaster.web.contract import Reader
from trainmaster.web.pages.render import STATIC, render
assert markupsafe._escape_inner.__module__ == "markupsafe._native"
job = {"id": "digits-1", "name": "digits"}
print(render("error.html", root="", home="", job=job, section="", user="", reader=Reader(), text="<b>", mend=""))
print(*sorted(path.name for path in (STATIC / "vendor").iterdir()))
"""


@pytest.mark.full
def test_a_container_has_templates_scripts_and_what_renders_them(tmp_path: Path) -> None:
    with tarfile.open(runtime_archive.archive(tmp_path / "archives")) as archive:
        archive.extractall(tmp_path / "runtime", filter="data")
    lib = tmp_path / "runtime" / "lib"
    command = [sys.executable, "-I", "-S", "-c", RENDER, str(lib)]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert '<p class="note failed">&lt;b&gt;</p>' in rendered
    assert rendered.splitlines()[-1].split() == sorted(path.name for path in browser.VENDOR.iterdir())
