"""Notice that the master's loop was held up: its process was stopped, its machine was suspended, or a call took long.

No peer was heard meanwhile, and its messages are still unread: a peer must have time to be heard before a deadline that passed then is
held against it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

BEAT = 0.5  # s between two looks at the clock
HELD_UP = 1.0  # s; a look that comes later than this shows that the loop was held up


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # goes on while the machine is suspended


class Pulse:
    """The beat of a loop."""

    def __init__(self, clock: Callable[[], float] = _boottime) -> None:
        self._clock = clock
        self._looked, self._resumed = math.inf, -math.inf

    async def beat(self) -> None:
        """Look at the clock until cancelled."""
        while True:
            self.since_held_up()
            await asyncio.sleep(BEAT)

    def since_held_up(self) -> float:
        """Return the seconds since the loop went on after it was held up; infinite where it never was."""
        now = self._clock()
        if now - self._looked > BEAT + HELD_UP:
            self._resumed = now
        self._looked = now
        return now - self._resumed
