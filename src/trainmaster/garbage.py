"""Python's garbage collection in a process that holds thousands of connections.

A connection is 120 objects that live as long as its agent. To go through those of 10,000 agents takes most of a second, in which the loop
does nothing else. So later collections leave out the objects that a slow one has kept.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import Any

# Python's own thresholds: those of a short command (`cli.main`) would leave hundreds of MiB of dead requests here.
_THRESHOLDS = (700, 10, 10)
_OLDEST = 2  # the generation whose collection goes through all objects
SLOW = 0.1  # s
WHOLE_EVERY = 3600.0  # s until a collection looks again at all that was left out, for what has died since


def begin() -> None:
    """Exclude from collections what is loaded by now, which lives as long as the process, and later what a slow collection keeps."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.callbacks.append(Watch())


class Watch:
    """A callback of `gc.callbacks` that freezes what a slow collection has kept."""

    def __init__(self) -> None:
        self._began, self._left_out_since = 0.0, 0.0  # `_left_out_since` 0: nothing is left out

    def __call__(self, phase: str, details: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if details["generation"] != _OLDEST:
            return
        if phase == "start":
            self._began = now
            if self._left_out_since and now - self._left_out_since > WHOLE_EVERY:
                gc.unfreeze()
                self._left_out_since = 0.0
        elif now - self._began > SLOW:
            gc.freeze()
            self._left_out_since = self._left_out_since or now
