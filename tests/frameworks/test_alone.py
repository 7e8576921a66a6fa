"""Tests that load TensorFlow into their process, which ends one that loads PyTorch's Triton later: each file of `alone` has its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parent / "alone").glob("*.py"))


@pytest.mark.full
@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_file(file: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
