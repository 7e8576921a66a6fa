"""Jobs that outlived every process of theirs: taken up again, or ended, by the next command.

A dead master is replaced by an agent of its job within a second. Where all its processes died at once, as when the machine was
restarted, nobody is left to do so: then the next `tm` command starts a master, which goes on from the event log, or ends the job where the
secrets it needs were kept by nobody.
"""

from __future__ import annotations

import logging

from trainmaster.client.jobs.backends import backend_of
from trainmaster.client.jobs.places import client_side
from trainmaster.core.errors import TrainmasterError
from trainmaster.engines.contract import OnThisMachine
from trainmaster.engines.registry import DEFAULT

log = logging.getLogger(__name__)


def sweep() -> list[str]:
    """Take up the jobs of this machine that nobody looks after; returns them. Cheap where there is nothing to do."""
    client: OnThisMachine = client_side(DEFAULT)
    resumed = []
    for job in client.orphans():
        try:
            if resume(job):
                resumed.append(job)
        except TrainmasterError as error:  # another job's trouble must not fail this command
            log.warning("could not take up %s: %s", job, error.message)
    return resumed


def resume(job: str) -> bool:
    """Start a master for `job` where nobody is left who would; returns whether that was done."""
    return backend_of(job).resume(job)


def is_abandoned(job: str) -> bool:
    """Tell whether nothing of `job` lives where it runs."""
    return backend_of(job).is_abandoned(job)
