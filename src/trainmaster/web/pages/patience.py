"""Read for a page what may take long, or cannot be read now: the page shows the rest meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from trainmaster.core.errors import StorageFailed

PATIENCE = 1.5  # s that a page waits for one thing

T = TypeVar("T")


class Patience:
    """The reads of one job's pages that go on. A read that a page no longer waits for serves the next page."""

    def __init__(self) -> None:
        self._reads: dict[tuple[str, str], asyncio.Task[Any]] = {}

    async def read(self, name: str, read: Callable[[], Awaitable[T]], default: T, of: str = "") -> tuple[T, str]:
        """Return what `read()` gives, and ""; else `default`, and why. `of`: tells reads of one name apart that give different things."""
        if (task := self._reads.get((name, of))) is None:
            task = self._reads[name, of] = asyncio.ensure_future(_awaited(read))
        done, _ = await asyncio.wait([task], timeout=PATIENCE)
        if not done:
            return default, f"the {name} are still being read"
        if self._reads.get((name, of)) is task:  # else another page has taken it, and a further one reads anew
            del self._reads[name, of]
        try:
            return task.result(), ""
        except StorageFailed as error:
            return default, f"the {name} cannot be read now: {error.message}"


async def _awaited(read: Callable[[], Awaitable[T]]) -> T:
    return await read()
