"""That YARN itself ends a job (`yarn application -kill`): heard in time to write it down.

YARN sends SIGTERM to the master's container and SIGKILL 250 ms later (`yarn.nodemanager.sleep-delay-before-sigkill.ms`), and from then on
answers the master's beats with "no such attempt". Neither says that the whole application is over: a node that is taken out of service does
the same, and another master follows there. What the application's report says decides, which is up to date some milliseconds later.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from trainmaster.engines.yarn.master.exits import line
from trainmaster.hadoop.errors import HadoopError
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.yarn import ResourceManager

WITHIN = 0.2  # s that the report has to say it
LOOK = 0.01  # s between two looks

log = logging.getLogger(__name__)


class Ending:
    """Whether YARN has killed the application."""

    def __init__(self, manager: ResourceManager, application: y.ApplicationIdProto) -> None:
        self._manager = manager
        self._request = y.GetApplicationReportRequestProto(application_id=application)
        self._looking: asyncio.Task[None] | None = None

    def heed(self, tell: Callable[[str], None]) -> None:
        """From now on, `tell` YARN's words at a SIGTERM, if it has killed the application; else that signal ends us, as ever."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminated, tell)

    def _terminated(self, tell: Callable[[str], None]) -> None:
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(tell))

    async def _look(self, tell: Callable[[str], None]) -> None:
        if why := await self.killed():
            tell(why)
            return
        log.warning("SIGTERM, and YARN lets the job go on: it is another master's")
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    async def killed(self) -> str:
        """What YARN says of its end, "" where it does not end the application."""
        try:
            async with asyncio.timeout(WITHIN):
                while True:
                    report = (await self._manager.get_application_report(self._request)).application_report
                    if report.yarn_application_state == y.KILLED:
                        return line(report.diagnostics) or "YARN killed the application"
                    await asyncio.sleep(LOOK)
        except (TimeoutError, HadoopError):
            return ""
