"""Begin a master in a container of a cluster: its engine hands over what it needs."""

from __future__ import annotations

import os
import time
from importlib import import_module

from trainmaster.host import linux
from trainmaster.lazy import lazily

ENDED_WITHIN = 300.0  # s


def main() -> int:
    """Be the master until the job is over; return the exit status."""
    lazily()
    linux.one_heap()
    directory, payload, container = import_module(
        os.environ["TRAINMASTER_CONTAINER"]
    ).master()  # the engine's `ContainerSide`
    os.makedirs(os.path.join(directory, "logs", "master"), exist_ok=True)
    from trainmaster.master.hosts import ContainerHost
    from trainmaster.master.main import run
    from trainmaster.master.record import Superseded

    try:
        return run(
            directory,
            payload,
            ContainerHost(container, os.path.basename(directory), payload["certificate"], payload["key"]),
        )
    except Superseded:
        # A master that began here again at once would supersede our successor. The engine ends us with our container; if it does not, it
        # has ended the other master.
        if container.begun_again:
            time.sleep(ENDED_WITHIN)
        raise
