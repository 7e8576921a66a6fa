"""Hints to the user out of what was measured: resources that a job does not use, and tasks that hold it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from trainmaster.core.metrics import Series


@attrs.frozen
class Hint:
    """One hint: what was seen, with figures, and the key of the job file to change."""

    kind: str
    text: str
    tasks: Sequence[str] = ()


def hints(status: Mapping[str, Any], job: Mapping[str, Any], series: Sequence[Series]) -> list[Hint]:
    """Return the hints for a job, as its status, its description and its samples give them."""
    return []
