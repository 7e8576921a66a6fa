"""Keep feeders from holding the slots that a feed's readers need.

An application may have few slots. Spark gives them to the older of two Spark jobs first, so feeders that wait for a reader would hold all
of them while that reader waits for one, for ever. So the driver starts feeders once the readers have their containers. If a reader is lost
later, and has had no slot for `PATIENCE` seconds, the driver cancels the feeders. Rows that they had not put into a ring are fed anew, once
the reader is there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from trainmaster.runtime.feed.channel import FeedError
from trainmaster.runtime.feed.master import Master

PATIENCE = 3.0  # s; where slots are free, a lost reader is there again within one
log = logging.getLogger(__name__)


def wait_for_readers(ask: Callable[..., Any]) -> None:
    """Return once the readers have containers, or nobody wants more. `ask`: the master. Raises what it raises."""
    while (answer := ask("readers", there=True))["do"] == "wait":
        log.warning("feeding %s", answer["why"])


@contextmanager
def giving_way(
    link: dict[str, Any], cancel: Callable[[], None], has_ended: threading.Event
) -> Iterator[threading.Event]:
    """Have feeders cancelled where a reader needs their slots; yield an event that tells it. `has_ended`: the job has."""
    over, gave_way = threading.Event(), threading.Event()

    def watch() -> None:
        master = Master(link, lambda: over.is_set() or has_ended.is_set())

        def is_missing() -> bool:
            return not over.is_set() and bool(master.ask("readers", there=False)["do"] == "readers")

        with suppress(FeedError):  # the feeders hear what their master says
            while not over.is_set() and not has_ended.is_set():
                if is_missing() and not over.wait(PATIENCE) and is_missing():
                    gave_way.set()
                    log.warning("feeders give way to a reader of %s that has no slot", link["job"])
                    cancel()
                    break
        master.close()

    threading.Thread(target=watch, daemon=True, name=f"slots of {link['job']}").start()
    try:
        yield gave_way
    finally:
        over.set()
