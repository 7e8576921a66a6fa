"""An engine for each test, one row after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.engines import ENGINES, Engine


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    folder = tmp_path / "place"
    folder.mkdir()
    made = ENGINES[request.param](folder)
    try:
        yield made
    finally:
        made.close()
