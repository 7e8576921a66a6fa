"""The pages of programs in `tm ui`: the quick links of jobs that run, and TensorBoard over the event files of jobs that have ended.

They are served at a port of their own by `web.proxy`, each under a name below `localhost`, which browsers resolve to this machine.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from trainmaster.client.ui.tensorboards import TensorBoards
from trainmaster.client.ui.threads import in_thread
from trainmaster.core.errors import TrainmasterError
from trainmaster.core.spec.job import BOARD_LABEL
from trainmaster.web.contract import Unknown

if TYPE_CHECKING:
    from trainmaster.web.proxy import Program, Programs

DOMAIN = "localhost"
LOOK_AGAIN = 10.0  # s until event files are looked for again, where there were none
LOOK_SHARE = 20  # and so many times as long as looking took


class Links:
    """The ASGI application at the port of programs' pages. It is loaded when the first of them is opened."""

    def __init__(self, port: int, status: Callable[[str], Awaitable[Mapping[str, Any]]]) -> None:
        """`status(job)` returns a job's present status, and raises TrainmasterError."""
        self._port, self.status = port, status
        self._boards = TensorBoards()
        self._asking: dict[tuple[str, str], asyncio.Future[Program | None]] = {}  # masters, where their programs are

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await self._programs(scope, receive, send)

    async def entry(self, job: str, label: str) -> str:
        """Return an address that opens a page once. Raises Unknown, or TrainmasterError where TensorBoard does not start."""
        status = await self.status(job)
        if label not in status["links"]:
            if label != BOARD_LABEL or status["ended"] is None:
                raise Unknown(f"no program of the job serves the page {label[:100]} now")
            await self._boards.start(job)
        return self._programs.entry(job, label, "127.0.0.1", self._port)

    async def close(self) -> None:
        """End each TensorBoard that was started."""
        await self._boards.close()

    @functools.cached_property
    def _programs(self) -> Programs:
        from trainmaster.web.proxy import Programs

        return Programs(self._find, time.monotonic, DOMAIN)

    async def _find(self, job: str, label: str) -> Program | None:
        from trainmaster.client.programs import program_of

        if label == BOARD_LABEL and (board := self._boards.program(job)) is not None:
            return board
        key = (job, label)
        if key not in self._asking:  # a page asks for many things at once
            self._asking[key] = asyncio.ensure_future(in_thread(program_of, job, label))
            self._asking[key].add_done_callback(lambda _: self._asking.pop(key))
        try:
            return await asyncio.shield(self._asking[key])
        except (TrainmasterError, OSError):  # the job was removed, or its master does not answer
            return None


class LinksOf:
    """The `Links` of one job, as its pages have them."""

    def __init__(self, job: str, links: Links) -> None:
        self._job, self._links = job, links
        self._has_event_files = False
        self._look_after = 0.0

    async def has_event_files(self) -> bool:
        from trainmaster.client.tensorboard import has_event_files

        began = time.monotonic()
        if not self._has_event_files and began > self._look_after:
            self._has_event_files = await in_thread(has_event_files, self._job)
            now = time.monotonic()
            self._look_after = now + max(LOOK_AGAIN, LOOK_SHARE * (now - began))
        return self._has_event_files

    async def entry(self, label: str) -> str:
        return await self._links.entry(self._job, label)
