"""The time by which rows are used and evicted: it goes on steadily, whatever the machine's clock is set to."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    """A clock in seconds. It begins with the machine's, or with `at_least` where that is later: the newest use that a former process noted.

    So rows are as old as they are, though the machine's clock goes back while this process runs, or before it.
    """

    def __init__(
        self, at_least: float, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._steady = steady
        self._ahead = max(wall(), at_least) - steady()

    def __call__(self) -> float:
        """Return the present time."""
        return self._steady() + self._ahead
