"""The beginning of a master in a container of a cluster: what it is given comes the way of its engine."""

from __future__ import annotations

import os
import time
from importlib import import_module

from trainmaster.host import linux
from trainmaster.lazy import lazily

ENDED_WITHIN = 300.0  # s


def main() -> int:
    """Be the master until the job is over; the exit status."""
    lazily()
    linux.one_heap()
    directory, told, container = import_module(
        os.environ["TRAINMASTER_CONTAINER"]
    ).master()  # the engine's `ContainerSide`
    os.makedirs(os.path.join(directory, "logs", "master"), exist_ok=True)
    from trainmaster.master.main import run
    from trainmaster.master.record import Superseded
    from trainmaster.master.seats import InContainer

    try:
        return run(directory, told, InContainer(container, told["certificate"], told["key"]))
    except Superseded:
        # A master that began here again at once would follow the one that follows us; we are ended with our container. If we are not, it is
        # the other one that was.
        if container.begun_again:
            time.sleep(ENDED_WITHIN)
        raise
