"""An sdist has all parts of the package or is not built, and a release is made, checked and described by `tools/release`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conformance.engines import LIMIT

from trainmaster import __version__
from trainmaster.clusters.hadoop.jars import jars

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = "src/trainmaster/web/pages/static/vendor"

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("versions")]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clean clone of the present commit."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True, timeout=LIMIT)
    return clone


def test_an_sdist_without_all_parts_is_not_built(clone: Path, tmp_path: Path) -> None:
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\nexit 1\n")
    npm.chmod(0o755)
    done = subprocess.run(
        [ROOT / ".venv/bin/uv", "build", "--out-dir", tmp_path / "dist", clone],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "the scripts of pages: install Node.js" in done.stderr
    assert "the classes for Hadoop's formats: make java" in done.stderr
    assert not [*tmp_path.glob("dist/trainmaster*")]


@pytest.mark.xdist_group("hadoop")
def test_a_release_is_made(clone: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    subprocess.run(["make", ".venv/.release"], cwd=ROOT, env=environ, check=True, timeout=LIMIT)
    (clone / ".venv").symlink_to(ROOT / ".venv")
    (clone / ".git" / "info" / "exclude").write_text(".venv\n")
    shutil.copytree(ROOT / SCRIPTS, clone / SCRIPTS)
    environ["PYTHONPATH"] = str(clone / "src")
    subprocess.run(
        [ROOT / ".venv/bin/python", "tools/formats", jars()], cwd=clone, env=environ, check=True, timeout=LIMIT
    )
    del environ["PYTHONPATH"]
    done = subprocess.run(
        ["tools/release"], cwd=clone, env=environ, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = {line.split()[1] for line in (clone / "dist" / "SHA256SUMS").read_text().splitlines()}
    stem = f"trainmaster-{__version__}"
    assert names == {f"{stem}-py3-none-any.whl", f"{stem}.tar.gz", f"{stem}.cdx.json"}
    described = json.loads((clone / "dist" / f"{stem}.cdx.json").read_text())
    assert described["metadata"]["component"]["version"] == __version__
    assert {"attrs", "click", "PyYAML"} <= {component["name"] for component in described["components"]}
    assert str(clone) not in json.dumps(described)
