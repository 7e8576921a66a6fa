"""Keep open pages current: a page is made of *blocks*, elements with an id, and a reader gets those that changed.

The blocks of one view of a job (its main page, one task's page, a filtered list) are made once for all who have that view open. They are
made when the facts change, at most `OFTEN` times a second, and in at most a tenth of the time. While nobody looks nothing is made.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from trainmaster.core.errors import TrainmasterError

OFTEN = 0.1  # s between two makings at least
SELDOM = 2.0  # s between two makings at most, where there is something new: the first one also loads templates
SHARE = 10  # a view is left as it is for as many times as long as making it took
LINGER = 10.0  # s that blocks are kept current after the last reader asked
QUIET = 10.0  # s after which a reader who gets nothing is answered all the same

# id -> HTML of the element; or (identity, HTML) of one that has blocks of its own inside: it changed where its identity did
Blocks = Mapping[str, str | tuple[str, str]]
Make = Callable[[], Awaitable[Blocks]]

log = logging.getLogger(__name__)


class Changing(Protocol):
    """A source of what pages show, like `Facts`."""

    async def changed(self, version: int, within: float) -> int: ...


class View:
    """The blocks of one view. A version is a number that rises whenever a block changes."""

    def __init__(
        self, facts: Changing, make: Make, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:  # fmt: skip
        self._facts, self._make, self._clock = facts, make, clock
        self._work_done = time.thread_time  # of this thread alone: making may wait for others, who read
        self._blocks: dict[str, tuple[int, str]] = {}  # id -> the version in which it last changed, and its HTML
        self._identities: dict[str, str] = {}  # id -> by what it is known whether it changed
        self.version = round(wall() * 1000)  # above all versions of an earlier process, by which a page may ask
        self._news = asyncio.Condition()
        self._asked = 0.0
        self._work: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    @property
    def idle(self) -> bool:
        return self._work is None or self._work.done()

    async def now(self) -> tuple[int, dict[str, str]]:
        """Return the present version and all blocks, for a page that opens."""
        if self.idle or not self._blocks:
            self._note(await self._make())
        return self.version, {key: html for key, (_, html) in self._blocks.items()}

    async def changes(self, version: int) -> tuple[int, list[str]]:
        """Return the present version, and the blocks that changed after `version`, at once: for a page that polls.

        Raises the error that keeps the blocks from being made.
        """
        await self.now()
        self._go_on()
        return self._newer(version)

    async def since(self, version: int) -> tuple[int, list[str]]:
        """Return the present version, and the blocks that changed after `version`; wait for some.

        A page may ask by a version that an earlier process of this server had. Raises the error that keeps the blocks from being made.
        """
        self._go_on()
        try:
            async with asyncio.timeout(QUIET), self._news:
                await self._news.wait_for(
                    lambda: (self._blocks and self.version > version) or self._failure is not None
                )
        except TimeoutError:
            pass
        self._asked = self._clock()
        if self._failure is not None:
            raise self._failure
        return self._newer(version)

    def _newer(self, version: int) -> tuple[int, list[str]]:
        return self.version, [html for changed, html in self._blocks.values() if changed > version]

    def _go_on(self) -> None:
        """Have the blocks kept current for a while."""
        self._asked = self._clock()
        if self.idle:
            self._failure = None
            self._work = asyncio.create_task(self._keep_current())

    async def _keep_current(self) -> None:
        known = 0
        try:
            while self._clock() - self._asked < QUIET + LINGER:
                known = await self._facts.changed(known, QUIET)
                began = self._work_done()
                self._note(await self._make())
                took = self._work_done() - began
                async with self._news:
                    self._news.notify_all()
                await asyncio.sleep(min(SELDOM, max(OFTEN, took * SHARE)))
        except Exception as failure:
            if not isinstance(failure, TrainmasterError | LookupError):
                log.exception("a page could not be made")
            self._failure = failure
            async with self._news:
                self._news.notify_all()

    def _note(self, blocks: Blocks) -> None:
        """Take in new blocks. A block whose parts changed, but not itself, has its new HTML for pages that open."""
        identities = {key: block if isinstance(block, str) else block[0] for key, block in blocks.items()}
        changed = {key for key, identity in identities.items() if self._identities.get(key) != identity}
        self.version += bool(changed)
        self._identities = identities
        self._blocks = {
            key: (
                self.version if key in changed else self._blocks[key][0],
                block if isinstance(block, str) else block[1],
            )
            for key, block in blocks.items()
        }


class Views:
    """The views of one job that are open, by name."""

    def __init__(self, facts: Changing) -> None:
        self._facts = facts
        self._views: dict[str, View] = {}

    def view(self, name: str, make: Make) -> View:
        for other in [other for other, view in self._views.items() if view.idle and other != name]:
            del self._views[other]
        return self._views.setdefault(name, View(self._facts, make))
