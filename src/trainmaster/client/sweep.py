"""Jobs that outlived every process of theirs: taken up again, or ended, by the next command.

A dead master is replaced by an agent of its job within a second. Only where all its processes died at once, as when the machine was
restarted, nobody is left to do so: then the next `tm` command starts a master, which goes on from the event log, or ends the job where the
secrets it needs were kept by nobody.
"""

from __future__ import annotations

import logging

from trainmaster.client.places import engine_of
from trainmaster.core.errors import TrainmasterError

log = logging.getLogger(__name__)


def sweep() -> list[str]:
    """Take up what nobody looks after; returns those jobs. Cheap where there is nothing to do."""
    from trainmaster.engines.local.sweep import sweep as clear

    taken = []
    for job in clear():
        try:
            if _start(job):
                taken.append(job)
        except TrainmasterError as error:  # another job's trouble must not fail this command
            log.warning("could not take up %s: %s", job, error.message)
    return taken


def resume(job: str) -> bool:
    """Start a master for `job` if none of its processes is left; whether one was started."""
    if engine_of(job) != "local":
        from trainmaster.client.distant import conclude, taken_up

        return taken_up(job) or conclude(job)
    from trainmaster.engines.local.sweep import sweep as clear

    return job in clear() and _start(job)


def abandoned(job: str) -> bool:
    """Whether nothing of `job` lives where it runs."""
    if engine_of(job) != "local":
        from trainmaster.client.distant import fate

        return fate(job) != "running"
    from trainmaster.engines.local.client import LocalClient

    return LocalClient(lambda job: ()).fate(job) != "running"


def _start(job: str) -> bool:
    from trainmaster.master.launch import resume as start

    return bool(start(job))
