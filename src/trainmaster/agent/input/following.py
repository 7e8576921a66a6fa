"""Keep an attempt's inputs `as: follow` up to date while its program runs."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.agent.attempt.failure import words

if TYPE_CHECKING:
    from trainmaster.agent.attempt.place import Place

EVERY = 5.0  # s between two looks

log = logging.getLogger(__name__)


async def follow(
    inputs: Mapping[str, Mapping[str, Any]], place: Place, halt: threading.Event, report: Callable[..., None]
) -> None:
    """Copy what comes to the inputs into the working directory, until cancelled, or until `halt` is set.

    A failure is reported once, and the next look tries again. The next attempt waits for a copy that still runs (`place.threads`).
    """
    from trainmaster.data.following import Following

    stop = threading.Event()
    copies = {
        name: Following(fields["url"], os.path.join(place.workplace.cwd, fields["local"]), stop)
        for name, fields in inputs.items()
    }
    reported: set[str] = set()
    try:
        while not halt.is_set():
            for name, copy in copies.items():
                try:
                    await place.threads.run(copy.look)
                except Exception as error:  # noqa: BLE001  the program goes on with the files that came so far
                    log.warning("the input %s cannot be followed now: %s", name, error)
                    if name not in reported:
                        reported.add(name)
                        report("warned", what=f"input {name}", detail=words(error))
            await asyncio.sleep(EVERY)
    finally:
        stop.set()
