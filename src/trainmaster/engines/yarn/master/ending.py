"""Detect that YARN itself kills a job (`yarn application -kill`), in time to log it.

YARN sends SIGTERM to the master's container and SIGKILL 250 ms later (`yarn.nodemanager.sleep-delay-before-sigkill.ms`). From then on YARN
answers the master's beats with "no such attempt". Neither the signal nor the answer says that the whole application is over: both also come
when a node is taken out of service, and then another master follows. The application's report decides. It is up to date some milliseconds
later.
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

WITHIN = 0.2  # seconds in which the report must say that YARN killed the application
LOOK = 0.01  # seconds between two looks at the report

log = logging.getLogger(__name__)


class Ending:
    """Watches whether YARN has killed the application."""

    def __init__(self, manager: ResourceManager, application: y.ApplicationIdProto) -> None:
        self._manager = manager
        self._request = y.GetApplicationReportRequestProto(application_id=application)
        self._looking: asyncio.Task[None] | None = None

    def listen(self, tell: Callable[[str], None]) -> None:
        """Handle SIGTERM from now on: `tell` YARN's reason if YARN has killed the application; otherwise the signal ends us as ever."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._look_after_signal, tell)

    def _look_after_signal(self, tell: Callable[[str], None]) -> None:
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(tell))

    async def _look(self, tell: Callable[[str], None]) -> None:
        if reason := await self.killed():
            tell(reason)
            return
        log.warning("SIGTERM, and YARN lets the job go on: it is another master's")
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    async def killed(self) -> str:
        """Return YARN's reason for killing the application, "" where YARN has not killed it."""
        try:
            async with asyncio.timeout(WITHIN):
                while True:
                    report = (await self._manager.get_application_report(self._request)).application_report
                    if report.yarn_application_state == y.KILLED:
                        return line(report.diagnostics) or "YARN killed the application"
                    await asyncio.sleep(LOOK)
        except (TimeoutError, HadoopError):
            return ""
