"""What tests of the event log share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def crashed_writers_are_closed() -> Iterator[None]:
    """Close the segments that writers which "crashed" in a test have left open, as the end of their process would."""
    yield
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".jsonl"):
                os.close(descriptor)
