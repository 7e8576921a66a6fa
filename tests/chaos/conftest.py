"""A machine for the faults to happen on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.engines import Local
from conformance.netns_engine import netns

__all__ = ["netns"]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Local]:
    folder = tmp_path / "place"
    folder.mkdir()
    made = Local(folder)
    try:
        yield made
    finally:
        made.close()
