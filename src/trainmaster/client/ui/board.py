"""The jobs of a place, kept current while somebody looks at their list."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trainmaster.client.ui.threads import fault_words, in_thread
from trainmaster.core.errors import TrainmasterError

if TYPE_CHECKING:
    from trainmaster.log.index import Headline, Jobs

EVERY_LOCAL, EVERY_ELSEWHERE = 1.0, 5.0  # s between two looks at the place
SHARE = 5  # and so many times as long as a look took
FIRST = 2.0  # s that a page waits for the first look; then it shows the jobs that were read so far
PRESENT = 0.1  # s that a page waits for a later look

log = logging.getLogger(__name__)


class Board:
    """The jobs of a place as their list shows them. `open_place` makes the jobs, and may block."""

    def __init__(
        self, open_place: Callable[[], Jobs], local: bool, before: Callable[[], object] = lambda: None
    ) -> None:
        """`before`: called before each look."""
        self._open_place, self._before = open_place, before
        self._every = EVERY_LOCAL if local else EVERY_ELSEWHERE
        self._jobs: Jobs | None = None
        self._look: asyncio.Task[None] | None = None
        self._looked_at = -self._every
        self._has_looked = False
        self._version = 1
        self.headlines: Sequence[Headline] = ()
        self.trouble = ""  # why the place cannot be read now

    async def present(self) -> Sequence[Headline]:
        """Return the jobs, newest first: as they are now, where that is known soon."""
        if not self._has_looked or time.monotonic() > self._looked_at + self._every:
            look = self._begin_look()
            await asyncio.wait([look], timeout=PRESENT if self._has_looked else FIRST)
        if not self._has_looked and self._jobs is not None:
            self.headlines = self._jobs.headlines
            self.trouble = f"The jobs are being read for the first time: {len(self.headlines)} so far"
        return self.headlines

    async def changed(self, version: int, within: float) -> int:
        """Wait until the jobs are others than at `version`, at most `within` seconds; return the present version."""
        limit = time.monotonic() + within
        while self._version == version and (left := limit - time.monotonic()) > 0:
            pause = max(0.0, self._looked_at + self._every - time.monotonic())
            await asyncio.sleep(min(pause, left))
            if pause < left:
                await asyncio.wait([self._begin_look()], timeout=max(0.0, limit - time.monotonic()))
        return self._version

    def close(self) -> None:
        """Write what a later process need not read again."""
        if self._jobs is not None:
            self._jobs.write()

    def _begin_look(self) -> asyncio.Task[None]:
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._refresh())
        return self._look

    async def _refresh(self) -> None:
        began, trouble, headlines = time.monotonic(), "", self.headlines
        try:
            headlines = await in_thread(self._read)
        except TrainmasterError as error:
            trouble = error.message
        except Exception as error:  # the list says it, and it may pass
            log.exception("the jobs could not be read")
            trouble = fault_words(error)
        self._has_looked = True
        took = time.monotonic() - began
        self._looked_at = time.monotonic() + min(SHARE * took, 60.0)
        self._version += (headlines, trouble) != (self.headlines, self.trouble)
        self.headlines, self.trouble = headlines, trouble

    def _read(self) -> Sequence[Headline]:
        if self._jobs is None:
            self._jobs = self._open_place()
        with contextlib.suppress(TrainmasterError, OSError):
            self._before()
        headlines = self._jobs.refresh()
        self._jobs.write(time.monotonic())
        return headlines
